"""The library of an emitted folder, called from C with any sizes, types and memory."""

from __future__ import annotations

from ctypes import c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from called import (
    INVALID_ARGUMENT,
    INVALID_USAGE,
    REMOTE_ERROR,
    SUCCESS,
    TIMEOUT,
    Array,
    Call,
    Double,
    built,
    random_inputs,
    reduced,
)
from collhub_execution import RecordKind
from collhub_nccl.programs.schedule_tables import ScheduleTables
from emitted import tables

from hub_core.model import Algorithm, CollectiveKind
from hub_core.testing import samples

pytestmark = pytest.mark.once

RANKS = 4
COUNTS = (0, 1, 3, 4, 5, 63, 4099)


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where built libraries are kept until the process ends, which has loaded them."""
    return tmp_path_factory.mktemp("libraries")


@pytest.fixture(scope="session")
def ring(folder: Path, libraries: Path) -> Double:
    """A ring all-reduce, whose blocks are reduced out of scratch."""
    return built(folder, tables(samples.ring_all_reduce(RANKS)), libraries)


@pytest.fixture(scope="session")
def trees(folder: Path, libraries: Path) -> Double:
    """A broadcast on two trees with a channel each, as two lanes."""
    stated = tables(samples.all_samples(RANKS)["weighted-broadcast"], lanes=4)
    assert stated.num_lanes == 2
    return built(folder, stated, libraries)


def all_reduce(
    library: Double, count: int, dtype: str = "float32", op: str = "sum", in_place: bool = False
) -> tuple[list[Array], list[Array]]:
    """(inputs, outputs) of all ranks."""
    inputs = random_inputs(RANKS, count, dtype, op)

    def on_rank(rank: int, communicator: int) -> Array:
        send = inputs[rank].copy()
        recv = send if in_place else np.full_like(send, 77)
        assert library.run(communicator, Call(send, recv, count, dtype, op)) == SUCCESS
        if not in_place:
            np.testing.assert_array_equal(send, inputs[rank])
        return recv

    return inputs, library.on_ranks(on_rank)


# ---- sizes, types, operators ---------------------------------------------------------------------


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_every_count_is_reduced_in_place_and_out_of_place(
    ring: Double, count: int, in_place: bool
) -> None:
    inputs, outputs = all_reduce(ring, count, in_place=in_place)
    for output in outputs:
        np.testing.assert_array_equal(output, reduced(inputs, "sum"))


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_every_type_and_operator_is_reduced(ring: Double, dtype: str, op: str) -> None:
    inputs, outputs = all_reduce(ring, 103, dtype, op)
    for output in outputs:
        np.testing.assert_array_equal(output, reduced(inputs, op))


def test_bfloat16_is_reduced(ring: Double) -> None:
    pytest.importorskip("ml_dtypes")
    inputs, outputs = all_reduce(ring, 103, "bfloat16", "sum")
    assert outputs[0].tobytes() == reduced(inputs, "sum").tobytes()


def test_type_that_the_kernels_do_not_reduce_goes_to_nccl(ring: Double) -> None:
    inputs = random_inputs(RANKS, 10, "uint8")

    def on_rank(rank: int, communicator: int) -> tuple[int, Array]:
        recv = np.zeros_like(inputs[rank])
        before = ring.count_of("ncclAllReduce")
        assert ring.run(communicator, Call(inputs[rank], recv, 10, "uint8")) == SUCCESS
        return ring.count_of("ncclAllReduce") - before, recv

    for calls, output in ring.on_ranks(on_rank):
        assert calls == 1
        np.testing.assert_array_equal(output, reduced(inputs, "sum"))


def test_buffers_that_begin_between_packs_are_reduced(ring: Double) -> None:
    count = 4 * 101
    inputs = random_inputs(RANKS, count + 3)

    def on_rank(rank: int, communicator: int) -> Array:
        # Send and recv lie differently to boundaries of 16 bytes.
        send, recv = inputs[rank][1:-2], np.zeros(count + 3, np.float32)[3:]
        assert ring.run(communicator, Call(send, recv, count)) == SUCCESS
        return recv

    for output in ring.on_ranks(on_rank):
        np.testing.assert_array_equal(output, reduced(inputs, "sum")[1:-2])


@pytest.mark.parametrize("count", [2**62, 2**64 - 1])
def test_buffers_beyond_all_memory_are_refused(ring: Double, count: int) -> None:
    memory = np.zeros(4, np.float32)

    def on_rank(rank: int, communicator: int) -> tuple[int, str]:
        return ring.run(communicator, Call(memory, memory, count)), ring.error()

    for status, error in ring.on_ranks(on_rank):
        assert status == INVALID_ARGUMENT
        assert "larger than memory can be" in error


def test_workspace_that_cannot_be_had_is_an_error(ring: Double) -> None:
    memory = np.zeros(4, np.float32)

    def on_rank(rank: int, communicator: int) -> tuple[int, str]:
        return ring.run(communicator, Call(memory, memory, 2**50)), ring.error()

    for status, error in ring.on_ranks(on_rank):
        assert status != SUCCESS
        assert "workspace" in error


def test_missing_memory_is_named(ring: Double) -> None:
    def on_rank(rank: int, communicator: int) -> tuple[int, str]:
        return ring.run(communicator, Call(None, None, 8)), ring.error()

    assert set(ring.on_ranks(on_rank)) == {
        (INVALID_ARGUMENT, "send is null on a rank whose input is read")
    }


def test_communicator_of_another_size_is_refused(ring: Double) -> None:
    other = Double(Path(ring.calls._name), 2)
    memory = np.zeros(8, np.float32)

    def on_rank(rank: int, communicator: int) -> tuple[int, str]:
        return other.run(communicator, Call(memory, memory, 8)), other.error()

    assert set(other.on_ranks(on_rank)) == {
        (INVALID_ARGUMENT, "the schedule has 4 ranks, the communicator 2")
    }


# ---- all collectives -----------------------------------------------------------------------------


def _cases() -> list[tuple[str, bool]]:
    """(sample, whether its schedule is the one for calls in place)."""
    found = []
    for name, algorithm in samples.all_samples(RANKS).items():
        claims = (algorithm.collective.out_of_place, algorithm.collective.in_place)
        found += [(name, bool(mode)) for mode, is_claimed in enumerate(claims) if is_claimed]
    return found


@pytest.mark.parametrize(("name", "in_place"), _cases())
def test_every_collective_keeps_its_promise_for_counts_that_do_not_divide(
    folder: Path, libraries: Path, name: str, in_place: bool
) -> None:
    algorithm = samples.all_samples(RANKS)[name]
    library = built(folder, tables(algorithm, in_place, lanes=4), libraries)
    for count in (1, 6, 37):
        _check_out_of_place(library, algorithm, count)


def _check_out_of_place(library: Double, algorithm: Algorithm, count: int) -> None:
    """Call with memory that does not overlap; what is not promised must stay as it was."""
    parts = _Parts(algorithm, count)
    inputs = [
        random_inputs(1, parts.sends[rank] * count + 1)[0][1:] + rank for rank in range(RANKS)
    ]
    kept = [given.copy() for given in inputs]

    def on_rank(rank: int, communicator: int) -> Array:
        recv = np.full(parts.receives[rank] * count, -7, np.float32)
        status = library.run(communicator, Call(inputs[rank], recv, count))
        assert status == SUCCESS, library.error()
        return recv

    outputs = library.on_ranks(on_rank)
    for rank in range(RANKS):
        np.testing.assert_array_equal(inputs[rank], kept[rank])
        wanted = parts.expected(rank, inputs)
        if wanted is None:
            wanted = np.full_like(outputs[rank], -7)
        np.testing.assert_array_equal(outputs[rank], wanted)


class _Parts:
    """The definition of a collective in parts of `count` elements, apart from the hub's own."""

    def __init__(self, algorithm: Algorithm, count: int) -> None:
        self.collective = algorithm.collective
        self.count = count
        kind, root = self.collective.kind, self.collective.root
        one, every = [1] * RANKS, [RANKS] * RANKS
        at_root = [RANKS if rank == root else 0 for rank in range(RANKS)]
        self.sends = {
            CollectiveKind.REDUCE_SCATTER: every,
            CollectiveKind.ALL_TO_ALL: every,
            CollectiveKind.SCATTER: at_root,
        }.get(kind, one)
        self.receives = {
            CollectiveKind.ALL_GATHER: every,
            CollectiveKind.ALL_TO_ALL: every,
            CollectiveKind.GATHER: at_root,
        }.get(kind, one)
        if kind is CollectiveKind.CUSTOM:
            self.sends = [int(units) for units in self.collective.input_units()]
            self.receives = [int(units) for units in self.collective.output_units()]

    def expected(self, rank: int, inputs: list[Array]) -> Array | None:
        """What a rank gets, None where nothing is promised."""
        kind, root, own = (
            self.collective.kind,
            self.collective.root,
            slice(rank * self.count, (rank + 1) * self.count),
        )
        if kind is CollectiveKind.CUSTOM:
            return inputs[rank - 1] if rank else None
        if self.collective.kind.traits.to_root and rank != root:
            return None
        results: dict[CollectiveKind, Any] = {
            CollectiveKind.ALL_REDUCE: lambda: reduced(inputs, "sum"),
            CollectiveKind.REDUCE: lambda: reduced(inputs, "sum"),
            CollectiveKind.BROADCAST: lambda: inputs[root or 0],
            CollectiveKind.ALL_GATHER: lambda: np.concatenate(inputs),
            CollectiveKind.GATHER: lambda: np.concatenate(inputs),
            CollectiveKind.REDUCE_SCATTER: lambda: reduced(inputs, "sum")[own],
            CollectiveKind.SCATTER: lambda: inputs[root or 0][own],
            CollectiveKind.ALL_TO_ALL: lambda: np.concatenate([given[own] for given in inputs]),
        }
        found: Array = results[kind]()
        return found


