"""Offers of the classic algorithms, a synthesizer for each of them, their options, and rules.

This module imports no planner, so that offers are listed quickly. Synthesizers of other
distributions use the same identifiers of rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.model import STANDARD_KINDS, UNEVEN_KINDS, CollectiveKind
from hub_core.plugin_api import (
    OptionType,
    Rule,
    RuleSet,
    Synthesizer,
    choice,
    declare_rules,
    declare_similar_rules,
    hookimpl,
    option,
)

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
    collectives=(
        *_TO_ALL,
        CollectiveKind.BROADCAST,
        CollectiveKind.REDUCE,
        CollectiveKind.ALL_TO_ALL,
    ),
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
        RuleSet("synthesis", "errors of synthesizers", "collhub_classic.plugin:list_rules"),
    ]


_Rows = tuple[tuple[str, str, str], ...]
_REQUESTS: _Rows = (
    ("one-rank", "One rank has no message to send.", "`ring:1`"),
    ("odd-ranks", "The algorithm needs an even number of ranks.", "neighbour-exchange of 5 ranks"),
    ("not-a-power", "The algorithm needs a power of two ranks.", "recursive doubling of 6 ranks"),
    ("size-too-small", "The size cannot be divided among the parts.", "2 bytes for 8 ranks"),
    (
        "option-range",
        "The value of an option does not fit this number of ranks.",
        "`-O sizes=3x3` for 8 ranks",
    ),
    (
        "subset-unsupported",
        "The synthesizer needs every NPU as a rank.",
        "`nested` with `--ranks 0-3` on `ring:8`",
    ),
    (
        "planes-unsupported",
        "The synthesizer takes networks of one plane.",
        "`flows` on a topology of two planes",
    ),
    ("invalid-group", "The text is no process group.", "`collhub groups --group x`"),
    ("group-of-one", "A process group has one NPU.", "`--group 3:all-reduce:1MiB`"),
    (
        "nothing-sent",
        "No rank of a process group sends data to another one.",
        "a table of counts with a diagonal only",
    ),
    ("sizes-unlike", "The sizes of the groups have no common unit.", "1 MiB and 1048577 bytes"),
    ("no-groups", "No process group is named.", "`collhub groups` without `--group`"),
    ("no-time", "The simulator states no time.", "a simulator whose ranks never finish"),
)
_NETWORKS: _Rows = (
    ("unreachable", "An NPU cannot be reached from another one.", "a network of two parts"),
    ("switches", "The method takes networks without switches.", "trees of links on `switch:8`"),
    (
        "not-a-torus",
        "The method needs the rings of a torus, or a line.",
        "an all-to-all by `nested` on `switch:8`",
    ),
    (
        "unbalanced-switch",
        "The links of a switch differ by direction.",
        "100 GB/s into the switch and 50 GB/s out of it",
    ),
    (
        "not-duplex",
        "Links differ by direction, and the method needs equal ones.",
        "trees of undirected links on a directed ring",
    ),
    (
        "capacities",
        "The bandwidths have no common unit that is large enough.",
        "links of 50 GB/s and 33.333333 GB/s",
    ),
    (
        "link-times",
        "A link is busy for longer than until the arrival of its message.",
        "a model of link times with a negative latency",
    ),
    ("no-room", "The demand does not fit into the network.", "more trees than links"),
    ("scale", "Weights of trees exceed the rate of the network.", "weights rounded up"),
    (
        "too-many-units",
        "The chunks and trees need more units of data than fit.",
        "1000 chunks on trees of weights 9999 and 10007",
    ),
    (
        "trees-unsuitable",
        "The collective does not run on spanning trees.",
        "`blink` for an all-to-all",
    ),
    ("tree-does-not-span", "A tree does not reach every rank.", "a tree without NPU 3"),
    ("tree-root", "The root of a tree is not the root of the collective.", "a tree of NPU 1"),
    ("depth", "There are no trees of this depth at the optimal rate.", "`blink -O depth=1`"),
    (
        "not-one-shot",
        "The all-reduce cannot be made in one phase here.",
        "`tacos -O method=one-shot` on a ring",
    ),
    ("invalid-schedule", "A schedule breaks the rules of its network.", "two sends on one link"),
    ("origin-range", "A chunk starts outside of the network.", "NPU 9 of 8"),
)
_CERTIFICATES = (
    (
        "certificate-partial",
        "The certificate has no trees, so that only the bound was checked.",
        "It was written without its trees, which are large.",
        "Write the algorithm again with its complete certificate to check the trees.",
        "a certificate with only a cut",
    ),
)
_FALSE_CERTIFICATES = (
    ("certificate-form", "The certificate cannot be read.", "a weight that is no number"),
    (
        "certificate-collective",
        "The certificate is for another collective, size, root or counts than the algorithm.",
        "a certificate of 1 MiB for an algorithm of 2 MiB",
    ),
    (
        "certificate-topology",
        "The certificate is for another network than the one of `--topology`.",
        "a certificate of `ring:8` and `--topology ring:8?bandwidth=30GB/s`",
    ),
    (
        "certificate-ranks",
        "The ranks are not different NPUs of the network, the root is none of them, or an NPU "
        "does not reach every rank.",
        '"ranks": [0, 1, 1]',
    ),
    (
        "certificate-planes",
        "The planes of the network do not carry all data, or a tree is on an unknown plane.",
        "two planes with shares of 1/2 and 1/4",
    ),
    (
        "certificate-tree",
        "A tree does not connect its root with the ranks that it serves.",
        "a tree whose nodes 1 and 2 are parents of one another",
    ),
    (
        "certificate-trees",
        "The number of trees contradicts the trees, its lower bound or the unit of the weights.",
        "3 trees, and a claim that at least 4 are needed",
    ),
    (
        "certificate-load",
        "The trees put more data on a link than it carries, or use a link that does not exist.",
        "trees of 11 GB/s on a link of 10 GB/s",
    ),
    (
        "certificate-parts",
        "The trees that serve a rank do not carry its fraction of the rate.",
        "an all-gather of 3 ranks whose trees carry 5, 5 and 4 GB/s",
    ),
    (
        "certificate-rate",
        "The rate of the trees is not the rate that is claimed.",
        "trees of 10 GB/s, and a claim of 9 GB/s",
    ),
    (
        "certificate-traffic",
        "The algorithm sends other data between two ranks than the trees.",
        "an algorithm that was changed after its synthesis",
    ),
    (
        "certificate-prices",
        "The prices of links, which prove the bound of a flow, are not usable.",
        "a negative price",
    ),
    (
        "certificate-bound",
        "The bound does not follow from its cut, partition, prices or times, or a rate exceeds it.",
        "a cut with all ranks on one side",
    ),
    (
        "certificate-optimal",
        "The claim whether the algorithm is optimal contradicts rate and bound.",
        "a rate of half of the bound that is called optimal",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_similar_rules(
            "requests: synthesizers",
            _REQUESTS,
            cause="The synthesizer has no algorithm for this request.",
            cure="Change the request according to the message, or choose another synthesizer.",
        ),
        *declare_similar_rules(
            "requests: networks",
            _NETWORKS,
            cause="The method of the synthesizer does not fit the network.",
            cure="Change the network according to the message, or choose another synthesizer.",
        ),
        *declare_rules("certificates, by `collhub verify --certificate`", _CERTIFICATES),
        *declare_similar_rules(
            "certificates, by `collhub verify --certificate`",
            _FALSE_CERTIFICATES,
            cause="The certificate or the algorithm was changed, or belongs to another network.",
            cure="Synthesize the algorithm again, or name the topology of its synthesis.",
        ),
    ]
