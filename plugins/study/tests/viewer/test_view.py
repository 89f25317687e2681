"""`collhub view`: the data of the page is that of the simulation."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from collhub_viewer.report_inputs import index_waits
from page_reading import Page

from hub_core import write
from hub_core.plugin_api import WaitForGraph, WaitingRanks
from hub_core.testing import ring_all_reduce, training_step

RING = "ring:4?bandwidth=50GB/s&latency=500ns"
ASKED = ("--topology", RING, "--size", "1MiB")
RING_NS = 6 * 5742 + 3


@pytest.fixture
def page(collhub, save, tmp_path: Path) -> Page:
    ring, out = save(ring_all_reduce(4), tmp_path / "ring.json"), tmp_path / "run.html"
    run = collhub("view", ring, *ASKED, "-o", out)
    assert (run.code, run.out, run.err) == (0, "", f"wrote {out}\n")
    return Page(out)


def test_steps_have_the_simulated_times_and_match_each_other(page: Page) -> None:
    run, steps = page.index["runs"][0], page.steps()
    assert (run["end"], run["ranks"], run["tick_ps"]) == (RING_NS, 4, 1000)
    sends = np.flatnonzero([kind == "send" for kind in steps["kinds"]])
    assert len(sends) == 24
    assert set(steps["duration"][sends]) == {5742}
    receipts = steps["partner"][sends].astype(int)
    assert np.array_equal(steps["rank"][receipts], steps["peer"][sends])
    assert np.array_equal(steps["partner"][receipts], sends)
    assert np.array_equal(steps["chunk"][receipts], steps["chunk"][sends])


def test_a_lane_is_sorted_and_its_steps_do_not_overlap(page: Page) -> None:
    steps = page.steps()
    same_lane = steps["lane"][1:] == steps["lane"][:-1]
    ends = (steps["start"] + steps["duration"])[:-1]
    assert (steps["start"][1:][same_lane] >= ends[same_lane]).all()


def test_every_chunk_visits_all_ranks_in_the_order_of_the_ring(page: Page) -> None:
    steps = page.steps()
    sends = [row for row, kind in enumerate(steps["kinds"]) if kind == "send"]
    for chunk in range(4):
        route = sorted(
            (row for row in sends if steps["chunk"][row] == chunk), key=steps["start"].__getitem__
        )
        ranks = [int(steps["rank"][row]) for row in route]
        assert len(ranks) == 6
        assert all((after - before) % 4 == 1 for before, after in itertools.pairwise(ranks))


def test_links_carry_one_transfer_for_every_send(page: Page) -> None:
    run, steps = page.index["runs"][0], page.steps()
    links = run["links"]
    first = page.column(links["first"])
    assert first[-1] == 24
    rows = page.column(links["step"]).astype(int)
    assert np.array_equal(page.starts(links), steps["start"][rows])
    source = np.repeat(page.column(links["from"]), np.diff(first).astype(int))
    assert np.array_equal(source, steps["rank"][rows])
    assert not page.column(links["queued"]).any()


def test_the_critical_path_leads_to_the_end_of_the_run(page: Page) -> None:
    entries = page.index["runs"][0]["critical_path"]["entries"]
    assert entries[-1]["start"] + entries[-1]["duration"] == RING_NS
    assert sum(entry["duration"] for entry in entries) == RING_NS


def test_the_policy_admits_only_the_program_of_the_page(page: Page) -> None:
    html = page.html
    policy = re.search(rb'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert policy[1].startswith(b"default-src 'none'; ")
    script = html.rpartition(b"<script>")[2].partition(b"</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script).digest())
    assert b"script-src 'sha256-" + digest + b"';" in policy[1]
    assert not re.search(rb"""(?:src|href)=["']?https?:""", html)


def test_the_same_input_gives_the_same_bytes(collhub, save, tmp_path: Path, page: Page) -> None:
    out = tmp_path / "again.html"
    assert collhub("view", tmp_path / "ring.json", *ASKED, "-o", out).code == 0
    assert out.read_bytes() == page.html


