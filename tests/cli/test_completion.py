"""Completion in bash, zsh and fish: commands, options, names of formats and plugins, files."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Complete = Callable[[str], str]
PROGRAM = "hub_core.cli.main"
# The lines that the user guide states; then, in a line editor, Ctrl-X shows what stands in it.
BASH = """
PS1= PS2= PROMPT_COMMAND=
bind 'set enable-bracketed-paste off'
bind -x '"\\C-x": echo "<$READLINE_LINE>"'
eval "$(_COLLHUB_COMPLETE=bash_source collhub)"
echo REA""DY
"""
ZSH = """
PS1= PS2= RPS1=; unsetopt zle_bracketed_paste prompt_sp
autoload -Uz compinit; compinit -u -D
eval "$(_COLLHUB_COMPLETE=zsh_source collhub)"
shown() { print -r -- "<$BUFFER>" }; zle -N shown; bindkey "^X" shown
print REA""DY
"""
FISH = """
_COLLHUB_COMPLETE=fish_source collhub | source
complete --do-complete {line} | cut -f 1
"""
PATIENCE_S = 60.0


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home with one file, and a `collhub` that is this one."""
    (tmp_path / "ring.json").touch()
    program = tmp_path / "bin" / "collhub"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m {PROGRAM} "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(tmp_path), "TERM": "dumb"}


@pytest.fixture(params=["bash", "zsh", "fish"])
def complete(
    request: pytest.FixtureRequest,
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Complete:
    """`complete(line)`: the last word of the line when the shell has completed it."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.chdir(tmp_path)
    in_shell = {"bash": _in_bash, "zsh": _in_zsh, "fish": _in_fish}[request.param]
    return lambda line: in_shell(line, environment)


def _in_fish(line: str, environment: dict[str, str]) -> str:
    script = FISH.format(line=shlex.quote(line))
    result = subprocess.run(
        ["fish", "--no-config", "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment,
        check=False,
    )
    assert result.stderr == ""
    (word,) = result.stdout.split()
    return word


def _in_bash(line: str, environment: dict[str, str]) -> str:
    return _in_terminal(["bash", "--norc", "--noprofile", "-i"], BASH, line, environment)


def _in_zsh(line: str, environment: dict[str, str]) -> str:
    return _in_terminal(["zsh", "-f", "-i"], ZSH, line, environment)


def _in_terminal(
    command: list[str], preparation: str, line: str, environment: dict[str, str]
) -> str:
    """Type the line and a tab into an interactive shell."""
    ours, its = pty.openpty()
    shell = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    try:
        os.write(ours, preparation.encode())
        _read_until(ours, rb"READY")
        os.write(ours, line.encode() + b"\t\x18")
        found = _read_until(ours, rb"<(collhub [^>\r\n]*)>")
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
    return found[1].decode().split()[-1]


def _read_until(terminal: int, pattern: bytes) -> re.Match[bytes]:
    end = time.monotonic() + PATIENCE_S
    seen = b""
    while (found := re.search(pattern, seen)) is None:
        ready, _, _ = select.select([terminal], [], [], end - time.monotonic())
        assert ready, f"the shell answers {seen!r}"
        seen += os.read(terminal, 4096)
    return found


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("collhub ver", "verify"),
        ("collhub --deb", "--debug"),
        ("collhub verify --fifo-c", "--fifo-capacity"),
        ("collhub convert --from chak", "chakra"),
        ("collhub convert ring.json --to js", "json"),
        ("collhub plugins ins", "install"),
        ("collhub --disable-plugin cor", "core"),
        ("collhub verify rin", "ring.json"),
        ("collhub diff ring.json rin", "ring.json"),
        ("collhub convert ring.json -o rin", "ring.json"),
        ("collhub simulate ring.json --topology fully", "fully-connected:8"),
        ("collhub simulate ring.json --topology rin", "ring:8"),
        ("collhub simulate ring.json --topology ./rin", "./ring.json"),
        pytest.param(
            "collhub simulate ring.json -O network=congestion-u",
            "network=congestion-unaware",
            marks=pytest.mark.needs_plugins,
        ),
    ],
)
def test_a_shell_completes(complete: Complete, line: str, word: str) -> None:
    assert complete(line) == word


def asked(line: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What the program answers to bash."""
    variables = {"_COLLHUB_COMPLETE": "bash_complete", "COMP_WORDS": line}
    variables["COMP_CWORD"] = str(len(line.split(" ")) - 1)
    command = [sys.executable, "-P", "-m", PROGRAM]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**environment, **variables},
        check=False,
    )


