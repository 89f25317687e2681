"""Profiles that are shipped, and the profile of a topology."""

from __future__ import annotations

import importlib.resources
import json
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from collhub_machine_profiles import find_profile, shipped_names, shipped_profile
from collhub_machine_profiles.calls import MedianTimes, PlannedCall, envelope
from collhub_machine_profiles.machine_profile import MachineProfile, parse_profile, profile_bytes
from collhub_machine_profiles.prediction import Method, predict_time
from collhub_machines.calibration import CalibrationRequest, calibrate_machines, read_points
from collhub_machines.fitting import every_second_size

from hub_core import parse_topology
from hub_core.plugin_api import MeasurementSet

SCRIPT = Path(__file__).resolve().parents[4] / "benchmarks" / "machines" / "build_profiles.py"
TABLE_ONLY = {"l40s", "rtx-pro-6000"}
WITHOUT_TABLES = {"b300", "gb300", "p5", "p6-b200", "gh200-slingshot"}


def check_schema(document: dict[str, object], name: str) -> None:
    schema = json.loads(importlib.resources.files("hub_core.schemas").joinpath(name).read_bytes())
    jsonschema.validate(document, schema)


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
def test_a_shipped_profile_satisfies_its_schema(name: str) -> None:
    file = importlib.resources.files("collhub_machine_profiles") / "profiles" / f"{name}.json"
    assert parse_profile(file.read_bytes(), file.name).name == name


def test_a_shipped_profile_is_read_without_a_check_of_its_schema() -> None:
    script = """
import sys
from collhub_machine_profiles import find_profile
find_profile("dgx-h100")
print("jsonschema" in sys.modules)
"""
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"False\n"


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


def test_the_chart_of_the_readme_shows_the_shipped_profiles() -> None:
    pytest.importorskip("collhub_pictures", reason="it draws comparisons")
    chart = runpy.run_path(str(SCRIPT.with_name("chart.py")))
    assert chart["draw"]() == chart["PICTURE"].read_bytes()


@pytest.mark.once
def test_shipped_profiles_are_those_that_the_public_points_give(measured_corpus: Path) -> None:
    """The script is repeatable; the last digits depend on numpy's version."""
    script = runpy.run_path(str(SCRIPT))
    read = read_points([str(measured_corpus / "measured.json")])
    built: list[MachineProfile] = script["build_profiles"](read)
    assert {profile.name for profile in built} == set(shipped_names())
    for profile in built:
        shipped = shipped_profile(profile.name)
        assert len(profile_bytes(profile).splitlines()) == len(profile_bytes(shipped).splitlines())
        for name, constant in profile.constants.items():
            assert constant.value == pytest.approx(shipped.constants[name].value, rel=1e-3)
        for network, other in zip(profile.networks, shipped.networks, strict=True):
            assert network.values == pytest.approx(other.values, rel=1e-3)


def test_a_time_is_predicted_by_the_table_else_by_the_model() -> None:
    profile = shipped_profile("h100")
    table = profile.table_for(PlannedCall("all-reduce", 8, 1, 1024))
    assert table is not None
    size = int(table.sizes[3])
    measured = predict_time(profile, PlannedCall("all-reduce", 8, 1, size))
    between = predict_time(profile, PlannedCall("all-reduce", 8, 1, size + 1000))
    beyond = predict_time(profile, PlannedCall("all-reduce", 8, 1, 2**40))
    of_four = predict_time(profile, PlannedCall("all-reduce", 4, 1, size))
    predictions = (measured, between, beyond, of_four)
    assert [one.method for one in predictions if one] == [
        Method.MEASURED,
        Method.INTERPOLATED,
        Method.EXTRAPOLATED,
        Method.MODEL,
    ]
    errors = [one.p90_error for one in predictions if one]
    assert errors[0] == 0
    assert all(error and error > 0 for error in errors[1:])
    assert of_four
    assert of_four.choice


@pytest.mark.parametrize(
    ("name", "nodes", "rate"),
    [("p5", 2, 250), ("p5", 4, 186), ("p6-b200", 2, 360)],
)
def test_large_messages_on_several_nodes_have_the_nominal_rate_of_the_cards(
    name: str, nodes: int, rate: float
) -> None:
    """0.9 of 400 GB/s a node, but never faster than one node; rates in GB/s."""
    size = 2**31
    prediction = predict_time(
        shipped_profile(name), PlannedCall("all-reduce", 8 * nodes, nodes, size)
    )
    assert prediction
    assert prediction.method is Method.NOMINAL
    assert size / prediction.time_us / 1e3 == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize("name", ["a100", "h100", "b200", "gb200"])
def test_times_between_knots_are_between_those_of_the_knots(name: str) -> None:
    profile = shipped_profile(name)
    for table in profile.tables:
        times = envelope(table.times_us)
        for place in range(len(table.sizes) - 1):
            for share in (0.01, 0.3, 0.9):
                low, high = table.sizes[place : place + 2]
                size = int(low * (high / low) ** share)
                call = PlannedCall(table.collective, table.ranks, table.nodes, size)
                prediction = predict_time(profile, call)
                assert prediction
                assert times[place] * 0.999 <= prediction.time_us <= times[place + 1] * 1.001


