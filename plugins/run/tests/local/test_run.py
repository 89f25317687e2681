"""`collhub run`: verdict, fixed fields, timings, options, one line for all that cannot run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hub_core
from hub_core.model import StepKind
from hub_core.plugin_api import ReportWriter, Shown
from hub_core.testing import all_samples, ring_all_reduce, shift_to_next

FIXED = ("ok", "max_abs_error", "ranks_agree_bitwise", "time_s", "bus_bandwidth_bytes_per_s")


def test_the_report_has_the_fixed_fields(collhub, ring: Path) -> None:
    report = collhub("run", ring, "--size", "4KiB", "--repeats", "3", "--json").report()
    assert [report[name] for name in FIXED[:3]] == [True, 0.0, True]
    assert sorted(report["repeat_times_s"])[1] == report["time_s"] > 0
    assert report["bus_bandwidth_bytes_per_s"] == pytest.approx(1.5 * 4096 / report["time_s"])
    assert (report["levels"], report["messages"], report["comparison"]) == (6, 24, "bitwise")


def test_the_text_states_the_verdict(collhub, ring: Path) -> None:
    run = collhub("run", ring, "--size", "4KiB")
    assert (run.code, run.err) == (0, "")
    fields = dict(line.split(maxsplit=1) for line in run.out.splitlines())
    assert fields["program"] == "24 messages in 6 levels"
    assert fields["result"] == "right, bit by bit"
    assert fields["ranks"] == "all have the same bits"


@pytest.mark.parametrize("sample", sorted(all_samples(4)))
def test_every_collective_runs(collhub, save, tmp_path: Path, sample: str) -> None:
    path = save(all_samples(4)[sample], tmp_path / "a.json")
    report = collhub(
        "run", path, "--size", "1536B", "--dtype", "int64", "--op", "max", "--json"
    ).report()
    assert report["ok"]


def test_random_numbers_are_held_against_the_bound_and_the_order(collhub, ring: Path) -> None:
    arguments = (
        "--size",
        "64KiB",
        "--data",
        "random",
        "--op",
        "avg",
        "--executor",
        "shared-memory",
    )
    report = collhub("run", ring, *arguments, "--json").report()
    assert (report["ok"], report["comparison"], report["order_kept"]) == (True, "bound", True)
    assert 0 < report["max_abs_error"] < report["error_bound"]


def test_a_wrong_algorithm_is_exit_1_and_names_the_first_elements(
    collhub, save, tmp_path: Path
) -> None:
    algorithm = ring_all_reduce(4)
    kind = algorithm.steps.kind.copy()
    kind[np.flatnonzero(kind == StepKind.RECV_REDUCE)[0]] = StepKind.RECV
    path = save(
        replace(algorithm, steps=replace(algorithm.steps, kind=kind)), tmp_path / "wrong.json"
    )
    run = collhub("run", path, "--size", "1KiB", "--json", "--verify", "off")
    assert (run.code, run.report()["ok"], run.report()["ranks_agree_bitwise"]) == (1, False, True)
    assert len(run.error_lines) == 4
    assert re.match(
        r"error: rank 0: OUTPUT has \S+ at element \d+, expected \S+; 6\d of 256 elements",
        run.error_lines[0],
    )


def test_an_in_place_run_of_what_claims_none_is_a_warning(collhub, save, tmp_path: Path) -> None:
    path = save(all_samples(4)["staged-all-to-all"], tmp_path / "a.json")
    claimed = all_samples(4)["staged-all-to-all"].collective
    run = collhub("run", path, "--size", "1KiB", "--in-place")
    assert run.code == 0
    assert ("does not claim to work in place" in run.err) is not claimed.in_place


def test_a_collective_without_stated_result_is_run_and_not_judged(
    collhub, save, tmp_path: Path
) -> None:
    algorithm = shift_to_next(4)
    assert algorithm.collective.contract is not None
    contract = replace(algorithm.collective.contract, expected=None)
    path = save(
        replace(algorithm, collective=replace(algorithm.collective, contract=contract)),
        tmp_path / "a.json",
    )
    run = collhub("run", path, "--size", "1KiB", "--json")
    report = run.report()
    assert [
        report[name] for name in ("comparison", "max_abs_error", "bus_bandwidth_bytes_per_s")
    ] == ["none", None, None]
    assert "states no result" in run.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--size", "64TiB"], 2, "4 ranks need 576 TiB of memory, this machine has"),
        ([], 2, "states no size; give one, for example --size 1MiB"),
        (
            ["--size", "1KiB", "--dtype", "int8"],
            2,
            "dtype 'int8' is not known; use one of float16",
        ),
        (
            ["--size", "1KiB", "--op", "mean"],
            2,
            "there is no reduction 'mean'; use one of sum, prod",
        ),
        (
            ["--size", "1KiB", "--executor", "nunpy"],
            2,
            "there is no executor 'nunpy'; did you mean 'numpy'?",
        ),
        (["--size", "1KiB", "--timeout", "0"], 2, "--timeout"),
        (["--size", "1KiB", "-O", "speed=1"], 2, "there is no option 'speed'"),
    ],
)
def test_a_bad_request_is_one_line(
    collhub, ring: Path, arguments: list[str], code: int, message: str
) -> None:
    run = collhub("run", ring, *arguments)
    assert (run.code, run.out, len(run.error_lines)) == (code, "", 1)
    assert message in run.err


@pytest.mark.parametrize("executor", ["numpy", "shared-memory"])
def test_a_size_that_does_not_divide_is_rounded_down_and_said(
    collhub, ring: Path, executor: str
) -> None:
    run = collhub("run", ring, "--size", "1001B", "--executor", executor, "--json")
    assert (run.code, run.report()["ok"], run.report()["collective_bytes"]) == (0, True, 992)
    (line,) = run.err.splitlines()
    assert line.startswith("note: 1001 bytes are not a whole number of float32 elements")
    assert line.endswith("992 bytes are run [size-rounded]")


def test_a_race_is_refused_with_its_steps(collhub, racy: Path) -> None:
    run = collhub("run", racy, "--size", "1KiB")
    assert (run.code, run.out) == (1, "")
    assert "nothing orders this" in run.error_lines[0]


def test_a_deadlock_names_the_position_of_every_rank(collhub, ring: Path) -> None:
    document = json.loads(ring.read_bytes())
    columns = document["steps"]
    for name, column in columns.items():
        if isinstance(column, list) and name not in ("data", "control"):
            columns[name] = [
                value for pair in zip(column[1::2], column[::2], strict=True) for value in pair
            ]
    columns["control"] = [[row - 1] if row % 12 else [] for row in range(48)]
    columns["data"] = [[] for _ in range(48)]
    path = ring.with_name("stuck.json")
    path.write_text(json.dumps(document))
    run = collhub("run", path, "--size", "1KiB", "--verify", "off")
    assert run.code == 1
    assert "wait for each other" in run.error_lines[0]
    assert [f"rank {rank}, step" in line for rank, line in enumerate(run.error_lines[1:])] == [
        True
    ] * 4


HAS_TIMELINES = any(
    writer.offer.shows is Shown.RUN for writer in hub_core.discover().all(ReportWriter)
)


@pytest.mark.skipif(not HAS_TIMELINES, reason="no installed plugin draws runs")
@pytest.mark.parametrize("executor", ["numpy", "shared-memory"])
def test_the_timeline_has_a_slice_a_step(
    collhub, ring: Path, tmp_path: Path, executor: str
) -> None:
    out = tmp_path / "run.json"
    assert (
        collhub("run", ring, "--size", "4KiB", "--executor", executor, "--timeline", out).code == 0
    )
    events = json.loads(out.read_bytes())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 4 * 12


def test_executors_are_listed(collhub) -> None:
    names = [
        item["name"]
        for item in collhub("formats", "--json").report()["formats"]
        if item["does"] == "run"
    ]
    assert {"numpy", "shared-memory"} <= set(names)


def test_what_is_wrong_is_refused_before_it_runs(collhub, racy: Path) -> None:
    run = collhub("run", racy, "--size", "1KiB", "--json")
    assert (run.code, run.out) == (1, "")
    assert "--verify warn or --verify off" in run.err


def test_the_help_needs_no_numpy() -> None:
    code = (
        "import sys, click\n"
        "from collhub_local.run_command import run\n"
        "run.get_help(click.Context(run))\n"
        "assert 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
