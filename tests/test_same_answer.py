"""The same answer under any load: searches while the machine is busy and the process is stopped."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hub_core import discover
from hub_core.plugin_api import AlgorithmPass, Command, Synthesizer, WorkloadGenerator

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
# Fields of reports that state how long the search took.
_TAKEN = ("synthesis_s", "synthesis_cpu_s", "wall_s", "cpu_s")
_PROGRAM = str(ROOT / "examples" / "coconet" / "transformer_blocks.py")
_STEP_S = 0.2
# By name: the offer that is needed, and the command line; OUT: a file or prefix.
SEARCHES: dict[str, tuple[type, str, str]] = {
    "auto": (
        Synthesizer,
        "tacos",
        "synthesize auto --collective all-gather --topology ring:4 --size 64KiB "
        "-O candidates=tacos,ring,direct --json -o OUT.json",
    ),
    "auto, cut by work": (
        Synthesizer,
        "tacos",
        "synthesize auto --collective all-gather --topology mesh:4x4 --size 64KiB "
        "-O candidates=tacos,ring,direct -O work=3000 --json -o OUT.json",
    ),
    "groups": (
        Command,
        "groups",
        "groups flows --groups '0,1;2,3' --collective all-to-all --topology ring:4 --size 64KiB "
        "--json -o OUT",
    ),
    "coconet": (
        AlgorithmPass,
        "overlap",
        f"transform '{_PROGRAM}' -O program=attention --size B=8,S=16,K=16,H=16 --search "
        "--topology ring:4 -o OUT.program.json",
    ),
    "reshard": (
        Command,
        "reshard",
        "reshard --tensor 64x64:float32 --from 'mesh(2,2)@0-3: S0 R' "
        "--to 'mesh(2,2)@4-7: S1 S0' --topology leaf-spine:2,4,2 --json -o OUT",
    ),
    "pipeline": (
        WorkloadGenerator,
        "pipeline",
        "generate pipeline -O schedule=search -O stages=2 -O micro_batches=4 "
        "-O activation=4MiB -o OUT",
    ),
    "compare": (
        Command,
        "compare",
        "compare --collective all-gather --topology ring:4 --size 1KiB --no-cache --with ring "
        "--with direct --jobs 2 --json",
    ),
}


@contextmanager
def busy_processes() -> Iterator[None]:
    """As many busy loops as there are cores."""
    command = [sys.executable, "-I", "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def answer(line: str, folder: Path, *, is_stopped: bool) -> dict[str, bytes]:
    """What a command prints and writes; `is_stopped`: it is stopped half of the time."""
    folder.mkdir()
    command = [sys.executable, "-P", "-m", "hub_core.cli.main", *shlex.split(line)]
    output = folder.with_suffix(".out")
    # A pipe that nobody reads would hold the command back.
    with output.open("w") as stream:
        run = subprocess.Popen(command, cwd=folder, stdout=stream, stderr=subprocess.DEVNULL)
    while is_stopped and run.poll() is None:
        time.sleep(_STEP_S)
        run.send_signal(signal.SIGSTOP)
        time.sleep(_STEP_S)
        run.send_signal(signal.SIGCONT)
    run.wait(timeout=300)
    printed = output.read_text()
    assert run.returncode == 0, printed
    if printed.startswith("{"):
        report = {name: value for name, value in json.loads(printed).items() if name not in _TAKEN}
        printed = json.dumps(report)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    written = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return {**written, "printed": printed.encode()}


def _skip_without(kind: type, offer: str) -> None:
    if offer not in {found.name for found in discover().all(kind)}:
        pytest.skip(f"no installed plugin offers {offer}")


@pytest.mark.parametrize("name", SEARCHES)
def test_a_time_limit_that_cuts_nothing_changes_nothing(name: str, tmp_path: Path) -> None:
    kind, offer, line = SEARCHES[name]
    _skip_without(kind, offer)
    without = answer(line, tmp_path / "without", is_stopped=False)
    within = answer(f"{line} --timeout 3600", tmp_path / "within", is_stopped=False)
    assert sorted(within) == sorted(without)
    for file, content in without.items():
        assert within[file] == content, file


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_gives_the_same_answer_under_load(name: str, tmp_path: Path) -> None:
    kind, offer, line = SEARCHES[name]
    _skip_without(kind, offer)
    quiet = answer(line, tmp_path / "quiet", is_stopped=False)
    with busy_processes():
        loaded = answer(line, tmp_path / "loaded", is_stopped=True)
    assert sorted(loaded) == sorted(quiet)
    for file, content in quiet.items():
        assert loaded[file] == content, file
