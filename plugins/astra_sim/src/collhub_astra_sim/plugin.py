"""What this distribution offers to the hub."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugins.contract import Option, OptionType, Simulator
from hub_core.plugins.hookspecs import hookimpl

COLLHUB_PLUGIN_API = (1, 0)

ANALYTICAL = Simulator(
    "analytical",
    "ASTRA-sim's analytical timing model, exact to the cycle, on any topology",
    "collhub_astra_sim.analytical:simulate",
    (
        Option(
            "network",
            OptionType.TEXT,
            "congestion-aware",
            "whether messages wait for one another on links",
            ("congestion-aware", "congestion-unaware"),
        ),
        Option(
            "occupancy",
            OptionType.TEXT,
            "serialization",
            "how long a message keeps a link busy: size/bandwidth, or latency + size/bandwidth (alpha-beta)",
            ("serialization", "alpha-beta"),
        ),
        Option("reduce_bandwidth", OptionType.TEXT, None, "bytes reduced per second, as 200GB/s; not given: 1 ns each"),
        Option("copy_bandwidth", OptionType.TEXT, None, "bytes copied per second, as 1TB/s; not given: 1 ns each"),
    ),
)


@hookimpl
def collhub_consumers() -> Sequence[Simulator]:
    """Describe the simulators."""
    return [ANALYTICAL]
