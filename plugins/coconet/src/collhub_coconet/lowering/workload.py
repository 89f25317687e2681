"""Lower a program to a workload: computations, one COLLECTIVE node a collective, messages.

Stages are one computation where no communication stands between their members. Chains are not cut
in chunks here: a workload says what runs, an algorithm how a collective does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from collhub_coconet.documents.from_workload import Statements
from collhub_coconet.documents.json_document import BoundProgram, History, bound_from_json
from collhub_coconet.options import ProgramOptions
from collhub_coconet.program.operations import Kind, Operation
from collhub_coconet.program.program import Program, reduces_scalar
from collhub_coconet.program.tensors import Binding, parsed_ranges, smallest
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
    Workload,
)
from hub_core.plugin_api import Source

_COLLECTIVES = {
    Kind.ALL_REDUCE: JobCollective.ALL_REDUCE,
    Kind.REDUCE_SCATTER: JobCollective.REDUCE_SCATTER,
    Kind.ALL_GATHER: JobCollective.ALL_GATHER,
    Kind.ALL_TO_ALL: JobCollective.ALL_TO_ALL,
    Kind.BROADCAST: JobCollective.BROADCAST,
    Kind.REDUCE: JobCollective.REDUCE,
}
_COLUMNS = ("rank", "kind", "name", "operations", "bytes", "collective", "root", "group", "extra")
_OF_MESSAGES = ("peer", "tag")


def lower(program: Program, binding: Binding, history: History = ()) -> Workload:
    """The workload of all groups: rank i of group k is rank k * p + i of the job.

    Blocks of a sliced tensor count as the longest one. Nodes state what they are made of, so that
    `program_of` gives the program back; `history`: the transformations so far. Raises `InputError`
    for a symbol that is not bound, and for a root that is no rank.
    """
    job = _Job(program, binding, Statements(BoundProgram(program, binding, history)))
    for kernel in program.kernels():
        job.add_kernel(kernel)
    return job.workload()


@dataclass(slots=True)
class _Job:
    """Rows under construction; `producer`: row that makes a value, one a rank of its group."""

    program: Program
    binding: Binding
    statements: Statements
    rows: list[dict[str, int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    edges: set[tuple[int, int]] = field(default_factory=set)
    producer: dict[str, list[int]] = field(default_factory=dict)

    def add_kernel(self, kernel: list[Operation]) -> None:
        """Add nodes for a kernel, with a computation between each two communications."""
        pending: list[Operation] = []
        for operation in kernel:
            if operation.is_communication:
                self._compute(pending)
                pending = []
                self._communicate(operation)
                continue
            pending.append(operation)
            if reduces_scalar(self.program, operation):
                self._compute(pending)
                pending = []
                self._collective(operation, JobCollective.ALL_REDUCE, -1)
        self._compute(pending)

    def workload(self) -> Workload:
        """The finished workload."""
        if not self.rows:
            # A program of views alone: nothing runs, and its nodes say so.
            stated = self.statements.add(())
            for rank in self.binding.ranks_of(0):
                self._row({"rank": rank, "kind": NodeKind.MARKER, "extra": stated})
        count = self.program.num_groups
        columns = {
            name: [row.get(name, 0 if name == "tag" else -1) for row in self.rows]
            for name in (*_COLUMNS, *_OF_MESSAGES)
        }
        parents, children = zip(*sorted(self.edges), strict=True) if self.edges else ((), ())
        nodes = NodeColumns.from_columns(
            self.binding.num_ranks * count,
            columns,
            (list(parents), list(children)),
            file=self.program.name,
        )
        groups = tuple(
            ProcessGroup(str(1 + group), tuple(self.binding.ranks_of(group)))
            for group in range(count)
        )
        return Workload(nodes, tuple(self.names), groups, extras=self.statements.extras())

    def _compute(self, operations: list[Operation]) -> None:
        """One COMPUTE node a rank for operations without communication between them."""
        working = [one for one in operations if one.kind is not Kind.SLICE]
        for operation in operations:
            if operation.kind is Kind.SLICE and operation.reads[0] in self.producer:
                # A view of what somebody else makes.
                self.producer[operation.name] = self.producer[operation.reads[0]]
            if operation.kind is Kind.SLICE:
                self.statements.view(operation)
        if not working:
            return
        stated = self.statements.add(working)
        name = self._name("+".join(one.name for one in working))
        # Kernels do not cross groups.
        group = self.program.types[working[0].name].group
        count = sum(count_operations(self.program, one, self.binding) for one in working)
        touched = count_memory_bytes(self.program, operations, self.binding)
        made = []
        for rank in self.binding.ranks_of(group):
            row = {"rank": rank, "kind": NodeKind.COMPUTE, "name": name, "extra": stated}
            made.append(self._row(row | {"operations": count, "bytes": touched}))
        self._depend(made, (read for one in operations for read in one.reads))
        self.producer |= dict.fromkeys((one.name for one in working), made)

    def _communicate(self, operation: Operation) -> None:
        """Add a collective, or a message."""
        # Between groups there is no collective.
        if operation.kind is Kind.SEND:
            self._message(operation)
            return
        root = -1 if operation.root is None else self._root(operation)
        self._collective(operation, _COLLECTIVES[operation.kind], root)

    def _collective(self, operation: Operation, kind: JobCollective, root: int) -> None:
        """One COLLECTIVE node a rank; bytes of the buffer that a rank puts in."""
        # A norm of slices is all-reduced behind the computation.
        is_scalar = not operation.is_communication
        operand = self.program.types[operation.name if is_scalar else operation.reads[0]]
        row = {"kind": NodeKind.COLLECTIVE, "collective": kind, "root": root}
        row |= {"name": self._name(operation.name), "group": operand.group}
        row["bytes"] = self.binding.bytes_of_rank(operand)
        row["extra"] = self.statements.add([operation])
        made = [self._row(row | {"rank": rank}) for rank in self.binding.ranks_of(operand.group)]
        self._depend(made, [operation.name] if is_scalar else operation.reads)
        self.producer[operation.name] = made

    def _message(self, operation: Operation) -> None:
        """SEND on the ranks of one group, RECV on those of the other; one tag an operation."""
        # Rank i of one group and rank i of the other are a pair.
        sender = self.program.types[operation.reads[0]].group
        kind = self.program.types[operation.name]
        row = {"name": self._name(operation.name), "tag": len(self.names)}
        row["bytes"] = self.binding.bytes_of_rank(kind)
        row["extra"] = self.statements.add([operation])
        ends = self.binding.ranks_of(sender), self.binding.ranks_of(kind.group)
        pairs = list(zip(*ends, strict=True))
        sends = [
            self._row(row | {"rank": one, "peer": other, "kind": NodeKind.SEND})
            for one, other in pairs
        ]
        self._depend(sends, operation.reads)
        self.producer[operation.name] = [
            self._row(row | {"rank": other, "peer": one, "kind": NodeKind.RECV})
            for one, other in pairs
        ]

    def _root(self, operation: Operation) -> int:
        """The root as a rank of the job."""
        root, ranks = operation.root or 0, self.binding.num_ranks
        if not 0 <= root < ranks:
            message = f"{operation.name}: root {root} is no rank of {ranks}"
            place = Location(self.program.name)
            raise InputError(message, location=place, cure="count ranks from 0", code="root")
        return self.program.types[operation.name].group * ranks + root

    def _row(self, row: dict[str, int]) -> int:
        """Enter a row.

        Returns its number, by which dependencies name it.
        """
        self.rows.append(row)
        return len(self.rows) - 1

    def _depend(self, made: list[int], reads: Iterable[str]) -> None:
        """Let nodes wait for those that make what they read, rank by rank."""
        for read in reads:
            # Arguments are there from the start.
            for parent, child in zip(self.producer.get(read, ()), made, strict=False):
                self.edges.add((parent, child))

    def _name(self, name: str) -> int:
        """Enter a name; its number."""
        self.names.append(name)
        return len(self.names) - 1


def read(source: Source, options: ProgramOptions) -> Workload:
    """The workload of a program; a symbol of one size only needs none in the options.

    Raises `InputError` for a program that is ill typed, or a size out of its bounds.
    """
    sizes = smallest(parsed_ranges(options.sizes))
    try:
        bound = bound_from_json(source.content(), source.name, options.num_ranks, sizes)
        return lowered(bound, source)
    except InputError as error:
        raise InputError([_in_file(one, source.name) for one in error.diagnostics]) from None


def _in_file(diagnostic: Diagnostic, file: str) -> Diagnostic:
    """A finding located in the file: checks of a program know its name and number of operation."""
    location = diagnostic.location
    if location.file == file:
        return diagnostic
    number = "" if location.line is None else f"operation {location.line}: "
    message = number + diagnostic.message
    return replace(diagnostic, message=message, location=Location(file))


def lowered(bound: BoundProgram, source: Source) -> Workload:
    """The workload of a program that a source describes."""
    # Who made it is told of every workload.
    workload = lower(bound.program, bound.binding, bound.history)
    version = installed_version("collhub-coconet") or ""
    provenance = Provenance("coconet", version, source.name, source.sha256())
    return replace(workload, provenance=provenance)


def samples() -> Sequence[Source]:
    """A scattered gradient step of 16 elements."""
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
