"""Builds of the zoo: results, failures, regressions, pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from collhub_zoo.build import compare_indexes

CARD = """schema: collhub/zoo-card-1
name: NAME
title: "A <b>title</b> | of NAME"
collectives: [all-gather]
origin: {licence: MIT}
topologies: ["switch:4"]
command: [synthesize, SYNTHESIZER]
"""


def write_zoo(folder: Path, **synthesizers: str) -> str:
    for name, synthesizer in synthesizers.items():
        (folder / name).mkdir(parents=True)
        text = CARD.replace("NAME", name).replace("SYNTHESIZER", synthesizer)
        (folder / name / "card.yaml").write_text(text)
    return str(folder)


def test_build_lists_results_and_continues_after_a_failing_entry(collhub, tmp_path: Path) -> None:
    pytest.importorskip("collhub_classic")
    zoo = write_zoo(tmp_path / "zoo", ring="ring", swift="direct", missing="no-such")
    out = tmp_path / "out"
    result = collhub("zoo", "build", "--zoo", zoo, "--jobs", "1", "-o", str(out))
    assert result.code == 1
    assert "failed: missing switch:4 all-gather" in result.err
    index = json.loads((out / "index.json").read_text())
    assert [(one["entry"], one["ok"]) for one in index["results"]] == [
        ("ring", True),
        ("swift", True),
    ]
    (group,) = index["groups"]
    assert group["best"][0]["entry"] == "swift"
    assert group["best"][0]["slower"][0]["entry"] == "ring"
    for best, bound in zip(group["best"], group["bounds"], strict=True):
        assert best["time_ns"] >= bound["time_ns"]
    page = (out / "entries" / "ring.md").read_text()
    assert "A &lt;b&gt;title&lt;/b&gt; \\| of ring" in page
    for target in index["results"][0]["runtimes"]:
        assert target["file"] is None or (out / target["file"]).is_file()
    # The output of a build is a catalogue.
    assert "swift" in collhub("zoo", "list", "--zoo", str(out)).out

    previous = out / "index.json"
    for point in index["results"][0]["points"]:
        point["time_ns"] //= 2
    previous.write_text(json.dumps(index))
    again = ("--entry", "ring", "--previous", str(previous), "-o", str(tmp_path / "new"))
    result = collhub("zoo", "build", "--zoo", zoo, "--jobs", "1", *again)
    assert (result.code, "worse: ring switch:4 all-gather, nominal: " in result.err) == (1, True)


@pytest.mark.once
def test_small_build_of_the_installed_zoo_has_no_failure(collhub, tmp_path: Path) -> None:
    pytest.importorskip("collhub_mscclpp")
    pytest.importorskip("collhub_topologies")
    names = ("mscclang-rings", "mscclpp-packets", "forestcoll")
    entries = [word for name in names for word in ("--entry", name)]
    out = tmp_path / "out"
    result = collhub("zoo", "build", "--small", *entries, "--jobs", "1", "-o", str(out), "--json")
    assert result.code == 0, result.err
    index = json.loads(result.out)
    assert index == json.loads((out / "index.json").read_text())
    rings, packets = index["results"]
    assert (rings["entry"], rings["ok"], rings["thread_blocks"]) == ("mscclang-rings", True, 2)
    used = {one["runtime"] for one in packets["runtimes"] if one["ok"]}
    assert (packets["ok"], "mscclpp" in used) == (True, True)
    # A DGX H100 has a shipped profile.
    assert all(point["calibrated_ns"] > 0 for one in index["results"] for point in one["points"])
    assert index["groups"][0]["measured"]
    assert "optimal algorithm bandwidth" in (out / "entries" / "forestcoll.md").read_text()


def test_index_without_changes_has_no_worse_curve() -> None:
    point = {"size": 1024, "time_ns": 1000, "calibrated_ns": None}
    result = {"entry": "ring", "machine": "switch:4", "collective": "all-gather", "ok": True}
    index = {
        "machines": [{"topology": "switch:4"}],
        "entries": [{"card": {"name": "ring"}}],
        "results": [{**result, "points": [point]}],
    }
    assert list(compare_indexes(index, index)) == []
    wrong = {**index, "results": [{**result, "ok": False, "points": [point]}]}
    assert [one.reason for one in compare_indexes(index, wrong)] == ["no longer correct"]
    absent = {**index, "results": []}
    assert [one.reason for one in compare_indexes(index, absent)] == ["missing"]


def test_index_of_another_kind_is_refused(collhub, tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('{"schema": "collhub/report-tune-1"}')
    result = collhub(
        *("zoo", "build", "--previous", str(tmp_path / "index.json"), "-o", str(tmp_path / "out"))
    )
    assert (result.code, "no index of a zoo" in result.err) == (1, True)
