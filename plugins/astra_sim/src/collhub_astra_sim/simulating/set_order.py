"""Parts of kernels: the iteration order of ASTRA-sim's hash sets, and of the nodes in its graphs.

ASTRA-sim starts nodes in the order of a `std::unordered_set` of libstdc++, which is part of its
timing model: the roots of a rank, and the children of every node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from collhub_kernels import compiled
from collhub_kernels.event_queue import Integer, Records

from hub_core.columns import BoolArray, Int64Array, IntArray, UInt64Array

if TYPE_CHECKING:
    from collhub_astra_sim.simulating.kernel import NodeParents, SimulatedWorld

# One element of the hash set that is being reordered.
ELEMENT = np.dtype(
    [("row", np.int64), ("identity", np.uint64), ("bucket", np.int64), ("after", np.int64)],
    align=True,
)


class SetState(Protocol):
    """The fields of a state that are needed to reorder sets, as in `SimulatedWorld`."""

    @property
    def identity(self) -> UInt64Array: ...
    @property
    def element(self) -> Records: ...
    @property
    def before(self) -> Int64Array: ...


# Bucket counts of libstdc++'s hash sets that grow element by element from empty
# (`_Prime_rehash_policy`): the next prime of its table above twice the last one.
BUCKET_COUNTS = (
    13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061,
    712697, 1447153, 2938679, 5967347, 12117689,
)  # fmt: skip
# Bucket count of a new set. Typed, because numba compiles a function again for a literal argument.
EMPTY_SET = np.int64(1)


@compiled
def sort_as_set(rows: IntArray, count: Integer, buckets: Integer, world: SetState) -> Integer:
    """Reorder the first `count` rows as libstdc++'s unordered_set iterates after their insertion.

    `rows`, changed in place: nodes in the order of insertion, hashed by their identities. Two rows
    are always reversed. `buckets`: size of the set's hash table before the insertion (`EMPTY_SET`
    for a new set); the set must have no elements. Returns the size afterwards, which never
    decreases and is unchanged without rows.
    """
    # Nearly all sets are this small. A new element is inserted at the front unless its bucket is
    # occupied; then it is inserted before the first element of the bucket, which here is also the
    # front.
    if count < 3:
        if count == 2:
            rows[0], rows[1] = rows[1], rows[0]
        return buckets if count == 0 else max(buckets, BUCKET_COUNTS[0])
    return _sort_large_set(rows[:count], buckets, world.identity, world.element, world.before)


@compiled
def _sort_large_set(
    rows: IntArray,
    buckets: Integer,
    identity: UInt64Array,
    element: Records,
    before: Int64Array,
) -> Integer:
    """Reorder rows in place as libstdc++'s unordered_set iterates, by simulating its linked list.

    `identity`: hash of each node. `element`: records of the list by position; `element[len(rows)]`
    is its head. `before`: by bucket, the position before its first element, -1 for an empty bucket;
    all are -1 before and after the call. `buckets`: bucket count before. Returns the new bucket
    count.
    """
    head = len(rows)
    element[head]["after"] = -1
    for position in range(head):
        entry = element[position]
        entry["row"] = rows[position]
        entry["identity"] = identity[rows[position]]
        # libstdc++ grows before inserting the element that would exceed one element per bucket.
        if buckets == EMPTY_SET or position == buckets:
            buckets = _expand_buckets(head, buckets, element, before)
        _insert_element(position, head, buckets, element, before)
    _write_order(rows, element, before)
    return buckets


@compiled
def _write_order(rows: IntArray, element: Records, before: Int64Array) -> None:
    """Write the rows of a set to `rows`, in the order in which iteration over the set visits them.

    The set is a list of `element`; the entry with index `len(rows)` precedes its first one. Also
    empties the set: the buckets in `before` that have elements are reset to -1, so the cost is
    proportional to the rows.
    """
    position = element[len(rows)]["after"]
    for index in range(len(rows)):
        entry = element[position]
        rows[index] = entry["row"]
        before[entry["bucket"]] = -1
        position = entry["after"]


@compiled
def _insert_element(
    position: Integer, head: Integer, buckets: Integer, element: Records, before: Int64Array
) -> None:
    """Insert the element at `position` into the linked list of a set, at the front of its bucket.

    The bucket is the identity modulo `buckets`. If it is empty, the element becomes the first of
    the entire list. `head`: entry before the list. `before`: by bucket, the entry before its first
    element, -1 if empty. `element` and `before` are modified.
    """
    entry = element[position]
    bucket = np.int64(entry["identity"] % np.uint64(buckets))
    entry["bucket"] = bucket
    previous = before[bucket]
    if previous < 0:
        # The bucket is empty: insert at the front, before the previous front.
        previous = head
        front = element[head]["after"]
        if front >= 0:
            before[element[front]["bucket"]] = position
        before[bucket] = head
    entry["after"] = element[previous]["after"]
    element[previous]["after"] = position


@compiled
def _expand_buckets(
    head: Integer, buckets: Integer, element: Records, before: Int64Array
) -> Integer:
    """Increase the bucket count to the next one of `BUCKET_COUNTS` and reinsert all elements.

    They are reinserted in list order, as libstdc++ does, which determines the order of iteration.
    Returns the new count; the old one if there is no larger one.
    """
    for bucket in range(buckets):
        before[bucket] = -1
    for bucket_count in BUCKET_COUNTS:
        if bucket_count > buckets:
            buckets = bucket_count
            break
    position = element[head]["after"]
    element[head]["after"] = -1
    while position >= 0:
        # Read first: inserting the element overwrites it.
        following = element[position]["after"]
        _insert_element(position, head, buckets, element, before)
        position = following
    return buckets


# --- the graph of one rank, and the iteration order of its hash sets ---


@compiled
def find_roots_in_order(rank: Integer, world: SimulatedWorld, parents: NodeParents) -> Integer:
    """Write the nodes of a rank without parents to `world.freed`, in ASTRA-sim's starting order.

    Returns their number. The order is that of the hash set that Chakra's feeder (its reader of
    traces) fills while it iterates over the set of all nodes of the rank. Also stores the size of
    this hash table for the rank, from which later sets of ready nodes continue. The parents must
    have been counted before (`link_children`).
    """
    count = _collect_in_file_order(rank, world, parents)
    sort_as_set(world.freed, count, EMPTY_SET, world)
    # Roots are compacted to the front of the same array: the write index never exceeds the read
    # index.
    roots = 0
    for position in range(count):
        row = world.freed[position]
        if world.node[row]["unmet"] == 0:
            world.freed[roots] = row
            roots += 1
    world.rank[rank]["buckets"] = sort_as_set(world.freed, roots, EMPTY_SET, world)
    return roots


@compiled
def link_children(world: SimulatedWorld, parents: NodeParents) -> None:
    """Store the children of every node in `world.child`, in the iteration order of their set.

    This is the order in which ASTRA-sim starts them when the node ends. The parents of every node
    are counted too, in the field `unmet`. A parent that is named twice counts once. Dependencies
    are read twice, to count and to place them, which needs less memory than a sort.
    """
    _count_children(world, parents)
    _reserve_children(world)
    _place_children(world, parents)
    _sort_children(world)


@compiled
def _count_children(world: SimulatedWorld, parents: NodeParents) -> None:
    """Set `unmet` of every node to its parent count, and `children` to its child count."""
    for row in range(len(world.node)):
        unmet = _collect_parents(row, world, parents)
        world.node[row]["unmet"] = unmet
        for position in range(unmet):
            parent = world.node[world.parents[position]]
            parent["children"] += 1


@compiled
def _reserve_children(world: SimulatedWorld) -> None:
    """Assign every node a range of `world.child` with one entry per child, in row order.

    Sets `first_child` from the counts in `children`. Then sets `children` to 0 and `latest_child`
    to -1 for all nodes, because children are counted again when they are written.
    """
    total = 0
    for row in range(len(world.node)):
        node = world.node[row]
        node["first_child"] = total
        total += node["children"]
        # Both are counted again while the children are placed.
        node["children"] = 0
        world.latest_child[row] = -1


@compiled
def _sort_children(world: SimulatedWorld) -> None:
    """Sort the children of every node into the iteration order of their set.

    Resets `latest_child` to -1 for every node.
    """
    for row in range(len(world.node)):
        node = world.node[row]
        # Reset, because the parents are collected once more to find the roots.
        world.latest_child[row] = -1
        first = np.int64(node["first_child"])
        count = np.int64(node["children"])
        children = world.child[first : first + count]
        sort_as_set(children, count, EMPTY_SET, world)


@compiled
def _place_children(world: SimulatedWorld, parents: NodeParents) -> None:
    """Append every node to the children of its parents, in file order."""
    for row in range(len(world.node)):
        count = _collect_parents(row, world, parents)
        for position in range(count):
            parent = world.node[world.parents[position]]
            world.child[parent["first_child"] + parent["children"]] = row
            parent["children"] += 1


@compiled
def _collect_parents(row: Integer, world: SimulatedWorld, parents: NodeParents) -> Integer:
    """Write the distinct parents of node `row` to `world.parents`, and return their number.

    Data parents come before control parents, in the order of the file; a repeated one counts
    once. `parents`: dependencies of all nodes. Each parent is marked with `row` in
    `world.latest_child`; before another collection for the same row, these marks must be reset
    to -1, else marked parents are omitted.
    """
    count: Integer = 0
    for edge in range(parents.data_indptr[row], parents.data_indptr[row + 1]):
        count = _add_parent(parents.data_indices[edge], row, count, world)
    for edge in range(parents.control_indptr[row], parents.control_indptr[row + 1]):
        count = _add_parent(parents.control_indices[edge], row, count, world)
    return count


@compiled
def _add_parent(parent: Integer, row: Integer, count: Integer, world: SimulatedWorld) -> Integer:
    """Append `parent` to `world.parents` unless it is there already; return the new count.

    `row`: the child node; `count`: number of its parents so far. Parents are marked in
    `world.latest_child`, so all parents of a row must be added before those of the next row.
    """
    if world.latest_child[parent] == row:
        return count
    world.latest_child[parent] = row
    world.parents[count] = parent
    return count + 1


@compiled
def _collect_in_file_order(rank: Integer, world: SimulatedWorld, parents: NodeParents) -> Integer:
    """Write a rank's nodes to `world.freed` in the order in which its file first refers to them.

    A file refers to a node by its record, or earlier by a dependency of another record.
    Dependencies of a record are taken in the iteration order of the feeder's set. Returns the
    number of nodes.
    """
    first, end = world.rank[rank]["first"], world.rank[rank + 1]["first"]
    is_touched = world.is_touched[: end - first]
    for index in range(end - first):
        is_touched[index] = False
    count: Integer = 0
    for row in range(first, end):
        count = _add_once(row, first, is_touched, world.freed, count)
        # Earlier nodes have already been named, so only forward references matter.
        if not _has_forward_parent(row, parents):
            continue
        parent_count = _collect_parents(row, world, parents)
        sort_as_set(world.parents, parent_count, EMPTY_SET, world)
        for position in range(parent_count):
            count = _add_once(world.parents[position], first, is_touched, world.freed, count)
    return count


@compiled
def _has_forward_parent(row: Integer, parents: NodeParents) -> bool:
    """Return whether a node depends on a later node of the file.

    The file then refers to that node before its record.
    """
    for edge in range(parents.data_indptr[row], parents.data_indptr[row + 1]):
        if parents.data_indices[edge] > row:
            return True
    for edge in range(parents.control_indptr[row], parents.control_indptr[row + 1]):
        if parents.control_indices[edge] > row:
            return True
    return False


@compiled
def _add_once(
    row: Integer,
    first: Integer,
    is_touched: BoolArray,
    touched: Int64Array,
    count: Integer,
) -> Integer:
    """Append node `row` to the first `count` entries of `touched`, unless it is among them.

    `first`: row of the rank's first node. `is_touched`: bool by position in the rank, true for the
    nodes that were appended; updated. Returns the new count.
    """
    index = row - first
    if is_touched[index]:
        return count
    is_touched[index] = True
    touched[count] = row
    return count + 1
