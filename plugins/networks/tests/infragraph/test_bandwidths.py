from __future__ import annotations

import pytest
from documents import RATE, document, edge, network

from hub_core.model import InputError, Severity, UsageError

BARE = [{"name": "l"}]
PARTS = [
    {"name": "xpu", "count": 2, "choice": "xpu"},
    {"name": "nic", "count": 2, "choice": "nic"},
    {"name": "sw", "count": 1, "choice": "switch"},
    {"name": "sw2", "count": 1, "choice": "switch"},
]
SLOW = {"bandwidth": {"choice": "gigabits_per_second", "gigabits_per_second": 200}}


def behind_cards(first=RATE, second=SLOW):
    """NPUs behind cards at two switches."""
    links = [{"name": "pcie", "physical": first}, {"name": "eth", "physical": second}]
    edges = [
        edge("xpu", "nic", "one2one", "pcie"),
        edge("nic", "sw", link="eth"),
        edge("xpu", "sw2", link="pcie"),
    ]
    return document(edges, links, PARTS)


def test_series_has_the_least_bandwidth_and_the_sum_of_latencies() -> None:
    first = RATE | {"latency": {"choice": "us", "us": 0.3}}
    second = SLOW | {"latency": {"choice": "ns", "ns": 600}}
    topology, _ = network(behind_cards(first, second))
    # Two switches of degree 2: the first vanishes into a link between the NPUs, the other may not.
    assert topology.num_nodes == 3
    assert sorted(set(topology.bandwidth_bytes_per_s.tolist())) == [25e9, 50e9]
    direct = topology.destination < 2
    assert set(topology.latency_ns[(topology.source < 2) & direct].tolist()) == {1800.0}


def test_known_link_in_series_settles_an_unknown_one() -> None:
    links = [{"name": "ic"}, {"name": "eth", "physical": SLOW}]
    parts = [*PARTS[:2], {"name": "sw", "count": 1, "choice": "switch"}]
    edges = [edge("xpu", "nic", "one2one", "ic"), edge("nic", "sw", link="eth")]
    topology, _ = network(document(edges, links, parts))
    assert topology.num_links == 2
    assert set(topology.bandwidth_bytes_per_s.tolist()) == {25e9}


def test_missing_bandwidth_is_refused_with_names_and_cure() -> None:
    with pytest.raises(InputError) as caught:
        network(document([edge("xpu", "sw")], BARE))
    found = caught.value.diagnostics[0]
    assert found.message == ("4 edges have no bandwidth: host/l (4 edges, as h.0.xpu.0 - h.0.sw.0)")
    assert found.cure.startswith("give them as FILE?bandwidth.host/l=50GB/s")


def test_unit_without_a_number_is_a_missing_bandwidth() -> None:
    links = [{"name": "l", "physical": {"bandwidth": {"choice": "gigabytes_per_second"}}}]
    with pytest.raises(InputError, match="4 edges have no bandwidth"):
        network(document([edge("xpu", "sw")], links))


def test_gigatransfers_are_missing_and_named() -> None:
    rate = {"choice": "gigatransfers_per_second", "gigatransfers_per_second": 32}
    links = [{"name": "l", "physical": {"bandwidth": rate}}]
    with pytest.raises(InputError, match="gigatransfers per second are of one lane"):
        network(document([edge("xpu", "sw")], links))


@pytest.mark.parametrize("name", ["l", "host/l", "*"])
def test_option_supplies_a_bandwidth_and_says_so(name) -> None:
    value = document([edge("xpu", "sw")], BARE)
    topology, findings = network(value, bandwidth=f"{name}=450GB/s\n")
    assert set(topology.bandwidth_bytes_per_s.tolist()) == {450e9}
    assert any("450 GB/s by option" in found.message for found in findings)
    assert {found.severity for found in findings} == {Severity.NOTE}


def test_device_and_link_go_before_the_link() -> None:
    value = document([edge("xpu", "sw")], BARE)
    topology, _ = network(value, bandwidth="l=1GB/s\nhost/l=2GB/s\n")
    assert set(topology.bandwidth_bytes_per_s.tolist()) == {2e9}


def test_star_leaves_what_is_stated() -> None:
    topology, _ = network(document([edge("xpu", "sw")]), bandwidth="*=1GB/s\n")
    assert set(topology.bandwidth_bytes_per_s.tolist()) == {50e9}


