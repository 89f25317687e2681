"""Inputs of the command `reshard`: options `-O key=value`, and the JSON list of `--tensors`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

import click
from collhub_shardings import Move, parse_move

from collhub_reshard.planning import ReshardChoices
from collhub_reshard.scheduling.best import Effort
from collhub_reshard.strategies import Strategy
from hub_core import Assignments, is_finite_number
from hub_core.model import InputError, Location, parse_whole
from hub_core.plugin_api import BOOL_WORDS, OptionType, SearchBudget, option, optional

T = TypeVar("T")

AUTO = "auto"
_STRATEGIES = (AUTO, *(strategy.value for strategy in Strategy))
_LAYOUTS = ("packed", "rows")
_MAX_EFFORT = 1000.0
_MEMBERS = {"name", "tensor", "from", "to", "release_s", "due_s", "count"}
_CURE = 'write [{"tensor": "4096x4096:bfloat16", "from": "mesh(2,4): S0 R", "to": "..."}]'


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
    """Return the choices of the user and the devices per host, from the options given by `-O`.

    - `strategy`: a value of `Strategy`, or `auto` (default): `None`, the planner chooses per box.
    - `chunks`: a whole number from 1 to 65536; default `None`, the planner chooses.
    - `layout`: `packed` (default) or `rows`.
    - `split`: a word of `BOOL_WORDS` such as `true`, in any case; default false.
    - `effort`: a number (as `float` reads it) from 0 to `_MAX_EFFORT` (1000); it scales the search;
      default 1.
    - `host_size`: a whole number from 1 to 65536; default `None`. It is the second result.

    `split`, `effort` and `budget` form the `Effort`. Whole numbers have ASCII digits and no sign.
    Other keys are ignored. Raises `click.UsageError` for the first invalid option in this order.
    """
    # Parsed here, because a command has no option record that the program fills in. The errors
    # have the form of those of other options.
    name = _parse_choice(assignments, "strategy", _STRATEGIES)
    strategy = None if name in (None, AUTO) else Strategy(name)
    chunks = _parse_positive_integer(assignments, "chunks", 1 << 16)
    layout = _parse_choice(assignments, "layout", _LAYOUTS) or "packed"
    split = BOOL_WORDS.get(assignments.get("split", "false").lower())
    if split is None:
        raise click.UsageError(f"-O split={assignments['split']}: expected true or false")
    work = Effort().work
    if "effort" in assignments:
        try:
            work = float(assignments["effort"])
        except ValueError:
            work = math.nan
        if not 0.0 <= work <= _MAX_EFFORT:
            message = f"-O effort={assignments['effort']}: expected a number from 0 to"
            raise click.UsageError(f"{message} {_MAX_EFFORT:g}")
    choices = ReshardChoices(strategy, chunks, layout, Effort(split, work, budget))
    return choices, _parse_positive_integer(assignments, "host_size", 1 << 16)


def _parse_choice(assignments: Assignments, name: str, known: tuple[str, ...]) -> str | None:
    """Return the value of an option that must be one of the `known` words.

    Returns `None` if the option is not given. Raises `click.UsageError` for any other word.
    """
    text = assignments.get(name)
    if text is None:
        return None
    if text not in known:
        raise click.UsageError(f"-O {name}={text}: expected one of {', '.join(known)}")
    return text


def _parse_positive_integer(assignments: Assignments, name: str, maximum: int) -> int | None:
    """Return the value of the option `name` as an integer in 1..`maximum`; None if it is not given.

    Only ASCII digits are accepted, at most as many as `maximum` has; leading zeros are allowed.
    Raises `click.UsageError` for any other text, also for 0, a sign and blanks.
    """
    text = assignments.get(name)
    if text is None:
        return None
    number = parse_whole(text, maximum)
    if not number:
        message = f"-O {name}={text[:80]}: expected a whole number from 1 to {maximum}"
        raise click.UsageError(message)
    return number


@dataclass(frozen=True, slots=True)
class TensorSides:
    """Both sides of the tensors that specify none themselves."""

    source: str | None = None
    destination: str | None = None


def parse_state_dict(
    content: bytes, file: str, sides: TensorSides, host_size: int | None = None
) -> list[Move]:
    """Return the moves of a JSON list of tensors, in the order of the list.

    Each entry is an object with the members of `_parse_entry`, which parses it. It gives one move
    or, with a `count` of 3, three equal moves in succession.

    `sides`: texts for entries without `from` or `to`. `file`: name for errors. `host_size`: devices
    per host; `None` for the length of the last axis of each mesh.

    Raises `InputError` (`invalid-state-dict`) with the name of the file if the content is not valid
    JSON, is nested too deeply, or is not a list with at least one entry. The same error reports the
    first invalid entry with its number, counted from 0.
    """
    try:
        listed = json.loads(content)
    except (ValueError, RecursionError) as error:
        is_deep = isinstance(error, RecursionError)
        reason = "values are nested too deeply" if is_deep else error
        raise _make_error(file, f"is no JSON: {reason}") from None
    if not isinstance(listed, list) or not listed:
        raise _make_error(file, "is no list of tensors")
    moves: list[Move] = []
    for number, entry in enumerate(listed):
        if not isinstance(entry, dict):
            raise _make_error(file, f"entry {number} is no object")
        moves += _parse_entry(entry, number, file, sides, host_size)
    return moves


def _parse_entry(
    entry: Mapping[str, object], number: int, file: str, sides: TensorSides, host_size: int | None
) -> list[Move]:
    """Return the moves of entry `number` (from 0) of the list: `count` references to one move.

    - `tensor`: shape and type, such as `4096x4096:bfloat16`; required.
    - `from`, `to`: texts of the sides; default `sides`.
    - `name`: converted to text; default `tensor 3` for `number` 3.
    - `release_s`, `due_s`: finite seconds, at least 0; default 0 and `None` (no due time).
    - `count`: integer from 1 to 10 000; default 1.

    `host_size`: devices per host; `None` for the length of the last axis of each mesh. Raises
    `InputError` (`invalid-state-dict`) with `file` and `number` for the first fault: an unknown
    member (first in alphabetical order); `tensor`, `from` or `to` that is no text (a missing one
    without default, or `null`); `release_s`; `due_s`; `count`; a text that `parse_move` refuses.
    """
    unknown = sorted(entry.keys() - _MEMBERS)
    if unknown:
        raise _make_error(file, f"entry {number}: there is no member {unknown[0]!r}")
    tensor, source = entry.get("tensor"), entry.get("from", sides.source)
    destination = entry.get("to", sides.destination)
    if not all(isinstance(text, str) for text in (tensor, source, destination)):
        raise _make_error(file, f"entry {number} has no tensor, from or to")
    release, due = entry.get("release_s", 0.0), entry.get("due_s")
    for member, time in (("release_s", release), ("due_s", 0.0 if due is None else due)):
        # JSON has no infinity, but its parser accepts it.
        if not is_finite_number(time) or time < 0:
            message = f"entry {number}: {member} is {time!r:.40}, expected seconds from 0 on"
            raise _make_error(file, message)
    count = entry.get("count", 1)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 10_000:
        raise _make_error(file, f"entry {number}: count is not in 1..10000")
    name = str(entry.get("name", f"tensor {number}"))
    try:
        move = parse_move(
            str(tensor),
            str(source),
            str(destination),
            name=name,
            host_size=host_size,
            release_s=float(cast("float", release)),
            due_s=None if due is None else float(cast("float", due)),
        )
    except InputError as error:
        raise _make_error(file, f"entry {number}: {error}") from None
    return [move] * count


def _make_error(file: str, message: str) -> InputError:
    """Return the `InputError` of an invalid list of tensors in a file."""
    return InputError(message, location=Location(file), cure=_CURE, code="invalid-state-dict")
