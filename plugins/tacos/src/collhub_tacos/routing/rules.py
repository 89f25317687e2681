"""What makes a route good: how much the load of its links counts, and the depth of a tree."""

from __future__ import annotations

from dataclasses import dataclass

EVERYONE = -1
"""As a target: all nodes that are needed."""


@dataclass(frozen=True, slots=True)
class RouteRules:
    """Cost of a route: the time of its links, times `1 + steepness * u^8`.

    u is the load of a link by a reference: `slack` times the least that the fullest link can have,
    0: the fullest so far. `depth_weight`: what the way to a node of a tree counts when the tree
    grows on from there, 0: nothing, 1: as much as when it was reached: shallow trees.
    """

    steepness: float = 1.0
    depth_weight: float = 0.0
    slack: float = 0.0
