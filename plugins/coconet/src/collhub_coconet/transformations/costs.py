"""Costs of a program on one rank: bytes sent, memory traffic, arithmetic, states, launches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import prod

from collhub_coconet.program.operations import (
    CONTRACTIONS,
    POINTWISE,
    REDUCTIONS_TO_SCALARS,
    UNEVEN_COLLECTIVES,
    VIEWS,
    Binding,
    Kind,
    Operation,
)
from collhub_coconet.program.program import Program, count_ranks
from collhub_coconet.program.shape_rules import find_axes
from collhub_coconet.program.uneven_rows import compute_byte_counts

_REDUCING_ROWS = frozenset(
    {Kind.ROW_REDUCE, Kind.ARG_MAX, Kind.TOP_VALUES, Kind.TOP_INDICES, Kind.SCATTER}
)
# An Index only uses the shape of its operand; the rows that a Gather reads are counted separately.
_UNREAD_FIRST_OPERANDS = frozenset({Kind.GATHER, Kind.INDEX})


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of one run on one rank; if blocks differ in length, on a rank with the longest block.

    `sent_bytes`: sent over links, if collectives use ring algorithms. `memory_bytes`: read and
    written by kernels. `operations`: arithmetic operations; the multiplication and the addition in
    a contraction count as two. `state_bytes`: size of the states. `kernels`: number of launches.
    """

    sent_bytes: int
    memory_bytes: int
    operations: int
    state_bytes: int
    kernels: int

    def as_fields(self) -> dict[str, int]:
        """Return the costs by name; names have blanks in place of underscores, such as
        `sent bytes`.
        """
        return {name.replace("_", " "): value for name, value in asdict(self).items()}

    def __sub__(self, other: Costs) -> Costs:
        return Costs(
            self.sent_bytes - other.sent_bytes,
            self.memory_bytes - other.memory_bytes,
            self.operations - other.operations,
            self.state_bytes - other.state_bytes,
            self.kernels - other.kernels,
        )


def costs(program: Program, binding: Binding) -> Costs:
    """Return the costs of one run of a program on the rank with the longest blocks.

    They are, at the sizes in `binding`: the bytes that are sent, the bytes that are read
    and written in memory, the arithmetic operations, the bytes of the states, and the
    number of launched kernels. Kernels of views and other operations without a kernel
    (`is_free`) are not launched. Raise `InputError` for a symbol without a size, for
    invalid counts of an uneven collective, and for stages that wait for each other.
    """
    kernels = program.kernels()
    states = (argument.type for argument in program.states.values())
    return Costs(
        sum(_count_sent_bytes(program, operation, binding) for operation in program.operations),
        sum(count_memory_bytes(program, kernel, binding) for kernel in kernels),
        sum(count_operations(program, operation, binding) for operation in program.operations),
        sum(binding.bytes_of_rank(state) for state in states),
        sum(not all(operation.is_free for operation in kernel) for kernel in kernels),
    )


def _count_sent_bytes(program: Program, operation: Operation, binding: Binding) -> int:
    """Count the bytes that a rank sends for an operation with a ring algorithm.

    p is the number of ranks, and n the bytes of the complete result of the operation. The first
    rule that applies decides:
    1. AllGatherV and ReduceScatterV: p - 1 times the bytes of the largest part. AllToAllV: the
       maximum, over all ranks, of the bytes that a rank sends to other ranks.
    2. On a mesh of several axes: `_count_mesh_bytes`.
    3. Send: the bytes of the result on one rank, for blocks of unequal length the longest.
    4. Norm, Sum and Max (reductions to a scalar): 2 floor(n (p - 1) / p) if the operand is sliced,
       else 0.
    5. AllReduce: 2 floor(n (p - 1) / p).
    6. AllToAll: floor(n (p - 1) / p) / p, rounded down.
    7. Other collectives (AllGather, ReduceScatter, Broadcast, Reduce): floor(n (p - 1) / p).
    8. Computations: 0.

    Raises `InputError` for a symbol without a number (`symbol`), and if the counts of an uneven
    collective have more than 2^62 bytes (`size`).
    """
    tensor = program.types[operation.name]
    if operation.kind in UNEVEN_COLLECTIVES:
        counts = compute_byte_counts(program, binding, operation)
        if counts.is_per_pair:
            # A rank sends its row of the table without the part for itself.
            return int((counts.table.sum(axis=1) - counts.table.diagonal()).max())
        # A ring sends p - 1 parts, and all count as the longest one.
        return (counts.num_ranks - 1) * int(counts.table.max())
    if tensor.layout.axes:
        return _count_mesh_bytes(program, operation, binding)
    tensor_bytes = binding.elements(tensor.shape) * tensor.element.element_bytes
    ring_bytes = tensor_bytes * (binding.num_ranks - 1) // binding.num_ranks
    if operation.kind is Kind.SEND:
        return binding.bytes_of_rank(tensor)
    if operation.kind in REDUCTIONS_TO_SCALARS:
        is_sliced = program.types[operation.reads[0]].layout.is_sliced
        return 2 * ring_bytes if is_sliced else 0
    if operation.kind is Kind.ALL_REDUCE:
        return 2 * ring_bytes
    if operation.kind is Kind.ALL_TO_ALL:
        # A rank sends p - 1 of the p parts of its block.
        return ring_bytes // binding.num_ranks
    return ring_bytes if operation.is_communication else 0


