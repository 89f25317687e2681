"""Which sends of an algorithm are one multicast, and which receives one sum, for switches that can.

Sends of a rank are one multicast where they stand together, read the same units and wait for the
same steps: nothing can write to the units between them, since that would be a race. Receives that
add to the same units are one sum where each waits for the one before it alone, and nobody else
does: whoever reads the units waits for the last of them anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.columns import BoolArray, Int64Array, distinct, run_lengths, run_starts
from hub_core.model import Algorithm, Buffer, Findings, StepKind, StepTable, match_messages
from hub_core.network import Topology

# Of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), which spreads numbers over all 64 bits.
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


@dataclass(frozen=True, slots=True, eq=False)
class SwitchGroups:
    """Rows of SEND steps, group by group, the number of the group with each: int64 columns.

    In `multicasts` a message leaves its sender once for all of a group; in `sums` a message
    arrives once for all of it, the first one first.
    """

    multicasts: tuple[Int64Array, Int64Array]
    sums: tuple[Int64Array, Int64Array]

    @property
    def is_empty(self) -> bool:
        """Whether switches have nothing to copy or to add up."""
        return not (len(self.multicasts[0]) or len(self.sums[0]))


def switch_groups(algorithm: Algorithm, topology: Topology) -> SwitchGroups | None:
    """Groups of an algorithm on a network, None where its switches do nothing with them.

    A message of a multicast is in no sum: the copies of others would be added to it as well.
    """
    none = np.zeros(0, np.int64)
    steps = algorithm.steps
    groups = SwitchGroups((none, none), (none, none))
    if topology.multicast and len(steps):
        groups = SwitchGroups(_multicasts(steps), groups.sums)
    if topology.reduction and len(steps):
        groups = SwitchGroups(groups.multicasts, _sums(steps, groups.multicasts[0]))
    return None if groups.is_empty else groups


def _multicasts(steps: StepTable) -> tuple[Int64Array, Int64Array]:
    rows = np.flatnonzero(steps.sends & (steps.src_buffer != Buffer.UNKNOWN))
    columns = (
        steps.rank[rows].astype(np.int64),
        steps.src_buffer[rows].astype(np.int64),
        steps.src_offset[rows],
        steps.count[rows],
        _signatures(steps)[rows].view(np.int64),
    )
    starts = run_starts(*columns)
    lengths = run_lengths(starts, len(rows))
    group = np.repeat(np.arange(len(starts)), lengths)
    kept = lengths[group] > 1
    return rows[kept], group[kept]


def _signatures(steps: StepTable) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """A number for the set of steps that a step waits for, uint64[rows].

    Equal sets have equal numbers; two that differ agree by chance of 2^-64.
    """
    parents, children = _edges(steps)
    mixed = parents.astype(np.uint64) + np.uint64(1)
    for shift, factor in _STEPS:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    total = np.zeros(len(steps), np.uint64)
    np.add.at(total, children, mixed)
    return total


def _edges(steps: StepTable) -> tuple[Int64Array, Int64Array]:
    """(parent, child) of all dependencies, each once."""
    rows = len(steps)
    child = np.repeat(
        np.tile(np.arange(rows), 2),
        np.concatenate([np.diff(steps.data_indptr), np.diff(steps.control_indptr)]),
    )
    parent = np.concatenate([steps.data_indices, steps.control_indices])
    children, parents = np.divmod(distinct(child * rows + parent), rows)
    return parents, children


def _sums(steps: StepTable, multicast: Int64Array) -> tuple[Int64Array, Int64Array]:
    head = _heads(steps)
    messages = match_messages(steps, Findings())
    is_copied = np.zeros(len(steps), np.bool_)
    is_copied[multicast] = True
    is_sum = steps.is_kind(StepKind.RECV_REDUCE)[messages.receive] & ~is_copied[messages.send]
    send, receive = messages.send[is_sum], messages.receive[is_sum]
    order = np.lexsort((receive, head[receive]))
    send, group = send[order], head[receive][order]
    kept = np.bincount(group, minlength=1)[group] > 1
    return send[kept], group[kept]


def _heads(steps: StepTable) -> Int64Array:
    """The first row of the chain of additions that a row is in, itself for others: int64[rows]."""
    parents, children = _edges(steps)
    rows = len(steps)
    parent_count = np.bincount(children, minlength=rows)
    child_count = np.bincount(parents, minlength=rows)
    is_chained = _continues(steps, parents, children)
    is_chained &= (parent_count[children] == 1) & (child_count[parents] == 1)
    head = np.arange(rows)
    head[children[is_chained]] = parents[is_chained]
    while True:
        further = head[head]
        if np.array_equal(further, head):
            return head
        head = further


def _continues(steps: StepTable, parents: Int64Array, children: Int64Array) -> BoolArray:
    """Whether a row adds a received message to what its parent has added to."""
    adds: BoolArray = steps.is_kind(StepKind.RECV_REDUCE) & (steps.dst_buffer != Buffer.UNKNOWN)
    is_on: BoolArray = adds[parents] & adds[children]
    is_on &= steps.count[parents] == steps.count[children]
    for name in ("buffer", "offset"):
        target = getattr(steps, f"dst_{name}")[parents]
        # The local operand is what stands there, and the sum comes there again.
        is_on &= target == getattr(steps, f"src_{name}")[children]
        is_on &= target == getattr(steps, f"dst_{name}")[children]
    return is_on