@pytest.mark.parametrize(
    ("profile_name", "ranks", "nodes", "sizes"),
    [("h100", 8, 1, (2**20, 2**21, 2**22)), ("p4de", 16, 2, (2**18, 2**20, 2**24))],
)
def test_between_knots_the_error_of_the_model_is_linear_in_the_size(
    profile_name: str, ranks: int, nodes: int, sizes: tuple[int, int, int]
) -> None:
    """A machine that starts calls 5 us later and moves every MiB 3 us slower than its model."""
    profile = replace(shipped_profile(profile_name), tables=())
    library = profile.networks[0].library if nodes > 1 else profile.library
    calls = [PlannedCall("all-reduce", ranks, nodes, size, library) for size in sizes]
    model_us = [predict_time(profile, call).time_us for call in calls]
    low, middle, high = (
        time_us + 5 + 3 * size / 2**20 for time_us, size in zip(model_us, sizes, strict=True)
    )
    knots = np.array([sizes[0], sizes[2]], dtype=float)
    table = MedianTimes("all-reduce", ranks, nodes, library, "", knots, np.array([low, high]))
    prediction = predict_time(replace(profile, tables=(table,)), calls[1])
    assert prediction.method is Method.INTERPOLATED
    assert prediction.time_us == pytest.approx(middle)


def test_the_shape_of_the_model_reduces_errors_between_knots(measured_corpus: Path) -> None:
    """Every second size left out of tables and fit: sizes that remain are 16 times apart."""
    shaped, linear = [], []
    for name in ("8x H100-SXM5", "8x H200-SXM", "8x B200-SXM", "GB200 tray"):
        points = [
            point
            for point in read_points([str(measured_corpus / "measured.json")]).points
            if name in point.machine
        ]
        held = every_second_size(points)
        kept = [point for point, is_held in zip(points, held, strict=True) if not is_held]
        (machine,) = calibrate_machines(MeasurementSet(kept), CalibrationRequest(hold_out=False))
        for point in (point for point, is_held in zip(points, held, strict=True) if is_held):
            prediction = predict_time(machine.profile, point)
            table = machine.profile.table_for(point)
            assert prediction
            assert table
            line_us = table.time_us(np.array([point.size_bytes], dtype=float))[0]
            shaped.append(abs(prediction.time_us / point.time_us - 1))
            linear.append(abs(line_us / point.time_us - 1))
    assert np.median(shaped) < 0.9 * np.median(linear)
    assert np.percentile(shaped, 90) <= 0.6 * np.percentile(linear, 90)


@pytest.mark.once
def test_models_of_one_and_of_several_nodes_meet_their_bars(
    measured_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    bars = runpy.run_path(str(SCRIPT.with_name("bars.py")))
    file = measured_corpus / "measured.json"
    data = bars["Data"](read_points([str(file)]), file, [])
    rows = [*bars["model"](data), *bars["nodes"](data), *bars["table"](data)]
    assert len(rows) == 14
    assert [row.case for row in rows if row.is_met is False] == []
    # Neither reduce-scatter nor sizes four times apart are among the public points.
    assert sum(row.is_met is None for row in rows) == 2


def test_a_call_without_table_and_model_has_no_prediction() -> None:
    assert predict_time(shipped_profile("l40s"), PlannedCall("all-reduce", 4, 1, 1024)) is None
    assert predict_time(shipped_profile("p5"), PlannedCall("all-gather", 16, 2, 2**30)) is None
    assert predict_time(shipped_profile("p5"), PlannedCall("all-reduce", 16, 2, 2**20)) is None


def test_the_machines_are_listed_with_their_origin(collhub) -> None:
    report = collhub("machines", "list", "--json").report()
    check_schema(report, "report-machines-1.json")
    origins = {one["name"]: one["model"] for one in report["machines"]}
    assert (origins["h100"], origins["p5"], origins["l40s"]) == ("fit", "sibling", "none")
    run = collhub("machines", "list")
    assert len(run.out.splitlines()) == len(shipped_names()) + 1


def test_a_machine_is_shown_with_constants_errors_and_sources(collhub) -> None:
    run = collhub("machines", "show", "p4de")
    assert run.code == 0, run.err
    assert "hop_large_us" in run.out
    assert "MIT-0: 7 points" in run.out
    document = json.loads(collhub("machines", "show", "p4de", "--json").out)
    check_schema(document, "machine-1.json")


def test_an_unknown_machine_lists_the_known_ones(collhub) -> None:
    assert collhub("machines", "show", "dgx-h100").out == collhub("machines", "show", "h100").out
    run = collhub("machines", "show", "x1")
    assert run.code == 1
    assert "there is no machine profile 'x1'" in run.err
    assert "a100, b200" in run.err


def test_results_are_checked_against_a_shipped_profile(collhub, h100) -> None:
    run = collhub("machines", "check", "h100", h100)
    assert run.code == 0, run.err
    assert run.out.splitlines()[-1].startswith("model: median error")
    assert collhub("machines", "check", "h100").out == "h100: valid, 21 constants, 3 tables\n"
    assert collhub("machines", "check", "a100", h100).code == 1


def test_results_far_from_the_profile_exit_1(collhub, h100) -> None:
    document = json.loads(h100.read_text())
    for point in document["points"]:
        point["time_us"] *= 3
    h100.write_text(json.dumps(document))
    run = collhub("machines", "check", "h100", h100)
    assert run.code == 1
    assert "exceeds 15 %; calibrate this machine" in run.err
