"""The offers, as the program uses them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from collhub_pictures.plugin import collhub_consumers

from hub_core.plugin_api import Shown
from hub_core.testing import ring_all_reduce

TOPOLOGY = "ring:4?bandwidth=50GB/s&latency=500ns"
RING_NS = 6 * 5742 + 3


def test_every_kind_of_subject_has_a_writer() -> None:
    offers = {one.name: one.shows for one in collhub_consumers()}
    assert offers == {
        "svg": Shown.TOPOLOGY,
        "chrome-trace": Shown.RUN,
        "job-chrome-trace": Shown.JOB,
        "comparison-svg": Shown.COMPARISON,
        "comparison-html": Shown.COMPARISON,
        "waits-svg": Shown.WAITS,
    }


def test_draw_writes_svg_to_a_file_or_stdout(collhub, tmp_path: Path) -> None:
    out = tmp_path / "ring.svg"
    run = collhub("topology", "draw", "ring:4", "-o", out)
    assert (run.code, run.out, run.err) == (0, "", f"wrote {out}\n")
    assert ElementTree.fromstring(out.read_bytes()).tag.endswith("svg")
    assert collhub("topology", "draw", "ring:4", "-o", "-").out.encode() == out.read_bytes()


def test_a_network_is_drawn_whatever_the_suffix(collhub, tmp_path: Path) -> None:
    out = tmp_path / "ring.picture"
    assert collhub("topology", "draw", "ring:4", "-o", out).code == 0
    assert out.read_bytes().startswith(b"<svg ")


def test_drawing_replaces_the_one_before(collhub, tmp_path: Path) -> None:
    out = tmp_path / "net.svg"
    for text in ("ring:4", "mesh:2x2"):
        assert collhub("topology", "draw", text, "-o", out).code == 0
    assert b"mesh:2x2" in out.read_bytes()


def test_a_network_that_is_too_large_is_one_line_and_exit_2(collhub) -> None:
    run = collhub("topology", "draw", "ring:5000", "-o", "x.svg")
    assert (run.code, run.out) == (2, "")
    (line,) = run.error_lines
    says = "topology ring:5000: 5000 nodes are more than 4096 in one picture; draw a part"
    assert line.startswith(f"error: {says}")


def test_a_timeline_is_a_chrome_trace_of_the_simulated_steps(collhub, save, tmp_path: Path) -> None:
    pytest.importorskip("collhub_astra_sim")
    ring, out = save(ring_all_reduce(4), tmp_path / "ring.json"), tmp_path / "trace.json"
    arguments = ("--topology", TOPOLOGY, "--size", "1MiB", "--timeline", out)
    assert collhub("simulate", ring, *arguments).code == 0
    events = json.loads(out.read_text())["traceEvents"]
    ends = [event["ts"] + event["dur"] for event in events if event["ph"] == "X"]
    assert max(ends) == RING_NS / 1000
    assert sum(event["ph"] == "s" for event in events) == 24
