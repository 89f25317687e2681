"""`MSCCLProgram`: run a program on symbolic chunks and record what it moves.

The language is sequential: data moves in the order of the program, at once. What may happen in
parallel is found by lowering, from the memory that operations touch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

from collhub_source_programs import calling_line

from collhub_msccl.language.calling_file import calling_file
from collhub_msccl.language.chunks import Buffer, ReduceChunk, Value
from collhub_msccl.language.collectives import Collective, Place, RankBuffers, Slots
from collhub_msccl.language.contracts import kind_of, stated_contract
from collhub_msccl.language.host import CURRENT_HOST
from collhub_msccl.language.instructions import Op, ThreadblockPolicy
from collhub_msccl.language.operations import operations_of
from collhub_msccl.language.references import Ref
from collhub_msccl.language.topologies.generic import Topology
from collhub_msccl.language.trace import COPY, FIRST_SCRATCH, INPUT, OUTPUT, REDUCE, Trace

if TYPE_CHECKING:
    from hub_core.model import Algorithm

_CURRENT: ContextVar[MSCCLProgram | None] = ContextVar("msccl_program", default=None)
_PROTOCOLS = ("Simple", "LL", "LL128")
Lanes = tuple[int, int, int]
"""Thread block on the source's rank, that on the destination's, channel; -1 where not stated."""


def current_program() -> MSCCLProgram:
    """The program whose `with` block is running."""
    program = _CURRENT.get()
    if program is None:
        raise RuntimeError("No Program in context")
    return program


class MSCCLProgram:
    """A program of the language, as a context manager: inside, `chunk` and references work on it.

    `instances`: copies of the whole program on as many times more chunks.
    `interleaved_replication`: chunks of the copies side by side, else part by part. `instr_fusion`,
    `check_xml` and `dependence_nop` say how the public compiler makes its XML; they change nothing
    here. Attributes: `buffers` (for each rank, buffer to list of chunks or None), `collective`,
    `topo`, `num_ranks`, `instr_dag` (the instructions so far).
    """

    def __init__(
        self,
        name: str,
        topo: Topology,
        collective: Collective,
        instances: int,
        protocol: str = "Simple",
        threadblock_policy: ThreadblockPolicy = ThreadblockPolicy.auto,
        interleaved_replication: bool = True,
        instr_fusion: bool = True,
        check_xml: bool = True,
        dependence_nop: bool = False,
    ) -> None:
        # An assertion in the public language too: programs may expect its kind of error.
        assert protocol in _PROTOCOLS, (
            f"protocol {protocol!r} is not one of {', '.join(_PROTOCOLS)}"
        )
        if not isinstance(instances, int) or instances < 1:
            raise ValueError(f"{instances!r} instances: expected 1 or more")
        self.name = name
        self.topo = topo
        self.collective = collective
        self.num_ranks = topo.num_nodes()
        self.instances = instances
        self.protocol = protocol
        self.threadblock_policy = threadblock_policy
        self.interleaved_replication = interleaved_replication
        if collective.num_ranks != self.num_ranks:
            raise ValueError(
                f"the topology has {self.num_ranks} nodes, "
                f"the collective {collective.num_ranks} ranks"
            )
        self._file = calling_file()
        self._line = calling_line(self._file)
        self.buffers = self._initial_buffers()
        # Lists of their own: the program writes into the others.
        self._initial = [_copied(buffers) for buffers in self.buffers]
        self._numbers: list[dict[Hashable, int]] = [
            {Buffer.input: INPUT, Buffer.output: OUTPUT} for _ in self.buffers
        ]
        self._operations: list[tuple[int, ...]] = []

    def _initial_buffers(self) -> list[RankBuffers]:
        """What the collective gives, and an empty scratch for every rank.

        Raises `ValueError` for a collective of the program that gives something else.
        """
        buffers = self.collective.init_buffers()
        has_inputs = all(Buffer.input in of_rank for of_rank in buffers)
        if len(buffers) != self.num_ranks or not has_inputs:
            raise ValueError(
                f"init_buffers of {type(self.collective).__name__} "
                "must give Buffer.input for every rank"
            )
        return [{**of_rank, Buffer.scratch: []} for of_rank in buffers]

    def __enter__(self) -> None:
        if _CURRENT.get() is not None:
            raise RuntimeError("There is already a MSCCL Program in context")
        CURRENT_HOST.get().entered(self)
        _CURRENT.set(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _CURRENT.set(None)

    def get_ref(self, rank: int, buffer: Hashable, index: int, size: int = 1) -> Ref | None:
        """`chunk(...)`: a reference, or None where the slot `index` holds nothing."""
        self._check_rank(rank)
        buffer, index = self.collective.get_buffer_index(rank, buffer, index)
        if buffer not in self.buffers[rank]:
            raise KeyError(f"rank {rank} has no buffer {_named(buffer)}")
        slots = self.buffers[rank][buffer]
        if size < 1 or index < 0 or index + size > len(slots):
            raise IndexError(_outside(rank, buffer, index, size, len(slots)))
        reference = Ref(rank, buffer, index, size, self)
        if slots[index] is None:
            CURRENT_HOST.get().found_empty(str(reference))
            return None
        return reference

    def copy(self, source: Ref, dst: int, buffer: Hashable, index: int, lanes: Lanes) -> Ref | None:
        """`Ref.copy`."""
        self._check_rank(dst)
        buffer, index = self._destination(source, dst, buffer, index)
        target = Ref(dst, buffer, index, source.size, self)
        if target == source:
            return None
        values = self._values(source)
        slots = self._writable(target)
        if self._overlap(source, target, slots):
            # One list under two names: the same slots, which an equal reference would have said.
            if index == source.index:
                return target
            raise ValueError(f"{source} is copied onto {target}, which overlaps it")
        # The objects themselves, which `contracts` tells apart.
        slots[index : index + source.size] = values
        self._record(COPY, source, target, lanes)
        return target

    def reduce(self, target: Ref, other: Ref, lanes: Lanes) -> Ref:
        """`Ref.reduce`."""
        if not isinstance(other, Ref):
            raise TypeError(f"reduce takes a reference, not {type(other).__name__}")
        if target.size != other.size:
            raise ValueError(
                f"{other} cannot be reduced into {target}: {other.size} chunks into {target.size}"
            )
        slots = self._writable(target)
        if self._overlap(other, target, slots):
            raise ValueError(f"{other} is reduced into itself ({target})")
        sums = zip(self._values(target), self._values(other), strict=True)
        # New values, as other slots may hold the old ones.
        slots[target.index : target.index + target.size] = [
            ReduceChunk.of(target.rank, one, two) for one, two in sums
        ]
        self._record(REDUCE, other, target, lanes)
        return target

    def _overlap(self, read: Ref, written: Ref, slots: Slots) -> bool:
        """Whether two references of one size share slots; `slots` are those that are written."""
        is_one_list = slots is self.buffers[read.rank][read.buffer]
        return is_one_list and abs(written.index - read.index) < read.size

    def value(self, reference: Ref, index: int = 0) -> Value:
        """What the slot at `index` of a reference holds; error if it holds nothing."""
        slots = self.buffers[reference.rank].get(reference.buffer, [])
        place = reference.index + index
        # Negative indices would count from the end.
        value = slots[place] if 0 <= place < len(slots) else None
        if value is None:
            raise ValueError(
                f"rank {reference.rank}: {_named(reference.buffer)}[{place}] was never written"
            )
        return value

    def create_scratch(self, rank: int, name: Hashable) -> None:
        """Give a rank a named scratch buffer, as the first copy into it does.

        The public language has the name of this function and fails in it.
        """
        self._check_rank(rank)
        self.buffers[rank].setdefault(name, [])

    def check(self) -> bool:
        """Judge the program: print what is wrong, and tell whether nothing is.

        The lowered steps are verified (matching, deadlock, races, contents), of which the public
        language checks contents alone, and before lowering; for collectives of the program itself,
        the collective's own `check` counts too.
        """
        found = self.findings()
        for line in found:
            print(line)
        return not found

    def findings(self) -> list[str]:
        """What is wrong, one line each."""
        # Imported where a program is judged, as most are only recorded.
        from hub_core.model import Severity
        from hub_core.verification import verify

        if kind_of(self.collective) == "custom" and self.collective.check(self) is False:
            return [f"the check of {type(self.collective).__name__} refuses the result"]
        report = verify(self.lower())
        return [str(item) for item in report.diagnostics if item.severity is Severity.ERROR]

    def lower(self) -> Algorithm:
        """The program as an algorithm of the hub."""
        # Not at the top: lowering needs numpy and the core, which tracing does not.
        from collhub_msccl.language.lowering import lower

        return lower(self.trace(), self._file)

    def generate_xml(self) -> str:
        """The program as MSCCL-IR XML."""
        # Only where a program is used as a library.
        from collhub_msccl.language.xml_text import xml_text

        return xml_text(self.lower())

    def trace(self) -> Trace:
        """Everything that was recorded."""
        collective = self.collective
        kind = kind_of(collective)
        is_custom = kind == "custom"
        return Trace(
            name=self.name,
            protocol=self.protocol,
            kind=kind,
            num_ranks=self.num_ranks,
            chunk_factor=collective.chunk_factor,
            root=collective.root,
            is_in_place=bool(collective.inplace),
            has_two_buffers=is_custom and any(map(_has_two_buffers, self.buffers)),
            instances=self.instances,
            is_interleaved=bool(self.interleaved_replication),
            is_manual=self.threadblock_policy is ThreadblockPolicy.manual,
            line=self._line,
            input_sizes=[len(buffers[Buffer.input]) for buffers in self.buffers],
            output_sizes=[len(buffers.get(Buffer.output, ())) for buffers in self.buffers],
            scratch_sizes=[self._scratch_sizes(rank) for rank in range(len(self.buffers))],
            contract=stated_contract(self, self._initial) if is_custom else None,
            operations=self._operations,
        )

    def _scratch_sizes(self, rank: int) -> list[int]:
        """Lengths of the scratch buffers of a rank that operations use, by age."""
        buffers = self.buffers[rank]
        names = list(self._numbers[rank])[FIRST_SCRATCH:]
        return [len(buffers[name]) for name in names]

    @property
    def instr_dag(self) -> list[Op]:
        """The instructions so far, in the order of the program.

        Before any fusion, and of one instance.
        """
        return operations_of(self._operations, self._numbers)

    def _destination(self, source: Ref, rank: int, buffer: Hashable, index: int) -> Place:
        """Where a copy lands by the arguments of `Ref.copy`."""
        if buffer is None:
            # The public language would make a scratch named None.
            if index != -1:
                raise ValueError(f"copy to index {index} of no buffer: name the buffer too")
            buffer, index = source.buffer, source.index
        elif index == -1:
            # There, this would be Python's last element.
            if buffer in (Buffer.input, Buffer.output):
                raise ValueError(f"copy to {_named(buffer)} without an index: state one")
            index = len(self.buffers[rank].get(buffer, ()))
        if index < 0:
            raise IndexError(f"copy to index {index} of {_named(buffer)}: indices start at 0")
        return self.collective.get_destination(source.rank, rank, buffer, index)

    def _values(self, reference: Ref) -> list[Value]:
        """What the slots of a reference hold; error where one holds nothing."""
        return [self.value(reference, part) for part in range(reference.size)]

    def _writable(self, target: Ref) -> Slots:
        """The buffer that a reference lies in, long enough for it."""
        buffers = self.buffers[target.rank]
        end = target.index + target.size
        if target.buffer not in (Buffer.input, Buffer.output):
            # Scratch grows as it is written, and may have holes.
            slots = buffers.setdefault(target.buffer, [])
            slots.extend([None] * (end - len(slots)))
            return slots
        if target.buffer not in buffers:
            raise KeyError(f"rank {target.rank} has no buffer {_named(target.buffer)}")
        slots = buffers[target.buffer]
        if end > len(slots):
            raise IndexError(
                _outside(target.rank, target.buffer, target.index, target.size, len(slots))
            )
        return slots

    def _record(self, kind: int, source: Ref, target: Ref, lanes: Lanes) -> None:
        """Add an operation to the trace, as a row of `OPERATION_FIELDS`."""
        if source.rank != target.rank:
            assert self.topo.link(source.rank, target.rank), (
                f"No link from {source.rank} to {target.rank}"
            )
        if min(lanes) < -1:
            raise ValueError(
                f"sendtb, recvtb and ch are {lanes}: "
                "expected numbers from 0, or -1 where not stated"
            )
        line = calling_line(self._file)
        ends = (*self._place(source), *self._place(target))
        self._operations.append((kind, *ends, source.size, *lanes, line))

    def _place(self, reference: Ref) -> Iterable[int]:
        """Rank, number of the buffer and index of a reference."""
        numbers = self._numbers[reference.rank]
        # Scratch buffers are numbered as operations first use them.
        number = numbers.setdefault(reference.buffer, len(numbers))
        return reference.rank, number, reference.index

    def _check_rank(self, rank: int) -> None:
        # Programs for older releases give the buffer first.
        if not isinstance(rank, int):
            raise TypeError(
                f"{_named(rank)} is no rank: ranks are numbers; "
                "the order is chunk(rank, buffer, index)"
            )
        if not 0 <= rank < self.num_ranks:
            raise IndexError(f"rank {rank} is not one of ranks 0..{self.num_ranks - 1}")


def _copied(buffers: RankBuffers) -> RankBuffers:
    return {name: list(slots) for name, slots in buffers.items()}


def _has_two_buffers(buffers: RankBuffers) -> bool:
    output = buffers.get(Buffer.output)
    return output is not None and output is not buffers[Buffer.input]


def _named(buffer: Hashable) -> str:
    """A buffer as programs write it."""
    return f"Buffer.{buffer.name}" if isinstance(buffer, Buffer) else repr(buffer)


def _outside(rank: int, buffer: Hashable, index: int, size: int, length: int) -> str:
    asked = f"index {index}" if size == 1 else f"indices {index}..{index + size - 1}"
    return f"rank {rank}: {_named(buffer)} has {length} chunks, {asked} is outside"
