"""The launcher of ranks on this machine: results, ends in time, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collhub_execution import LevelledRequest, judge, levelled_program
from collhub_execution.testing import levelled_for, remove_send

from hub_core.model import InputError, PluginError, ReduceOp
from hub_core.testing import ring_all_reduce

pytest.importorskip("fcntl", reason="launching ranks needs locks on files as Unix has them")

from collhub_execution import launch
from collhub_execution.job_folder import JobMemory

pytestmark = pytest.mark.once

PROGRAM = Path(__file__).with_name("threaded_ranks.py")


def is_right(request: LevelledRequest, outputs: Any) -> bool:
    return judge(request.algorithm.collective, request.inputs, outputs, ReduceOp.SUM, True).is_right


def threaded(request: LevelledRequest, *more: str) -> Any:
    return launch(request, lambda folder: [sys.executable, str(PROGRAM), str(folder), *more])


def test_launched_ranks_return_outputs_and_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    request = levelled_for(
        ring_all_reduce(4), in_place=True, repeats=3, warmups=1, wants_step_times=True
    )
    result = threaded(request)
    assert is_right(request, result.outputs)
    assert (len(result.repeat_times_s), result.native_times_s) == (3, ())
    assert min(result.repeat_times_s) > 0
    assert (
        result.step_start_ns.min(),
        bool(np.all(result.step_end_ns >= result.step_start_ns)),
    ) == (0, True)
    assert list(tmp_path.iterdir()) == []


def test_data_of_ranks_do_not_travel_through_files() -> None:
    request = levelled_for(ring_all_reduce(4), in_place=True, elements=100_000)
    on_disk: list[int] = []

    def command(folder: Path) -> list[str]:
        files = [path for path in folder.iterdir() if not path.is_symlink()]
        on_disk.append(sum(path.stat().st_size for path in files))
        return [sys.executable, str(PROGRAM), str(folder)]

    assert is_right(request, launch(request, command).outputs)
    assert on_disk[0] < request.inputs[0].nbytes / 10


def test_shared_arrays_are_created_once_in_a_folder(tmp_path: Path) -> None:
    memory = JobMemory(tmp_path)
    with memory.created({"values": ((3,), np.int64)}):
        opened = memory.arrays()["values"]
        opened[:] = [1, 2, 3]
    assert opened.tolist() == [1, 2, 3]
    with (
        pytest.raises(FileExistsError, match="values"),
        memory.created({"values": ((3,), np.int64)}),
    ):
        pass


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory without a name needs Linux")
def test_no_descriptor_stays_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    threaded(levelled_for(ring_all_reduce(4), in_place=True))
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.once
def test_a_deadlock_ends_in_time_with_the_position_of_every_rank() -> None:
    algorithm = ring_all_reduce(4)
    program = remove_send(levelled_program(algorithm, True))
    request = levelled_for(algorithm, program, in_place=True, timeout_s=6.0)
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        threaded(request)
    assert time.monotonic() - start < 30
    codes = [found.code for found in caught.value.diagnostics]
    assert (codes[0], set(codes[1:])) == ("deadlock", {"blocked"})
    assert "waits for rank" in caught.value.diagnostics[1].message


def test_ranks_that_never_begin_are_told_from_a_deadlock() -> None:
    with pytest.raises(InputError, match="4 of 4 have not begun") as caught:
        launch(
            levelled_for(ring_all_reduce(4), in_place=True, timeout_s=0.2),
            lambda folder: ["sleep", "60"],
        )
    assert caught.value.diagnostics[0].code == "timeout"


def test_a_rank_that_fails_ends_the_others_with_its_reason() -> None:
    with pytest.raises(
        InputError, match="the process of rank 2 failed: ArithmeticError: planted"
    ) as caught:
        threaded(levelled_for(ring_all_reduce(4), in_place=True), "2")
    assert caught.value.diagnostics[0].code == "rank-died"


def test_a_program_that_ends_early_is_told_with_what_it_printed() -> None:
    with pytest.raises(InputError, match=r"ended early \(status 3\): oh dear"):
        launch(
            levelled_for(ring_all_reduce(4), in_place=True),
            lambda folder: ["sh", "-c", "echo oh dear; exit 3"],
        )


def test_a_program_that_ends_well_without_results_has_failed() -> None:
    with pytest.raises(InputError, match=r"^a rank ended early: well done$"):
        launch(
            levelled_for(ring_all_reduce(4), in_place=True), lambda folder: ["echo", "well done"]
        )


def test_the_first_lines_that_a_launcher_prints_are_kept() -> None:
    printed = "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; echo ----; done; exit 1"
    with pytest.raises(InputError, match=r"1 line 2 line 3 line 4 \.\.\. line 8 line 9"):
        launch(
            levelled_for(ring_all_reduce(4), in_place=True), lambda folder: ["sh", "-c", printed]
        )


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_shared_memory_that_is_too_small_is_named_when_ranks_end_early() -> None:
    request = levelled_for(ring_all_reduce(4), in_place=True)
    with pytest.raises(InputError, match=r"/dev/shm has .* free, but the ranks may need"):
        launch(request, lambda folder: ["false"], shared_bytes=1 << 60)
    with pytest.raises(InputError, match=r"^a rank ended early \(status 1\)$"):
        launch(request, lambda folder: ["false"], shared_bytes=1)


def test_a_full_temporary_folder_is_named(tmp_path: Path) -> None:
    # A file system of its own, so small that the tasks of 64 ranks do not fit.
    mounted = f"mount -t tmpfs -o size=16k none {tmp_path}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mounted], check=False).returncode:
        pytest.skip("this user may not mount")
    program = (
        "from collhub_execution import launch\n"
        "from collhub_execution.testing import levelled_for\n"
        "from hub_core.model import UsageError\n"
        "from hub_core.testing import ring_all_reduce\n"
        "request = levelled_for(ring_all_reduce(64), in_place=True)\n"
        "try:\n"
        "    launch(request, lambda folder: ['true'])\n"
        "except UsageError as error:\n"
        "    print(error)\n"
    )
    command = ["unshare", "-rm", "sh", "-c", f'{mounted} && exec "$0" -c "$1"', sys.executable]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [*command, program], env=environment, capture_output=True, text=True, check=True
    )
    assert f"meet in: {tmp_path}/collhub-job-" in done.stdout
    assert "No space left on device; make room there, or set TMPDIR" in done.stdout


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(PluginError, match="no-such-program cannot be run"):
        launch(levelled_for(ring_all_reduce(4), in_place=True), lambda folder: ["no-such-program"])


def test_ranks_end_and_the_folder_goes_when_the_launcher_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    child = (
        "import sys, time, pathlib\n"
        "from collhub_execution import JobFolder\n"
        "JobFolder(pathlib.Path(sys.argv[1])).end_with_launcher()\n"
        "time.sleep(60)\n"
    )
    parent = (
        "import fcntl, subprocess, sys\n"
        "lock = open(sys.argv[1] + '/launcher-lives', 'wb')\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "process = subprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1]])\n"
        "print(process.pid, flush=True)\n"
        "process.wait()\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", parent, str(folder), child], stdout=subprocess.PIPE
    )
    assert launcher.stdout is not None
    rank = int(launcher.stdout.readline())
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    deadline = time.monotonic() + 20
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not folder.exists()
    while _is_alive(rank) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _is_alive(rank)


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
