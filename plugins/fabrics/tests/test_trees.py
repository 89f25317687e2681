"""Slurm's topology.conf and models of Topograph, written by hand after the rules of the formats."""

from __future__ import annotations

import pytest
import yaml
from collhub_fabrics import slurm, topograph
from collhub_fabrics.options import TopographOptions, TreeOptions

from hub_core.model import InputError
from hub_core.plugin_api import Source

TREE = """\
# two racks
SwitchName=leaf1 Nodes=node[01-02]
switchname=leaf2 nodes=node[03-04] LinkSpeed=7
SwitchName=spine Switches=leaf[1-2]
"""
BLOCKS = """\
BlockName=b1 Nodes=n[1-2]
BlockName=b2 Nodes=n[3-4]
BlockName=b3 \\
  Nodes=n[5-6]
BlockSizes=2,4
"""
MODEL = {
    "switches": {"core": {"switches": ["s1", "s2"]}, "s1": {}, "s2": {}},
    "blocks": [
        {"switch": "s1", "nodes": ["I[21-22]"], "annotations": {"x/domain": "nvl1"}},
        {"switch": "s2", "nodes": ["I25", "I[27-28]"], "annotations": {"x/domain": "nvl2"}},
    ],
}


def tree(text, **options):
    return slurm.read(Source.of_bytes("topology.conf", text.encode()), TreeOptions(**options))


def model(value, **options):
    findings = []
    plain = Source.of_bytes("model.yaml", yaml.safe_dump(value).encode())
    source = Source("model.yaml", plain.parts, findings.append)
    return topograph.read(source, TopographOptions(**options)), findings


def cables(topology):
    rows = zip(
        topology.source.tolist(),
        topology.destination.tolist(),
        topology.bandwidth_bytes_per_s.tolist(),
        strict=True,
    )
    return {
        (topology.node_name(one), topology.node_name(other)): rate / 1e9
        for one, other, rate in rows
    }


def test_tree_has_a_bandwidth_a_level() -> None:
    found = cables(tree(TREE, bandwidth="50GB/s,100GB/s"))
    assert found[("node01", "leaf1")] == found[("leaf1", "node01")] == 50
    assert found[("node04", "leaf2")] == 50
    assert found[("leaf1", "spine")] == found[("leaf2", "spine")] == 100
    assert len(found) == 2 * 6


def test_one_bandwidth_is_for_all_levels() -> None:
    assert set(cables(tree(TREE, bandwidth="50GB/s")).values()) == {50}


def test_hosts_are_npus_in_the_order_of_the_file() -> None:
    names = ("node01", "node02", "node03", "node04", "leaf1", "leaf2", "spine")
    assert tree(TREE, bandwidth="50GB/s").node_names == names


def test_gpus_of_hosts_are_npus_behind_them() -> None:
    topology = tree(TREE, bandwidth="50GB/s", gpus_per_node=8, node_bandwidth=450e9)
    assert (topology.num_npus, topology.num_nodes) == (32, 32 + 3 + 4)
    found = cables(topology)
    assert found[("node01/7", "node01")] == 450
    assert found[("node01", "leaf1")] == 50
    assert topology.groups["host node02"] == tuple(range(8, 16))


def test_missing_bandwidths_say_how_many_levels_there_are() -> None:
    with pytest.raises(InputError) as caught:
        tree(TREE)
    found = caught.value.diagnostics[0]
    assert found.message == "the description states no bandwidths, and has 2 levels of cables"
    assert found.cure.endswith("FILE?bandwidth=50GB/s,50GB/s")


def test_another_number_of_bandwidths_is_refused() -> None:
    with pytest.raises(InputError, match="option bandwidth has 3 values for 2 levels of cables"):
        tree(TREE, bandwidth="1GB/s,2GB/s,3GB/s")


