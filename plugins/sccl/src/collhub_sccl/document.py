"""The JSON document of an algorithm, each value checked as it is taken; defects name their path."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from collhub_columns import BoolArray, Float64Array, Int64Array

from collhub_sccl.collectives import StatedChunk
from hub_core.model import InputError, Location

TAGS = ("msccl_type", "sccl_type")
_MOST_FIELDS = 6
_REDUCES = "rrc"
_MOST = 1 << 31


@dataclass(frozen=True, slots=True, eq=False)
class Sends:
    """Sends of all steps, in the order of the file; int64 columns unless stated.

    `time`: float64, when a send starts, tenths of a microsecond; 0 where that is not stated.
    `reduces`: bool, whether the receive reduces, None where that follows from the collective.
    """

    step: Int64Array
    address: Int64Array
    source: Int64Array
    destination: Int64Array
    time: Float64Array
    reduces: BoolArray | None


@dataclass(frozen=True, slots=True, eq=False)
class StepDocument:
    """An algorithm: its name, ranks, chunks as they are stated, sends, and rounds of every step.

    `divisions`: pieces of every chunk that the instance states; `is_taccl`: sends in its dialect.
    """

    name: str
    ranks: int
    chunks: Counter[StatedChunk]
    divisions: int
    sends: Sends
    rounds: list[int]
    is_taccl: bool


class JsonPlace:
    """A value of a document, and its JSON path."""

    def __init__(self, value: Any, path: str, file: str) -> None:
        self.value = value
        self._path = path
        self._file = file

    def error(self, message: str, cure: str = "") -> InputError:
        """What is wrong here."""
        return InputError(
            f"{self._path}: {message}", location=Location(self._file), cure=cure, code="sccl-schema"
        )

    def member(self, name: str) -> JsonPlace:
        """A member of an object. Raises `InputError` where there is none."""
        if not isinstance(self.value, Mapping) or name not in self.value:
            raise self.error(f"expected an object with the member {name!r}")
        return JsonPlace(self.value[name], f"{self._path}.{name}", self._file)

    def elements(self) -> Iterator[JsonPlace]:
        """Elements of a list. Raises `InputError` for anything else."""
        if not isinstance(self.value, list):
            raise self.error("expected a list")
        for number, value in enumerate(self.value):
            yield JsonPlace(value, f"{self._path}[{number}]", self._file)

    def integer(self, least: int = 0, below: int = _MOST) -> int:
        """A whole number in a range. Raises `InputError` for anything else."""
        value = self.value
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not least <= value < below:
            raise self.error(f"expected a whole number in {least}..{below - 1}, got {value!r:.40}")
        return int(value)

    def number(self) -> float:
        """A number. Raises `InputError` for anything else."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.error(f"expected a number, got {self.value!r:.40}")
        return float(self.value)


def parse(content: bytes, file: str) -> StepDocument:
    """Parse a file. Raises `InputError` with the JSON path of what is wrong."""
    document = JsonPlace(_loaded(content, file), "$", file)
    tag = _tag(document)
    instance, collective = document.member("instance"), document.member("collective")
    if instance.member("pipeline").value is not None:
        message = "steps that overlap between repetitions have no meaning for one call"
        raise instance.member("pipeline").error(message, "synthesize it without a pipeline")
    ranks = collective.member("nodes").integer(2)
    sends, rounds = _steps(document.member("steps"), ranks)
    # The schemas are told apart by sends with more than three fields, or by their topology.
    has_more = sends.reduces is not None
    is_taccl = tag == TAGS[1] and (has_more or "node_links" in document.member("topology").value)
    return StepDocument(
        name=str(document.member("name").value),
        ranks=ranks,
        chunks=_chunks(collective.member("chunks"), ranks),
        divisions=instance.member("chunks").integer(1),
        sends=sends if is_taccl else _untimed(sends),
        rounds=rounds,
        is_taccl=is_taccl,
    )


def _loaded(content: bytes, file: str) -> object:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        place = JsonPlace(None, "$", file)
        raise place.error(f"expected JSON: {error}") from None


def _tag(document: JsonPlace) -> str:
    for tag in TAGS:
        if isinstance(document.value, Mapping) and document.value.get(tag) == "algorithm":
            return tag
    raise document.error(f"expected an object with {TAGS[0]} or {TAGS[1]} 'algorithm'")


def _chunks(chunks: JsonPlace, ranks: int) -> Counter[StatedChunk]:
    """Chunks as often as they are stated."""
    found: Counter[StatedChunk] = Counter()
    for chunk in chunks.elements():
        before, after = (
            frozenset(rank.integer(0, ranks) for rank in chunk.member(name).elements())
            for name in ("pre", "post")
        )
        found[StatedChunk(before, after, chunk.member("addr").integer())] += 1
    return found


def _steps(steps: JsonPlace, ranks: int) -> tuple[Sends, list[int]]:
    rows: list[tuple[int, int, int, int, float, bool]] = []
    rounds, has_times = [], False
    for number, step in enumerate(steps.elements()):
        rounds.append(step.member("rounds").integer())
        for send in step.member("sends").elements():
            row = _send(send, ranks)
            # In one file all sends have as many fields, in files of strangers perhaps not.
            has_times |= len(send.value) > len(("address", "source", "destination"))
            rows.append((number, *row))
    columns = list(zip(*rows, strict=True)) or [()] * _MOST_FIELDS
    of_step, address, source, destination = (np.asarray(one, np.int64) for one in columns[:4])
    time = np.asarray(columns[4], np.float64)
    reduces = np.asarray(columns[5], np.bool_) if has_times else None
    return Sends(of_step, address, source, destination, time, reduces), rounds


def _send(send: JsonPlace, ranks: int) -> tuple[int, int, int, float, bool]:
    """Address, source, destination, time, and whether the receive reduces."""
    fields = list(send.elements())
    if not 3 <= len(fields) <= _MOST_FIELDS:
        raise send.error("expected [address, source, destination, time, link, reduction]")
    address = fields[0].integer()
    source, destination = (field.integer(0, ranks) for field in fields[1:3])
    if source == destination:
        raise send.error("expected two different ranks")
    time = fields[3].number() if len(fields) > 3 else 0.0
    reduction = fields[5].value if len(fields) == _MOST_FIELDS else None
    if reduction not in (None, _REDUCES):
        raise fields[5].error(f"expected {_REDUCES!r} or null")
    return address, source, destination, time, reduction == _REDUCES


def _untimed(sends: Sends) -> Sends:
    """Sends of which only the step counts."""
    step, address = sends.step, sends.address
    no_time = np.zeros(len(step), np.float64)
    return Sends(step, address, sends.source, sends.destination, no_time, None)
