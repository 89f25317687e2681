"""Offers of this distribution: the synthesizer, a lower bound and a check."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_blink.options import BlinkOptions
from hub_core.model import CollectiveKind
from hub_core.plugin_api import (
    Check,
    LowerBound,
    Subject,
    Synthesizer,
    WarmOptions,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

BLINK = Synthesizer(
    "blink",
    "optimal packing of spanning trees, with a certificate of the rate",
    "collhub_blink.synthesize:synthesize",
    BlinkOptions,
    adapts=True,
)


@hookimpl
def collhub_producers() -> Sequence[Synthesizer]:
    """Return the synthesizer."""
    return [BLINK]


KERNELS = Check(
    "blink-kernels",
    Subject.INSTALLATION,
    "compiles the kernels in advance, for doctor --warm",
    "collhub_blink.warming:check",
    WarmOptions,
)


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Return the check that compiles the kernels in advance."""
    return [KERNELS]


@hookimpl
def collhub_bounds() -> Sequence[LowerBound]:
    """Return the lower bound. Loading the compiled kernels of flows takes about 1.5 s."""
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
