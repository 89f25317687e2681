"""Operations of all ranks as numpy columns, with tables of the values that many of them share."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

Value = TypeVar("Value", bound=Hashable)
Shapes = tuple[tuple[int, ...], ...]


class OperationState(IntEnum):
    """State of an operation when the dump was taken, in the order of its life."""

    SCHEDULED = 0
    STARTED = 1
    COMPLETED = 2


class Frame(NamedTuple):
    """One frame of a Python or C++ stack."""

    name: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.name} ({self.file}:{self.line})"


class RecordedCall(NamedTuple):
    """One recorded call without its times: calls of several ranks are compared by it.

    `operation` is the name without the backend. For a send or a receive, `source` and
    `destination` are ranks within the group, else -1.
    """

    backend: str
    operation: str
    input_shapes: Shapes
    output_shapes: Shapes
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    source: int = -1
    destination: int = -1

    @property
    def is_send(self) -> bool:
        """Whether the call sends a message."""
        return self.operation == "send"

    @property
    def is_message(self) -> bool:
        """Whether the call is a send or a receive between two ranks."""
        return self.source >= 0

    def __str__(self) -> str:
        if self.is_message:
            return f"{self.operation} {self.source}->{self.destination}"
        return self.operation


class Group(NamedTuple):
    """A process group. `ranks` is in the order of the group; None if no dump gives the members.

    `ordinal` distinguishes several groups with the same ranks and description.
    """

    ranks: tuple[int, ...] | None
    description: str
    ordinal: int
    name: str = ""


class DistinctValues(Generic[Value]):
    """Distinct values by number, in the order of their first use."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[Value, int] = {}

    def number(self, value: Value) -> int:
        """Return the number of a value in this table; a new value is appended to it.

        Equal values have one number; numbers begin at 0 and are positions in `values`.
        """
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number

    def __getitem__(self, number: int) -> Value:
        return self.values[number]


@dataclass(frozen=True)
class SharedTables:
    """Values that the operations of all ranks share."""

    groups: DistinctValues[Group] = field(default_factory=DistinctValues)
    calls: DistinctValues[tuple[RecordedCall, ...]] = field(default_factory=DistinctValues)
    stacks: DistinctValues[tuple[Frame, ...]] = field(default_factory=DistinctValues)


class RecordedOperation(NamedTuple):
    """One collective, one send or receive, or one batch of calls with a common sequence number.

    `started_ns` and `completed_ns` are 0 if the dump has none. `has_timed_out`: the watchdog
    removed the operation before it completed.
    """

    group: int
    is_p2p: bool
    sequence: int
    calls: int
    state: int
    has_timed_out: bool
    created_ns: int
    started_ns: int
    completed_ns: int
    timeout_ns: int
    stack: int


_TYPES = {
    "group": np.int32,
    "is_p2p": np.bool_,
    "sequence": np.int64,
    "calls": np.int32,
    "state": np.int8,
    "has_timed_out": np.bool_,
    "created_ns": np.int64,
    "started_ns": np.int64,
    "completed_ns": np.int64,
    "timeout_ns": np.int64,
    "stack": np.int32,
}


class GroupStatus(NamedTuple):
    """Sequence numbers of the last collectives of a group on one rank; -1 if there is none."""

    enqueued: int
    started: int
    completed: int


@dataclass(frozen=True)
class Dump:
    """The dump of one rank: its operations as columns, in the order in which it issued them.

    `status` is by group number. `is_overwritten`: the ring buffer lost the oldest entries.
    `has_completed`: completed operations are recorded. `records_starts`: so are starts.
    `has_gaps`: no operation is completed and record numbers are missing, as in dumps of active
    operations only (TORCH_INCLUDE_ONLY_ACTIVE).
    """

    rank: int
    file: str
    version: str
    columns: dict[str, NDArray[np.generic]]
    groups: frozenset[int]
    status: dict[int, GroupStatus]
    is_overwritten: bool
    has_completed: bool
    records_starts: bool
    notes: tuple[str, ...] = ()
    has_gaps: bool = False

    def __len__(self) -> int:
        return len(self.columns["group"])


