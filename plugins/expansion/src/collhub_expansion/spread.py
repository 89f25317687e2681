"""One template for several groups at once: the ranks that differ in one dimension alone."""

from __future__ import annotations

import numpy as np
from collhub_templates import Template, built

from collhub_expansion.blocks import Blocks, catalogue


def spread(template: Template, num_ranks: int, stride: int) -> Template:
    """The template among ranks `stride` apart, for all of `num_ranks` in groups of its positions.

    Rank r stands at position r // stride modulo the positions.
    """
    positions = len(template.first) - 1
    rank = np.arange(num_ranks)
    position = rank // stride % positions
    entries = catalogue(0, [template])
    blocks = Blocks.of(entries, position)
    number, block = blocks.rows()
    peer = template.peer[number]
    lowest = (rank - position * stride)[block]
    return built(
        template.kind[number],
        np.where(peer < 0, -1, lowest + peer * stride),
        template.bytes[number],
        template.duration_ns[number],
        template.message[number],
        np.append(blocks.first, len(number)),
        blocks.inner(entries.data),
        blocks.inner(entries.control),
    )
