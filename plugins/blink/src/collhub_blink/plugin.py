"""What this distribution offers to the hub."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Option, OptionType, Synthesizer, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

BLINK = Synthesizer(
    "blink",
    "optimal packing of spanning trees, with a certificate of the rate",
    "collhub_blink.synthesize:synthesize",
    (
        Option(
            "chunks",
            OptionType.TEXT,
            "auto",
            "pieces of the widest tree's share: a number, or auto to choose by the time",
        ),
        Option(
            "trees",
            OptionType.TEXT,
            "auto",
            "packing: the fastest for the size, the fewest trees at the optimal rate, "
            "or shallow trees",
            ("auto", "fewest", "shallow"),
        ),
        Option(
            "depth",
            OptionType.INT,
            0,
            "most hops of a tree at the optimal rate of a broadcast or reduce (0: any)",
        ),
        Option(
            "setup",
            OptionType.TEXT,
            "0ns",
            "time until a plane of the topology can be used: 0ns, or one per plane such as 0ns,2ms",
        ),
        Option(
            "seed",
            OptionType.INT,
            0,
            "first seed of the tree growth; the same seed gives the same bytes",
        ),
        Option(
            "seeds",
            OptionType.INT,
            8,
            "random orders in which trees are grown; the fewest trees stand",
        ),
        Option(
            "time_limit",
            OptionType.FLOAT,
            10.0,
            "seconds for proofs of fewest trees, counted as a million search steps each "
            "so that results repeat",
        ),
    ),
)


@hookimpl
def collhub_producers() -> Sequence[Synthesizer]:
    """Describe the synthesizer."""
    return [BLINK]
