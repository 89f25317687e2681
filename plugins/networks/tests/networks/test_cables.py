from __future__ import annotations

import numpy as np
from collhub_networks import NetworkFindings, cables_of, find_reverse_links, topology_of
from collhub_networks.cables import Cable
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import Location, Severity
from hub_core.network import Links

CABLES = st.lists(
    st.builds(
        Cable, st.integers(0, 2), st.integers(3, 5), st.sampled_from([1e9, 2e9]), st.just(1e-6)
    ),
    max_size=12,
)


@given(CABLES)
def test_cables_come_back(cables) -> None:
    topology = topology_of("any", 4, 6, cables)
    assert cables_of(topology) == cables


@given(CABLES)
def test_way_back_is_a_pairing_of_links_that_are_alike(cables) -> None:
    topology = topology_of("any", 4, 6, cables)
    back = find_reverse_links(topology)
    assert np.array_equal(back[back], np.arange(topology.num_links))
    assert np.array_equal(topology.source[back], topology.destination)
    assert np.array_equal(topology.bandwidth_bytes_per_s[back], topology.bandwidth_bytes_per_s)


def test_links_of_different_planes_are_no_pair() -> None:
    ends = np.asarray([0, 1])
    rates = np.full(2, 1e9)
    links = Links(ends, 1 - ends, rates, rates * 0, np.asarray([0, 1]))
    assert find_reverse_links(links.topology("two", 2, 2)).tolist() == [-1, -1]


def test_findings_are_told_once_a_kind() -> None:
    findings, told = NetworkFindings(), []
    for row in range(3):
        findings.warn("odd", Location("f", row + 1), f"place {row}")
    findings.note("given", Location("f"), "by option")
    findings.tell(told.append)
    assert [(one.code, one.severity) for one in told] == [
        ("odd", Severity.WARNING),
        ("given", Severity.NOTE),
    ]
    assert str(told[0]).endswith("place 0 (and 2 more such places)")
