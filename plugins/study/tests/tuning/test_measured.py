"""`--measured` of compare and tune: measured curves, decisions, and refused files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from collhub_tuning.comparison_report import ComparisonOutcome, comparison_document
from collhub_tuning.measured_curves import MeasuredCurve, MeasuredCurves, decide
from collhub_tuning.questions import ComparisonQuestion, Measurement

import hub_core
from hub_core import TimingSource
from hub_core.plugin_api import Library, MachineDescription, MeasurementReader, Simulator

KIB, MIB = 2**10, 2**20
NCCL = Library("NCCL", "2.29.2")


def _nccl_tests(
    *rows: tuple[int, float], gpu: str = "NVIDIA H100 80GB HBM3", ranks: int = 8
) -> str:
    """Return output of nccl-tests' all_reduce_perf on one node: sizes in bytes, times in us."""
    devices = "".join(
        f"#  Rank  {rank} Group  0 Pid   12{rank} on      alpha device  {rank} [0000:1b:00] {gpu}\n"
        for rank in range(ranks)
    )
    lines = "".join(
        f"{size:12d} {size // 4:13d}     float     sum      -1 {time_us:8.2f}    0.14    0.14"
        f"       0 {time_us / 2:8.2f}    0.15    0.15       0\n"
        for size, time_us in rows
    )
    return (
        "# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=22902\n"
        "# Collective test starting: all_reduce_perf\n"
        "# nThread 1 nGpus 8 minBytes 1024 maxBytes 4096 step: 2(factor) iters: 20 agg iters: 1"
        f" graph: 0\n{devices}"
        "#                                                 out-of-place"
        "                       in-place\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        f"     time   algbw   busbw  #wrong\n{lines}# Avg bus bandwidth    : 0.3\n"
    )


def _outcome(times_us: dict[int, float], error: float | None = 0.1) -> ComparisonOutcome:
    """Return simulated times of one algorithm on dgx-h100; `error` None: on nominal links."""
    topology = hub_core.parse_topology("dgx-h100")
    machine = None if error is None else MachineDescription("h100", "NCCL 2.29.2", error)
    backend = "analytical" if error is None else "machine"
    question = ComparisonQuestion(
        "all-reduce", None, "dgx-h100", 8, tuple(times_us), backend, "both"
    )
    measurements = [Measurement("ours", size, round(time * 1e3)) for size, time in times_us.items()]
    timing = TimingSource(backend, {}, machine)
    registry = hub_core.run_registry()
    return ComparisonOutcome(question, topology, measurements, registry, timing=timing)


def _with_measured(outcome: ComparisonOutcome, times_us: dict[int, float]) -> ComparisonOutcome:
    return replace(outcome, measured=MeasuredCurves((MeasuredCurve(NCCL, times_us),), {}))


@pytest.mark.parametrize(
    ("measured_us", "kind", "winner"),
    [
        (100 / 0.9 + 0.1, "simulated", "ours"),
        (100 / 0.9 - 0.1, "undecided", None),
        (100 / 1.1 + 0.1, "undecided", None),
        (100 / 1.1 - 0.1, "measured", "NCCL 2.29.2"),
    ],
)
def test_a_simulated_time_wins_only_beyond_its_held_out_error(
    measured_us: float, kind: str, winner: str | None
) -> None:
    decision = decide(_with_measured(_outcome({MIB: 100.0}), {MIB: measured_us}), MIB)
    assert decision is not None
    assert (decision.kind, decision.winner) == (kind, winner)


def test_times_of_nominal_links_decide_nothing() -> None:
    outcome = _with_measured(_outcome({MIB: 1.0}, error=None), {MIB: 1000.0})
    decision = decide(outcome, MIB)
    assert decision is not None
    assert decision.kind == "undecided"


def test_sizes_without_a_measurement_have_no_decision() -> None:
    outcome = _with_measured(_outcome({MIB: 100.0, 2 * MIB: 150.0}), {MIB: 10.0})
    document: Any = comparison_document(outcome)["measured"]
    assert document["curves"][0]["times_ns"] == [10_000, None]
    assert document["decisions"][1] is None
    assert document["decisions"][0]["winner"] == "NCCL 2.29.2"


def test_the_fastest_of_several_libraries_is_compared() -> None:
    curves = (
        MeasuredCurve(NCCL, {MIB: 50.0}),
        MeasuredCurve(Library("MSCCL++", "0.7"), {MIB: 20.0}),
    )
    decision = decide(replace(_outcome({MIB: 40.0}), measured=MeasuredCurves(curves, {})), MIB)
    assert decision is not None
    assert (decision.kind, decision.winner) == ("measured", "MSCCL++ 0.7")


