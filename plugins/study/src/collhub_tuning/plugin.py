"""Offers of this distribution: `compare`, `tune`, synthesizer `auto`, engine `processes`."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_tuning.options import AutoOptions
from hub_core.plugin_api import Command, Engine, Synthesizer, hookimpl

COLLHUB_PLUGIN_API = (1, 0)


AUTO = Synthesizer(
    "auto",
    "the fastest of what all other synthesizers make, by the simulator",
    "collhub_tuning.auto:synthesize",
    AutoOptions,
)


@hookimpl
def collhub_producers() -> Sequence[Synthesizer]:
    """Describe the synthesizer."""
    return [AUTO]


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Describe the commands."""
    return [
        Command(
            "compare",
            "Compare algorithms on a topology over a range of sizes.",
            "collhub_tuning.compare_command:compare",
        ),
        Command(
            "tune",
            "Choose the best algorithm by size, as files that runtimes load.",
            "collhub_tuning.tune_command:tune",
        ),
    ]


PROCESSES = Engine(
    "processes",
    "processes of this machine",
    "collhub_tuning.processes_engine:start",
    shares_files=True,
)


@hookimpl
def collhub_engines() -> Sequence[Engine]:
    """Describe the engine."""
    return [PROCESSES]
