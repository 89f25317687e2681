"""Offer of this distribution to the hub: the synthesizer `tacos`, with its options."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Option, OptionType, Synthesizer, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

# The work is named, not imported: numba takes a second, and a listing needs none of it.
TACOS = Synthesizer(
    "tacos",
    "topology-aware synthesis of every collective on any network, "
    "by matching on the time-expanded network",
    "collhub_tacos.synthesize:synthesize",
    (
        Option(
            "chunks",
            OptionType.TEXT,
            "auto",
            "pieces of every rank's share: a number, or auto to choose by the time",
        ),
        Option(
            "seeds",
            OptionType.INT,
            0,
            "number of random variants of which the best is kept (0: by size, up to 20)",
        ),
        Option("seed", OptionType.INT, 0, "first seed; the same seed gives the same bytes"),
        Option(
            "method",
            OptionType.TEXT,
            "auto",
            "form of an all-reduce: the fastest of the others, or the one that is named",
            ("auto", "two-phase", "fused", "latency"),
        ),
        Option(
            "switches",
            OptionType.TEXT,
            "forward",
            "switches store and forward, or are unwound into links between their neighbours",
            ("forward", "unwind"),
        ),
        Option(
            "degree",
            OptionType.INT,
            0,
            "links that a port of an unwound switch is divided into (0: to all other ports)",
        ),
        Option(
            "memory",
            OptionType.SIZE,
            8 << 30,
            "bytes that the schedule may take; more is refused beforehand",
        ),
        Option(
            "threads",
            OptionType.INT,
            0,
            "seeds that are tried at once (0: as many as the machine has cores)",
        ),
    ),
)


@hookimpl
def collhub_producers() -> Sequence[Synthesizer]:
    """Describe the synthesizer."""
    return [TACOS]
