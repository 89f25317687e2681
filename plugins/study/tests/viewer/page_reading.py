"""Read the data of a page back, as the page's own program does."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

_TYPES = {"u8": "<u1", "u16": "<u2", "i32": "<i4", "u32": "<u4", "f64": "<f8"}
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
        raw = gzip.decompress(base64.b64decode(self._lines[reference["column"]]))
        values = np.frombuffer(raw, _TYPES[reference["type"]]).astype(np.float64)
        assert len(values) == reference["length"]
        return np.cumsum(values) if reference["delta"] else values

    def steps(self, run: int = 0) -> dict[str, Any]:
        """Return the columns of the steps of a run by name, and kinds and lanes by step."""
        one = self.index["runs"][run]
        columns = {
            name: self.column(value)
            for name, value in one["steps"].items()
            if isinstance(value, dict)
        }
        first = self.column(one["lanes"]["first"]).astype(int)
        columns["lane"] = np.repeat(np.arange(len(first) - 1), np.diff(first))
        columns["rank"] = self.column(one["lanes"]["rank"])[columns["lane"]]
        columns["kinds"] = [one["kinds"][int(kind)]["name"] for kind in columns["kind"]]
        return columns
