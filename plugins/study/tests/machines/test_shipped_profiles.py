"""Profiles that are shipped, and the profile of a topology."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from collhub_machine_profiles import find_profile, shipped_names, shipped_profile
from collhub_machine_profiles.machine_profile import MachineProfile, profile_bytes
from collhub_machine_profiles.measurement import ReadOptions
from collhub_machines.reading import read_files

from hub_core import parse_topology

SCRIPT = Path(__file__).resolve().parents[4] / "benchmarks" / "machines" / "build_profiles.py"
TABLE_ONLY = {"l40s", "rtx-pro-6000"}
WITHOUT_TABLES = {"b300", "gb300", "p5", "p6-b200", "gh200-slingshot"}


def test_every_machine_of_the_list_is_shipped() -> None:
    assert shipped_names() == (
        "a100", "b200", "b300", "gb200", "gb300", "gh200-slingshot", "h100", "h200",
        "l40s", "p4de", "p5", "p6-b200", "rtx-pro-6000",
    )  # fmt: skip


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_profile_names_sources_and_licences(name: str) -> None:
    profile = shipped_profile(name)
    assert profile.name == name
    assert profile.sources
    assert all(source["licence"] and source["repo"] for source in profile.sources)
    assert bool(profile.tables) == (name not in WITHOUT_TABLES)
    assert bool(profile.constants) == (name not in TABLE_ONLY | {"gh200-slingshot"})


@pytest.mark.parametrize("name", shipped_names())
def test_tables_have_points_only_of_sources_that_permit_copies(name: str) -> None:
    profile = shipped_profile(name)
    licences = {source["licence"] for source in profile.sources}
    assert not profile.tables or licences <= {"Apache-2.0", "MIT", "MIT-0"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("p4de", "p4de"),
        ("P6-B200", "p6-b200"),
        ("dgx-h100", "h100"),
        ("dgx-h100:4?network=leaf-spine:4,8,4", "h100"),
        ("dgx-a100:2", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("RTX PRO 6000", "rtx-pro-6000"),
        ("GB300", "gb300"),
        ("mi300x", None),
        ("ring:8", None),
        ("A100 PCIe", None),
        ("L40S, PCIe 4", "l40s"),
        ("", None),
    ],
)
def test_a_topology_or_a_name_finds_its_profile(text: str, name: str | None) -> None:
    profile = find_profile(text)
    assert (profile.name if profile else None) == name


def test_a_topology_object_finds_the_profile_of_its_text() -> None:
    profile = find_profile(parse_topology("dgx-h100:2"))
    assert profile is not None
    assert profile.gpu == "H100"
    assert find_profile(parse_topology("mesh:4x4")) is None


def test_an_unknown_name_is_no_shipped_profile() -> None:
    with pytest.raises(KeyError):
        shipped_profile("../machine")


def test_shipped_profiles_are_those_that_the_public_points_give(corpus: Path) -> None:
    """The script is repeatable; the last digits depend on numpy's version."""
    script = runpy.run_path(str(SCRIPT))
    read = read_files([str(corpus / "measured.json")], ReadOptions())
    built: list[MachineProfile] = script["build_profiles"](read)
    assert {profile.name for profile in built} == set(shipped_names())
    for profile in built:
        shipped = shipped_profile(profile.name)
        assert len(profile_bytes(profile).splitlines()) == len(profile_bytes(shipped).splitlines())
        for name, constant in profile.constants.items():
            assert constant.value == pytest.approx(shipped.constants[name].value, rel=1e-3)
        for network, other in zip(profile.networks, shipped.networks, strict=True):
            assert network.values == pytest.approx(other.values, rel=1e-3)
