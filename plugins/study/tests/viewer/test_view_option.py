"""`--view FILE` of other commands, and the part of a run that timelines show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from page_reading import Page

from hub_core import write
from hub_core.testing import ring_all_reduce, training_step

RING = "ring:4?bandwidth=50GB/s&latency=500ns"
RING_NS = 6 * 5742 + 3


def test_a_simulation_shows_the_selected_ranks(collhub, save, tmp_path: Path) -> None:
    ring, out = save(ring_all_reduce(4), tmp_path / "ring.json"), tmp_path / "run.html"
    asked = ("simulate", ring, "--topology", RING, "--size", "1MiB", "--view", out)
    run = collhub(*asked, "--ranks", "2")
    assert (run.code, f"wrote {out}" in run.err) == (0, True)
    page = Page(out)
    assert page.index["runs"][0]["end"] == RING_NS
    assert set(page.steps()["rank"]) == {2}
    again = collhub(*asked)
    (line,) = again.error_lines
    assert line == (
        f"error: --view {out} exists already; name another file, or remove it [output-exists]"
    )


def test_a_selection_without_a_file_to_show_is_refused(collhub, save, tmp_path: Path) -> None:
    ring = save(ring_all_reduce(4), tmp_path / "ring.json")
    run = collhub("simulate", ring, "--topology", RING, "--size", "1MiB", "--ranks", "2")
    assert run.code == 2
    assert "select data of a file; add --view FILE or --timeline FILE" in run.error_lines[0]


def test_a_timeline_has_only_the_rows_of_the_window(collhub, save, tmp_path: Path) -> None:
    ring, out = save(ring_all_reduce(4), tmp_path / "ring.json"), tmp_path / "trace.json"
    asked = ("simulate", ring, "--topology", RING, "--size", "1MiB", "--timeline", out)
    assert collhub(*asked, "--ranks", "1,2", "--from", "6us", "--to", "11us").code == 0
    events = json.loads(out.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in slices} == {1, 2}
    # A receive that waits in the window is shown as well.
    assert [event["ts"] for event in slices if event["name"].startswith("send")] == [5.743] * 2


def test_a_requested_timeline_is_complete_however_large(
    collhub, save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collhub_pictures.timelines.MAX_EVENTS", 10)
    ring, out = save(ring_all_reduce(4), tmp_path / "ring.json"), tmp_path / "trace.json"
    asked = ("simulate", ring, "--topology", RING, "--size", "1MiB", "--timeline", out)
    assert "groups of ranks" in collhub(*asked).err
    assert collhub(*asked, "--from", "0s").code == 0
    events = json.loads(out.read_text())["traceEvents"]
    assert sum(event["ph"] == "s" for event in events) == 24


def test_an_execution_shows_measured_times(collhub, save, tmp_path: Path) -> None:
    pytest.importorskip("collhub_local")
    ring, out = save(ring_all_reduce(4), tmp_path / "ring.json"), tmp_path / "run.html"
    assert collhub("run", ring, "--size", "4KiB", "--view", out).code == 0
    page = Page(out)
    assert ["times", "measured with the executor numpy"] in page.index["runs"][0]["facts"]
    assert page.steps()["kinds"].count("send") == 24


def test_a_comparison_shows_every_time_and_the_bound(collhub, tmp_path: Path) -> None:
    pytest.importorskip("collhub_classic")
    out, report = tmp_path / "view.html", tmp_path / "report.json"
    asked = ("compare", "--collective", "all-gather", "--topology", "ring:4", "--size")
    run = collhub(*asked, "1KiB..2KiB", "--with", "ring", "--json", "--view", out)
    assert run.code == 0
    comparison, document = Page(out).index["comparisons"][0], json.loads(run.out)
    assert comparison["sizes"] == [1024, 2048]
    ring, bound = comparison["curves"][:2]
    assert ring["time_ns"] == [row["time_ns"] for row in document["results"]]
    assert (bound["kind"], bound["time_ns"]) == ("bound", document["bounds_ns"])
    report.write_text(run.out)
    again = tmp_path / "again.html"
    assert collhub("view", report, "-o", again).code == 0
    assert Page(again).index["comparisons"][0]["curves"] == comparison["curves"]


def test_a_page_shows_the_job_with_the_baseline_and_the_fastest(collhub, tmp_path: Path) -> None:
    pytest.importorskip("collhub_classic")
    job, out = tmp_path / "job", tmp_path / "job.html"
    write(training_step(num_ranks=4), job)
    asked = ("compare", job, "--topology", RING, "--with", "ring", "--with", "hierarchical")
    run = collhub(*asked, "--json", "--view", out)
    assert run.code == 0, run.err
    page, report = Page(out), json.loads(run.out)
    (shown,) = page.index["job_comparisons"]
    assert [row["time_ns"] for row in shown["rows"]] == [
        row["time_ns"] for row in report["results"]
    ]
    assert [row["is_baseline"] for row in shown["rows"]] == [True, False]
    assert page.index["runs"][0]["end"] == report["results"][0]["time_ns"]
    saved, again = tmp_path / "report.json", tmp_path / "again.html"
    saved.write_text(run.out)
    assert collhub("view", saved, "-o", again).code == 0
    assert Page(again).index["job_comparisons"][0]["rows"] == shown["rows"]


def test_a_tuned_page_compares_every_collective(collhub, tmp_path: Path) -> None:
    pytest.importorskip("collhub_classic")
    out, kinds = tmp_path / "view.html", ["all-gather", "reduce-scatter"]
    options = [text for kind in kinds for text in ("--collective", kind)]
    asked = ("tune", "--topology", "ring:4", "--size", "1KiB..2KiB", "--with", "ring", *options)
    tuned = collhub(*asked, "--view", out, "--json")
    assert tuned.code == 0
    assert [one["collective"] for one in Page(out).index["comparisons"]] == kinds
    folder, shown = tmp_path / "tuned", tmp_path / "folder.html"
    folder.mkdir()
    (folder / "report.json").write_text(tuned.out)
    assert collhub("view", folder, "-o", shown).code == 0
    selected = Page(shown).index["comparisons"]
    assert [one["collective"] for one in selected] == kinds
    windows = [one["windows"] for one in json.loads(tuned.out)["collectives"]]
    times = [row["time_ns"] for window in windows[0] for row in window["measured"]]
    assert selected[0]["curves"][0]["time_ns"] == times


def test_a_generated_job_is_shown_on_a_switch(collhub, tmp_path: Path) -> None:
    pytest.importorskip("collhub_models")
    out = tmp_path / "job.html"
    options = ("-O", "data=2", "-O", "layers=2", "-o", tmp_path / "job.json", "--view", out)
    run = collhub("generate", "transformer", *options)
    assert run.code == 0, run.err
    shown = Page(out).index["runs"][0]
    assert shown["ranks"] == 2
    assert shown["collectives"]
    assert ["times", "simulated on switch:2, nominal links"] in shown["facts"]


def test_a_report_that_cannot_be_shown_is_one_line(collhub, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text('{"schema": "collhub/report-verify-1"}')
    run = collhub("view", report, "-o", tmp_path / "x.html")
    assert run.code == 2
    assert "a page cannot show the report 'collhub/report-verify-1'" in run.error_lines[0]


def test_collectives_are_communication_on_the_critical_path(collhub, tmp_path: Path) -> None:
    pytest.importorskip("collhub_models")
    out = tmp_path / "job.html"
    options = ("-O", "data=2", "-O", "layers=1", "-o", tmp_path / "job.json", "--view", out)
    assert collhub("generate", "transformer", *options).code == 0
    page = Page(out)
    steps, entries = page.steps(), page.index["runs"][0]["critical_path"]["entries"]
    reasons = {(steps["kinds"][entry["step"]], entry["reason"]) for entry in entries}
    assert ("all-reduce", "message") in reasons
    assert ("compute", "message") not in reasons
