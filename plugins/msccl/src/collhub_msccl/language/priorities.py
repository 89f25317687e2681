"""Put the operations of a program in order: those that many others wait for first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["execution_order"]

Int64Array = npt.NDArray[np.int64]


def execution_order(
    operations: int, parents: Int64Array, children: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return an order, and the depth of every operation, the number of operations in the longest chain before it.

    The order is by depth, then by the longest chain after, then as the program has them.

    `parents` and `children`: pairs of operations, parent before child in the program. The order is a valid sequential
    run, and the same on both ends of every connection.
    """
    depth = _longest_chains(operations, parents, children)
    height = _longest_chains(operations, operations - 1 - children, operations - 1 - parents)[::-1]
    return np.lexsort((np.arange(operations), -height, depth)), depth


def _longest_chains(operations: int, parents: Int64Array, children: Int64Array) -> Int64Array:
    """Number of operations in the longest chain before each one."""
    by_child = np.lexsort((parents, children))
    chain = [0] * operations
    # Parents stand before their children, so their own chains are known.
    for parent, child in zip(parents[by_child].tolist(), children[by_child].tolist(), strict=True):
        if chain[parent] >= chain[child]:
            chain[child] = chain[parent] + 1
    return np.asarray(chain, np.int64)
