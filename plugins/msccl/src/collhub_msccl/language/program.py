"""`MSCCLProgram`: execute a program on symbolic chunks and record its data movement.

The language is sequential: data moves immediately, in the order of the program. Lowering determines
possible parallelism from the memory that operations access.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

from collhub_msccl.language.chunks import Buffer, ReduceChunk, Ref, Value
from collhub_msccl.language.collectives import Collective, Place, Slots
from collhub_msccl.language.topologies import Topology
from collhub_msccl.language.trace import (
    COPY,
    CURRENT_HOST,
    FIRST_SCRATCH,
    INPUT,
    OUTPUT,
    REDUCE,
    Op,
    ThreadblockPolicy,
    Trace,
    build_contract,
    find_calling_file,
    find_kind,
    list_instructions,
)
from hub_core.sandbox import calling_line

if TYPE_CHECKING:
    from hub_core.model import Algorithm

_CURRENT: ContextVar[MSCCLProgram | None] = ContextVar("msccl_program", default=None)
_PROTOCOLS = ("Simple", "LL", "LL128")
Lanes = tuple[int, int, int]
"""Thread block on the source's rank, on the destination's rank, and channel; -1 if not given."""


def current_program() -> MSCCLProgram:
    """Return the program whose `with` block is active; such blocks do not nest.

    Raises `RuntimeError` if there is none.
    """
    program = _CURRENT.get()
    if program is None:
        raise RuntimeError("No Program in context")
    return program


class MSCCLProgram:
    """A program of the language, as a context manager; inside, `chunk` and references refer to it.

    `instances`: copies of the program, which multiply the number of chunks;
    `interleaved_replication`: chunks of the copies are adjacent, else part by part. `instr_fusion`,
    `check_xml` and `dependence_nop` control the XML output of the public compiler and have no
    effect here. Attributes: `buffers` (for each rank, mapping from buffers to lists of chunks or
    None), `collective`, `topo`, `num_ranks`, `instr_dag` (the instructions so far).
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
        # An assertion in the public language too: programs may expect this exception.
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
        self._file = find_calling_file()
        self._line = calling_line(self._file)
        buffers = self.collective.init_buffers()
        has_inputs = all(Buffer.input in of_rank for of_rank in buffers)
        if len(buffers) != self.num_ranks or not has_inputs:
            raise ValueError(
                f"init_buffers of {type(self.collective).__name__} "
                "must give Buffer.input for every rank"
            )
        self.buffers = [{**of_rank, Buffer.scratch: []} for of_rank in buffers]
        # Copies: the program changes the lists in `buffers`.
        self._initial = [
            {name: list(slots) for name, slots in buffers.items()} for buffers in self.buffers
        ]
        self._numbers: list[dict[Hashable, int]] = [
            {Buffer.input: INPUT, Buffer.output: OUTPUT} for _ in self.buffers
        ]
        self._operations: list[tuple[int, ...]] = []

    def __enter__(self) -> None:
        if _CURRENT.get() is not None:
            raise RuntimeError("There is already a MSCCL Program in context")
        CURRENT_HOST.get().record_program(self)
        _CURRENT.set(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _CURRENT.set(None)

    def get_ref(self, rank: int, buffer: Hashable, index: int, size: int = 1) -> Ref | None:
        """Return a reference to `size` slots of a rank's buffer from `index` on, for `chunk(...)`.

        A slot is the place of one chunk. Slots of in-place collectives are first mapped to the
        buffer that stores them. Returns None if the first slot is empty, and reports this to the
        current host (recorder of the program); the other slots may be empty. Raises `KeyError` if
        the rank has no such buffer, `IndexError` if the rank or a slot is out of range or `size` is
        below 1, and `TypeError` if the rank is not an integer.
        """
        self._check_rank(rank)
        buffer, index = self.collective.get_buffer_index(rank, buffer, index)
        if buffer not in self.buffers[rank]:
            raise KeyError(f"rank {rank} has no buffer {_format_buffer(buffer)}")
        slots = self.buffers[rank][buffer]
        if size < 1 or index < 0 or index + size > len(slots):
            raise IndexError(_describe_out_of_range(rank, buffer, index, size, len(slots)))
        reference = Ref(rank, buffer, index, size, self)
        if slots[index] is None:
            CURRENT_HOST.get().record_empty_slot(str(reference))
            return None
        return reference

    def copy(self, source: Ref, dst: int, buffer: Hashable, index: int, lanes: Lanes) -> Ref | None:
        """Copy the chunks of `source` to rank `dst`, record it, and return the destination.

        `_find_destination` chooses the destination from `buffer` (may be None) and `index` (may be
        -1). `lanes`: send block, receive block and channel, -1 if not given. Chunks there are
        overwritten; a scratch buffer is created or extended if needed. Nothing is recorded in two
        cases:
        - The destination equals `source`: None is returned.
        - Both are the same slots of one list under two names, such as input and output in place.

        Errors, in this order: `TypeError` or `IndexError` for an invalid rank; `ValueError` or
        `IndexError` for an invalid buffer or index; `ValueError` for an empty slot of the source;
        `KeyError` or `IndexError` for a missing or too short buffer; `ValueError` for a partial
        overlap. After the copy: `AssertionError` without a link, `ValueError` for a block or
        channel below -1.
        """
        self._check_rank(dst)
        buffer, index = self._find_destination(source, dst, buffer, index)
        target = Ref(dst, buffer, index, source.size, self)
        if target == source:
            return None
        values = self._get_values(source)
        slots = self._prepare_slots(target)
        if self._is_overlapping(source, target, slots):
            # One list under two names: the slots are equal, as for equal references.
            if index == source.index:
                return target
            raise ValueError(f"{source} is copied onto {target}, which overlaps it")
        # The objects themselves, because `build_contract` depends on their identity.
        slots[index : index + source.size] = values
        self._record(COPY, source, target, lanes)
        return target

    def reduce(self, target: Ref, other: Ref, lanes: Lanes) -> Ref:
        """Replace the chunks of `target` by sums with those of `other`, and record the operation.

        `Ref.reduce` calls this. Chunk i of `target` becomes a new `ReduceChunk` of its old value
        and chunk i of `other`. Other slots with the old value keep it. `other` keeps its chunks.
        Returns `target`. `lanes`: send block, receive block and channel, -1 if not given.

        Errors, in the order of the checks:

        - `TypeError` if `other` is not a reference, `ValueError` if the sizes differ
        - `KeyError` or `IndexError` if a target in input or output is not inside it; a scratch
          buffer is extended by empty slots instead
        - `ValueError` if both are in one list and have a slot in common
        - `ValueError` if a slot of `target` or `other` is empty
        - after the chunks were replaced: `AssertionError` if the topology has no link between the
          ranks, `ValueError` for a thread block or channel below -1
        """
        if not isinstance(other, Ref):
            raise TypeError(f"reduce takes a reference, not {type(other).__name__}")
        if target.size != other.size:
            raise ValueError(
                f"{other} cannot be reduced into {target}: {other.size} chunks into {target.size}"
            )
        slots = self._prepare_slots(target)
        if self._is_overlapping(other, target, slots):
            raise ValueError(f"{other} is reduced into itself ({target})")
        sums = zip(self._get_values(target), self._get_values(other), strict=True)
        # New values, because other slots may contain the old ones.
        slots[target.index : target.index + target.size] = [
            ReduceChunk.from_parts(target.rank, first, second) for first, second in sums
        ]
        self._record(REDUCE, other, target, lanes)
        return target

    def _is_overlapping(self, read: Ref, written: Ref, slots: Slots) -> bool:
        """Return whether two references of equal size have a slot in common.

        They can have one only if both buffers are stored in the same list, such as the input
        and output of an in-place collective on one rank. `slots`: the list that stores the
        buffer of `written`. Raise `KeyError` if the rank of `read` does not have its buffer.
        """
        is_one_list = slots is self.buffers[read.rank][read.buffer]
        return is_one_list and abs(written.index - read.index) < read.size

    def value(self, reference: Ref, index: int = 0) -> Value:
        """Return the content of slot `index`, counted from the first slot of the reference.

        `index` may exceed the size of the reference. Raises `ValueError` if the slot is empty or
        outside the buffer, or if the rank has no such buffer.
        """
        slots = self.buffers[reference.rank].get(reference.buffer, [])
        position = reference.index + index
        # Negative indices would count from the end.
        value = slots[position] if 0 <= position < len(slots) else None
        if value is None:
            raise ValueError(
                f"rank {reference.rank}: {_format_buffer(reference.buffer)}[{position}] "
                "was never written"
            )
        return value

    def create_scratch(self, rank: int, name: Hashable) -> None:
        """Create a named, empty scratch buffer on a rank; an existing one stays unchanged.

        Writing to it extends it. The public language has this function, but it fails there. Raises
        `TypeError` or `IndexError` for an invalid rank.
        """
        self._check_rank(rank)
        self.buffers[rank].setdefault(name, [])

    def check(self) -> bool:
        """Verify the program, print its errors, one a line, and return whether there are none.

        If the `check` of a user-defined collective returns False, this is the only error.
        Otherwise the program is lowered, and its steps are verified: matching, deadlock, races
        and contents. Errors of `lower` are raised, not printed. The public language checks only
        the contents, before lowering.
        """
        errors = self.findings()
        for line in errors:
            print(line)
        return not errors

    def findings(self) -> list[str]:
        """Return the errors of the program, one line each; an empty list if it is correct.

        If the `check` method of a user-defined collective returns False, this is the only error.
        Otherwise the lowered program is verified, and its diagnostics of severity ERROR are
        returned. Lowering may raise (see `lower`).
        """
        # Imported lazily: most programs are only recorded.
        from hub_core.model import Severity
        from hub_core.verification import verify

        if find_kind(self.collective) == "custom" and self.collective.check(self) is False:
            return [f"the check of {type(self.collective).__name__} refuses the result"]
        report = verify(self.lower())
        return [str(item) for item in report.diagnostics if item.severity is Severity.ERROR]

    def lower(self) -> Algorithm:
        """Convert the program to an algorithm of the hub, as recorded so far.

        Raise `InputError` for invalid thread blocks and for values out of range. Raise
        `ValueError` if the `check` of a custom collective refuses the result, or if its data is
        initially not only in the inputs; exceptions of this `check` pass through. The program
        is not changed.
        """
        # Imported lazily: lowering needs numpy and the core, tracing does not.
        from collhub_msccl.language.lowering import lower

        return lower(self.trace(), self._file)

    def generate_xml(self) -> str:
        """Return the program as the text of an MSCCL-IR XML file for the writer's default runtime.

        Raises `InputError` if it cannot be lowered or written, and `ValueError` if the `check` of a
        custom collective refuses the result. The findings of the writer are dropped.
        """
        # Imported lazily: only needed if a program is used as a library.
        from collhub_msccl.language.lowering import xml_text

        return xml_text(self.lower())

    def trace(self) -> Trace:
        """Return the recorded operations and their context as a trace.

        Sizes are in chunks of one instance, one per rank: of the input, of the output (0 without
        one), and a list for the scratch buffers. This list has the scratch buffers that operations
        use, in the order of their first use. `operations` is the list of the program itself, not a
        copy.

        Only a custom collective has a contract, which is computed here and calls its `check`
        method. `has_two_buffers` is True only for a custom collective in which the output of some
        rank is another list object than its input.

        Raises `ValueError` if `check` returns a false value other than None. The same for a custom
        collective that initially has data outside of its inputs. Exceptions of `check` pass
        through.
        """
        collective = self.collective
        kind = find_kind(collective)
        is_custom = kind == "custom"
        outputs = [(buffers[Buffer.input], buffers.get(Buffer.output)) for buffers in self.buffers]
        # Separate lists, even if their contents are equal.
        has_two_buffers = any(output is not None and output is not data for data, output in outputs)
        return Trace(
            name=self.name,
            protocol=self.protocol,
            kind=kind,
            num_ranks=self.num_ranks,
            chunk_factor=collective.chunk_factor,
            root=collective.root,
            is_in_place=bool(collective.inplace),
            has_two_buffers=is_custom and has_two_buffers,
            instances=self.instances,
            is_interleaved=bool(self.interleaved_replication),
            is_manual=self.threadblock_policy is ThreadblockPolicy.manual,
            line=self._line,
            input_sizes=[len(buffers[Buffer.input]) for buffers in self.buffers],
            output_sizes=[len(buffers.get(Buffer.output, ())) for buffers in self.buffers],
            # Only the scratch buffers that operations use, in the order of first use.
            scratch_sizes=[
                [len(buffers[name]) for name in list(numbers)[FIRST_SCRATCH:]]
                for buffers, numbers in zip(self.buffers, self._numbers, strict=True)
            ],
            contract=build_contract(self, self._initial) if is_custom else None,
            operations=self._operations,
        )

    @property
    def instr_dag(self) -> list[Op]:
        """Instructions so far in program order, before fusion and for one instance."""
        return list_instructions(self._operations, self._numbers)

    def _find_destination(self, source: Ref, rank: int, buffer: Hashable, index: int) -> Place:
        """Return the (buffer, index) that stores a copy to `rank`, from arguments of `Ref.copy`.

        `rank` must be valid. The first rule that applies:

        1. `buffer` None: the buffer and index of the source. `ValueError` if `index` is not -1.
        2. `index` -1 with input or output: `ValueError`.
        3. `index` -1 with a scratch buffer: its number of slots, so the copy is appended (0 if the
           rank has no such buffer).
        4. Otherwise `buffer` and `index`. `IndexError` if the index is below -1.

        Then `get_destination` of the collective maps slots of in-place buffers: in an all-gather in
        place with one chunk per rank, input slot 0 becomes the output slot with the number of the
        source rank. Nothing is changed.
        """
        if buffer is None:
            # The public language would create a scratch named None.
            if index != -1:
                raise ValueError(f"copy to index {index} of no buffer: name the buffer too")
            buffer, index = source.buffer, source.index
        elif index == -1:
            # In the public language this would be Python's last element.
            if buffer in (Buffer.input, Buffer.output):
                raise ValueError(f"copy to {_format_buffer(buffer)} without an index: give one")
            index = len(self.buffers[rank].get(buffer, ()))
        if index < 0:
            raise IndexError(
                f"copy to index {index} of {_format_buffer(buffer)}: indices start at 0"
            )
        return self.collective.get_destination(source.rank, rank, buffer, index)

    def _get_values(self, reference: Ref) -> list[Value]:
        """Contents of the slots of a reference. Raises `ValueError` if one is empty."""
        return [self.value(reference, part) for part in range(reference.size)]

    def _prepare_slots(self, target: Ref) -> Slots:
        """Return the list of slots of the target's buffer, long enough for the target.

        This is the list itself, not a copy. A missing scratch buffer is created, and one that is
        too short is extended with empty slots. Raises `KeyError` if the rank has no such input or
        output, and `IndexError` if the input or output is too short.
        """
        buffers = self.buffers[target.rank]
        end = target.index + target.size
        if target.buffer not in (Buffer.input, Buffer.output):
            # Scratch grows when it is written, and may have empty slots.
            slots = buffers.setdefault(target.buffer, [])
            slots.extend([None] * (end - len(slots)))
            return slots
        if target.buffer not in buffers:
            raise KeyError(f"rank {target.rank} has no buffer {_format_buffer(target.buffer)}")
        slots = buffers[target.buffer]
        if end > len(slots):
            raise IndexError(
                _describe_out_of_range(
                    target.rank, target.buffer, target.index, target.size, len(slots)
                )
            )
        return slots

    def _record(self, kind: int, source: Ref, target: Ref, lanes: Lanes) -> None:
        """Append an operation to the trace, with the line of the program that is being executed.

        `kind`: COPY or REDUCE. The operation has the size of `source`. A scratch buffer that is
        used for the first time gets its number (`_locate`). `lanes`: send block, receive block
        and channel, -1 if not given.

        Raises `AssertionError` if source and target are on different ranks and the topology has
        no link from the first to the second, and `ValueError` for a block or channel below -1.
        """
        if source.rank != target.rank:
            assert self.topo.link(source.rank, target.rank), (
                f"No link from {source.rank} to {target.rank}"
            )
        if min(lanes) < -1:
            raise ValueError(
                f"sendtb, recvtb and ch are {lanes}: expected numbers from 0, or -1 if not given"
            )
        line = calling_line(self._file)
        operands = (*self._locate(source), *self._locate(target))
        self._operations.append((kind, *operands, source.size, *lanes, line))

    def _locate(self, reference: Ref) -> Iterable[int]:
        """Return the rank, the buffer number and the index of a reference, as stored in the trace.

        Buffers are numbered per rank: input 0, output 1, then scratch buffers in the order of first
        use. A scratch buffer without a number gets the next one, which is stored.
        """
        numbers = self._numbers[reference.rank]
        # Scratch buffers are numbered by first use.
        number = numbers.setdefault(reference.buffer, len(numbers))
        return reference.rank, number, reference.index

    def _check_rank(self, rank: int) -> None:
        """Check that `rank` is one of the ranks 0 to `num_ranks` - 1 of the program.

        Raises `TypeError` if it is no Python `int`, also for numpy integers (True and False count
        as 1 and 0), and `IndexError` if it is out of range, also if it is negative.
        """
        # Programs for older releases pass the buffer first.
        if not isinstance(rank, int):
            raise TypeError(
                f"{_format_buffer(rank)} is no rank: ranks are numbers; "
                "the order is chunk(rank, buffer, index)"
            )
        if not 0 <= rank < self.num_ranks:
            raise IndexError(f"rank {rank} is not one of ranks 0..{self.num_ranks - 1}")


def _format_buffer(buffer: Hashable) -> str:
    """A buffer as written in programs."""
    return f"Buffer.{buffer.name}" if isinstance(buffer, Buffer) else repr(buffer)


def _describe_out_of_range(rank: int, buffer: Hashable, index: int, size: int, length: int) -> str:
    """Return the message for a reference of `size` slots from `index` on, outside of its buffer.

    `length`: number of slots of the buffer.
    """
    indices = f"index {index}" if size == 1 else f"indices {index}..{index + size - 1}"
    return f"rank {rank}: {_format_buffer(buffer)} has {length} chunks, {indices} is outside"
