"""Node-link documents of networkx: ranks and limits."""

from __future__ import annotations

import pytest
from collhub_infragraph import read as reading
from documents import network

from hub_core.model import InputError


def _node_link(ranks, edges_key="edges"):
    """NPUs with these ranks, and a switch; one link of 50 GB/s per NPU."""
    nodes = [{"id": f"x{row}", "type": "xpu", "rank": rank} for row, rank in enumerate(ranks)]
    links = [
        {"source": f"x{row}", "target": "s", "bandwidth_gbps": 400} for row in range(len(ranks))
    ]
    return {
        "directed": False,
        "nodes": [*nodes, {"id": "s", "type": "switch"}],
        edges_key: links,
    }


@pytest.mark.parametrize("rank", ["9" * 5000, "\N{ARABIC-INDIC DIGIT ONE}"])
def test_ranks_that_are_no_short_ascii_numbers_are_warned_of(rank: str) -> None:
    topology, findings = network(_node_link(["0", rank]), missing="unlimited")
    assert topology.num_npus == 2
    assert "ranks" in [finding.code for finding in findings]


@pytest.mark.parametrize("key", ["edges", "links"])
def test_too_many_edges_are_counted_at_their_list(key: str, monkeypatch) -> None:
    monkeypatch.setattr(reading, "MAX_LINKS", 1)
    with pytest.raises(InputError, match=rf"\$\.{key}: 2 edges are more than 1"):
        network(_node_link(["0", "1"], key), missing="unlimited")
