"""`collhub demo`: the main job on the shipped examples."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest


@pytest.mark.usefixtures("msccl", "simulator", "machines")
def test_the_table_has_every_example_and_the_next_commands_work(collhub, tmp_path: Path) -> None:
    run = collhub("demo", "--output", tmp_path / "demo")
    assert (run.code, run.err) == (0, "")
    table, _, commands = run.out.partition("Try next:")
    header = next(line for line in table.splitlines() if line.startswith("algorithm"))
    assert header.split() == [
        "algorithm",
        "topology",
        "size",
        "time",
        "bandwidth",
        "bound",
        "ratio",
    ]
    commands = commands.partition("Open ")[0]
    lines = [line.strip() for line in commands.splitlines() if line.strip()]
    assert len(lines) == 3
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "collhub"
        assert collhub(*arguments).code == 0


@pytest.mark.usefixtures("msccl", "simulator", "machines")
def test_without_a_folder_only_the_page_is_left_in_a_temporary_folder(
    collhub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, current = tmp_path / "temporary", tmp_path / "current"
    temporary.mkdir()
    current.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.chdir(current)
    run = collhub("demo")
    assert (run.code, run.err) == (0, "")
    assert "Try next:" in run.out
    assert list(current.iterdir()) == []
    pages = [path for path in temporary.rglob("*") if path.is_file()]
    assert [str(page) in run.out for page in pages] in ([], [True])
    report = collhub("demo", "--json").report()
    assert [algorithm["traces"] for algorithm in report["algorithms"]] == [None] * 3


@pytest.mark.usefixtures("msccl", "simulator", "machines")
def test_the_report_has_correct_algorithms_and_no_time_below_the_bound(
    collhub, tmp_path: Path
) -> None:
    report = collhub("demo", "--output", tmp_path, "--json").report()
    assert len(report["algorithms"]) >= 3
    assert {algorithm["collective"] for algorithm in report["algorithms"]} >= {
        "all-reduce",
        "all-gather",
    }
    assert all(algorithm["ok"] for algorithm in report["algorithms"])
    assert len({run["topology"] for run in report["runs"]}) >= 3
    assert all(run["ratio_to_bound"] >= 1 for run in report["runs"])


@pytest.mark.usefixtures("msccl", "simulator", "machines")
def test_the_demo_may_run_again_into_the_same_folder(collhub, tmp_path: Path) -> None:
    first, second = (collhub("demo", "--output", tmp_path) for _ in range(2))
    assert (first.code, first.out) == (second.code, second.out)


def test_without_plugins_the_demo_says_what_to_install(collhub, tmp_path: Path) -> None:
    run = collhub("--no-plugins", "demo", "--output", tmp_path / "demo")
    assert (run.code, len(run.err.splitlines())) == (3, 1)
    assert "python -m pip install -r requirements.txt" in run.err
    assert not (tmp_path / "demo").exists()
