"""Views of numpy arrays that plain Python reads and writes fast, with Python's own numbers.

A field of a record costs 0.03 us in a dictionary and 0.3 us in numpy. Python's integers have no
width, so that a sum of two narrow fields cannot overflow, as it cannot in machine code, where all
integers have 64 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class LazyRecords(dict[Any, dict[str, Any]]):
    """A structured array as dictionaries by index, which are created when they are first read."""

    def __init__(self, array: npt.NDArray[np.void]) -> None:
        super().__init__()
        self.array = array
        self._names = array.dtype.names or ()
        self._length = len(array)

    def __missing__(self, index: Any) -> dict[str, Any]:
        record = dict(zip(self._names, self.array[index].item(), strict=True))
        self[index] = record
        return record

    def __len__(self) -> int:
        return self._length

    def write_back(self) -> None:
        """Write all records that were read to the array.

        Raises `OverflowError` for an integer that the array's field cannot hold.
        """
        indices = list(self)
        if not indices:
            return
        # A tuple of lists selects elements of an array of several dimensions.
        selection: Any = tuple(zip(*indices, strict=True)) if self.array.ndim > 1 else indices
        for name in self._names:
            column = self.array[name]
            values: Any = [record[name] for record in self.values()]
            if column.dtype.kind in "iu":
                # numpy before version 2 would keep the lowest bits of an integer that is too large.
                limits = np.iinfo(column.dtype)
                if min(values) < limits.min or max(values) > limits.max:
                    raise OverflowError(f"a value of {name} does not fit into {column.dtype}")
            column[selection] = values


def interpreted(value: Any, records: list[LazyRecords]) -> Any:
    """Convert a value for plain Python: an array, a named tuple of values, or a number.

    The views of structured arrays are appended to `records`; other arrays are changed in place.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.names is None:
            numbers: Any = value
            return memoryview(numbers)
        view = LazyRecords(value)
        records.append(view)
        return view
    if isinstance(value, tuple):
        return type(value)(*(interpreted(item, records) for item in value))
    return value.item() if isinstance(value, np.generic) else value
