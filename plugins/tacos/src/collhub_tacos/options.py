"""Options of the synthesizer; light, since listing the plugin imports them."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option


@dataclass(frozen=True, slots=True)
class TacosOptions:
    """What the synthesizer lets the user choose.

    `chunks` stays text, since a word may stand there, and the end of the range of `degree` is the
    topology's: `Setting.of` checks both.
    """

    chunks: str = option(
        OptionType.TEXT,
        "auto",
        "pieces of every rank's share: a number, or auto to choose by the time",
    )
    seeds: int = option(
        OptionType.INT,
        0,
        "number of random variants of which the best is kept (0: by size, up to 20)",
        minimum=0,
        maximum=10_000,
    )
    # Kernels mix seeds in 64 bits: there is room for those after the first.
    seed: int = option(
        OptionType.INT,
        0,
        "first seed; the same seed gives the same bytes",
        minimum=0,
        maximum=2**31 - 1,
    )
    method: str = choice(
        ("auto", "two-phase", "fused", "latency", "one-shot"),
        "form of an all-reduce: the fastest of the others, or the one that is named",
    )
    switches: str = choice(
        ("forward", "unwind"),
        "switches store and forward, or are unwound into links between their neighbours",
    )
    degree: int = option(
        OptionType.INT,
        0,
        "links that a port of an unwound switch is divided into (0: to all other ports)",
        minimum=0,
    )
    memory: int = option(
        OptionType.SIZE,
        8 << 30,
        "bytes that the schedule may take; more is refused beforehand",
        minimum=1,
        maximum=1 << 50,
    )
    threads: int = option(
        OptionType.INT,
        0,
        "seeds that are tried at once (0: as many as the machine has cores)",
        minimum=0,
        maximum=1024,
    )
