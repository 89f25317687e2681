"""Grids: how a tensor is cut in chunks, which of them overlap, and which elements each one has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import Int64Array, counted_positions

from collhub_coconet.program.tensors import block_bounds


@dataclass(frozen=True, slots=True)
class Grid:
    """A tensor of `shape` cut in `blocks` blocks along `dimension`, each in `parts` chunks.

    Chunk `b * parts + s` is part s of block b. Blocks are those of sliced layouts, so that block b
    belongs to rank b of the group; one block: the whole tensor. Part s of a block of n elements, in
    their order, has elements s * n // parts to (s + 1) * n // parts, so that nothing is dropped
    where the sizes do not divide.
    """

    shape: tuple[int, ...]
    dimension: int
    blocks: int
    parts: int

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return self.blocks * self.parts

    def is_comparable(self, other: Grid) -> bool:
        """Whether both cut one tensor in the same blocks, so that chunks overlap in order."""
        mine = self.shape, self.dimension, self.blocks
        return mine == (other.shape, other.dimension, other.blocks)

    def overlaps(self, chunks: Int64Array, other: Grid) -> tuple[Int64Array, Int64Array]:
        """(index into `chunks`, chunk of `other`) of all that share an element.

        Both are bounds of fractions of one block: element e of n lies in part s where
        s * n // parts <= e, hence s / parts < (e + 1) / n <= (s + 1) / parts.
        """
        block, part = np.divmod(chunks, self.parts)
        first = part * other.parts // self.parts
        behind = -(-(part + 1) * other.parts // self.parts)
        counts = behind - first
        index = np.repeat(np.arange(len(chunks)), counts)
        found = (block * other.parts + first)[index] + counted_positions(counts)
        return index, found

    def elements(self, chunk: int) -> Int64Array:
        """Indices of the elements of a chunk in the whole tensor, in the order of its block."""
        block, part = divmod(chunk, self.parts)
        inside = self._block(block)
        count = len(inside)
        return inside[part * count // self.parts : (part + 1) * count // self.parts]

    def _block(self, block: int) -> Int64Array:
        """Indices of the elements of a block, row by row."""
        whole = np.arange(int(np.prod(self.shape, dtype=np.int64))).reshape(self.shape)
        if self.blocks == 1:
            return whole.reshape(-1)
        first, behind = block_bounds(self.shape[self.dimension], self.blocks, block)
        place = (slice(None),) * self.dimension + (slice(first, behind),)
        return whole[place].reshape(-1)
