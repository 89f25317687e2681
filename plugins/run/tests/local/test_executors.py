"""The executors: right results, the same bits, positions in a deadlock, nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
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
from collhub_execution import (
    LevelledProgram,
    LevelledRequest,
    NumpyMemory,
    RankTask,
    RecordKind,
    block_counts,
    element_type,
    is_well_levelled,
    levelled_program,
    random_inputs,
    same_bits,
    simulate_rendezvous,
)
from collhub_execution.input_data import check_inputs
from collhub_execution.testing import (
    judged,
    levelled_for,
    list_claimed_modes,
    request_for,
    select_records,
)
from collhub_local import numpy_executor, shared_memory
from eager_runs import BACKGROUND, UNITS, eager, eager_runs
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    InputError,
    ReduceOp,
    StepKind,
    StepTableBuilder,
    UsageError,
)
from hub_core.plugin_api import ExecutionRequest, ExecutionResult, NoOptions
from hub_core.testing import all_samples, direct_all_to_all, ring_all_reduce

EXECUTORS = {"numpy": numpy_executor.execute, "shared-memory": shared_memory.execute}
RUNS = {
    "numpy": numpy_executor.run_in_one_thread,
    "shared-memory": shared_memory.run_in_processes,
}
SAMPLES = all_samples(4)
FORKING = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork"
)
both = pytest.mark.parametrize("name", ["numpy", pytest.param("shared-memory", marks=FORKING)])


def execute(name: str, request: ExecutionRequest) -> ExecutionResult:
    return EXECUTORS[name](request, NoOptions())


def execute_program(
    name: str, algorithm: Algorithm, program: LevelledProgram, **more: Any
) -> ExecutionResult:
    """Run a program that levelling would not make."""
    return RUNS[name](levelled_for(algorithm, program, in_place=program.in_place, **more))


def random_request(
    algorithm: Algorithm, dtype: npt.DTypeLike, op: ReduceOp, elements: int
) -> ExecutionRequest:
    inputs = random_inputs(block_counts(algorithm), elements, np.dtype(dtype), op)
    return ExecutionRequest(algorithm, inputs, True, op)


# ---- results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", sorted(SAMPLES))
@both
def test_samples_give_what_the_collective_promises(name: str, sample: str) -> None:
    algorithm = SAMPLES[sample]
    for in_place in list_claimed_modes(algorithm):
        request = request_for(algorithm, in_place=in_place, repeats=2, warmups=1)
        result = execute(name, request)
        assert judged(request, result).is_right
        assert len(result.repeat_times_s) == 2


@both
def test_results_tell_messages_and_levels(name: str) -> None:
    result = execute(name, request_for(ring_all_reduce(4), in_place=True))
    assert dict(result.statistics) == {"messages": 24, "levels": 6}


@pytest.mark.once
@given(eager_runs(), st.booleans())
def test_what_runs_with_buffers_runs_in_one_thread(
    made: tuple[Algorithm, list[int]], in_place: bool
) -> None:
    algorithm, order = made
    program = levelled_program(algorithm, in_place)
    inputs = [np.arange(UNITS) * 7 + 100**rank for rank in range(algorithm.num_ranks)]
    request = LevelledRequest(algorithm, program, tuple(inputs), ReduceOp.SUM, BACKGROUND)
    wanted = eager(algorithm, order, in_place, inputs)
    # Move by move, reduced on the way where that holds, and by index.
    for limit in (0, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(numpy_executor, "_INDEXED_BYTES", limit)
            outputs = numpy_executor.run_in_one_thread(request).outputs
        assert [output.tolist() for output in outputs] == wanted


@pytest.mark.parametrize("op", ReduceOp)
@pytest.mark.parametrize(
    "dtype_name", ["float16", "bfloat16", "float32", "float64", "int32", "int64"]
)
def test_every_dtype_and_operator_is_exact_on_exact_inputs(dtype_name: str, op: ReduceOp) -> None:
    if dtype_name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    dtype = element_type(dtype_name)
    request = request_for(SAMPLES["ring-all-reduce"], dtype, op, elements=50, in_place=True)
    judgement = judged(request, execute("numpy", request))
    assert (judgement.is_right, judgement.ranks_agree) == (True, True)
    assert (judgement.comparison, judgement.max_abs_error) == ("bitwise", 0.0)


@pytest.mark.parametrize("op", ["sum", "prod", "avg"])
@pytest.mark.parametrize("dtype_name", ["float16", "float32", "float64"])
def test_random_numbers_stay_within_the_bound_on_rounding(dtype_name: str, op: str) -> None:
    algorithm = all_samples(8)["halving-doubling-all-reduce"]
    request = random_request(algorithm, dtype_name, ReduceOp(op), elements=500)
    judgement = judged(request, execute("numpy", request), is_exact=False)
    assert judgement.is_right
    assert judgement.comparison == "bound"
    assert 0 < (judgement.max_abs_error or 0) < judgement.max_bound


@FORKING
def test_executors_reduce_in_the_order_of_the_schedule() -> None:
    request = random_request(ring_all_reduce(4), np.float32, ReduceOp.SUM, elements=1000)
    results = [execute(name, request).outputs for name in EXECUTORS]
    assert all(same_bits(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("elements", [1, 700])
def test_moves_one_by_one_and_by_index_give_the_same(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = all_samples(8)["staged-all-to-all"]
    request = request_for(algorithm, np.int32, elements=elements, in_place=True)
    outputs = []
    for limit in (0, 1 << 20):
        monkeypatch.setattr(numpy_executor, "_INDEXED_BYTES", limit)
        outputs.append(execute("numpy", request).outputs)
    assert all(np.array_equal(*pair) for pair in zip(*outputs, strict=True))


@pytest.mark.parametrize("sample", sorted(SAMPLES))
def test_what_is_reduced_on_the_way_has_the_bits_of_what_is_stored_first(
    sample: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = SAMPLES[sample]
    inputs = random_inputs(block_counts(algorithm), 90, np.dtype(np.float32), ReduceOp.SUM)
    in_place = list_claimed_modes(algorithm)[0]
    request = ExecutionRequest(algorithm, inputs, in_place, ReduceOp.SUM)
    outputs = []
    for limit in (0, 1 << 20):
        monkeypatch.setattr(numpy_executor, "_INDEXED_BYTES", limit)
        outputs.append(execute("numpy", request).outputs)
    assert all(same_bits(*pair) for pair in zip(*outputs, strict=True))


@both
def test_what_is_still_to_be_sent_is_not_reduced_on_the_way(name: str) -> None:
    # Two ranks exchange their whole buffers and add: both send what both write.
    builder = StepTableBuilder(2)
    for rank in range(2):
        sent = builder.add(rank, StepKind.SEND, peer=1 - rank, src_buffer=Buffer.INPUT, count=2)
        builder.add(
            rank,
            StepKind.RECV_REDUCE,
            peer=1 - rank,
            src_buffer=Buffer.INPUT,
            dst_buffer=Buffer.INPUT,
            count=2,
            data=[sent],
        )
    collective = Collective(CollectiveKind.ALL_REDUCE, 2, 2, in_place=True, out_of_place=False)
    exchange = Algorithm(collective, builder.build(), np.zeros(2, np.int64))
    request = request_for(exchange, elements=5000, in_place=True, repeats=20)
    assert judged(request, execute(name, request)).is_right


@pytest.mark.once
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are told by /proc")
@both
def test_a_run_takes_its_data_twice_and_little_more(name: str) -> None:
    program = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "import hub_core\n"
        "from collhub_execution import RunOptions, RunSetup\n"
        "from hub_core.testing import ring_all_reduce\n"
        "def peak():\n"
        "    status = Path('/proc/self/status').read_text()\n"
        "    return int(re.search('VmHWM:\\\\s*([0-9]+)', status)[1]) << 10\n"
        "def run(size):\n"
        "    setup = RunSetup.of(ring_all_reduce(4), RunOptions(size), 'ring')\n"
        "    inputs = setup.inputs()\n"
        "    result = hub_core.execute(setup.algorithm, inputs, name=sys.argv[1])\n"
        "    assert setup.judge(inputs, result.outputs).is_right\n"
        "run(1 << 20)\n"
        "before = peak()\n"
        "run(64 << 20)\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, name], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) <= 2.1 * (4 * 64 << 20)


@both
def test_units_that_nothing_writes_are_seen_as_wrong(name: str) -> None:
    algorithm = direct_all_to_all(4)
    program = levelled_program(algorithm, in_place=False)
    broken = select_records(program, program.kind != RecordKind.COPY)
    for dtype in (np.float32, np.int32):
        result = execute_program(name, algorithm, broken, dtype=dtype, elements=5)
        request = request_for(algorithm, dtype, elements=5)
        judgement = judged(request, result)
        assert [found.location.rank for found in judgement.diagnostics] == [0, 1, 2, 3]
        assert "5 of 20 elements are wrong" in judgement.diagnostics[0].message


@both
def test_every_step_with_a_record_is_timed(name: str) -> None:
    algorithm = SAMPLES["ring-all-reduce"]
    result = execute(name, request_for(algorithm, in_place=True, wants_step_times=True))
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
        request = ExecutionRequest(SAMPLES["ring-all-reduce"], tuple(inputs), True, ReduceOp.SUM)
        with pytest.raises(UsageError, match=message):
            execute("numpy", request)


# ---- programs that stand still -------------------------------------------------------------------


def shifted(program: LevelledProgram, kind: RecordKind) -> LevelledProgram:
    """All records of a kind one level later, as if a level were split: a circle in any ring."""
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
        execute_program(name, algorithm, program, timeout_s=2.0)
    assert time.monotonic() - start < 20
    deadlock, *waiting = error.value.diagnostics
    assert deadlock.code == "deadlock"
    assert [found.location.rank for found in waiting] == [0, 1, 2, 3]
    verb, neighbour = ("send", -1) if kind is RecordKind.SEND else ("receive", 1)
    for rank, found in enumerate(waiting):
        assert (
            f"is at level 2 and waits for rank {(rank + neighbour) % 4} to {verb}" in found.message
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


# ---- processes that end --------------------------------------------------------------------------


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
        execute_program("shared-memory", algorithm, standing, timeout_s=60)
    killer.join()
    assert time.monotonic() - start < 20
    assert [found.location.rank for found in error.value.diagnostics[1:]] == [0, 1, 3]
    assert multiprocessing.active_children() == []


@FORKING
def test_an_error_in_a_rank_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    filled = NumpyMemory.fill

    def fail(memory: NumpyMemory, task: RankTask) -> None:
        if task.plan.rank == 1:
            raise MemoryError("no room")
        filled(memory, task)

    monkeypatch.setattr(NumpyMemory, "fill", fail)
    request = request_for(SAMPLES["ring-all-reduce"], in_place=True)
    with pytest.raises(
        InputError, match="the process of rank 1 ended with status 70: MemoryError: no room"
    ):
        execute("shared-memory", request)


ORPHANS = """
import os, threading, time, multiprocessing
from collhub_execution.testing import request_for
from collhub_local.shared_memory import execute
from hub_core.plugin_api import NoOptions
from hub_core.testing import ring_all_reduce
def tell():
    while len(multiprocessing.active_children()) < 4:
        time.sleep(0.01)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
