"""What consumers outside the core may use: nodes and files agree with one another."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import hub_core
from hub_core.chakra import decoded_records
from hub_core.testing.samples import ring_all_reduce
from hub_core.trace_profile.formats import ChakraWriteOptions

RING = ring_all_reduce(3)
FILES = [
    artifact.content() for artifact in hub_core.chakra_traces(RING, ChakraWriteOptions()).artifacts
]


def messages_of(content: bytes) -> list[Any]:
    return list(decoded_records(content, "x.0.et"))


def test_the_nodes_are_those_of_the_files() -> None:
    nodes = hub_core.chakra_nodes(RING, hub_core.chakra_bytes(RING))
    written = [node for content in FILES for node in messages_of(content)[1:]]
    assert nodes.node_id.tolist() == [node.id for node in written]
    assert nodes.type.tolist() == [node.type for node in written]
    sizes = [{item.name: item.int64_val for item in node.attr} for node in written]
    assert nodes.size.tolist() == [found.get("comm_size", 0) for found in sizes]


def test_traces_and_nodes_need_no_protobuf() -> None:
    code = (
        "import sys, hub_core; hub_core.chakra_traces, hub_core.NodeTable, hub_core.TraceOptions;"
        "sys.exit('google.protobuf' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
