"""Determine the calls that dynamic rules of Open MPI serve, as classic text or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise

from collhub_mpi.tuned.open_mpi_names import (
    CLASSIC_FILE,
    COLLECTIVES,
    JSON_FILE,
    JSON_VERSION,
    algorithm_name,
)
from collhub_mpi.tuned.served_files import read_files
from hub_core.model import CollectiveKind, InputError
from hub_core.plugin_api import ServedCalls, Source, SourcePart

_VERSION_2 = "rule-file-version-2"
_KIND_OF_NUMBER = {number: kind for kind, (number, _) in COLLECTIVES.items()}
_KIND_OF_NAME = {name: kind for kind, (_, name) in COLLECTIVES.items()}


def read(source: Source) -> Sequence[ServedCalls]:
    """Return one row per rule; none for a file with an error, which Open MPI ignores."""
    return read_files(source, {CLASSIC_FILE: _read_classic, JSON_FILE: _read_json})


class _Numbers:
    """The integers of a classic file in sequence, without comments."""

    def __init__(self, text: str) -> None:
        lines = [line.partition("#")[0] for line in text.splitlines()]
        self._words = [word for line in lines for word in line.split()]
        self._place = 0
        self.has_requests = self._words[:1] == [_VERSION_2]
        if self.has_requests:
            self._place = 1

    def next(self, expected: str) -> int:
        """Return the next number. Raises `InputError`, which names `expected`, if there is none."""
        word = self._words[self._place] if self._place < len(self._words) else "the end"
        if not word.isdecimal():
            message = f"{word!r:.40} where {expected} is expected"
            raise InputError(message, code="not-a-rule")
        self._place += 1
        return int(word)

    @property
    def is_at_end(self) -> bool:
        """Whether all numbers have been read."""
        return self._place == len(self._words)


def _read_classic(part: SourcePart) -> list[ServedCalls]:
    """Return the calls of a classic file. Raises `InputError` if it is invalid."""
    numbers = _Numbers(part.load().decode("latin-1"))
    calls: list[ServedCalls] = []
    for _ in range(numbers.next("the number of collectives")):
        kind = _KIND_OF_NUMBER.get(numbers.next("a collective"))
        if kind is None:
            raise InputError("a collective that the hub does not write", code="unknown-collective")
        if numbers.next("the number of sets") != 1 or numbers.next("the communicator size") != 0:
            # The meaning of a set's communicator size differs between versions.
            raise InputError(f"{kind}: not exactly one set, for size 0", code="communicator-size")
        calls += _read_collective(kind, numbers)
    if not numbers.is_at_end:
        raise InputError("more follows than is announced", code="not-a-rule")
    return calls


def _read_collective(kind: CollectiveKind, numbers: _Numbers) -> Iterator[ServedCalls]:
    """Yield the calls of one collective. Raises `InputError` if sizes do not ascend from 0."""
    rules = []
    for _ in range(numbers.next("the number of rules")):
        first, number = numbers.next("a size"), numbers.next("an algorithm")
        numbers.next("a fan")
        segment = numbers.next("a segment")
        if numbers.has_requests:
            numbers.next("the number of requests")
        rules.append((first, number, segment))
    starts = [first for first, _, _ in rules]
    if starts[:1] != [0] or any(size >= next_size for size, next_size in pairwise(starts)):
        raise InputError(f"{kind}: sizes do not ascend from 0", code="not-ascending")
    ends = [*(start - 1 for start in starts[1:]), None]
    for (first, number, segment), last in zip(rules, ends, strict=True):
        by = _describe_algorithm(algorithm_name(kind, number), segment)
        yield ServedCalls(kind, True, True, first, last, by)


def _read_json(part: SourcePart) -> list[ServedCalls]:
    """Return the calls of a JSON file. Raises `InputError` if it is invalid."""
    try:
        document = json.loads(part.load())
        if document["rule_file_version"] != JSON_VERSION or document["module"] != "tuned":
            raise ValueError("another document")
        return [
            _read_rule(name, rule)
            for name, sets in document["collectives"].items()
            for rule_set in sets
            for rule in rule_set["rules"]
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        message = f"no rules of version {JSON_VERSION} in JSON"
        raise InputError(message, code="not-a-rule") from None


def _read_rule(name: str, rule: dict[str, object]) -> ServedCalls:
    """Return the calls of one rule. Raises `ValueError`, `TypeError` or `KeyError`."""
    first, last = rule["msg_size_min"], rule["msg_size_max"]
    if not isinstance(first, int) or not (last == "inf" or isinstance(last, int)):
        raise ValueError("no sizes")
    segment = rule.get("seg_size", 0)
    by = _describe_algorithm(str(rule["alg"]), segment if isinstance(segment, int) else 0)
    max_bytes = last if isinstance(last, int) else None
    return ServedCalls(_KIND_OF_NAME[name], True, True, first, max_bytes, by)


def _describe_algorithm(name: str, segment: int) -> str:
    """Describe the algorithm; `segment`: bytes per segment, 0 for unsegmented messages."""
    return f"{name} in segments of {segment} bytes" if segment else name
