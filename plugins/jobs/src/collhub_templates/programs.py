"""Programs of ranks, and jobs of many ranks that run one program in different groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hub_core import Provenance, UsageError
from hub_core.columns import Int64Array, positions_in
from hub_core.model import (
    MAX_UNITS,
    JobCollective,
    NodeColumns,
    NodeKind,
    ProcessGroup,
    Workload,
)

_COLUMNS = (
    "kind",
    "name",
    "duration_ns",
    "operations",
    "bytes",
    "collective",
    "role",
    "shift",
    "tag",
)


def to_columns(columns: Mapping[str, Sequence[int]]) -> dict[str, Int64Array]:
    """Convert columns of nodes from numbers of any size to int64[nodes], by name.

    Raises `UsageError` (`too-large`) if a number exceeds `MAX_UNITS` (2^62).
    """
    for name, values in columns.items():
        check_number(name, max(values, default=0))
    return {name: np.asarray(values, np.int64) for name, values in columns.items()}


def check_number(name: str, value: int) -> None:
    """Raise `UsageError` (`too-large`) if the value of the column `name` exceeds 2^62."""
    if value > MAX_UNITS:
        message = f"{name} of a node: a number of {value.bit_length()} bits is above 2^62"
        raise UsageError(message, cure="choose smaller sizes of the model", code="too-large")


class RankProgram:
    """Nodes of a rank in slot order.

    Groups are named by roles (`tensor`, `data`), and peers by how much higher their rank is, so
    that all ranks of a stage share one program.
    """

    def __init__(self, roles: Sequence[str]) -> None:
        """Create an empty program of one rank.

        `roles`: names of the groups that its collectives use; `job_of` must get the same roles in
        the same order.
        """
        self._roles = {role: index for index, role in enumerate(roles)}
        self.names: dict[str, int] = {}
        self.columns: dict[str, list[int]] = {name: [] for name in _COLUMNS}
        self.data: tuple[list[int], list[int]] = ([], [])
        self.control: tuple[list[int], list[int]] = ([], [])

    def __len__(self) -> int:
        return len(self.columns["kind"])

    def compute(self, name: str, after: Sequence[int], before: Sequence[int], **values: int) -> int:
        """A computation that takes the data of `after`, and starts behind `before`.

        `values`: of the columns `duration_ns`, `operations` and `bytes`. Returns its row.
        """
        return self._add(NodeKind.COMPUTE, name, after, before, values)

    def collective(
        self,
        name: str,
        kind: JobCollective,
        size: int,
        role: str,
        after: Sequence[int],
        before: Sequence[int] = (),
    ) -> int:
        """Add a collective of `size` bytes in the rank's group of a role; return its row.

        `after`: rows whose data it needs; `before`: rows after which it starts (control
        dependencies). Raises `KeyError` for a role that the program does not have.
        """
        values = {"collective": int(kind), "bytes": size, "role": self._roles[role]}
        return self._add(NodeKind.COLLECTIVE, name, after, before, values)

    def message(
        self, kind: NodeKind, name: str, size: int, shift: int, tag: int, after: Sequence[int]
    ) -> int:
        """Add a SEND to, or a RECV from, the rank that is `shift` higher; return its row.

        `kind`: SEND or RECV; a negative `shift` means a lower rank, 0 no peer. `size`: bytes;
        `tag`: equal on both sides; `after`: rows whose data it needs.
        """
        values = {
            "bytes": size,
            "shift": shift,
            "tag": tag,
        }
        return self._add(kind, name, after, (), values)

    def _add(
        self,
        kind: NodeKind,
        name: str,
        after: Sequence[int],
        before: Sequence[int],
        values: Mapping[str, int],
    ) -> int:
        row = len(self)
        # Names are few, nodes are many: the column holds indices.
        index = self.names.setdefault(name, len(self.names))
        stated = {"kind": int(kind), "name": index, "shift": 0, "tag": 0, **values}
        for column, entries in self.columns.items():
            entries.append(stated.get(column, -1))
        for (parents, children), rows in ((self.data, after), (self.control, before)):
            # Both lists grow alike: entry i of each is dependency i.
            parents.extend(rows)
            children.extend([row] * len(rows))
        return row


@dataclass(frozen=True, slots=True)
class RankPrograms:
    """A program and the ranks, ascending, that run it."""

    program: RankProgram
    ranks: Int64Array


def job_of(
    stages: Sequence[RankPrograms],
    roles: Mapping[str, Int64Array],
    producer: str,
) -> Workload:
    """Build the workload of all stages; every rank gets the nodes of the program of its stage.

    The ranks of all stages together must be 0, 1, 2 and so on, each in one stage. Nodes are ordered
    by rank, then as in the program, also if the stages are not in the order of ranks. Dependencies
    of the program are repeated for each rank. There must be at least one stage.

    `roles`: for each role a table (int64) with one group of ranks per row, padded with -1. A rank
    should be in at most one group of a role; of several, the last counts. A group is created only
    if all its members use the role in some node. Groups are named "1", "2" and so on, by role, then
    by row, with the members in the order of the row. Nodes of ranks without a created group in this
    role have group -1.

    The node names are in the order in which the stages use them first. `producer` is only stored in
    the provenance.
    """
    rank_count = sum(len(stage.ranks) for stage in stages)
    used = [np.zeros(rank_count, np.bool_) for _ in roles]
    for stage in stages:
        for role in set(stage.program.columns["role"]) - {-1}:
            used[role][stage.ranks] = True
    group_of = np.full((len(roles), rank_count), -1, np.int64)
    groups: list[ProcessGroup] = []
    for role, table in enumerate(roles.values()):
        for row in table:
            # Groups of a role may differ in size.
            members = row[row >= 0]
            if used[role][members].all():
                group_of[role, members] = len(groups)
                groups.append(ProcessGroup(str(len(groups) + 1), tuple(members.tolist())))
    names: dict[str, int] = {}
    parts = [_columns(stage, group_of, names) for stage in stages]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    first = np.cumsum([0, *(len(part["rank"]) for part in parts[:-1])])
    data = _edges_of_all(stages, first, "data")
    control = _edges_of_all(stages, first, "control")
    nodes = NodeColumns.from_columns(rank_count, columns, data, control)
    return Workload(nodes, tuple(names), tuple(groups), provenance=Provenance(producer=producer))


def _columns(
    stage: RankPrograms, group_of: Int64Array, names: dict[str, int]
) -> dict[str, Int64Array]:
    """Return the int64 columns of the nodes of a stage, rank by rank in the order of `stage.ranks`.

    All ranks have the nodes of the program in its order. The columns `kind`, `duration_ns`,
    `operations`, `bytes`, `collective` and `tag` are those of the program. The others are:

    - `name`: index of the name in `names`, which is changed: new names get the next index.
    - `rank`: the rank that runs the node.
    - `group`: `group_of[role, rank]` for the role of the node; -1 without a role. `group_of`:
      int64[roles, ranks], -1 for none.
    - `peer`: rank + shift; -1 for a shift of 0. It is not checked, and may be no rank of the job.

    Raises `UsageError` (`too-large`) for a number of the program above 2^62.
    """
    program, count = stage.program, len(stage.ranks)
    index = [names.setdefault(name, len(names)) for name in program.names]
    rank_columns = to_columns(program.columns)
    rank_columns["name"] = np.asarray(index, np.int64)[rank_columns["name"]]
    role, shift = rank_columns.pop("role"), rank_columns.pop("shift")
    columns = {name: np.tile(values, count) for name, values in rank_columns.items()}
    columns["rank"] = np.repeat(stage.ranks, len(program))
    ranks = stage.ranks[:, None]
    columns["group"] = np.where(role < 0, -1, group_of[role, ranks]).ravel()
    columns["peer"] = np.where(shift == 0, -1, ranks + shift).ravel()
    return columns


def _edges_of_all(
    stages: Sequence[RankPrograms], first: Int64Array, kind: str
) -> tuple[Int64Array, Int64Array]:
    """Return the dependencies of all ranks as (parents, children): stage by stage, rank by rank.

    `kind`: `data` or `control`, the attribute of a program with the dependencies of one
    rank, which are repeated for every rank of the stage. `first`: int64[stages], the row of
    the first node of each stage.
    """
    sides = [
        repeat_edges(getattr(stage.program, kind), len(stage.program), len(stage.ranks), row)
        for stage, row in zip(stages, first.tolist(), strict=True)
    ]
    parents, children = (np.concatenate(side) for side in zip(*sides, strict=True))
    return parents, children


def repeat_edges(
    edges: tuple[Sequence[int], Sequence[int]], rows: int, copies: int, first: int = 0
) -> tuple[Int64Array, Int64Array]:
    """Repeat the edges of a program for `copies` consecutive blocks of `rows` nodes each.

    `first`: first row of the first block. Returns (parents, children), block by block.
    """
    starts = first + rows * np.arange(copies, dtype=np.int64)[:, None]
    parents, children = ((starts + np.asarray(side, np.int64)).ravel() for side in edges)
    return parents, children


def number_by_use(values: Int64Array, count: int) -> tuple[Int64Array, Int64Array]:
    """Give the distinct values new numbers from 0, in the order of their first use.

    `values`: integers below `count`; negative ones are ignored. Returns the distinct values
    in this order, and int64[count + 1] with the new number of each old value: -1 for an
    unused one. Its last entry is -1, so that the index -1 (no value) remains -1.
    """
    used, first = np.unique(values[values >= 0], return_index=True)
    order = used[np.argsort(first)]
    return order, positions_in(order, count + 1)
