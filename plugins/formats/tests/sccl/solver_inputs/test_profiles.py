"""Profiles of nodes and sketches, as TACCL's solver takes them."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from collhub_sccl.plugin import (
    TacclReadOptions,
    TacclSketchOptions,
    TacclTopologyOptions,
)
from collhub_sccl.solver_files import read, write_sketch, write_topology
from hypothesis import given
from hypothesis import strategies as st

from hub_core import InputError, Topology, UsageError, parse_topology
from hub_core.network import Links
from hub_core.plugin_api import Source

# Values of the profile for 1 MB of an NDv2 (microsoft/taccl 426bd1e, examples/topo).
NDV2 = {
    "name": "NDv2_1MB",
    "gpus_per_node": 8,
    "nics_per_node": 1,
    "alpha": 0.3,
    "node_betas_list": [23, 46],
    "node_invbws_list": [23, 46],
    "remote_invbw": 107,
    "remote_alpha": 2.6,
    "remote_beta": 105,
}


def _read(profile: dict[str, object], **options: int) -> Topology:
    source = Source.of_bytes("a.json", json.dumps(profile).encode())
    return read(source, TacclReadOptions(**options))


def _written(topology: Topology, **options: int) -> dict[str, object]:
    (artifact,) = write_topology(topology, TacclTopologyOptions(**options)).artifacts
    found: dict[str, object] = json.loads(artifact.content())
    return found


def test_two_times_of_eight_gpus_are_an_ndv2() -> None:
    node = _read(NDV2)
    mesh = parse_topology("dgx1v")
    assert (node.num_npus, node.num_links) == (8, 32)
    # Its pairs are those of a DGX-1V, of which half have two NVLinks.
    pairs = set(zip(node.source.tolist(), node.destination.tolist(), strict=True))
    assert pairs == set(zip(mesh.source.tolist(), mesh.destination.tolist(), strict=True))
    fast, slow = round((1 << 20) / 23e-6), round((1 << 20) / 46e-6)
    rates, counts = np.unique(node.bandwidth_bytes_per_s, return_counts=True)
    assert (rates.tolist(), counts.tolist()) == ([slow, fast], [16, 16])


def test_gpus_of_nodes_share_the_cards() -> None:
    joined = _read(NDV2, nodes=2)
    between = joined.source // 8 != joined.destination // 8
    assert between.sum() == 16
    rate = (1 << 20) / 105e-6 / 8
    assert joined.bandwidth_bytes_per_s[between] == pytest.approx(np.full(16, rate), rel=1e-6)
    assert joined.latency_s[between] == pytest.approx(np.full(16, 2.6e-6))


def _heard(profile: dict[str, object], **options: object) -> tuple[Topology, list[str]]:
    heard: list[str] = []
    plain = Source.of_bytes("a.json", json.dumps(profile).encode())
    source = Source("a.json", plain.parts, lambda finding: heard.append(finding.message))
    return read(source, TacclReadOptions(**options)), heard


@pytest.mark.parametrize(
    ("name", "alpha", "betas", "assumed"),
    [
        ("NDv2_1MB", 0.3, [23, 46], "times of a chunk of 1048576 bytes and 1000 ns as unit"),
        ("NDv2_32KB", 3, [7.18, 14.38], "times of a chunk of 32768 bytes and 100 ns as unit"),
        ("NDv2_1KB", 30, [2.24, 4.5], "times of a chunk of 1024 bytes and 10 ns as unit"),
        ("mine", 0.3, [23, 46], "times of a chunk of 1048576 bytes and 1000 ns as unit"),
    ],
)
def test_units_that_the_profile_lacks_are_assumed_with_a_warning(name, alpha, betas, assumed):
    """TACCL's profiles of 1 KB, 32 KB and 1 MB describe the same links in different units."""
    profile = NDV2 | {"name": name, "alpha": alpha, "node_betas_list": betas}
    node, heard = _heard(profile)
    assert node.latency_s[0] == pytest.approx(0.3e-6)
    assert node.bandwidth_bytes_per_s.max() == pytest.approx((1 << 20) / 23e-6, rel=0.03)
    assert heard == [f"the file does not state its units; assumed: {assumed}"]


def test_given_units_are_not_warned_of() -> None:
    node, heard = _heard(NDV2, chunk=1 << 10, unit=1e-8)
    assert node.latency_s[0] == pytest.approx(3e-9)
    assert heard == []


