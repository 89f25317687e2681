"""Read numbers with the rules of the runtimes: C's `strtol` with base 0."""

from __future__ import annotations

import re
from enum import IntEnum

# The grammar of `strtol(text, NULL, 0)`, ISO C 7.22.1.4: white space, sign, and a prefix that
# chooses the base. All three runtimes call it for every numeric attribute.
_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]*)|([1-9][0-9]*))")
_BASES = (16, 8, 10)  # of the groups of digits in `_NUMBER`
# Python's int() takes quadratic time and refuses more than 4300 digits; 2^31 needs far fewer than
# 40.
_MAX_DIGITS = 40
_INT_MAX = 2**31 - 1


class NumberState(IntEnum):
    """Result of reading a text as a number. CUT: characters after the number were ignored."""

    FINE = 0
    CUT = 1
    NO_NUMBER = 2
    OUT_OF_RANGE = 3


def parse_number(text: str) -> tuple[int, NumberState]:
    """Value and state of a text: `12`, `-1`, `0x10` (16), `010` (octal, 8), `5x` (5, CUT).

    The runtimes read a text without digits as 0 and truncate large values to 32 bits. Here both are
    defects (NO_NUMBER, OUT_OF_RANGE: magnitude above 2^31 - 1) with the value 0.
    """
    match = _NUMBER.match(text)
    if match is None:
        return 0, NumberState.NO_NUMBER
    sign, *digits = match.groups()
    value = _compute_magnitude(digits)
    if value > _INT_MAX:
        return 0, NumberState.OUT_OF_RANGE
    is_complete = match.end() == len(text)
    state = NumberState.FINE if is_complete else NumberState.CUT
    return (-value if sign == "-" else value), state


def _compute_magnitude(digits: list[str | None]) -> int:
    """Value of the only group of digits that matched; 2^31 for more than 40 digits."""
    for base, group in zip(_BASES, digits, strict=True):
        if group is None:
            continue
        if len(group) > _MAX_DIGITS:
            return _INT_MAX + 1
        # "0" without further digits is only the octal prefix.
        return int(group or "0", base)
    raise AssertionError("a match has one group of digits")