def _count_mesh_bytes(program: Program, operation: Operation, binding: Binding) -> int:
    """Return the bytes that a rank sends for an operation on a mesh of several axes.

    p is the product of the sizes of the operation's axes. The kind of the operation decides:

    - Send: the bytes of the result on a rank.
    - AllReduce: 2 floor(n (p - 1) / p), where n is the larger number of bytes on a rank of
      the first operand and the result.
    - Other collectives: floor(n (p - 1) / p).
    - Reduction to a scalar: 2 floor(s (p - 1) / p), where s are the bytes of the scalar. This
      is 0 if no axis slices the operand, because p is then 1.
    - Other computations: 0.
    """
    tensor = program.types[operation.name]
    if operation.kind is Kind.SEND:
        return binding.bytes_of_rank(tensor)
    is_scalar = operation.kind in REDUCTIONS_TO_SCALARS
    if not operation.is_communication and not is_scalar:
        return 0
    ranks = count_ranks(program, binding, operation)
    operand = tensor if is_scalar else program.types[operation.reads[0]]
    longest = max(binding.bytes_of_rank(tensor), binding.bytes_of_rank(operand))
    rounds = 2 if is_scalar or operation.kind is Kind.ALL_REDUCE else 1
    return rounds * (longest * (ranks - 1) // ranks)


def count_memory_bytes(
    program: Program,
    kernel: Sequence[Operation],
    binding: Binding,
    same_kernel: Iterable[str] = (),
) -> int:
    """Count the bytes of memory that operations of one kernel read and write on a rank.

    If the kernel has opaque operations, the result is the sum of their declared traffic; other
    operations are ignored. The traffic of each (None is 0) is divided by the number of ranks that
    slice its result, rounded up.

    Otherwise the result is the sum of these values, each with the bytes of its longest part on a
    rank. Views (Slice, Reshape, Part) do not count as operations, but their values are in memory:

    - each distinct operand that is a view, or that no operation of the kernel computes. The first
      operand of a Gather or Index is ignored.
    - each result that is an output, of an Update, or read by an operation outside the kernel
    - the result of each Gather once more, for the rows that it reads

    `same_kernel`: names of further operations of the kernel. They add nothing, and their values,
    also of views, are not in memory. An empty kernel gives 0. Raises `InputError` (`symbol`) for a
    symbol without a number.
    """
    opaque = [operation for operation in kernel if operation.kind is Kind.OPAQUE]
    if opaque:
        # An opaque operation is a kernel of its own, and states its traffic.
        return sum(_divide_by_ranks(program, entry, entry.traffic, binding) for entry in opaque)
    inside = {operation.name for operation in kernel}.union(same_kernel)
    computing, in_registers = [], set(inside)
    for operation in kernel:
        if operation.kind in VIEWS:
            in_registers.discard(operation.name)
        else:
            computing.append(operation)
    read = {
        name
        for operation in computing
        for name in operation.reads[operation.kind in _UNREAD_FIRST_OPERANDS :]
        if name not in in_registers
    }
    # A Gather reads as many rows as it writes.
    gathered = [entry.name for entry in kernel if entry.kind is Kind.GATHER]
    written = set()
    for operation in computing:
        readers = program.readers.get(operation.name, ())
        is_read = any(reader.name not in inside for reader in readers)
        if is_read or operation.name in program.output_names or operation.kind is Kind.UPDATE:
            written.add(operation.name)
    counted = [*gathered, *(read | written)]
    return sum(binding.bytes_of_rank(program.types[name]) for name in counted)


def count_operations(program: Program, operation: Operation, binding: Binding) -> int:
    """Count the arithmetic operations of an operation on the rank with the longest block.

    Elements are those of the longest block of a rank. The first rule that applies decides:

    - A contraction counts 2 per multiplication: 2 x elements of the result x terms of a sum. The
      terms are the size of the summed dimension, for a convolution times the positions of the
      kernel. If the first operand is sliced along that dimension, they are divided by the ranks,
      rounded up.
    - A reduction to a scalar or of rows, a top-k and a Scatter count 1 per element of the last
      operand.
    - An opaque operation counts its declared work, divided by the ranks that slice its result and
      rounded up; 0 without declared work.
    - A pointwise operation counts 1 per element of its result.
    - All other kinds count 0.

    Raises `InputError` (`symbol`) for a symbol without a number.
    """
    if operation.kind in CONTRACTIONS:
        # Count the multiplications of a contraction on a rank with the longest block.
        x, w = (program.types[name] for name in operation.reads)
        axes = find_axes(operation.kind, len(x.shape))
        terms = binding.shape(x.shape)[axes.x_sum]
        if operation.kind is Kind.CONV:
            terms *= prod(binding.shape(w.shape[2:]))
        result = program.types[operation.name]
        for layout, ranks in zip(x.layout.by_axis, binding.axis_sizes, strict=False):
            if layout.is_sliced and layout.dimension == axes.x_sum:
                terms = -(-terms // ranks)
        return 2 * (binding.elements_of_rank(result) * terms)
    if operation.kind in REDUCTIONS_TO_SCALARS | _REDUCING_ROWS:
        return binding.elements_of_rank(program.types[operation.reads[-1]])
    if operation.kind is Kind.OPAQUE:
        return _divide_by_ranks(program, operation, operation.work, binding)
    if operation.kind in POINTWISE:
        return binding.elements_of_rank(program.types[operation.name])
    return 0


def _divide_by_ranks(
    program: Program, operation: Operation, amount: int | None, binding: Binding
) -> int:
    """Return `amount` (work or traffic) divided by the ranks that slice the result, rounded up.

    None counts as 0.
    """
    layouts = zip(program.types[operation.name].layout.by_axis, binding.axis_sizes, strict=False)
    parts = prod(ranks for layout, ranks in layouts if layout.is_sliced)
    return -(-(amount or 0) // parts)
