"""The baseline: NCCL's choice and expected time on a known machine."""

from __future__ import annotations

import pytest
from collhub_machine_profiles import shipped_profile
from collhub_machine_profiles.nccl_baseline import NCCL_COST, predict_baseline

from hub_core import parse_topology

MIB = 2**20


@pytest.mark.parametrize(
    ("topology", "collective", "size", "name", "method"),
    [
        ("dgx-h100", "all-reduce", 2 * MIB, "nvls simple", "measured"),
        ("dgx-h100", "all-reduce", 4 * MIB, "nvls simple", "interpolated"),
        ("dgx-a100", "all-reduce", 4 * MIB, "ring ll128", "interpolated"),
        ("dgx-h100", "all-to-all", 2 * MIB, "p2p simple", "measured"),
        ("dgx-h100:2", "all-reduce", 64 * 2**10, "tree ll", NCCL_COST),
    ],
)
def test_a_known_machine_has_a_choice_and_a_time(
    topology: str, collective: str, size: int, name: str, method: str
) -> None:
    baseline = predict_baseline(parse_topology(topology), collective, size)
    assert baseline is not None
    assert (baseline.name, baseline.method) == (name, method)
    assert baseline.time_us > 0


@pytest.mark.parametrize(
    ("topology", "collective"), [("ring:8", "all-reduce"), ("dgx-h100:2", "gather")]
)
def test_other_topologies_and_collectives_have_none(topology: str, collective: str) -> None:
    assert predict_baseline(parse_topology(topology), collective, MIB) is None


def test_a_profile_gives_the_machine_of_an_unnamed_topology() -> None:
    profile = shipped_profile("h100")
    baseline = predict_baseline(parse_topology("switch:8"), "all-reduce", 2 * MIB, profile=profile)
    assert baseline is not None
    assert (baseline.name, baseline.machine) == ("nvls simple", "h100")


def test_times_with_a_network_plugin_are_those_of_machines_that_need_one() -> None:
    profile = shipped_profile("p4de")
    topology = parse_topology("dgx-a100:2")
    baseline = predict_baseline(topology, "all-reduce", 2 * MIB, profile=profile)
    assert baseline is not None
    assert baseline.method in {"measured", "interpolated", "model"}


def test_the_choice_depends_on_the_version() -> None:
    topology = parse_topology("dgx-h100")
    names = {
        version: baseline.name
        for version in ("2.20.5", "2.29.2")
        if (baseline := predict_baseline(topology, "all-reduce", MIB, version=version))
    }
    assert names == {"2.20.5": "nvls simple", "2.29.2": "ring ll"}
