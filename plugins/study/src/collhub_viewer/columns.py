"""Columns of numbers of a page: little-endian, compressed with gzip, one line of base64 each."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Reference = dict[str, "int | str | bool"]

_ROWS_AT_A_TIME = 1 << 18
_LEVEL = 6
_GZIP_WINDOW = 31
# In the order of preference: the smallest type that contains all values is used.
_TYPES = (("u8", "<u1"), ("u16", "<u2"), ("i32", "<i4"), ("u32", "<u4"))


class ColumnLines:
    """The lines of all columns of a page.

    `budget`: number of bytes that lines may have in total before optional columns are refused.
    """

    def __init__(self, budget: int) -> None:
        self.lines: list[bytes] = []
        self.omitted: list[str] = []
        self._budget, self._size = budget, 0

    @property
    def excess(self) -> float:
        """Size of all lines divided by the budget."""
        return self._size / self._budget

    def reset(self, num_lines: int) -> None:
        """Remove all lines from number `num_lines` on, and forget omitted columns."""
        self._size -= sum(map(len, self.lines[num_lines:]))
        del self.lines[num_lines:]
        self.omitted.clear()

    def add(self, values: npt.ArrayLike, *, is_delta: bool = False) -> Reference:
        """Compress a column and return its reference for the index.

        `is_delta`: store the differences of consecutive values (the first one from 0), which
        compress better if values ascend. The type is the smallest one without loss; integers beyond
        32 bits become float64, exact up to 2^53.
        """
        column = np.asarray(values)
        name, dtype = _choose_type(column, is_delta)
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        pieces = []
        for first in range(0, len(column), _ROWS_AT_A_TIME):
            piece = column[first : first + _ROWS_AT_A_TIME]
            if is_delta:
                before = column[first - 1] if first else 0
                piece = np.diff(piece, prepend=before)
            pieces.append(compressor.compress(piece.astype(dtype).tobytes()))
        pieces.append(compressor.flush())
        line = base64.b64encode(b"".join(pieces))
        self.lines.append(line)
        self._size += len(line)
        return {
            "column": len(self.lines) - 1,
            "type": name,
            "length": len(column),
            "delta": is_delta,
        }

    def add_optional(
        self, name: str, values: npt.ArrayLike | None, *, is_delta: bool = False
    ) -> Reference | None:
        """Add a column unless it is None or exceeds the budget; `name` is then in `omitted`."""
        if values is None or self._size > self._budget:
            if values is not None:
                self.omitted.append(name)
            return None
        reference = self.add(values, is_delta=is_delta)
        if self._size <= self._budget:
            return reference
        self._size -= len(self.lines.pop())
        self.omitted.append(name)
        return None


def _choose_type(column: npt.NDArray[np.generic], is_delta: bool) -> tuple[str, str]:
    """Return (name in the index, numpy type) of the smallest type that represents the values."""
    if column.dtype.kind == "f":
        return "f64", "<f8"
    if not len(column):
        return _TYPES[0]
    if is_delta:
        steps: Sequence[npt.NDArray[np.generic]] = (np.diff(column), column[:1])
        least = min(int(part.min()) for part in steps if len(part))
        most = max(int(part.max()) for part in steps if len(part))
    else:
        least, most = int(column.min()), int(column.max())
    for name, dtype in _TYPES:
        limits = np.iinfo(dtype)
        if limits.min <= least and most <= limits.max:
            return name, dtype
    return "f64", "<f8"
