"""From programs to algorithms, with the language used as a library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from collhub_msccl import language
from collhub_msccl.language import Buffer, Chunk, MSCCLProgram, Ref, ThreadblockPolicy, chunk
from collhub_msccl.language.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    ReduceScatter,
)
from collhub_msccl.language.program import current_program
from collhub_msccl.language.topologies import fully_connected
from collhub_msccl.plugin import ReadOptions
from collhub_msccl.reading.read_xml import read
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import Algorithm, CollectiveKind, InputError, StepKind
from hub_core.plugin_api import Source
from hub_core.verification import verify

MANUAL, AUTO = ThreadblockPolicy.manual, ThreadblockPolicy.auto


def at(rank: int, buffer: Hashable, index: int, size: int = 1) -> Ref:
    """A reference to what must be there."""
    found = chunk(rank, buffer, index, size)
    assert found is not None
    return found


def ring(size: int, instances: int = 1, policy: ThreadblockPolicy = AUTO) -> MSCCLProgram:
    """The worked example of the language's specification for any number of ranks."""
    with MSCCLProgram(
        "ring",
        fully_connected(size),
        AllReduce(size, size, True),
        instances,
        threadblock_policy=policy,
    ):
        for start in range(size):
            c = at(start, Buffer.input, start)
            for step in range(1, size):
                c = at((start + step) % size, Buffer.input, start).reduce(c, sendtb=0, recvtb=0)
            for step in range(size, 2 * size - 1):
                c = c.copy((start + step) % size, Buffer.input, start, sendtb=0, recvtb=0) or c
        return current_program()


def shown(algorithm: Algorithm, rank: int) -> list[tuple[str, int]]:
    """Kind and chunk of every step of a rank."""
    steps = algorithm.steps
    rows = range(int(steps.rank_indptr[rank]), int(steps.rank_indptr[rank + 1]))
    places = [
        steps.src_offset if steps.kind[row] in (StepKind.SEND, StepKind.COPY) else steps.dst_offset
        for row in rows
    ]
    return [
        (StepKind(steps.kind[row]).name, int(place[row]))
        for row, place in zip(rows, places, strict=True)
    ]


@pytest.mark.parametrize("policy", [AUTO, MANUAL])
def test_ring_of_three_is_the_worked_example(policy: ThreadblockPolicy) -> None:
    # Steps s, rrs, rrcs, rcs, r of the fused program, each receive beside the send that passes it
    # on.
    algorithm = ring(3, policy=policy).lower()
    for rank in range(3):
        before, after = (rank - 1) % 3, (rank - 2) % 3
        assert shown(algorithm, rank) == [
            ("SEND", rank),
            ("RECV_REDUCE", before),
            ("SEND", before),
            ("RECV_REDUCE", after),
            ("SEND", after),
            ("RECV", rank),
            ("SEND", rank),
            ("RECV", before),
        ]
    assert set(algorithm.steps.channel.tolist()) == {0}
    report = verify(algorithm)
    assert {name: (mode.is_claimed, mode.verdict) for name, mode in report.modes.items()} == {
        "in_place": (True, "ok"),
        "out_of_place": (False, "wrong"),
    }


def test_library_use_keeps_the_line_of_every_operation() -> None:
    lines = set(ring(3).lower().steps.source_line.tolist())
    text = Path(__file__).read_text().splitlines()
    assert {text[line - 1].split("c = ")[1].split("(")[0] for line in lines} == {"at", "c.copy"}


def test_check_prints_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with MSCCLProgram("none", fully_connected(2), AllReduce(2, 1, True), 1):
        assert not language.Check()
    assert "lacks" in capsys.readouterr().out
    with MSCCLProgram("one", fully_connected(1), AllReduce(1, 1, True), 1):
        assert language.Check()
    assert capsys.readouterr().out == ""


