"""Trees turned to another root."""

from __future__ import annotations

import numpy as np
from collhub_packing import SpanningTree

# The line 0 - 1 - 2 - 3: arcs 0, 1, 2 lead up, 3, 4, 5 back.
OPPOSITE = np.asarray([3, 4, 5, 0, 1, 2])
LINE = SpanningTree(0, 2, np.asarray([-1, 0, 1, 2]), np.asarray([-1, 0, 1, 2]))


def test_depth_is_the_longest_way_from_the_root():
    assert LINE.depths.tolist() == [0, 1, 2, 3]
    assert LINE.depth == 3


def test_another_root_turns_the_links_between():
    turned = LINE.rerooted(2, OPPOSITE)
    assert turned.parent.tolist() == [1, 2, -1, 2]
    assert turned.arc.tolist() == [3, 4, -1, 2]
    assert turned.weight == 2


def test_the_centre_gives_the_least_depth():
    assert LINE.rerooted(LINE.centre(OPPOSITE), OPPOSITE).depth == 2
