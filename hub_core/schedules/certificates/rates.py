"""Rates that a cut or a partition of a network allows, in fractions: the arithmetic of a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

LinkCapacities = Mapping[tuple[int, int], Fraction]
"""Bytes per second by (source, destination)."""


def spreading_rate(nodes: Sequence[int], capacities: LinkCapacities, outward: bool) -> Fraction:
    """Bytes per second over the links that leave a set of nodes (`outward`) or enter it."""
    inside = set(nodes)
    total = Fraction(0)
    for (tail, head), capacity in capacities.items():
        starts_inside = tail in inside
        ends_inside = head in inside
        if starts_inside == ends_inside:
            continue
        if starts_inside == outward:
            total += capacity
    return total


def partition_rate(blocks: Sequence[Sequence[int]], capacities: LinkCapacities) -> Fraction:
    """What an all-reduce can do between blocks of ranks, in bytes of the collective per second.

    A block may have any switches. Links without switches, equal both ways, make this the bound of
    Nash-Williams and Tutte (1961).
    """
    # Of every element at least blocks - 1 messages go up and as many down between the blocks, and
    # each enters one of them. A message that enters a block's ranks enters every set of nodes which
    # has these ranks and no others: so the switches of a block are anybody's choice.
    entering = Fraction(0)
    for block in blocks:
        entering += spreading_rate(block, capacities, outward=False)
    return entering / (2 * (len(blocks) - 1))
