"""`MSCCLProgram`: run a program on symbolic chunks and record what it moves."""

from __future__ import annotations

from collections.abc import Hashable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

from collhub_msccl.language.calling_line import calling_file, calling_line
from collhub_msccl.language.chunks import Buffer, ReduceChunk, Value
from collhub_msccl.language.collectives import Collective, RankBuffers, Slots
from collhub_msccl.language.contracts import kind_of, stated_contract
from collhub_msccl.language.host import CURRENT_HOST
from collhub_msccl.language.instructions import Op, ThreadblockPolicy
from collhub_msccl.language.operations import operations_of
from collhub_msccl.language.references import Ref
from collhub_msccl.language.topologies.generic import Topology
from collhub_msccl.language.trace import COPY, FIRST_SCRATCH, INPUT, OUTPUT, REDUCE, Trace

if TYPE_CHECKING:
    from hub_core.model import Algorithm

__all__ = ["MSCCLProgram", "current_program"]

_CURRENT: ContextVar[MSCCLProgram | None] = ContextVar("msccl_program", default=None)
_PROTOCOLS = ("Simple", "LL", "LL128")
Lanes = tuple[int, int, int]
"""Thread block on the source's rank, thread block on the destination's rank, channel; -1 where not stated."""


def current_program() -> MSCCLProgram:
    """The program whose `with` block is running."""
    program = _CURRENT.get()
    if program is None:
        raise RuntimeError("No Program in context")
    return program


