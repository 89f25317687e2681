"""Shared memory of MPI: nothing is left in /dev/shm, however a run ends."""

from __future__ import annotations

import importlib.util
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from collhub_execution.testing import LaunchedExecutor, find_processes, wait_until
from collhub_mpi import executor
from collhub_mpi.executor import remove_segments_on_error
from collhub_mpi.plugin import MpiOptions

FOLDER = Path("/dev/shm")
PREFIXES = ("mpich_shm_", "ucx_shm_", "sm_segment.", "vader_segment.")
MODULE = "collhub_mpi.rank"

pytestmark = pytest.mark.skipif(
    not (FOLDER.is_dir() and Path("/proc/self/maps").exists()),
    reason="names of shared memory are looked for in /dev/shm and /proc",
)
needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None,
    reason="mpi4py is not installed: python -m pip install mpi4py mpich",
)

RUN = """
from functools import partial
from collhub_execution.testing import levelled_for
from collhub_mpi import executor
from collhub_mpi.plugin import MpiOptions
from hub_core.testing import ring_all_reduce

request = levelled_for(ring_all_reduce(4), in_place=True, repeats=100000, timeout_s=60.0)
executor.run_in_processes(request, MpiOptions())
"""


def segments() -> set[str]:
    return {path.name for path in FOLDER.iterdir() if path.name.startswith(PREFIXES)}


@pytest.fixture
def made() -> Iterator[Path]:
    """A segment as MPICH names it."""
    path = FOLDER / f"mpich_shm_of_a_test_{os.getpid()}"
    yield path
    path.unlink(missing_ok=True)


def interrupt(work: Callable[[], object]) -> None:
    """Ctrl-C while ranks run, after `work`."""
    try:
        with remove_segments_on_error():
            work()
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass


def test_what_killed_ranks_left_is_removed(made: Path) -> None:
    interrupt(lambda: made.write_bytes(bytes(10)))
    assert not made.exists()


def test_what_a_living_process_has_mapped_stays(made: Path) -> None:
    mappings = []

    def work() -> None:
        made.write_bytes(bytes(10))
        with open(made, "r+b") as file:
            mappings.append(mmap.mmap(file.fileno(), 10))

    interrupt(work)
    assert made.exists()
    mappings[0].close()


def test_what_was_there_before_stays(made: Path) -> None:
    made.write_bytes(bytes(10))
    assert wait_until(lambda: _age_s(made) > 2.0, 10.0)
    interrupt(lambda: None)
    assert made.exists()


def _age_s(path: Path) -> float:
    probe = path.with_name(f"{path.name}_now")
    probe.touch()
    now = probe.stat().st_ctime
    probe.unlink()
    return now - path.stat().st_ctime


@needs_mpi
def test_a_run_that_times_out_leaves_nothing() -> None:
    before = segments()
    launched = LaunchedExecutor(
        partial(executor.execute, options=MpiOptions()),
        partial(executor.run_in_processes, options=MpiOptions()),
        module=MODULE,
    )
    launched.check_deadlock(timeout_s=6.0, limit_s=30.0)
    assert segments() <= before


@needs_mpi
@pytest.mark.parametrize("is_running", [False, True], ids=["starting", "running"])
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_nothing(ending: signal.Signals, is_running: bool) -> None:
    before = segments()
    process = subprocess.Popen([sys.executable, "-c", RUN], stderr=subprocess.DEVNULL)
    assert wait_until(lambda: len(find_processes(MODULE)) >= 4, 60.0)
    if is_running:
        assert wait_until(_have_begun, 60.0)
    process.send_signal(ending)
    assert process.wait(30) != 0
    assert wait_until(lambda: not find_processes(MODULE), 60.0)
    assert segments() <= before


def _have_begun() -> bool:
    """Whether the ranks have mapped what they share with the launcher."""
    return all(
        "memfd:collhub-job" in Path(f"/proc/{process}/maps").read_text()
        for process in find_processes(MODULE)
    )
