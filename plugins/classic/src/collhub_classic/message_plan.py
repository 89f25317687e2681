"""Plans of messages in rounds: who sends which blocks to whom, before any buffer is chosen.

All messages of a round are sent from the state before the round. A plan of an all-gather read
backwards is one of a reduce-scatter; plans after one another, beside one another and under other
names make the larger algorithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from collhub_columns import BoolArray, ColumnTable, Int64Array, expanded_ranges, row_pointer


@dataclass(frozen=True, slots=True, eq=False)
class MessagePlan(ColumnTable):
    """Messages as columns, one row each, in the order of their rounds.

    `round`, `source`, `destination`, `channel`: int64. `reduces`: the blocks are added to what the
    destination has, else they replace it. The blocks of message i are
    `blocks[indptr[i]:indptr[i + 1]]`, numbers of 0..num_blocks - 1.
    """

    num_ranks: int
    num_blocks: int
    round: Int64Array
    source: Int64Array
    destination: Int64Array
    channel: Int64Array
    reduces: BoolArray
    indptr: Int64Array
    blocks: Int64Array

    @property
    def num_rounds(self) -> int:
        """Rounds from the first to the last one."""
        return int(self.round.max(initial=-1)) + 1

    @property
    def counts(self) -> Int64Array:
        """Blocks of every message, int64."""
        return np.diff(self.indptr)

    def backwards(self, *, reduces: bool) -> MessagePlan:
        """The same messages the other way, last round first: what was spread is collected."""
        order = np.argsort(-self.round, kind="stable")
        turned = self._rows(order)
        return replace(
            turned,
            round=self.num_rounds - 1 - turned.round,
            source=turned.destination,
            destination=turned.source,
            reduces=np.full(len(self), reduces),
        )

    def then(self, other: MessagePlan) -> MessagePlan:
        """This plan, and after its last round the other one on the same blocks."""
        # Rounds count on.
        later = replace(other, round=other.round + self.num_rounds)
        return _joined([self, later], self.num_blocks)

    def renamed(
        self, ranks: npt.ArrayLike, blocks: npt.ArrayLike, num_blocks: int | None = None
    ) -> MessagePlan:
        """Rank r becomes `ranks[r]`, block b `blocks[b]`."""
        rank_of = np.asarray(ranks, np.int64)
        block_of = np.asarray(blocks, np.int64)
        return replace(
            self,
            num_ranks=max(self.num_ranks, int(rank_of.max()) + 1),
            num_blocks=self.num_blocks if num_blocks is None else num_blocks,
            source=rank_of[self.source],
            destination=rank_of[self.destination],
            blocks=block_of[self.blocks],
        )

    def expanded(self, first: Int64Array, count: Int64Array, num_blocks: int) -> MessagePlan:
        """Block b becomes the blocks first[b], first[b] + 1, ..., `count[b]` of them."""
        sizes = count[self.blocks]
        ends = row_pointer(sizes)
        return replace(
            self,
            num_blocks=num_blocks,
            indptr=ends[self.indptr],
            blocks=expanded_ranges(first[self.blocks], sizes),
        )

    def _rows(self, rows: Int64Array) -> MessagePlan:
        """Some messages, in this order."""
        counts = self.counts[rows]
        return replace(
            self,
            round=self.round[rows],
            source=self.source[rows],
            destination=self.destination[rows],
            channel=self.channel[rows],
            reduces=self.reduces[rows],
            indptr=row_pointer(counts),
            blocks=self.blocks[expanded_ranges(self.indptr[rows], counts)],
        )


def beside(plans: Sequence[MessagePlan]) -> MessagePlan:
    """Plans of the same ranks and blocks at the same time, each on a part of every block.

    Block b of plan j of k becomes block b * k + j, on a channel of its own.
    """
    parts = len(plans)
    placed = []
    for part, plan in enumerate(plans):
        blocks = plan.blocks * parts + part
        placed.append(replace(plan, blocks=blocks, channel=np.full(len(plan), part)))
    return _joined(placed, plans[0].num_blocks * parts)


def _joined(plans: Sequence[MessagePlan], num_blocks: int) -> MessagePlan:
    """All messages of several plans, by round."""
    joined = MessagePlan(
        max(plan.num_ranks for plan in plans),
        num_blocks,
        np.concatenate([plan.round for plan in plans]),
        np.concatenate([plan.source for plan in plans]),
        np.concatenate([plan.destination for plan in plans]),
        np.concatenate([plan.channel for plan in plans]),
        np.concatenate([plan.reduces for plan in plans]),
        row_pointer(np.concatenate([plan.counts for plan in plans])),
        np.concatenate([plan.blocks for plan in plans]),
    )
    return joined._rows(np.argsort(joined.round, kind="stable"))


class PlanBuilder:
    """Collects the messages of a plan round by round."""

    def __init__(self, num_ranks: int, num_blocks: int) -> None:
        """Begin without messages, before the first round."""
        self._num_ranks = num_ranks
        self._num_blocks = num_blocks
        self._round = -1
        self._columns: dict[str, list[Int64Array]] = {
            name: [] for name in ("round", "source", "destination", "reduces", "counts", "blocks")
        }

    def next_round(self) -> None:
        """What is sent from now on is of the next round."""
        self._round += 1

    def send(
        self,
        source: npt.ArrayLike,
        destination: npt.ArrayLike,
        blocks: npt.ArrayLike,
        *,
        reduces: bool = False,
    ) -> None:
        """Send in the present round row i of `blocks`, modulo their number, from `source[i]`.

        `blocks`: int64[messages, blocks of each], or [messages] for one block each.
        """
        rows = np.size(source)
        table = np.asarray(blocks, np.int64).reshape(rows, -1 if rows else 1)
        counts = np.full(len(table), table.shape[1])
        self._add(source, destination, counts, table.ravel(), reduces)

    def send_ranges(
        self,
        source: npt.ArrayLike,
        destination: npt.ArrayLike,
        first: npt.ArrayLike,
        count: npt.ArrayLike,
        *,
        reduces: bool = False,
    ) -> None:
        """Send in the present round the blocks first, first + 1, ..., modulo their number."""
        counts = np.broadcast_to(np.asarray(count, np.int64), np.shape(source))
        starts = np.broadcast_to(np.asarray(first, np.int64), np.shape(source))
        self._add(source, destination, counts, expanded_ranges(starts, counts), reduces)

    def build(self) -> MessagePlan:
        """The plan."""
        columns = {
            name: np.concatenate([np.zeros(0, np.int64), *parts])
            for name, parts in self._columns.items()
        }
        return MessagePlan(
            self._num_ranks,
            self._num_blocks,
            columns["round"],
            columns["source"],
            columns["destination"],
            np.zeros(len(columns["round"]), np.int64),
            columns["reduces"].astype(np.bool_),
            row_pointer(columns["counts"]),
            columns["blocks"],
        )

    def _add(
        self,
        source: npt.ArrayLike,
        destination: npt.ArrayLike,
        counts: Int64Array,
        blocks: Int64Array,
        reduces: bool,
    ) -> None:
        given = {
            "round": np.full(len(counts), self._round),
            "source": np.asarray(source, np.int64).ravel(),
            "destination": np.asarray(destination, np.int64).ravel(),
            "reduces": np.full(len(counts), reduces, np.int64),
            "counts": counts,
            "blocks": blocks % self._num_blocks,
        }
        for name, column in given.items():
            self._columns[name].append(column)
