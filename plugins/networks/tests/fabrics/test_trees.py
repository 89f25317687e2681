"""Slurm's topology.conf and models of Topograph, written by hand after the rules of the formats."""

from __future__ import annotations

import pytest
import yaml
from collhub_fabrics.plugin import TopographOptions, TreeOptions
from collhub_fabrics.scheduler_files import read_slurm, read_topograph

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
    return read_slurm(Source.of_bytes("topology.conf", text.encode()), TreeOptions(**options))


def model(value, **options):
    findings = []
    plain = Source.of_bytes("model.yaml", yaml.safe_dump(value).encode())
    source = Source("model.yaml", plain.parts, findings.append)
    return read_topograph(source, TopographOptions(**options)), findings


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
    assert found.message == "the description has no bandwidths, and 2 levels of cables"
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
        ("SwitchName=a Node=n1\n", "'Node=n1' has no known key; keys are SwitchName"),
        ("Nodes=n1\n", "SwitchName or BlockName was expected"),
        ("SwitchName=a Nodes=n1 Nodes=n2\n", "Nodes is given twice"),
        ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2\n", "switches and blocks are both described"),
        ("BlockName=b Nodes=n1\nBlockSizes=2,3\n", "BlockSizes: 3 is not a multiple of 2"),
        ("BlockName=b Nodes=n1\nBlockSizes=x\n", "BlockSizes: 'x' is not a number of hosts"),
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


def test_leaves_that_only_blocks_describe_are_switches_below_the_spine() -> None:
    newer = {
        "switches": {"core": {"labels": {"zone": "z1"}, "switches": ["s1", "s2"]}},
        "blocks": [
            {
                "switch": "s1",
                "nodes": ["I[21-22]"],
                "labels": {"a/rack": "r1", "b/accelerator": "nvl1"},
            },
            {"switch": "s2", "nodes": ["I25", "I[27-28]"], "labels": {"b/accelerator": "nvl2"}},
        ],
    }
    one, _ = model(MODEL, bandwidth="50GB/s", nvlink_bandwidth=900e9)
    other, _ = model(newer, bandwidth="50GB/s", nvlink_bandwidth=900e9)
    assert cables(one) == cables(other)
    assert sorted(other.groups) == ["a/rack r1", "b/accelerator nvl1", "b/accelerator nvl2"]


def test_leaves_without_blocks_beside_leaves_with_blocks_are_empty() -> None:
    newer = {
        "switches": {"core": {"switches": ["r1", "r2", "r3"]}},
        "blocks": [{"switch": "r1", "nodes": ["a"]}, {"switch": "r3", "nodes": ["b"]}],
    }
    topology, findings = model(newer, bandwidth="50GB/s")
    assert topology.node_names == ("a", "b", "core", "r1", "r3", "r2")
    assert cables(topology)[("r2", "core")] == 50
    assert [found.code for found in findings] == ["empty-leaves"]
    assert findings[0].message.endswith("no block names them: r2")
    newer["blocks"][1]["switch"] = "r4"
    with pytest.raises(InputError, match="'r4' is not described"):
        model(newer, bandwidth="50GB/s")


def test_missing_switch_above_the_leaves_is_a_mistake() -> None:
    newer = {
        "switches": {"core": {"switches": ["pod1", "pod2"]}, "pod1": {"switches": ["r1", "r2"]}},
        "blocks": [{"switch": "r1", "nodes": ["a"]}, {"switch": "r2", "nodes": ["b"]}],
    }
    with pytest.raises(InputError, match="switch core leads to 'pod2', which is not described"):
        model(newer, bandwidth="50GB/s")


def test_hosts_of_a_block_without_a_switch_are_left_out() -> None:
    blocks = [*MODEL["blocks"], {"nodes": ["c[1-2]"], "annotations": {"x/domain": "nvl9"}}]
    topology, findings = model(MODEL | {"blocks": blocks}, bandwidth="50GB/s")
    assert topology.num_npus == 5
    assert sorted(topology.groups) == ["x/domain nvl1", "x/domain nvl2"]
    assert [found.code for found in findings] == ["hosts-without-switch", "nvlink-domains"]
    assert "2 hosts of blocks without a switch are left out: c1, c2" in findings[0].message