def test_xml_prints_what_the_reader_of_the_runtimes_files_reads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with MSCCLProgram("pass_it_on", fully_connected(3), AllGather(3, 1, True), 2, protocol="LL"):
        for rank in range(3):
            at(rank, Buffer.input, 0).copy((rank + 1) % 3).copy((rank + 2) % 3)  # type: ignore[union-attr]
        language.XML()
    text = capsys.readouterr().out
    algorithm = read(Source.of_bytes("printed.xml", text.encode()), ReadOptions())
    assert verify(algorithm).ok
    assert algorithm.collective.kind is CollectiveKind.ALL_GATHER
    assert 'name="pass_it_on" proto="LL"' in text


def test_one_program_at_a_time_and_none_outside() -> None:
    with pytest.raises(RuntimeError, match="No Program in context"):
        chunk(0, Buffer.input, 0)
    outer = MSCCLProgram("outer", fully_connected(2), AllReduce(2, 1, True), 1)
    with outer, pytest.raises(RuntimeError, match="already a MSCCL Program"), outer:
        pass
    with pytest.raises(KeyError), outer:
        raise KeyError
    with outer:
        assert current_program() is outer


def test_in_place_reduce_scatter_output_is_the_part_of_the_destination() -> None:
    with MSCCLProgram("p", fully_connected(2), ReduceScatter(2, 1, True), 1):
        reference = at(0, Buffer.input, 0).copy(1, Buffer.output, 0)
    assert reference is not None
    assert (reference.rank, reference.buffer, reference.index) == (1, Buffer.input, 1)


def test_in_place_all_gather_input_is_the_part_of_the_sender() -> None:
    with MSCCLProgram("p", fully_connected(2), AllGather(2, 2, True), 1):
        reference = at(1, Buffer.input, 1).copy(0, Buffer.input, 1)
    assert reference is not None
    assert (reference.rank, reference.buffer, reference.index) == (0, Buffer.output, 3)


def test_in_place_all_to_all_is_one_location() -> None:
    with MSCCLProgram("p", fully_connected(2), AllToAll(2, 1, True), 1):
        at(0, Buffer.input, 0).copy(1, Buffer.output, 1)
        assert at(1, Buffer.input, 1).get_origin_rank() == 0
        at(0, Buffer.input, 0).copy(0, Buffer.output, 0)
        assert len(current_program().instr_dag) == 2


def test_named_scratch_lies_behind_older_scratch_in_every_instance() -> None:
    with MSCCLProgram("p", fully_connected(2), AllToAll(2, 1, False), 2):
        at(0, Buffer.input, 0).copy(1, "first", 1)
        at(0, Buffer.input, 0).copy(1, "second", 0)
        algorithm = current_program().lower()
    assert algorithm.scratch_units.tolist() == [0, 6]
    steps = algorithm.steps
    assert sorted(steps.dst_offset[steps.kind == StepKind.RECV].tolist()) == [1, 3, 4, 5]


def test_interleaved_references_of_different_sizes_are_cut() -> None:
    with MSCCLProgram("p", fully_connected(2), AllToAll(2, 2, False), 2):
        at(0, Buffer.input, 0, 4).copy(1, "all", 0)
        at(0, Buffer.input, 1).copy(1, "one", 0)
        steps = current_program().lower().steps
    sends = steps.kind == StepKind.SEND
    assert set(steps.count.tolist()) == {1}
    assert sorted(steps.src_offset[sends].tolist()) == [0, 1, 2, 2, 3, 3, 4, 5, 6, 7]


def test_references_that_fit_stay_whole_in_instances() -> None:
    with MSCCLProgram("p", fully_connected(2), AllReduce(2, 4, True), 2):
        for index in (0, 2):
            at(0, Buffer.input, index, 2).copy(1)
        steps = current_program().lower().steps
    assert sorted(steps.src_offset[steps.kind == StepKind.SEND].tolist()) == [0, 2, 4, 6]
    assert set(steps.count.tolist()) == {2}


