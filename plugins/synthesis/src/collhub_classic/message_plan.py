"""Plans of messages in rounds: which ranks send which blocks, before buffers are chosen.

All messages of a round are sent from the state before the round. The reversed plan of an all-gather
is one of a reduce-scatter. Larger algorithms are composed of plans in sequence, in parallel, and
with renamed ranks and blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hub_core.columns import BoolArray, ColumnTable, Int64Array, expanded_ranges, row_pointer


@dataclass(frozen=True, slots=True, eq=False)
class MessagePlan(ColumnTable):
    """Messages as columns, one row each, sorted by round.

    `round`, `source`, `destination`, `channel`: int64. `reduces` (bool): the blocks are added to
    the destination's data, otherwise they replace it. The blocks of message i are
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
        """Number of rounds."""
        return int(self.round.max(initial=-1)) + 1

    @property
    def counts(self) -> Int64Array:
        """Number of blocks of every message, int64."""
        return np.diff(self.indptr)

    def backwards(self, *, reduces: bool) -> MessagePlan:
        """Reverse all messages, last round first: data that was spread is collected (and
        reduced).
        """
        order = np.argsort(-self.round, kind="stable")
        reversed_plan = self._select_rows(order)
        return replace(
            reversed_plan,
            round=self.num_rounds - 1 - reversed_plan.round,
            source=reversed_plan.destination,
            destination=reversed_plan.source,
            reduces=np.full(len(self), reduces),
        )

    def then(self, next_plan: MessagePlan) -> MessagePlan:
        """Append another plan on the same blocks after the last round."""
        later = replace(next_plan, round=next_plan.round + self.num_rounds)
        return _join_plans([self, later], self.num_blocks)

    def renamed(
        self, ranks: npt.ArrayLike, blocks: npt.ArrayLike, num_blocks: int | None = None
    ) -> MessagePlan:
        """Rename rank r to `ranks[r]` and block b to `blocks[b]`."""
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
        """Replace block b by the `count[b]` blocks first[b], first[b] + 1, ..."""
        sizes = count[self.blocks]
        bounds = row_pointer(sizes)
        return replace(
            self,
            num_blocks=num_blocks,
            indptr=bounds[self.indptr],
            blocks=expanded_ranges(first[self.blocks], sizes),
        )

    def _select_rows(self, rows: Int64Array) -> MessagePlan:
        """Select messages, in the given order."""
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


def combine_in_parallel(plans: Sequence[MessagePlan]) -> MessagePlan:
    """Combine plans of the same ranks and blocks in parallel, each on a part of every block.

    Block b of plan j of k becomes block b * k + j, on channel j.
    """
    parts = len(plans)
    plan_parts = []
    for part, plan in enumerate(plans):
        blocks = plan.blocks * parts + part
        plan_parts.append(replace(plan, blocks=blocks, channel=np.full(len(plan), part)))
    return _join_plans(plan_parts, plans[0].num_blocks * parts)


def _join_plans(plans: Sequence[MessagePlan], num_blocks: int) -> MessagePlan:
    """Join the messages of several plans, sorted by round."""
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
    return joined._select_rows(np.argsort(joined.round, kind="stable"))


class PlanBuilder:
    """Collects the messages of a plan round by round."""

    def __init__(self, num_ranks: int, num_blocks: int) -> None:
        """Start without messages, before the first round."""
        self._num_ranks = num_ranks
        self._num_blocks = num_blocks
        self._round = -1
        self._columns: dict[str, list[Int64Array]] = {
            name: [] for name in ("round", "source", "destination", "reduces", "counts", "blocks")
        }

    def next_round(self) -> None:
        """Begin the next round; following messages belong to it."""
        self._round += 1

    def send(
        self,
        source: npt.ArrayLike,
        destination: npt.ArrayLike,
        blocks: npt.ArrayLike,
        *,
        reduces: bool = False,
    ) -> None:
        """Send row i of `blocks`, modulo their number, from `source[i]` in the current round.

        `blocks`: int64[messages, blocks per message], or [messages] for one block each.
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
        """Send the blocks first, first + 1, ...

        (`count`), modulo their number, in the current round.
        """
        counts = np.broadcast_to(np.asarray(count, np.int64), np.shape(source))
        starts = np.broadcast_to(np.asarray(first, np.int64), np.shape(source))
        self._add(source, destination, counts, expanded_ranges(starts, counts), reduces)

    def build(self) -> MessagePlan:
        """Build the plan of all messages so far."""
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
        """Append the columns of messages of the current round."""
        new_columns = {
            "round": np.full(len(counts), self._round),
            "source": np.asarray(source, np.int64).ravel(),
            "destination": np.asarray(destination, np.int64).ravel(),
            "reduces": np.full(len(counts), reduces, np.int64),
            "counts": counts,
            "blocks": blocks % self._num_blocks,
        }
        for name, column in new_columns.items():
            self._columns[name].append(column)
