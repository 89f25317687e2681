"""Plans of single ranks, the loop that runs them on any library, and the launcher: right results, and nothing left behind."""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import threaded_ranks as threads

from hub_core.execution.data import background, checked_inputs, exact_inputs
from hub_core.execution.judgement import judge
from hub_core.execution.levels import levelled_program
from hub_core.execution.program import LevelledProgram
from hub_core.execution.rank_engine import RankLog, run_task
from hub_core.execution.rank_tasks import rank_tasks
from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import InputError, PluginError, UsageError
from hub_core.plugin_api import ExecutionRequest
from hub_core.testing.planted import without_send
from hub_core.testing.samples import all_samples, ring_all_reduce

pytest.importorskip("fcntl", reason="launching ranks needs locks on files as Unix has them")

from hub_core.execution.launching import launch
from hub_core.execution.started_ranks import Report, Trial, add_arguments, run_rank

PROGRAM = Path(__file__).with_name("threaded_ranks.py")
SAMPLES = all_samples(4)


def request_for(
    algorithm: Algorithm, in_place: bool, program: LevelledProgram | None = None, **more: Any
) -> ExecutionRequest:
    program = program or levelled_program(algorithm, in_place)
    fill = background(np.dtype(np.int64), ReduceOp.SUM)
    inputs = checked_inputs(
        algorithm.collective,
        program,
        exact_inputs(program, 3, np.dtype(np.int64), ReduceOp.SUM),
        fill,
    )
    return ExecutionRequest(algorithm, program, inputs, ReduceOp.SUM, fill, **more)


def modes(algorithm: Algorithm) -> list[bool]:
    return [
        mode
        for mode, holds in (
            (False, algorithm.collective.out_of_place),
            (True, algorithm.collective.in_place),
        )
        if holds
    ]


def is_right(request: ExecutionRequest, outputs: Any) -> bool:
    return judge(request.algorithm.collective, request.inputs, outputs, ReduceOp.SUM, True).is_right


def in_threads(request: ExecutionRequest) -> list[object]:
    tasks, world = list(rank_tasks(request)), threads.World(request.program.num_ranks)
    return world.run(
        lambda rank: run_task(
            tasks[rank], threads.ThreadEngine(tasks[rank], world), RankLog.blank(tasks[rank])
        )
    )


def threaded(request: ExecutionRequest, *more: str) -> Any:
    return launch(request, lambda folder: [sys.executable, str(PROGRAM), str(folder), *more])


# ---- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", sorted(SAMPLES))
def test_plans_of_all_ranks_compute_the_collective(sample: str) -> None:
    for in_place in modes(SAMPLES[sample]):
        request = request_for(SAMPLES[sample], in_place, repeats=2)
        assert is_right(request, in_threads(request))


def test_both_ends_of_a_message_have_one_tag_and_tags_of_a_pair_count_up() -> None:
    request = request_for(ring_all_reduce(4), True)
    ends: dict[str, dict[tuple[int, int], list[int]]] = {"sends": {}, "receives": {}}
    for task in rank_tasks(request):
        for level in task.plan.levels():
            for end in level.sends:
                ends["sends"].setdefault((task.plan.rank, end.peer), []).append(end.tag)
            for end in level.receives:
                ends["receives"].setdefault((end.peer, task.plan.rank), []).append(end.tag)
    assert ends["sends"] == ends["receives"]
    assert ends["sends"] == {(rank, (rank + 1) % 4): list(range(6)) for rank in range(4)}


# ---- the launcher ----------------------------------------------------------------------------------------------------


def test_launched_ranks_return_outputs_and_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    request = request_for(ring_all_reduce(4), True, repeats=3, warmups=1, wants_step_times=True)
    result = threaded(request)
    assert is_right(request, result.outputs)
    assert (len(result.repeat_times_s), result.native_times_s) == (3, ())
    assert min(result.repeat_times_s) > 0
    assert (
        result.step_start_ns.min(),
        bool(np.all(result.step_end_ns >= result.step_start_ns)),
    ) == (0, True)
    assert list(tmp_path.iterdir()) == []


