"""Several tensors from a JSON list: a model's state dict, or both directions of a boundary."""

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
        raise _wrong(file, f"is no JSON: {error}") from None
    if not isinstance(listed, list) or not listed:
        raise _wrong(file, "is no list of tensors")
    moves: list[Move] = []
    for number, entry in enumerate(listed):
        if not isinstance(entry, dict):
            raise _wrong(file, f"entry {number} is no object")
        moves += _entry_moves(entry, number, file, sides, host_size)
    return moves


def _entry_moves(
    entry: Mapping[str, object], number: int, file: str, sides: Sides, host_size: int | None
) -> list[Move]:
    unknown = sorted(entry.keys() - _MEMBERS)
    if unknown:
        raise _wrong(file, f"entry {number}: there is no member {unknown[0]!r}")
    tensor, source = entry.get("tensor"), entry.get("from", sides.source)
    destination = entry.get("to", sides.destination)
    if not all(isinstance(text, str) for text in (tensor, source, destination)):
        raise _wrong(file, f"entry {number} states no tensor, from or to")
    release, due = entry.get("release_s", 0.0), entry.get("due_s")
    times = [time for time in (release, due) if time is not None]
    if not all(isinstance(time, int | float) and time >= 0 for time in times):
        raise _wrong(file, f"entry {number}: release_s and due_s are seconds from 0 on")
    count = entry.get("count", 1)
    if not isinstance(count, int) or not 1 <= count <= 10_000:
        raise _wrong(file, f"entry {number}: count is not in 1..10000")
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
        raise _wrong(file, f"entry {number}: {error}") from None
    return [move] * count


def _wrong(file: str, message: str) -> InputError:
    # Every error of a file has the same cure.
    return InputError(message, location=Location(file), cure=_CURE, code="invalid-state-dict")
