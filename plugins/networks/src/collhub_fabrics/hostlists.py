"""Expand lists of hosts in Slurm's notation: `node[01-04,07],login`."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

_PART = re.compile(r"[^,\[\]\s]*(?:\[[0-9,\s-]*\][^,\[\]\s]*)*")
_RANGE = re.compile(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*")
# More than any cluster has; protects memory from huge ranges.
_MAX_HOSTS = 1 << 20


def expand_hosts(text: str) -> list[str]:
    """Expand a list to the names of its hosts, in order; numbers keep their leading zeros.

    Several brackets in one name multiply, the last one varies fastest. Raises `ValueError` with the
    reason, also for more than 2^20 hosts.
    """
    hosts: list[str] = []
    for part in _split_names(text):
        # Brackets do not nest: every second piece is the content of brackets.
        pieces = [
            _expand_numbers(piece) if index % 2 else [piece]
            for index, piece in enumerate(_split_brackets(part))
        ]
        # Checked before the expansion, since brackets multiply.
        if len(hosts) + math.prod(map(len, pieces)) > _MAX_HOSTS:
            raise ValueError(f"{text[:80]!r} names more than {_MAX_HOSTS} hosts")
        hosts += ["".join(names) for names in itertools.product(*pieces)]
    return hosts


def _split_names(text: str) -> Iterator[str]:
    """Yield the names with their brackets, split at commas outside of brackets."""
    position = 0
    while position <= len(text):
        match = _PART.match(text, position)
        end = len(text) if match is None else match.end()
        is_end = end == len(text)
        if match is None or not match[0] or not (is_end or text[end] == ","):
            raise ValueError(f"{text[:80]!r} is no list of hosts")
        yield match[0]
        position = end + 1


def _split_brackets(part: str) -> list[str]:
    """Split a name into plain text and the contents of brackets, alternately."""
    return re.split(r"[\[\]]", part)


def _expand_numbers(text: str) -> list[str]:
    """Expand `01-04,07` to texts; the numbers of a range have equal width."""
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"[{text[:80]}] is no list of numbers")
        first, last = match[1], match[2] or match[1]
        count = int(last) - int(first) + 1
        if not 1 <= count <= _MAX_HOSTS:
            raise ValueError(f"[{text[:80]}] is no range from low to high")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers
