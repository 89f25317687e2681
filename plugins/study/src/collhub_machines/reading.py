"""Helpers of readers of measurements: options, numbers, names, findings and refusals with line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hub_core.model import Diagnostic, InputError, Location, Severity, standard_kind
from hub_core.plugin_api import Library, Measurement, OptionType, Source, choice, option

_NO_TIMES = {
    "both": "the file has no times",
    "out": "no time is measured out of place",
    "in": "no time is measured in place",
}


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    """Options of tests that measure out of place and in place."""

    place: str = choice(
        ("both", "out", "in"), "buffers whose times are read: out of place, in place"
    )

    def accepts(self, point: Measurement) -> bool:
        """Whether the place of a point is chosen."""
        return self.place == "both" or point.place == self.place

    def select(self, points: Iterable[Measurement]) -> Iterator[Measurement]:
        """Yield the points of the chosen place."""
        return (point for point in points if self.accepts(point))

    @property
    def refusal(self) -> tuple[str, str]:
        """Message and cure of the error for a file without points of the chosen place."""
        return _NO_TIMES[self.place], "use -O place=both"


@dataclass(frozen=True, slots=True)
class InspectorOptions:
    """Options of the reader of Inspector files."""

    warmup_calls: int = option(
        OptionType.INT, 0, "calls at the start of each communicator that are not used", minimum=0
    )


MAX_WHOLE = 2**62

_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?\Z")
_WHOLE_NUMBER = re.compile(r"[0-9]{1,19}\Z")


def text_of(source: Source) -> str:
    """Return the text of a source, without a byte order mark.

    Raises `InputError` with the line of a byte not in UTF-8, and for a file with blanks only.
    """
    content = source.content()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"byte {error.start} is not UTF-8"
        cure = "give the text or JSON that a test wrote"
        raise refuse(source.name, line, message, cure) from None
    if not text.strip():
        raise refuse(source.name, 1, "the file is empty", "give the output of a run")
    return text


def finite_number(text: str) -> float | None:
    """Return a decimal number, or None for other texts, infinities and NaN."""
    if len(text) > 40 or not _NUMBER.match(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def whole_number(text: str) -> int | None:
    """Return a whole number without a sign, at most 2^62; None for other texts."""
    if not _WHOLE_NUMBER.match(text) or int(text) > MAX_WHOLE:
        return None
    return int(text)


def counted(count: int, noun: str) -> str:
    """Return `1 point` or `2 points`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def note(
    file: str, line: int | None, message: str, cure: str = "", code: str = "skipped"
) -> Diagnostic:
    """Describe a part of the input that is skipped."""
    return Diagnostic(code, message, Severity.WARNING, Location(file, line), cure)


def refuse(file: str, line: int | None, message: str, cure: str) -> InputError:
    """Return the error for a file that cannot be used."""
    return InputError(message, location=Location(file, line), cure=cure, code="measurements")


def collective_name(text: str) -> str | None:
    """Return the hub's name of a collective in any usual spelling, such as `AllReduce`,
    `all_reduce_perf`; None for another text.
    """
    kind = standard_kind(text.removesuffix("_perf"))
    return None if kind is None else str(kind)


def library_of(text: str) -> Library:
    """Parse `NCCL 2.27.7 (NVLS from 2 MiB)` or `NCCL 2.27.7, NVLS off`.

    A remark in brackets describes the default choice and is dropped; other text is a variant.
    """
    plain = re.sub(r"\s*\([^)]*\)", "", text)[:120].strip()
    head, _, variant = plain.partition(",")
    name, _, version = head.strip().partition(" ")
    if version and not version[0].isdigit():
        variant = ", ".join(part for part in (version, variant.strip()) if part)
        version = ""
    return Library(name or "unknown", version.strip(), variant.strip())