def test_a_deadlock_ends_in_time_with_the_position_of_every_rank() -> None:
    algorithm = ring_all_reduce(4)
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        threaded(
            request_for(
                algorithm, True, without_send(levelled_program(algorithm, True)), timeout_s=6.0
            )
        )
    assert time.monotonic() - start < 30
    codes = [found.code for found in caught.value.diagnostics]
    assert (codes[0], set(codes[1:])) == ("deadlock", {"blocked"})
    assert "waits for rank" in caught.value.diagnostics[1].message


def test_ranks_that_never_begin_are_told_from_a_deadlock() -> None:
    with pytest.raises(InputError, match="4 of 4 have not begun") as caught:
        launch(request_for(ring_all_reduce(4), True, timeout_s=0.2), lambda folder: ["sleep", "60"])
    assert caught.value.diagnostics[0].code == "timeout"


def test_a_rank_that_fails_ends_the_others_with_its_reason() -> None:
    with pytest.raises(
        InputError, match="the process of rank 2 failed: ArithmeticError: planted"
    ) as caught:
        threaded(request_for(ring_all_reduce(4), True), "2")
    assert caught.value.diagnostics[0].code == "rank-died"


def test_a_program_that_ends_early_is_told_with_what_it_printed() -> None:
    with pytest.raises(InputError, match=r"ended early \(status 3\): oh dear"):
        launch(
            request_for(ring_all_reduce(4), True),
            lambda folder: ["sh", "-c", "echo oh dear; exit 3"],
        )


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(PluginError, match="no-such-program cannot be run"):
        launch(request_for(ring_all_reduce(4), True), lambda folder: ["no-such-program"])


def test_ranks_end_and_the_folder_goes_when_the_launcher_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    child = (
        "import sys, time, pathlib\n"
        "from hub_core.execution.job_folder import Job\n"
        "Job(pathlib.Path(sys.argv[1])).end_with_launcher()\n"
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


# ---- ranks that somebody else started --------------------------------------------------------------------------------


class QueueWire:
    """Bytes between threads."""

    def __init__(self, world: Any, rank: int) -> None:
        self.rank, self.num_ranks, self._queues = rank, world.num_ranks, world.queues

    def send(self, array: npt.NDArray[Any], peer: int) -> None:
        self._queues[self.rank, peer, -1].put(array.copy())

    def receive(self, array: npt.NDArray[Any], peer: int) -> None:
        array[:] = self._queues[peer, self.rank, -1].get(timeout=10)


def wish(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["ring", *words])


@pytest.mark.parametrize(
    "words", [["--dtype", "int32"], ["--op", "avg", "--data", "random"]], ids=["int32", "average"]
)
@pytest.mark.parametrize("sample", ["ring-all-reduce", "direct-scatter", "direct-gather"])
def test_started_ranks_get_data_from_rank_0_and_are_judged_there(
    sample: str, words: list[str]
) -> None:
    trial = Trial.of(SAMPLES[sample], wish("--size", "1KiB", *words), 4)
    world = threads.World(4)

    def run(rank: int) -> Report | None:
        return run_rank(
            trial,
            QueueWire(world, rank),
            lambda task: threads.ThreadEngine(task, world),
            30.0,
            lambda found: None,
        )

    report, *others = world.run(run)
    assert (report.ok, report.fields["num_ranks"], others) == (True, 4, [None] * 3)
    assert report.fields["time_s"] > 0
    assert f"{'collective_bytes':32}1024" in report.text()


def test_a_started_rank_that_is_late_says_where_it_stands() -> None:
    algorithm = ring_all_reduce(4)
    trial = replace(
        Trial.of(algorithm, wish("--size", "1KiB"), 4),
        program=without_send(levelled_program(algorithm, True)),
    )
    world, said, are_late = threads.World(4), [], threading.Barrier(5)

    def late(found: Any) -> None:
        said.extend(found)
        are_late.wait(10)

    def run(rank: int) -> None:
        run_rank(
            trial, QueueWire(world, rank), lambda task: threads.ThreadEngine(task, world), 1.5, late
        )

    for rank in range(4):
        threading.Thread(target=run, args=(rank,), daemon=True).start()
    are_late.wait(10)
    assert {found.code for found in said} == {"blocked", "timeout"}


def test_another_number_of_processes_is_refused() -> None:
    with pytest.raises(UsageError, match="ring has 4 ranks, but 3 processes were started"):
        Trial.of(SAMPLES["ring-all-reduce"], wish("--size", "1KiB"), 3)
