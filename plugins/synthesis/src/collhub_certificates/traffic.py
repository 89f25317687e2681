"""Whether an algorithm sends between its ranks what the trees say."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from collhub_certificates.flaws import FlawError
from collhub_certificates.tree_ways import NodePair, TreeWay
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, StepKind


def check_traffic(
    ways: Sequence[TreeWay],
    data_per_rate: Fraction,
    algorithm: Algorithm,
    plane: int,
    num_planes: int,
) -> None:
    """Raise `FlawError` unless two ranks exchange just what the trees of a plane send there.

    `data_per_rate`: the part of the data that a unit of weight stands for.
    """
    planned: dict[NodePair, Fraction] = {}
    for way in ways:
        for hop in way.hops():
            planned[hop] = planned.get(hop, Fraction(0)) + way.weight * data_per_rate
    moved = _moved(algorithm, plane, num_planes)
    for pair in sorted(moved.keys() | planned.keys()):
        if moved.get(pair) != planned.get(pair):
            ends = f"from rank {pair[0]} to rank {pair[1]}"
            message = f"the algorithm does not send what the trees say {ends}"
            raise FlawError("traffic", message)


def _moved(algorithm: Algorithm, plane: int, num_planes: int) -> dict[NodePair, Fraction]:
    """The part of the data that an algorithm sends between two ranks on the channels of a plane."""
    steps = algorithm.steps
    # A message on channel c takes links of plane c modulo the number of planes.
    is_here = steps.channel % num_planes == plane
    is_send = steps.kind == StepKind.SEND
    sends = np.flatnonzero(is_here & is_send)

    # The algorithm may be wrong: a peer beyond the ranks must not look like another pair.
    source = steps.rank[sends].astype(np.int64)
    pairs, row = np.unique(
        source << 32 | steps.peer[sends],
        return_inverse=True,
    )
    # Integers throughout: the sums of `bincount` with weights would be rounded.
    units = np.zeros(len(pairs), np.int64)
    np.add.at(units, row, steps.count[sends])
    return _shares(pairs, units, algorithm.collective.unit_count)


def _shares(pairs: Int64Array, units: Int64Array, total: int) -> dict[NodePair, Fraction]:
    """Units as parts of the whole, by pair; `pairs`: source in the high, peer in the low word."""
    shares = {}
    for pair, count in zip(pairs.tolist(), units.tolist(), strict=True):
        ends = pair >> 32, pair & 0xFFFFFFFF
        shares[ends] = Fraction(count, total)
    return shares
