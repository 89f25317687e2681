"""Parse the JSON document of an algorithm; errors contain the JSON path of the defect."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from collhub_sccl.collectives import ScclChunk
from hub_core.columns import BoolArray, Float64Array, Int64Array
from hub_core.model import InputError, Location

TAGS = ("msccl_type", "sccl_type")
_MAX_SEND_FIELDS = 6
_REDUCES = "rrc"
_MAX_INTEGER = 1 << 31


@dataclass(frozen=True, slots=True, eq=False)
class Sends:
    """Sends of all steps, in the order of the file; int64 columns unless noted.

    `time`: float64, start of a send in tenths of a microsecond, 0 if not given; `reduces`: bool,
    whether the receive reduces; None if that follows from the collective.
    """

    step: Int64Array
    address: Int64Array
    source: Int64Array
    destination: Int64Array
    time: Float64Array
    reduces: BoolArray | None


@dataclass(frozen=True, slots=True, eq=False)
class StepDocument:
    """An algorithm: name, ranks, chunks, sends, and rounds of every step.

    `chunks`: with multiplicity; `divisions`: parts of every chunk as declared by the instance;
    `is_taccl`: sends in TACCL's dialect.
    """

    name: str
    ranks: int
    chunks: Counter[ScclChunk]
    divisions: int
    sends: Sends
    rounds: list[int]
    is_taccl: bool


class ScclValue:
    """A value of a document, and its JSON path."""

    def __init__(self, value: Any, path: str, file: str) -> None:
        self.value = value
        self._path = path
        self._file = file

    def build_error(self, message: str, cure: str = "") -> InputError:
        """Error at this value, with its path."""
        return InputError(
            f"{self._path}: {message}", location=Location(self._file), cure=cure, code="sccl-schema"
        )

    def get_member(self, name: str) -> ScclValue:
        """Member of an object. Raises `InputError` if it is missing."""
        if not isinstance(self.value, Mapping) or name not in self.value:
            raise self.build_error(f"expected an object with the member {name!r}")
        return ScclValue(self.value[name], f"{self._path}.{name}", self._file)

    def iterate_elements(self) -> Iterator[ScclValue]:
        """Yield the elements of a list. Raises `InputError` for any other value."""
        if not isinstance(self.value, list):
            raise self.build_error("expected a list")
        for number, value in enumerate(self.value):
            yield ScclValue(value, f"{self._path}[{number}]", self._file)

    def to_integer(self, minimum: int = 0, below: int = _MAX_INTEGER) -> int:
        """Integer in a range. Raises `InputError` for any other value."""
        value = self.value
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not minimum <= value < below:
            raise self.build_error(
                f"expected a whole number in {minimum}..{below - 1}, got {value!r:.40}"
            )
        return int(value)

    def to_number(self) -> float:
        """Number as a float. Raises `InputError` for any other value."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.build_error(f"expected a number, got {self.value!r:.40}")
        return float(self.value)


def parse(content: bytes, file: str) -> StepDocument:
    """Parse a file. Raises `InputError` with the JSON path of the first defect."""
    document = ScclValue(_decode_json(content, file), "$", file)
    tag = _find_tag(document)
    instance, collective = document.get_member("instance"), document.get_member("collective")
    if instance.get_member("pipeline").value is not None:
        message = "overlapping repetitions (a pipeline) have no meaning for a single call"
        raise instance.get_member("pipeline").build_error(
            message, "synthesize it without a pipeline"
        )
    ranks = collective.get_member("nodes").to_integer(2)
    sends, rounds = _parse_steps(document.get_member("steps"), ranks)
    # Sends with more than three fields, or the topology, distinguish the dialects.
    has_more = sends.reduces is not None
    is_taccl = tag == TAGS[1] and (
        has_more or "node_links" in document.get_member("topology").value
    )
    return StepDocument(
        name=str(document.get_member("name").value),
        ranks=ranks,
        chunks=_parse_chunks(collective.get_member("chunks"), ranks),
        divisions=instance.get_member("chunks").to_integer(1),
        sends=sends if is_taccl else _remove_times(sends),
        rounds=rounds,
        is_taccl=is_taccl,
    )


def _decode_json(content: bytes, file: str) -> object:
    """Decode JSON. Raises `InputError` if it is malformed."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        root = ScclValue(None, "$", file)
        raise root.build_error(f"expected JSON: {error}") from None


def _find_tag(document: ScclValue) -> str:
    """The tag that marks the document as an algorithm. Raises `InputError` without one."""
    for tag in TAGS:
        if isinstance(document.value, Mapping) and document.value.get(tag) == "algorithm":
            return tag
    raise document.build_error(f"expected an object with {TAGS[0]} or {TAGS[1]} 'algorithm'")


def _parse_chunks(chunks: ScclValue, ranks: int) -> Counter[ScclChunk]:
    """Chunks with their number of occurrences."""
    counts: Counter[ScclChunk] = Counter()
    for chunk in chunks.iterate_elements():
        before, after = (
            frozenset(
                rank.to_integer(0, ranks) for rank in chunk.get_member(name).iterate_elements()
            )
            for name in ("pre", "post")
        )
        counts[ScclChunk(before, after, chunk.get_member("addr").to_integer())] += 1
    return counts


def _parse_steps(steps: ScclValue, ranks: int) -> tuple[Sends, list[int]]:
    """Sends of all steps, and the rounds of every step."""
    rows: list[tuple[int, int, int, int, float, bool]] = []
    rounds, has_times = [], False
    for number, step in enumerate(steps.iterate_elements()):
        rounds.append(step.get_member("rounds").to_integer())
        for send in step.get_member("sends").iterate_elements():
            row = _parse_send(send, ranks)
            # Usually all sends of a file have equally many fields, but files of other tools may
            # differ.
            has_times |= len(send.value) > len(("address", "source", "destination"))
            rows.append((number, *row))
    columns = list(zip(*rows, strict=True)) or [()] * _MAX_SEND_FIELDS
    of_step, address, source, destination = (np.asarray(column, np.int64) for column in columns[:4])
    time = np.asarray(columns[4], np.float64)
    reduces = np.asarray(columns[5], np.bool_) if has_times else None
    return Sends(of_step, address, source, destination, time, reduces), rounds


def _parse_send(send: ScclValue, ranks: int) -> tuple[int, int, int, float, bool]:
    """Address, source, destination, time, and whether the receive reduces."""
    fields = list(send.iterate_elements())
    if not 3 <= len(fields) <= _MAX_SEND_FIELDS:
        raise send.build_error("expected [address, source, destination, time, link, reduction]")
    address = fields[0].to_integer()
    source, destination = (field.to_integer(0, ranks) for field in fields[1:3])
    if source == destination:
        raise send.build_error("expected two different ranks")
    time = fields[3].to_number() if len(fields) > 3 else 0.0
    reduction = fields[5].value if len(fields) == _MAX_SEND_FIELDS else None
    if reduction not in (None, _REDUCES):
        raise fields[5].build_error(f"expected {_REDUCES!r} or null")
    return address, source, destination, time, reduction == _REDUCES


def _remove_times(sends: Sends) -> Sends:
    """Copy of the sends without times and reductions: only the step counts."""
    step, address = sends.step, sends.address
    no_time = np.zeros(len(step), np.float64)
    return Sends(step, address, sends.source, sends.destination, no_time, None)
