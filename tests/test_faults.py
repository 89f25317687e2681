"""Faults of the disk and kills: whichever operation fails, a command leaves all of its output or none."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# Audit events of operations that make or change files, and the position of the changed path.
EVENTS = {"open": 0, "os.mkdir": 0, "os.rename": 1, "os.chmod": 0, "os.link": 1, "os.symlink": 1}
MOST_OPERATIONS = 60

# A command line; OUT stands for the output, RING for an input.
COMMANDS = {
    "file": "convert RING -o OUT/one.json",
    "file in new folders": "convert RING -o OUT/a/b/one.json",
    "set of ranks": "convert RING -o OUT/set --to chakra",
    "smaller set over another": "convert RING -o OUT/old --to chakra --force",
    "plugin": "plugins new mine --directory OUT/mine",
}
WITH_PLUGINS = {
    "synthesized": "synthesize ring --collective all-gather --topology ring:8 --size 1MiB -o OUT/old --to chakra --force",
    "tuned folder": "tune --collective all-reduce --topology ring:4 --size 1KiB --with ring --no-cache -o OUT/tuned",
}  # fmt: skip


class Fault:
    """Fail the n-th operation on files below a folder; an audit hook cannot be removed, so it is one.

    The fault happens before the operation. `action` raises, or ends the process.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self.left = 0
        self.action: Callable[[str], None] = fail_with(errno.EIO)
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None or event not in EVENTS:
            return
        path = arguments[EVENTS[event]]
        if not isinstance(path, str | bytes | os.PathLike):
            return
        if not os.fsdecode(path).startswith(self.folder):
            return
        if event == "open" and not arguments[2] & WRITING:
            return
        self.left -= 1
        if self.left == 0:
            self.folder = None
            self.action(os.fsdecode(path))


def fail_with(code: int) -> Callable[[str], None]:
    """The action that fails as the operating system does."""

    def fail(path: str) -> None:
        raise OSError(code, os.strerror(code), path)

    return fail


@pytest.fixture(scope="session")
def only_fault() -> Fault:
    return Fault()


@pytest.fixture
def fault(only_fault: Fault) -> Iterator[Fault]:
    yield only_fault
    only_fault.folder = None


def contents(folder: Path) -> dict[str, bytes | None]:
    """All files below a folder with their bytes, and its folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def prepared(out: Path, before: Path) -> None:
    """The output's folder as it stood before."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(before, out)


@pytest.fixture
def before(collhub, ring: Path, tmp_path: Path) -> Path:
    """A folder with an older set of two more ranks and a file of the same name as an output."""
    folder = tmp_path / "before"
    folder.mkdir()
    (folder / "one.json").write_bytes(b"an older file\n")
    assert collhub("convert", ring, "-o", folder / "old", "--to", "chakra").code == 0
    for rank in (8, 9):
        shutil.copy(folder / "old.0.et", folder / f"old.{rank}.et")
    return folder


def words(command: str, ring: Path, out: Path) -> list[str]:
    return command.replace("OUT", str(out)).replace("RING", str(ring)).split()


def check_all_or_nothing(
    collhub, command: list[str], before: Path, out: Path, fault: Fault, code: int
) -> None:
    fault.action = fail_with(code)
    for number in range(1, MOST_OPERATIONS):
        prepared(out, before)
        fault.folder, fault.left = str(out), number
        run = collhub(*command)
        if fault.folder is not None:
            fault.folder = None
            assert run.code == 0
            assert number > 1
            break
        assert contents(out) == contents(before), f"operation {number}"
        assert run.code == 2, f"operation {number}"
        assert re.fullmatch(f"error: .*{os.strerror(code)}.*\n", run.err), f"operation {number}"
    else:
        pytest.fail(f"more than {MOST_OPERATIONS} operations")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", COMMANDS)
def test_the_operation_that_fails_leaves_what_stood_there(
    collhub, ring: Path, before: Path, tmp_path: Path, fault: Fault, name: str, code: int
) -> None:
    out = tmp_path / "out"
    command = words(COMMANDS[name], ring, out)
    check_all_or_nothing(collhub, command, before, out, fault, code)


@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", WITH_PLUGINS)
def test_commands_of_plugins_leave_what_stood_there(
    collhub, ring: Path, before: Path, tmp_path: Path, fault: Fault, name: str
) -> None:
    out = tmp_path / "out"
    command = words(WITH_PLUGINS[name], ring, out)
    check_all_or_nothing(collhub, command, before, out, fault, errno.ENOSPC)


@pytest.mark.needs_plugins
def test_a_demo_that_fails_leaves_complete_files(collhub, tmp_path: Path, fault: Fault) -> None:
    # It writes a set for each example: those that were written before the fault stay.
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert collhub("demo", "--output", whole).code == 0
    written = contents(whole)
    fault.action = fail_with(errno.ENOSPC)
    for number in (1, 2, 10, 20, len(written)):
        shutil.rmtree(out, ignore_errors=True)
        fault.folder, fault.left = str(out), number
        run = collhub("demo", "--output", out)
        assert fault.folder is None
        assert run.code == 2
        left = contents(out) if out.exists() else {}
        assert {name: written[name] for name in left} == left


@pytest.mark.parametrize("limit", [1, 100, 1000])
def test_a_file_of_which_a_part_fits_is_not_left(
    ring: Path, before: Path, tmp_path: Path, limit: int
) -> None:
    # Writing fails after this many bytes: Python ignores the signal, and write() gives EFBIG.
    out = tmp_path / "out"
    prepared(out, before)
    command = [sys.executable, "-P", "-B", "-m", "hub_core.cli.main"]
    result = subprocess.run(
        [*command, *words(COMMANDS["file"], ring, out)],
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert (result.returncode, contents(out)) == (2, contents(before))
    assert re.fullmatch(rb"error: [^\n]*\n", result.stderr)


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from test_faults import Fault
fault = Fault()
fault.action = lambda path: os.kill(os.getpid(), signal.SIGKILL)
fault.folder, fault.left = sys.argv[2], int(sys.argv[3])
from hub_core.cli.main import main
sys.exit(main(sys.argv[4:]))
"""


def test_a_killed_command_leaves_no_half_written_file(
    collhub, ring: Path, before: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = words(COMMANDS["smaller set over another"], ring, out)
    prepared(out, before)
    assert collhub(*command).code == 0
    old, new = contents(before), contents(out)
    for number in range(1, MOST_OPERATIONS):
        prepared(out, before)
        here = str(Path(__file__).parent)
        start = [sys.executable, "-P", "-c", KILLED, here, str(out), str(number), *command]
        result = subprocess.run(start, capture_output=True, timeout=60, check=False)
        if result.returncode == 0:
            assert number > 1
            break
        assert result.returncode == -9, result.stderr.decode()
        for name, data in contents(out).items():
            if not name.startswith(".collhub-"):
                assert data in (old.get(name), new.get(name)), f"{name}, operation {number}"
    else:
        pytest.fail(f"more than {MOST_OPERATIONS} operations")