def test_a_host_in_the_blocks_of_two_switches_has_a_cable_to_each() -> None:
    blocks = [{"switch": name, "nodes": ["a"]} for name in ("s1", "s2")]
    found = cables(model(MODEL | {"blocks": blocks}, bandwidth="50GB/s")[0])
    assert found[("a", "s1")] == found[("a", "s2")] == 50


def test_hosts_that_switches_list_themselves_may_name_their_nvlink_domain() -> None:
    older = {
        "switches": {
            "core": {"switches": ["s1", "s2"]},
            "s1": {"nodes": ["I21", "I22"]},
            "s2": {"nodes": ["I25", "I27", "I28"]},
        },
        "nodes": {"I21": {"attributes": {"nvlink": "nvl1"}}, "I22": {"nvlink": "nvl1"}, "I25": {}},
        "capacity_blocks": {"c1": {"nodes": ["I[21-22]"]}, "c2": {"nodes": ["I25", "I27"]}},
    }
    found = cables(model(older, bandwidth="50GB/s", nvlink_bandwidth=900e9)[0])
    assert found[("I21", "s1")] == found[("I28", "s2")] == found[("s1", "core")] == 50
    assert found[("I22", "NVLink nvl1")] == 900
    assert ("I25", "NVLink nvl1") not in found
    older["capacity_blocks"]["c3"] = {"nodes": ["I99"]}
    with pytest.raises(InputError, match="no switch has this block"):
        model(older, bandwidth="50GB/s")
    del older["capacity_blocks"]["c3"]
    older["nodes"]["I99"] = {"nvlink": "nvl1"}
    with pytest.raises(InputError, match="host 'I99' is at no switch"):
        model(older, bandwidth="50GB/s")


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


def test_as_many_nics_as_gpus_are_a_cable_a_gpu_on_every_rail() -> None:
    options = {"bandwidth": "50GB/s,100GB/s", "gpus_per_node": 4, "node_bandwidth": 450e9}
    found = cables(tree(TREE, **options, nics=4, rails=2))
    # Two rails, each a tree of two leaves and a spine: NIC k is on rail k modulo 2.
    for host, leaf in (("node01", "leaf1"), ("node04", "leaf2")):
        for gpu in range(4):
            assert found[f"{host}/{gpu}", f"rail {gpu % 2} {leaf}"] == 50
            assert found[f"{host}/{gpu}", host] == 450
    assert found["rail 1 leaf2", "rail 1 spine"] == 100
    assert len(found) == 2 * (16 + 16 + 2 * 2)


def test_nics_that_gpus_share_are_nodes_between_them_and_the_leaf() -> None:
    options = {"bandwidth": "50GB/s", "gpus_per_node": 4, "node_bandwidth": 450e9}
    found = cables(tree(TREE, **options, nics=2))
    assert found["node02/1", "node02 nic 0"] == 50
    assert found["node02/2", "node02 nic 1"] == 50
    assert found["node02 nic 1", "leaf1"] == 50
    assert ("node02", "leaf1") not in found


def test_a_host_of_one_gpu_may_have_several_nics() -> None:
    found = cables(tree(TREE, bandwidth="50GB/s", nics=2, rails=2))
    assert found["node03", "node03 nic 1"] == 50
    assert found["node03 nic 1", "rail 1 leaf2"] == 50


def test_nics_take_all_leaves_that_name_the_host() -> None:
    text = "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[1-2]\nSwitchName=c Switches=a,b\n"
    found = cables(tree(text, bandwidth="50GB/s", gpus_per_node=2, node_bandwidth=1e9, nics=2))
    assert ("n1/0", "a") in found
    assert ("n1/1", "b") in found
    assert ("n1/0", "b") not in found


def test_rails_divide_the_nics() -> None:
    with pytest.raises(InputError, match="8 NICs of a host cannot be shared by 3 rails"):
        tree(TREE, bandwidth="50GB/s", gpus_per_node=8, node_bandwidth=1e9, nics=8, rails=3)


def test_hosts_of_several_gpus_with_one_cable_are_noted() -> None:
    findings = []
    plain = Source.of_bytes("topology.conf", TREE.encode())
    source = Source("topology.conf", plain.parts, findings.append)
    options = TreeOptions(bandwidth="50GB/s", gpus_per_node=8, node_bandwidth=1e9)
    read_slurm(source, options)
    assert [one.code for one in findings] == ["one-cable"]
    assert "nics=8" in findings[0].cure
