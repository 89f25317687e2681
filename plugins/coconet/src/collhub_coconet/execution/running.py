"""Execute the nodes of a flat program on arrays, in any order that the dependencies allow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from collhub_coconet.execution.array_operations import (
    Array,
    OnRanks,
    distribute,
    dtype_of,
    find_largest_term,
    get_epsilon,
    is_float_array,
    is_same,
)
from collhub_coconet.execution.comparison import compare, draw_arguments
from collhub_coconet.execution.computing import (
    CollectiveRun,
    Payload,
    Values,
    collect_results,
    collect_versions,
    compute_elements,
    compute_partial,
    find_elements,
    finish_scalar,
)
from collhub_coconet.execution.ranks import SimulatedRun, simulate_ranks
from collhub_coconet.execution.row_runs import (
    UnitRows,
    count_row_elements,
    find_terms,
    find_unfilled,
    locate_units,
)
from collhub_coconet.lowering.flat_program import (
    CollectiveRuns,
    FlatProgram,
    KernelSegment,
    Message,
    RowRuns,
    find_viewed_value,
)
from collhub_coconet.lowering.grids import Grid
from collhub_coconet.program.operations import Kind, Operation, Reduction
from collhub_coconet.program.program import Program
from hub_core.columns import Int64Array, csr
from hub_core.model import InputError, NodeKind, Workload, connection_keys, pair_in_order


def draw_order(workload: Workload, seed: int) -> Iterator[int]:
    """Yield the rows of a workload in a random order, each after all rows that it waits for.

    A row waits for its data and control dependencies, and a receive for its send (see
    `find_waiting_edges`). `seed` determines the order. The next row is any of the ready ones, with
    equal probabilities. If nodes wait for each other, `InputError` (`deadlock`) is raised after all
    rows that can run.
    """
    parents, children = find_waiting_edges(workload)
    count = len(workload.nodes)
    indptr, followers = csr(parents, children, count)
    starts, targets = indptr.tolist(), followers.tolist()
    missing = np.bincount(children, minlength=count).tolist()
    ready = [row for row in range(count) if not missing[row]]
    generator = np.random.default_rng(seed)
    done = 0
    while ready:
        index = int(generator.integers(len(ready)))
        ready[index], ready[-1] = ready[-1], ready[index]
        row = ready.pop()
        done += 1
        yield row
        for follower in targets[starts[row] : starts[row + 1]]:
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    if done < count:
        message = f"{count - done} nodes wait for one another"
        raise InputError(message, code="deadlock")


def find_waiting_edges(workload: Workload) -> tuple[Int64Array, Int64Array]:
    """Return all edges along which nodes wait, as arrays of rows (parents, children).

    Dependencies come first, data and control in the order of `nodes.edges()`: by child row.
    Messages follow, by ascending row of the send. A message is an edge from a send to its
    receive: in row order, the k-th send and the k-th receive with the same source, destination
    and tag belong together. Surplus sends or receives have no edge.
    """
    nodes = workload.nodes
    sends = np.flatnonzero(nodes.is_kind(NodeKind.SEND))
    receives = np.flatnonzero(nodes.is_kind(NodeKind.RECV))
    rows = np.concatenate([sends, receives])
    is_send = np.arange(len(rows)) < len(sends)
    rank, peer = nodes.rank[rows], nodes.peer[rows]
    endpoints = np.where(is_send, rank, peer), np.where(is_send, peer, rank)
    keys = connection_keys(*endpoints, nodes.tag[rows])
    pairs = pair_in_order(sends, receives, keys[: len(sends)], keys[len(sends) :])
    parents, children = nodes.edges()
    return np.concatenate([parents, pairs.send]), np.concatenate([children, pairs.receive])


# Collectives that reduce nothing.
_MOVING = frozenset(
    {
        *(Kind.ALL_GATHER, Kind.ALL_TO_ALL, Kind.BROADCAST),
        *(Kind.ALL_GATHER_V, Kind.ALL_TO_ALL_V),
    }
)
_ROUNDING_REDUCTIONS = (Reduction.SUM, Reduction.PROD, None)


@dataclass(frozen=True, slots=True)
class Execution:
    """Result of an execution.

    `values`: of all operations by name, one array per rank of the group. `differences`:
    descriptions; empty if all values are equal. `errors`: the largest error of each reduction over
    ranks, divided by its bound. `nodes`: number of executed nodes.
    """

    values: Mapping[str, OnRanks]
    differences: tuple[str, ...]
    errors: Mapping[str, float]
    nodes: int

    @property
    def ok(self) -> bool:
        """Whether there are no differences."""
        return not self.differences


def execute_and_compare(before: Program, flat: FlatProgram, seed: int = 0) -> Execution:
    """Execute a flat program on random arguments, and compare it with its original program.

    First `flat.program` is compared with `before` by `compare`. Then every value of the execution
    is compared with a simulation of `flat.program`. A float reduction over ranks, which adds in
    another order, must be within 4 eps p max|terms|, for p ranks of a group and the contributions
    of these ranks as terms. The execution continues with the expected value. All other values must
    be equal bit by bit. `seed` determines the arguments and the order of nodes.

    Deviations raise no error: `differences` of the result has those of the first comparison, then
    those of the execution. Raises `InputError` (`mesh`) for a mesh of several axes, `InputError`
    (`deadlock`) if nodes wait for each other, and `InputError` if a node reads data that are not
    available or if layouts do not fit the ranks.
    """
    program, binding = flat.program, flat.binding
    comparison = compare(before, program, binding, seed)
    data = draw_arguments(before, binding, seed)
    arguments = {
        argument.name: distribute(
            data[argument.name], flat.program.types[argument.name], flat.binding
        )
        for argument in program.arguments
    }
    expected = simulate_ranks(program, binding, arguments)
    execution = execute(flat, arguments, seed, expected)
    return replace(execution, differences=(*comparison.differences, *execution.differences))


def execute(
    flat: FlatProgram,
    arguments: Mapping[str, OnRanks],
    seed: int = 0,
    expected: SimulatedRun | None = None,
    order: Iterable[int] | None = None,
) -> Execution:
    """Execute the nodes one by one, in a random order that dependencies and messages permit.

    `arguments`: one array per rank, by name. `order`: rows in order, instead of the random order by
    `seed` (`draw_order`); only these rows are executed. The result has the values of all
    operations, one array per rank of group 0 (the ranks in one group of the mesh), and the number
    of executed nodes.

    `expected`: a run of the same program, with which every value is compared. Float reductions over
    ranks must be within a bound, and the expected value is used afterwards; all others must be
    equal bit by bit. Deviations are listed in `differences` and raise no error. `errors` has the
    largest error of each reduction divided by its bound. Both are empty without `expected`.

    Raises `InputError`: `mesh` for a mesh of several axes, `deadlock` if nodes wait for each other,
    and for reads of data that are not available or already overwritten (a missing dependency).
    Raises `KeyError` for a missing argument, and for an `order` with a receive before its send.
    """
    if len(flat.program.mesh) > 1:
        message = f"the mesh of {flat.program.name} has several axes: its graph is only timed"
        cure = "run the program on simulated ranks (simulate_ranks)"
        raise InputError(message, cure=cure, code="mesh")
    state = _ExecutionState(flat, expected)
    state.values.load(arguments)
    count = 0
    with np.errstate(all="ignore"):
        for row in draw_order(flat.workload, seed) if order is None else order:
            state.step(row)
            count += 1
    state.compare_all()
    return Execution(state.results(), tuple(state.differences), state.errors, count)


@dataclass(slots=True)
class _ExecutionState:
    """State of an execution.

    `expected_values`: the values of `expected`, element by element. `runs`: by (number of the part,
    piece). `units`: rows of the units of an uneven collective, by number of the part. `mail`:
    messages in flight. `partials`: partial results of scalars, by (name, rank).
    """

    flat: FlatProgram
    expected: SimulatedRun | None
    values: Values = field(init=False)
    expected_values: Values | None = field(init=False, default=None)
    runs: dict[tuple[int, int], CollectiveRun] = field(default_factory=dict)
    units: dict[int, tuple[UnitRows, UnitRows]] = field(default_factory=dict)
    mail: dict[tuple[int, int, int], Payload] = field(default_factory=dict)
    partials: dict[tuple[str, int], Array] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program, binding = self.flat.program, self.flat.binding
        grids: dict[str, Grid] = {}
        for part in self.flat.parts:
            if isinstance(part, CollectiveRuns):
                grids |= {operation.name: grid for operation, grid in part.members}
            elif isinstance(part, Message):
                grids[part.operation.name] = part.grid
        self.values = Values(program, binding, grids, self.flat.pass_through)
        for part in self.flat.parts:
            if isinstance(part, RowRuns):
                for operation in (part.operation, *part.others):
                    self._write_unfilled(operation, part.first_rank)
        if self.expected is not None:
            self.expected_values = Values(program, binding, grids, {})
            for name, arrays in self.expected.values.items():
                kind = program.types[name]
                first = kind.group * binding.num_ranks
                for position, array in enumerate(arrays):
                    elements = find_elements(kind, binding, position)
                    self.expected_values.write(name, first + position, elements, array.reshape(-1))

    def _write_unfilled(self, operation: Operation, first_rank: int) -> None:
        """Write zeros after the rows that each rank of a group receives in an uneven collective.

        `first_rank`: the first rank of the group. The elements count as available afterwards.
        """
        program, binding = self.flat.program, self.flat.binding
        dtype = dtype_of(program.types[operation.name].element)
        for position in range(binding.num_ranks):
            elements = find_unfilled(program, binding, operation, position)
            zeros = np.zeros(len(elements), dtype)
            self.values.write(operation.name, first_rank + position, elements, zeros)

    # --- nodes ---

    def step(self, row: int) -> None:
        """Execute the node in a row of `flat.workload`.

        By the part of the flat program to which the row belongs:

        - `KernelSegment`: compute its operations. If it is divided into tiles, only the tile of the
          row is computed.
        - `CollectiveRuns` or `RowRuns` (an uneven collective): execute one node of the algorithm
          (`step` of its run).
        - `Message`, a SEND node: read the elements of its chunk, and store them in `self.mail`.
        - `Message`, any other node: remove the elements from `self.mail`, and write them on its
          rank.
        - Any other part (`MeshRuns`, `Barrier`, `Launch`): nothing.

        Rows must be executed in an order that respects the dependencies. Otherwise raises
        `InputError` (`not-there`): data that are read were not yet written, were already
        overwritten by a later step of a collective, or the message of a collective was not sent.
        Raises `KeyError` if a `Message` is received before it is sent, and for a missing partial
        scalar.
        """
        nodes = self.flat.workload.nodes
        part = self.flat.parts[self.flat.part[row]]
        item, rank = int(self.flat.item[row]), int(nodes.rank[row])
        if isinstance(part, KernelSegment):
            self._compute(part, item, rank)
        elif isinstance(part, CollectiveRuns):
            piece, node = divmod(item, len(part.contents.template))
            run = self._find_run(int(self.flat.part[row]), part, piece)
            run.step(node, rank, int(nodes.peer[row]), int(nodes.tag[row]))
        elif isinstance(part, RowRuns):
            run = self._find_run(int(self.flat.part[row]), part, 0)
            run.step(item, rank, int(nodes.peer[row]), int(nodes.tag[row]))
        elif isinstance(part, Message):
            is_send = nodes.kind[row] == NodeKind.SEND
            # Execute one side of a Send.
            peer = int(nodes.peer[row])
            elements, name = part.grid.elements(item), part.operation.name
            first = min(rank, peer) if part.receiver > part.sender else max(rank, peer)
            key = first, -1 - self.flat.parts.index(part), item
            if bool(is_send):
                self.mail[key] = [self.values.read(part.operation.reads[0], rank, elements)]
            else:
                self.values.write(name, rank, elements, self.mail.pop(key)[0])

    def _compute(self, part: KernelSegment, item: int, rank: int) -> None:
        """Compute the operations of a segment on a rank, for one tile or for all of its elements.

        `rank`: rank of the job. `item`: index in `part.tiles`, ignored if the segment has no tiles.
        The operations are computed and written to `self.values` in their order. Views, which have
        no values of their own, are skipped. Elements that the rank does not have, because the
        result is sliced, are not computed.

        If the segment is partial, its last operation reduces a slice to a scalar. The contribution
        of this rank is stored in `self.partials[operation name, rank]`, and not written to the
        values. Raises `InputError` (`not-there`) if an element of an operand was not yet written on
        the rank.
        """
        binding = self.flat.binding
        for operation in part.operations:
            if find_viewed_value(self.flat.program, operation) is not None:
                continue
            if part.is_partial and operation is part.operations[-1]:
                self.partials[operation.name, rank] = compute_partial(self.values, operation, rank)
                continue
            kind = self.flat.program.types[operation.name]
            if part.grid is None:
                elements = find_elements(kind, binding, rank % binding.num_ranks)
            else:
                position = rank % binding.num_ranks
                chunks = [part.grid.elements(chunk, position) for chunk in part.tiles[item]]
                elements = np.concatenate(chunks)
                if part.grid.row_blocks is not None and kind.layout.is_sliced:
                    available = find_elements(kind, binding, position)
                    elements = np.intersect1d(elements, available)
            values = compute_elements(self.values, operation, rank, elements)
            self.values.write(operation.name, rank, elements, values)

    def _find_run(self, number: int, part: CollectiveRuns | RowRuns, piece: int) -> CollectiveRun:
        """Return the state of one piece of a collective; the first call for a piece creates it.

        A collective runs its algorithm once per piece, for a fraction of the data. `number`: index
        of `part` in the parts of the flat program. `piece`: number of the piece from 0. Later calls
        with the same (number, piece) return the same object, which is cached in `self.runs`.

        A new state has no data: its steps read the operands when they are executed. All states use
        `self.mail` for messages in transit. For an uneven collective (`RowRuns`), creation also
        sets `self.units[number]` to the rows of its units (`locate_units`).
        """
        key = number, piece
        if key not in self.runs:
            contents = part.contents
            if isinstance(part, RowRuns):
                self.units[number] = locate_units(part)
            self.runs[key] = CollectiveRun(
                part, piece, collect_versions(contents), collect_results(contents),
                lambda rank, chunk: self._read_chunk(number, part, rank, chunk),
                lambda rank, chunk, values: self._deliver(number, part, rank, chunk, values),
                self.mail,
            )  # fmt: skip
        return self.runs[key]

    def _list_elements(
        self, number: int, part: CollectiveRuns | RowRuns, chunk: int, *, is_given: bool
    ) -> list[tuple[Operation, Int64Array]]:
        """Return (operation, elements) for each operation of one collective of the flat program.

        - `CollectiveRuns`: the operations are the members of a bucket, in order. `is_given` has
          no effect.
        - `RowRuns` (an uneven collective, whose chunks are rows): the operations are the
          collective, then those that are fused with it. The chunk is one of the result if
          `is_given` is True, otherwise of the operand.

        `elements`: int64, flat row-major indices of the elements of chunk `chunk`. `number`:
        index of `part` in the flat program. For `RowRuns`, `self.units[number]` must exist,
        otherwise `KeyError` is raised.
        """
        if isinstance(part, CollectiveRuns):
            return [(operation, grid.elements(chunk)) for operation, grid in part.members]
        rows, program = self.units[number][is_given], self.flat.program
        return [
            (one, rows.find_elements(chunk, count_row_elements(program, self.flat.binding, one)))
            for one in (part.operation, *part.others)
        ]

    def _read_chunk(
        self, number: int, part: CollectiveRuns | RowRuns, rank: int, chunk: int
    ) -> Array:
        """Return a chunk of the operands of a collective on a rank, as a flat array.

        For a bucket (several collectives that are performed as one) it has the chunks of all
        members, concatenated in order. For a reduction to a scalar it is the contribution of the
        rank, an array of one element, for any `chunk`. `number`: index of `part` in the flat
        program. Raise `InputError` (`not-there`) if an element is not available on the rank, and
        `KeyError` if the contribution was not computed.
        """
        if part.is_scalar:
            return self.partials[part.operation.name, rank]
        return np.concatenate(
            [
                self.values.read(operation.reads[0], rank, elements)
                for operation, elements in self._list_elements(number, part, chunk, is_given=False)
            ]
        )

    def _deliver(
        self,
        number: int,
        part: CollectiveRuns | RowRuns,
        rank: int,
        chunk: int,
        values: Array,
    ) -> None:
        """Write a chunk of the result of a collective on a rank, for every member of a bucket.

        The bucket is the list of operations that the collective performs together. `number`:
        position of `part` in the parts of the flat program. `values`: the elements of the members,
        one after the other; for a reduction to a scalar the one combined value, which is finished
        first, for example by the root of a norm.

        If there are expected values, float results of reductions are compared with them, and the
        expected ones are written, so that later values can be compared bit by bit. A deviation
        raises no exception: it is recorded in `self.errors`, and above the bound also in
        `self.differences`. Integers, and results of collectives that reduce nothing, are written as
        they are.
        """
        start = 0
        for operation, elements in self._list_elements(number, part, chunk, is_given=True):
            if part.is_scalar:
                kind = self.flat.program.types[operation.name]
                member_values = finish_scalar(operation, values, dtype_of(kind.element))
            else:
                member_values = values[start : start + len(elements)]
                start += len(elements)
            is_moved = operation.kind in _MOVING
            is_reduced = part.is_scalar or not is_moved
            is_checked = self.expected_values is not None and is_reduced
            if is_checked and is_float_array(member_values):
                member_values = self._check_reduction(
                    part, operation, rank, elements, member_values
                )
            self.values.write(operation.name, rank, elements, member_values)

    def _check_reduction(
        self,
        part: CollectiveRuns | RowRuns,
        operation: Operation,
        rank: int,
        elements: Int64Array,
        values: Array,
    ) -> Array:
        """Compare a reduced chunk with the expected values; return the expected values.

        `elements`: flat indices of the chunk in the complete result. The relative error is 0 if all
        bits are equal (all NaNs count as equal). Otherwise it is d / b:

        - d: the largest difference. It is 0 for two values that are not finite, NaN if only one is.
        - b: 4 x eps x ranks of the job x `_find_largest_term`. If b is 0, the error is infinite, or
          NaN for d = 0.

        Two attributes are changed. `self.errors[operation name]` keeps the maximum, where NaN
        counts 0. `self.differences` gets a text in two cases:

        - The relative error is above 1 or NaN.
        - Bits differ, and the operation has a reduction other than sum or product (not None).

        No error is raised; `self.expected_values` must exist.
        """
        assert self.expected_values is not None
        expected = self.expected_values.read(operation.name, rank, elements)
        if is_same(expected, values):
            self.errors.setdefault(operation.name, 0.0)
            return values
        if isinstance(part, RowRuns):
            program, binding = self.flat.program, self.flat.binding
            position = rank - part.first_rank
            elements = find_terms(program, binding, operation, position, elements)
        terms = self._find_largest_term(part, operation, elements)
        bound = 4 * get_epsilon(values.dtype) * self.flat.binding.num_ranks * terms
        is_infinite = ~np.isfinite(values) & ~np.isfinite(expected)
        error = np.abs(values.astype(np.float64) - expected.astype(np.float64))
        largest = float(np.where(is_infinite, 0.0, error).max(initial=0.0))
        relative_error = largest / bound if bound else float(largest > 0) * np.inf
        self.errors[operation.name] = max(self.errors.get(operation.name, 0.0), relative_error)
        if operation.reduction not in _ROUNDING_REDUCTIONS or not relative_error <= 1.0:
            text = f"{operation.name} on rank {rank} differs by {largest:.3g}"
            self.differences.append(f"{text}, the bound is {bound:.3g}")
        return expected

    def _find_largest_term(
        self, part: CollectiveRuns | RowRuns, operation: Operation, elements: Int64Array
    ) -> float:
        """Return the largest magnitude of one rank's expected contribution to a reduction.

        Contributions are the expected values of the operand on each rank of the group.

        - Reduction to a tensor: the largest finite magnitude at the flat indices `elements`; 0 if
          there is none. NaN and infinity are ignored, because they do not change the rounding of
          the remaining elements.
        - Reduction to a scalar: `elements` is ignored. The result is the largest contribution of
          a complete block (`find_largest_term`), which may be NaN or infinite.

        The expected values must have been computed (assertion).
        """
        count = self.flat.binding.num_ranks
        if part.is_scalar:
            assert self.expected is not None
            return find_largest_term(operation.kind, self.expected.values[operation.reads[0]])
        assert self.expected_values is not None
        ranks = range(part.first_rank, part.first_rank + count)
        terms = [self.expected_values.read(operation.reads[0], rank, elements) for rank in ranks]
        magnitudes = np.abs(np.concatenate(terms).astype(np.float64))
        return float(magnitudes.max(initial=0.0, where=np.isfinite(magnitudes)))

    # --- results ---

    def results(self) -> dict[str, OnRanks]:
        """Return the values of all operations by name: one array per rank of the value's group.

        The arrays are in the order of positions in the group. Arguments are not included. Call
        this after all nodes: it raises `InputError` (`not-there`) if an element of a value is
        missing.
        """
        ranks = range(self.flat.binding.num_ranks)
        return {
            operation.name: [self.values.on_rank(operation.name, rank) for rank in ranks]
            for operation in self.flat.program.operations
        }

    def compare_all(self) -> None:
        """Add a text to `self.differences` for every value that differs from the expected one.

        Without expected values the method returns at once. Otherwise the values of all
        operations are compared in program order, on each rank of their group. The text
        names the operation and the rank's position in this group, from 0.

        Types and bits must be equal; all NaNs count as equal, 0 and -0 differ. Shapes may
        differ if the numbers of elements are equal, for example (1,) and (). Raise
        `ValueError` for another number of elements, and `InputError` (`not-there`) for an
        element that is not available.
        """
        if self.expected is None:
            return
        for operation in self.flat.program.operations:
            for position, expected in enumerate(self.expected.values[operation.name]):
                actual = self.values.on_rank(operation.name, position)
                # A scalar may have one dimension in one of the runs.
                if not is_same(actual.reshape(expected.shape), expected):
                    self.differences.append(f"{operation.name} on rank {position} differs")