def test_thread_block_without_channel_takes_that_of_its_other_messages() -> None:
    with MSCCLProgram("p", fully_connected(3), AllReduce(3, 2, True), 1, threadblock_policy=MANUAL):
        at(0, Buffer.input, 0).copy(1, "x", 0, sendtb=3, recvtb=1)
        at(1, "x", 0).copy(2, "x", 0, sendtb=1, recvtb=0, ch=5)
        at(0, Buffer.input, 1).copy(1, "x", 1, sendtb=3, recvtb=1)
        steps = current_program().lower().steps
    assert set(steps.channel.tolist()) == {5}
    assert sorted(set(zip(steps.rank.tolist(), steps.lane.tolist(), strict=True))) == [
        (0, 3),
        (1, 1),
        (2, 0),
    ]


Sends = list[tuple[int, int, int, int, int]]
ILLEGAL: dict[str, Sends] = {
    "thread block 0 of rank 0 sends to rank 1 already, and here rank 2": [
        (0, 1, 0, 0, -1),
        (0, 2, 0, 1, -1),
    ],
    "thread block 0 of rank 2 receives from rank 0 already, and here rank 1": [
        (0, 2, 0, 0, -1),
        (1, 2, 0, 0, -1),
    ],
    "thread block 0 of rank 0 would need channels 1 and 2": [(0, 1, 0, 0, 1), (0, 1, 0, 0, 2)],
    "thread block 1 of rank 0 sends on a connection of thread block 0: rank 0 to 1 on channel 0": [
        (0, 1, 0, 0, -1),
        (0, 1, 1, 1, -1),
    ],
}


@pytest.mark.parametrize("reason", ILLEGAL)
def test_illegal_thread_blocks_are_refused_with_the_line(reason: str) -> None:
    with MSCCLProgram("p", fully_connected(3), AllReduce(3, 1, True), 1, threadblock_policy=MANUAL):
        for source, destination, sendtb, recvtb, ch in ILLEGAL[reason]:
            at(source, Buffer.input, 0).copy(
                destination, f"from {source}", sendtb=sendtb, recvtb=recvtb, ch=ch
            )
        program = current_program()
    with pytest.raises(InputError) as caught:
        program.lower()
    finding = caught.value.diagnostics[0]
    assert finding.code == "thread-block-assignment"
    assert finding.message == f"Illegal threadblock assignment: {reason}"
    assert caught.value.diagnostics[0].location.line is not None


def test_derived_collective_with_another_meaning_is_custom() -> None:
    class Mine(AllReduce):
        def check(self, prog: object) -> bool:
            return True

    class Named(AllReduce):
        pass

    for kind, collective in (
        (CollectiveKind.CUSTOM, Mine(2, 1, True)),
        (CollectiveKind.ALL_REDUCE, Named(2, 1, True)),
    ):
        with MSCCLProgram("p", fully_connected(2), collective, 1):
            assert current_program().lower().collective.kind is kind


def test_collective_without_check_states_no_outcome() -> None:
    class Silent(Collective):
        def init_buffers(self) -> list[dict[Hashable, list[Chunk | None]]]:  # type: ignore[override]
            return [{Buffer.input: [Chunk(rank, 0)], Buffer.output: [None]} for rank in range(2)]

    with MSCCLProgram("p", fully_connected(2), Silent(2, 1, False), 1):
        contract = current_program().lower().collective.contract
    assert contract is not None
    assert contract.expected is None


RANKS, CHUNKS = 3, 4
BUFFERS = (Buffer.input, Buffer.output, "x", ("y", 1))
Slot = tuple[int, Hashable, int]


@dataclass(frozen=True)
class Step:
    """One operation of a random program; indices are taken modulo what there is."""

    is_reduce: bool
    source: Slot
    target: Slot
    size: int
    channel: int


class Free(Collective):
    """Accepts whatever a program leaves."""

    def init_buffers(self) -> list[dict[Hashable, list[Chunk | None]]]:  # type: ignore[override]
        data = [[Chunk(rank, index) for index in range(CHUNKS)] for rank in range(RANKS)]
        return [
            {Buffer.input: list(slots), Buffer.output: slots if self.inplace else [None] * CHUNKS}
            for slots in data
        ]

    def check(self, prog: object) -> bool:
        return True


