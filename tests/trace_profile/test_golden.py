"""Random graphs with sparse ids and reused tags come back from a trace exactly (graphs of corpus/astra-sim/golden.json)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hub_core.chakra import NodeTable, NodeType, encoded_record
from hub_core.plugin_api import Source, SourcePart
from hub_core.trace_profile.formats import ChakraReadOptions, ChakraWriteOptions
from hub_core.trace_profile.lowering import chakra_nodes
from hub_core.trace_profile.read import chakra_algorithm
from hub_core.trace_profile.write import write

_TYPES = {"S": NodeType.COMM_SEND, "R": NodeType.COMM_RECV, "C": NodeType.COMP}


def node_table(ranks: list[list[Any]]) -> NodeTable:
    """Nodes `[id, type, peer, size, tag, duration_micros, data_deps, ctrl_deps]` of every rank, in file order."""
    nodes = [node for rank in ranks for node in rank]
    indptr = np.cumsum([0, *(len(rank) for rank in ranks)])
    place = [
        {node[0]: start + at for at, node in enumerate(rank)}
        for rank, start in zip(ranks, indptr, strict=False)
    ]
    owner = [place[number] for number, rank in enumerate(ranks) for _ in rank]
    return NodeTable(
        np.asarray([node[0] for node in nodes], np.uint64),
        np.asarray([_TYPES[node[1]] for node in nodes], np.uint8),
        np.asarray([-1 if node[2] is None else node[2] for node in nodes], np.int32),
        np.asarray([node[4] or 0 for node in nodes], np.int32),
        np.asarray([node[3] or 0 for node in nodes], np.int64),
        np.asarray([1000 * node[5] if node[5] else -1 for node in nodes], np.int64),
        np.arange(len(nodes)),
        indptr,
        *_lists([node[6] for node in nodes], owner),
        *_lists([node[7] for node in nodes], owner),
    )


def _lists(lists: list[list[int]], owner: list[dict[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    indices = [
        place[parent] for parents, place in zip(lists, owner, strict=True) for parent in parents
    ]
    return np.cumsum([0, *(len(parents) for parents in lists)]), np.asarray(indices, np.int64)


def traces(ranks: list[list[Any]]) -> list[bytes]:
    """The same nodes as plain traces, one a rank, without a profile."""
    start = encoded_record("GlobalMetadata", version="0.0.4")
    return [
        start + b"".join(encoded_record("Node", **_fields(rank, *node)) for node in nodes)
        for rank, nodes in enumerate(ranks)
    ]


def _fields(rank, number, kind, peer, size, tag, micros, data, control) -> dict[str, Any]:
    """What a Node states: a message has both its ends, its size and its tag."""
    ends = {"S": (rank, peer), "R": (peer, rank)}.get(kind)
    stated = {"comm_src": ends[0], "comm_dst": ends[1], "comm_tag": tag} if ends else {}
    attributes = [{"name": name, "int32_val": value} for name, value in stated.items()]
    if ends:
        attributes.append({"name": "comm_size", "int64_val": size})
    lists = {"data_deps": data, "ctrl_deps": control}
    kinds = {"id": number, "type": int(_TYPES[kind]), "duration_micros": micros or 0}
    return {**kinds, **lists, "attr": attributes}


def source(files: list[bytes]) -> Source:
    return Source(
        "x", tuple(SourcePart(f"x.{rank}.et", lambda f=f: f, rank) for rank, f in enumerate(files))
    )


def assert_same_nodes(found: NodeTable, expected: NodeTable) -> None:
    for column in dataclasses.fields(NodeTable):
        if column.name != "step":
            np.testing.assert_array_equal(
                getattr(found, column.name), getattr(expected, column.name), column.name
            )


@pytest.fixture(scope="module")
def graphs(corpus: Path) -> list[list[list[Any]]]:
    cases = json.loads((corpus / "astra-sim" / "golden.json").read_text())
    return [case["ranks"] for case in cases]


def test_a_foreign_graph_comes_back_with_ids_order_tags_and_sizes(
    graphs: list[list[list[Any]]],
) -> None:
    for graph in graphs:
        algorithm = chakra_algorithm(source(traces(graph)), ChakraReadOptions())
        assert_same_nodes(
            chakra_nodes(algorithm, algorithm.collective_bytes or 0), node_table(graph)
        )


def test_a_foreign_graph_survives_our_own_profile(graphs: list[list[list[Any]]]) -> None:
    for graph in graphs:
        algorithm = chakra_algorithm(source(traces(graph)), ChakraReadOptions())
        files = [
            artifact.content() for artifact in write(algorithm, ChakraWriteOptions()).artifacts
        ]
        again = chakra_algorithm(source(files), ChakraReadOptions())
        assert algorithm.differences(again) == []
        assert_same_nodes(chakra_nodes(again, again.collective_bytes or 0), node_table(graph))


def test_forward_references_and_duplicates_come_back() -> None:
    ranks = [
        [
            [7, "C", None, None, None, 2, [9], [3]],
            [3, "S", 0, 10, 5, 0, [], []],
            [9, "R", 0, 10, 5, 0, [3, 3], []],
        ]
    ]
    algorithm = chakra_algorithm(source(traces(ranks)), ChakraReadOptions())
    ranks[0][2][6] = [3]
    assert_same_nodes(chakra_nodes(algorithm, algorithm.collective_bytes or 0), node_table(ranks))
