"""Read numbers as the runtimes do: C's `strtol` with base 0."""

from __future__ import annotations

import re
from enum import IntEnum

_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]*)|([1-9][0-9]*))")
_BASES = (16, 8, 10)
_LONGEST = 40
_INT_MAX = 2**31 - 1


class NumberState(IntEnum):
    """How a text read as a number. CUT: characters after the number were ignored."""

    FINE = 0
    CUT = 1
    NO_NUMBER = 2
    OUT_OF_RANGE = 3


def parse_number(text: str) -> tuple[int, NumberState]:
    """Value of a text such as `12`, `-1`, `0x10` (16), `010` (octal, 8) or `5x` (5, CUT).

    The runtimes read a text without digits as 0 and cut large values to 32 bits; both are defects here.
    """
    match = _NUMBER.match(text)
    if match is None:
        return 0, NumberState.NO_NUMBER
    sign, *digits = match.groups()
    base, found = next(
        (base, found) for base, found in zip(_BASES, digits, strict=True) if found is not None
    )
    value = int(found or "0", base) if len(found) <= _LONGEST else _INT_MAX + 1
    if value > _INT_MAX:
        return 0, NumberState.OUT_OF_RANGE
    return (-value if sign == "-" else value), NumberState.FINE if match.end() == len(
        text
    ) else NumberState.CUT
