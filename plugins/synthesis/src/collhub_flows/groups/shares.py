"""Shares of all groups in one table: who has each, who wants it, and how many bytes it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collhub_flows.demand import FlowDemand
from collhub_flows.groups.wishes import GroupWish
from hub_core.columns import BoolArray, ColumnTable, Float64Array, Int64Array
from hub_core.model import ALL_RANKS
from hub_core.schedules import Chunks


@dataclass(frozen=True, slots=True, eq=False)
class Shares(ColumnTable):
    """One row a share that travels; `row`: its place among the shares of its `group`.

    `root`: the NPU where it starts, or where it is summed up. `gathers`: all members add to it on
    the way to the root; `spreads`: it goes from the root to `target`, or to all members where
    `target` is -1. `bytes`: float64; the others int64 and bool.
    """

    group: Int64Array
    row: Int64Array
    root: Int64Array
    target: Int64Array
    gathers: BoolArray
    spreads: BoolArray
    bytes: Float64Array

    @classmethod
    def of(cls, wishes: Sequence[GroupWish]) -> Shares:
        """Shares of all groups, by group."""
        tables = [_of_group(number, wish) for number, wish in enumerate(wishes)]
        columns = (np.concatenate(column) for column in zip(*tables, strict=True))
        return cls(*columns)

    @property
    def are_pairs(self) -> bool:
        """Whether every share goes from one NPU to one other, and none is summed up."""
        return not bool(self.gathers.any()) and bool(np.all(self.target >= 0))

    def demand(self, num_npus: int) -> FlowDemand:
        """Demand of shares that are pairs; 1 stands for the largest sum of bytes of a pair."""
        table = np.zeros((num_npus, num_npus))
        # Groups that overlap may have several shares for one pair.
        np.add.at(table, (self.root, self.target), self.bytes)
        sources = np.flatnonzero(table.any(axis=1))
        return FlowDemand(sources, table[sources] / table.max())


def _of_group(
    number: int, wish: GroupWish
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array, BoolArray, BoolArray, Float64Array]:
    """The columns of the shares of one group."""
    chunks = chunks_of_shares(wish, 1)
    members = np.asarray(wish.npus)
    summed, wide = chunks.origin == ALL_RANKS, chunks.target == ALL_RANKS
    # A sum for all has its root on every member in turn.
    turn = np.arange(len(chunks)) % len(members)
    end = np.where(wide, turn, chunks.target)
    root = members[np.where(summed, end, chunks.origin)]
    target = np.where(wide, -1, members[chunks.target])
    # What stays with its rank does not travel.
    row = np.flatnonzero(summed | wide | (root != target))
    same = np.full(len(row), number, np.int64)
    size = np.full(len(row), wish.share_bytes)
    spreads = wide | ~summed
    return same, row, root[row], target[row], summed[row], spreads[row], size


def chunks_of_shares(wish: GroupWish, units: int) -> Chunks:
    """A chunk of `units` for every share of a group, those that stay with their rank included."""
    collective = wish.collective(units)
    # More than one where a vector that is not split has a share for every rank.
    pieces = collective.units_per_rank // units
    return Chunks.cut(collective, [units] * pieces)
