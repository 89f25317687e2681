"""Options of `-O` of the command `reshard`: their names, what they mean, and their values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import click

from collhub_reshard.planning import ReshardChoices
from collhub_reshard.scheduling.best import Effort
from collhub_reshard.scheduling.strategies import Strategy
from hub_core import Assignments
from hub_core.plugin_api import BOOL_WORDS, OptionType, SearchBudget, option, optional

T = TypeVar("T")

AUTO = "auto"
_STRATEGIES = (AUTO, *(strategy.value for strategy in Strategy))
_LAYOUTS = ("packed", "rows")
_MAX_EFFORT = 1000.0


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
    effort: float = option(
        OptionType.FLOAT,
        1.0,
        "limit of the search's counted work, relative to the default; 0: heuristics only",
        minimum=0,
        maximum=_MAX_EFFORT,
    )
    chunks: int | None = optional("chunks of a box (default: the closed form)", OptionType.INT)
    host_size: int | None = optional(
        "devices of a host (default: the last axis of a mesh)", OptionType.INT
    )


def choices_of(given: Assignments, budget: SearchBudget) -> tuple[ReshardChoices, int | None]:
    """(choices, devices of a host). Raises click's errors, which name the option."""
    # Binding by hand: a command has no record that the program fills,
    # and errors shall read like those of other options.
    strategy = _chosen(given, "strategy", _STRATEGIES)
    choices = ReshardChoices(
        None if strategy in (None, AUTO) else Strategy(strategy),
        _whole(given, "chunks", 1 << 16),
        _chosen(given, "layout", _LAYOUTS) or "packed",
        Effort(
            _truth(given, "split"),
            _number(given, "effort", 0.0, _MAX_EFFORT, Effort().work),
            budget,
        ),
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
    """Value of an option that is true or false; false if it is not given."""
    value = BOOL_WORDS.get(given.get(name, "false").lower())
    if value is None:
        raise click.UsageError(f"-O {name}={given[name]}: expected true or false")
    return value


def _number(given: Assignments, name: str, low: float, high: float, default: T) -> float | T:
    """A number from `low` to `high`, the default if it is not given."""
    text = given.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        message = f"-O {name}={text}: expected a number from {low:g} to {high:g}"
        raise click.UsageError(message)
    return number
