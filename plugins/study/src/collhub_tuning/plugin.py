"""Register the commands `compare` and `tune`, the synthesizer `auto`, the engine `processes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.plugin_api import (
    Command,
    Engine,
    OptionType,
    RuleSet,
    Synthesizer,
    hookimpl,
    option,
)


@dataclass(frozen=True, slots=True)
class AutoOptions:
    """Synthesizers to try, the limit of their work, and the objective."""

    candidates: str = option(
        OptionType.TEXT, "all", "synthesizers to try, as ring,tacos, or all that are installed"
    )
    work: int = option(
        OptionType.INT,
        20_000_000,
        "limit of the counted work, in steps as simulated: the synthesizer at work ends with its "
        "best, and no further one is begun",
        minimum=0,
    )
    robust: str = option(
        OptionType.TEXT,
        "no",
        "links: minimize the largest time over failures of single links, with repairs",
        choices=("no", "links"),
    )
    objective: str = option(
        OptionType.TEXT,
        "messages",
        "of the results within 1 % of the best time, the one with the fewest messages; time: the "
        "fastest",
        choices=("messages", "time"),
    )


COLLHUB_PLUGIN_API = (1, 0)


AUTO = Synthesizer(
    "auto",
    "the fastest of what all other synthesizers make, by the simulator; within 1 %, fewer messages",
    "collhub_tuning.auto:synthesize",
    AutoOptions,
)


@hookimpl
def collhub_producers() -> Sequence[Synthesizer]:
    """Return the plugin's only synthesizer, `AUTO`."""
    return [AUTO]


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Return the commands `collhub compare` and `collhub tune`, in this order."""
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
    "collhub_tuning.sweep:start",
    shares_files=True,
)


@hookimpl
def collhub_engines() -> Sequence[Engine]:
    """Return the plugin's only engine, `PROCESSES`."""
    return [PROCESSES]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Return the rules of the findings in comparisons and tuned folders.

    The plugin system calls this function.
    """
    rules = "collhub_tuning.rules:list_rules"
    return [RuleSet("study", "findings in comparisons and tuned folders", rules)]
