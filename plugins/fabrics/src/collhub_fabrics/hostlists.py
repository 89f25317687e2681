"""Lists of hosts as Slurm writes them: `node[01-04,07],login`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

_PART = re.compile(r"[^,\[\]\s]*(?:\[[0-9,\s-]*\][^,\[\]\s]*)*")
_RANGE = re.compile(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*")
# More than any cluster has: a range must not fill the memory.
_MOST_HOSTS = 1 << 20


def expanded_hosts(text: str) -> list[str]:
    """The names of a list, in its order; numbers keep their leading zeros.

    Several brackets in one name multiply, the last varies fastest. Raises `ValueError` with the
    reason.
    """
    found: list[str] = []
    for part in _parts(text):
        # Brackets do not nest, so that every second piece stands in some.
        pieces = [_numbers(piece) if odd % 2 else [piece] for odd, piece in enumerate(_split(part))]
        size = 1
        for piece in pieces:
            size *= len(piece)
        # Counted before names are made: brackets multiply.
        if len(found) + size > _MOST_HOSTS:
            raise ValueError(f"{text[:80]!r} names more than {_MOST_HOSTS} hosts")
        found += ["".join(names) for names in itertools.product(*pieces)]
    return found


def _parts(text: str) -> Iterator[str]:
    """The names with their brackets, between commas that stand outside of brackets."""
    position = 0
    while position <= len(text):
        match = _PART.match(text, position)
        end = len(text) if match is None else match.end()
        is_end = end == len(text)
        if match is None or not match[0] or not (is_end or text[end] == ","):
            raise ValueError(f"{text[:80]!r} is no list of hosts")
        yield match[0]
        position = end + 1


def _split(part: str) -> list[str]:
    """Plain text and what stands in brackets, in turn."""
    return re.split(r"[\[\]]", part)


def _numbers(text: str) -> list[str]:
    """`01-04,07` as texts of equal width each."""
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"[{text[:80]}] is no list of numbers")
        first, last = match[1], match[2] or match[1]
        count = int(last) - int(first) + 1
        if not 1 <= count <= _MOST_HOSTS:
            raise ValueError(f"[{text[:80]}] is no range from low to high")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found
