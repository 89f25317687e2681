"""What a unit of memory holds, in two forms: exact multisets of contributions, or 64-bit fingerprints of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hub_core.model.collectives import Collective, Contributions

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]

MAX_EXACT_CELLS = 1 << 24
MAX_EXACT_WORK = 1 << 28
_SATURATED = np.uint64(1 << 40)
_SEED = 0x5EED


@dataclass(frozen=True, slots=True)
class InputIndex:
    """Number the contributions, that is the units of all INPUT buffers: `first[rank] + unit`, `total` of them."""

    sizes: Int64Array
    first: Int64Array
    total: int

    @classmethod
    def of(cls, collective: Collective) -> InputIndex:
        """Number the inputs of `collective`."""
        sizes = collective.input_units()
        ends = np.cumsum(sizes)
        return cls(sizes, ends - sizes, int(ends[-1]))

    def name(self, number: int) -> tuple[int, int]:
        """(rank, unit) of a contribution."""
        rank = int(np.searchsorted(self.first + self.sizes, number, side="right"))
        return rank, number - int(self.first[rank])

    def expand(self, rows: Contributions) -> tuple[Int64Array, Int64Array]:
        """(row, contribution) pairs, `source_rank` -1 meaning every rank; -1 for a contribution that no INPUT holds."""
        everyone = np.flatnonzero(rows.source_rank < 0)
        single = np.flatnonzero(rows.source_rank >= 0)
        ranks = np.concatenate(
            [np.tile(np.arange(len(self.sizes)), len(everyone)), rows.source_rank[single]]
        )
        row = np.concatenate([np.repeat(everyone, len(self.sizes)), single])
        unit = rows.source_unit[row]
        exists = (unit >= 0) & (ranks < len(self.sizes))
        exists &= unit < self.sizes[np.minimum(ranks, len(self.sizes) - 1)]
        return row, np.where(exists, self.first[np.minimum(ranks, len(self.sizes) - 1)] + unit, -1)


class Values(Protocol):
    """A memory of values: rows of equal width, the last column zero exactly where the unit is undefined."""

    @property
    def name(self) -> str:
        """How contents are compared, in one word."""

    def initial(self, cells: int, addresses: Int64Array, contributions: Int64Array) -> Array:
        """A memory in which each of `addresses` holds one contribution and all else is undefined."""

    def combine(self, one: Array, other: Array) -> Array:
        """Reduce two blocks of values; undefined where one side is."""

    def expected(
        self, index: InputIndex, rows: Contributions, cells: int, cell: Int64Array
    ) -> Array:
        """The value of each of `cells` output units; row i of `rows` belongs to unit `cell[i]`."""

    def error_probability(self, expected: Array) -> float:
        """Upper bound on the probability that a wrong unit among those compared with `expected` looks right."""


@dataclass(frozen=True, slots=True)
class ExactValues:
    """One uint8 column a contribution, its multiplicity (255 stands for more), and the total."""

    num_contributions: int
    name: str = "exact"

    def initial(self, cells: int, addresses: Int64Array, contributions: Int64Array) -> Array:
        """See `Values`."""
        memory = np.zeros((cells, self.num_contributions + 1), np.uint8)
        memory[addresses, contributions] = 1
        memory[addresses, -1] = 1
        return memory

    def combine(self, one: Array, other: Array) -> Array:
        """See `Values`."""
        total = one + other
        total[total < one] = 255
        total[(one[:, -1] == 0) | (other[:, -1] == 0)] = 0
        return total

    def expected(
        self, index: InputIndex, rows: Contributions, cells: int, cell: Int64Array
    ) -> Array:
        """See `Values`."""
        values = np.zeros((cells, self.num_contributions + 1), np.uint8)
        row, contribution = index.expand(rows)
        exists = contribution >= 0
        np.add.at(values, (cell[row[exists]], contribution[exists]), 1)
        totals = np.bincount(cell[row], minlength=cells)
        values[:, -1] = np.minimum(totals, 255)
        return values

    def error_probability(self, expected: Array) -> float:
        """See `Values`: nothing is left to chance."""
        return 0.0


@dataclass(frozen=True, slots=True)
class FingerprintValues:
    """Two uint64 columns: the sum, mod 2^64, of a random number per contribution; and how many contributions.

    A multiset that differs from the expected one in `d_i` copies of contribution i passes only if the counts
    agree and sum d_i w_i = 0 mod 2^64. With counts of m the d_i have no common factor 2^k above m, so that this
    has probability at most m / 2^64 over the random w_i.
    """

    weights: npt.NDArray[np.uint64]
    name: str = "fingerprint"

    @classmethod
    def of(cls, index: InputIndex) -> FingerprintValues:
        """Draw the random numbers, the same ones for the same number of contributions."""
        generator = np.random.Generator(np.random.PCG64(_SEED))
        return cls(generator.integers(0, 1 << 64, index.total, np.uint64, endpoint=False))

    def initial(self, cells: int, addresses: Int64Array, contributions: Int64Array) -> Array:
        """See `Values`."""
        memory = np.zeros((cells, 2), np.uint64)
        memory[addresses, 0] = self.weights[contributions]
        memory[addresses, 1] = 1
        return memory

    def combine(self, one: Array, other: Array) -> Array:
        """See `Values`."""
        total: Array = one + other
        # The count saturates, so that it never wraps around to a small one.
        np.minimum(total[:, 1], _SATURATED, out=total[:, 1])
        undefined = (one[:, 1] == 0) | (other[:, 1] == 0)
        if undefined.any():
            total[undefined] = 0
        return total

    def expected(
        self, index: InputIndex, rows: Contributions, cells: int, cell: Int64Array
    ) -> Array:
        """See `Values`."""
        values = np.zeros((cells, 2), np.uint64)
        everyone = rows.source_rank < 0
        sums = self._column_sums(index)
        unit = rows.source_unit[everyone]
        exists = (unit >= 0) & (unit < len(sums))
        np.add.at(values[:, 0], cell[everyone][exists], sums[unit[exists]])
        np.add.at(values[:, 1], cell[everyone], np.uint64(len(index.sizes)))
        single = Contributions(
            *(
                column[~everyone]
                for column in (rows.rank, rows.offset, rows.source_rank, rows.source_unit)
            )
        )
        row, contribution = index.expand(single)
        held = contribution >= 0
        np.add.at(values[:, 0], cell[~everyone][row[held]], self.weights[contribution[held]])
        np.add.at(values[:, 1], cell[~everyone][row], np.uint64(1))
        return values

    def error_probability(self, expected: Array) -> float:
        """See `Values`."""
        return float(expected[:, 1].astype(np.float64).sum()) * 2.0**-64

    def _column_sums(self, index: InputIndex) -> npt.NDArray[np.uint64]:
        """Sum over all ranks of the weight of unit k, for every k."""
        longest = int(index.sizes.max(initial=0))
        if bool(np.all(index.sizes == longest)):
            whole: npt.NDArray[np.uint64] = self.weights.reshape(len(index.sizes), longest).sum(
                axis=0, dtype=np.uint64
            )
            return whole
        sums = np.zeros(longest, np.uint64)
        unit = np.arange(index.total) - np.repeat(index.first, index.sizes)
        np.add.at(sums, unit, self.weights)
        return sums


def choose_values(index: InputIndex, cells: int, work: int) -> Values:
    """Exact values where `cells` of memory and `work` unit operations are few enough, else fingerprints."""
    width = index.total + 1
    if cells * width <= MAX_EXACT_CELLS and work * width <= MAX_EXACT_WORK:
        return ExactValues(index.total)
    return FingerprintValues.of(index)