class MSCCLProgram:
    """A program of the language, as a context manager: inside, `chunk` and references work on it.

    `instances`: copies of the whole program on as many times more chunks. `interleaved_replication`: chunks of the
    copies side by side, else part by part. `instr_fusion`, `check_xml` and `dependence_nop` say how the public compiler
    makes its XML; they change nothing here. Attributes: `buffers` (for each rank, buffer to list of chunks or None),
    `collective`, `topo`, `num_ranks`, `instr_dag` (the instructions so far).
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
                f"the topology has {self.num_ranks} nodes, the collective {collective.num_ranks} ranks"
            )
        self._file = calling_file()
        self._line = calling_line(self._file)
        self.buffers = self._initial_buffers()
        self._initial = [
            {name: list(slots) for name, slots in buffers.items()} for buffers in self.buffers
        ]
        self._numbers: list[dict[Hashable, int]] = [
            {Buffer.input: INPUT, Buffer.output: OUTPUT} for _ in self.buffers
        ]
        self._operations: list[tuple[int, ...]] = []

    def _initial_buffers(self) -> list[RankBuffers]:
        buffers = self.collective.init_buffers()
        if len(buffers) != self.num_ranks or not all(
            Buffer.input in of_rank for of_rank in buffers
        ):
            raise ValueError(
                f"init_buffers of {type(self.collective).__name__} must give Buffer.input for every rank"
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
        if (
            slots is self.buffers[source.rank][source.buffer]
            and abs(index - source.index) < source.size
        ):
            if index == source.index:
                return target
            raise ValueError(f"{source} is copied onto {target}, which overlaps it")
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
        if (
            slots is self.buffers[other.rank][other.buffer]
            and abs(target.index - other.index) < target.size
        ):
            raise ValueError(f"{other} is reduced into itself ({target})")
        sums = zip(self._values(target), self._values(other), strict=True)
        slots[target.index : target.index + target.size] = [
            ReduceChunk.of(target.rank, one, two) for one, two in sums
        ]
        self._record(REDUCE, other, target, lanes)
        return target

    def value(self, reference: Ref, index: int = 0) -> Value:
        """What the slot at `index` of a reference holds; error if it holds nothing."""
        slots = self.buffers[reference.rank].get(reference.buffer, [])
        place = reference.index + index
        value = slots[place] if 0 <= place < len(slots) else None
        if value is None:
            raise ValueError(
                f"rank {reference.rank}: {_named(reference.buffer)}[{place}] was never written"
            )
        return value

    def create_scratch(self, rank: int, name: Hashable) -> None:
        """Give a rank a named scratch buffer, as the first copy into it does."""
        self._check_rank(rank)
        self.buffers[rank].setdefault(name, [])

    def check(self) -> bool:
        """Judge the program: print what is wrong, and tell whether nothing is.

        The lowered steps are verified (matching, deadlock, races, contents); for collectives of the program itself,
        the collective's own `check` counts too.
        """
        found = self.findings()
        for line in found:
            print(line)
        return not found

    def findings(self) -> list[str]:
        """What is wrong, one line each."""
        from hub_core.model import Severity
        from hub_core.verification import verify

        if kind_of(self.collective) == "custom" and self.collective.check(self) is False:
            return [f"the check of {type(self.collective).__name__} refuses the result"]
        report = verify(self.lower())
        return [str(item) for item in report.diagnostics if item.severity is Severity.ERROR]

    def lower(self) -> Algorithm:
        """The program as an algorithm of the hub."""
        from collhub_msccl.language.lowering import lower

        return lower(self.trace(), self._file)

    def generate_xml(self) -> str:
        """The program as MSCCL-IR XML."""
        from collhub_msccl.language.xml_text import xml_text

        return xml_text(self.lower())

    def trace(self) -> Trace:
        """Everything that was recorded."""
        collective = self.collective
        kind = kind_of(collective)
        scratch = [list(numbers)[FIRST_SCRATCH:] for numbers in self._numbers]
        return Trace(
            name=self.name,
            protocol=self.protocol,
            kind=kind,
            num_ranks=self.num_ranks,
            chunk_factor=collective.chunk_factor,
            root=collective.root,
            is_in_place=bool(collective.inplace),
            has_two_buffers=kind == "custom"
            and any(_has_two_buffers(buffers) for buffers in self.buffers),
            instances=self.instances,
            is_interleaved=bool(self.interleaved_replication),
            is_manual=self.threadblock_policy is ThreadblockPolicy.manual,
            line=self._line,
            input_sizes=[len(buffers[Buffer.input]) for buffers in self.buffers],
            output_sizes=[len(buffers.get(Buffer.output, ())) for buffers in self.buffers],
            scratch_sizes=[
                [len(self.buffers[rank][name]) for name in names]
                for rank, names in enumerate(scratch)
            ],
            contract=stated_contract(self, self._initial) if kind == "custom" else None,
            operations=self._operations,
        )

    @property
    def instr_dag(self) -> list[Op]:
        """The instructions so far, in the order of the program, before any fusion and of one instance."""
        return operations_of(self._operations, self._numbers)

    def _destination(
        self, source: Ref, rank: int, buffer: Hashable, index: int
    ) -> tuple[Hashable, int]:
        if buffer is None:
            if index != -1:
                raise ValueError(f"copy to index {index} of no buffer: name the buffer too")
            buffer, index = source.buffer, source.index
        elif index == -1:
            if buffer in (Buffer.input, Buffer.output):
                raise ValueError(f"copy to {_named(buffer)} without an index: state one")
            index = len(self.buffers[rank].get(buffer, ()))
        if index < 0:
            raise IndexError(f"copy to index {index} of {_named(buffer)}: indices start at 0")
        return self.collective.get_destination(source.rank, rank, buffer, index)

    def _values(self, reference: Ref) -> list[Value]:
        return [self.value(reference, part) for part in range(reference.size)]

    def _writable(self, target: Ref) -> Slots:
        """The buffer that a reference lies in, long enough for it."""
        buffers = self.buffers[target.rank]
        if target.buffer not in (Buffer.input, Buffer.output):
            slots = buffers.setdefault(target.buffer, [])
            slots.extend([None] * (target.index + target.size - len(slots)))
            return slots
        if target.buffer not in buffers:
            raise KeyError(f"rank {target.rank} has no buffer {_named(target.buffer)}")
        slots = buffers[target.buffer]
        if target.index + target.size > len(slots):
            raise IndexError(
                _outside(target.rank, target.buffer, target.index, target.size, len(slots))
            )
        return slots

    def _record(self, kind: int, source: Ref, target: Ref, lanes: Lanes) -> None:
        if source.rank != target.rank:
            assert self.topo.link(source.rank, target.rank), (
                f"No link from {source.rank} to {target.rank}"
            )
        if min(lanes) < -1:
            raise ValueError(
                f"sendtb, recvtb and ch are {lanes}: expected numbers from 0, or -1 where not stated"
            )
        places = (
            number
            for ref in (source, target)
            for number in (ref.rank, self._number(ref.rank, ref.buffer), ref.index)
        )
        self._operations.append((kind, *places, source.size, *lanes, calling_line(self._file)))

    def _number(self, rank: int, buffer: Hashable) -> int:
        numbers = self._numbers[rank]
        return numbers.setdefault(buffer, len(numbers))

    def _check_rank(self, rank: int) -> None:
        if not isinstance(rank, int):
            raise TypeError(
                f"{_named(rank)} is no rank: ranks are numbers; the order is chunk(rank, buffer, index)"
            )
        if not 0 <= rank < self.num_ranks:
            raise IndexError(f"rank {rank} is not one of ranks 0..{self.num_ranks - 1}")


def _has_two_buffers(buffers: RankBuffers) -> bool:
    output = buffers.get(Buffer.output)
    return output is not None and output is not buffers[Buffer.input]


def _named(buffer: Hashable) -> str:
    return f"Buffer.{buffer.name}" if isinstance(buffer, Buffer) else repr(buffer)


def _outside(rank: int, buffer: Hashable, index: int, size: int, length: int) -> str:
    asked = f"index {index}" if size == 1 else f"indices {index}..{index + size - 1}"
    return f"rank {rank}: {_named(buffer)} has {length} chunks, {asked} is outside"
