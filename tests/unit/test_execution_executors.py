"""The executors of the core: right results, the same bits, positions in a deadlock, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import hub_core
from hub_core.execution import numpy_executor, shared_memory
from hub_core.execution.data import (
    background,
    checked_inputs,
    element_type,
    exact_inputs,
    random_inputs,
)
from hub_core.execution.judgement import judge, same_bits
from hub_core.execution.levels import levelled_program
from hub_core.execution.program import LevelledProgram, RecordKind
from hub_core.execution.rendezvous import is_well_levelled, simulate_rendezvous
from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import InputError, UsageError
from hub_core.plugin_api import ExecutionRequest, ExecutionResult
from hub_core.testing.samples import all_samples, direct_all_to_all, ring_all_reduce

EXECUTORS = {"numpy": numpy_executor.execute, "shared-memory": shared_memory.execute}
SAMPLES = all_samples(4)
FORKING = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork"
)
both = pytest.mark.parametrize("name", ["numpy", pytest.param("shared-memory", marks=FORKING)])


def execute(
    name: str, algorithm: Algorithm, program: LevelledProgram, timeout_s: float = 60.0, **more: bool
) -> ExecutionResult:
    fill = background(np.dtype(np.int64), ReduceOp.SUM)
    inputs = checked_inputs(
        algorithm.collective,
        program,
        exact_inputs(program, 3, np.dtype(np.int64), ReduceOp.SUM),
        fill,
    )
    request = ExecutionRequest(
        algorithm, program, inputs, ReduceOp.SUM, fill, timeout_s=timeout_s, **more
    )  # type: ignore[arg-type]
    return EXECUTORS[name](request, {})


def modes(algorithm: Algorithm) -> list[bool]:
    return [
        mode
        for mode, holds in (
            (False, algorithm.collective.out_of_place),
            (True, algorithm.collective.in_place),
        )
        if holds
    ]


# ---- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", sorted(SAMPLES))
@both
def test_samples_give_what_the_collective_promises(name: str, sample: str) -> None:
    algorithm = SAMPLES[sample]
    for in_place in modes(algorithm):
        program = levelled_program(algorithm, in_place)
        inputs = exact_inputs(program, 3, np.dtype(np.int64), ReduceOp.SUM)
        result = hub_core.execute(
            algorithm, inputs, name=name, program=program, repeats=2, warmups=1
        )
        assert judge(algorithm.collective, inputs, result.outputs, ReduceOp.SUM, True).is_right
        assert len(result.repeat_times_s) == 2


@pytest.mark.parametrize("op", ReduceOp)
@pytest.mark.parametrize(
    "dtype_name", ["float16", "bfloat16", "float32", "float64", "int32", "int64"]
)
def test_every_dtype_and_operator_is_exact_on_exact_inputs(dtype_name: str, op: ReduceOp) -> None:
    if dtype_name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    algorithm, dtype = SAMPLES["ring-all-reduce"], element_type(dtype_name)
    program = levelled_program(algorithm, in_place=True)
    inputs = exact_inputs(program, 50, dtype, op)
    outputs = hub_core.execute(algorithm, inputs, program=program, reduce_op=op).outputs
    judgement = judge(algorithm.collective, inputs, outputs, op, True)
    assert (judgement.is_right, judgement.ranks_agree) == (True, True)
    assert (judgement.comparison, judgement.max_abs_error) == ("bitwise", 0.0)


@pytest.mark.parametrize("op", ["sum", "prod", "avg"])
@pytest.mark.parametrize("dtype_name", ["float16", "float32", "float64"])
def test_random_numbers_stay_within_the_bound_on_rounding(dtype_name: str, op: str) -> None:
    algorithm = all_samples(8)["halving-doubling-all-reduce"]
    program = levelled_program(algorithm, in_place=True)
    inputs = random_inputs(program, 500, np.dtype(dtype_name), ReduceOp(op))
    outputs = hub_core.execute(algorithm, inputs, program=program, reduce_op=ReduceOp(op)).outputs
    judgement = judge(algorithm.collective, inputs, outputs, ReduceOp(op), False)
    assert judgement.is_right
    assert judgement.comparison == "bound"
    assert 0 < (judgement.max_abs_error or 0) < judgement.max_bound


@FORKING
def test_executors_reduce_in_the_order_of_the_schedule() -> None:
    algorithm = ring_all_reduce(4)
    program = levelled_program(algorithm, in_place=True)
    inputs = random_inputs(program, 1000, np.dtype(np.float32), ReduceOp.SUM)
    results = [
        hub_core.execute(algorithm, inputs, name=name, program=program).outputs
        for name in EXECUTORS
    ]
    assert all(same_bits(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("elements", [1, 700])
def test_moves_one_by_one_and_by_index_give_the_same(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = all_samples(8)["staged-all-to-all"]
    program = levelled_program(algorithm, in_place=True)
    inputs = exact_inputs(program, elements, np.dtype(np.int32), ReduceOp.SUM)
    outputs = []
    for limit in (0, 1 << 20):
        monkeypatch.setattr(numpy_executor, "_INDEXED_BYTES", limit)
        outputs.append(hub_core.execute(algorithm, inputs, program=program).outputs)
    assert all(np.array_equal(*pair) for pair in zip(*outputs, strict=True))


@both
def test_units_that_nothing_writes_are_seen_as_wrong(name: str) -> None:
    algorithm = direct_all_to_all(4)
    program = levelled_program(algorithm, in_place=False)
    kept = program.kind != RecordKind.COPY
    ends = np.cumsum(np.bincount(program.rank[kept], minlength=4))
    names = [
        f.name
        for f in fields(program)
        if len(np.atleast_1d(getattr(program, f.name, 0))) == len(program)
    ]
    columns = {name: getattr(program, name)[kept] for name in names}
    broken = replace(program, **columns, rank_indptr=np.concatenate([[0], ends]))
    for dtype in (np.float32, np.int32):
        inputs = exact_inputs(broken, 5, np.dtype(dtype), ReduceOp.SUM)
        outputs = hub_core.execute(algorithm, inputs, name=name, program=broken).outputs
        judgement = judge(algorithm.collective, inputs, outputs, ReduceOp.SUM, True)
        assert [found.location.rank for found in judgement.diagnostics] == [0, 1, 2, 3]
        assert "5 of 20 elements are wrong" in judgement.diagnostics[0].message


@both
def test_every_step_with_a_record_is_timed(name: str) -> None:
    algorithm = SAMPLES["ring-all-reduce"]
    result = execute(
        name, algorithm, levelled_program(algorithm, in_place=True), wants_step_times=True
    )
    start, end = result.step_start_ns, result.step_end_ns
    assert start is not None
    assert end is not None
    assert start.min() == 0
    assert np.all(end >= start)
    assert int(end.max()) < 60_000_000_000
    parents, children = algorithm.steps.edges()
    received = algorithm.steps.receives[parents]
    assert np.all(end[parents[received]] <= end[children[received]])


def test_inputs_that_do_not_fit_are_named() -> None:
    for inputs, message in (
        ([np.zeros(4)] * 3, "3 inputs are given for 4 ranks"),
        ([np.zeros(6)] * 4, "expected 4 times 1"),
        (
            [np.zeros(4)] * 3 + [np.zeros(8)],
            "the input of rank 0 has 4 elements, expected 4 times 2",
        ),
        ([np.zeros(4)] * 3 + [np.zeros(4, np.int32)], "the inputs mix float64 and int32"),
        ([np.zeros(0)] * 4, "the input of rank 0 has 0 elements"),
    ):
        with pytest.raises(UsageError, match=message):
            hub_core.execute(SAMPLES["ring-all-reduce"], inputs)


# ---- programs that stand still ---------------------------------------------------------------------------------------


def shifted(program: LevelledProgram, kind: RecordKind) -> LevelledProgram:
    """All records of a kind one level later, as if a level were split in sends and receives: a circle in any ring."""
    level = program.level * 2 + (program.kind == kind)
    order = np.lexsort((program.message, program.is_local, level, program.rank))
    columns = (
        "kind",
        "peer",
        "message",
        "src_buffer",
        "src_offset",
        "dst_buffer",
        "dst_offset",
        "count",
        "row",
    )
    return replace(
        program,
        level=level[order].astype(np.int32),
        **{name: getattr(program, name)[order] for name in columns},
    )


@pytest.mark.parametrize("kind", [RecordKind.SEND, RecordKind.RECV])
@both
def test_a_deadlock_is_reported_with_every_position_in_time(name: str, kind: RecordKind) -> None:
    algorithm = SAMPLES["ring-all-reduce"]
    program = shifted(levelled_program(algorithm, in_place=True), kind)
    assert not is_well_levelled(program)
    start = time.monotonic()
    with pytest.raises(InputError) as error:
        execute(name, algorithm, program, timeout_s=0.5)
    assert time.monotonic() - start < 20
    deadlock, *waiting = error.value.diagnostics
    assert deadlock.code == "deadlock"
    assert [found.location.rank for found in waiting] == [0, 1, 2, 3]
    verb, neighbour = ("send", -1) if kind is RecordKind.SEND else ("receive", 1)
    for rank, found in enumerate(waiting):
        assert (
            f"stands at level 2 and waits for rank {(rank + neighbour) % 4} to {verb}"
            in found.message
        )
    assert multiprocessing.active_children() == []


def test_messages_of_one_pair_meet_in_the_order_of_posting() -> None:
    algorithm = SAMPLES["weighted-broadcast"]
    program = levelled_program(algorithm, in_place=True)
    count = program.count.copy()
    count[np.flatnonzero(program.kind == RecordKind.RECV)[0]] += 1
    broken = replace(program, count=count)
    with pytest.raises(
        InputError, match=r"a message from rank . to rank . has . blocks at rank ., . at rank"
    ):
        simulate_rendezvous(algorithm, broken)
    assert not is_well_levelled(broken)


# ---- processes that end ----------------------------------------------------------------------------------------------


@FORKING
def test_a_rank_that_dies_ends_the_others_at_once() -> None:
    algorithm = SAMPLES["ring-all-reduce"]
    standing = shifted(levelled_program(algorithm, in_place=True), RecordKind.SEND)

    def kill() -> None:
        deadline = time.monotonic() + 20
        while len(multiprocessing.active_children()) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        victim = next(
            child for child in multiprocessing.active_children() if child.name == "collhub rank 2"
        )
        os.kill(victim.pid or 0, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    start = time.monotonic()
    with pytest.raises(InputError, match="the process of rank 2 ended by signal 9") as error:
        execute("shared-memory", algorithm, standing, timeout_s=60)
    killer.join()
    assert time.monotonic() - start < 20
    assert [found.location.rank for found in error.value.diagnostics[1:]] == [0, 1, 3]
    assert multiprocessing.active_children() == []


@FORKING
def test_an_error_in_a_rank_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(memory: object, request: ExecutionRequest, rank: int) -> None:
        if rank == 1:
            raise MemoryError("no room")

    monkeypatch.setattr("hub_core.execution.rank_process.fill", fail)
    algorithm = SAMPLES["ring-all-reduce"]
    with pytest.raises(
        InputError, match="the process of rank 1 ended with status 70: MemoryError: no room"
    ):
        execute("shared-memory", algorithm, levelled_program(algorithm, in_place=True))


ORPHANS = """
import os, threading, time, multiprocessing
import numpy as np
from hub_core import pipeline
from hub_core.testing.samples import ring_all_reduce
def tell():
    while len(multiprocessing.active_children()) < 4:
        time.sleep(0.01)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
