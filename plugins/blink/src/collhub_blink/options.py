"""The options of the synthesizer; light, since listing the plugin imports them."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option


@dataclass(frozen=True, slots=True)
class BlinkOptions:
    """What the synthesizer lets the user choose.

    `chunks` and `setup` stay text, since a word or a list may stand there: `task` and `planes`
    read them.
    """

    chunks: str = option(
        OptionType.TEXT,
        "auto",
        "pieces of the widest tree's share: a number, or auto to choose by the time",
    )
    trees: str = choice(
        ("auto", "fewest", "shallow"),
        "packing: the fastest for the size, the fewest trees at the optimal rate, or shallow trees",
    )
    depth: int = option(
        OptionType.INT,
        0,
        "most hops of a tree at the optimal rate of a broadcast or reduce (0: any)",
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
        "random orders in which trees are grown; the fewest trees stand",
        minimum=1,
    )
    # Counted in steps, at most 1e15 of them: far below what an int64 holds.
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
        "time that is reached already, as 662us: what cannot be faster is not refined (0: none)",
        minimum=0,
    )