def test_ranks_and_a_window_select_the_data(collhub, save, tmp_path: Path) -> None:
    ring, out = save(ring_all_reduce(4), tmp_path / "ring.json"), tmp_path / "run.html"
    window = ("--ranks", "0-1", "--from", "6us", "--to", "11us")
    run = collhub("view", ring, *ASKED, *window, "-o", out)
    assert run.code == 0
    assert "shows ranks 0,1 from 6.00 us to 11.00 us" in run.err
    steps = Page(out).steps()
    assert set(steps["rank"]) == {0, 1}
    sends = np.asarray([kind == "send" for kind in steps["kinds"]])
    # Sends begin every 5743 ns. A receive that waits in the window is shown as well.
    assert sorted(steps["start"][sends]) == [5743, 5743]
    assert "wait" in steps["kinds"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ranks", "4"), "there is no rank 4: the ranks are 0 to 3"),
        (("--from", "1ms"), "the window begins at 1.00 ms, after the end of the run"),
        (("--from", "9us", "--to", "8us"), "the window from 9.00 us to 8.00 us is empty"),
        (("--from", "1us", "--from", "2us"), "--from states two times: 1us, 2us"),
        (("--size", "1KiB..2KiB"), "view needs a single size"),
    ],
)
def test_a_wrong_selection_is_one_line_with_its_cure(
    collhub, save, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    ring, out = save(ring_all_reduce(4), tmp_path / "ring.json"), tmp_path / "run.html"
    run = collhub("view", ring, *ASKED, *arguments, "-o", out)
    assert (run.code, len(run.error_lines)) == (2, 1)
    assert message in run.error_lines[0]
    assert not out.exists()


def test_an_existing_page_is_replaced_only_on_request(collhub, tmp_path: Path) -> None:
    out = tmp_path / "net.html"
    out.write_text("mine")
    run = collhub("view", "ring:4", "-o", out)
    assert run.code == 2
    (line,) = run.error_lines
    assert line == (
        f"error: {out} exists already; name another file, or add --force [output-exists]"
    )
    assert collhub("view", "ring:4", "-o", out, "--force").code == 0
    assert [node["kind"] for node in Page(out).index["runs"][0]["topology"]["nodes"]] == ["npu"] * 4


def test_two_runs_are_on_one_page(collhub, save, tmp_path: Path) -> None:
    ring, out = save(ring_all_reduce(4), tmp_path / "ring.json"), tmp_path / "run.html"
    assert collhub("view", ring, ring, *ASKED, "-o", out).code == 0
    assert len(Page(out).index["runs"]) == 2


def test_the_links_of_a_job_show_the_messages_of_its_collectives(collhub, tmp_path: Path) -> None:
    job, out = tmp_path / "job", tmp_path / "job.html"
    write(training_step(num_ranks=4), job)
    assert collhub("view", job, "--topology", RING, "-o", out).code == 0
    page = Page(out)
    links, steps = page.index["runs"][0]["links"], page.steps()
    step = page.column(links["step"]).astype(int)
    assert {steps["kinds"][one] for one in step} == {"all-reduce"}
    source = np.repeat(page.column(links["from"]), np.diff(page.column(links["first"]).astype(int)))
    # On a ring every message goes to a neighbour, so that its rank is the source of the link.
    assert np.array_equal(steps["rank"][step], source)
    start, end = (page.starts(links), steps["start"] + steps["duration"])
    assert (start >= steps["start"][step]).all()
    assert (start + page.column(links["duration"]) <= end[step]).all()


def test_hostile_names_do_not_leave_the_document(collhub, save, tmp_path: Path) -> None:
    name = "ring</script><script>alert(1)</script>&.json"
    ring, out = save(ring_all_reduce(4), tmp_path / "ring.json"), tmp_path / "run.html"
    hostile = tmp_path / name.replace("/", "\u2215")
    ring.rename(hostile)
    assert collhub("view", hostile, *ASKED, "-o", out).code == 0
    page = Page(out)
    assert page.html.count(b"<script") == 3
    assert page.index["runs"][0]["name"] == hostile.name
    assert b"alert(1)<" not in page.html


def test_a_report_of_a_hang_shows_who_waits_for_whom(collhub, tmp_path: Path) -> None:
    folder, report, out = tmp_path / "hang", tmp_path / "report.json", tmp_path / "hang.html"
    folder.mkdir()
    for rank in range(2):
        entry = {
            "process_group": ["1", "tp"],
            "collective_seq_id": 1,
            "profiling_name": "nccl:all_reduce",
            "input_sizes": [[1024]],
            "output_sizes": [[1024]],
            "state": "started",
        }
        document = {
            "version": "2.10",
            "pg_config": {"1": {"desc": "tp", "ranks": "[0, 1]"}},
            "entries": [entry] if rank == 0 else [],
        }
        (folder / f"dump_{rank}").write_text(json.dumps(document))
    report.write_text(collhub("diagnose", folder, "--json").out)
    assert collhub("view", report, "-o", out).code == 0
    waits = Page(out).index["waits"]
    assert waits["edges"] == [{"from": 0, "to": 1, "text": "all_reduce (1)"}]
    assert {node["rank"]: node["state"] for node in waits["nodes"]} == {0: "waiting", 1: "culprit"}


def test_ranks_that_wait_beyond_the_limit_have_no_edges() -> None:
    many = WaitingRanks(tuple(range(201)), tuple(range(300, 400)), "a")
    rest = WaitingRanks(tuple(range(700, 850)), (900,), "b")
    waits = index_waits(WaitForGraph("late", (), [many, rest]))
    assert {edge["text"] for edge in waits["edges"]} == {"a"}
    states = {node["rank"]: node["state"] for node in waits["nodes"]}
    assert {states[rank] for rank in rest.ranks} == {"unknown"}


def test_a_job_and_a_plan_are_shown(collhub, tmp_path: Path) -> None:
    job, out = tmp_path / "job", tmp_path / "job.html"
    write(training_step(num_ranks=4), job)
    assert collhub("view", job, "--topology", RING, "-o", out).code == 0
    assert Page(out).index["runs"][0]["ranks"] == 4
    plan, out = tmp_path / "plan.plan.json", tmp_path / "plan.html"
    ring = tmp_path / "ring.json"
    write(ring_all_reduce(4), ring)
    assert collhub("convert", ring, "-o", plan, "--to", "mscclpp").code == 0
    assert collhub("view", plan, *ASKED, "-o", out).code == 0
    assert Page(out).index["runs"][0]["blocks"] is not None
