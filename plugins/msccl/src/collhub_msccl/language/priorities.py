"""Order the operations of a program: those with the longest chains of successors first."""

from __future__ import annotations

import numpy as np

from hub_core.columns import Int64Array


def compute_execution_order(
    operations: int, parents: Int64Array, children: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Order of the operations, and the depth of every operation, both int64.

    The depth is the number of operations in the longest chain before an operation. The order is by
    depth, then by the longest chain after it, then by program order, like the heap in MSCCLang's
    scheduler. `parents`, `children`: pairs of operations, in program order. The order is a valid
    sequential run, and equal on both sides of every connection, so messages cannot deadlock. Cost:
    n log n in the number of pairs.
    """
    depth = _compute_longest_chains(operations, parents, children)
    # In reverse order, children precede their parents.
    last = operations - 1
    height = _compute_longest_chains(operations, last - children, last - parents)[::-1]
    in_program = np.arange(operations)
    return np.lexsort((in_program, -height, depth)), depth


def _compute_longest_chains(
    operations: int, parents: Int64Array, children: Int64Array
) -> Int64Array:
    """Number of operations in the longest chain before each operation."""
    by_child = np.lexsort((parents, children))
    pairs = zip(parents[by_child].tolist(), children[by_child].tolist(), strict=True)
    chain = [0] * operations
    # Parents precede their children, so their chains are final.
    for parent, child in pairs:
        if chain[parent] >= chain[child]:
            chain[child] = chain[parent] + 1
    return np.asarray(chain, np.int64)
