"""Offers of this distribution: a synthesizer for every classic algorithm."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_classic.options import (
    ChunkedOptions,
    ClassicOptions,
    GridOptions,
    PatOptions,
    RadixOptions,
    RingsOptions,
)
from hub_core.model import STANDARD_KINDS, CollectiveKind
from hub_core.plugin_api import Synthesizer, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

_SYNTHESIZERS: tuple[tuple[str, str, type], ...] = (
    ("ring", "one ring; a chain for broadcast and reduce", ChunkedOptions),
    ("bidirectional-ring", "half of the data in each direction of one ring", ClassicOptions),
    ("rings", "rings without a common link, each with a part of the data", RingsOptions),
    ("recursive-doubling", "exchanges at distances 1, 2, 4, ...", ClassicOptions),
    ("halving-doubling", "Rabenseifner's: halves out, then doubling back", ClassicOptions),
    ("bruck", "logarithmic rounds for any number of ranks", ClassicOptions),
    ("binomial", "binomial trees", ClassicOptions),
    ("k-nomial", "trees in which a rank sends to several ranks per round", RadixOptions),
    ("double-binary-tree", "half of the data on each of NCCL's two trees", ChunkedOptions),
    ("direct", "every rank to every other rank, all at once", ClassicOptions),
    ("pairwise", "every rank to every other rank, one after another", ClassicOptions),
    ("neighbour-exchange", "pairs of blocks between neighbours", ClassicOptions),
    ("pat", "NCCL's parallel aggregated trees", PatOptions),
    ("sparbit", "long distances with small messages first, in logarithmic rounds", ClassicOptions),
    ("swing", "partners alternately left and right, at short distances", ClassicOptions),
    ("torus-rings", "rings along every dimension of a grid", GridOptions),
    ("hierarchical", "all pairs within groups, rings between them", GridOptions),
)

_TO_ALL = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE,
)
_WITH_ROOT = (CollectiveKind.BROADCAST, CollectiveKind.REDUCE)

# Collectives of the algorithms that differ from `_TO_ALL`. A test compares them with the planners,
# which are not imported here because they need numpy.
_COLLECTIVES: dict[str, tuple[CollectiveKind, ...]] = {
    "ring": (*_TO_ALL, *_WITH_ROOT),
    "recursive-doubling": (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE),
    "halving-doubling": (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE),
    "bruck": (*_TO_ALL, CollectiveKind.ALL_TO_ALL),
    "binomial": (
        *_WITH_ROOT,
        CollectiveKind.SCATTER,
        CollectiveKind.GATHER,
        CollectiveKind.ALL_REDUCE,
    ),
    "k-nomial": _WITH_ROOT,
    "double-binary-tree": (CollectiveKind.ALL_REDUCE,),
    "direct": STANDARD_KINDS,
    "pairwise": (CollectiveKind.ALL_TO_ALL,),
}


@hookimpl
def collhub_producers() -> Sequence[Synthesizer]:
    """Return the synthesizers, each with its function for estimates."""
    return [
        Synthesizer(
            name,
            text,
            f"collhub_classic.offers:{name.replace('-', '_')}",
            options,
            estimate=f"collhub_classic.offers:{name.replace('-', '_')}_ns",
            collectives=_COLLECTIVES.get(name, _TO_ALL),
        )
        for name, text, options in _SYNTHESIZERS
    ]
