"""The baseline of compare and tune: what NCCL does today, and gains over it."""

from __future__ import annotations

import json

import pytest
from collhub_tuning import baseline
from collhub_tuning.comparison_records import BaselineItem
from collhub_tuning.comparison_report import ComparisonOutcome, create_comparison_report
from collhub_tuning.questions import AlgorithmAtSize, ComparedAlgorithm, ComparisonQuestion
from collhub_tuning.tuned_collectives import TunedCollective
from collhub_tuning.tuning_report import TuningOutcome, create_tuning_report, tuning_page

import hub_core
from hub_core import TimingSource
from hub_core.plugin_api import MachineDescription

MIB = 2**20
SIZES = (MIB, 2 * MIB)


def _outcome(topology: str, backend: str, times_us: tuple[float, ...]) -> ComparisonOutcome:
    network = hub_core.parse_topology(topology)
    is_machine = backend == "machine"
    options = (("machine", "h100"),) if is_machine else ()
    question = ComparisonQuestion(
        "all-reduce", None, topology, network.num_npus, SIZES, backend, "both", options
    )
    machine = MachineDescription("h100", "NCCL 2.29.2", 0.05) if is_machine else None
    timing = TimingSource(backend, dict(options), machine)
    measurements = [
        AlgorithmAtSize("ours", size, round(time * 1e3))
        for size, time in zip(SIZES, times_us, strict=True)
    ]
    registry = hub_core.run_registry()
    return ComparisonOutcome(question, network, measurements, registry, timing=timing)


def _list_entries(outcome: ComparisonOutcome) -> list[BaselineItem]:
    """Return the baselines of the report, all of which must be known."""
    entries = [entry for entry in create_comparison_report(outcome).baselines if entry is not None]
    assert len(entries) == len(SIZES)
    return entries


def test_gains_compare_the_winner_with_nccl_on_the_machine() -> None:
    outcome = _outcome("dgx-h100", "machine", (20.0, 50.0))
    baselines = outcome.baselines
    assert [one.name for one in baselines.values()] == ["ring ll", "nvls simple"]
    entries = _list_entries(outcome)
    for entry, time_us in zip(entries, (20.0, 50.0), strict=True):
        assert entry.gain == pytest.approx(entry.time_ns / 1e3 / time_us - 1, abs=1e-3)
    rows = baseline.baseline_rows(outcome)
    assert rows[0][-1].startswith("+")
    assert rows[1][-1].startswith("-")


def test_gains_within_the_held_out_errors_are_marked() -> None:
    outcome = _outcome("dgx-h100", "machine", (24.0, 20.0))
    baselines = outcome.baselines
    times_us = [one.time_us for one in baselines.values()]
    near = _outcome("dgx-h100", "machine", (times_us[0] / 1.01, times_us[1] / 2))
    entries = _list_entries(near)
    assert [entry.within_errors for entry in entries] == [True, False]
    assert [row[-1] for row in baseline.baseline_rows(near)] == [
        "+1.0 %, within the errors",
        "+100.0 %",
    ]


def test_a_profile_of_the_times_is_that_of_the_baseline() -> None:
    outcome = _outcome("switch:8", "machine", (20.0, 50.0))
    assert {one.machine for one in outcome.baselines.values()} == {"h100"}


def test_nominal_links_have_no_gains() -> None:
    outcome = _outcome("dgx-h100", "analytical", (2.0, 5.0))
    entries = _list_entries(outcome)
    assert [entry.gain for entry in entries] == [None, None]
    assert entries[0].method in {"measured", "interpolated"}
    assert entries[0].machine == "h100"


def test_unknown_machines_have_no_baseline() -> None:
    outcome = _outcome("ring:8", "analytical", (2.0, 5.0))
    assert create_comparison_report(outcome).baselines == [None, None]


def test_tune_reports_the_baseline_of_every_window() -> None:
    outcome = _outcome("dgx-h100", "machine", (16.0, 16.0))
    tuned = TunedCollective(outcome, [ComparedAlgorithm("ours", is_file=True)], 0.02)
    (row,) = baseline.tuned_baseline_rows([tuned])
    assert (row[0], row[2], row[3]) == ("all-reduce", "ours", "ring ll, nvls simple")
    assert row[4].count("+") == 2
    report = TuningOutcome([tuned], "both", 0.02)
    assert "## What NCCL does today" in tuning_page(report)
    (collective,) = create_tuning_report(report).collectives
    gains = [entry.gain for entry in collective.baselines if entry is not None]
    assert len(gains) == 2
    assert all(gain is not None and gain > 0 for gain in gains)


def test_compare_prints_what_nccl_does_today(collhub) -> None:
    arguments = ("compare", "--collective", "all-reduce", "--topology", "dgx-h100", "--size")
    run = collhub(*arguments, "1MiB", "--with", "ring", "--no-cache")
    if run.code == 3:
        pytest.skip("no simulator is installed")
    assert "NCCL today" in run.out
    assert "ring ll" in run.out
    report = json.loads(collhub(*arguments, "1MiB", "--with", "ring", "--no-cache", "--json").out)
    (entry,) = report["baselines"]
    assert (entry["algorithm"], entry["protocol"], entry["channels"]) == ("ring", "ll", 24)
