"""Inputs of the command `reshard`: tensors from a JSON list, and the options of `-O`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import click
from collhub_shardings import Move, parse_move

from collhub_reshard.planning import ReshardChoices
from collhub_reshard.scheduling.best import Effort
from collhub_reshard.strategies import Strategy
from hub_core import Assignments
from hub_core.model import InputError, Location
from hub_core.plugin_api import BOOL_WORDS, OptionType, SearchBudget, option, optional

_MEMBERS = {"name", "tensor", "from", "to", "release_s", "due_s", "count"}
_CURE = 'write [{"tensor": "4096x4096:bfloat16", "from": "mesh(2,4): S0 R", "to": "..."}]'


@dataclass(frozen=True, slots=True)
class Sides:
    """Both ends of the tensors that state none themselves."""

    source: str | None = None
    destination: str | None = None


def parse_state_dict(
    content: bytes, file: str, sides: Sides, host_size: int | None = None
) -> list[Move]:
    """The moves of a JSON list of objects with `tensor`, `from`, `to`.

    Optional: `name`, `release_s`, `due_s`, `count` of equal tensors. Raises `InputError` with the
    number of the entry.
    """
    try:
        listed = json.loads(content)
    except ValueError as error:
        raise _make_error(file, f"is no JSON: {error}") from None
    if not isinstance(listed, list) or not listed:
        raise _make_error(file, "is no list of tensors")
    moves: list[Move] = []
    for number, entry in enumerate(listed):
        if not isinstance(entry, dict):
            raise _make_error(file, f"entry {number} is no object")
        moves += _parse_entry(entry, number, file, sides, host_size)
    return moves


def _parse_entry(
    entry: Mapping[str, object], number: int, file: str, sides: Sides, host_size: int | None
) -> list[Move]:
    unknown = sorted(entry.keys() - _MEMBERS)
    if unknown:
        raise _make_error(file, f"entry {number}: there is no member {unknown[0]!r}")
    tensor, source = entry.get("tensor"), entry.get("from", sides.source)
    destination = entry.get("to", sides.destination)
    if not all(isinstance(text, str) for text in (tensor, source, destination)):
        raise _make_error(file, f"entry {number} states no tensor, from or to")
    release, due = entry.get("release_s", 0.0), entry.get("due_s")
    times = [time for time in (release, due) if time is not None]
    if not all(isinstance(time, int | float) and time >= 0 for time in times):
        raise _make_error(file, f"entry {number}: release_s and due_s are seconds from 0 on")
    count = entry.get("count", 1)
    if not isinstance(count, int) or not 1 <= count <= 10_000:
        raise _make_error(file, f"entry {number}: count is not in 1..10000")
    name = str(entry.get("name", f"tensor {number}"))
    try:
        move = parse_move(
            str(tensor),
            str(source),
            str(destination),
            name=name,
            host_size=host_size,
            release_s=float(str(release)),
            due_s=None if due is None else float(str(due)),
        )
    except InputError as error:
        raise _make_error(file, f"entry {number}: {error}") from None
    return [move] * count


def _make_error(file: str, message: str) -> InputError:
    # Every error of a file has the same cure.
    return InputError(message, location=Location(file), cure=_CURE, code="invalid-state-dict")


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


def parse_choices(given: Assignments, budget: SearchBudget) -> tuple[ReshardChoices, int | None]:
    """(choices, devices of a host). Raises click's errors, which name the option."""
    # Binding by hand: a command has no record that the program fills,
    # and errors shall read like those of other options.
    strategy = _parse_choice(given, "strategy", _STRATEGIES)
    choices = ReshardChoices(
        None if strategy in (None, AUTO) else Strategy(strategy),
        _parse_positive_integer(given, "chunks", 1 << 16),
        _parse_choice(given, "layout", _LAYOUTS) or "packed",
        Effort(
            _parse_boolean(given, "split"),
            _parse_number(given, "effort", 0.0, _MAX_EFFORT, Effort().work),
            budget,
        ),
    )
    return choices, _parse_positive_integer(given, "host_size", 1 << 16)


def _parse_choice(given: Assignments, name: str, known: tuple[str, ...]) -> str | None:
    """One of some words, None where the option is not given."""
    text = given.get(name)
    if text is None:
        return None
    # The list is the help.
    if text not in known:
        raise click.UsageError(f"-O {name}={text}: expected one of {', '.join(known)}")
    return text


def _parse_positive_integer(given: Assignments, name: str, most: int) -> int | None:
    """A whole number from 1 on, None where it is not given."""
    text = given.get(name)
    if text is None:
        return None
    # `isdecimal` also refuses signs and underscores.
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise click.UsageError(f"-O {name}={text}: expected a whole number from 1 to {most}")
    # What is left is a number in its range.
    return int(text)


def _parse_boolean(given: Assignments, name: str) -> bool:
    """Value of an option that is true or false; false if it is not given."""
    value = BOOL_WORDS.get(given.get(name, "false").lower())
    if value is None:
        raise click.UsageError(f"-O {name}={given[name]}: expected true or false")
    return value


def _parse_number(given: Assignments, name: str, low: float, high: float, default: T) -> float | T:
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
