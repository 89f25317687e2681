"""The offers, as the program uses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from collhub_pictures.plugin import collhub_consumers

from hub_core.plugin_api import Shown
from hub_core.testing import ring_all_reduce


def test_one_writer_for_networks_and_one_for_runs() -> None:
    offers = {one.name: one.shows for one in collhub_consumers()}
    assert offers == {"svg": Shown.TOPOLOGY, "chrome-trace": Shown.RUN}


def test_a_network_is_drawn_whatever_the_suffix(collhub, tmp_path: Path) -> None:
    for out in (tmp_path / "ring.svg", tmp_path / "ring.picture"):
        run = collhub("topology", "draw", "ring:4", "-o", out)
        assert (run.code, run.out, run.err) == (0, "", f"wrote {out}\n")
        assert out.read_bytes().startswith(b"<svg ")


def test_a_picture_goes_to_standard_output(collhub) -> None:
    run = collhub("topology", "draw", "ring:4", "-o", "-")
    assert (run.code, run.err) == (0, "")
    assert run.out.endswith("</svg>\n")


def test_a_simulated_run_has_a_timeline(collhub, save, tmp_path: Path) -> None:
    pytest.importorskip("collhub_astra_sim")
    ring, out = save(ring_all_reduce(4), tmp_path / "ring.json"), tmp_path / "run.json"
    arguments = ("--topology", "ring:4", "--size", "1MiB", "--timeline", out)
    assert collhub("simulate", ring, *arguments).code == 0
    assert len(json.loads(out.read_bytes())["traceEvents"]) > 48