_IN_PLACE = [
    "ring-all-gather", "ring-reduce-scatter", "binomial-broadcast", "binomial-reduce",
    "all-pairs-all-reduce",
]  # fmt: skip


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", _IN_PLACE)
def test_calls_in_place_are_served_by_either_schedule(
    folder: Path, libraries: Path, name: str, in_place: bool
) -> None:
    algorithm = samples.all_samples(RANKS)[name]
    library = built(folder, tables(algorithm, in_place), libraries)
    for count in (4, 37):
        parts = _Parts(algorithm, count)
        inputs = [random_inputs(1, size * count)[0] + rank for rank, size in enumerate(parts.sends)]

        def on_rank(
            rank: int,
            communicator: int,
            count: int = count,
            parts: _Parts = parts,
            inputs: list[Array] = inputs,
        ) -> Array:
            send, recv = _shared(rank, parts.sends[rank], parts.receives[rank], count)
            send[:] = inputs[rank]
            status = library.run(communicator, Call(send, recv, count))
            assert status == SUCCESS, library.error()
            return recv

        for rank, output in enumerate(library.on_ranks(on_rank)):
            # Where nothing is promised, what a rank passed in is still there.
            wanted = parts.expected(rank, inputs)
            np.testing.assert_array_equal(output, inputs[rank] if wanted is None else wanted)


