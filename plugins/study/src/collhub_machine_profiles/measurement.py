"""Records of measured collectives, the options that complete them, and findings of the readers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from collhub_machine_profiles.gpus import machine_label
from hub_core.model import Diagnostic, InputError, Location, Severity, standard_kind

MAX_BYTES = 2**62
MAX_TIME_US = 1e12
MAX_RANKS = 2**20

_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?\Z")
_WHOLE = re.compile(r"[0-9]{1,19}\Z")


@dataclass(frozen=True, slots=True)
class Library:
    """Library that ran a collective. `version` and `variant` are "" if they are unknown.

    `variant` names settings that differ from the library's own choice, such as `NVLS off`,
    `kernel 6` or `graph 15`. Times of different variants are never mixed.
    """

    name: str
    version: str = ""
    variant: str = ""

    def __str__(self) -> str:
        text = " ".join(part for part in (self.name, self.version) if part)
        return f"{text}, {self.variant}" if self.variant else text


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured time. `size_bytes` is the full vector, as nccl-tests print it.

    `machine` is the label of a machine or the name of its GPU, "" if the file names none. `place`
    is `out`, `in` or "". `call` identifies a call that several ranks have recorded, "" otherwise.
    `day` is the date of the measurement as YYYY-MM-DD, "" if unknown.
    """

    collective: str
    ranks: int
    nodes: int
    size_bytes: int
    time_us: float
    library: Library
    machine: str = ""
    place: str = ""
    dtype: str = ""
    day: str = ""
    source: str = ""
    file: str = ""
    line: int = 0
    call: str = ""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Facts that a user states because files lack them; None if not stated."""

    collective: str | None = None
    ranks: int | None = None
    nodes: int | None = None


@dataclass(frozen=True, slots=True)
class ReadMeasurements:
    """Points of one file or several files, and a diagnostic for each skipped part of the input.

    `sources` holds repository, commit and licence of published points by source name.
    """

    points: list[Measurement]
    skipped: list[Diagnostic]
    sources: dict[str, dict[str, str]]


def finite_number(text: str) -> float | None:
    """Return a decimal number, or None for other texts, infinities and NaN."""
    if len(text) > 40 or not _NUMBER.match(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def whole_number(text: str) -> int | None:
    """Return a whole number without a sign, at most 2^62; None for other texts."""
    if not _WHOLE.match(text) or int(text) > MAX_BYTES:
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
    """Return the hub's name of a collective in any usual spelling, or None."""
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


def defect(point: Measurement) -> str | None:
    """Return the reason why a point cannot be used, or None."""
    if not 1 <= point.size_bytes <= MAX_BYTES:
        return f"size {point.size_bytes} is not between 1 byte and 2^62"
    if not 0 < point.time_us < MAX_TIME_US:
        return f"time {point.time_us:g} us is not positive and below 1e12"
    if not 2 <= point.ranks <= MAX_RANKS:
        return f"{point.ranks} ranks are not between 2 and 2^20"
    if not 1 <= point.nodes <= point.ranks:
        return f"{point.nodes} nodes do not fit {point.ranks} ranks"
    return None


def merge_calls(points: Iterable[Measurement]) -> list[Measurement]:
    """Combine records of the ranks of one call into one point per collective and size.

    The time of a rank includes the wait for late ranks, so a call takes the minimum over its
    ranks; a point is the median over the calls. Points without a call are unchanged.
    """
    single: list[Measurement] = []
    fastest: dict[tuple[str, str, int], Measurement] = {}
    for point in points:
        if not point.call:
            single.append(point)
            continue
        key = (point.call, point.collective, point.size_bytes)
        if key not in fastest or point.time_us < fastest[key].time_us:
            fastest[key] = point
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for point in fastest.values():
        same = (point.collective, point.ranks, point.nodes, point.size_bytes, point.library)
        groups.setdefault((*same, point.machine), []).append(point)
    for group in groups.values():
        median = float(np.median([point.time_us for point in group]))
        single.append(replace(group[0], time_us=median, call=""))
    return single


def one_place(points: Iterable[Measurement]) -> list[Measurement]:
    """Keep one place of each configuration: out of place if it was measured, else in place."""
    listed = list(points)
    out_of_place = {_configuration(point) for point in listed if point.place != "in"}
    return [
        point
        for point in listed
        if point.place != "in" or _configuration(point) not in out_of_place
    ]


def _configuration(point: Measurement) -> tuple[object, ...]:
    label = machine_label(point.machine)
    return label, point.collective, point.ranks, point.nodes, point.library, point.dtype