def to_columns(operations: Sequence[RecordedOperation]) -> dict[str, NDArray[np.generic]]:
    """Return the operations as one array per field of `RecordedOperation`, in their order, by name.

    The element types are those of `_TYPES`. Without operations, all arrays are empty.
    """
    fields = zip(*operations, strict=True) if operations else ([] for _ in _TYPES)
    return {
        name: np.array(values, dtype=dtype)
        for (name, dtype), values in zip(_TYPES.items(), fields, strict=True)
    }


def fill_columns(count: int, **columns: npt.ArrayLike) -> dict[str, NDArray[np.generic]]:
    """Return the fields of `count` operations as arrays; fields that are not given are 0."""
    return {
        name: np.asarray(columns.get(name, np.zeros(count)), dtype)
        for name, dtype in _TYPES.items()
    }


@dataclass(frozen=True)
class Records:
    """The operations of all dumps: the rows of a dump are consecutive, in issue order."""

    dumps: dict[int, Dump]
    tables: SharedTables

    @cached_property
    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Columns of all dumps, joined in ascending order of ranks, and a column `rank`.

        Computed once. Without dumps, all columns are empty.
        """
        order = [self.dumps[rank] for rank in sorted(self.dumps)]
        columns = to_columns([])
        if order:
            columns = {
                name: np.concatenate([dump.columns[name] for dump in order]) for name in _TYPES
            }
        counts = [len(dump) for dump in order]
        columns["rank"] = np.repeat(np.array([dump.rank for dump in order], np.int64), counts)
        return columns

    @cached_property
    def first_row(self) -> dict[int, int]:
        """Row of the first operation of each rank, by rank.

        A rank without operations has the row at which they would begin. Computed once.
        """
        starts, row = {}, 0
        for rank in sorted(self.dumps):
            starts[rank] = row
            row += len(self.dumps[rank])
        return starts

    def rows_of(self, rank: int) -> range:
        """Return the rows of one rank in `columns`, in issue order, as a range.

        It is empty for a rank without operations. Raises `KeyError` for a rank without a dump.
        """
        start = self.first_row[rank]
        return range(start, start + len(self.dumps[rank]))

    def operation(self, row: int) -> RecordedOperation:
        """Return all fields of one row as Python values."""
        return RecordedOperation(*(self.columns[name][row].item() for name in _TYPES))

    def rank(self, row: int) -> int:
        """Return the rank of a row."""
        return int(self.columns["rank"][row])

    def members(self, group: int) -> tuple[int, ...]:
        """Return the ranks of a group, ascending.

        If no dump gives its members, they are the ranks whose dumps contain the group. Raises
        `KeyError` if there are none of these either.
        """
        ranks = self.tables.groups[group].ranks
        return tuple(sorted(ranks)) if ranks is not None else self.seen_members[group]

    @cached_property
    def seen_members(self) -> dict[int, tuple[int, ...]]:
        """Sorted ranks whose dumps name a group, by group; computed once.

        Groups are given by number; those that no dump names are missing.
        """
        members: dict[int, list[int]] = {}
        for rank in sorted(self.dumps):
            for group in self.dumps[rank].groups:
                members.setdefault(group, []).append(rank)
        return {group: tuple(ranks) for group, ranks in members.items()}

    @cached_property
    def has_only_active(self) -> bool:
        """Whether the dumps of the job leave out completed operations: one of them shows gaps."""
        return any(dump.has_gaps for dump in self.dumps.values())

    @cached_property
    def missing_dumps(self) -> tuple[int, ...]:
        """The ranks that recorded groups contain and that have no dump, ascending; computed once.

        Groups without recorded members do not count.
        """
        named = {rank for group in self.tables.groups.values for rank in group.ranks or ()}
        return tuple(sorted(named - set(self.dumps)))

    @cached_property
    def latest_ns(self) -> int:
        """Latest time in any dump in ns; 0 without any. Computed once.

        Times of creation, start and completion of calls count. It is a lower bound of the time at
        which the dumps were taken.
        """
        names = ("created_ns", "started_ns", "completed_ns")
        return max((int(self.columns[name].max(initial=0)) for name in names), default=0)

    def iterate_calls(self, row: int) -> Iterator[RecordedCall]:
        """The calls of an operation; more than one in a batch."""
        yield from self.tables.calls[int(self.columns["calls"][row])]
