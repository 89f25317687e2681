"""Offers of this distribution: the synthesizer with its options, a lower bound and a check.

Heavy imports are inside functions because listing the plugins imports this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.model import STANDARD_KINDS, CollectiveKind
from hub_core.plugin_api import (
    Check,
    CheckReport,
    CheckRequest,
    LowerBound,
    OptionType,
    Subject,
    Synthesizer,
    WarmOptions,
    choice,
    hookimpl,
    option,
)


@dataclass(frozen=True, slots=True)
class BlinkOptions:
    """User options of the synthesizer.

    `chunks` and `setup` are texts, since they allow a word or a list; `task` and `planes` parse
    them.
    """

    chunks: str = option(
        OptionType.TEXT,
        "auto",
        "chunks of the widest tree's share: a number, or auto to choose by the time",
    )
    trees: str = choice(
        ("auto", "fewest", "shallow"),
        "packing: the fastest for the size, the fewest trees at the optimal rate, or shallow trees",
    )
    depth: int = option(
        OptionType.INT,
        0,
        "maximum hops of a tree at the optimal rate of a broadcast or reduce (0: any)",
        minimum=0,
    )
    setup: str = option(
        OptionType.TEXT,
        "0ns",
        "time until a plane of the topology can be used: 0ns, or one per plane such as 0ns,2ms",
    )
    seed: int = option(
        OptionType.INT,
        0,
        "first seed of the tree growth; the same seed gives the same bytes",
        minimum=0,
    )
    seeds: int = option(
        OptionType.INT,
        8,
        "number of random orders in which trees are grown; the fewest trees are used",
        minimum=1,
    )
    # Converted to at most 1e15 steps, which an int64 can hold.
    time_limit: float = option(
        OptionType.FLOAT,
        1.0,
        "seconds for proofs of fewest trees, counted as a million search steps each "
        "so that results repeat",
        minimum=0,
        maximum=1e9,
    )
    within: float = option(
        OptionType.TIME,
        0.0,
        "known time, such as 662us: schedules that cannot beat it are not refined (0: none)",
        minimum=0,
    )


COLLHUB_PLUGIN_API = (1, 0)

BLINK = Synthesizer(
    "blink",
    "optimal packing of spanning trees, with a certificate of the rate",
    "collhub_blink.synthesize:synthesize",
    BlinkOptions,
    adapts=True,
    # Every pair has separate data in an all-to-all, which trees cannot deliver.
    collectives=tuple(kind for kind in STANDARD_KINDS if kind is not CollectiveKind.ALL_TO_ALL),
)


@hookimpl
def collhub_producers() -> Sequence[Synthesizer]:
    """Return the synthesizer."""
    return [BLINK]


KERNELS = Check(
    "blink-kernels",
    Subject.INSTALLATION,
    "compiles the kernels in advance, for doctor --warm",
    "collhub_blink.plugin:check",
    WarmOptions,
)


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Return the check that compiles the kernels in advance."""
    return [KERNELS]


@hookimpl
def collhub_bounds() -> Sequence[LowerBound]:
    """Return the offer of the lower bound by packings.

    Loading the compiled kernels of flows takes about 1.5 s, which `loading_work` states.
    """
    return [
        LowerBound(
            "packing",
            "all-reduce, broadcast, all-gather and their reverses: exact cuts and partitions",
            "collhub_blink.bound:prove",
            (
                CollectiveKind.ALL_REDUCE,
                CollectiveKind.ALL_GATHER,
                CollectiveKind.REDUCE_SCATTER,
                CollectiveKind.BROADCAST,
                CollectiveKind.REDUCE,
            ),
            loading_work=1_500_000_000,
        )
    ]


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile and cache the missing kernels if the option `warm` is set, and report them.

    The report fails if machine code could not be cached on disk. Without the option no
    kernel is compiled, and the report is a success without text.
    """
    from collhub_packing.warming import warm_check

    return warm_check(options, _run_every_kernel)


def _run_every_kernel() -> None:
    """Compile all kernels by three small syntheses with default options.

    They are an all-gather on `switch:4`, and an all-reduce and a broadcast on `ring:4`; these use
    different kernels. The results are discarded.
    """
    # Imported here: numba takes a second.
    from collhub_packing.warming import small_request

    from collhub_blink.synthesize import synthesize

    # Switches, links in both directions at once, and single trees use different kernels.
    cases = (
        (CollectiveKind.ALL_GATHER, "switch:4"),
        (CollectiveKind.ALL_REDUCE, "ring:4"),
        (CollectiveKind.BROADCAST, "ring:4"),
    )
    for kind, text in cases:
        synthesize(small_request(kind, text), BlinkOptions())
