"""Values as users write them: sizes, bandwidths, times and lists of ranks; parse and format them.

GB is 1e9, GiB 2^30, and a unit is required. A small b means bits: `400Gb/s`, `400Gbit/s` and
`400Gbps` are 50 GB/s. A prefix without a unit, such as `1M` of nccl-tests, is refused, and the
error lists both meanings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from fractions import Fraction

from hub_core.model.diagnostics import UsageError

_DECIMAL = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

_BYTES = {"B": 1, **_DECIMAL, **_BINARY}

_BITS = {"Kbit": 125.0, "Mbit": 125e3, "Gbit": 125e6, "Tbit": 125e9}

_RATES = {
    **{f"{unit}/s": float(factor) for unit, factor in {**_BYTES, **_BITS}.items()},
    **{f"{unit[0]}b/s": factor for unit, factor in _BITS.items()},
    **{f"{unit[0]}bps": factor for unit, factor in _BITS.items()},
    **{f"{unit}ps": float(factor) for unit, factor in _BYTES.items()},
}

_PREFIX = re.compile(r"([kKMGT])i?\Z")

_SMALL_BYTES = re.compile(r"([kKmMgGtT])[bB]\Z")

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}

_NANOSECONDS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}

# No sign, underscores or inf, which Python would accept.
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*\Z")

_LARGEST_SIZE = 2**62

MIN_BANDWIDTH, MAX_BANDWIDTH = 1e-3, 1e18
"""Range of accepted bandwidths in bytes per second; other values are errors of the user."""

_RANK_RUN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)

# Maximum number of ranks of a collective; a longer range is an error and would fill the memory.
_MAX_RANKS = 1 << 20


def parse_whole(text: str, maximum: int) -> int | None:
    """Parse an integer from 0 to `maximum` that consists of ASCII digits only.

    Return None for any other text: one that is empty, has a sign, blank, point or underscore,
    or has more digits than `maximum`, leading zeros included.
    """
    # `isdecimal` accepts the digits of all scripts. `int` raises `ValueError` for more than 4300
    # digits, and takes quadratic time.
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(maximum))):
        return None
    number = int(text)
    return number if number <= maximum else None


def parse_size(text: str) -> int:
    """Convert a size such as `1MiB` or `1.5 GB` to bytes, exactly.

    The unit is one of B, KB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (powers of 1024),
    in this spelling. Blanks around number and unit are ignored. The number has digits, an optional
    decimal point and an optional exponent, without a sign.

    Raises `UsageError` for a text of another form or of more than 64 characters, and for a missing
    or unknown unit. The same error is raised unless the size is a positive whole number of bytes up
    to 2^62: `0B` and `1.5B` are refused, `1e3B` is 1000.
    """
    number, unit = _split(text, _BYTES, "size", "1MiB")
    # The double checks the magnitude: 1e999999999B is never expanded to an exact fraction.
    if 0 < float(number) * _BYTES[unit] < 2 * _LARGEST_SIZE:
        size = Fraction(number) * _BYTES[unit]
        if size.denominator == 1 and size <= _LARGEST_SIZE:
            return int(size)
    message = f"size {text!r} is not a positive whole number of bytes up to 2^62"
    raise UsageError(message, cure="write for example 1MiB")


def parse_bandwidth(text: str) -> float:
    """Convert `50GB/s`, `400Gb/s`, `400Gbit/s` or `400Gbps` to bytes per second.

    The result is the double nearest to the exact product of number and unit. Units, case-sensitive:

    - bytes: B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024), followed by
      `/s` or `ps`
    - bits, 1/8 byte each: K, M, G or T (powers of 1000), followed by `bit/s`, `b/s` or `bps`

    Blanks around number and unit are ignored. The number has digits, an optional decimal point and
    an optional exponent, without a sign. Raises `UsageError` for a text of another form or of more
    than 64 characters, for a missing or unknown unit, and for bandwidths outside
    `MIN_BANDWIDTH`..`MAX_BANDWIDTH` (0.001 to 1e18 bytes/s).
    """
    number, unit = _split(text, _RATES, "bandwidth", "50GB/s")
    rate = float(number) * _RATES[unit]
    # Other values would make times zero or exceed the range of times.
    if not MIN_BANDWIDTH <= rate <= MAX_BANDWIDTH:
        message = f"bandwidth {text!r:.60} is not positive and finite"
        if rate > 0:
            message = f"bandwidth {text!r:.60} is not between 0.001 B/s and 1e9 GB/s"
        raise UsageError(message, cure="write for example 50GB/s")
    # Exact, so that 16.6GB/s is 16600000000 bytes per second and not 2e-6 more.
    return float(Fraction(number) * Fraction(_RATES[unit]))


def parse_time(text: str) -> float:
    """Convert a time such as `500ns` or `0.5us` to seconds, rounded to 1e-6 ns; 0 is accepted.

    Units are ns, us, ms and s, in this spelling. The number has no sign. It begins with a digit
    (`.5us` is refused); a decimal point, with or without more digits, and an exponent may follow.
    Blanks around number and unit are ignored. Raise `UsageError` for any other form, more than 64
    characters, a missing or unknown unit, and 1e9 s or more.
    """
    number, unit = _split(text, _SECONDS, "time", "500ns")
    # Rounded to 1e-6 ns, so that values in ns, us or ms are formatted as they were given.
    seconds = round(float(number) * _SECONDS[unit] * 1e9, 6) / 1e9
    if not seconds < 1e9:
        raise UsageError(f"time {text!r} is too long", cure="write for example 500ns")
    return seconds


def format_bytes(count: float) -> str:
    """Format a number of bytes in the smallest of B, KiB, MiB, GiB, TiB with a number below 1024.

    The printed number, after rounding, decides the unit: 1048575 bytes are `1 MiB`. Numbers of
    TiB have no limit. A negative number is always in B.

    - In B, the number is rounded to an integer, halves to the even one: `512 B`.
    - In a larger unit, an integer is printed exactly: `3 MiB`.
    - Any other number has four significant digits without trailing zeros: `1.5 MiB`.
    """

    def to_text(value: float, unit: str) -> str:
        return f"{value:.0f}" if unit == "B" or value == int(value) else f"{value:.4g}"

    return _format_in_unit(count, {"B": 1, **_BINARY}, 1024, to_text)


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """Format a number of things with their noun: `1 step`, `2 steps`, `0 steps`.

    `noun`: the singular, used for 1. `plural`: used for any other number; None appends an `s` to
    the noun.
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun + 's' if plural is None else plural}"


