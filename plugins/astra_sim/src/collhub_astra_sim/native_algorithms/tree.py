"""One of the two trees of ASTRA-sim's double binary tree: sums move up, the result moves down.

The root is the lowest or the highest position and has one child. Below it, a complete tree contains
the remaining positions, numbered from 1 in in-order: odd numbers are leaves, and the lowest bit of
a number is twice the distance to its children. Every message is the entire vector.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collhub_astra_sim.native_algorithms.messages import (
    INPUT,
    OUTPUT,
    SCRATCH,
    NativePlan,
    NativeTask,
)
from collhub_astra_sim.native_algorithms.rank_steps import RankSteps, Region
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import InputError


class _Tree(NamedTuple):
    """By rank: whether it is a leaf or the root, its parent, and its children.

    The root has only the first child.
    """

    is_leaf: BoolArray
    is_root: BoolArray
    parent: Int64Array
    children: tuple[Int64Array, Int64Array]


def double_binary_tree(task: NativeTask) -> NativePlan:
    """Build one tree; ASTRA-sim alternates between both.

    Raises `InputError` unless the number of ranks is a power of 2.
    """
    ranks = task.num_ranks
    if ranks & (ranks - 1):
        message = f"ASTRA-sim crashes on doubleBinaryTree of {ranks} ranks"
        raise InputError(message, cure="use ring or direct", code="no-implementation")
    steps, tree = RankSteps(ranks), _build_tree(ranks, is_lowest=task.is_lowest)
    is_inner = ~tree.is_leaf & ~tree.is_root
    reduced_ns = task.delay_ns + task.reduce_ns(task.size)
    sums = [steps.copy(Region(INPUT, 0), Region(OUTPUT, 0), [], ~tree.is_leaf)]
    waited = []
    for slot, child in enumerate(tree.children):
        on = ~tree.is_leaf if slot == 0 else is_inner
        arrived = steps.receive(child, Region(SCRATCH, slot), [], on)
        waited.append(steps.wait(reduced_ns, [arrived], on))
    for slot in range(2):
        on = ~tree.is_leaf if slot == 0 else is_inner
        parts = [*sums, *waited] if slot == 0 else sums
        sums = [steps.reduce(Region(SCRATCH, slot), Region(OUTPUT, 0), parts, on), *sums[:1]]
    start = steps.wait(task.delay_ns, [], tree.is_leaf)
    steps.send(tree.parent, Region(INPUT, 0), [start], tree.is_leaf)
    steps.send(tree.parent, Region(OUTPUT, 0), sums, is_inner)
    below = [start, *sums]
    arrived = steps.receive(tree.parent, Region(OUTPUT, 0), below, ~tree.is_root)
    steps.wait(task.delay_ns, [arrived], tree.is_leaf)
    ready = steps.wait(reduced_ns, [arrived], is_inner)
    steps.send(tree.children[0], Region(OUTPUT, 0), sums, tree.is_root)
    for child in tree.children:
        steps.send(child, Region(OUTPUT, 0), [ready], is_inner)
    return NativePlan(steps, 1, 2)


def _build_tree(ranks: int, *, is_lowest: bool) -> _Tree:
    """Compute the tree of all ranks; `is_lowest`: the root is rank 0, otherwise the last rank."""
    me = np.arange(ranks)
    number = me if is_lowest else me + 1
    is_root = number % ranks == 0
    bit = number & -number
    half = np.where(is_root, 0, bit >> 1)
    children = np.where(is_root, ranks >> 1, number - half), number + half

    def find_ranks(numbers: Int64Array) -> Int64Array:
        """Return the ranks of numbers in the tree."""
        return numbers % ranks if is_lowest else (numbers - 1) % ranks

    parent = find_ranks((number & ~bit) | (2 * bit))
    first, second = (find_ranks(child) for child in children)
    return _Tree((number % 2 == 1) & ~is_root, is_root, parent, (first, second))