threading.Thread(target=tell, daemon=True).start()
inputs = [np.ones(1 << 18, np.float32)] * 4
hub_core.execute(ring_all_reduce(4), inputs, name="shared-memory", repeats=10**6, timeout_s=600)
"""


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_ranks_end_with_the_process_that_started_them() -> None:
    shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        children = [int(pid) for pid in starter.stdout.readline().split()]
        starter.kill()
    assert len(children) == 4
    deadline = time.monotonic() + 20
    while any(map(_is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(_is_running, children))
    assert (
        not os.path.isdir("/dev/shm")
        or {name for name in os.listdir("/dev/shm") if name.startswith("sem.mp")} <= shared
    )


@FORKING
def test_time_that_is_up_ends_runs_that_go_on() -> None:
    inputs = [np.ones(1 << 16, np.float32)] * 4
    with pytest.raises(InputError, match=r"have not ended after 0.5 s"):
        hub_core.execute(
            ring_all_reduce(4), inputs, name="shared-memory", repeats=10**6, timeout_s=0.5
        )
    with pytest.raises(InputError, match=r"take more than 0.5 s"):
        hub_core.execute(ring_all_reduce(4), inputs, name="numpy", repeats=10**6, timeout_s=0.5)


@FORKING
def test_too_many_ranks_for_processes_are_refused() -> None:
    inputs = [np.ones(300, np.float32)] * 300
    with pytest.raises(UsageError, match="at most 256 ranks"):
        hub_core.execute(ring_all_reduce(300), inputs, name="shared-memory")


def test_collectives_with_undefined_inputs_hide_them() -> None:
    algorithm = SAMPLES["binomial-broadcast"]
    assert algorithm.collective.kind is CollectiveKind.BROADCAST
    program = levelled_program(algorithm, in_place=False)
    given = [np.full(4, rank, np.float32) for rank in range(4)]
    views = checked_inputs(algorithm.collective, program, given, np.float32("nan"))
    assert [bool(np.isnan(view).all()) for view in views] == [False, True, True, True]