def format_bandwidth(bytes_per_s: float) -> str:
    """Format a bandwidth in bytes/s with four significant digits, such as `50 GB/s`.

    The unit is the smallest of B/s, KB/s, MB/s, GB/s and TB/s with which the rounded number is
    below 1000, else TB/s. Trailing zeros are omitted.
    """
    units = {f"{unit}/s": size for unit, size in {"B": 1, **_DECIMAL}.items()}
    return _format_in_unit(bytes_per_s, units, 1000, lambda value, unit: f"{value:.4g}")


def format_time(nanoseconds: float) -> str:
    """Format a time in the smallest of ns, us and ms with a number below 1000, else in s.

    A number of ns is rounded to an integer, any other number to two decimals: `1.50 us`. The
    rounded number selects the unit: 999999.9 ns are `1.00 ms`.
    """

    def to_text(value: float, unit: str) -> str:
        return f"{value:.0f}" if unit == "ns" else f"{value:.2f}"

    return _format_in_unit(nanoseconds, _NANOSECONDS, 1000, to_text)


def _format_in_unit(
    value: float,
    units: Mapping[str, float],
    limit: int,
    to_text: Callable[[float, str], str],
) -> str:
    """Format a value in the first of its units with a number below `limit`, else in the last one.

    `units`: factor by unit, ascending, at least one. `to_text`: formats the number in a unit, given
    with its name. The formatted number is compared, so a number that is rounded to the limit is
    printed in the next unit.
    """
    for unit, factor in units.items():
        number = to_text(value / factor, unit)
        # NaN keeps the first unit.
        if not float(number) >= limit:
            break
    return f"{number} {unit}"


def parse_ranks(text: str, noun: str = "rank", wanted: int | None = None) -> tuple[int, ...]:
    """Convert a text such as `0,2,4-7` to the tuple (0, 2, 4, 5, 6, 7), in the order of the text.

    Elements are separated by commas. An element is a number, or a range that includes both ends;
    `4-4` is one number. Numbers have 1 to 9 ASCII digits. Blanks are allowed around an element, but
    not within a range. `noun`: name of an element in messages. `wanted`: required number of
    results, None for any.

    Raises `UsageError` (`invalid-ranks`) in this order:

    1. An element has another form (also an empty one, so "" is refused), its range ends before its
       start, or it has more than 2^20 numbers. The limit applies to each range.
    2. A number is listed twice.
    3. The number of results is not `wanted`.
    """
    ranks: list[int] = []
    for part in text.split(","):
        match = _RANK_RUN.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < first + _MAX_RANKS:
            message = f"{text[:80]!r} is not a list of {noun}s"
            raise UsageError(message, cure="write for example 0,2,4-7", code="invalid-ranks")
        ranks.extend(range(first, last + 1))
    if len(set(ranks)) < len(ranks):
        doubled = next(rank for rank in ranks if ranks.count(rank) > 1)
        message = f"{noun} {doubled} is listed more than once in {text[:80]!r}"
        raise UsageError(message, cure="name each once", code="invalid-ranks")
    if wanted not in (None, len(ranks)):
        message = f"{text[:80]!r} names {len(ranks)} {noun}s for {wanted} ranks"
        raise UsageError(message, cure="name one for each", code="invalid-ranks")
    return tuple(ranks)


