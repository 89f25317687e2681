"""Put the operations of a program in order: those that many others wait for first."""

from __future__ import annotations

import numpy as np
from collhub_columns import Int64Array


def execution_order(
    operations: int, parents: Int64Array, children: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return an order, and the depth of every operation.

    The depth is the number of operations in the longest chain before it. The order is by depth,
    then by the longest chain after, then as the program has them: that of the heap in MSCCLang's
    scheduler. `parents` and `children`: pairs of operations, parent before child in the program.
    The order is a valid sequential run, and the same on both ends of every connection, so that
    messages cannot deadlock. Work is n log n in the number of pairs.
    """
    depth = _longest_chains(operations, parents, children)
    # Backwards, children come before their parents.
    last = operations - 1
    height = _longest_chains(operations, last - children, last - parents)[::-1]
    in_program = np.arange(operations)
    return np.lexsort((in_program, -height, depth)), depth


def _longest_chains(operations: int, parents: Int64Array, children: Int64Array) -> Int64Array:
    """Number of operations in the longest chain before each one."""
    by_child = np.lexsort((parents, children))
    pairs = zip(parents[by_child].tolist(), children[by_child].tolist(), strict=True)
    chain = [0] * operations
    # Parents stand before their children, so their own chains are known.
    for parent, child in pairs:
        if chain[parent] >= chain[child]:
            chain[child] = chain[parent] + 1
    return np.asarray(chain, np.int64)
