"""Builds of the zoo: results, failures, regressions, pages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from collhub_zoo.build import compare_indexes
from collhub_zoo.evaluate import explain_difference
from collhub_zoo.zoo_records import PointItem

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


@pytest.mark.once
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
    # A ring has a longer chain of messages; large ones pass the switch as a whole, in which time
    # the next link waits.
    reasons = [best["slower"][0]["reason"] for best in group["best"]]
    assert (reasons[0], reasons[-1]) == ("latency", "waits")
    ring, direct = index["results"]
    for slow, fast in zip(ring["points"], direct["points"], strict=True):
        assert slow["latency_ns"] > fast["latency_ns"]
        assert slow["link_ns"] == fast["link_ns"] <= fast["time_ns"]
    assert ", latency)" in (out / "collectives" / "all-gather.md").read_text()
    for best, bound in zip(group["best"], group["bounds"], strict=True):
        assert best["time_ns"] >= bound["time_ns"]
    page = (out / "entries" / "ring.md").read_text()
    assert "A &lt;b&gt;title&lt;/b&gt; \\| of ring" in page
    assert "[Interactive page of a run](../views/ring.html): all-gather of 1 GiB" in page
    views = {entry["card"]["name"]: entry["view"] for entry in index["entries"]}
    assert views["missing"] is None
    view = views["ring"]
    assert (view["machine"], view["collective"]) == ("switch:4", "all-gather")
    assert (out / view["file"]).read_bytes().startswith(b"<!doctype html>")
    for target in index["results"][0]["runtimes"]:
        assert target["file"] is None or (out / target["file"]).is_file()
    # Every runtime of MSCCL-IR gets a file of its own; no two of them use the same one.
    files = {one["runtime"]: one["file"] for one in index["results"][0]["runtimes"] if one["ok"]}
    assert {"msccl", "executor", "rccl"} <= files.keys()
    assert len(set(files.values())) == len(files)
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


def test_the_reason_is_the_part_with_the_largest_difference() -> None:
    def point(time_ns: int, latency_ns: int, link_ns: int) -> PointItem:
        return PointItem(
            size=1,
            time_ns=time_ns,
            latency_ns=latency_ns,
            link_ns=link_ns,
            calibrated_ns=None,
            ratio_to_bound=None,
        )

    best = point(100, 10, 80)
    assert explain_difference(point(150, 40, 90), best) == "latency"
    assert explain_difference(point(150, 20, 120), best) == "link"
    assert explain_difference(point(150, 10, 80), best) == "waits"
    # Less data on the busiest link, but more waits.
    assert explain_difference(point(110, 20, 60), best) == "waits"
    assert explain_difference(point(100, 90, 10), best) == "equal"


@pytest.mark.once
def test_an_entry_is_added_as_the_page_says(collhub, tmp_path: Path) -> None:
    pytest.importorskip("collhub_msccl")
    root = Path(__file__).parents[4]
    if not (root / "zoo").is_dir():
        pytest.skip("the catalogue is only in a checkout")
    page = (root / "docs" / "zoo.md").read_text()
    card = page.partition("```yaml\n")[2].partition("```")[0]
    zoo = tmp_path / "zoo"
    shutil.copytree(root / "zoo", zoo)
    (zoo / "my-ring").mkdir()
    (zoo / "my-ring" / "card.yaml").write_text(card)
    program = (zoo / "mscclang-rings" / "program.py").read_text()
    (zoo / "my-ring" / "program.py").write_text(program)
    command = page.partition("Check it with `collhub ")[2].partition("`")[0].split()
    assert command[:4] == ["zoo", "build", "--zoo", "zoo"]
    result = collhub(*command[:3], zoo, *command[4:-1], tmp_path / "out")
    assert result.code == 0, result.err
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    (added,) = index["results"]
    assert (added["entry"], added["machine"], added["ok"]) == ("my-ring", "dgx-h100", True)
    assert collhub("zoo", "show", "my-ring", "--zoo", str(zoo)).code == 0


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
