"""Counts of uneven exchanges: units per ordered pair of ranks, or per rank, exact and immutable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from hub_core.columns import Int64Array, row_pointer
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import CollectiveKind

# The sum of all counts is a number of units of the model.
MAX_TOTAL_UNITS = 1 << 62
# Longer integers are shown as powers of 2 in messages.
_MAX_SHOWN_BITS = 128
_DTYPE = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class UnitCounts:
    """A table of counts in units, which compares and hashes as its bytes.

    `is_per_pair`: the table has `num_ranks` rows and columns, and row i, column j is the number of
    units that rank i sends to rank j; the diagonal is data that stay on their rank (a local copy).
    Otherwise the table has one entry per rank. `data`: int64, little-endian, row by row.
    `from_table` is the constructor for tables of numbers.
    """

    num_ranks: int
    is_per_pair: bool
    data: bytes

    @classmethod
    def from_table(cls, table: object, is_per_pair: bool, name: str = "counts") -> UnitCounts:
        """Check a table of integers and return its counts.

        `table`: lists, tuples, ranges or an array. With `is_per_pair` it has n rows of n integers;
        row i has the units that rank i sends to each rank. Otherwise it has one integer for each
        of n ranks. `name`: the origin of the table, for errors. Raises `InputError`
        (`invalid-counts`) for the first of these faults:

        - a table that is no list, tuple, range or array, or is empty; then the first row that is
          none, and for counts per rank a table with rows
        - row by row: another length than n, else an entry that is no integer (such as a boolean, a
          float, or a numpy integer in a list), or is negative
        - a sum of all counts outside 1..2^62, so that counts of only 0 are refused
        """
        plain = table.tolist() if isinstance(table, np.ndarray) else table
        sequence = (list, tuple, range)
        shape = "a list of n rows of n integers" if is_per_pair else "a list of n integers"
        cure = "give counts per pair of ranks" if is_per_pair else "give one count per rank"
        if not isinstance(plain, sequence) or not plain:
            raise _error(f"{name}: the table is no list or empty, expected {shape}", cure)
        # One list per row, a single one for counts per rank.
        rows: list[list[object]] = []
        for row, entries in enumerate(plain if is_per_pair else [plain]):
            if not isinstance(entries, sequence):
                raise _error(f"{name}: the row of rank {row} is no list, expected {shape}", cure)
            if not is_per_pair and any(isinstance(entry, sequence) for entry in entries):
                raise _error(f"{name}: the table has rows, expected {shape}", cure)
            rows.append(list(entries))
        # Python's integers do not overflow.
        total = 0
        for row, values in enumerate(rows):
            expected = len(rows) if is_per_pair else len(values)
            if len(values) != expected:
                raise _error(
                    f"{name}: the row of rank {row} has {len(values)} counts, expected {expected}: "
                    "one per rank",
                    "give a square table: row i has the units that rank i sends to each rank",
                )
            prefix = f"{name}: rank {row} to " if is_per_pair else f"{name}: "
            total += sum(_check_counts(values, prefix))
        if not 1 <= total <= MAX_TOTAL_UNITS:
            raise _error(
                f"{name}: the counts sum to {_format_integer(total)} units, expected 1..2^62",
                "give at least one positive count, in larger units if the sum is too large",
            )
        num_ranks = len(rows) if is_per_pair else len(rows[0])
        return cls(num_ranks, is_per_pair, np.asarray(rows, _DTYPE).tobytes())

    @classmethod
    def from_flat(
        cls, values: Sequence[int], kind: CollectiveKind, num_ranks: int, name: str = "counts"
    ) -> UnitCounts:
        """Return the counts of an uneven kind from a list of all counts, row by row.

        `values` must have one count per rank or, if the kind has counts per pair, one per ordered
        pair of ranks: first those that rank 0 sends to ranks 0, 1, ... Raises `InputError`
        (`invalid-counts`) for another number of values, and for values that `from_table` refuses.
        """
        is_per_pair = kind.traits.has_counts_per_pair
        expected = num_ranks * num_ranks if is_per_pair else num_ranks
        if len(values) != expected:
            raise _error(
                f"{name} has {len(values)} values, expected {expected}",
                f"give one count per {'ordered pair of ranks' if is_per_pair else 'rank'}",
            )
        rows = [list(values[row : row + num_ranks]) for row in range(0, expected, num_ranks)]
        return cls.from_table(rows if is_per_pair else rows[0], is_per_pair, name)

    @property
    def table(self) -> Int64Array:
        """Return the counts in units as a read-only array, a view of `data`.

        Counts per pair are int64[ranks, ranks], sender by receiver; counts per rank are
        int64[ranks].
        """
        shape = (self.num_ranks,) * (2 if self.is_per_pair else 1)
        return np.frombuffer(self.data, _DTYPE).reshape(shape).view(np.int64)

    @property
    def total(self) -> int:
        """Sum of all counts: the units of the full buffer."""
        return int(self.table.sum())

    @property
    def common_divisor(self) -> int:
        """The largest number of units that divides all counts."""
        return int(np.gcd.reduce(self.table, axis=None))

    def in_blocks(self, unit: int) -> UnitCounts:
        """Return the counts in blocks of `unit` units, which must divide all counts."""
        return UnitCounts(
            self.num_ranks, self.is_per_pair, (self.table // unit).astype(_DTYPE).tobytes()
        )

    def multiplied(self, factor: int) -> UnitCounts:
        """Return these counts times `factor`, for units that are `factor` times smaller.

        For factor 1 the same object is returned. The sum must stay below 2^63; this is not checked.
        """
        if factor == 1:
            return self
        data = (self.table * np.int64(factor)).astype(_DTYPE).tobytes()
        return UnitCounts(self.num_ranks, self.is_per_pair, data)

    def transposed(self) -> UnitCounts:
        """Return the counts of the exchange in the opposite direction: the transposed table.

        For counts per rank, which have no direction, the same object is returned.
        """
        if not self.is_per_pair:
            return self
        return UnitCounts(self.num_ranks, True, np.ascontiguousarray(self.table.T).tobytes())

    def first_units(self) -> tuple[Int64Array, Int64Array]:
        """Return the offsets of all parts in the buffers, in units, as two int64 arrays.

        For counts per pair, both arrays are [ranks, ranks], indexed (sender, receiver): the offset
        of the part in the INPUT of the sender, and its offset in the OUTPUT of the receiver. For
        counts per rank, both are [ranks]: the offset of the rank's part in the full buffer.
        """
        table = self.table
        if not self.is_per_pair:
            first = row_pointer(table)[:-1]
            return first, first
        return np.cumsum(table, axis=1) - table, np.cumsum(table, axis=0) - table


def has_equal_counts(first: UnitCounts | None, second: UnitCounts | None) -> bool:
    """Return whether two tables are equal apart from the size of a unit.

    Each table is divided by its greatest common divisor before the comparison. Two None are equal;
    a table and None are not.
    """
    if first is None or second is None:
        return first is second
    return first.in_blocks(first.common_divisor) == second.in_blocks(second.common_divisor)


def _check_counts(values: list[object], prefix: str) -> list[int]:
    """Return the row of a table unchanged if all its entries are integers of 0 or more.

    An empty row is returned too. Raises `InputError` (`invalid-counts`) for the first other entry.
    Booleans and integers of numpy are not accepted as integers. `prefix`: start of the message,
    such as `counts: rank 3 to `, which is followed by the position of the entry, from 0.
    """
    counts = cast(list[int], values)
    # The usual case: tables of many ranks have millions of entries.
    if set(map(type, counts)) == {int} and min(counts) >= 0:
        return counts
    for column, value in enumerate(values):
        at = f"{prefix}rank {column}"
        if not isinstance(value, int) or isinstance(value, bool):
            raise _error(
                f"{at}: {str(value)[:40]!r} is no integer, expected units of 0 or more",
                "give an integer",
            )
        if value < 0:
            raise _error(
                f"{at}: {_format_integer(value)} is negative, expected units of 0 or more",
                "give 0 for a message that is not sent",
            )
    return counts


def _format_integer(value: int) -> str:
    """Return the digits of an integer; beyond 128 bits a power of 2, as `about 2^200`.

    The power is the largest one that the magnitude reaches; a negative integer is `about -2^200`.
    Python does not convert integers of thousands of digits to text.
    """
    bits = value.bit_length()
    if bits <= _MAX_SHOWN_BITS:
        return str(value)
    return f"about {'-' if value < 0 else ''}2^{bits - 1}"


def _error(message: str, cure: str) -> InputError:
    return InputError(message, cure=cure, code="invalid-counts")
