"""What a timeline shows: the steps of an algorithm, or the nodes of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Protocol, TypeVar

import numpy as np

from hub_core import job_partners
from hub_core.columns import BoolArray, Int64Array, RankTable
from hub_core.model import (
    Algorithm,
    Findings,
    JobCollective,
    NodeKind,
    StepKind,
    Workload,
    match_messages,
    message_bytes,
)

_Kind = TypeVar("_Kind", bound=IntEnum)
Facts = dict[str, str | int | float]

_STEP_NAMES = {
    StepKind.SEND: "send to {}",
    StepKind.RECV: "receive from {}",
    StepKind.RECV_REDUCE: "receive and reduce from {}",
    StepKind.COPY: "copy",
    StepKind.REDUCE: "reduce",
    StepKind.COMPUTE: "compute",
}
_STEP_TRACKS = {
    StepKind.SEND: 0,
    StepKind.RECV: 1,
    StepKind.RECV_REDUCE: 1,
    StepKind.COPY: 2,
    StepKind.REDUCE: 2,
    StepKind.COMPUTE: 2,
}
# Columns that slices tell, and the least value that says something.
_STATED_OF_STEPS = (("channel", "channel", 1), ("lane", "lane", 0), ("line", "source_line", 0))
_NODE_TRACKS = {
    NodeKind.COLLECTIVE: 0,
    NodeKind.SEND: 1,
    NodeKind.RECV: 2,
    NodeKind.LOAD: 3,
    NodeKind.STORE: 3,
    NodeKind.COMPUTE: 4,
    NodeKind.MARKER: 4,
}
_STATED_OF_NODES = (("bytes", "bytes", 0), ("operations", "operations", 0), ("tag", "tag", 1))


class Subject(Protocol):
    """Rows to show.

    `noun`: one of them; `tracks`: names of the tracks of a rank from above; `track`: int64 by row,
    index of its track; `is_message`: bool by row, whether it sends or receives.
    """

    @property
    def table(self) -> RankTable:
        """The rows."""

    @property
    def noun(self) -> str:
        """One row."""

    @property
    def tracks(self) -> Sequence[str]:
        """Tracks of a rank."""

    @property
    def track(self) -> Int64Array:
        """Index of the track of every row."""

    @property
    def is_message(self) -> BoolArray:
        """Sends and receives."""

    def partners(self, start: Int64Array, end: Int64Array) -> Int64Array:
        """For every row the one whose start it needs, mostly itself: of a receive its send."""

    def name(self, row: int) -> str:
        """The name of a slice."""

    def facts(self, row: int) -> Facts:
        """What else is known of a row, but its times."""


class AlgorithmSteps:
    """The steps of an algorithm, as `Subject`, with messages of a buffer of some bytes."""

    noun = "step"
    tracks = ("send", "receive", "compute")

    def __init__(self, algorithm: Algorithm, collective_bytes: int) -> None:
        """Sizes of messages are those of units that the collective has."""
        steps = self.table = algorithm.steps
        self.track: Int64Array = _by_kind(_STEP_TRACKS)[steps.kind]
        self.is_message: BoolArray = steps.sends | steps.receives
        units = algorithm.collective.unit_count
        self._sizes = message_bytes(collective_bytes, units, steps.count)

    def partners(self, start: Int64Array, end: Int64Array) -> Int64Array:
        """Of a receive its send."""
        pairs = match_messages(self.table, Findings())
        found = np.arange(len(self.table))
        found[pairs.receive] = pairs.send
        return found

    def name(self, row: int) -> str:
        """The kind of a step, and the other rank."""
        return _STEP_NAMES[StepKind(self.table.kind[row])].format(self.table.peer[row])

    def facts(self, row: int) -> Facts:
        """Place, bytes, and what the producer says of it."""
        known: Facts = {"step": self.table.step_of(row), "bytes": int(self._sizes[row])}
        return known | _stated(self.table, row, _STATED_OF_STEPS)


class JobNodes:
    """The nodes of a job, as `Subject`."""

    noun = "node"
    tracks = ("collective", "send", "receive", "memory", "compute")

    def __init__(self, workload: Workload) -> None:
        """Nothing is copied."""
        self._workload = workload
        nodes = self.table = workload.nodes
        self.track: Int64Array = _by_kind(_NODE_TRACKS)[nodes.kind]
        self.is_message: BoolArray = nodes.is_kind(NodeKind.SEND, NodeKind.RECV)

    def partners(self, start: Int64Array, end: Int64Array) -> Int64Array:
        """Of a receive its send, of a collective the member that began last."""
        return job_partners(self._workload, start, end)

    def name(self, row: int) -> str:
        """The name that the job gives a node, or what it does."""
        name = int(self.table.name[row])
        return self._workload.names[name] if name >= 0 else self._sort(row)

    def facts(self, row: int) -> Facts:
        """Id, kind, group and sizes."""
        known: Facts = {"node": int(self.table.identity[row]), "kind": self._sort(row)}
        group = int(self.table.group[row])
        if group >= 0:
            known["group"] = self._workload.groups[group].name
        return known | _stated(self.table, row, _STATED_OF_NODES)

    def _sort(self, row: int) -> str:
        """A collective by its kind, a message with the other rank."""
        kind, nodes = NodeKind(self.table.kind[row]), self.table
        if kind is NodeKind.COLLECTIVE and nodes.collective[row] >= 0:
            return JobCollective(nodes.collective[row]).name.lower().replace("_", "-")
        if kind is NodeKind.SEND:
            return f"send to {nodes.peer[row]}"
        return f"receive from {nodes.peer[row]}" if kind is NodeKind.RECV else kind.name.lower()


def _by_kind(tracks: Mapping[_Kind, int]) -> Int64Array:
    """Tracks in the order of kinds, int64."""
    return np.asarray([tracks[kind] for kind in sorted(tracks)], np.int64)


def _stated(table: RankTable, row: int, columns: Sequence[tuple[str, str, int]]) -> Facts:
    """Values of columns by the names that slices give them, where they say something."""
    values = ((name, int(getattr(table, column)[row]), least) for name, column, least in columns)
    return {name: value for name, value, least in values if value >= least}
