"""Labels beside the ends of curves: as near as can be, in their order, and none over another."""

from __future__ import annotations

from collections.abc import Sequence


def label_places(wanted: Sequence[float], gap: float, top: float, bottom: float) -> list[float]:
    """Where labels stand that want to be at these pixels, ascending, at least `gap` apart.

    All between `top` and `bottom`, where that is high enough for all of them. Labels that would
    touch become a block around the mean of their wishes: the least sum of squared distances (pool
    adjacent violators, as in isotonic regression; linear in the number of labels).
    """
    blocks: list[tuple[float, int]] = []
    for number, place in enumerate(wanted):
        # Without the gaps before it, a label need only not stand before its forerunner.
        total, count = place - number * gap, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before, members = blocks.pop()
            total, count = total + before, count + members
        blocks.append((total, count))
    means = [total / count for total, count in blocks for _ in range(count)]
    last = max(top, bottom - (len(wanted) - 1) * gap)
    return [min(max(mean, top), last) + number * gap for number, mean in enumerate(means)]