def test_blocks_are_groups_and_switches_joined_by_their_sizes() -> None:
    topology = tree(BLOCKS, bandwidth="900GB/s,100GB/s,50GB/s")
    assert topology.groups == {"b1": (0, 1), "b2": (2, 3), "b3": (4, 5)}
    found = cables(topology)
    assert found[("n1", "b1")] == 900
    # Two blocks of 2 make one of 4; the third is alone.
    assert found[("b2", "b1..b2")] == found[("b3", "b3..b3")] == 100
    assert found[("b3..b3", "core")] == 50


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "SwitchName=a Switches=b\n",
            "topology.conf:1: switch a leads to 'b', which is not described",
        ),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "is above itself"),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", "topology.conf:2: a is described twice"),
        ("SwitchName=a\n", "a has neither Switches nor Nodes"),
        ("SwitchName=a Nodes=n[1-\n", "is no list of hosts; write for example node[01-04,07]"),
        ("SwitchName=a Node=n1\n", "'Node=n1' is no pair of a known key; keys are SwitchName"),
        ("Nodes=n1\n", "SwitchName or BlockName was expected"),
        ("SwitchName=a Nodes=n1 Nodes=n2\n", "Nodes is stated twice"),
        ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2\n", "switches and blocks are both described"),
        ("BlockName=b Nodes=n1\nBlockSizes=2,3\n", "BlockSizes: 3 is no multiple of 2"),
        ("BlockName=b Nodes=n1\nBlockSizes=x\n", "BlockSizes: 'x' is no number of hosts"),
        ("SwitchName=a Nodes=a\n", "a is a host and a switch; rename one of them"),
        ("# nothing\n", "no switch and no block is described"),
    ],
)
def test_bad_topology_conf_is_refused_with_line_and_cure(text, said) -> None:
    with pytest.raises(InputError) as caught:
        tree(text, bandwidth="50GB/s")
    found = caught.value.diagnostics[0]
    assert said in f"{found.location}: {found.message}; {found.cure}"


def test_model_is_a_tree_with_domains_as_groups() -> None:
    topology, findings = model(MODEL, bandwidth="50GB/s,100GB/s")
    assert topology.node_names == ("I21", "I22", "I25", "I27", "I28", "core", "s1", "s2")
    assert topology.groups == {"x/domain nvl1": (0, 1), "x/domain nvl2": (2, 3, 4)}
    assert cables(topology)[("s2", "core")] == 100
    assert [found.code for found in findings] == ["nvlink-domains"]


def test_nvlink_bandwidth_joins_the_hosts_of_a_domain() -> None:
    topology, findings = model(MODEL, bandwidth="50GB/s", nvlink_bandwidth=900e9)
    found = cables(topology)
    assert found[("I21", "NVLink nvl1")] == found[("I28", "NVLink nvl2")] == 900
    assert findings == []


def test_older_form_of_lists_is_the_same_network() -> None:
    older = {
        "switches": [
            {"name": "core", "switches": ["s1", "s2"]},
            {"name": "s1", "capacity_blocks": ["c1"]},
            {"name": "s2", "capacity_blocks": ["c2"]},
        ],
        "capacity_blocks": [
            {"name": "c1", "nvlink": "nvl1", "nodes": ["I21", "I22"]},
            {"name": "c2", "nvlink": "nvl2", "nodes": ["I25", "I27", "I28"]},
        ],
    }
    one, _ = model(MODEL, bandwidth="50GB/s", nvlink_bandwidth=900e9)
    other, _ = model(older, bandwidth="50GB/s", nvlink_bandwidth=900e9)
    assert one.differences(other) == ["groups"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"blocks": [{"switch": "s9", "nodes": ["a"]}]},
            "$.blocks[0].switch: 's9' is not described; switches are: core",
        ),
        (
            {"blocks": [{"switch": "s1", "nodes": "a"}]},
            "$.blocks[0].nodes: expected a list, got text 'a'",
        ),
        (
            {"blocks": [{"switch": "s1", "nodes": ["n[3-1]"]}]},
            "$.blocks[0].nodes[0]: [3-1] is no range",
        ),
        ({"blocks": [{"switch": "s1"}]}, "$.blocks[0]: 'nodes' is missing"),
        (
            {"switches": {"core": {"switches": ["s7"]}, "s1": {}, "s2": {}}},
            "switch core leads to 's7', which is not described",
        ),
        ({"blocks": []}, "no host is described"),
    ],
)
def test_bad_models_are_refused_with_the_path(change, said) -> None:
    with pytest.raises(InputError) as caught:
        model({**MODEL, **change}, bandwidth="50GB/s")
    found = caught.value.diagnostics[0]
    assert said in f"{found.message}; {found.cure}"
