"""Pieces of a collective take turns, so that the first one is over early."""

from __future__ import annotations

import numpy as np
from collhub_columns import Int64Array
from collhub_templates import Lists, Template

from collhub_coconet.lowering.nodes import NodeList
from hub_core.model import NodeKind


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
    pointer, numbers = lists
    return np.split(numbers, pointer[1:-1])
