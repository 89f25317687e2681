"""Lower a program to a workload: computations, one COLLECTIVE node per collective, messages.

The operations of a stage between two communications are one computation. Chains are not cut into
chunks here, since a workload does not determine the algorithms of its collectives.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from collhub_coconet.documents.from_workload import LoweredStatements, Statements
from collhub_coconet.documents.json_document import BoundProgram, History, bound_from_json
from collhub_coconet.plugin import ProgramOptions
from collhub_coconet.program.operations import (
    UNEVEN_COLLECTIVES,
    Binding,
    Kind,
    Operation,
    parse_ranges,
    take_minimum_sizes,
)
from collhub_coconet.program.program import (
    Program,
    check_binding,
    find_axis_positions,
    reduces_scalar,
)
from collhub_coconet.program.uneven_rows import compute_byte_counts
from collhub_coconet.transformations.costs import count_memory_bytes, count_operations
from hub_core import installed_version
from hub_core.model import (
    Diagnostic,
    InputError,
    JobCollective,
    Location,
    NodeColumns,
    NodeKind,
    ProcessGroup,
    Provenance,
    UnitCounts,
    Workload,
)
from hub_core.plugin_api import Source

_COLLECTIVES = {
    Kind.ALL_REDUCE: JobCollective.ALL_REDUCE,
    Kind.REDUCE_SCATTER: JobCollective.REDUCE_SCATTER,
    Kind.ALL_GATHER: JobCollective.ALL_GATHER,
    Kind.ALL_TO_ALL: JobCollective.ALL_TO_ALL,
    Kind.ALL_TO_ALL_V: JobCollective.ALL_TO_ALL,
    Kind.ALL_GATHER_V: JobCollective.ALL_GATHER,
    Kind.REDUCE_SCATTER_V: JobCollective.REDUCE_SCATTER,
    Kind.BROADCAST: JobCollective.BROADCAST,
    Kind.REDUCE: JobCollective.REDUCE,
}
# Columns of nodes, apart from rank and peer, with their defaults.
_DEFAULTS = {
    **dict.fromkeys(("kind", "name", "operations", "bytes", "collective"), -1),
    **{"root": -1, "group": -1, "extra": -1, "counts": -1, "tag": 0},
}


def lower(program: Program, binding: Binding, history: History = ()) -> Workload:
    """Lower a program to a workload of the ranks of all groups.

    With p ranks per group, rank i of group k is rank k * p + i of the job. All blocks of a
    sliced tensor count as the longest one. Nodes contain statements of their operations,
    from which `extract_program` restores the program. `history`: the transformations so
    far, which are stored with them. On a mesh of several axes, the ranks that communicate
    have a separate process group; along axes of one rank no node is added. Raise
    `InputError` for a symbol without a size, and for layouts, counts and roots that do not
    fit the ranks (`check_binding`).
    """
    check_binding(program, binding)
    builder = _NodeRows(program, binding, Statements(BoundProgram(program, binding, history)))
    for kernel in program.kernels():
        builder.add_kernel(kernel)
    return builder.build()


@dataclass(slots=True)
class _NodeRows:
    """Rows of nodes under construction.

    `rows`: nodes of several ranks at once, as columns that are equal on all and the rank and peer
    of each. `producer`: rows that produce a value, one per rank of its group, -1 for none.
    `edges`: such rows, and rows that wait for them. `groups`: process groups as ranks of the job;
    those of the row come first. `counts`: bytes of uneven collectives, each table once.
    """

    program: Program
    binding: Binding
    statements: Statements
    rows: list[tuple[dict[str, int], Sequence[int], Sequence[int]]] = field(default_factory=list)
    num_rows: int = 0
    names: list[str] = field(default_factory=list)
    edges: list[tuple[Sequence[int], Sequence[int]]] = field(default_factory=list)
    producer: dict[str, Sequence[int]] = field(default_factory=dict)
    groups: list[tuple[int, ...]] = field(init=False)
    counts: dict[UnitCounts, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        row = range(self.program.num_groups)
        self.groups = [tuple(self.binding.ranks_of(group)) for group in row]

    def add_kernel(self, kernel: list[Operation]) -> None:
        """Add the nodes of a kernel, in the order of its operations.

        - If the first operation is in a bucket of the program, all operations become one
          collective.
        - Otherwise consecutive operations without communication (a run) become one computation. A
          communication ends the run, and its nodes follow: messages for a Send, otherwise a
          collective.
        - A reduction of a sliced tensor to a scalar ends its run, as the last operation of the run.
          An all-reduce of its partial results follows.

        Views are in runs too; a run of views only has no node (`_add_computation`). Raises
        `IndexError` for an empty kernel, and the `InputError` of collectives (`_add_collective`).
        """
        pending: list[Operation] = []
        if kernel[0].name in self.program.buckets:
            self._add_collective(kernel, _COLLECTIVES[kernel[0].kind])
            return
        for operation in kernel:
            if operation.is_communication:
                self._add_computation(pending)
                pending = []
                # Add the nodes of a communication: messages for a Send, otherwise a collective.
                if operation.kind is Kind.SEND:
                    self._add_messages(operation)
                else:
                    self._add_collective([operation], _COLLECTIVES[operation.kind])
                continue
            pending.append(operation)
            if reduces_scalar(self.program, operation):
                self._add_computation(pending)
                pending = []
                self._add_collective([operation], JobCollective.ALL_REDUCE)
        self._add_computation(pending)

    def build(self) -> Workload:
        """Return the workload of all nodes added so far, with the process groups. Call it once.

        - Rows are grouped by rank; in a rank they keep the order in which they were added.
          There are as many ranks as the groups of the program have together.
        - Process groups are named "1", "2", ...: first the groups of the program, used or not,
          then the subgroups along axes by first use.
        - Each dependency occurs once; they are sorted by parent, then by child.
        - Views without a node are added to the last statement (the text of a node). A program
          of views only gets one MARKER node per rank of group 0, which share one statement.
        """
        if not self.rows:
            # The program has only views: MARKER nodes carry its statements.
            statement = self.statements.add(())
            row = {"kind": int(NodeKind.MARKER), "extra": statement}
            self._add_rows(row, self.binding.ranks_of(0))
        count = self.program.num_groups
        repeats = [len(ranks) for _, ranks, _ in self.rows]
        columns: dict[str, npt.ArrayLike] = {
            name: np.repeat([row.get(name, default) for row, _, _ in self.rows], repeats)
            for name, default in _DEFAULTS.items()
        }
        columns["rank"] = [rank for _, ranks, _ in self.rows for rank in ranks]
        columns["peer"] = [peer for _, _, peers in self.rows for peer in peers]
        parents, children = (
            np.fromiter(itertools.chain.from_iterable(rows), np.int64)
            for rows in ([pair[side] for pair in self.edges] for side in (0, 1))
        )
        # Values without a producer have the row -1. One number per pair, so that each occurs once.
        is_row = parents >= 0
        keys = np.unique(parents[is_row] * self.num_rows + children[is_row])
        nodes = NodeColumns.from_columns(
            self.binding.num_ranks * count,
            columns,
            (keys // self.num_rows, keys % self.num_rows),
            file=self.program.name,
        )
        groups = tuple(
            ProcessGroup(str(number), ranks) for number, ranks in enumerate(self.groups, 1)
        )
        texts, bound = self.statements.extras(), self.statements.bound
        extras = LoweredStatements.create(texts, bound, nodes)
        counts = tuple(self.counts)
        return Workload(nodes, tuple(self.names), groups, extras=extras, counts=counts)

    def _add_computation(self, operations: list[Operation]) -> None:
        """Add one COMPUTE node per rank of the group for operations without communication between.

        All operations are of one group. First each view (an operation without cost) gets the
        producer of its first operand, if that has one. Results of this call have none yet. Views
        are recorded for the next node with text. If all operations are views, no node is added.
        Otherwise the node of a rank has:

        - the arithmetic operations of all non-views, and their names, joined by "+"
        - the memory traffic of all operations as one kernel, in bytes
        - in its extra text the non-views and all recorded views

        It waits for the earlier nodes on its rank that produced operands of any operation. Other
        operands, such as arguments, are not waited for. The nodes become the producers of
        non-views.
        """
        working = [operation for operation in operations if not operation.is_free]
        for operation in operations:
            if operation.is_free and operation.reads and operation.reads[0] in self.producer:
                self.producer[operation.name] = self.producer[operation.reads[0]]
            if operation.is_free:
                self.statements.view(operation)
        if not working:
            return
        statement = self.statements.add(working)
        name = self._add_name("+".join(operation.name for operation in working))
        # All operations of a kernel are on one group.
        group = self.program.types[working[0].name].group
        count = sum(
            count_operations(self.program, operation, self.binding) for operation in working
        )
        traffic = count_memory_bytes(self.program, operations, self.binding)
        row = {"kind": int(NodeKind.COMPUTE), "name": name, "extra": statement}
        row |= {"operations": count, "bytes": traffic}
        numbers = self._add_rows(row, self.binding.ranks_of(group))
        self._add_dependencies(
            numbers, (read for operation in operations for read in operation.reads)
        )
        self.producer |= dict.fromkeys((operation.name for operation in working), numbers)

    def _add_collective(self, operations: Sequence[Operation], kind: JobCollective) -> None:
        """Add one COLLECTIVE node per rank for one operation, or for the members of a bucket.

        The first operation decides the axes, root and counts. The operand of a communication is its
        first one. The operand of a reduction to a scalar is its partial result. The ranks along the
        axes form a subgroup, which becomes a process group if it is new. `root` is a rank of the
        job, -1 for none. `bytes` is the sum of the operands on one rank (longest block), for uneven
        collectives the sum of all counts.

        - Subgroups of one rank: no node is added. The results get the producers of their operands,
          and a communication is recorded as a view.
        - Otherwise a node waits for the producers of its operands on its rank; it produces the
          results.

        Raises `InputError`: `invalid-counts`, `size` (more than 2^62 bytes), `symbol` (without a
        size).
        """
        operation = operations[0]
        # A reduction of slices to a scalar is all-reduced after the computation.
        is_scalar = not operation.is_communication
        sources = [one.name if is_scalar else one.reads[0] for one in operations]
        subgroups = self.binding.subgroups(find_axis_positions(self.program, operation))
        if len(subgroups[0]) == 1:
            # Axes of one rank have nobody to communicate with.
            for one, source in zip(operations, sources, strict=True):
                if source in self.producer:
                    self.producer[one.name] = self.producer[source]
                if not is_scalar:
                    self.statements.view(one)
            return
        operands = [self.program.types[source] for source in sources]
        row: dict[str, int] = {"kind": int(NodeKind.COLLECTIVE), "collective": int(kind)}
        row["name"] = self._add_name("+".join(one.name for one in operations))
        row["bytes"] = sum(map(self.binding.bytes_of_rank, operands))
        if operation.kind in UNEVEN_COLLECTIVES:
            table = compute_byte_counts(self.program, self.binding, *operations)
            row["counts"] = self.counts.setdefault(table, len(self.counts))
            row["bytes"] = table.total
        row["extra"] = self.statements.add(operations)
        members = self.binding.ranks_of(operands[0].group)
        numbers = [-1] * len(members)
        for positions in subgroups:
            ranks = tuple(members[position] for position in positions)
            if ranks not in self.groups:
                self.groups.append(ranks)
            row["group"] = self.groups.index(ranks)
            row["root"] = -1 if operation.root is None else ranks[operation.root]
            for position, number in zip(positions, self._add_rows(row, ranks), strict=True):
                numbers[position] = number
        self._add_dependencies(numbers, sources)
        for one in operations:
            self.producer[one.name] = numbers

    def _add_messages(self, operation: Operation) -> None:
        """Add a SEND on each rank of the sending group, and a RECV on its partner, for a Send.

        Partners have the same position in both groups. All these messages have one tag, which
        no other Send has. A message has the bytes of the result on one rank. The SEND waits for
        the producer of the operand; the RECV becomes the producer of the result.
        """
        sender = self.program.types[operation.reads[0]].group
        kind = self.program.types[operation.name]
        row = {"name": self._add_name(operation.name), "tag": len(self.names)}
        row["bytes"] = self.binding.bytes_of_rank(kind)
        row["extra"] = self.statements.add([operation])
        sources, targets = self.binding.ranks_of(sender), self.binding.ranks_of(kind.group)
        sends = self._add_rows(row | {"kind": int(NodeKind.SEND)}, sources, targets)
        self._add_dependencies(sends, operation.reads)
        receives = self._add_rows(row | {"kind": int(NodeKind.RECV)}, targets, sources)
        self.producer[operation.name] = receives

    def _add_rows(
        self, row: dict[str, int], ranks: Sequence[int], peers: Sequence[int] | None = None
    ) -> Sequence[int]:
        """Add a node with the columns `row` on each of `ranks`; return the row numbers.

        Other columns have their defaults. `peers`: peer of each node, for messages, in the
        order of `ranks`; None means no peers (-1).
        """
        first, self.num_rows = self.num_rows, self.num_rows + len(ranks)
        self.rows.append((dict(row), ranks, peers or [-1] * len(ranks)))
        return range(first, self.num_rows)

    def _add_dependencies(self, numbers: Sequence[int], reads: Iterable[str]) -> None:
        """Let nodes wait for the producers of their operands, rank by rank.

        Node i of `numbers` waits for node i of the producers of each value; arguments have none.
        """
        for read in dict.fromkeys(reads):
            if read in self.producer:
                self.edges.append((self.producer[read], numbers))

    def _add_name(self, name: str) -> int:
        """Append a name to the names of the workload, and return its number, counted from 0.

        Every call adds a name, also if an equal one exists.
        """
        self.names.append(name)
        return len(self.names) - 1


def read(source: Source, options: ProgramOptions) -> Workload:
    """Read the JSON document of a program, and return its workload (see `lower`).

    `options` has numbers for symbols (`sizes`), for axes of the mesh (`mesh`), and for the ranks of
    a group (`num_ranks`). They take precedence over those of the document. Of a range such as
    `N=8..16` the minimum, 8, is taken. A symbol with a single possible size needs no number.
    Without any number of ranks, a table of counts or 4 decides (`bind_sizes`). The provenance of
    the workload names the source and its SHA-256.

    Raises `UsageError` for a text in `sizes` or `mesh` that is no list such as `B=8,N=8..16`.
    Raises `InputError`, located in the file, for:

    - a document that is damaged, violates the schema or has typing errors
    - numbers that are missing or out of bounds
    - a program that was captured on another number of ranks
    """
    sizes = take_minimum_sizes(parse_ranges(options.sizes))
    mesh = take_minimum_sizes(parse_ranges(options.mesh))
    try:
        bound = bound_from_json(source.content(), source.name, options.num_ranks, sizes, mesh)
        return lower_source(bound, source)
    except InputError as error:
        raise InputError(
            [_locate_in_file(diagnostic, source.name) for diagnostic in error.diagnostics]
        ) from None


def _locate_in_file(diagnostic: Diagnostic, file: str) -> Diagnostic:
    """Return a finding about the program with `file` as its location.

    A finding in `file` is returned unchanged. In any other finding, the line is the number
    of an operation. It is put before the message, as in `operation 3: ...`; without a line
    the message stays. The new location is only `file`, without a line.
    """
    location = diagnostic.location
    if location.file == file:
        return diagnostic
    number = "" if location.line is None else f"operation {location.line}: "
    message = number + diagnostic.message
    return replace(diagnostic, message=message, location=Location(file))


def lower_source(bound: BoundProgram, source: Source) -> Workload:
    """Lower a program that was read from a source to a workload (`lower`, with its errors).

    The provenance of the workload has the producer `coconet`, the version of this plugin
    ("" if it is not installed), and the name and SHA-256 of the source.
    """
    workload = lower(bound.program, bound.binding, bound.history)
    version = installed_version("collhub-coconet") or ""
    provenance = Provenance("coconet", version, source.name, source.sha256())
    return replace(workload, provenance=provenance)


def samples() -> Sequence[Source]:
    """Return an example: a gradient step of 16 elements with a ReduceScatter."""
    return [Source.of_bytes("step.program.json", _SAMPLE)]


_SAMPLE = b"""{
  "schema": "collhub/tensor-program-1",
  "name": "step",
  "sizes": {"N": [16, 16]},
  "arguments": [
    {"name": "g", "element": "float32", "shape": ["N"], "layout": "local"},
    {"name": "w", "element": "float32", "shape": ["N"], "layout": "replicated", "state": true}
  ],
  "operations": [
    {"name": "s", "kind": "ReduceScatter", "operands": ["g"], "reduction": "sum", "dimension": 0},
    {"name": "d", "kind": "Multiply", "operands": ["s", 0.5]},
    {"name": "a", "kind": "AllGather", "operands": ["d"]},
    {"name": "w1", "kind": "Update", "operands": ["w", "a"]}
  ],
  "outputs": ["w1"]
}
"""
