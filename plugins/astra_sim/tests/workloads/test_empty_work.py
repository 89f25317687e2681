"""Computations of no bytes, which a roofline gives no time."""

from __future__ import annotations

import json

import pytest
from collhub_astra_sim.workloads.hazards import report_empty_work
from collhub_astra_sim.workloads.system import System

from hub_core.model import NodeColumns, NodeKind, Workload


@pytest.mark.parametrize(("roofline", "count"), [(0, 0), (1, 1)])
def test_computations_of_no_bytes_are_said_with_a_roofline(roofline: int, count: int) -> None:
    stated = {"roofline-enabled": roofline, "peak-perf": 1, "local-mem-bw": 1}
    policy = {"scheduling-policy": "FIFO", "preferred-dataset-splits": 1}
    system = System.of_json(json.dumps({**stated, **policy}))
    kind = [int(NodeKind.COMPUTE)] * 3
    columns = {"rank": [0, 0, 0], "kind": kind, "bytes": [8, 0, 0], "operations": [5, 5, 5]}
    found = report_empty_work(Workload(NodeColumns.from_columns(1, columns)), system)
    assert len(found) == count
    assert all("node 1 has no bytes" in one.message for one in found)
    assert all("(2 nodes)" in one.message for one in found)
