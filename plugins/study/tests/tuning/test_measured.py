"""`--measured` of compare and tune: measured curves, decisions, and refused files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from collhub_tuning.comparison_report import ComparisonOutcome, create_comparison_report
from collhub_tuning.measured_curves import MeasuredCurve, MeasuredCurves, decide
from collhub_tuning.questions import AlgorithmAtSize, ComparedAlgorithm, ComparisonQuestion
from collhub_tuning.tuned_collectives import DefaultWindow, MeasuredTimes, TunedCollective
from collhub_tuning.tuning_records import DefaultWindowItem
from collhub_tuning.tuning_report import (
    TuningOutcome,
    create_tuning_notes,
    create_tuning_report,
    create_tuning_rows,
    tuning_page,
)

import hub_core
from hub_core import TimingSource
from hub_core.plugin_api import (
    Library,
    MachineDescription,
    MeasurementReader,
    SelectionWriter,
    Simulator,
)

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
    measurements = [
        AlgorithmAtSize("ours", size, round(time * 1e3)) for size, time in times_us.items()
    ]
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
    measured = create_comparison_report(outcome).measured
    assert measured is not None
    assert measured.curves[0].times_ns == [10_000, None]
    first, second = measured.decisions
    assert second is None
    assert first is not None
    assert first.winner == "NCCL 2.29.2"


def test_the_fastest_of_several_libraries_is_compared() -> None:
    curves = (
        MeasuredCurve(NCCL, {MIB: 50.0}),
        MeasuredCurve(Library("MSCCL++", "0.7"), {MIB: 20.0}),
    )
    decision = decide(replace(_outcome({MIB: 40.0}), measured=MeasuredCurves(curves, {})), MIB)
    assert decision is not None
    assert (decision.kind, decision.winner) == ("measured", "MSCCL++ 0.7")


def test_reports_without_measurements_have_none() -> None:
    assert create_comparison_report(_outcome({MIB: 100.0})).measured is None


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


def test_times_of_aggregated_calls_are_no_times_of_the_default(
    collhub, on_h100: tuple[str, ...]
) -> None:
    """Several calls in one launch share its latency: the time of one is below that of a call."""
    Path("run.txt").write_text(_nccl_tests((KIB, 500.0)))
    aggregated = _nccl_tests((KIB, 1.0)).replace("agg iters: 1", "agg iters: 8")
    Path("aggregated.txt").write_text(aggregated)
    run = collhub("compare", *on_h100, "--measured", "aggregated.txt", "--json")
    assert "2 measurements ignored: 2 of aggregated calls" in run.err
    (curve,) = run.report()["measured"]["curves"]
    assert (curve["variant"], curve["times_ns"][0]) == ("", 500_000)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (
            _nccl_tests((KIB, 1.0)).replace("agg iters: 1", "agg iters: 8"),
            2,
            "measure single calls, without aggregation: run the test without -m",
        ),
        ("no results\n", 1, "no reader of measurements recognises the file"),
        (_nccl_tests((KIB, 9.0), gpu="NVIDIA A100-SXM4-80GB"), 2, "not of the profile h100 (H100)"),
        (_nccl_tests((KIB, 9.0), gpu="NVIDIA H100 PCIe"), 2, "not of the profile h100 (H100)"),
        (
            _nccl_tests((KIB, 9.0), ranks=4),
            2,
            "the files have all-reduce of 4 ranks on 1 node: give",
        ),
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


def test_tune_leaves_undecided_and_measured_winners_to_the_runtime() -> None:
    # At 1 KiB the predicted time of NCCL is longer than the simulated one.
    simulated = {KIB: 5.0, 2 * KIB: 100.0, 4 * KIB: 100.0, 8 * KIB: 100.0}
    outcome = _with_measured(_outcome(simulated), {2 * KIB: 105.0, 4 * KIB: 50.0, 8 * KIB: 200.0})
    tuned = TunedCollective(outcome, [ComparedAlgorithm("ours", is_file=True)], 0.02)
    windows = [(one.min_bytes, one.max_bytes, one.sizes) for one in tuned.windows]
    assert windows == [(0, 2 * KIB - 1, (KIB,)), (8 * KIB, None, (8 * KIB,))]
    assert tuned.default_windows == (DefaultWindow(2 * KIB, 8 * KIB - 1, (2 * KIB, 4 * KIB)),)
    report = TuningOutcome([tuned], "both", 0.02)
    assert [row[1:3] for row in create_tuning_rows(report)] == [
        ["below 2 KiB", "ours"],
        ["2 KiB to below 8 KiB", "the runtime's default"],
        ["from 8 KiB", "ours"],
    ]
    notes = [
        "all-reduce, 2 KiB: undecided; the runtime's default stays",
        "all-reduce, 4 KiB: NCCL 2.29.2 is faster; the runtime's default stays",
    ]
    assert create_tuning_notes(report) == notes
    assert all(f"- {note}" in tuning_page(report) for note in notes)
    (collective,) = create_tuning_report(report).collectives
    assert collective.default_windows == [
        DefaultWindowItem(min_bytes=2 * KIB, max_bytes=8 * KIB - 1, sizes=(2 * KIB, 4 * KIB))
    ]


def test_measured_sizes_without_an_algorithm_keep_the_default() -> None:
    outcome = _with_measured(_outcome({KIB: 100.0}), {KIB: 50.0})
    outcome = replace(outcome, measurements=[AlgorithmAtSize("ours", KIB, None, "it does not fit")])
    tuned = TunedCollective(outcome, [ComparedAlgorithm("ours", is_file=True)], 0.02)
    assert not tuned.windows
    note = "all-reduce, 1 KiB: no algorithm fits, NCCL 2.29.2 was measured"
    assert f"{note}; the runtime's default stays" in create_tuning_notes(
        TuningOutcome([tuned], "both", 0.02)
    )


def test_algorithms_of_a_library_do_not_contradict_a_measured_winner() -> None:
    """The fastest algorithm beats the measurement; the slower one of a library does not."""
    times_ns = {"ours": (10, 10), "ring": (20, 60)}
    times = MeasuredTimes((KIB, 2 * KIB), times_ns, 0.0, {KIB: 30.0, 2 * KIB: 30.0})
    assert [one.sizes for one in times.windows()] == [(KIB, 2 * KIB)]
    (window,) = times.windows({"ring"})
    assert (window.min_bytes, window.max_bytes, window.sizes) == (0, 2 * KIB - 1, (KIB,))


def test_sizes_between_two_defaults_keep_the_default() -> None:
    """Neither 2 KiB, between two defaults, nor 8 KiB and 16 KiB have a measurement."""
    sizes = tuple(KIB << exponent for exponent in range(5))
    times = MeasuredTimes(sizes, {"ours": (10,) * 5}, 0.0, {KIB: 5.0, 4 * KIB: 5.0})
    assert times.default_windows() == (DefaultWindow(0, 8 * KIB - 1, sizes[:3]),)
    (window,) = times.windows()
    assert (window.min_bytes, window.max_bytes, window.sizes) == (8 * KIB, None, sizes[3:])


def test_the_tolerance_does_not_admit_an_algorithm_that_may_lose() -> None:
    times = MeasuredTimes((KIB,), {"ours": (100,), "ring": (101,)}, 0.02, {KIB: 100.5})
    assert [one.algorithm for one in times.windows()] == ["ours"]


def test_tune_writes_no_rule_for_sizes_of_the_default(
    collhub, on_h100: tuple[str, ...], tmp_path: Path
) -> None:
    formats = {provided.name for provided in hub_core.run_registry().all(SelectionWriter)}
    if not {"nccl-tuner", "openmpi", "mpich", "ucc"} <= formats:
        pytest.skip("the writers of collhub-nccl and collhub-run are not installed")
    Path("run.txt").write_text(_nccl_tests((KIB, 500.0), (2 * KIB, 1.0), (4 * KIB, 500.0)))
    run = collhub("tune", *on_h100, "-o", "tuned", "--to", "nccl-tuner,openmpi,ucc", "--json")
    assert run.code == 0, run.err
    (collective,) = json.loads(run.out)["collectives"]
    default = {"min_bytes": 2 * KIB, "max_bytes": 4 * KIB - 1, "sizes": [2 * KIB]}
    assert collective["default_windows"] == [default]
    assert "2 KiB: NCCL 2.29.2 is faster; the runtime's default stays" in run.err
    check = collhub("tune", "--check", "tuned")
    assert check.code == 0, check.err
    served = [line.split("  ") for line in check.out.splitlines()]
    rules = [
        (cells[0], cells[-1].strip())
        for cells in served
        if "2 KiB to below 4 KiB" in (cell.strip() for cell in cells)
    ]
    assert ("openmpi", "the built-in decision") in rules
    assert not [rule for rule in rules if rule[0] == "ucc" and "ring" in rule[1]]


def test_tune_without_a_certain_winner_writes_nothing(collhub, on_h100: tuple[str, ...]) -> None:
    Path("run.txt").write_text(_nccl_tests((KIB, 1.0), (2 * KIB, 1.0), (4 * KIB, 1.0)))
    run = collhub("tune", *on_h100, "-o", "tuned")
    assert run.code == 0, run.err
    assert "wrote no files: every size keeps the runtime's default" in run.err
    assert not Path("tuned").exists()
    assert "all sizes  the runtime's default" in run.out
