"""One template for several groups at once: the ranks that differ in one dimension alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from collhub_templates import Template, built

from collhub_expansion.blocks import Blocks, catalogue
from hub_core.columns import inverse


def spread(template: Template, members: Sequence[int], stride: int) -> Template:
    """The template among ranks `stride` apart, for all ranks in groups of its positions.

    Rank r stands at position r // stride modulo the positions. The result is by place in
    `members`, which lists all ranks.
    """
    positions = len(template.first) - 1
    rank = np.asarray(members, np.int64)
    place = inverse(rank)
    position = rank // stride % positions
    entries = catalogue(0, [template])
    blocks = Blocks.of(entries, position)
    number, block = blocks.rows()
    peer = template.peer[number]
    lowest = (rank - position * stride)[block]
    # Local work has no peer.
    met = np.where(peer < 0, 0, lowest + peer * stride)
    return built(
        template.kind[number],
        np.where(peer < 0, -1, place[met]),
        template.bytes[number],
        template.duration_ns[number],
        template.message[number],
        np.append(blocks.first, len(number)),
        blocks.inner(entries.data),
        blocks.inner(entries.control),
    )
