"""Every document of the corpus against the truths of its index, which two other expansions give."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from collhub_infragraph.bandwidths import Contraction
from collhub_infragraph.graph import CODE
from collhub_infragraph.network import build_hops
from collhub_infragraph.plugin import InfragraphReadOptions
from collhub_infragraph.read import parse_graph, read
from collhub_networks import NetworkFindings, document_of

from hub_core.model import InputError
from hub_core.plugin_api import Source

CORPUS = Path(__file__).resolve().parents[4].parent / "shared" / "corpus" / "infragraph"
TRUTHS = json.loads((CORPUS / "index.json").read_text())["truths"] if CORPUS.exists() else []
CASES = [pytest.param(truth, id=truth["file"]) for truth in TRUTHS]
UNLIMITED = InfragraphReadOptions(missing="unlimited")

pytestmark = pytest.mark.skipif(not TRUTHS, reason="shared/corpus/infragraph is not there")


def source(name: str) -> Source:
    plain = Source.of_bytes(name, (CORPUS / name).read_bytes())
    return Source(name, plain.parts, lambda finding: None)


def graph_of(name: str):
    return parse_graph(document_of(source(name), CODE), NetworkFindings())


@pytest.mark.parametrize("truth", CASES)
def test_expansion_has_the_vertices_and_edges_of_the_index(truth) -> None:
    graph = graph_of(truth["file"])
    assert (len(graph.names), len(graph.first_vertex)) == (truth["vertices"], truth["edges"])
    assert Counter(graph.kinds) == truth["types"]


@pytest.mark.parametrize("truth", CASES)
def test_links_have_the_bandwidths_and_edges_of_the_index(truth) -> None:
    graph = graph_of(truth["file"])
    edges: Counter[str] = Counter()
    found = {}
    for row, link in enumerate(graph.links):
        count = int(np.count_nonzero(graph.link == row))
        if not count:
            continue
        edges[link.name] += count
        rate, delay = link.bandwidth_bytes_per_s, link.latency_s
        found[link.name] = (
            None if rate is None else rate / 1e9,
            None if delay is None else pytest.approx(delay * 1e9),
        )
    stated = {entry["link"]: entry for entry in truth["links"]}
    assert edges == {name: entry["edges"] for name, entry in stated.items()}
    for name, values in found.items():
        assert (stated[name]["gbytes_per_s"], stated[name]["latency_ns"]) == values


@pytest.mark.parametrize("truth", CASES)
def test_network_has_the_nodes_and_links_of_the_index(truth) -> None:
    graph, reduced = graph_of(truth["file"]), truth["reduced"]
    is_npu = [kind == "xpu" for kind in graph.kinds]
    hops = Contraction(build_hops(graph), is_npu, keeps_parallel=False).run()
    rates = {hop.bandwidth_bytes_per_s for hop in hops}
    topology = read(source(truth["file"]), UNLIMITED)
    assert topology.num_npus == truth["npus"]
    assert topology.num_nodes == reduced["vertices"]
    assert topology.num_links == reduced["directed_links"]
    bare = sum(hop.bandwidth_bytes_per_s is None for hop in hops)
    assert bare == reduced["edges_without_bandwidth"]
    assert sorted(rate / 1e9 for rate in rates - {None}) == reduced["bandwidths_gbytes_per_s"]


def test_node_link_form_is_the_same_network() -> None:
    # Both carry the same ranks.
    one = read(source("two_hosts_annotated.json"), InfragraphReadOptions())
    other = read(source("two_hosts_networkx.txt"), InfragraphReadOptions())
    assert one.differences(other) == ["link_order"]


def test_ranks_of_the_annotations_number_the_npus() -> None:
    plain = read(source("two_hosts_composed.yaml"), InfragraphReadOptions())
    ranked = read(source("two_hosts_annotated.json"), InfragraphReadOptions())
    # The annotations give host 0 the ranks 2 and 3, host 1 the ranks 1 and 0.
    names = ("host.1.xpu.1", "host.1.xpu.0", "host.0.xpu.0", "host.0.xpu.1")
    assert ranked.node_names[:4] == names
    assert (plain.num_nodes, plain.num_links) == (ranked.num_nodes, ranked.num_links)


def test_old_grammar_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"refuse_old_grammar.txt: .*before InfraGraph 0.3"):
        read(source("refuse_old_grammar.txt"), UNLIMITED)


def test_missing_bandwidths_are_named() -> None:
    with pytest.raises(InputError) as caught:
        read(source("dgx_h100.yaml"), InfragraphReadOptions())
    found = caught.value.diagnostics[0]
    assert "44 edges have no bandwidth" in found.message
    assert "dgx_h100/xpu_fabric (32 edges, as " in found.message
    assert "bandwidth.dgx_h100/xpu_fabric=50GB/s" in found.cure
