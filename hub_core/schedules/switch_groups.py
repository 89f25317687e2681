"""Find the sends that a switch can multicast, and the receives that a switch can sum.

Consecutive sends of a rank are one multicast if they read the same units and have the same
dependencies. No step can write to the units between them, since that would be a race. Receives
that add to the same units are one sum if each depends only on the preceding one and is its only
dependent; readers of the units depend on the last receive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.columns import BoolArray, Int64Array, find_heads, run_lengths, run_starts
from hub_core.model import Algorithm, Buffer, StepKind, StepTable, matched_messages
from hub_core.network import Topology

# (shift, factor) of the rounds of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), a 64-bit hash.
_HASH_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


@dataclass(frozen=True, slots=True, eq=False)
class SwitchGroups:
    """Groups of messages as int64 arrays (SEND rows, group number of each), ordered by group.

    `multicasts`: the messages of a group leave their sender as one message. `sums`: the messages of
    a group arrive as one message; within a group they are in the order of their receives.
    """

    multicasts: tuple[Int64Array, Int64Array]
    sums: tuple[Int64Array, Int64Array]

    @property
    def is_empty(self) -> bool:
        """Whether there are no multicasts and no sums."""
        return not (len(self.multicasts[0]) or len(self.sums[0]))


def find_switch_groups(algorithm: Algorithm, topology: Topology) -> SwitchGroups | None:
    """Find the multicasts and sums that switches can do for an algorithm; None if there are
    none.

    - A multicast is a group of at least two consecutive sends of a rank with equal source
      units and dependencies. They are searched only if the topology has multicasting
      switches. Sends with an unknown source are ignored.
    - A sum is a group of at least two messages that a chain of additions to the same units
      receives on one rank. They are searched only if the topology has reducing switches.
      Messages of a multicast that was found are excluded, because the switch would add all
      copies.
    """
    empty = np.zeros(0, np.int64)
    steps = algorithm.steps
    groups = SwitchGroups((empty, empty), (empty, empty))
    if topology.multicast and len(steps):
        groups = SwitchGroups(_find_multicasts(steps), groups.sums)
    if topology.reduction and len(steps):
        groups = SwitchGroups(groups.multicasts, _find_sums(steps, groups.multicasts[0]))
    return None if groups.is_empty else groups


def _find_multicasts(steps: StepTable) -> tuple[Int64Array, Int64Array]:
    """Return (SEND rows, group numbers) of the sends that a switch can multicast, both int64.

    Sends with an unknown source buffer are omitted first. Of the remaining ones, consecutive sends
    are one group if rank, source buffer, offset, count and dependencies are equal. Other steps may
    be between them. Dependencies (data and control, as sets) are compared by a hash, which is equal
    for different ones with probability 2^-64; the receivers are not compared. Groups of one send
    are omitted. Rows ascend. Group numbers ascend too, may have gaps, and count the omitted groups.
    Both arrays are empty without groups.
    """
    parents, children = steps.edges()
    mixed = parents.astype(np.uint64) + np.uint64(1)
    for shift, factor in _HASH_ROUNDS:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    dependency_hash = np.zeros(len(steps), np.uint64)
    np.add.at(dependency_hash, children, mixed)
    rows = np.flatnonzero(steps.sends & (steps.src_buffer != Buffer.UNKNOWN))
    columns = (
        steps.rank[rows].astype(np.int64),
        steps.src_buffer[rows].astype(np.int64),
        steps.src_offset[rows],
        steps.count[rows],
        dependency_hash[rows].view(np.int64),
    )
    starts = run_starts(*columns)
    lengths = run_lengths(starts, len(rows))
    group = np.repeat(np.arange(len(starts)), lengths)
    is_grouped = lengths[group] > 1
    return rows[is_grouped], group[is_grouped]


def _find_sums(steps: StepTable, multicast_sends: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return (SEND rows, group numbers), int64, of messages that chains of additions receive.

    A chain is a sequence of RECV_REDUCE steps. Each depends only on the preceding one, which has no
    other child, and adds to the same known units. Messages whose sends are in `multicast_sends` are
    omitted first. A chain with two or more remaining messages is a group. Its number is the row of
    the first step of the chain, also if that message is omitted.

    Groups are in the order of their numbers. Sends of a group are in the order of their
    receives.
    """
    parents, children = steps.edges()
    rows = len(steps)
    adds = steps.is_kind(StepKind.RECV_REDUCE) & (steps.dst_buffer != Buffer.UNKNOWN)
    is_chained: BoolArray = adds[parents] & adds[children]
    is_chained &= steps.count[parents] == steps.count[children]
    for name in ("buffer", "offset"):
        target = getattr(steps, f"dst_{name}")[parents]
        # The child's local operand and its result are both at the parent's target.
        is_chained &= target == getattr(steps, f"src_{name}")[children]
        is_chained &= target == getattr(steps, f"dst_{name}")[children]
    is_chained &= np.bincount(children, minlength=rows)[children] == 1
    is_chained &= np.bincount(parents, minlength=rows)[parents] == 1
    predecessor = np.arange(rows)
    predecessor[children[is_chained]] = parents[is_chained]
    head = find_heads(predecessor)

    messages = matched_messages(steps)
    is_copied = np.zeros(len(steps), np.bool_)
    is_copied[multicast_sends] = True
    is_sum = steps.is_kind(StepKind.RECV_REDUCE)[messages.receive] & ~is_copied[messages.send]
    send, receive = messages.send[is_sum], messages.receive[is_sum]
    order = np.lexsort((receive, head[receive]))
    send, group = send[order], head[receive][order]
    is_grouped = np.bincount(group, minlength=1)[group] > 1
    return send[is_grouped], group[is_grouped]
