"""Who waits for its turn on a rank: pieces of a collective, and kernels."""

from __future__ import annotations

import numpy as np
from collhub_templates import Lists, Template

from collhub_coconet.lowering.nodes import NodeList
from collhub_coconet.program.program import Stage
from hub_core.columns import Int64Array
from hub_core.model import NodeKind


class Streams:
    """The last computation of every rank, behind which the next kernel runs."""

    def __init__(self, ranks: int) -> None:
        # Nothing has run on any rank.
        self._last = np.full(ranks, -1, np.int64)

    def put(self, nodes: NodeList, made: Int64Array, rank: Int64Array, stage: Stage | None) -> None:
        """Order computations of a rank: those of kernels one by one, of fused ones on their own.

        A kernel that communicates runs beside the others, as overlapping needs it.
        """
        nodes.chain(made, rank)
        if stage is not None and stage.family != "pointwise":
            return
        order = np.argsort(rank, kind="stable")
        ranks, first, counts = np.unique(rank[order], return_index=True, return_counts=True)
        before = self._last[ranks]
        is_behind = before >= 0
        nodes.control.append((before[is_behind], made[order][first][is_behind]))
        self._last[ranks] = made[order][first + counts - 1]


def take_turns(
    nodes: NodeList, template: Template, made: Int64Array, pieces: int, most: int
) -> None:
    """Let a piece begin on a rank when the one `most` before it is over there.

    All at once would share the links, and end together: whoever waits for the first chunk would
    wait for nearly all of them. Receives need no turn, their sends have one.
    """
    count = len(template)
    is_receive = template.kind == NodeKind.RECV
    ends = _listed(template.ends)
    for position, listed in enumerate(_listed(template.starts)):
        starts = listed[~is_receive[listed]]
        # Every end before every start.
        before = np.repeat(ends[position], len(starts))
        behind = np.tile(starts, len(ends[position]))
        for piece in range(most, pieces):
            earlier = made[(piece - most) * count]
            later = made[piece * count]
            nodes.control.append((before + earlier, behind + later))


def _listed(lists: Lists) -> list[Int64Array]:
    """Lists of numbers as arrays."""
    # The ends of the first and the last list are those of all numbers.
    pointer, numbers = lists
    return np.split(numbers, pointer[1:-1])