def test_a_format_of_a_plugin_is_completed(environment: dict[str, str], msccl: None) -> None:
    assert "plain,msccl-xml\n" in asked("collhub convert x --to ", environment).stdout


def test_a_runtime_is_no_other_check(
    environment: dict[str, str], msccl: None, machines: None
) -> None:
    answer = asked("collhub verify --runtime ", environment)
    assert "plain,rccl\n" in answer.stdout
    assert "connectedness" not in answer.stdout


@pytest.mark.parametrize("line", ["collhub nonsense ", "collhub verify --nonsense ", "collhub '"])
def test_what_cannot_be_completed_is_quiet(environment: dict[str, str], line: str) -> None:
    answer = asked(line, environment)
    assert answer.stderr == ""


def test_a_shell_that_is_not_known_is_quiet_on_standard_output(
    environment: dict[str, str],
) -> None:
    command = [sys.executable, "-P", "-m", PROGRAM]
    variables = {**environment, "_COLLHUB_COMPLETE": "tcsh_source"}
    answer = subprocess.run(
        command, capture_output=True, timeout=PATIENCE_S, env=variables, check=False
    )
    assert (answer.returncode, answer.stdout) == (1, b"")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("collhub simulate x --topology tor", {"torus:4x4x4"}),
        ("collhub topology check fat", {"fat-tree:4"}),
        ("collhub simulate x --topology dgx-h100:4?ban", {"dgx-h100:4?bandwidth="}),
        (
            "collhub simulate x --topology ring:8?bandwidth=1GB/s&lat",
            {"ring:8?bandwidth=1GB/s&latency="},
        ),
        (
            "collhub simulate x --topology dgx-h100:4?network=lea",
            {"dgx-h100:4?network=leaf-spine:8,8,4"},
        ),
        ("collhub simulate x --topology dgx1v+dgx1-p", {"dgx1v+dgx1-pcie", "dgx1v+dgx1-pcie:2"}),
        # As bash divides words at = and :, of which it replaces the last part alone.
        ("collhub simulate x --topology dgx-h100 : 4?ban", {"4?bandwidth="}),
        ("collhub simulate x -O occ", {"occupancy="}),
        (
            "collhub simulate x -O network=",
            {"network=congestion-aware", "network=congestion-unaware"},
        ),
        ("collhub simulate x -O network = congestion-u", {"congestion-unaware"}),
        ("collhub simulate x -O network =", {"congestion-aware", "congestion-unaware"}),
        ("collhub synthesize tacos -O me", {"memory=", "method="}),
        ("collhub synthesize tacos -O method=tw", {"method=two-phase"}),
        ("collhub synthesize auto -O candidates=ring,ta", {"candidates=ring,tacos"}),
        ("collhub tune --to msccl,nccl-t", {"msccl,nccl-tuner"}),
        ("collhub synthesize tacos --collective all-g", {"all-gather", "all-gather-v"}),
    ],
)
def test_topologies_options_and_lists_are_completed(
    words: str, expected: set[str], environment: dict[str, str]
) -> None:
    for plugin in ("topologies", "astra_sim", "tacos", "classic", "tuning", "msccl", "nccl"):
        pytest.importorskip(f"collhub_{plugin}")
    answer = asked(words, environment)
    found = {
        line.removeprefix("plain,")
        for line in answer.stdout.splitlines()
        if line.startswith("plain,")
    }
    assert found == expected