def format_ranks(ranks: Sequence[int]) -> str:
    """Format ranks as a text for `parse_ranks`, in the given order; "" for no ranks.

    Three or more consecutive ranks that ascend by 1 become a range, as in `0,2,4-7`. Other ranks
    are listed one by one.
    """
    parts: list[str] = []
    start = 0
    for end in range(1, len(ranks) + 1):
        if end == len(ranks) or ranks[end] != ranks[end - 1] + 1:
            run = ranks[start:end]
            parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
            start = end
    return ",".join(parts)


def _split(
    text: str, units: dict[str, float] | dict[str, int], quantity: str, example: str
) -> tuple[str, str]:
    """Split a quantity such as `1.5 GB` into its number and its unit, both as text: ("1.5", "GB").

    The number is digits, an optional point with digits, and an optional exponent (`1e-3`); it has
    no sign. Blanks around the number and the unit are dropped. The unit is a key of `units`, in
    this spelling. `quantity`, `example`: words for messages.

    Raises `UsageError` in these cases:

    - The text has more than 64 characters, or is not such a number with letters and slashes after
      it.
    - The unit is missing or is no key of `units`. The remedy lists the quantities that may be meant
      (`_meanings`). If there are none, it lists the units, without the spellings `b/s` and `ps`.
    """
    match = _NUMBER.match(text) if len(text) <= 64 else None
    if match is None:
        message = f"{quantity} {text[:64]!r} is not a number with a unit"
        raise UsageError(message, cure=f"write for example {example}")
    number, unit = match.groups()
    if unit not in units:
        named = f"has the unknown unit {unit!r}" if unit else "has no unit"
        meant = _meanings(number, unit, units)
        cure = f"did you mean {' or '.join(meant)}?" if meant else ""
        # One spelling per unit: `b` and `ps` are further spellings of bits and rates.
        named_units = [
            each_unit
            for each_unit in units
            if not each_unit.endswith("ps") and "b/s" not in each_unit
        ]
        cure = cure or f"use one of {', '.join(named_units)}, for example {example}"
        raise UsageError(f"{quantity} {text!r} {named}", cure=cure)
    return number, unit


def _meanings(number: str, unit: str, units: Container[str]) -> list[str]:
    """Return the quantities that a number with an unknown or missing unit may mean; [] if none.

    Each result is `number` and a key of `units`. For bandwidths, i.e. if `B/s` is in `units`, a
    final `/s` or `ps` of the unit is ignored and all results end with `/s`. The first rule that
    applies gives the units; those that are not in `units` are omitted:

    1. The unit is a prefix k, K, M, G or T, possibly with `i`; or, except for bandwidths, a letter
       k, m, g or t and a letter b, each in upper or lower case. The units are bytes with the binary
       prefix, then with the decimal one; for bandwidths also bits: `1M` gives `1MiB`, `1MB`, or
       `1MiB/s`, `1MB/s`, `1Mb/s`.
    2. Otherwise the units with the same letters in another case: bytes, then bits, then times.
       `1mib` gives `1MiB`, `50gb/s` gives `50GB/s` and `50Gb/s`.
    """
    # In nccl-tests 1M is 1MiB, elsewhere 10^6: neither is assumed.
    end = "/s" if "B/s" in units else ""
    plain = unit.removesuffix("/s").removesuffix("ps") if end else unit
    # In sizes, b is a misspelt B; bandwidths may be in bits.
    prefix = _PREFIX.match(plain) or (None if end else _SMALL_BYTES.match(plain))
    if prefix:
        letter = prefix[1].upper()
        forms = [f"{letter}iB{end}", f"{letter}B{end}", *([f"{letter}b{end}"] if end else [])]
    else:
        # Same letters in another case, such as 50gb/s, 400gbit/s or 1mib.
        known = [*_BYTES, *_BITS, *(f"{name[0]}b" for name in _BITS)]
        same = [name for name in known if name.lower() == plain.lower()]
        forms = [f"{name}{end}" for name in same] + [
            name for name in _SECONDS if name == unit.lower()
        ]
    return [f"{number}{form}" for form in forms if form in units]
