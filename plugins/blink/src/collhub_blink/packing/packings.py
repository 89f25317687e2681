"""A packing that a collective can run on: trees, what they carry, and what proves their rate."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from collhub_blink.packing.placing import PlacedTree


@dataclass(frozen=True, slots=True)
class RateBound:
    """The largest rate in bytes of the collective per second, and the nodes that prove it.

    Nodes of the topology. `nodes`: a side of a cut (`cut`, `ingress-cut`); `blocks`: of a
    `partition`.
    """

    kind: str
    rate: Fraction
    nodes: tuple[int, ...] = ()
    blocks: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPacking:
    """Weighted trees over NPUs; a weight of 1 carries `unit` bytes of the collective per second.

    `at_least`: no packing of this rate has fewer trees of whole weights; `reason`: why.
    `targets[t]`: the NPU whose part alone tree t carries, empty where every tree serves all.
    `method`: for people; `is_shallow`: made for little latency, not for the rate. `reduces_first`:
    an all-reduce whose messages up the trees go before those down.
    """

    method: str
    trees: tuple[PlacedTree, ...]
    unit: Fraction
    bound: RateBound
    at_least: int = 1
    reason: str = "a packing has a tree"
    targets: tuple[int, ...] = ()
    is_shallow: bool = False
    reduces_first: bool = False

    @property
    def weights(self) -> list[int]:
        """Weight of every tree."""
        return [tree.weight for tree in self.trees]

    @property
    def rate(self) -> Fraction:
        """Bytes of the collective per second."""
        sent = self.unit * sum(self.weights)
        served = len(set(self.targets))
        if not served:
            return sent
        # The root of a scatter keeps its own part, which no tree carries.
        return sent * Fraction(served + 1, served)

    @property
    def depth(self) -> int:
        """Hops of the deepest tree."""
        return max(placed.depth for placed in self.trees)

    @property
    def is_optimal(self) -> bool:
        """Whether the rate is the bound."""
        return self.rate == self.bound.rate

    @property
    def status(self) -> str:
        """`optimal` where the number of trees is proved to be the least, else `feasible`."""
        return "optimal" if self.at_least == len(self.trees) else "feasible"