class Shared(Free):
    """The same with one list for both."""

    def init_buffers(self) -> list[dict[Hashable, list[Chunk | None]]]:  # type: ignore[override]
        buffers = super().init_buffers()
        return [
            {Buffer.input: of_rank[Buffer.output], Buffer.output: of_rank[Buffer.output]}
            for of_rank in buffers
        ]


class Memory:
    """A plain interpreter: what every slot holds, as a multiset of (rank, index)."""

    def __init__(self, is_in_place: bool) -> None:
        self._is_in_place = is_in_place
        self.slots: dict[Slot, Counter[tuple[int, int]]] = {
            (rank, Buffer.input, index): Counter([(rank, index)])
            for rank in range(RANKS)
            for index in range(CHUNKS)
        }

    def _slots(self, start: Slot, size: int) -> list[Slot]:
        rank, buffer, index = start
        buffer = Buffer.input if self._is_in_place and buffer is Buffer.output else buffer
        return [(rank, buffer, index + part) for part in range(size)]

    def does(self, step: Step) -> bool:
        """Execute a step, or tell that it is not defined."""
        sources, targets = self._slots(step.source, step.size), self._slots(step.target, step.size)
        if set(sources) & set(targets) or not all(slot in self.slots for slot in sources):
            return False
        if step.is_reduce:
            if not all(slot in self.slots for slot in targets):
                return False
            if any(
                self.slots[one] & self.slots[other]
                for one, other in zip(sources, targets, strict=True)
            ):
                return False
        old = [self.slots[slot] for slot in sources]
        for value, slot in zip(old, targets, strict=True):
            self.slots[slot] = value + self.slots[slot] if step.is_reduce else value
        return True

    def outcome(self) -> Counter[tuple[int, int, int, int]]:
        """(rank, output index, origin rank, origin index) of all that lies in the output."""
        result = Buffer.input if self._is_in_place else Buffer.output
        held = ((slot, value) for slot, value in self.slots.items() if slot[1] is result)
        return Counter(
            {
                (rank, index, *origin): number
                for (rank, _, index), v in held
                for origin, number in v.items()
            }
        )


slots = st.tuples(st.integers(0, RANKS - 1), st.sampled_from(BUFFERS), st.integers(0, CHUNKS - 1))
steps = st.builds(
    Step, st.booleans(), slots, slots, st.sampled_from([1, 1, 2, 4]), st.integers(-1, 2)
)


def fits(step: Step) -> bool:
    """Whether a step stays within buffers of `CHUNKS` chunks."""
    return max(step.source[2], step.target[2]) + step.size <= CHUNKS


def perform(program: Iterable[Step], memory: Memory) -> None:
    """Do what is defined, both in the language and in the plain interpreter."""
    for step in filter(fits, program):
        if memory.does(step):
            source = at(*step.source, step.size)
            rank, buffer, index = step.target
            if step.is_reduce:
                at(rank, buffer, index, step.size).reduce(source, ch=step.channel)
            else:
                source.copy(rank, buffer, index, ch=step.channel)


@pytest.mark.once
@given(
    st.lists(steps, max_size=14),
    st.booleans(),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
)
def test_random_program_does_what_a_plain_interpreter_does(
    program: list[Step], is_in_place: bool, instances: int, is_interleaved: bool
) -> None:
    memory = Memory(is_in_place)
    collective = (Shared if is_in_place else Free)(RANKS, CHUNKS, is_in_place)
    with MSCCLProgram(
        "p", fully_connected(RANKS), collective, instances, interleaved_replication=is_interleaved
    ):
        perform(program, memory)
        traced = current_program()
    contract = traced.trace().contract
    assert contract is not None
    assert contract.expected is not None
    assert Counter(map(tuple, contract.expected)) == memory.outcome()
    algorithm = traced.lower()
    report = verify(algorithm)
    assert report.ok, report.diagnostics
    assert algorithm.collective.unit_count == CHUNKS * instances
