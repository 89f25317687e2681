"""Symbolic contents of memory: exact multisets of contributions, or 64-bit fingerprints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.columns import Int64Array, counted_positions, row_pointer
from hub_core.model import Collective, Contributions

_Array = npt.NDArray[Any]
_UintArray = npt.NDArray[np.uint64]

# Exact values are used up to 16 MB of memory and about a second of work.
MAX_EXACT_CELLS = 1 << 24
MAX_EXACT_WORK = 1 << 28
# Above any correct count, and small enough that sums of two do not overflow.
_SATURATED = np.uint64(1 << 40)
# Fixed: a file always gets the same report.
_SEED = 0x5EED


@dataclass(frozen=True, slots=True)
class InputIndex:
    """Numbers of the contributions, which are the units of all INPUT buffers.

    The number of a unit is `first[rank] + unit`. `sizes`: units of each INPUT, int64[ranks];
    `first`: int64[ranks]; `total`: number of contributions.
    """

    sizes: Int64Array
    first: Int64Array
    total: int

    @classmethod
    def of(cls, collective: Collective) -> InputIndex:
        """Number all units of all INPUTs consecutively from 0, rank by rank.

        Every unit is one contribution. The index has the INPUT sizes, the number of each rank's
        first unit, and the total. Units of undefined INPUTs are numbered too.
        """
        sizes = collective.input_units()
        borders = row_pointer(sizes)
        total = int(borders[-1])
        return cls(sizes, borders[:-1], total)

    def name(self, number: int) -> tuple[int, int]:
        """Return (rank, unit in its INPUT) of the contribution with this number.

        Contributions are numbered rank by rank, then by unit; the number must be valid.
        """
        rank = int(np.searchsorted(self.first + self.sizes, number, side="right"))
        return rank, number - int(self.first[rank])

    def expand(self, rows: Contributions) -> tuple[Int64Array, Int64Array]:
        """Return the contributions that rows name, as pairs (index into `rows`, contribution).

        The result is two int64 arrays of equal length, which are empty without rows. Rows with a
        negative `source_rank` name all ranks. They come first, each with one pair per rank, in
        the order of ranks. The other rows follow, each with one pair. Both groups keep the order
        of `rows`.

        A contribution is the number `first[rank] + source_unit`. It is -1 if there is no such
        rank, if `source_unit` is negative, or if it is not below the rank's number of INPUT units.
        """
        num_ranks = len(self.sizes)
        everyone = np.flatnonzero(rows.source_rank < 0)
        single = np.flatnonzero(rows.source_rank >= 0)
        all_ranks = np.tile(np.arange(num_ranks), len(everyone))
        ranks = np.concatenate([all_ranks, rows.source_rank[single]])
        row = np.concatenate([np.repeat(everyone, num_ranks), single])
        unit = rows.source_unit[row]
        # Ranks above the last are clipped for the lookup; `exists` is False for them.
        known = np.minimum(ranks, num_ranks - 1)
        exists = (unit >= 0) & (ranks < num_ranks) & (unit < self.sizes[known])
        return row, np.where(exists, self.first[known] + unit, -1)


@dataclass(frozen=True, slots=True)
class ExactValues:
    """Values are multisets: uint8[cells, contributions + 1], the multiplicities and their total.

    255 means 255 or more. The total is 0 exactly for undefined cells. `name`: the method, as in
    `VerifyReport.method`.
    """

    num_contributions: int
    name: str = "exact"

    def initial(self, cells: int, addresses: Int64Array, contributions: Int64Array) -> _Array:
        """Create the memory before the run: uint8[cells, number of contributions + 1].

        Cell `addresses[i]` contains the contribution with the number `contributions[i]` once,
        and its total in the last column is 1. All other cells are zeros, which means undefined.
        The addresses must be distinct.
        """
        width = self.num_contributions + 1
        memory = np.zeros((cells, width), np.uint8)
        memory[addresses, contributions] = 1
        memory[addresses, -1] = 1
        return memory

    def combine(self, first: _Array, second: _Array) -> _Array:
        """Return the sums, row by row, of two arrays of multisets; a new uint8 array.

        A row has the multiplicity of each contribution and, in the last column, their total,
        which is 0 exactly if the cell is undefined. Every sum is at most 255, which means 255
        or more. If one operand of a row is undefined, the row is all zeros.
        """
        total = first + second
        # A uint8 sum below its first operand has overflowed.
        total[total < first] = 255
        is_undefined = (first[:, -1] == 0) | (second[:, -1] == 0)
        total[is_undefined] = 0
        return total

    def expected(
        self, index: InputIndex, rows: Contributions, cells: int, cell: Int64Array
    ) -> _Array:
        """Return the expected multisets of `cells` output units: uint8[cells, contributions + 1].

        A contribution is a unit of an INPUT, numbered by `index`. Row i of `rows` names one
        (source rank and unit) that the output unit `cell[i]` must contain. A row with a
        negative `source_rank` names this unit of every rank.

        Column c is the number of times that contribution c is named for the unit. It must not
        exceed 255, which is not checked. The last column is the number of all names of the
        unit, 255 meaning 255 or more. It also counts names of contributions that no INPUT has;
        these have no column. Units without rows have zeros.
        """
        values = np.zeros((cells, self.num_contributions + 1), np.uint8)
        row, contribution = index.expand(rows)
        exists = contribution >= 0
        np.add.at(values, (cell[row[exists]], contribution[exists]), 1)
        totals = np.bincount(cell[row], minlength=cells)
        values[:, -1] = np.minimum(totals, 255)
        return values

    def error_probability(self, expected: _Array) -> float:
        """Upper bound on the probability that any wrong unit equals its value in `expected`."""
        return 0.0


@dataclass(frozen=True, slots=True)
class FingerprintValues:
    """Values are fingerprints: uint64[cells, 2], a sum of random numbers and their count.

    Every contribution has a random number; sums are mod 2^64. A multiset that differs from the
    expected one in `d_i` copies of contribution i passes only if the counts agree and sum d_i w_i =
    0 mod 2^64. With counts of m the d_i have no common factor 2^k above m, so that this has
    probability at most m / 2^64 over the random w_i.
    """

    weights: _UintArray
    name: str = "fingerprint"

    @classmethod
    def of(cls, index: InputIndex) -> FingerprintValues:
        """Draw a random 64-bit weight for every contribution of the index: uint64.

        The seed is fixed, so that all runs are equal.
        """
        generator = np.random.Generator(np.random.PCG64(_SEED))
        return cls(generator.integers(0, 1 << 64, index.total, np.uint64, endpoint=False))

    def initial(self, cells: int, addresses: Int64Array, contributions: Int64Array) -> _Array:
        """Create the memory before the run: uint64[cells, 2], weight and count of each cell.

        Cell `addresses[i]` holds the single contribution `contributions[i]`; other cells have count
        0 and are undefined.
        """
        # A count of zero is an undefined unit, whatever the sum of its weights happens to be.
        memory = np.zeros((cells, 2), np.uint64)
        memory[addresses, 0] = self.weights[contributions]
        memory[addresses, 1] = 1
        return memory

    def combine(self, first: _Array, second: _Array) -> _Array:
        """Return the sums of rows (fingerprint, count); zeros if one operand is undefined.

        A row is undefined if its count is 0. Fingerprints are added modulo 2^64. Counts are added,
        but at most to `_SATURATED`. The operands are not modified.
        """
        total: _Array = first + second
        # The count saturates, so that it never wraps around to a small one. The sums may wrap: they
        # are taken mod 2^64.
        np.minimum(total[:, 1], _SATURATED, out=total[:, 1])
        is_undefined = (first[:, 1] == 0) | (second[:, 1] == 0)
        if is_undefined.any():
            total[is_undefined] = 0
        return total

    def expected(
        self, index: InputIndex, rows: Contributions, cells: int, cell: Int64Array
    ) -> _Array:
        """Return the expected fingerprints and counts of `cells` output units: uint64[cells, 2].

        Column 0 is the fingerprint: the sum of the weights of the unit's contributions modulo 2^64.
        Column 1 is the number of contributions. Row i of `rows` belongs to unit `cell[i]`; a unit
        without rows has 0 in both columns. A row with source rank r is one contribution. A row with
        a negative source rank (all ranks) is one contribution per rank.

        A contribution whose rank or unit does not exist in the INPUTs increases only the count, so
        that the unit cannot match.
        """
        values = np.zeros((cells, 2), np.uint64)
        # Rows for all ranks are not expanded, which would give cells times ranks entries.
        is_everyone = rows.source_rank < 0
        sums = self._unit_sums(index)
        unit, everyones = rows.source_unit[is_everyone], cell[is_everyone]
        exists = (unit >= 0) & (unit < len(sums))
        np.add.at(values[:, 0], everyones[exists], sums[unit[exists]])
        np.add.at(values[:, 1], everyones, np.uint64(len(index.sizes)))
        singles = cell[~is_everyone]
        row, contribution = index.expand(rows.where(~is_everyone))
        is_present = contribution >= 0
        np.add.at(values[:, 0], singles[row[is_present]], self.weights[contribution[is_present]])
        np.add.at(values[:, 1], singles[row], np.uint64(1))
        return values

    def error_probability(self, expected: _Array) -> float:
        """Return an upper bound on the probability that any wrong unit equals its expected value.

        It is 2^-64 times the number of contributions to all units of `expected` together; 0 if
        no contribution is expected.
        """
        counts = expected[:, 1].astype(np.float64)
        return float(counts.sum()) * 2.0**-64

    def _unit_sums(self, index: InputIndex) -> _UintArray:
        """Return, for every k, the sum over ranks of the weights of INPUT unit k, modulo 2^64.

        The result is uint64[units of the largest INPUT]. Ranks with fewer units are omitted from
        the sums of higher units.
        """
        longest = int(index.sizes.max(initial=0))
        if bool(np.all(index.sizes == longest)):
            # INPUTs have equal sizes in all standard collectives except scatter.
            table = self.weights.reshape(len(index.sizes), longest)
            total: _UintArray = table.sum(axis=0, dtype=np.uint64)
            return total
        sums = np.zeros(longest, np.uint64)
        np.add.at(sums, counted_positions(index.sizes), self.weights)
        return sums


Values = ExactValues | FingerprintValues


def choose_values(index: InputIndex, cells: int, work: int) -> Values:
    """Choose exact values if memory and work are within their limits, else fingerprints.

    `cells`: units of memory. `work`: units that steps move. Both are multiplied by the number of
    contributions plus 1 and compared with `MAX_EXACT_CELLS` and `MAX_EXACT_WORK`.
    """
    width = index.total + 1
    if cells * width <= MAX_EXACT_CELLS and work * width <= MAX_EXACT_WORK:
        return ExactValues(index.total)
    return FingerprintValues.of(index)