threading.Thread(target=tell, daemon=True).start()
algorithm = ring_all_reduce(4)
request = request_for(algorithm, "float32", elements=1 << 16, repeats=10**6, timeout_s=600)
execute(request, NoOptions())
"""


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _list_semaphores() -> set[str]:
    """Names of the semaphores of multiprocessing on this host; empty without /dev/shm."""
    if not os.path.isdir("/dev/shm"):
        return set()
    return {name for name in os.listdir("/dev/shm") if name.startswith("sem.mp")}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_ranks_end_with_the_process_that_started_them() -> None:
    shared = _list_semaphores()
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
    # The tracker of multiprocessing removes the semaphores after the end of the starter. Other
    # processes may create and remove theirs meanwhile.
    remaining = _list_semaphores() - shared
    while remaining & _list_semaphores() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not remaining & _list_semaphores()


@FORKING
def test_time_that_is_up_ends_runs_that_go_on() -> None:
    algorithm = ring_all_reduce(4)
    request = request_for(
        algorithm, np.float32, elements=1 << 14, in_place=True, repeats=10**6, timeout_s=0.5
    )
    with pytest.raises(InputError, match=r"have not ended after 0.5 s"):
        execute("shared-memory", request)
    with pytest.raises(InputError, match=r"take more than 0.5 s"):
        execute("numpy", request)


@FORKING
def test_too_many_ranks_for_processes_are_refused() -> None:
    request = request_for(ring_all_reduce(300), np.float32, elements=1, in_place=True)
    with pytest.raises(UsageError, match="at most 256 ranks"):
        execute("shared-memory", request)


def test_collectives_with_undefined_inputs_hide_them() -> None:
    algorithm = SAMPLES["binomial-broadcast"]
    assert algorithm.collective.kind is CollectiveKind.BROADCAST
    program = levelled_program(algorithm, in_place=False)
    given = [np.full(4, rank, np.float32) for rank in range(4)]
    views = check_inputs(algorithm.collective, program.blocks, given, np.float32("nan"))
    assert [bool(np.isnan(view).all()) for view in views] == [False, True, True, True]
