"""Tensors to move from a JSON list, the file of `--tensors`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from collhub_shardings import Move, parse_move

from hub_core.model import InputError, Location

_MEMBERS = {"name", "tensor", "from", "to", "release_s", "due_s", "count"}
_CURE = 'write [{"tensor": "4096x4096:bfloat16", "from": "mesh(2,4): S0 R", "to": "..."}]'


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides of the tensors that specify none themselves."""

    source: str | None = None
    destination: str | None = None


def parse_state_dict(
    content: bytes, file: str, sides: Sides, host_size: int | None = None
) -> list[Move]:
    """Parse moves from a JSON list of objects with `tensor`, `from`, `to`, in order.

    Optional members: `name`, `release_s`, `due_s` (seconds), `count` of equal tensors. `from` and
    `to` default to `sides`. Raises `InputError` for invalid JSON, for anything but a list with
    entries, and, with its number, for an invalid entry.
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
    """Parse one entry of the list: `count` equal moves (default 1, at most 10 000).

    Sides that the entry lacks are those of `sides`, the name is "tensor" and the entry's number by
    default, the release 0, and no due time.

    Raises `InputError` with the file's name for unknown members (the first in alphabetical order),
    missing sides or tensor, negative times, and invalid counts, tensors or sides.
    """
    unknown = sorted(entry.keys() - _MEMBERS)
    if unknown:
        raise _make_error(file, f"entry {number}: there is no member {unknown[0]!r}")
    tensor, source = entry.get("tensor"), entry.get("from", sides.source)
    destination = entry.get("to", sides.destination)
    if not all(isinstance(text, str) for text in (tensor, source, destination)):
        raise _make_error(file, f"entry {number} has no tensor, from or to")
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
    """Return the `InputError` of an invalid list of tensors in a file."""
    return InputError(message, location=Location(file), cure=_CURE, code="invalid-state-dict")
