"""Execute the nodes of a flat program on arrays, in any order that the dependencies allow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from collhub_coconet.equivalence.array_operations import (
    Array,
    OnRanks,
    is_same,
    largest_term,
    spread,
)
from collhub_coconet.equivalence.comparison import compare, random_arguments
from collhub_coconet.equivalence.ranks import Run as SimulatedRun
from collhub_coconet.equivalence.ranks import run as run_simulated
from collhub_coconet.execution.collectives import Payload, gives_of, versions_of
from collhub_coconet.execution.collectives import Run as CollectiveRun
from collhub_coconet.execution.computing import Values, computed, elements_on, finished, partial
from collhub_coconet.lowering.flat_program import Collected, FlatProgram, Message, Segment, viewed
from collhub_coconet.program.operations import Kind, Reduction
from collhub_coconet.program.program import Program
from hub_core.columns import Int64Array, csr
from hub_core.model import InputError, NodeKind, Workload, connection_keys, pair_in_order


def random_order(workload: Workload, seed: int) -> Iterator[int]:
    """Rows of a workload, each behind all that it waits for; a seed means one order.

    Any of the nodes that wait for nothing comes next, with equal chances. Raises `InputError` where
    nodes wait for one another.
    """
    parents, children = waiting_edges(workload)
    count = len(workload.nodes)
    indptr, followers = csr(parents, children, count)
    starts, targets = indptr.tolist(), followers.tolist()
    missing = np.bincount(children, minlength=count).tolist()
    ready = [row for row in range(count) if not missing[row]]
    generator = np.random.default_rng(seed)
    done = 0
    while ready:
        place = int(generator.integers(len(ready)))
        ready[place], ready[-1] = ready[-1], ready[place]
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


def waiting_edges(workload: Workload) -> tuple[Int64Array, Int64Array]:
    """Dependencies, and every send before its receive."""
    nodes = workload.nodes
    sends = np.flatnonzero(nodes.is_kind(NodeKind.SEND))
    receives = np.flatnonzero(nodes.is_kind(NodeKind.RECV))
    rows = np.concatenate([sends, receives])
    is_send = np.arange(len(rows)) < len(sends)
    rank, peer = nodes.rank[rows], nodes.peer[rows]
    ends = np.where(is_send, rank, peer), np.where(is_send, peer, rank)
    keys = connection_keys(*ends, nodes.tag[rows])
    pairs = pair_in_order(sends, receives, keys[: len(sends)], keys[len(sends) :])
    before, behind = nodes.edges()
    parents = np.concatenate([before, pairs.send])
    return parents, np.concatenate([behind, pairs.receive])


_ROUNDED = (Reduction.SUM, Reduction.PROD, None)


@dataclass(frozen=True, slots=True)
class Execution:
    """The outcome of an execution.

    `values`: by name, one array a rank of the group, of all operations. `differences`: in words,
    what is not as it must be; none where all is equal. `errors`: the largest error of each
    reduction over ranks as a share of its bound. `nodes`: how many were executed.
    """

    values: Mapping[str, OnRanks]
    differences: tuple[str, ...]
    errors: Mapping[str, float]
    nodes: int

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def execute_and_compare(before: Program, flat: FlatProgram, seed: int = 0) -> Execution:
    """Execute a flat program on random arguments beside the program that it was made from.

    The flat program's own program is compared with `before` as `equivalence.compare` does. Then
    every value of the execution is held against it: a reduction over ranks, whose additions have
    another order, within 4 eps p max|terms|, after which the execution goes on with the expected
    value; all else bit by bit. `seed`: of the arguments and of the order of the nodes. Raises
    `InputError` where a node reads what is not there.
    """
    program, binding = flat.program, flat.binding
    compared = compare(before, program, binding, seed)
    data = random_arguments(before, binding, seed)
    arguments = {one.name: _on_ranks(data[one.name], flat, one.name) for one in program.arguments}
    expected = run_simulated(program, binding, arguments)
    found = execute(flat, arguments, seed, expected)
    differences = (*compared.differences, *found.differences)
    return Execution(found.values, differences, found.errors, found.nodes)


def execute(
    flat: FlatProgram,
    arguments: Mapping[str, OnRanks],
    seed: int = 0,
    expected: SimulatedRun | None = None,
    order: Iterable[int] | None = None,
) -> Execution:
    """Execute the nodes one by one in a random order that dependencies and messages allow.

    `arguments`: arrays by name, one a rank, as layouts say. `expected`: a run of the same program,
    against which every value is held. `order`: rows, in the place of a random order. Raises
    `InputError` for reads of data that are not there, or that are overwritten: some dependency is
    missing.
    """
    job = _Job(flat, expected)
    job.values.load(arguments)
    count = 0
    with np.errstate(all="ignore"):
        for row in random_order(flat.workload, seed) if order is None else order:
            job.step(row)
            count += 1
    job.compare_all()
    return Execution(job.results(), tuple(job.differences), job.errors, count)


def _on_ranks(data: Array, flat: FlatProgram, name: str) -> OnRanks:
    """An argument on its ranks; local ones have the ranks as their first dimension."""
    return spread(data, flat.program.types[name], flat.binding.num_ranks)


@dataclass(slots=True)
class _Job:
    """An execution under way."""

    flat: FlatProgram
    expected: SimulatedRun | None
    values: Values = field(init=False)
    wanted: Values | None = field(init=False, default=None)
    runs: dict[tuple[int, int], CollectiveRun] = field(default_factory=dict)
    mail: dict[tuple[int, int, int], Payload] = field(default_factory=dict)
    partials: dict[tuple[str, int], Array] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program, binding = self.flat.program, self.flat.binding
        grids = {
            part.operation.name: part.grid
            for part in self.flat.parts
            if isinstance(part, Collected | Message)
        }
        self.values = Values(program, binding, grids, self.flat.pass_through)
        if self.expected is not None:
            self.wanted = Values(program, binding, grids, {})
            for name, arrays in self.expected.values.items():
                self._load_wanted(self.wanted, name, arrays)

    def _load_wanted(self, wanted: Values, name: str, arrays: OnRanks) -> None:
        kind = self.flat.program.types[name]
        first = kind.group * self.flat.binding.num_ranks
        for position, part in enumerate(arrays):
            chosen = elements_on(kind, self.flat.binding, position)
            wanted.write(name, first + position, chosen, part.reshape(-1))

    # --- nodes ---

    def step(self, row: int) -> None:
        """Execute a node."""
        nodes = self.flat.workload.nodes
        part = self.flat.parts[self.flat.part[row]]
        item, rank = int(self.flat.item[row]), int(nodes.rank[row])
        if isinstance(part, Segment):
            self._compute(part, item, rank)
        elif isinstance(part, Collected):
            piece, node = divmod(item, len(part.contents.template))
            run = self._run(int(self.flat.part[row]), part, piece)
            run.step(node, rank, int(nodes.peer[row]), int(nodes.tag[row]))
        elif isinstance(part, Message):
            is_send = nodes.kind[row] == NodeKind.SEND
            self._transfer(part, item, rank, int(nodes.peer[row]), is_send=bool(is_send))

    def _compute(self, part: Segment, item: int, rank: int) -> None:
        """The chunks of a tile, or all elements that the rank has."""
        binding = self.flat.binding
        for operation in part.operations:
            if viewed(self.flat.program, operation) is not None:
                continue
            if part.is_partial and operation is part.operations[-1]:
                self.partials[operation.name, rank] = partial(self.values, operation, rank)
                continue
            kind = self.flat.program.types[operation.name]
            if part.grid is None:
                chosen = elements_on(kind, binding, rank % binding.num_ranks)
            else:
                chosen = np.concatenate([part.grid.elements(one) for one in part.tiles[item]])
            found = computed(self.values, operation, rank, chosen)
            self.values.write(operation.name, rank, chosen, found)

    def _transfer(self, part: Message, chunk: int, rank: int, peer: int, *, is_send: bool) -> None:
        """One side of a Send."""
        chosen, name = part.grid.elements(chunk), part.operation.name
        first = min(rank, peer) if part.receiver > part.sender else max(rank, peer)
        key = first, -1 - self.flat.parts.index(part), chunk
        if is_send:
            self.mail[key] = [self.values.read(part.operation.reads[0], rank, chosen)]
        else:
            self.values.write(name, rank, chosen, self.mail.pop(key)[0])

    def _run(self, number: int, part: Collected, piece: int) -> CollectiveRun:
        """The state of a piece of a collective."""
        key = number, piece
        if key not in self.runs:
            # Made when its first step is ready: until then its operands may be missing.
            template = part.contents
            self.runs[key] = CollectiveRun(
                part, piece, versions_of(template), gives_of(template),
                lambda rank, chunk: self._initial(part, rank, chunk),
                lambda rank, chunk, values: self._deliver(part, rank, chunk, values),
                self.mail,
            )  # fmt: skip
        return self.runs[key]

    def _initial(self, part: Collected, rank: int, chunk: int) -> Array:
        """A chunk of the operand of a collective."""
        if part.is_scalar:
            return self.partials[part.operation.name, rank]
        return self.values.read(part.operation.reads[0], rank, part.grid.elements(chunk))

    def _deliver(self, part: Collected, rank: int, chunk: int, values: Array) -> None:
        """A chunk of the result of a collective; reductions are held against their bound."""
        operation = part.operation
        chosen = part.grid.elements(chunk)
        if part.is_scalar:
            kind = self.flat.program.types[operation.name]
            values = finished(operation, values, np.dtype(str(kind.element)))
        is_moved = operation.kind in (Kind.ALL_GATHER, Kind.ALL_TO_ALL, Kind.BROADCAST)
        is_reduced = part.is_scalar or not is_moved
        if self.wanted is not None and is_reduced and values.dtype.kind == "f":
            values = self._judged(part, rank, chosen, values)
        self.values.write(operation.name, rank, chosen, values)

    def _judged(self, part: Collected, rank: int, chosen: Int64Array, values: Array) -> Array:
        """The expected values, where the ones found are within the bound of them."""
        assert self.wanted is not None
        operation = part.operation
        expected = self.wanted.read(operation.name, rank, chosen)
        if is_same(expected, values):
            self.errors.setdefault(operation.name, 0.0)
            return values
        terms = self._largest_term(part, chosen)
        bound = 4 * float(np.finfo(values.dtype).eps) * self.flat.binding.num_ranks * terms
        is_lost = ~np.isfinite(values) & ~np.isfinite(expected)
        error = np.abs(values.astype(np.float64) - expected.astype(np.float64))
        largest = float(np.where(is_lost, 0.0, error).max(initial=0.0))
        share = largest / bound if bound else float(largest > 0) * np.inf
        self.errors[operation.name] = max(self.errors.get(operation.name, 0.0), share)
        if operation.reduction not in _ROUNDED or not share <= 1.0:
            text = f"{operation.name} on rank {rank} differs by {largest:.3g}"
            self.differences.append(f"{text}, the bound is {bound:.3g}")
        return expected

    def _largest_term(self, part: Collected, chosen: Int64Array) -> float:
        """The largest magnitude of what the ranks contribute."""
        operation, count = part.operation, self.flat.binding.num_ranks
        if part.is_scalar:
            assert self.expected is not None
            return largest_term(operation.kind, self.expected.values[operation.reads[0]])
        assert self.wanted is not None
        ranks = range(part.first_rank, part.first_rank + count)
        terms = [self.wanted.read(operation.reads[0], rank, chosen) for rank in ranks]
        return float(max(np.abs(one.astype(np.float64)).max(initial=0.0) for one in terms))

    # --- results ---

    def results(self) -> dict[str, OnRanks]:
        """All values on the ranks of their groups."""
        ranks = range(self.flat.binding.num_ranks)
        # Values that nothing has made are an error there.
        return {
            one.name: [self.values.on_rank(one.name, rank) for rank in ranks]
            for one in self.flat.program.operations
        }

    def compare_all(self) -> None:
        """Hold every value against what is expected, bit by bit."""
        if self.expected is None:
            return
        for operation in self.flat.program.operations:
            for position, wanted in enumerate(self.expected.values[operation.name]):
                found = self.values.on_rank(operation.name, position)
                # A scalar may have one dimension there.
                if not is_same(found.reshape(wanted.shape), wanted):
                    self.differences.append(f"{operation.name} on rank {position} differs")
