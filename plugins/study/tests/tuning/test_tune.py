"""`collhub tune`: windows, folders that runtimes load, and the check of what became of them."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from collhub_tuning.served_calls import compare_coverage, format_sizes

import hub_core
from hub_core.model import CollectiveKind
from hub_core.plugin_api import SelectionWriter, ServedCalls, Simulator, Synthesizer
from hub_core.testing import ring_all_reduce

ASKED = (
    *("tune", "--topology", "ring:4", "--jobs", "1"),
    *("--with", "direct", "--with", "ring", "--with", "bidirectional-ring"),
)
REDUCED = (*ASKED, "--collective", "all-reduce", "--size", "1KiB..2MiB")


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Needs classics and a simulator; a cache for all tests of this file."""
    registry = hub_core.discover()
    if not {"analytical"} <= {found.name for found in registry.all(Simulator)}:
        pytest.skip("the simulator analytical (collhub-astra-sim) is not installed")
    if not {"ring", "direct"} <= {found.name for found in registry.all(Synthesizer)}:
        pytest.skip("the synthesizers of collhub-synthesis are not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "tune-cache"))


@pytest.fixture
def tuned(collhub, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of one runtime that loads programs, and one that has names.

    It is tuned once; each test gets a copy.
    """
    names = {found.name for found in hub_core.discover().all(SelectionWriter)}
    if not {"msccl", "nccl-tuner"} <= names:
        pytest.skip("the writers of collhub-msccl and collhub-nccl are not installed")
    original = tmp_path_factory.getbasetemp() / "tuned-once"
    if not original.exists():
        run = collhub(*REDUCED, "-o", original, "--to", "msccl,nccl-tuner")
        assert run.code == 0, run.err
    return shutil.copytree(original, tmp_path / "tuned")


def test_each_size_is_given_to_the_fastest(collhub) -> None:
    report = collhub(*REDUCED, "--json").report()
    (reduced,) = report["collectives"]
    windows = [(w["min_bytes"], w["max_bytes"], w["algorithm"]) for w in reduced["windows"]]
    border = windows[1][0]
    assert windows == [(0, border - 1, "direct"), (border, None, "bidirectional-ring")]
    measured = [one["size"] for w in reduced["windows"] for one in w["measured"]]
    assert measured == report["sizes"]


def test_a_large_tolerance_leaves_one_window(collhub) -> None:
    report = collhub(*REDUCED, "--tolerance", "100%", "--json").report()
    assert len(report["collectives"][0]["windows"]) == 1


def test_default_collectives_are_those_that_most_programs_call(collhub) -> None:
    report = collhub(*ASKED, "--size", "4KiB", "--json").report()
    kinds = [one["collective"] for one in report["collectives"]]
    # No algorithm of the two exchanges in place and out of place: each mode by itself.
    assert list(dict.fromkeys(kinds)) == [
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "broadcast",
    ]
    modes = {one["mode"] for one in report["collectives"] if one["collective"] == "all-to-all"}
    assert modes == {"in-place", "out-of-place"}


def test_an_uneven_exchange_is_tuned_with_its_counts(collhub, tmp_path: Path) -> None:
    table = tmp_path / "counts.csv"
    table.write_text("1,9,0,2\n0,0,3,3\n7,1,0,0\n2,2,2,2\n")
    asked = ("tune", "--collective", "all-to-all-v", "--topology", "ring:4", "--jobs", "1")
    asked += ("--size", "64KiB", "--with", "direct", "--with", "flows", "--mode", "out-of-place")
    report = collhub(*asked, "--counts", str(table), "--json").report()
    (tuned,) = report["collectives"]
    assert tuned["collective"] == "all-to-all-v"
    assert tuned["windows"][0]["algorithm"] in ("direct", "flows")
    # Every runtime states that it has no such collective.
    folder = tmp_path / "tuned"
    run = collhub(*asked, "--counts", str(table), "-o", str(folder))
    assert "nccl-tuner loses: collective (all-to-all-v)" in run.err
    assert (folder / "report.json").exists()
    assert "needs the units of each part: --counts" in collhub(*asked).err
    surplus = collhub(
        "tune", *ASKED[1:], "--size", "1KiB", "--collective", "all-reduce", "--counts", "uniform"
    )
    assert "--counts has no meaning for all-reduce" in surplus.err


def test_a_file_that_does_not_serve_the_mode_is_left_out(collhub, tmp_path: Path) -> None:
    ring = ring_all_reduce(4)
    apart = replace(ring, collective=replace(ring.collective, in_place=True, out_of_place=False))
    file = tmp_path / "apart.json"
    hub_core.write(apart, file)
    asked = ("tune", "--topology", "ring:4", "--jobs", "1", "--with", str(file))
    asked = (*asked, "--collective", "all-reduce", "--size", "1MiB", "--json")
    report = collhub(*asked, "--mode", "out-of-place")
    assert report.code == 1
    assert "does not claim to be usable out of place" in str(report.report()["collectives"])
    assert collhub(*asked, "--mode", "in-place").code == 0


@pytest.mark.once
def test_a_folder_as_written_is_right(collhub, tuned: Path) -> None:
    run = collhub("tune", "--check", tuned, "--json")
    assert run.code == 0
    report = run.report()
    assert report["ok"]
    assert [one["name"] for one in report["formats"]] == ["msccl", "nccl-tuner"]
    for form in report["formats"]:
        ends = [one for one in form["calls"] if one["max_bytes"] is None]
        assert all(len(one["served_by"]) == 1 for one in form["calls"])
        assert {one["in_place"] for one in ends} == {True, False}


def test_the_report_in_the_folder_is_the_one_that_is_printed(collhub, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    run = collhub(*REDUCED, "-o", folder, "--to", "nccl-tuner", "--json")
    assert json.loads((folder / "report.json").read_text()) == run.report()
    assert "| all-reduce | below " in (folder / "report.md").read_text()


def _program(folder: Path) -> Path:
    return _programs_of_last_window(folder)[0]


def _programs_of_last_window(folder: Path) -> list[Path]:
    """The program of the largest sizes, and that for sizes that its chunks do not divide."""
    return sorted((folder / "msccl" / "executor").glob("*-inf*.xml"))


def _replaced(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_a_missing_file_is_a_gap(collhub, tuned: Path) -> None:
    for file in _programs_of_last_window(tuned):
        file.unlink()
    run = collhub("tune", "--check", tuned)
    assert run.code == 1
    assert "the file is gone" in run.err
    assert "gap: nothing serves them" in run.err


@pytest.mark.once
def test_the_json_of_a_check_says_what_is_wrong(collhub, tuned: Path) -> None:
    _program(tuned).unlink()
    run = collhub("tune", "--check", tuned, "--json")
    assert run.code == 1
    findings = [one for form in run.report()["formats"] for one in form["findings"]]
    assert any("the file is gone" in one["message"] for one in findings)


def test_a_raised_min_bytes_is_a_gap(collhub, tuned: Path) -> None:
    for file in _programs_of_last_window(tuned):
        least = file.name.split("-")[2]
        _replaced(file, f'minBytes="{least}"', f'minBytes="{int(least) + 1}"')
    run = collhub("tune", "--check", tuned)
    assert run.code == 1
    assert "gap: nothing serves them" in run.err


def test_a_lowered_min_bytes_is_an_overlap(collhub, tuned: Path) -> None:
    file = _program(tuned)
    least = file.name.split("-")[2]
    _replaced(file, f'minBytes="{least}"', f'minBytes="{int(least) // 2}"')
    run = collhub("tune", "--check", tuned)
    assert run.code == 1
    assert "overlap: " in run.err


def test_a_window_twice_is_an_overlap(collhub, tuned: Path) -> None:
    file = _program(tuned)
    file.with_name("again.xml").write_bytes(file.read_bytes())
    run = collhub("tune", "--check", tuned)
    assert run.code == 1
    assert "both serve them" in run.err


def test_a_program_that_is_wrong_serves_nothing(collhub, tuned: Path) -> None:
    _replaced(_program(tuned), 'type="s"', 'type="nop"')
    assert collhub("tune", "--check", tuned).code == 1


def test_a_line_that_names_another_algorithm_is_said(collhub, tuned: Path) -> None:
    _replaced(tuned / "nccl-tuner" / "nccl_tuner.conf", ",simple,16,", ",simple,8,")
    run = collhub("tune", "--check", tuned)
    assert run.code == 1
    assert "changed: ring simple 8 channels serves them" in run.err


def test_a_folder_that_is_not_empty_is_refused_before_any_work(collhub, tuned: Path) -> None:
    run = collhub("tune", "--topology", "ring:4", "--size", "1GiB", "-o", tuned)
    assert run.code == 2
    assert f"the folder {tuned} is not empty" in run.err


@pytest.mark.once
def test_force_leaves_no_file_of_the_folder_before(collhub, tuned: Path) -> None:
    run = collhub(*ASKED, "--collective", "all-gather", "--size", "1KiB", "-o", tuned, "--force")
    assert run.code == 0
    assert {file.name[:10] for file in (tuned / "msccl" / "executor").iterdir()} == {"all-gather"}
    assert collhub("tune", "--check", tuned).code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--collective", "all-redcue"), 2, "did you mean 'all-reduce'"),
        (("--to", "nccl-tunr", "-o", "x"), 2, "did you mean 'nccl-tuner'"),
        (("--to", "msccl"), 2, "give -o FOLDER"),
        (("--size", "2KiB..1KiB"), 2, "ends below its start"),
        (("--tolerance", "2"), 2, "is not 0% to 100%"),
        (("--collective", "all-reduce", "--root", "1"), 2, "--root has no meaning"),
        (("--check", "nowhere"), 2, "give --check FOLDER alone"),
        (("-o", "x", "-O", "chanels=3"), 2, "did you mean 'channels'"),
    ],
)
def test_wrong_questions_are_one_line(
    collhub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments, code: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = collhub(*ASKED, "--size", "1KiB", *arguments)
    assert run.code == code
    assert says in run.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [None, "{", "[]", '{"schema": "collhub/report-tune-1"}'])
def test_a_folder_of_others_is_one_line(collhub, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    run = collhub("tune", "--check", tmp_path)
    assert run.code == 1
    (line,) = run.error_lines
    assert "report.json" in line
    assert "name a folder that 'collhub tune -o FOLDER' has written" in line


def test_where_nothing_fits_nothing_is_written(collhub, tmp_path: Path) -> None:
    asked = ("tune", "--topology", "ring:4", "--jobs", "1", "--with", "pairwise")
    folder = tmp_path / "folder"
    run = collhub(*asked, "--collective", "all-reduce", "--size", "1KiB", "-o", folder)
    assert run.code == 1
    assert "all-reduce  all sizes  none" in run.out
    assert not folder.exists()


@pytest.mark.once
def test_sizes_that_chunks_do_not_divide_are_said(collhub, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    asked = ("tune", "--topology", "ring:6", "--jobs", "1", "--with", "ring", "-o", folder)
    run = collhub(*asked, "--collective", "all-reduce", "--size", "3KiB..8KiB", "--to", "msccl")
    assert run.code == 0
    assert "falls-back" not in collhub("tune", "--check", folder, "--json").out
    # A report with another measured size, which the chunks do not divide.
    report = json.loads((folder / "report.json").read_text())
    report["sizes"] = [4096]
    (folder / "report.json").write_text(json.dumps(report))
    assert "falls-back" in collhub("tune", "--check", folder, "--json").out
    one_size = ("--collective", "all-reduce", "--size", "4KiB", "--to", "msccl", "--force")
    run = collhub(*asked, *one_size, "--for", "executor")
    assert run.code == 1
    assert "all-reduce: algorithms for executor\n" in run.err
    unserved = "the algorithm serves multiples of 24 bytes, the nearest are 4080 bytes and"
    assert unserved in run.err
    # Without --for, other files of the folder may serve the size.
    run = collhub(*asked, *one_size)
    assert unserved in run.err
    assert "chosen without the limits of runtimes" in run.err
    assert "it serves only multiples of 6 elements" in run.err
    assert "left to the runtime" in run.err


@pytest.mark.once
def test_algorithms_of_a_window_serve_all_of_its_sizes(collhub, tmp_path: Path) -> None:
    asked = ("tune", "--topology", "ring:4", "--jobs", "1", "--with", "tacos", "--to", "msccl")
    sizes = ("--collective", "all-gather", "--size", "208B..1664B", "--tolerance", "100%")
    run = collhub(*asked, *sizes, "-o", tmp_path / "tuned", "--json")
    (window,) = json.loads(run.out)["collectives"][0]["windows"]
    assert [each["size"] for each in window["measured"]] == [208, 416, 832, 1664]
    (file,) = (tmp_path / "tuned" / "msccl" / "executor").iterdir()
    chunks = int(re.search(r'nchunksperloop="(\d+)"', file.read_text())[1])
    assert 52 % chunks == 0


A, B = "a", "b"


def _served(least: int, most: int | None, by: str) -> ServedCalls:
    return ServedCalls(CollectiveKind.ALL_REDUCE, True, False, least, most, by)


@pytest.mark.parametrize(
    ("found", "defects"),
    [
        ([_served(0, 9, A), _served(10, None, B)], ["", ""]),
        ([_served(0, 9, A)], ["", "gap: nothing serves them, b is to"]),
        ([_served(0, 9, A), _served(9, None, B)], ["", "overlap: a and b both serve them", ""]),
        ([_served(0, 4, A), _served(5, None, B)], ["", "changed: b serves them, a is to", ""]),
        ([_served(0, None, A)], ["", "changed: a serves them, b is to"]),
    ],
)
def test_defects_of_windows(found: list[ServedCalls], defects: list[str]) -> None:
    stated = [_served(0, 9, A), _served(10, None, B)]
    assert [one.defect for one in compare_coverage(stated, found)] == defects


@pytest.mark.parametrize(
    ("least", "most", "text"),
    [
        (0, None, "all sizes"),
        (0, 16383, "below 16 KiB"),
        (16384, 1048575, "16 KiB to below 1 MiB"),
        (1048576, None, "from 1 MiB"),
    ],
)
def test_sizes_in_words(least: int, most: int | None, text: str) -> None:
    assert format_sizes(least, most) == text


def test_limits_of_runtimes_have_no_meaning_for_files_of_tune(collhub, tmp_path: Path) -> None:
    arguments = ["tune", "--collective", "all-gather", "--topology", "ring:4", "--size", "64KiB"]
    run = collhub(*arguments, "--for", "executor?blocks=4", "--to", "msccl", "-o", tmp_path / "out")
    assert run.code == 2
    assert "limits in --for have no meaning for the files of tune" in run.err
    run = collhub(*arguments, "--for", "executor?blocs=4", "--to", "msccl", "-o", tmp_path / "out")
    assert (run.code, "'blocs' is not a resource" in run.err) == (2, True)
