"""Expected and actual contents of cells after a plan, as sums of random words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_mscclpp.checking.memory import PlanMemory, buffer_cells
from hub_core.columns import BoolArray, Int64Array, UInt8Array, UInt64Array
from hub_core.model import ALL_RANKS, Buffer

_SEED = 0x6D736363


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """Initial and expected contents of cells.

    `inputs`: cells of INPUT of all ranks; `input_rank`: their ranks; `words`: uint64, the random
    word of the contribution in each. `outputs`: cells with an expected value, their `rank` and
    `offset` in OUTPUT, and `expected`, uint64; empty if the collective has no expected result.
    """

    inputs: Int64Array
    input_rank: Int64Array
    words: UInt64Array
    outputs: Int64Array
    rank: Int64Array
    offset: Int64Array
    expected: UInt64Array

    def wrong(
        self,
        value: UInt64Array,
        is_defined: UInt8Array,
    ) -> BoolArray:
        """Select outputs that are undefined or differ from the expected value: bool[outputs]."""
        actual = value[self.outputs]
        is_wrong: BoolArray = (is_defined[self.outputs] == 0) | (actual != self.expected)
        return is_wrong

    def describe(
        self,
        row: int,
        value: UInt64Array,
        is_defined: UInt8Array,
    ) -> str:
        """Describe the defect of an output, by its contribution if only one is wrong."""
        cell = self.outputs[row]
        if not is_defined[cell]:
            return "holds nothing, or what nobody wrote"
        # Arrays of length 1, because overflow of numpy scalars causes a warning.
        expected, actual = self.expected[row : row + 1], value[cell : cell + 1]
        lack = self._owner((expected - actual)[0])
        excess = self._owner((actual - expected)[0])
        if lack:
            return f"lacks the contribution of {lack}"
        if excess:
            return f"has a contribution of {excess} too many"
        owner = self._owner(actual[0])
        return f"holds the input of {owner}" if owner else "holds other contributions"

    def _owner(
        self,
        word: np.uint64,
    ) -> str:
        """Describe the rank and part whose contribution a word is; empty if it is none."""
        matches = np.flatnonzero(self.words == word)
        if not len(matches):
            return ""
        rank = self.input_rank[matches[0]]
        first = int(np.searchsorted(self.input_rank, rank))
        return f"rank {rank}, part {int(matches[0]) - first}"


def contents_of(memory: PlanMemory) -> Contents:
    """Draw a random word for every input cell, and compute the expected outputs."""
    input_rank, inputs = buffer_cells(memory, Buffer.INPUT)
    words = np.random.default_rng(_SEED).integers(0, 2**64, len(inputs), np.uint64)
    promised = memory.collective.postcondition()
    nothing = np.zeros(0, np.int64)
    if promised is None:
        empty = np.zeros(0, np.uint64)
        return Contents(inputs, input_rank, words, nothing, nothing, nothing, empty)
    first = np.searchsorted(input_rank, np.arange(memory.collective.num_ranks + 1))
    is_of_all = promised.source_rank == ALL_RANKS
    expected = np.zeros(len(promised), np.uint64)
    single = ~is_of_all
    from_one = first[promised.source_rank[single]] + promised.source_unit[single]
    expected[single] = words[from_one]
    if is_of_all.any():
        # Inputs have equal lengths if contributions of all ranks are added.
        sums = words.reshape(memory.collective.num_ranks, -1).sum(axis=0, dtype=np.uint64)
        expected[is_of_all] = sums[promised.source_unit[is_of_all]]
    base = memory.layout.base[promised.rank, Buffer.OUTPUT]
    cells = base + promised.offset
    return Contents(inputs, input_rank, words, cells, promised.rank, promised.offset, expected)
