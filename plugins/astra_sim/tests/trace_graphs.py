"""Graphs of trace nodes for tests, and tables of them.

A builder, and the algorithms that ASTRA-sim was measured with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hub_core.chakra import NodeTable, NodeType, encoded_record

SEND, RECV, COMP = NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMP


class GraphNode(NamedTuple):
    """One node; dependencies are ids of the same rank in file order."""

    identity: int
    type: NodeType
    peer: int = -1
    size: int = 0
    tag: int = 0
    duration_ns: int = 0
    data: tuple[int, ...] = ()
    control: tuple[int, ...] = ()


class Graph:
    """Nodes per rank in file order.

    The methods number the nodes of a rank 0, 1, 2, ... and return the id.
    """

    def __init__(self, num_ranks: int) -> None:
        self.ranks: list[list[GraphNode]] = [[] for _ in range(num_ranks)]

    def add(self, rank: int, node: GraphNode) -> int:
        self.ranks[rank].append(node)
        return node.identity

    def send(self, rank: int, peer: int, size: int, tag: int = 0, after: Iterable[int] = ()) -> int:
        return self.add(
            rank, GraphNode(len(self.ranks[rank]), SEND, peer, size, tag, data=tuple(after))
        )

    def recv(self, rank: int, peer: int, size: int, tag: int = 0, after: Iterable[int] = ()) -> int:
        return self.add(
            rank, GraphNode(len(self.ranks[rank]), RECV, peer, size, tag, data=tuple(after))
        )

    def comp(self, rank: int, microseconds: int = 0, after: Iterable[int] = ()) -> int:
        return self.add(
            rank,
            GraphNode(
                len(self.ranks[rank]), COMP, duration_ns=1000 * microseconds, data=tuple(after)
            ),
        )

    def complete(self) -> Graph:
        """Give every rank without nodes the COMP that ASTRA-sim needs."""
        for rank, nodes in enumerate(self.ranks):
            if not nodes:
                self.comp(rank)
        return self

    def table(self) -> NodeTable:
        ranks = self.complete().ranks
        starts = np.cumsum([0] + [len(nodes) for nodes in ranks])
        rows = [
            {node.identity: int(start) + place for place, node in enumerate(nodes)}
            for start, nodes in zip(starts, ranks, strict=False)
        ]
        flat = [node for nodes in ranks for node in nodes]
        columns = {
            name: np.asarray([getattr(node, name) for node in flat], dtype)
            for name, dtype in (
                ("type", np.uint8),
                ("peer", np.int32),
                ("tag", np.int32),
                ("size", np.int64),
                ("duration_ns", np.int64),
            )
        }
        edges = {}
        for name in ("data", "control"):
            lists = [
                [rows[rank][parent] for parent in getattr(node, name)]
                for rank, nodes in enumerate(ranks)
                for node in nodes
            ]
            edges[f"{name}_indptr"] = np.cumsum([0] + [len(parents) for parents in lists]).astype(
                np.int64
            )
            edges[f"{name}_indices"] = np.asarray(
                [parent for parents in lists for parent in parents], np.int64
            )
        return NodeTable(
            rank_indptr=starts.astype(np.int64),
            node_id=np.asarray([node.identity for node in flat], np.uint64),
            step=np.full(len(flat), -1, np.int64),
            **columns,
            **edges,
        )

    def files(self) -> list[bytes]:
        """Plain traces, one a rank: types, dependencies, durations, attributes of messages."""
        start = encoded_record("GlobalMetadata", version="0.0.4")
        return [
            start + b"".join(_record(rank, node) for node in nodes)
            for rank, nodes in enumerate(self.complete().ranks)
        ]


def _record(rank: int, node: GraphNode) -> bytes:
    attributes = [{"name": "is_cpu_op", "bool_val": False}]
    if node.type != COMP:
        source, target = (rank, node.peer) if node.type == SEND else (node.peer, rank)
        attributes.append({"name": "comm_size", "int64_val": node.size})
        attributes.append({"name": "comm_src", "int32_val": source})
        attributes.append({"name": "comm_dst", "int32_val": target})
        attributes.append({"name": "comm_tag", "int32_val": node.tag})
    return encoded_record(
        "Node",
        id=node.identity,
        type=int(node.type),
        duration_micros=node.duration_ns // 1000,
        data_deps=node.data,
        ctrl_deps=node.control,
        attr=attributes,
    )


def graph_of_golden(case: Mapping[str, Any]) -> Graph:
    """A graph of corpus/astra-sim/golden.json."""
    kinds = {"S": SEND, "R": RECV, "C": COMP}
    graph = Graph(case["npus"])
    for rank, rows in enumerate(case["ranks"]):
        for identity, kind, peer, size, tag, micros, data, control in rows:
            message = (-1, 0, 0) if kind == "C" else (peer, size, tag)
            graph.add(
                rank,
                GraphNode(
                    identity,
                    kinds[kind],
                    *message,
                    1000 * (micros or 0),
                    tuple(data),
                    tuple(control),
                ),
            )
    return graph


# The algorithms below are those of the measurements: message sizes in bytes, file order and
# dependencies included.


def ring_all_reduce(n: int, total: int) -> Graph:
    graph, size = Graph(n), total // n
    for r in range(n):
        previous: list[int] = []
        for k in range(2 * n - 2):
            graph.send(r, (r + 1) % n, size, k, previous)
            previous = [graph.recv(r, (r - 1) % n, size, k)]
            if k < n - 1:
                previous = [graph.comp(r, 0, previous)]
    return graph


def ring_all_gather(n: int, size: int) -> Graph:
    graph = Graph(n)
    for r in range(n):
        previous: list[int] = []
        for k in range(n - 1):
            graph.send(r, (r + 1) % n, size, k, previous)
            previous = [graph.recv(r, (r - 1) % n, size, k)]
    return graph


def halving_doubling(n: int, total: int) -> Graph:
    """All-reduce by recursive halving, then doubling."""
    distances = [n >> k for k in range(1, n.bit_length())]
    steps = [(d, total * d // n, True) for d in distances] + [
        (d, total * d // n, False) for d in reversed(distances)
    ]
    graph = Graph(n)
    for r in range(n):
        previous: list[int] = []
        for tag, (distance, size, is_reducing) in enumerate(steps):
            graph.send(r, r ^ distance, size, tag, previous)
            previous = [graph.recv(r, r ^ distance, size, tag, previous)]
            if is_reducing:
                previous = [graph.comp(r, 0, previous)]
    return graph


def direct_all_to_all(n: int, size: int) -> Graph:
    graph = Graph(n)
    for r in range(n):
        for k in range(1, n):
            graph.send(r, (r + k) % n, size)
        for k in range(1, n):
            graph.recv(r, (r - k) % n, size)
    return graph


def two_phase(n: int, size: int) -> Graph:
    graph = direct_all_to_all(n, size)
    for r in range(n):
        middle = graph.comp(r, 0, [node.identity for node in graph.ranks[r] if node.type is RECV])
        for k in range(1, n):
            graph.send(r, (r + k) % n, size, 1, [middle])
        for k in range(1, n):
            graph.recv(r, (r - k) % n, size, 1)
    return graph


def gather5() -> Graph:
    graph = Graph(5)
    for r in range(1, 5):
        graph.send(r, 0, r * 65536, r)
        graph.recv(0, r, r * 65536, r)
    return graph


def chain4() -> Graph:
    graph = Graph(4)
    for tag in range(4):
        graph.send(0, 1, 262144, tag)
        for r in range(1, 4):
            received = graph.recv(r, r - 1, 262144, tag)
            if r < 3:
                graph.send(r, r + 1, 262144, tag, [received])
    return graph


def broadcast8() -> Graph:
    """Binomial tree from rank 0, 1 MiB."""
    graph = Graph(8)
    received: dict[int, int] = {}
    for tag, distance in enumerate((1, 2, 4)):
        for r in range(distance):
            graph.send(r, r + distance, 1 << 20, tag, [received[r]] if r else [])
            received[r + distance] = graph.recv(r + distance, r, 1 << 20, tag)
    return graph


def skew4() -> Graph:
    graph = Graph(4)
    graph.send(0, 2, 300000, 1)
    graph.send(0, 1, 200000, 2, [graph.comp(0, 3)])
    graph.recv(0, 3, 100000, 5)
    graph.comp(1, 0, [graph.recv(1, 0, 200000, 2), graph.send(1, 2, 150000, 3)])
    first = graph.recv(2, 0, 300000, 1)
    graph.send(2, 3, 50000, 4, [first, graph.recv(2, 1, 150000, 3, [first])])
    graph.send(3, 0, 100000, 5, [graph.recv(3, 2, 50000, 4)])
    return graph


def equal_sends(identities: Sequence[int], are_freed_together: bool = False) -> Graph:
    """Equal sends from rank 0 to 1, tagged by their place: all roots, or all after one COMP."""
    graph = Graph(2)
    first = 1 + max(identities)
    if are_freed_together:
        graph.add(0, GraphNode(first, COMP))
    for place, identity in enumerate(identities):
        graph.add(
            0,
            GraphNode(
                identity, SEND, 1, 100000, place, data=(first,) if are_freed_together else ()
            ),
        )
        graph.recv(1, 0, 100000, place)
    return graph