def test_sketch_in_place_of_a_profile_is_refused_with_the_file_to_read() -> None:
    sketch: dict[str, object] = {"nnodes": 1, "intranode_sketch": {"strategy": "none"}}
    with pytest.raises(
        InputError, match=r"a sketch tells .*; read the profile of the node .*topo-"
    ):
        _read(sketch)


@st.composite
def _direct_networks(draw: st.DrawFn) -> Topology:
    npus = draw(st.integers(2, 6))
    pairs = [(one, other) for one, other in product(range(npus), repeat=2) if one != other]
    counts = draw(st.lists(st.integers(0, 3), min_size=len(pairs), max_size=len(pairs)))
    rates = st.integers(10**6, 10**12)
    ends, values = [], []
    # Around all of them, so that everybody is reached.
    for (one, other), count in zip(pairs, counts, strict=True):
        links = max(count, int(other == (one + 1) % npus))
        ends += [(one, other)] * links
        values += [draw(rates)] * links
    source, destination = np.asarray(ends, np.int64).T
    links = Links(source, destination, np.asarray(values, float), np.full(len(ends), 7e-7))
    return links.topology("drawn", npus, npus)


@given(_direct_networks())
def test_networks_without_switches_come_back(topology: Topology) -> None:
    back = _read(_written(topology))
    assert "links" not in topology.differences(back)


def test_nodes_come_back_with_their_number() -> None:
    profile = _written(parse_topology("dgx-a100:2"), nodes=2)
    # 300 GB/s within, and a card of 25 GB/s for each GPU: 1 MiB in units of 10 ns.
    assert profile["node_betas_list"] == pytest.approx([(1 << 20) / 300e9 * 1e8])
    assert profile["remote_beta"] == pytest.approx((1 << 20) / 25e9 * 1e8)
    assert (profile["gpus_per_node"], profile["nics_per_node"]) == (8, 8)
    back = _read(profile, nodes=2)
    assert back.num_npus == 16


def test_gpus_behind_one_card_say_so() -> None:
    # Leaves of four, with two uplinks each.
    profile = _written(parse_topology("leaf-spine:8,4,2"), nodes=8)
    assert profile["nics_per_node"] == 2


def test_a_sketch_shares_the_ports_of_a_switch() -> None:
    topology = parse_topology("dgx-h100:2")
    (artifact,) = write_sketch(topology, TacclSketchOptions(nodes=2)).artifacts
    sketch = json.loads(artifact.content())
    assert sketch["nnodes"] == 2
    assert sketch["intranode_sketch"]["switches"] == [list(range(8))]
    assert sketch["internode_sketch"]["internode_conn"] == {str(gpu): [gpu] for gpu in range(8)}
    assert sketch["symmetry_offsets"] == [[8, 16]]


@pytest.mark.parametrize(
    ("text", "nodes", "expected"),
    [
        ("ring:6", 4, "6 NPUs are no 4 nodes"),
        ("mesh:3x1", 3, "joined alike"),
        ("dgx1v+dgx1-pcie", 1, "it has 2 planes"),
    ],
)
def test_what_taccl_does_not_have_is_refused(text: str, nodes: int, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        write_topology(parse_topology(text), TacclTopologyOptions(nodes=nodes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gpus_per_node": 10**9}, r"\$.gpus_per_node: 1000000000 is not in 1..1024"),
        ({"alpha": None}, r"'alpha' is missing"),
        ({"alpha": -1}, r"\$.alpha: -1.0 is no latency"),
        ({"node_betas_list": [0]}, r"\$.node_betas_list\[0\]: 0.0 is no time of a chunk"),
        ({"node_betas_list": [1e99]}, r"\$.node_betas_list\[0\]: a chunk of .* is out of range"),
        ({"node_betas_list": [1e300]}, r"\$.node_betas_list\[0\]: expected a number below 1e100"),
        ({"node_betas_list": [1, 2, 3]}, r"3 times for a node of 8 GPUs"),
        ({"links": [[0]], "betas": [[0]]}, r"\$.links: expected 8 rows of 8 values"),
    ],
)
def test_bad_profiles_name_the_place(changes: dict[str, object], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        _read({**NDV2, **changes})
