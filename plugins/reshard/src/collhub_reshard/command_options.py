"""Options of `-O` of the command `reshard`: their names, what they mean, and their values."""

from __future__ import annotations

from dataclasses import dataclass

import click

from collhub_reshard.planning import ReshardChoices
from collhub_reshard.scheduling.best import Effort
from collhub_reshard.scheduling.strategies import Strategy
from hub_core import Assignments
from hub_core.plugin_api import OptionType, option, optional

AUTO = "auto"
_STRATEGIES = (AUTO, *(strategy.value for strategy in Strategy))
_LAYOUTS = ("packed", "rows")


@dataclass(frozen=True, slots=True)
class ReshardOptions:
    """Options of a resharding as `-O key=value`."""

    strategy: str = option(OptionType.TEXT, AUTO, "how boxes travel", choices=_STRATEGIES)
    layout: str = option(
        OptionType.TEXT,
        "packed",
        "buffers hold boxes one behind the other, or tiles row by row, which takes copies",
        choices=_LAYOUTS,
    )
    split: bool = option(OptionType.BOOL, False, "tasks may be split over senders and in time")
    time_limit: float = option(OptionType.FLOAT, 20.0, "seconds of the solver; 0: none")
    chunks: int | None = optional("chunks of a box (default: the closed form)", OptionType.INT)
    host_size: int | None = optional(
        "devices of a host (default: the last axis of a mesh)", OptionType.INT
    )


def choices_of(given: Assignments) -> tuple[ReshardChoices, int | None]:
    """(choices, devices of a host). Raises click's errors, which name the option."""
    # Binding by hand: a command has no record that the program fills,
    # and errors shall read like those of other options.
    strategy = _chosen(given, "strategy", _STRATEGIES)
    choices = ReshardChoices(
        None if strategy in (None, AUTO) else Strategy(strategy),
        _whole(given, "chunks", 1 << 16),
        _chosen(given, "layout", _LAYOUTS) or "packed",
        Effort(_truth(given, "split"), _seconds(given, "time_limit")),
    )
    return choices, _whole(given, "host_size", 1 << 16)


def _chosen(given: Assignments, name: str, known: tuple[str, ...]) -> str | None:
    """One of some words, None where the option is not given."""
    text = given.get(name)
    if text is None:
        return None
    # The list is the help.
    if text not in known:
        raise click.UsageError(f"-O {name}={text}: expected one of {', '.join(known)}")
    return text


def _whole(given: Assignments, name: str, most: int) -> int | None:
    """A whole number from 1 on, None where it is not given."""
    text = given.get(name)
    if text is None:
        return None
    # `isdecimal` also refuses signs and underscores.
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise click.UsageError(f"-O {name}={text}: expected a whole number from 1 to {most}")
    # What is left is a number in its range.
    return int(text)


def _truth(given: Assignments, name: str) -> bool:
    """Whether an option is `true`; by default it is not."""
    text = given.get(name, "false")
    # Other words for yes and no are left to nobody's guess.
    if text not in ("true", "false"):
        raise click.UsageError(f"-O {name}={text}: expected true or false")
    return text == "true"


def _seconds(given: Assignments, name: str) -> float:
    text = given.get(name)
    if text is None:
        return Effort().time_limit_s
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise click.UsageError(f"-O {name}={text}: expected seconds, 0 or more")
    return seconds
