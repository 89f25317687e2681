"""Where certificates stand, how they name networks, and what cuts and partitions allow."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from hub_core import parse_topology
from hub_core.model import Algorithm
from hub_core.schedules import find_certificate, network_object, partition_rate, spreading_rate
from hub_core.testing import binomial_broadcast

LINE = parse_topology("line:3?bandwidth=10GB/s")


def test_the_certificate_is_found_among_the_extensions() -> None:
    made = binomial_broadcast(3)
    assert find_certificate(made) is None
    certificate = {"schema": "collhub/certificate-1"}
    certified = Algorithm(
        made.collective,
        made.steps,
        made.scratch_units,
        extensions={"other": 1, "packer": {"certificate": certificate}},
    )
    assert find_certificate(certified) == certificate


def test_the_hash_depends_on_links_alone() -> None:
    renamed = replace(LINE, name="another name")
    assert network_object(renamed)["sha256"] == network_object(LINE)["sha256"]
    faster = replace(LINE, bandwidth_bytes_per_s=np.full(4, 11e9))
    assert network_object(faster)["sha256"] != network_object(LINE)["sha256"]


def test_links_are_stated_on_demand_and_planes_where_there_are_several() -> None:
    assert "links" not in network_object(LINE, with_links=False)
    assert network_object(LINE)["links"][0] == [0, 1, "10000000000"]
    planes = network_object(parse_topology("fc:2+fc:2"))
    assert [link[3] for link in planes["links"]] == [0, 0, 1, 1]


def test_a_star_all_reduce_is_bounded_by_what_enters_the_ranks() -> None:
    capacities = {(node, 3): Fraction(10) for node in range(3)} | {
        (3, node): Fraction(10) for node in range(3)
    }
    assert partition_rate([[0], [1], [2]], capacities) == Fraction(30, 4)


def test_a_cut_counts_links_one_way() -> None:
    capacities = {(0, 1): Fraction(5), (1, 0): Fraction(3), (1, 2): Fraction(7)}
    assert spreading_rate([0], capacities, outward=True) == 5
    assert spreading_rate([0], capacities, outward=False) == 3