def test_reports_without_measurements_have_none() -> None:
    assert comparison_document(_outcome({MIB: 100.0}))["measured"] is None


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def on_h100(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> tuple[str, ...]:
    """Options of a comparison of ring on one node of H100; the working folder is empty."""
    registry = hub_core.run_registry()
    simulators = {provided.name for provided in registry.all(Simulator)}
    readers = {provided.name for provided in registry.all(MeasurementReader)}
    if "machine" not in simulators or "nccl-tests" not in readers:
        pytest.skip("the simulator of machines or the reader of nccl-tests is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return (
        *("--collective", "all-reduce", "--topology", "dgx-h100", "--size", "1KiB..4KiB"),
        *("--with", "ring", "--jobs", "1", "--measured", "run.txt"),
    )


def test_compare_shows_measured_times_and_decisions(collhub, on_h100: tuple[str, ...]) -> None:
    Path("run.txt").write_text(_nccl_tests((KIB, 1.0), (2 * KIB, 500.0), (8 * KIB, 7.0)))
    run = collhub("compare", *on_h100)
    assert run.code == 0, run.err
    header, first, second, third = run.out.splitlines()[:4]
    assert "measured: NCCL 2.29.2" in header
    assert first.split()[-5:] == ["1.00", "us", "NCCL", "2.29.2", "(measured)"]
    assert second.split()[-4:] == ["500.00", "us", "ring", "(simulated)"]
    assert "us" not in third[header.index("measured:") :]
    assert "2 measurements ignored: 2 of other sizes" in run.err
    report = collhub("compare", *on_h100, "--json").report()
    assert report["measured"]["curves"] == [
        {
            **{"library": "NCCL", "version": "2.29.2", "variant": ""},
            "times_ns": [1000, 500_000, None],
        }
    ]
    kinds = [one and one["decision"] for one in report["measured"]["decisions"]]
    assert kinds == ["measured", "simulated", None]


def test_measurements_of_other_calls_are_counted(collhub, on_h100: tuple[str, ...]) -> None:
    Path("run.txt").write_text(_nccl_tests((KIB, 9.0)))
    points = [
        {"collective": kind, "ranks": ranks, "nodes": nodes, "size_bytes": KIB, "time_us": 5.0}
        for kind, ranks, nodes in (
            *(("all-gather", 8, 1), ("all-gather", 4, 1)),
            *(("all-reduce", 4, 1), ("all-reduce", 8, 2)),
        )
    ]
    document = {
        "schema": "measured-collectives/1",
        "points": [{**point, "library": "NCCL 2.29.2", "machine": "H100"} for point in points],
    }
    Path("other.json").write_text(json.dumps(document))
    report = collhub("compare", *on_h100, "--measured", "other.json", "--json").report()
    assert report["measured"]["ignored"] == {
        **{"other collectives": 2, "other numbers of nodes": 1, "other numbers of ranks": 1}
    }


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("no results\n", 1, "no reader of measurements recognises the file"),
        (_nccl_tests((KIB, 9.0), gpu="NVIDIA A100-SXM4-80GB"), 2, "not of the profile h100 (H100)"),
        (_nccl_tests((KIB, 9.0), gpu="NVIDIA H100 PCIe"), 2, "not of the profile h100 (H100)"),
        (_nccl_tests((KIB, 9.0), ranks=4), 2, "the files have all-reduce of 4 ranks"),
        (_nccl_tests((MIB, 9.0)), 2, "give sizes that were measured with --size: 1 MiB"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    collhub, on_h100: tuple[str, ...], text: str, code: int, message: str
) -> None:
    Path("run.txt").write_text(text)
    run = collhub("compare", *on_h100)
    assert run.code == code
    assert message in run.err
    assert len(run.err.splitlines()) == 1
    assert not run.out


def test_a_missing_file_is_refused(collhub, on_h100: tuple[str, ...]) -> None:
    run = collhub("compare", *on_h100)
    assert run.code == 1
    assert run.err.startswith("error: run.txt: ")
    assert not run.out


def test_jobs_have_no_measurements(collhub, on_h100: tuple[str, ...]) -> None:
    run = collhub("compare", "job.et", "--measured", "run.txt")
    assert run.code == 2
    assert "--measured has no meaning for a job" in run.err
