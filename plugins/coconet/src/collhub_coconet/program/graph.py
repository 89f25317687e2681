"""The graph of operations: who reads whom, paths, and orders of groups taken as one."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from collhub_coconet.program.operations import Operation

Readers = Mapping[str, tuple[Operation, ...]]
"""Operations that read a value, by its name, in program order."""


def readers_of(operations: Iterable[Operation]) -> dict[str, tuple[Operation, ...]]:
    """Readers of every value; an operation that reads a value twice stands once."""
    found: dict[str, list[Operation]] = {}
    for operation in operations:
        for name in dict.fromkeys(operation.reads):
            found.setdefault(name, []).append(operation)
    return {name: tuple(readers) for name, readers in found.items()}


def descendants(operations: Sequence[Operation], sources: Iterable[str]) -> set[str]:
    """Names of the operations that a path from `sources` reaches, which are not among them."""
    reached = set(sources)
    found: set[str] = set()
    # In program order everything that is read stands before.
    for operation in operations:
        if not reached.isdisjoint(operation.reads):
            reached.add(operation.name)
            found.add(operation.name)
    return found


def ancestors(operations: Sequence[Operation], sinks: Iterable[str]) -> set[str]:
    """Names of the operations from which a path leads to `sinks`, and the sinks themselves."""
    found = set(sinks)
    for operation in reversed(operations):
        if operation.name in found:
            found.update(operation.reads)
    return found


def between(operations: Sequence[Operation], members: Iterable[str]) -> list[Operation]:
    """Operations outside a set on a path that leaves the set and enters it again."""
    inside = set(members)
    behind = descendants(operations, inside)
    before = ancestors(operations, inside)
    found = behind & before - inside
    return [one for one in operations if one.name in found]


def contracted_order(
    operations: Sequence[Operation], groups: Iterable[Sequence[str]]
) -> list[list[Operation]] | None:
    """Operations in an order in which every group stands together; None if there is none.

    Kahn's algorithm on the graph in which a group is one node; ties: the earliest in the program.
    """
    node_of = {operation.name: place for place, operation in enumerate(operations)}
    position = dict(node_of)
    for group in groups:
        first = min(position[name] for name in group)
        node_of.update(dict.fromkeys(group, first))
    content: dict[int, list[Operation]] = {}
    waits: dict[int, set[int]] = {}
    for operation in operations:
        node = node_of[operation.name]
        content.setdefault(node, []).append(operation)
        read = {node_of[name] for name in operation.reads if name in node_of}
        waits.setdefault(node, set()).update(read - {node})
    return _in_order(content, waits)


def _in_order(
    content: Mapping[int, list[Operation]], waits: Mapping[int, set[int]]
) -> list[list[Operation]] | None:
    """Nodes in an order in which each stands behind all it waits for; None for a cycle."""
    followers: dict[int, list[int]] = {node: [] for node in content}
    for node, read in waits.items():
        for source in read:
            followers[source].append(node)
    missing = {node: len(read) for node, read in waits.items()}
    ready = [node for node, count in missing.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(content[node])
        for follower in followers[node]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, follower)
    return order if len(order) == len(content) else None
