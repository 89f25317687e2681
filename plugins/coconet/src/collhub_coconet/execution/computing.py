"""Values on the ranks of a flat program, and the computations and collectives that produce them.

In the steps of a collective, each read must see the version of the data that it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from collhub_coconet.execution.array_operations import (
    Array,
    OnRanks,
    apply_dropout,
    apply_pointwise,
    convolve,
    draw_dropout_mask,
    dtype_of,
    is_float_array,
    mix_operands,
    multiply_matrices,
    reduce_over_ranks,
    reduce_to_scalar,
)
from collhub_coconet.execution.row_operations import KINDS_OF_ONE_RANK, compute_on_rank
from collhub_coconet.lowering.algorithms import INITIAL, Contents
from collhub_coconet.lowering.flat_program import CollectiveRuns, RowRuns, find_viewed_value
from collhub_coconet.lowering.grids import Grid
from collhub_coconet.program.operations import (
    CONTRACTIONS,
    REDUCTIONS_TO_SCALARS,
    Binding,
    Kind,
    LayoutRule,
    Operation,
    Reduction,
    TensorType,
    block_bounds,
)
from collhub_coconet.program.program import Program
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import InputError, StepKind

Payload = list[Array]


def find_elements(kind: TensorType, binding: Binding, position: int) -> Int64Array:
    """Return the row-major indices of the elements that a rank has: int64, ascending.

    The indices refer to the complete tensor. If the tensor is sliced, the rank has one
    block of the sliced dimension: of n elements on p ranks, ceil(n / p), fewer or none in
    the last blocks. Otherwise it has all elements. `position`: of the rank in its group.
    """
    shape = binding.shape(kind.shape)
    if not kind.layout.is_sliced:
        return np.arange(int(np.prod(shape, dtype=np.int64)))
    return Grid(shape, kind.layout.dimension, binding.num_ranks, 1).elements(position)


@dataclass(slots=True)
class Values:
    """Arrays of complete tensors on each rank of the job, with masks of the available elements.

    Views have no arrays: the viewed value is read instead. `pass_through`: by name of a collective,
    the (rank, chunk) pairs of its result that equal its operand; these are read from the operand.
    """

    program: Program
    binding: Binding
    grids: Mapping[str, Grid]
    pass_through: Mapping[str, frozenset[tuple[int, int]]]
    arrays: dict[tuple[str, int], tuple[Array, BoolArray]] = field(default_factory=dict)

    def load(self, arguments: Mapping[str, OnRanks]) -> None:
        """Write the arguments on the ranks of their groups.

        `arguments`: by name one array per rank of the group, as for `simulate_ranks`: the slice of
        the rank if the argument is sliced, else the complete tensor.
        """
        for argument in self.program.arguments:
            ranks = self.binding.ranks_of(argument.type.group)
            for position, part in enumerate(arguments[argument.name]):
                elements = find_elements(argument.type, self.binding, position)
                self.write(argument.name, ranks[position], elements, part.reshape(-1))

    def read(self, name: str, rank: int, elements: Int64Array) -> Array:
        """Return elements of a value on a rank as a new array, in the order of `elements`.

        `rank`: rank of the job. `elements`: indices into the complete tensor in row-major order.
        The array has the element type of the value. A view (`find_viewed_value`) returns elements
        of the value that it shows.

        Elements of the result of a collective that were not written on the rank are read from its
        first operand, but only if all of them are in chunks that the collective leaves unchanged on
        this rank (`pass_through`). For any other missing element, also of an argument, `InputError`
        (`not-there`) is raised with the first one. The first access to a value on a rank allocates
        its arrays, with no element available.
        """
        operation = self.program.by_name.get(name)
        source = None if operation is None else find_viewed_value(self.program, operation)
        if source is not None:
            return self.read(source, rank, elements)
        array, is_available = self._cells(name, rank)
        is_missing = ~is_available[elements]
        if not is_missing.any():
            return array[elements]
        unchanged = self.pass_through.get(name, frozenset())
        chunks = [self.grids[name].elements(chunk) for owner, chunk in unchanged if owner == rank]
        if (
            operation is None
            or not chunks
            or not np.isin(elements[is_missing], np.concatenate(chunks)).all()
        ):
            element = int(elements[np.argmax(is_missing)])
            message = f"rank {rank} reads element {element} of {name} before it is there"
            cure = "a dependency is missing"
            raise InputError(message, cure=cure, code="not-there")
        values = array[elements]
        values[is_missing] = self.read(operation.reads[0], rank, elements[is_missing])
        return values

    def write(self, name: str, rank: int, elements: Int64Array, values: Array) -> None:
        """Write elements of a value on a rank, and mark them as available.

        `elements`: their indices in the complete tensor; `values`: in the same order. Elements that
        are available already are replaced.
        """
        array, is_available = self._cells(name, rank)
        array[elements] = values
        is_available[elements] = True

    def on_rank(self, name: str, position: int) -> Array:
        """Return all elements that a rank has of a value, as a new array.

        It has the shape of the rank's block if the value is sliced, otherwise the complete shape.
        `position`: rank within the group of the value, from 0. Raise `InputError` (`not-there`) if
        one of these elements is not available.
        """
        kind = self.program.types[name]
        elements = find_elements(kind, self.binding, position)
        rank = self.binding.ranks_of(kind.group)[position]
        shape = list(self.binding.shape(kind.shape))
        if kind.layout.is_sliced:
            width = int(np.prod(shape, dtype=np.int64)) // shape[kind.layout.dimension]
            shape[kind.layout.dimension] = len(elements) // width
        return self.read(name, rank, elements).reshape(shape)

    def _cells(self, name: str, rank: int) -> tuple[Array, BoolArray]:
        key = name, rank
        if key not in self.arrays:
            kind = self.program.types[name]
            count = self.binding.elements(kind.shape)
            self.arrays[key] = np.zeros(count, dtype_of(kind.element)), np.zeros(count, np.bool_)
        return self.arrays[key]


def compute_elements(
    values: Values, operation: Operation, rank: int, elements: Int64Array
) -> Array:
    """Return elements of the result of a computation on a rank, from values available there.

    `rank`: of the job. `elements`: flat row-major indices into the complete result. The result is a
    new array in their order, with the element type of the operation. By kind:

    - Reduction to a scalar: `elements` is ignored. The result has one element, the reduction of the
      rank's part of the operand.
    - Contraction, Transpose, Cast, pointwise operation: only the required elements of the operands
      are read. Named operands are broadcast to the shape of the result.
    - Dropout: the mask depends only on seed and index, so all ranks drop the same elements.
    - Update: the elements of the second operand.
    - `KINDS_OF_ONE_RANK` and opaque operations: the rank's parts of all operands are read.
      `elements` must be in the rank's part of the result (not checked). Opaque views between local
      values and blocks read only the required elements of the first operand.

    Raises `InputError` (`not-there`) if a required element of an operand is not available yet.
    """
    if operation.kind in REDUCTIONS_TO_SCALARS:
        name = operation.reads[0]
        position = rank % values.binding.num_ranks
        return reduce_to_scalar(operation.kind, [values.on_rank(name, position)]).reshape(1)
    if operation.kind in CONTRACTIONS:
        return _CONTRACTIONS[operation.kind](values, operation, rank, elements)
    if operation.kind is Kind.TRANSPOSE:
        # Find the elements of the operand that become these elements of a transposed tensor.
        rows, columns = values.binding.shape(values.program.types[operation.name].shape)[-2:]
        row, column = np.divmod(elements, columns)
        member, row = np.divmod(row, rows)
        elements_of_operand: Int64Array = (member * columns + column) * rows + row
        return values.read(operation.reads[0], rank, elements_of_operand)
    if operation.kind is Kind.UPDATE:
        return values.read(operation.reads[1], rank, elements)
    if operation.kind in KINDS_OF_ONE_RANK:
        position = rank % values.binding.num_ranks
        operands = [values.on_rank(name, position) for name in operation.reads]
        result = compute_on_rank(values.program, values.binding, operation, operands, position)
        kind = values.program.types[operation.name]
        # The elements of a rank ascend in the order of its array.
        available = find_elements(kind, values.binding, position)
        return result.reshape(-1)[np.searchsorted(available, elements)]
    if operation.kind is Kind.OPAQUE:
        return _compute_opaque(values, operation, rank, elements)
    if operation.kind is Kind.DROPOUT:
        keep = draw_dropout_mask(
            elements.astype(np.uint64), operation.rate or 0.0, operation.seed or 0
        )
        read = values.read(operation.reads[0], rank, elements)
        return apply_dropout(read, keep, operation.rate or 0.0)
    operands = [
        _read_operand(values, operation, operand, rank, elements) for operand in operation.operands
    ]
    if operation.kind is Kind.CAST:
        return operands[0].astype(dtype_of(operation.element))
    return apply_pointwise(operation.kind, operands)


def _compute_opaque(values: Values, operation: Operation, rank: int, elements: Int64Array) -> Array:
    """Return elements of the result of an unknown operator on a rank, as a new array.

    `rank`: rank of the job. `elements`: flat row-major indices into the complete result, which must
    be in the rank's part of it (not checked); the array has their order.

    With the rules TO_BLOCKS and TO_LOCAL (views between local values and blocks), the result has
    the values of the first operand: the i-th element of the rank's part of the result is the i-th
    element of the rank's part of the operand. With other rules it is a stand-in (`mix_operands`)
    computed from the rank's parts of all operands. The seed of the stand-in is the rank's position
    in the group for the rule RANDOM, else 0.

    Raises `InputError` (`not-there`) if a required element of an operand is not available.
    """
    binding, kind = values.binding, values.program.types[operation.name]
    position, shape = rank % binding.num_ranks, binding.shape(kind.shape)
    if operation.rule in (LayoutRule.TO_BLOCKS, LayoutRule.TO_LOCAL):
        elements_of = {}
        for name in (operation.name, operation.reads[0]):
            elements_of[name] = find_elements(values.program.types[name], binding, position)
        positions = np.searchsorted(elements_of[operation.name], elements)
        return values.read(operation.reads[0], rank, elements_of[operation.reads[0]][positions])
    operands = [values.on_rank(name, position) for name in operation.reads]
    if kind.layout.is_sliced:
        dimension = kind.layout.dimension
        first, last = block_bounds(shape[dimension], binding.num_ranks, position)
        shape = (*shape[:dimension], last - first, *shape[dimension + 1 :])
    seed = position if operation.rule is LayoutRule.RANDOM else 0
    result = mix_operands(operation, seed, operands, shape, kind).reshape(-1)
    return result[np.searchsorted(find_elements(kind, binding, position), elements)]


def compute_partial(values: Values, operation: Operation, rank: int) -> Array:
    """Return a rank's contribution to a norm, sum or maximum of a tensor: an array of one element.

    It is computed from all elements that the rank has. The contributions of all ranks are
    reduced later, and `finish_scalar` converts the result to the scalar. The contribution to a
    norm is the sum of squares. Floats are converted to float64; integers keep their type, in
    which sums may overflow. An empty block gives 0, for a maximum the lowest number of the type
    (-inf for floats). `rank`: rank of the job; modulo the ranks of a group it is the position.
    Raise `InputError` (`not-there`) if the block is not available.
    """
    name = operation.reads[0]
    block = values.on_rank(name, rank % values.binding.num_ranks)
    wide = block.astype(np.float64) if is_float_array(block) else block
    if operation.kind is Kind.MAX:
        lowest = -np.inf if wide.dtype.kind == "f" else np.iinfo(str(wide.dtype)).min
        return np.asarray(wide.max(initial=lowest)).reshape(1)
    terms = wide * wide if operation.kind is Kind.NORM else wide
    return np.asarray(np.sum(terms, dtype=wide.dtype)).reshape(1)


def finish_scalar(operation: Operation, total: Array, dtype: np.dtype[np.generic]) -> Array:
    """Convert the reduction of the parts of all ranks to the final scalar of type `dtype`.

    `total`: the reduction, an array of one element, usually in float64. For a norm, it is
    the sum of squares, and the result is its square root; for other kinds, the result is
    the same number. The result is a new array of the same shape.
    """
    root = np.sqrt(total) if operation.kind is Kind.NORM else total
    return np.asarray(root).astype(dtype)


@dataclass(slots=True)
class CollectiveRun:
    """Execution of one piece of a collective.

    `versions`, `results`: from `collect_versions` and `collect_results`. `cells`: by address, the
    row that wrote it last and its values. `initial(rank, chunk)`: returns a chunk of the operand.
    `deliver(rank, chunk, values)`: accepts a chunk of the result. `mail`: messages in flight, by
    (source, destination, tag). `received`: messages by row, until their step is complete.
    """

    part: CollectiveRuns | RowRuns
    piece: int
    versions: dict[tuple[int, int], int]
    results: dict[int, list[tuple[int, int]]]
    initial: Callable[[int, int], Array]
    deliver: Callable[[int, int, Array], None]
    mail: dict[tuple[int, int, int], Payload]
    cells: dict[int, tuple[int, Array]] = field(default_factory=dict)
    received: dict[int, Payload] = field(default_factory=dict)

    def step(self, node: int, rank: int, peer: int, tag: int) -> None:
        """Execute a node of the collective's algorithm on a rank.

        `node`: its number in the template of the algorithm. A step has one node, or two for a
        receive with a reduction: the first one receives, the second one reduces. `rank`: of the
        node; `peer`: rank at the other end of a message. By node:

        - A delay (COMPUTE) does nothing.
        - A send reads its units, and stores them in `self.mail` under (sender, receiver, tag).
        - A receive removes them from there. Raises `InputError` (`not-there`) if there are none.
        - The last node of any step that is no send or delay writes its destination cells. It passes
          each unit of the result that is then final to `self.deliver`, as a chunk.

        Also raises `InputError` (`not-there`) if a cell that a step reads has another version than
        the one on which the step depends.
        """
        contents = self.part.contents
        row = int(np.searchsorted(contents.last, node))
        kind = StepKind(int(contents.algorithm.steps.kind[row]))
        # A delay, which accesses no unit.
        if kind is StepKind.COMPUTE:
            return
        if kind is StepKind.SEND:
            self.mail[rank, peer, tag] = self._read(row, int(contents.source[row]))
            return
        if node != contents.last[row] or kind is StepKind.RECV:
            message = f"rank {rank} receives from rank {peer} what has not been sent"
            if (peer, rank, tag) not in self.mail:
                raise InputError(message, cure="a dependency is missing", code="not-there")
            self.received[row] = self.mail.pop((peer, rank, tag))
        if node == contents.last[row]:
            first = int(contents.destination[row])
            for offset, values in enumerate(self._compute(row, kind)):
                self.cells[first + offset] = row, values
            for unit, address in self.results.get(node, ()):
                chunk = self.part.find_chunk(self.piece, unit, rank, is_given=True)
                self.deliver(rank, chunk, self.cells[address][1])

    def _compute(self, row: int, kind: StepKind) -> Payload:
        """Return the values that a step writes, one array per unit, by kind of the step.

        - RECV: the received values, which are removed from `self.received` (`KeyError` without
          them).
        - COPY: the values of its source.
        - REDUCE: the values at its destination combined with those at its source.
        - Receive with a reduction: the received values, which are removed from `self.received`,
          combined with those at its source. Raises `InputError` (`not-there`) without received
          values.

        Values are combined in the named order, element by element in their type. The operator is
        that of the collective, or a sum if it has none. For a Max of slices that are reduced to a
        scalar it is the maximum. Raises `InputError` (`not-there`) if a cell that is read has
        another version than the one on which the step depends.
        """
        contents = self.part.contents
        if kind is StepKind.RECV:
            return self.received.pop(row)
        local = self._read(row, int(contents.source[row]))
        if kind is StepKind.COPY:
            return local
        if kind is StepKind.REDUCE:
            addend = self._read(row, int(contents.destination[row]))
        elif row in self.received:
            addend = self.received.pop(row)
        else:
            message = "a reduction has nothing that was received"
            raise InputError(message, cure="a dependency is missing", code="not-there")
        operation = self.part.operation
        reduction = operation.reduction or Reduction.SUM
        if self.part.is_scalar and operation.kind is Kind.MAX:
            reduction = Reduction.MAX
        return [reduce_over_ranks([*pair], reduction) for pair in zip(addend, local, strict=True)]

    def _read(self, row: int, first: int) -> Payload:
        """Return the units that a step reads, one array per unit, from the address `first` on.

        `row`: the step; it reads as many units as its count. Each address must have the version
        that `self.versions` requires: the row of the step that wrote it last, or `INITIAL`. A
        unit that no step has written is read from the operand of the collective. Raise
        `InputError` (`not-there`) if an address has another version.
        """
        contents = self.part.contents
        steps = contents.algorithm.steps
        rank = int(steps.rank[row])
        rank_of_job = rank + self.part.first_rank
        units: Payload = []
        for address in range(first, first + int(steps.count[row])):
            expected = self.versions[row, address]
            version, values = self.cells.get(address, (INITIAL, None))
            if version != expected:
                cause = "another step has to write first"
                if expected == INITIAL:
                    cause = "is overwritten already"
                message = f"step {row} of rank {rank} reads a unit that {cause}"
                raise InputError(message, cure="a dependency is missing", code="not-there")
            if values is None:
                unit = int(contents.input_of[address])
                chunk = self.part.find_chunk(self.piece, unit, rank_of_job, is_given=False)
                values = self.initial(rank_of_job, chunk)
            units.append(values)
        return units


def collect_versions(contents: Contents) -> dict[tuple[int, int], int]:
    """Map (row, address) of every read of an algorithm to the version that it must see.

    A version is the row of the step that writes the address last before this read, in the
    order of rows, or `INITIAL` (-1) if no earlier step writes it.
    """
    reads = contents.reads
    keys = zip(reads.row.tolist(), reads.address.tolist(), strict=True)
    return dict(zip(keys, reads.version.tolist(), strict=True))


def collect_results(contents: Contents) -> dict[int, list[tuple[int, int]]]:
    """Map each node to the units of the result that it completes, as (unit, address) pairs.

    `unit` is a unit of the full buffer; `address` is a cell of an OUTPUT in the memory of all
    ranks. A node completes an address if it is the last one that writes it. Pairs of a node
    are in ascending order of addresses. Addresses that no node writes are left out, and nodes
    that complete no address have no entry.
    """
    results: dict[int, list[tuple[int, int]]] = {}
    columns = (contents.give_node, contents.give_unit, contents.give_address)
    for node, unit, address in zip(*(column.tolist() for column in columns), strict=True):
        if node >= 0:
            results.setdefault(node, []).append((unit, address))
    return results


def _read_operand(
    values: Values, operation: Operation, operand: str | float, rank: int, elements: Int64Array
) -> Array:
    """Read one operand of an operation on a rank, at given elements of the result.

    `elements`: indices into the complete result in row-major order. The kind of operand
    decides:

    - A name: the value is broadcast to the shape of the result. A new flat array has its
      values at `elements`, in this order. Raises `InputError` (`not-there`) if one of them is
      not available on the rank.
    - A number: it is returned as an array without dimensions. Its type is that of the
      operation's first named operand. The condition of a Select does not count. At least one
      operand that counts must be a name.
    """
    types = values.program.types
    if not isinstance(operand, str):
        # The condition of a Select is bool; its values determine the type of the numbers.
        candidates = operation.operands[1:] if operation.kind is Kind.SELECT else operation.operands
        name = next(candidate for candidate in candidates if isinstance(candidate, str))
        return np.asarray(operand, dtype_of(types[name].element))
    shape = values.binding.shape(types[operand].shape)
    indices = np.arange(prod(shape)).reshape(shape)
    result = values.binding.shape(types[operation.name].shape)
    return values.read(operand, rank, np.broadcast_to(indices, result).reshape(-1)[elements])


def _find_terms(
    values: Values, operation: Operation, rank: int, size: int, axis: int
) -> Int64Array:
    """Return the indices along the contracted dimension that a rank has: int64, ascending.

    If the first operand is sliced along the dimension `axis`, they are the rank's block of
    the `size` indices; otherwise they are all. `rank`: of the job; its position in the
    group is `rank` modulo the number of ranks of a group.
    """
    layout = values.program.types[operation.reads[0]].layout
    if layout.is_sliced and layout.dimension == axis:
        count = values.binding.num_ranks
        return np.arange(*block_bounds(size, count, rank % count))
    return np.arange(size)


def _compute_product(
    values: Values, operation: Operation, rank: int, elements: Int64Array
) -> Array:
    """Return elements of a matrix product on a rank, as a flat array in the order of `elements`.

    `rank`: rank of the job. `elements`: flat row-major indices into the result; dimensions of the
    left operand before its last one count as rows. Terms are added one by one, in ascending order,
    in the element type of the left operand. If the left operand is sliced along its last dimension,
    only the terms of the rank's slice are added, which gives the rank's part of the sum. All rows
    of the left operand and all columns of the right one that an element needs are read. Raises
    `InputError` (`not-there`) if a read element is not available.
    """
    x, w = (values.program.types[name] for name in operation.reads)
    size, width = values.binding.shape(w.shape)
    row, column = np.divmod(elements, width)
    rows, row_at = np.unique(row, return_inverse=True)
    columns, column_at = np.unique(column, return_inverse=True)
    terms = _find_terms(values, operation, rank, size, len(x.shape) - 1)
    left = (rows[:, None] * size + terms).reshape(-1)
    right = (terms[:, None] * width + columns).reshape(-1)
    result = multiply_matrices(
        values.read(operation.reads[0], rank, left).reshape(len(rows), len(terms)),
        values.read(operation.reads[1], rank, right).reshape(len(terms), len(columns)),
    )
    return np.asarray(result[row_at, column_at])


def _compute_batch_product(
    values: Values, operation: Operation, rank: int, elements: Int64Array
) -> Array:
    """Return elements of a batch of matrix products on a rank, flat, in the order of `elements`.

    `rank`: rank of the job. `elements`: flat row-major indices into the result. Leading dimensions
    of the operands are the batch, in which both agree. Terms are added one by one, in ascending
    order, in the element type of the left operand. If the left operand is sliced along the
    contracted dimension, the result is only the sum of the terms of the rank's slice. Only the
    needed elements of the operands are read. Raises `InputError` (`not-there`) if one of them is
    not available.
    """
    x, w = (values.program.types[name] for name in operation.reads)
    rows, size = values.binding.shape(x.shape)[-2:]
    width = values.binding.shape(w.shape)[-1]
    # The rows of all members of the batch are numbered consecutively.
    row, column = np.divmod(elements, width)
    member = row // rows
    result = np.zeros(len(elements), dtype_of(x.element))
    for term in _find_terms(values, operation, rank, size, len(x.shape) - 1):
        left = values.read(operation.reads[0], rank, row * size + term)
        right = values.read(operation.reads[1], rank, (member * size + term) * width + column)
        result += left * right
    return result


def _compute_convolution(
    values: Values, operation: Operation, rank: int, elements: Int64Array
) -> Array:
    """Return elements of a convolution on a rank, as a flat array in the order of `elements`.

    `rank`: rank of the job. `elements`: flat row-major indices into the result [images, output
    channels, positions]. Positions are those of the left operand, which is padded with zeros. Terms
    are added one by one in the element type of the left operand, by input channel, then by position
    in the window (`convolve`). If the left operand is sliced along the input channels, only the
    terms of the rank's slice are added. This gives the rank's part of the sum.

    All images and all output channels that contain an element are convolved completely; then the
    elements are selected. Raises `InputError` (`not-there`) if a read element is not available.
    """
    x, w = (values.program.types[name] for name in operation.reads)
    shape, window = values.binding.shape(x.shape), values.binding.shape(w.shape)
    pixels = prod(shape[2:])
    image, offset = np.divmod(elements, window[0] * pixels)
    channel, pixel = np.divmod(offset, pixels)
    images, image_at = np.unique(image, return_inverse=True)
    channels, channel_at = np.unique(channel, return_inverse=True)
    terms = _find_terms(values, operation, rank, shape[1], 1)
    left = (images[:, None, None] * shape[1] + terms[:, None]) * pixels + np.arange(pixels)
    places = np.arange(prod(window[2:]))
    right = (channels[:, None, None] * window[1] + terms[:, None]) * len(places) + places
    result = convolve(
        values.read(operation.reads[0], rank, left.reshape(-1)).reshape(
            len(images), len(terms), *shape[2:]
        ),
        values.read(operation.reads[1], rank, right.reshape(-1)).reshape(
            len(channels), len(terms), *window[2:]
        ),
    )
    flat = result.reshape(len(images), len(channels), pixels)
    return np.asarray(flat[image_at, channel_at, pixel])


_CONTRACTIONS = {
    Kind.MATMUL: _compute_product,
    Kind.BATCH_MATMUL: _compute_batch_product,
    Kind.CONV: _compute_convolution,
}


"""Arrays of the units of a message."""
