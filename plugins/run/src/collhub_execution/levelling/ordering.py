"""Give every message one level at both its ends, so that ranks never wait in a circle."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hub_core.columns import BoolArray, Int64Array, Order, csr, topological_levels
from hub_core.model import Messages, StepTable
from hub_core.verification import HappensBefore

Edges = tuple[Int64Array, Int64Array]


@dataclass(frozen=True, slots=True)
class StepLevels:
    """Where the steps stand; one entry a row of the step table.

    `level`: int64, of a RECV* the level in which it is complete, of a local step that behind whose
    messages it runs, of a SEND that of its message. `message_level`: int64, the level of the
    message of a SEND or RECV*, -1 for local steps; `level` of a staged RECV* may be later.
    `position`: int64, place in a linear extension of all orders, by which the local steps of one
    level run. `is_staged`: RECV* whose message lands in scratch, as it must not wait for what the
    RECV* waits for.
    """

    level: Int64Array
    message_level: Int64Array
    position: Int64Array
    is_staged: BoolArray


def assign_levels(
    steps: StepTable, messages: Messages, relation: HappensBefore, conflicts: Edges
) -> StepLevels:
    """Level the steps under rendezvous: a SEND ends when its message has been received.

    `relation`: an order without cycle; `conflicts`: pairs of rows (earlier, later) that touch one
    unit, consistent with it. The level of a message is one more than the latest level of all that
    its two ends wait for, that of a local step the latest level of all that it waits for.

    What waits for a SEND waits for the end of its message, and where that closes a circle, two
    things give way, in this order. First, a dependency on a SEND between steps that share no unit
    then only waits for what the SEND itself waits for: two ranks that both send and then receive
    exchange in one level. Second, a message whose RECV* still waits in a circle is staged: it lands
    in scratch when the sender is ready, and the RECV* becomes local. After that there is no circle:
    along one, every message would be entered at its SEND, so that all its edges were edges of
    `relation`.

    Cost: at most three topological sorts and two searches for circles, all linear in steps and
    edges.
    """
    graph = _RendezvousGraph(steps, messages, relation, conflicts)
    order = graph.sort()
    if not order.is_complete:
        graph.relax(_core(order, *graph.edges()))
        order = graph.sort()
    if not order.is_complete:
        graph.stage(_core(order, *graph.edges()))
        order = graph.sort()
    return graph.levels(order)


class _RendezvousGraph:
    """Rows, and one node more for the arrival of every staged message, ordered under rendezvous."""

    def __init__(
        self, steps: StepTable, messages: Messages, relation: HappensBefore, conflicts: Edges
    ) -> None:
        """Nothing is relaxed or staged yet."""
        self._rows = len(steps)
        self._messages = messages
        self._receives = steps.receives
        count = relation.num_dependencies
        self._dependencies = relation.parents[:count], relation.children[:count]
        self._conflicts = conflicts
        # Per row: the node at whose end what waits for the row may go on.
        self._end = np.arange(self._rows)
        self._end[messages.send] = messages.receive
        self._arrival = np.full(self._rows, -1, np.int64)
        self._is_relaxed = np.zeros(count, np.bool_)

    @property
    def _nodes(self) -> int:
        """Rows and arrivals."""
        return self._rows + int(np.count_nonzero(self._arrival >= 0))

    def edges(self) -> Edges:
        """All edges as (parent node, child node), those into messages last."""
        before, after = self._dependencies
        first, second = self._conflicts
        send, receive = self._messages.send, self._messages.receive
        arrival = self._arrival[receive]
        is_staged = arrival >= 0
        parents = [
            np.where(self._is_relaxed, before, self._end[before]),
            self._end[first],
            send,
            arrival[is_staged],
        ]
        children = [
            after,
            second,
            np.where(is_staged, arrival, receive),
            receive[is_staged],
        ]
        return np.concatenate(parents), np.concatenate(children)

    def sort(self) -> Order:
        """Nodes by longest path; those behind a circle are missing."""
        return topological_levels(self._nodes, *self.edges())

    def relax(self, in_core: BoolArray) -> None:
        """Let dependencies on a SEND in the core wait for what the SEND itself waits for.

        An order that keeps two accesses apart is among the conflicts too, or follows from them.
        """
        before, after = self._dependencies
        waits_for_send = self._end[before] != before
        self._is_relaxed = waits_for_send & in_core[self._end[before]] & in_core[after]

    def stage(self, in_core: BoolArray) -> None:
        """Let messages in the core land in scratch where their RECV* waits for others in it."""
        before, after = self.edges()
        is_message = np.zeros(len(before), np.bool_)
        # No message is staged yet, so that the last edges are those of the messages alone.
        is_message[len(before) - len(self._messages.send) :] = True
        waits = after[in_core[before] & in_core[after] & ~is_message]
        # A RECV* may wait by several edges.
        staged = np.unique(waits[self._receives[waits]])
        self._arrival[staged] = self._rows + np.arange(len(staged))
        # What waits for the SEND now waits for the arrival alone.
        receive = self._messages.receive
        arrival = self._arrival[receive]
        self._end[self._messages.send] = np.where(arrival >= 0, arrival, receive)

    def levels(self, order: Order) -> StepLevels:
        """The longest paths, counted in messages."""
        # A message counts where it lands: at its RECV*, or at the arrival before a staged one.
        is_staged = self._arrival >= 0
        is_message = np.ones(self._nodes, np.int64)
        is_message[: self._rows] = self._receives & ~is_staged
        level = _longest_paths(order, *self.edges(), is_message)
        lands_at = np.where(is_staged, self._arrival, np.arange(self._rows))
        send, receive = self._messages.send, self._messages.receive
        message_level = np.full(self._rows, -1, np.int64)
        message_level[receive] = level[lands_at[receive]]
        message_level[send] = message_level[receive]
        row_level = level[: self._rows]
        # A SEND itself counts no message; it stands in the level in which it ends.
        row_level[send] = message_level[send]
        return StepLevels(row_level, message_level, order.position[: self._rows], is_staged)


def _core(order: Order, parents: Int64Array, children: Int64Array) -> BoolArray:
    """Mask of the nodes on circles or between circles: what sorting from both ends leaves over."""
    nodes = len(order.position)
    # Behind a circle is what sorting forwards leaves; before one, what sorting backwards leaves.
    is_left = order.position < 0
    is_inside = is_left[parents] & is_left[children]
    backwards = topological_levels(nodes, children[is_inside], parents[is_inside])
    in_core: BoolArray = is_left & (backwards.position < 0)
    return in_core


def _longest_paths(
    order: Order, parents: Int64Array, children: Int64Array, weight: Int64Array
) -> Int64Array:
    """Largest sum of weights along a path that ends in each node, its own included.

    Dynamic programming along a complete order; one numpy step a sorted level.
    """
    # Nodes are renumbered by their place, so that the parents of a level are before it.
    position = order.position
    indptr, before = csr(position[children], position[parents], len(position))
    # Each sum begins with the node's own weight.
    sums = weight[order.nodes]
    borders = order.level_indptr.tolist()
    for low, high in pairwise(borders[1:]):
        # Behind the first level every node has a parent, so that no group is empty.
        first, last = indptr[low], indptr[high]
        groups = indptr[low:high] - first
        sums[low:high] += np.maximum.reduceat(sums[before[first:last]], groups)
    found = np.empty_like(sums)
    found[order.nodes] = sums
    return found