def _shared(rank: int, sends: int, receives: int, count: int) -> tuple[Array, Array]:
    """Buffers of so many parts, the smaller one the rank's part of the other, as in NCCL."""
    memory = np.zeros(max(sends, receives) * count, np.float32)
    part = memory[rank * count : (rank + 1) * count]
    return part if sends < receives else memory, part if receives < sends else memory


def test_fused_reductions_have_the_bits_of_single_ones(folder: Path, libraries: Path) -> None:
    stated = tables(samples.all_samples(RANKS)["all-pairs-all-reduce"])
    library = built(folder, stated, libraries)
    rng = np.random.default_rng(1)
    inputs = [rng.normal(0, 100, 4 * 33).astype(np.float16) for _ in range(RANKS)]

    def on_rank(rank: int, communicator: int) -> Array:
        recv = np.zeros_like(inputs[rank])
        call = Call(inputs[rank], recv, len(recv), "float16")
        assert library.run(communicator, call) == SUCCESS
        return recv

    outputs = library.on_ranks(on_rank)
    # Rank k reduces block k: its own first, then in the order of the records.
    for owner in range(RANKS):
        block = slice(owner * 33, owner * 33 + 33)
        total = inputs[owner][block].copy()
        for source in _reduction_order(stated, owner):
            total = total + inputs[source][block]
        for output in outputs:
            assert output[block].tobytes() == total.tobytes()


