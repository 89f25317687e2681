"""`collhub pipeline`: reports, files of PyTorch, and refusals in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.needs_plugins
SHAPE = ("-O", "stages=4", "-O", "micro_batches=8", "-O", "forward=2ms", "-O", "input_gradient=2ms")


def test_a_report_states_the_objective_and_the_bounds(collhub) -> None:
    run = collhub("pipeline", "search", *SHAPE, "-O", "memory=4", "--json")
    assert run.code == 0, run.err
    report = run.report()
    assert report["objective"] == "step"
    assert report["is_optimal"]
    # The last device starts after three forward passes of half a stage.
    assert report["step_ns"] == report["search_bound_ns"] == 43e6
    assert report["bounds"]["work_ns"] == 43e6
    assert [device["limit"] for device in report["devices"]] == [4] * 4
    assert max(device["peak"] for device in report["devices"]) <= 4


def test_the_steady_state_is_an_objective(collhub) -> None:
    run = collhub("pipeline", "zbv", *SHAPE, "-O", "objective=steady", "--json")
    report = run.report()
    assert report["objective"] == "steady"
    assert report["bubble"] == pytest.approx(1 - 40e6 / report["steady_ns"])
    assert report["bounds"]["critical_path_ns"] == 0


def test_a_search_without_time_for_one_schedule_is_refused(collhub) -> None:
    run = collhub("pipeline", "search", "-O", "memory=1", "--timeout", "0.000001")
    assert run.code == 1
    assert "the search found no schedule that fits: the time limit was reached" in run.err


@pytest.mark.once
@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
def test_a_written_file_is_read_and_timed_alike(collhub, tmp_path: Path, form: str) -> None:
    file = tmp_path / "schedule.csv"
    first = collhub("pipeline", "dualpipe-v", *SHAPE, "-o", file, "--format", form, "--json")
    assert first.code == 0, first.err
    assert first.report()["artifacts"] == [str(file)]
    second = collhub("pipeline", file, "-O", "forward=2ms", "-O", "input_gradient=2ms", "--json")
    assert second.code == 0, second.err
    for member in ("step_ns", "steady_ns", "devices", "placement", "micro_batches"):
        assert first.report()[member] == second.report()[member]


def test_a_file_becomes_a_job_that_is_simulated_alike(collhub, tmp_path: Path) -> None:
    file = tmp_path / "schedule.csv"
    assert collhub("pipeline", "zbv", *SHAPE, "-o", file).code == 0
    run = collhub("generate", "pipeline", *SHAPE, "-O", f"csv={file}", "-O", "activation=1B",
                  "-o", tmp_path / "job")  # fmt: skip
    assert run.code == 0, run.err
    run = collhub("simulate", tmp_path / "job", "--topology", "fc:4?latency=0ns", "--json")
    step_ns = collhub("pipeline", file, *SHAPE, "--json").report()["step_ns"]
    # Each of the transfers of one byte takes at least 1 ns.
    assert step_ns <= run.report()["time_ns"] <= step_ns + 200


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["search", "-O", "memory=0.5"], 2, "the possible minimum is 1"),
        (["zbv", "-O", "memory=2"], 2, "zbv holds 4 micro-batches, the memory is for 2"),
        (["zbv", "-O", "chunks=3"], 2, "zbv has 2 chunks a device, not 3"),
        (["fast"], 2, "'fast' is neither a schedule nor a CSV file"),
        (["missing.csv"], 1, "cannot read missing.csv"),
        (["zbv", "-O", "stage_times=1ms/2ms"], 2, "-O stage_times: '1ms/2ms' is no three times"),
        (["zbv", "-O", "memory=x"], 2, "-O memory=x does not state numbers of at least 0"),
        (["zbv", "-O", "memory=1e999999999"], 2, "does not state numbers of at least 0"),
        (["zbv", "-O", "stage_sizes=1e-999999999"], 2, "does not state numbers of at least 0"),
        (["zbv", "-O", "memory=4,4"], 2, "2 memory limits do not state one for each device"),
        (["1f1b", "-O", "slices=2", "-o", "x.csv"], 1, "CSV cannot express token slices"),
    ],
)
def test_requests_that_do_not_fit_are_refused_in_one_line(
    collhub, arguments, code, message
) -> None:
    run = collhub("pipeline", *arguments)
    assert run.code == code
    assert message in run.err
    assert len(run.err.strip().splitlines()) == 1
    assert not run.out


def test_a_deadlock_names_stages_and_actions(collhub, tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
    run = collhub("pipeline", file)
    assert run.code == 1
    assert "rank 0 waits in 0B0 (stage 0) for 1B0, rank 1 waits in 1F1 (stage 1)" in run.err
    other = collhub("generate", "pipeline", "-O", f"csv={file}", "-o", tmp_path / "job")
    assert other.code == 1
    assert "the schedule deadlocks" in other.err
