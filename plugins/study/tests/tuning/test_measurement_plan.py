"""Decisions against predicted defaults, and the measurements that decide open sizes."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from collhub_tuning.baseline import DefaultTime, TimeBand, decide_size, find_winners
from collhub_tuning.comparison_report import ComparisonOutcome
from collhub_tuning.measured_curves import MeasuredCurve, MeasuredCurves
from collhub_tuning.measurement_plan import (
    find_missing_measurements,
    plan_lines,
    plan_measurements,
)
from collhub_tuning.questions import AlgorithmAtSize, ComparedAlgorithm, ComparisonQuestion
from collhub_tuning.tuned_collectives import TunedCollective

import hub_core
from hub_core import TimingSource
from hub_core.plugin_api import FormatWriter, Library, MachineDescription, Simulator, Synthesizer

MIB = 2**20
NCCL = Library("NCCL", "2.29.2")
# For NCCL's all-reduce of 8 ranks the profile of H100 gives 22.20 us at 1 MiB (20.15 to 24.71 us
# with its error), 38.18 us at 2 MiB and 53.10 us at 4 MiB.


def _outcome(
    times_us: dict[str, dict[int, float]],
    *,
    topology: str = "dgx-h100",
    is_machine: bool = True,
    measured: MeasuredCurves | None = None,
) -> ComparisonOutcome:
    """Return simulated times by algorithm and size; on a machine with an error of 10 %."""
    network = hub_core.parse_topology(topology)
    sizes = tuple(sorted({size for times in times_us.values() for size in times}))
    question = ComparisonQuestion(
        "all-reduce", None, topology, network.num_npus, sizes, "machine", "both"
    )
    measurements = [
        AlgorithmAtSize(name, size, round(time * 1e3))
        for name, times in times_us.items()
        for size, time in times.items()
    ]
    machine = MachineDescription("h100", "NCCL 2.29.2", 0.1) if is_machine else None
    timing = TimingSource("machine", {}, machine)
    registry = hub_core.run_registry()
    return ComparisonOutcome(question, network, measurements, registry, (), timing, measured)


def _tuned(outcome: ComparisonOutcome) -> TunedCollective:
    names = dict.fromkeys(one.algorithm for one in outcome.measurements)
    return TunedCollective(
        outcome, [ComparedAlgorithm(name, is_file=False) for name in names], 0.02
    )


@pytest.mark.parametrize(
    ("time_us", "kind", "winner"),
    [
        # NCCL takes 20.15 us or more; 18 us stand for 18 / 0.9 = 20 us or less.
        (18.0, "simulated", "ours"),
        (20.0, "undecided", None),
        (27.0, "undecided", None),
        # NCCL takes 24.71 us or less; 28 us stand for 28 / 1.1 = 25.5 us or more.
        (28.0, "predicted", ""),
    ],
)
def test_a_size_without_measurement_is_decided_by_the_predicted_default(
    time_us: float, kind: str, winner: str | None
) -> None:
    decision = decide_size(_outcome({"ours": {MIB: time_us}}), MIB)
    assert decision is not None
    assert (decision.kind, decision.winner) == (kind, winner)


def test_only_certain_winners_have_windows() -> None:
    tuned = _tuned(_outcome({"ours": {MIB: 18.0, 2 * MIB: 38.0, 4 * MIB: 90.0}}))
    assert [window.sizes for window in tuned.windows] == [(MIB,)]
    assert [window.sizes for window in tuned.default_windows] == [(2 * MIB, 4 * MIB)]


def test_nominal_links_are_not_compared_with_a_predicted_default() -> None:
    tuned = _tuned(_outcome({"ours": {MIB: 90.0}}, is_machine=False))
    assert [window.sizes for window in tuned.windows] == [(MIB,)]
    assert find_missing_measurements(tuned) == {"default": [MIB], "ours": [MIB]}


def test_a_decided_size_needs_no_measurement() -> None:
    assert plan_measurements([_tuned(_outcome({"ours": {MIB: 18.0, 4 * MIB: 90.0}}))]) == []


def test_algorithms_that_cannot_win_are_not_measured() -> None:
    times = {"ring": {MIB: 24.0}, "swing": {MIB: 26.0}, "direct": {MIB: 60.0}}
    missing = find_missing_measurements(_tuned(_outcome(times)))
    assert missing == {"default": [MIB], "ring": [MIB], "swing": [MIB]}


def test_algorithms_in_files_with_equal_names_have_separate_runs() -> None:
    times = {MIB: 20.0}
    tuned = _tuned(_outcome({"a/x.json": times, "b/x.json": times, "c/x.json": times}))
    runs = [run for run in plan_measurements([tuned, tuned]) if run.subject]
    outputs = {run.subject: run.output for run in runs if run.subject.endswith("x.json")}
    assert sorted(outputs.values()) == [
        "all-reduce-x-json-2.jsonl",
        "all-reduce-x-json-3.jsonl",
        "all-reduce-x-json.jsonl",
    ]
    assert len(runs) == len({run.output for run in runs})


def test_measured_times_decide_and_the_plan_becomes_empty() -> None:
    times = {"ring": {MIB: 24.0}, "swing": {MIB: 26.0}}
    default = (MeasuredCurve(NCCL, {MIB: 25.0}),)
    outcome = _outcome(times, measured=MeasuredCurves(default, {}))
    assert find_missing_measurements(_tuned(outcome)) == {"ring": [MIB], "swing": [MIB]}
    measured = MeasuredCurves(default, {}, {"ring": {MIB: 25.5}, "swing": {MIB: 23.0}})
    tuned = _tuned(replace(outcome, measured=measured))
    assert plan_measurements([tuned]) == []
    assert [window.algorithm for window in tuned.windows] == ["swing"]
    measured = MeasuredCurves(default, {}, {"ring": {MIB: 25.5}, "swing": {MIB: 25.0}})
    tuned = _tuned(replace(outcome, measured=measured))
    assert not tuned.windows
    assert plan_measurements([tuned]) == []


def test_a_simulated_time_overrides_a_measured_one_only_beyond_its_error() -> None:
    default = DefaultTime(NCCL, TimeBand.of(50.0, 0.0))
    exact, near, far = TimeBand.of(20.0, 0.0), TimeBand.of(19.0, 0.1), TimeBand.of(10.0, 0.1)
    assert find_winners(default, {"near": near, "exact": exact}) == ["exact"]
    assert find_winners(default, {"far": far, "exact": exact}) == ["far", "exact"]


def test_nccls_own_algorithms_are_selected_by_variables() -> None:
    times = {"double-binary-tree": {MIB: 24.0, 4 * MIB: 55.0}, "ring": {MIB: 24.0, 4 * MIB: 55.0}}
    plan = plan_measurements([_tuned(_outcome(times))])
    assert [(run.subject, dict(run.environment), run.argument) for run in plan] == [
        ("default", {}, "all-reduce-default.txt"),
        (
            "double-binary-tree",
            {"NCCL_ALGO": "Tree"},
            "double-binary-tree=all-reduce-double-binary-tree.txt",
        ),
        ("ring", {"NCCL_ALGO": "Ring"}, "ring=all-reduce-ring.txt"),
    ]
    # 1 and 4 MiB are no series that doubles.
    assert plan[0].commands == (
        "all_reduce_perf -b 1048576 -e 1048576 -f 2 -g 8 -w 20 -n 100 > all-reduce-default.txt",
        "all_reduce_perf -b 4194304 -e 4194304 -f 2 -g 8 -w 20 -n 100 >> all-reduce-default.txt",
    )


def test_several_nodes_run_one_process_for_each_rank() -> None:
    times = {"ring": {MIB: 24.0, 2 * MIB: 30.0}}
    outcome = _outcome(times, topology="dgx-h100:2", is_machine=False)
    run = plan_measurements([_tuned(outcome)])[-1]
    assert run.commands == (
        "mpirun -np 16 -N 8 -x NCCL_ALGO=Ring all_reduce_perf -b 1048576 -e 2097152 -f 2 -g 1"
        " -w 20 -n 100 > all-reduce-ring.txt",
    )
    assert run.environment == {}


@pytest.mark.parametrize(
    ("has_msccl", "output", "words"),
    [(False, "all-reduce-swing.jsonl", "make -C"), (True, "all-reduce-swing.txt", "msccl-xml")],
)
def test_other_algorithms_run_as_programs(has_msccl: bool, output: str, words: str) -> None:
    outcome = _outcome({"swing": {MIB: 24.0}})
    run = plan_measurements([_tuned(outcome)], has_msccl=has_msccl)[-1]
    assert run.output == output
    assert words in " ".join(run.prepare)
    assert run.environment == ({"MSCCL_ALGO_FILES": "all-reduce-swing.xml"} if has_msccl else {})


@pytest.mark.parametrize("has_msccl", [False, True])
def test_the_command_that_creates_a_program_runs(
    collhub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_msccl: bool
) -> None:
    writers = {one.name for one in hub_core.discover().all(FormatWriter)}
    if not {"nccl", "msccl-xml"} <= writers:
        pytest.skip("the writers nccl and msccl-xml are not installed")
    monkeypatch.chdir(tmp_path)
    outcome = _outcome({"recursive-doubling": {MIB: 24.0}})
    run = plan_measurements([_tuned(outcome)], has_msccl=has_msccl)[-1]
    program, *arguments = shlex.split(run.prepare[0])
    assert program == "collhub"
    result = collhub(*arguments)
    assert result.code == 0, result.err
    assert any(tmp_path.iterdir())


def test_the_text_names_every_command_and_the_next_call() -> None:
    plan = plan_measurements([_tuned(_outcome({"ring": {MIB: 24.0}}))])
    lines = plan_lines(plan)
    assert lines[0] == "# 2 measurements decide 1 undecided size:"
    assert lines[-1] == (
        "# then repeat this command with --measured all-reduce-default.txt"
        " --measured ring=all-reduce-ring.txt"
    )
    assert all(line.startswith("#") or "all_reduce_perf" in line for line in lines)
    assert plan_lines([]) == []


def _nccl_tests(command: str, time_us: float) -> str:
    """Return the output of a planned command of nccl-tests, with one time for all sizes."""
    words = [word for word in shlex.split(command) if "=" not in word]
    first, last = (int(words[words.index(flag) + 1]) for flag in ("-b", "-e"))
    sizes = [first << shift for shift in range(40) if first << shift <= last]
    devices = "".join(
        f"#  Rank  {rank} Group  0 Pid   12{rank} on alpha device  {rank} [0000:1b:00]"
        " NVIDIA H100 80GB HBM3\n"
        for rank in range(8)
    )
    rows = "".join(
        f"{size:12d} {size // 4:13d}     float     sum      -1 {time_us:8.2f}    0.14    0.14"
        f"       0 {time_us:8.2f}    0.15    0.15       0\n"
        for size in sizes
    )
    return (
        "# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=22902\n"
        f"# Collective test starting: {words[0]}\n"
        f"# nThread 1 nGpus 8 minBytes {first} maxBytes {last} step: 2(factor) iters: 20"
        f" agg iters: 1 graph: 0\n{devices}"
        "#                                                 out-of-place"
        "                       in-place\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        f"     time   algbw   busbw  #wrong\n{rows}# Avg bus bandwidth    : 0.3\n"
    )


@pytest.mark.once
def test_results_of_the_plan_decide_every_size(
    collhub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registry = hub_core.discover()
    if "machine" not in {one.name for one in registry.all(Simulator)} or "ring" not in {
        one.name for one in registry.all(Synthesizer)
    }:
        pytest.skip("the simulator machine and the synthesizer ring are not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = (
        *("tune", "--topology", "dgx-h100", "--collective", "all-reduce", "--jobs", "1"),
        *("--size", "8MiB..32MiB", "--with", "ring", "--json"),
    )
    report = collhub(*asked).report()
    plan = report["plan"]
    assert [run["subject"] for run in plan] == ["default", "ring"]
    arguments = []
    for run, time_us in zip(plan, (90.0, 70.0), strict=True):
        texts = [_nccl_tests(command, time_us) for command in run["commands"]]
        Path(run["output"]).write_text("".join(texts))
        arguments += ["--measured", run["measured"]]
        report = collhub(*asked, *arguments).report()
    (collective,) = report["collectives"]
    assert report["plan"] == []
    undecided = set(plan[0]["sizes"])
    decisions = {one["size"]: one for one in collective["decisions"]}
    assert {decisions[size]["winner"] for size in undecided} == {"ring"}
    assert {decisions[size]["decision"] for size in undecided} == {"measured"}


def test_a_program_gives_times_of_both_sides(
    collhub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    line = {
        "ok": True, "collective": "all-reduce", "num_ranks": 8, "first_rank": 0,
        "in_place": False, "collective_bytes": MIB, "time_s": 2.1e-05,
        "native_time_s": 2.4e-05, "is_graph": False, "nccl_version": 22902,
    }  # fmt: skip
    Path("swing.jsonl").write_text(json.dumps(line) + "\n")
    run = collhub(
        *("tune", "--topology", "dgx-h100", "--collective", "all-reduce", "--jobs", "1"),
        *("--size", "1MiB", "--with", "swing", "--measured", "swing=swing.jsonl", "--json"),
    )
    assert run.code == 0, run.err
    (collective,) = run.report()["collectives"]
    (decision,) = collective["decisions"]
    assert (decision["winner"], decision["decision"]) == ("swing", "measured")
    assert (decision["default_ns"][0], decision["fastest_ns"][0]) == (24_000, 21_000)


def test_options_of_readers_are_passed(
    collhub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("run.txt").write_text(_nccl_tests("all_reduce_perf -b 1048576 -e 1048576", 24.0))
    asked = (
        *("compare", "--topology", "dgx-h100", "--collective", "all-reduce", "--jobs", "1"),
        *("--size", "1MiB", "--with", "ring", "--measured", "run.txt"),
    )
    assert collhub(*asked, "-O", "place=in").code == 0
    run = collhub(*asked, "-O", "warmup-calls=2")
    assert run.code == 2
    assert "warmup" in run.err