def _reduction_order(stated: ScheduleTables, rank: int) -> list[int]:
    """The ranks whose blocks a rank reduces into its own, in the order of its records."""
    begin, end = stated.program.rank_indptr[rank : rank + 2]
    sources: dict[int, int] = {}
    order = []
    for kind, _, _, _, peer, read, written, *_ in stated.records[begin:end].tolist():
        if kind == RecordKind.RECV:
            sources.setdefault(written, peer)
        elif kind == RecordKind.REDUCE:
            order.append(sources[read])
    assert len(order) == RANKS - 1
    return order


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["ncclSend", "ncclRecv", "ncclGroupEnd"])
def test_an_error_of_nccl_is_returned_with_its_group_closed(ring: Double, call: str) -> None:
    memory = np.zeros(64, np.float32)

    def on_rank(rank: int, communicator: int) -> tuple[int, str, int]:
        ring.fail(call, after=0, status=REMOTE_ERROR)
        status = ring.run(communicator, Call(memory, memory.copy(), 64))
        return status, ring.error(), ring.open_groups()

    for status, error, open_groups in ring.on_ranks(on_rank):
        assert (status, open_groups) == (REMOTE_ERROR, 0)
        assert error.startswith(f"{call}: remote process exited")


def test_an_error_that_nccl_found_later_stops_the_next_call_before_it_posts(ring: Double) -> None:
    memory = np.zeros(64, np.float32)

    def on_rank(rank: int, communicator: int) -> tuple[int, str, int]:
        ring.calls.collhub_double_break(c_void_p(communicator), REMOTE_ERROR)
        before = ring.count_of("ncclSend")
        status = ring.run(communicator, Call(memory, memory.copy(), 64))
        return status, ring.error(), ring.count_of("ncclSend") - before

    for status, error, posted in ring.on_ranks(on_rank):
        assert (status, posted) == (REMOTE_ERROR, 0)
        assert "failed before this call" in error


def test_release_after_an_error_waits_for_nothing_and_aborts_its_lanes(trees: Double) -> None:
    memory = np.zeros(64, np.float32)

    def on_rank(rank: int, communicator: int) -> list[int]:
        trees.fail("ncclGroupEnd")
        found = [trees.run(communicator, Call(memory, memory.copy(), 64))]
        before = trees.count_of("ncclCommAbort")
        found.append(trees.release(communicator))
        return [*found, trees.count_of("ncclCommAbort") - before]

    assert trees.on_ranks(on_rank) == [[REMOTE_ERROR, SUCCESS, 1]] * RANKS


