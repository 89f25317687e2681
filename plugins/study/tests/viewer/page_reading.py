"""Read the data of a page back, as the page's own program does."""

from __future__ import annotations

import itertools
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

_DIGITS = [chr(code) for code in range(0x20, 0x7F) if chr(code) not in '"&<>']
_INDEX = re.compile(rb'<script type="application/json" id="collhub-view">(.*?)</script>', re.DOTALL)
_COLUMNS = re.compile(
    rb'<script type="text/plain" id="collhub-columns">\n(.*?)</script>', re.DOTALL
)


class Page:
    """The index of a page and its columns."""

    def __init__(self, path: Path) -> None:
        self.html = path.read_bytes()
        index, columns = _INDEX.search(self.html), _COLUMNS.search(self.html)
        assert index is not None
        assert columns is not None
        self.index: dict[str, Any] = json.loads(index[1])
        self._lines = columns[1].split(b"\n")

    def column(self, reference: dict[str, Any]) -> np.ndarray[Any, Any]:
        """Return the values of a column."""
        raw = zlib.decompress(decode_text(self._lines[reference["column"]], reference["bytes"]))
        if reference["type"] == "f64":
            return np.frombuffer(raw, "<f8")
        planes = np.frombuffer(raw, np.uint8).reshape(reference["width"], reference["length"])
        values = sum(plane.astype(np.int64) << (8 * at) for at, plane in enumerate(planes))
        if reference["type"] == "int":
            values = np.where(values % 2, -(values + 1) // 2, values // 2)
        if "values" in reference:
            return np.array(reference["values"])[values]
        return np.cumsum(values) if reference["delta"] else values

    def starts(self, table: dict[str, Any]) -> np.ndarray[Any, Any]:
        """Return the starts of the entries of a table of links."""
        columns = (self.column(table[name]) for name in ("gap", "duration", "first"))
        return restore_starts(*columns)

    def steps(self, run: int = 0) -> dict[str, Any]:
        """Return the columns of the steps of a run by name, and kinds and lanes by step."""
        one = self.index["runs"][run]
        columns = {
            name: self.column(value)
            for name, value in one["steps"].items()
            if isinstance(value, dict)
        }
        first = self.column(one["lanes"]["first"])
        columns["start"] = restore_starts(columns["gap"], columns["duration"], first)
        columns["lane"] = np.repeat(np.arange(len(first) - 1), np.diff(first))
        columns["rank"] = self.column(one["lanes"]["rank"])[columns["lane"]]
        columns["kinds"] = [one["kinds"][int(kind)]["name"] for kind in columns["kind"]]
        classes = [one["kinds"][int(kind)]["class"] for kind in columns["kind"]]
        _restore(columns, classes, one["steps"])
        return columns


def decode_text(line: bytes, length: int) -> bytes:
    """Return the bytes that pairs of digits represent with 13 bits each."""
    digits = [_DIGITS.index(character) for character in line.decode()]
    pairs = zip(digits[::2], digits[1::2], strict=True)
    bits = sum((high * 91 + low) << (13 * at) for at, (high, low) in enumerate(pairs))
    return bits.to_bytes(len(line), "little")[:length]


def restore_starts(gap: Any, duration: Any, first: Any) -> np.ndarray[Any, Any]:
    """Return the starts from the gaps after the end of the previous step of the lane."""
    start = np.zeros(len(gap), np.int64)
    for begin, end in itertools.pairwise(first):
        moment = 0
        for step in range(begin, end):
            start[step] = moment + gap[step]
            moment = start[step] + duration[step]
    return start


def _restore(columns: dict[str, Any], classes: list[str], steps: dict[str, Any]) -> None:
    """Restore the values that the page derives from others."""
    count = len(classes)
    references = {name: value for name, value in steps.items() if isinstance(value, dict)}
    is_wait = [sort == "wait" for sort in classes]
    columns["peer"] = _expand(columns["peer"], references["peer"], classes, None)
    if steps["partner"] == "in order":
        columns["partner"] = _match_in_order(columns, classes)
    elif references.get("partner", {}).get("ends"):
        offset, columns["partner"] = columns["partner"], np.full(count, -1)
        for step in np.flatnonzero(offset):
            columns["partner"][step] = step + offset[step]
            columns["partner"][step + offset[step]] = step
    for name in {"bytes", "chunk", "chunks", "number", "label"} & references.keys():
        columns[name] = _expand(columns[name], references[name], classes, columns["partner"])
    if "waits_for" in references:
        awaited = np.full(count, -1)
        for wait, difference in zip(np.flatnonzero(is_wait), columns["waits_for"], strict=True):
            awaited[wait] = columns["peer"][wait + 1] + difference
        columns["waits_for"] = awaited


def _match_in_order(columns: dict[str, Any], classes: list[str]) -> np.ndarray[Any, Any]:
    partner, rank, peer = np.full(len(classes), -1), columns["rank"], columns["peer"]
    sends: dict[tuple[int, int], list[int]] = {}
    for step, sort in enumerate(classes):
        if sort == "send":
            sends.setdefault((rank[step], peer[step]), []).append(step)
    for step, sort in enumerate(classes):
        queue = sends.get((peer[step], rank[step]))
        if sort in {"receive", "reduce"} and queue:
            partner[step] = queue.pop(0)
            partner[partner[step]] = step
    return partner


def _expand(
    stored: Any, reference: dict[str, Any], classes: list[str], partner: Any
) -> np.ndarray[Any, Any]:
    values, full = iter(stored.tolist()), np.zeros(len(classes), np.int64)
    is_wait = [sort == "wait" and "waits" in reference for sort in classes]
    for step, sort in enumerate(classes):
        other = partner[step] if "ends" in reference else -1
        if is_wait[step]:
            continue
        if sort not in {"wait", "send", "receive", "reduce"} and "rest" in reference:
            full[step] = reference["rest"]
        else:
            full[step] = full[other] if 0 <= other < step else next(values)
    for step in range(len(classes) - 2, -1, -1):
        full[step] = full[step + 1] if is_wait[step] else full[step]
    assert next(values, None) is None
    return full
