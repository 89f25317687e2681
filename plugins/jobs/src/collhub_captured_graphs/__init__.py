"""Captured graphs of PyTorch programs: documents, `torch.export` archives, operators, capture."""

from __future__ import annotations

from collhub_captured_graphs.export_archive import read_export
from collhub_captured_graphs.graph import (
    CapturedGraph,
    GraphInput,
    GraphNode,
    GraphOutput,
    Tensor,
    graph_from_json,
    graph_to_json,
)
from collhub_captured_graphs.meshes import derive_axes
from collhub_captured_graphs.operators import (
    Layouts,
    describe_node,
    find_operator,
    is_collective,
)
from collhub_captured_graphs.result_shapes import find_contradiction

__all__ = [
    "CapturedGraph",
    "GraphInput",
    "GraphNode",
    "GraphOutput",
    "Layouts",
    "Tensor",
    "derive_axes",
    "describe_node",
    "find_contradiction",
    "find_operator",
    "graph_from_json",
    "graph_to_json",
    "is_collective",
    "read_export",
]
