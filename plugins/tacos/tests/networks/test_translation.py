"""Translations: found on whatever looks alike from every node, and on nothing else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from collhub_tacos.link_network import LinkNetwork
from collhub_tacos.symmetry import Translations

from hub_core import parse_topology
from hub_core.network import Links, Occupancy

MIB = 1 << 20


def each(network: LinkNetwork, chunks: int) -> npt.NDArray[np.int64]:
    return np.repeat(np.arange(network.num_npus), chunks)


def test_shapes_are_found_where_none_is_stated() -> None:
    torus = parse_topology("torus:5x3x5")
    columns = (torus.source, torus.destination, torus.bandwidth_bytes_per_s, torus.latency_s)
    network = LinkNetwork.of(Links(*columns).topology("unnamed", 75, 75))
    found = Translations.of(network, each(network, 1))
    assert found is not None
    assert found.moduli == (5, 3, 5)


def test_links_of_different_times_must_be_alike_everywhere() -> None:
    torus = parse_topology("ring:6")
    rates = np.where(np.arange(torus.num_links) == 0, 10e9, 50e9)
    network = LinkNetwork.of(
        Links(torus.source, torus.destination, rates, torus.latency_s).topology(
            "one slow link", 6, 6
        )
    )
    assert Translations.of(network, each(network, 1)) is not None
    assert (
        Translations.of(network, each(network, 1), network.link_times(MIB, Occupancy.ALPHA_BETA))
        is None
    )


@pytest.mark.parametrize("text", ["mesh:3x3", "line:4", "switch:4", "ring:1"])
def test_other_networks_have_no_translations(text: str) -> None:
    network = LinkNetwork.of(parse_topology(text))
    assert Translations.of(network, each(network, 1)) is None


def test_unequal_shares_are_not_moved() -> None:
    network = LinkNetwork.of(parse_topology("ring:4"))
    assert Translations.of(network, np.asarray([0, 0, 1, 2, 3])) is None