def test_a_peer_that_never_comes_is_an_error_with_the_level(
    ring: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLHUB_DOUBLE_TIMEOUT_S", "0.5")
    memory = np.zeros(64, np.float32)

    def on_rank(rank: int, communicator: int) -> tuple[int, str, int]:
        if rank == 0:
            return TIMEOUT, "deadlock", 1
        status = ring.run(communicator, Call(memory, memory.copy(), 64))
        return status, ring.error(), ring.level(communicator)

    for status, error, level in ring.on_ranks(on_rank):
        assert status in (TIMEOUT, REMOTE_ERROR)
        assert "deadlock" in error or "another rank failed" in error
        assert level >= 1


# ---- plans, communicators and streams ------------------------------------------------------------


def test_memory_and_lanes_are_made_once_for_all_calls(trees: Double) -> None:
    memory = np.arange(64, dtype=np.float32)

    def on_rank(rank: int, communicator: int) -> int:
        before = trees.count_of("ncclCommSplit")
        for count in (64, 8, 64, 3):
            recv = np.zeros(count, np.float32)
            assert trees.run(communicator, Call(memory, recv, count)) == SUCCESS
            np.testing.assert_array_equal(recv, memory[:count])
        return trees.count_of("ncclCommSplit") - before

    assert trees.on_ranks(on_rank) == [1] * RANKS


def test_workspace_grows_for_larger_calls_only(ring: Double) -> None:
    memory = np.zeros(64, np.float32)

    def on_rank(rank: int, communicator: int) -> list[int]:
        found = []
        for count in (16, 16, 8, 64, 64, 16):
            before = ring.count_of("ncclMemAlloc")
            assert ring.run(communicator, Call(memory, memory.copy(), count)) == SUCCESS
            found.append(ring.count_of("ncclMemAlloc") - before)
        return found

    assert ring.on_ranks(on_rank) == [[1, 0, 0, 1, 0, 0]] * RANKS


def test_non_blocking_communicators_are_waited_for(ring: Double, trees: Double) -> None:
    inputs = random_inputs(RANKS, 41)

    def on_rank(rank: int, communicator: int) -> Array:
        recv = np.zeros(41, np.float32)
        for _ in range(3):
            status = ring.run(communicator, Call(inputs[rank], recv, 41))
            assert status == SUCCESS, ring.error()
        return recv

    for output in ring.on_ranks(on_rank, blocking=False):
        np.testing.assert_array_equal(output, reduced(inputs, "sum"))

    def on_tree(rank: int, communicator: int) -> Array:
        recv = np.zeros(41, np.float32)
        assert trees.run(communicator, Call(inputs[rank], recv, 41)) == SUCCESS, trees.error()
        return recv

    for output in trees.on_ranks(on_tree, blocking=False):
        np.testing.assert_array_equal(output, inputs[0])


def test_lanes_and_streams_that_really_run_beside_each_other_keep_their_order(
    ring: Double, trees: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLHUB_DOUBLE_ASYNC", "1")
    for library in (ring, trees):
        for inputs, outputs in _results_of_two_streams(library):
            wanted = reduced(inputs, "sum") if library is ring else inputs[0]
            for output in outputs:
                np.testing.assert_array_equal(output, wanted)
            assert len(outputs) == RANKS


def _results_of_two_streams(library: Double) -> list[tuple[list[Array], list[Array]]]:
    """(inputs, outputs) of calls in turn on two streams, which share the workspace."""
    times, count = 6, 64
    inputs = [random_inputs(RANKS, count + turn) for turn in range(times)]

    def on_rank(rank: int, communicator: int) -> list[Array]:
        streams = [library.stream(), library.stream()]
        outputs = []
        for turn in range(times):
            given = inputs[turn][rank]
            recv = np.zeros_like(given)
            call = Call(given, recv, len(given), stream=streams[turn % 2])
            assert library.run(communicator, call) == SUCCESS, library.error()
            outputs.append(recv)
        for stream in streams:
            library.synchronize(stream)
        return outputs

    by_rank = library.on_ranks(on_rank)
    return [(inputs[turn], [outputs[turn] for outputs in by_rank]) for turn in range(times)]


def test_the_stream_of_a_call_waits_for_all_its_lanes(
    trees: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLHUB_DOUBLE_ASYNC", "1")
    given = np.arange(64, dtype=np.float32)

    def on_rank(rank: int, communicator: int) -> list[Array]:
        stream, found = trees.stream(), []
        for _ in range(20):
            recv = np.zeros_like(given)
            assert trees.run(communicator, Call(given, recv, 64, stream=stream)) == SUCCESS
            trees.synchronize(stream)
            # At once: what a lane writes later must not be in it.
            found.append(recv.copy())
        return found

    for outputs in trees.on_ranks(on_rank):
        for output in outputs:
            np.testing.assert_array_equal(output, given)


def test_first_call_of_a_captured_stream_is_refused_with_the_cure(ring: Double) -> None:
    memory = np.zeros(64, np.float32)

    def on_rank(rank: int, communicator: int) -> tuple[int, str]:
        stream = ring.stream()
        ring.calls.collhub_double_capture(c_void_p(stream), 1)
        call = Call(memory, memory.copy(), 64, stream=stream)
        return ring.run(communicator, call), ring.error()

    for status, error in ring.on_ranks(on_rank):
        assert status == INVALID_USAGE
        assert "make a call with this communicator and this size before" in error


def test_captured_calls_run_once_memory_is_there(ring: Double) -> None:
    inputs = random_inputs(RANKS, 64)

    def on_rank(rank: int, communicator: int) -> tuple[Array, int]:
        stream, recv = ring.stream(), np.zeros(64, np.float32)
        call = Call(inputs[rank], recv, 64, stream=stream)
        assert ring.run(communicator, call) == SUCCESS
        recv[:] = 0
        ring.calls.collhub_double_capture(c_void_p(stream), 1)
        assert ring.run(communicator, call) == SUCCESS, ring.error()
        larger = Call(np.zeros(6400, np.float32), np.zeros(6400, np.float32), 6400, stream=stream)
        return recv, ring.run(communicator, larger)

    for output, status in ring.on_ranks(on_rank):
        np.testing.assert_array_equal(output, reduced(inputs, "sum"))
        assert status == INVALID_USAGE