def test_replaced_bandwidth_is_said() -> None:
    _, findings = network(document([edge("xpu", "sw")]), bandwidth="l=1GB/s\n")
    assert "host/l: 1 GB/s by option instead of 50 GB/s" in {found.message for found in findings}


def test_every_link_of_the_option_is_noted_under_one_rule() -> None:
    links = [
        {"name": name, "physical": {"bandwidth": {"choice": "gigabytes_per_second"}}}
        for name in ("l", "m")
    ]
    value = document([edge("xpu", "sw"), edge("xpu", "sw", link="m")], links)
    _, findings = network(value, bandwidth="l=1GB/s\nm=2GB/s\n")
    assert {(found.code, found.message) for found in findings} >= {
        ("supplied-bandwidth", "host/l: 1 GB/s by option"),
        ("supplied-bandwidth", "host/m: 2 GB/s by option"),
    }


def test_option_for_a_link_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"option bandwidth\.nv: net.yaml has no link of this name"
    ):
        network(document([edge("xpu", "sw")]), bandwidth="nv=1GB/s\n")


def test_unlimited_is_for_pictures() -> None:
    topology, findings = network(document([edge("xpu", "sw")], BARE), missing="unlimited")
    assert topology.num_links == 8
    assert "4 links have no bandwidth: unlimited by option" in {one.message for one in findings}


def test_latency_that_is_missing_is_zero_with_a_note() -> None:
    topology, findings = network(document([edge("xpu", "sw")]))
    assert set(topology.latency_s.tolist()) == {0.0}
    assert [found.code for found in findings] == ["supplied-latency"]


def test_option_latency_is_for_links_that_state_none() -> None:
    stated = RATE | {"latency": {"choice": "ns", "ns": 100}}
    links = [{"name": "l", "physical": stated}, {"name": "m", "physical": RATE}]
    edges = [edge("xpu[0:2]", "sw"), edge("xpu[2:]", "sw", link="m")]
    topology, _ = network(document(edges, links), latency=5e-7)
    assert sorted(set(topology.latency_ns.tolist())) == [100.0, 500.0]


def test_detail_full_keeps_every_component() -> None:
    topology, _ = network(behind_cards(), detail="full")
    assert (topology.num_nodes, topology.num_links) == (6, 12)


def test_planes_split_by_name_of_link() -> None:
    topology, _ = network(behind_cards(), planes="eth")
    assert topology.num_planes == 2
    # Only the path over the cards has eth on it.
    rates = topology.bandwidth_bytes_per_s
    assert set(rates[topology.plane == 0].tolist()) == {25e9}
    assert set(rates[topology.plane == 1].tolist()) == {50e9}


def test_npu_types_name_what_computes() -> None:
    parts = [
        {"name": "g", "count": 4, "choice": "custom", "custom": {"type": "gpu"}},
        {"name": "sw", "count": 1, "choice": "switch"},
    ]
    topology, _ = network(document([edge("g", "sw")], components=parts), npu_types="xpu,gpu")
    assert topology.num_npus == 4


@pytest.mark.parametrize(
    ("physical", "said"),
    [
        (
            {"bandwidth": {"choice": "gigabytes_per_second", "gigabytes_per_second": 0}},
            "a bandwidth above 0",
        ),
        (
            {"bandwidth": {"choice": "gigabytes_per_second", "gigabytes_per_second": -5}},
            "a bandwidth above 0",
        ),
        (
            {"bandwidth": {"choice": "gigabytes_per_second", "gigabytes_per_second": "fast"}},
            "expected a number, got text 'fast'",
        ),
        (
            {"bandwidth": {"choice": "knots", "knots": 3}},
            "'knots' is not a unit; use one of gigabytes_per_second",
        ),
        ({"latency": {"choice": "ns", "ns": -1}}, "a latency of at least 0 was expected"),
        ({"latency": {"choice": "h", "h": 1}}, "'h' is not a unit; use one of ms, us, ns"),
    ],
)
def test_bad_quantities_are_refused(physical, said) -> None:
    with pytest.raises(InputError) as caught:
        network(document([edge("xpu", "sw")], [{"name": "l", "physical": physical}]))
    found = caught.value.diagnostics[0]
    assert said in f"{found.message}; {found.cure}"
    assert found.message.startswith("$.devices[0].links[0].physical.")


def test_bandwidth_directly_in_the_link_is_of_the_old_grammar() -> None:
    links = [{"name": "l", **RATE}]
    with pytest.raises(InputError, match=r"before InfraGraph 0\.3"):
        network(document([edge("xpu", "sw")], links))
