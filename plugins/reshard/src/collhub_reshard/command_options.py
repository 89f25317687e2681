"""Options `-O key=value` of the command `reshard`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import click

from collhub_reshard.planning import ReshardChoices
from collhub_reshard.scheduling.best import Effort
from collhub_reshard.strategies import Strategy
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

    strategy: str = option(
        OptionType.TEXT, AUTO, "how boxes reach their receivers", choices=_STRATEGIES
    )
    layout: str = option(
        OptionType.TEXT,
        "packed",
        "packed: buffers contain the boxes in sequence; rows: row-major tiles, which needs copies",
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


def parse_choices(
    assignments: Assignments, budget: SearchBudget
) -> tuple[ReshardChoices, int | None]:
    """Return (choices, devices per host). Raises click's errors, which name the option.

    Without values: strategy None (chosen per box), as for "auto", chunks None (the planner
    chooses), layout "packed", split None, the default work, and devices per host None. Limits:
    65536 chunks and devices, an effort from 0 to 1000.
    """
    # Parsed here, because a command has no option record that the program fills in. The errors
    # have the form of those of other options.
    strategy = _parse_choice(assignments, "strategy", _STRATEGIES)
    choices = ReshardChoices(
        None if strategy in (None, AUTO) else Strategy(strategy),
        _parse_positive_integer(assignments, "chunks", 1 << 16),
        _parse_choice(assignments, "layout", _LAYOUTS) or "packed",
        Effort(
            _parse_boolean(assignments, "split"),
            _parse_number(assignments, "effort", 0.0, _MAX_EFFORT, Effort().work),
            budget,
        ),
    )
    return choices, _parse_positive_integer(assignments, "host_size", 1 << 16)


def _parse_choice(assignments: Assignments, name: str, known: tuple[str, ...]) -> str | None:
    """Return one of the `known` words, None if the option is not given.

    Raises `click.UsageError` for any other word.
    """
    text = assignments.get(name)
    if text is None:
        return None
    if text not in known:
        raise click.UsageError(f"-O {name}={text}: expected one of {', '.join(known)}")
    return text


def _parse_positive_integer(assignments: Assignments, name: str, maximum: int) -> int | None:
    """Return an integer from 1 to `maximum`, None if the option is not given.

    Raises `click.UsageError` for any other text.
    """
    text = assignments.get(name)
    if text is None:
        return None
    # `isdecimal` also refuses signs and underscores.
    if not text.isdecimal() or not 1 <= int(text) <= maximum:
        raise click.UsageError(f"-O {name}={text}: expected a whole number from 1 to {maximum}")
    return int(text)


def _parse_boolean(assignments: Assignments, name: str) -> bool:
    """Return the value of a boolean option, False if it is not given.

    Raises `click.UsageError` for a word other than those of `BOOL_WORDS`.
    """
    value = BOOL_WORDS.get(assignments.get(name, "false").lower())
    if value is None:
        raise click.UsageError(f"-O {name}={assignments[name]}: expected true or false")
    return value


def _parse_number(
    assignments: Assignments, name: str, low: float, high: float, default: T
) -> float | T:
    """Return a number from `low` to `high`, or `default` if the option is not given.

    Both limits are allowed. Raises `click.UsageError` for any other text, also for NaN.
    """
    text = assignments.get(name)
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
