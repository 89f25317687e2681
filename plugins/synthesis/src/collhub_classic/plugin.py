"""Offers of the classic algorithms, a synthesizer for each of them, and the options of these.

This module imports no planner, so that offers are listed quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.model import STANDARD_KINDS, UNEVEN_KINDS, CollectiveKind
from hub_core.plugin_api import OptionType, RuleSet, Synthesizer, choice, hookimpl, option

COLLHUB_PLUGIN_API = (1, 0)


@dataclass(frozen=True, slots=True)
class ClassicOptions:
    """Options of every algorithm."""

    order: str = option(
        OptionType.TEXT,
        "auto",
        "the NPU of every position in the algorithm: as numbered (given), by the topology (auto),"
        " or a list such as 0,3,2,1",
    )
    rounds: str = choice(
        ("data", "blocking"),
        "when a rank continues: as soon as its data has arrived, or when its round has finished,"
        " as with blocking calls",
    )


@dataclass(frozen=True, slots=True)
class ChunkedOptions(ClassicOptions):
    """Options of algorithms that send chunks one after another."""

    chunks: int = option(
        OptionType.INT,
        0,
        "chunks of the data on a chain or tree (0: chosen by the formula of the cost)",
        minimum=0,
        maximum=1 << 20,
    )


@dataclass(frozen=True, slots=True)
class RadixOptions(ClassicOptions):
    """Options of k-nomial trees."""

    radix: int = option(
        OptionType.INT, 4, "a rank sends to this number of ranks minus one per round", minimum=2
    )


@dataclass(frozen=True, slots=True)
class PatOptions(ClassicOptions):
    """Options of parallel aggregated trees."""

    aggregation: int = option(
        OptionType.INT,
        0,
        "blocks that are sent at once, a power of two (0: the maximum)",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class GridOptions(ClassicOptions):
    """Options of algorithms along dimensions."""

    sizes: str = option(
        OptionType.TEXT,
        "auto",
        "ranks along each dimension, the closest first, as 8x4 (default: the groups or the"
        " dimensions of the topology)",
    )
    ports: str = choice(
        ("auto", "all", "one"),
        "links that parts of the data use at once: those of all dimensions in both directions, one,"
        " or of all dimensions only if they have equal sizes (auto)",
    )


@dataclass(frozen=True, slots=True)
class RingsOptions(ClassicOptions):
    """Options of several rings."""

    rings: int = option(
        OptionType.INT,
        0,
        "rings that share the data (0: as many as the topology has without a common link)",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class NestedOptions:
    """Options of collectives in nested groups."""

    sizes: str = option(
        OptionType.TEXT,
        "auto",
        "ranks of each level, the closest first, as 8x8x16 (default: the dimensions of a torus, the"
        " groups of the topology, or of NPUs at equal distances)",
    )
    chunks: int = option(
        OptionType.INT, 0, "chunks of the data that overlap (0: by the time)", minimum=0
    )


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
_UNEVEN_TO_ALL = (CollectiveKind.ALL_GATHER_V, CollectiveKind.REDUCE_SCATTER_V)
_WITH_ROOT = (CollectiveKind.BROADCAST, CollectiveKind.REDUCE)

# Collectives of the algorithms that differ from `_TO_ALL`. A test compares them with the planners,
# which are not imported here because they need numpy.
_COLLECTIVES: dict[str, tuple[CollectiveKind, ...]] = {
    "ring": (*_TO_ALL, *_WITH_ROOT, *_UNEVEN_TO_ALL),
    "bidirectional-ring": (*_TO_ALL, *_UNEVEN_TO_ALL),
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
    "direct": (*STANDARD_KINDS, *UNEVEN_KINDS),
    "hierarchical": (*_TO_ALL, CollectiveKind.ALL_TO_ALL_V),
    "pairwise": (CollectiveKind.ALL_TO_ALL,),
}


_NESTED = Synthesizer(
    "nested",
    "level by level in groups or along the rings of a torus, for thousands of ranks",
    "collhub_classic.nested:synthesize",
    NestedOptions,
    estimate="collhub_classic.nested:estimate",
    collectives=(*_TO_ALL, CollectiveKind.BROADCAST),
)


@hookimpl
def collhub_producers() -> Sequence[Synthesizer]:
    """Return the synthesizers, with the nested one last.

    Each of the others names its function, and the function with the suffix `_ns` that estimates its
    time. A synthesizer without an entry in `_COLLECTIVES` serves the collectives `_TO_ALL`.
    """
    return [
        Synthesizer(
            name,
            text,
            f"collhub_classic.synthesize:{name.replace('-', '_')}",
            options,
            estimate=f"collhub_classic.synthesize:{name.replace('-', '_')}_ns",
            collectives=_COLLECTIVES.get(name, _TO_ALL),
        )
        for name, text, options in _SYNTHESIZERS
    ] + [_NESTED]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Describe the rules of synthesizers."""
    return [
        RuleSet("synthesis", "errors of synthesizers", "collhub_classic.rules:list_rules"),
    ]
