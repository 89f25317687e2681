"""Endpoints of edges: names with slices in brackets, such as `nicdev[0:2].port[0]`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from collhub_networks import Value

_STEP = re.compile(r"([^.\[\]]+)(?:\[([^\[\]]*)\])?")
_INDEX = re.compile(r"-?\d{1,9}")
_MOST_PARTS = 3


@dataclass(frozen=True, slots=True)
class Step:
    """One name of an endpoint, and what stands in the brackets behind it."""

    name: str
    slice_text: str

    def chosen(
        self,
        count: int,
        place: Value,
    ) -> range:
        """The indices that the brackets name, of `count`; without brackets all.

        A slice is Python's. Raises `InputError` for an index that does not exist, and for a slice
        that is none or holds nothing.
        """
        text = self.slice_text.strip()
        parts = [part.strip() for part in text.split(":")]
        if not all(part == "" or _INDEX.fullmatch(part) for part in parts):
            place.fail(f"[{text[:40]}] is no slice", "write for example [0], [0:2] or [::2]")
        # Empty parts are Python's defaults: `[:2]`, `[::2]`.
        numbers = [int(part) if part else None for part in parts]
        if len(parts) == 1 and numbers[0] is not None:
            return self._single(numbers[0], count, place)
        if len(parts) > _MOST_PARTS or (len(parts) == _MOST_PARTS and numbers[2] == 0):
            place.fail(f"[{text[:40]}] is no slice", "write for example [0], [0:2] or [::2]")
        # Empty brackets name all, as no brackets do.
        found = range(count) if len(parts) == 1 else range(count)[slice(*numbers)]
        if not found:
            place.fail(f"{self.name}[{text}] holds nothing: there are {count}, from 0 on")
        return found

    def _single(
        self,
        index: int,
        count: int,
        place: Value,
    ) -> range:
        # Releases before 2.4 count from the end, too.
        number = index + count if index < 0 else index
        if not 0 <= number < count:
            cure = f"use 0..{count - 1}, or raise the count of {self.name}"
            place.fail(f"{self.name}[{index}] does not exist, there are {count}", cure)
        return range(number, number + 1)


def steps_of(place: Value) -> list[Step]:
    """The names of an endpoint from left to right. Raises `InputError` for what is no endpoint."""
    text = place.text()
    found: list[Step] = []
    end = 0
    while end <= len(text):
        match = _STEP.match(text, end)
        if match is None:
            place.fail(f"{text[:80]!r} is no endpoint", "write for example nic[0:2].port[0]")
        # People write blanks around names, and the service drops them.
        found.append(Step(match[1].strip(), match[2] or ""))
        end = match.end() + 1
        # Names are separated by points, and nothing else follows a bracket.
        if match.end() < len(text) and text[match.end()] != ".":
            place.fail(f"{text[:80]!r} is no endpoint", "write for example nic[0:2].port[0]")
    return found
