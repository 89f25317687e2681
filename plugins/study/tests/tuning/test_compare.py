"""`collhub compare`: winners, what does not fit, the cache, and processes that die."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from collhub_tuning import result_cache, sweep
from collhub_tuning.questions import AlgorithmAtSize, ComparedAlgorithm, ComparisonQuestion
from collhub_tuning.result_cache import ResultCache, collect_versions, find_cache_folder
from dying_process import dies_for_bruck, hangs_for_bruck, lacks_memory_for_bruck

import hub_core
from hub_core.plugin_api import (
    ReportWriter,
    SearchBudget,
    SearchCut,
    Shown,
    Simulator,
    Synthesizer,
)
from hub_core.testing import ring_all_gather, ring_all_reduce

pytestmark = pytest.mark.once

Program = Callable[..., object]
ASKED = ("compare", "--collective", "all-reduce", "--topology", "ring:4", "--jobs", "1")


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of its own for every test."""
    registry = hub_core.discover()
    if not {"analytical"} <= {found.name for found in registry.all(Simulator)}:
        pytest.skip("the simulator analytical (collhub-astra-sim) is not installed")
    if not {"ring", "direct"} <= {found.name for found in registry.all(Synthesizer)}:
        pytest.skip("the synthesizers of collhub-synthesis are not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = find_cache_folder(os.environ)
    assert folder is not None
    return folder


def test_the_fastest_of_every_size_wins(collhub) -> None:
    run = collhub(
        *ASKED, "--size", "1KiB..2MiB", "--with", "direct", "--with", "bidirectional-ring", "--json"
    )
    report = run.report()
    assert report["sizes"] == [1 << power for power in range(10, 22)]
    times = {(one["algorithm"], one["size"]): one["time_ns"] for one in report["results"]}
    for size, winner in zip(report["sizes"], report["winners"], strict=True):
        assert times[winner, size] == min(
            times[name, size] for name in ("direct", "bidirectional-ring")
        )
    # Few rounds win where latency counts, neighbours where bandwidth does.
    assert (report["winners"][0], report["winners"][-1]) == ("direct", "bidirectional-ring")


def test_times_are_those_of_the_simulator(collhub, tmp_path: Path) -> None:
    file = tmp_path / "ring.json"
    hub_core.write(ring_all_reduce(4), file)
    report = collhub(*ASKED, "--size", "1MiB", "--with", str(file), "--json").report()
    simulated = hub_core.simulate(ring_all_reduce(4), hub_core.parse_topology("ring:4"), 1 << 20)
    assert report["results"][0]["time_ns"] == simulated.time_ns
    assert report["results"][0]["bus_bandwidth_bytes_per_s"] == pytest.approx(
        1.5 * (1 << 20) / simulated.time_ns * 1e9
    )


def test_what_scales_is_made_for_the_larger_size(collhub) -> None:
    """No time is in proportion more than 1 % above that of the size it was made for."""
    report = collhub(*ASKED, "--size", "1KiB..256MiB", "--with", "ring", "--json").report()
    times = {one["size"]: one["time_ns"] for one in report["results"]}
    made_for = {one["size"]: one["made_for"] for one in report["results"]}
    assert made_for[1 << 10] == 1 << 10
    assert made_for[1 << 27] == 1 << 28
    for size, larger in made_for.items():
        assert times[size] * larger <= 1.01 * times[larger] * size


def test_each_size_alone_is_at_most_the_tolerance_better(collhub) -> None:
    """As a synthesizer does its best, which for one ring is the optimum of rings."""
    asked = ("--with", "ring", "--json")
    together = collhub(*ASKED, "--size", "64MiB..256MiB", *asked).report()["results"]
    for one in together:
        size = f"{one['size']}B"
        alone = collhub(*ASKED, "--size", size, *asked, "--no-cache").report()["results"][0]
        assert one["time_ns"] <= 1.01 * alone["time_ns"]


def test_what_does_not_fit_is_said_and_left_out(collhub, tmp_path: Path) -> None:
    file = tmp_path / "gather.json"
    hub_core.write(ring_all_gather(4), file)
    run = collhub(
        *ASKED, "--size", "1MiB", "--with", "ring", "--with", "pairwise", "--with", str(file)
    )
    assert run.code == 0
    assert "1 MiB  ring" in run.out
    assert "pairwise does not take part: pairwise does not support all-reduce" in run.err
    assert f"{file} is all-gather of 4 ranks, not all-reduce of 4" in run.err


def test_what_many_algorithms_lack_is_one_line(collhub) -> None:
    asked = ("compare", "--collective", "all-to-all", "--topology", "ring:4", "--size", "1KiB")
    run = collhub(*asked, "--with", "ring", "--with", "direct", "--with", "swing")
    said = [line for line in run.err.splitlines() if "take part" in line]
    assert said == ["ring, swing do not take part: each does not support all-to-all"]


def test_where_nothing_fits_the_exit_code_is_1(collhub) -> None:
    run = collhub(*ASKED, "--size", "1MiB", "--with", "pairwise")
    assert run.code == 1
    assert "1 MiB  none" in run.out


def test_a_wrong_algorithm_takes_no_part(collhub, tmp_path: Path) -> None:
    file = tmp_path / "wrong.json"
    right = ring_all_reduce(4)
    offsets = right.steps.src_offset.copy()
    offsets[np.flatnonzero(right.steps.sends)[-1]] = 0
    hub_core.write(replace(right, steps=replace(right.steps, src_offset=offsets)), file)
    run = collhub(*ASKED, "--size", "1MiB", "--with", str(file))
    assert run.code == 1
    assert "does not take part: not correct as claimed" in run.err


def test_csv_has_a_line_for_every_measurement(collhub) -> None:
    run = collhub(*ASKED, "--size", "1KiB..4KiB", "--with", "ring", "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(run.out)))
    assert [(row["algorithm"], row["size"]) for row in rows] == [
        ("ring", "1024"),
        ("ring", "2048"),
        ("ring", "4096"),
    ]


def test_unknown_names_are_answered_with_the_closest_one(collhub) -> None:
    run = collhub(*ASKED, "--size", "1MiB", "--with", "rnig")
    assert run.code == 2
    assert "did you mean 'ring'" in run.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--size", "2KiB..1KiB"), "ends below its start"),
        (("--size", "1MiB", "--timeout", "0s"), "is not a time above 0"),
        (("--size", "1MiB..", "--jobs", "2"), "no last size"),
        (("--size", ""), "is not a number with a unit"),
        (("--size", "1MiB", "--root", "1"), "--root has no meaning for all-reduce"),
    ],
)
def test_wrong_questions_are_one_line(collhub, arguments: tuple[str, ...], says: str) -> None:
    run = collhub(*ASKED, *arguments)
    assert run.code == 2
    assert [says in line for line in run.error_lines] == [True]


def test_processes_give_the_same_as_one(collhub) -> None:
    asked = (
        *ASKED[:-1],
        "2",
        "--size",
        "1KiB..4KiB",
        "--with",
        "ring",
        "--with",
        "bruck",
        "--no-cache",
    )
    several = collhub(*asked, "--json").report()
    assert several == collhub(*asked, "--json", "--jobs", "1").report()


QUESTION = ComparisonQuestion("all-reduce", None, "ring:4", 4, (1024, 2048), "analytical")
RING = ComparedAlgorithm("ring", False)
FOUND = [AlgorithmAtSize("ring", 1024, 10), AlgorithmAtSize("ring", 2048, None, "why")]
NO_CACHE = ResultCache(None, b"", {})


def swept(
    algorithms: Sequence[ComparedAlgorithm],
    cache: ResultCache,
    *,
    jobs: int = 1,
    timeout_s: float | None = None,
    progress: sweep.Progress = lambda fraction, what: None,
) -> list[AlgorithmAtSize]:
    # Tasks that measure nothing need no plugins, whose import would count in a time limit.
    plugins = None if timeout_s is None else hub_core.discover(use_plugins=False)
    budget = SearchBudget(timeout_s=timeout_s)
    with sweep.Measuring(jobs, budget, registry=plugins) as measuring:
        return sweep.compare_algorithms(
            algorithms, QUESTION, cache, measuring=measuring, progress=progress
        )


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, b"network", {"one": "1"})
    cache.store(RING, QUESTION, FOUND)
    assert cache.defect == ""
    assert cache.find(RING, QUESTION) == FOUND
    found = swept([RING], cache)
    assert found == FOUND


def test_other_sizes_are_another_question(tmp_path: Path) -> None:
    """Which sizes are asked for together decides for which of them algorithms are made."""
    cache = ResultCache(tmp_path, b"network", {})
    cache.store(RING, QUESTION, FOUND)
    assert cache.find(RING, replace(QUESTION, sizes=(1024,))) is None


@pytest.mark.parametrize(
    ("network", "versions"), [(b"other", {"one": "1"}), (b"network", {"one": "2"})]
)
def test_another_network_or_version_is_another_question(
    tmp_path: Path, network: bytes, versions: dict[str, str]
) -> None:
    ResultCache(tmp_path, b"network", {"one": "1"}).store(RING, QUESTION, FOUND)
    assert ResultCache(tmp_path, network, versions).find(RING, QUESTION) is None


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    one = ComparedAlgorithm(str(file), True)
    cache = ResultCache(tmp_path / "cache", b"network", {})
    file.write_text("1")
    cache.store(one, QUESTION, [AlgorithmAtSize(str(file), size, 1) for size in QUESTION.sizes])
    assert cache.defect == ""
    assert cache.find(one, QUESTION) is not None
    file.write_text("2")
    assert cache.find(one, QUESTION) is None


def test_a_folder_is_known_by_the_content_of_its_files(tmp_path: Path) -> None:
    one = ComparedAlgorithm(str(tmp_path / "made"), True)
    cache = ResultCache(tmp_path / "cache", b"network", {})
    (tmp_path / "made").mkdir()
    file = tmp_path / "made" / "a.et"
    file.write_text("1")
    cache.store(one, QUESTION, [AlgorithmAtSize(one.name, size, 1) for size in QUESTION.sizes])
    assert cache.find(one, QUESTION) is not None
    file.write_text("2")
    assert cache.find(one, QUESTION) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"results": []}',
        '{"results": [[1024, 1, "", null]]}',
        '{"results": [[1024, 1, "", null], [2048, 1]]}',
        '{"results": [[1024, "x", "", null], [2048, 1, "", null]]}',
        '{"results": [[1024, 1, null, null], [2048, 1, "", null]]}',
        '{"results": [[1024, 1, "", "1"], [2048, 1, "", null]]}',
    ],
)
def test_a_broken_cache_file_is_measured_again(tmp_path: Path, content: str) -> None:
    cache = ResultCache(tmp_path, b"network", {})
    cache.store(RING, QUESTION, FOUND)
    for file in tmp_path.rglob("*.json"):
        file.write_text(content)
    assert cache.find(RING, QUESTION) is None


def test_an_entry_is_not_used_after_any_damage(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, b"network", {})
    cache.store(RING, QUESTION, FOUND)
    (file,) = entries(tmp_path)
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        assert cache.find(RING, QUESTION) is None, f"{length} bytes"
        file.write_bytes(content[:length] + bytes([content[length] ^ 1]) + content[length + 1 :])
        # Spaces and the name of the schema say nothing about the results.
        assert cache.find(RING, QUESTION) in (None, FOUND), f"byte {length}"


def entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.json"))


def test_a_changed_result_is_measured_again(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, b"network", {})
    cache.store(RING, QUESTION, FOUND)
    (file,) = entries(tmp_path)
    document = json.loads(file.read_text())
    document["results"][0][1] = 9
    file.write_text(json.dumps(document))
    assert cache.find(RING, QUESTION) is None


def test_the_result_of_another_question_is_not_used(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, b"network", {})
    cache.store(RING, QUESTION, FOUND)
    (file,) = entries(tmp_path)
    bruck = ComparedAlgorithm("bruck", False)
    cache.store(bruck, QUESTION, FOUND)
    (other,) = set(entries(tmp_path)) - {file}
    other.write_bytes(file.read_bytes())
    assert cache.find(bruck, QUESTION) is None


@pytest.mark.parametrize("time_ns", [-5, 10**20])
def test_an_impossible_time_is_measured_again(tmp_path: Path, time_ns: int) -> None:
    cache = ResultCache(tmp_path, b"network", {})
    cache.store(RING, QUESTION, [AlgorithmAtSize("ring", size, time_ns) for size in QUESTION.sizes])
    assert cache.find(RING, QUESTION) is None


def test_distrusted_results_are_measured_again(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, b"network", {})
    cache.store(RING, QUESTION, FOUND)
    assert not cache.distrust({"ring"})
    assert cache.find(RING, QUESTION) == FOUND
    assert cache.distrust({"ring"})
    assert cache.find(RING, QUESTION) is None


def test_a_cached_time_below_the_bound_is_measured_again(collhub) -> None:
    first = collhub(*ASKED, "--size", "1KiB", "--with", "ring", "--json").report()
    (file,) = entries(find_cache_folder(os.environ) or Path())
    document = json.loads(file.read_text())
    document["results"] = [[row[0], 1, "", *row[3:4], 1000, 0] for row in document["results"]]
    document["digest"] = result_cache._digest(file, document["results"])
    file.write_text(json.dumps(document))
    again = collhub(*ASKED, "--size", "1KiB", "--with", "ring", "--json").report()
    assert again == first


def test_a_relative_cache_folder_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert (
        find_cache_folder({"XDG_CACHE_HOME": "below"})
        == tmp_path / ".cache" / "collhub" / "compare"
    )
    given = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert find_cache_folder(given) == tmp_path / "cache" / "collhub" / "compare"


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    assert find_cache_folder({}) is None


def test_versions_name_libraries_and_digests_of_a_checkout() -> None:
    versions = collect_versions(hub_core.discover())
    assert {"python", "numpy", "collhub", "collhub-run"} <= versions.keys()


def test_a_cache_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = ResultCache(tmp_path / "file" / "below", b"network", {})
    cache.store(RING, QUESTION, FOUND)
    assert "file" in cache.defect
    assert cache.find(RING, QUESTION) is None


def test_a_cache_that_cannot_be_written_is_named(
    collhub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    run = collhub(*ASKED, "--size", "1KiB", "--with", "ring")
    assert run.code == 0
    assert [line for line in run.err.splitlines() if "results are not kept: " in line] != []


@pytest.mark.once
@pytest.mark.parametrize(
    ("measured", "timeout_s", "says"),
    [
        (dies_for_bruck, None, "the process that measured it died"),
        (hangs_for_bruck, 15.0, "the time limit was reached (15 s, --timeout)"),
        (lacks_memory_for_bruck, None, "it ran out of memory"),
    ],
)
def test_a_task_that_is_lost_costs_its_algorithm_alone(
    measured: Callable[..., object],
    timeout_s: float | None,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep, "measured", measured)
    cache = ResultCache(tmp_path, b"", {})
    algorithms = [ComparedAlgorithm(name, False) for name in ("ring", "bruck", "direct")]
    found = swept(algorithms, cache, jobs=2, timeout_s=timeout_s)
    assert {(one.algorithm, one.failure) for one in found if one.failure} == {("bruck", says)}
    assert [one.time_ns for one in found if one.algorithm != "bruck"] == [7] * 4
    # Another time it may do: it is not kept, the others are.
    kept = [cache.find(one, QUESTION) is not None for one in algorithms]
    assert kept == [True, False, True]


def test_answers_that_were_cut_are_not_kept(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, b"network", {})
    cut = SearchCut("ring", 7, "the time limit was reached (1 s, --timeout)")
    cache.store(RING, QUESTION, [replace(FOUND[0], cuts=(cut,)), FOUND[1]])
    assert cache.find(RING, QUESTION) is None


def test_what_a_time_limit_cuts_is_in_the_report(collhub) -> None:
    asked = (*ASKED, "--size", "1KiB..4KiB", "--with", "ring", "--timeout", "1e-9")
    run = collhub(*asked, "--json")
    document = json.loads(run.out)
    assert (run.code, document["is_partial"]) == (1, True)
    (cut,) = document["cut"]
    assert cut["name"] == "ring"
    assert "time limit was reached" in cut["reason"]
    # Nothing of it is kept.
    whole = json.loads(collhub(*ASKED, "--size", "1KiB..4KiB", "--with", "ring", "--json").out)
    assert (whole["is_partial"], whole["cut"], whole["winners"]) == (False, [], ["ring"] * 3)


def test_ctrl_c_waits_for_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "measured", hangs_for_bruck)

    def interrupt(fraction: float, what: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept([RING, ComparedAlgorithm("bruck", False)], NO_CACHE, jobs=2, progress=interrupt)
    assert multiprocessing.active_children() == []


def test_no_module_of_the_working_folder_is_run(tmp_path: Path) -> None:
    for name in ("random", "numpy", "multiprocessing", "signal"):
        trap = "import pathlib; pathlib.Path(__file__).with_suffix('.ran').touch()"
        (tmp_path / f"{name}.py").write_text(trap)
    program = Path(sys.executable).with_name("collhub")
    asked = [*ASKED[:-1], "2", "--size", "1KiB", "--with", "ring", "--with", "bruck", "--no-cache"]
    done = subprocess.run([program, *asked], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, list(tmp_path.glob("*.ran"))) == (0, [])


@pytest.fixture
def drawing() -> None:
    registry = hub_core.discover()
    if not any(found.offer.shows is Shown.COMPARISON for found in registry.all(ReportWriter)):
        pytest.skip("what draws comparisons (collhub-study) is not installed")


def test_a_picture_has_a_line_for_every_algorithm_and_the_bound(
    collhub, tmp_path: Path, drawing: None
) -> None:
    out = tmp_path / "ring.svg"
    run = collhub(
        *ASKED, "--size", "1KiB..4KiB", "--with", "ring", "--with", "pairwise", "--picture", out
    )
    assert run.code == 0
    assert f"wrote {out}" in run.err
    content = out.read_text()
    assert "all-reduce on ring:4, 4 ranks, timed by analytical" in content
    assert [name in content for name in (">ring, ", ">bound, ", "pairwise")] == [True, True, False]


def test_a_picture_that_nobody_draws_is_refused_before_anything_is_measured(
    collhub, tmp_path: Path, drawing: None
) -> None:
    run = collhub(*ASKED, "--size", "1KiB", "--with", "ring", "--picture", tmp_path / "ring.png")
    assert run.code == 2
    (line,) = run.error_lines
    assert "its suffix is none of .html, .svg; name a file that ends so" in line
    assert not find_cache_folder(os.environ).exists()


def test_what_was_measured_before_ctrl_c_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ComparedAlgorithm("direct", False)

    def interrupted(
        one: ComparedAlgorithm, question: ComparisonQuestion, *details: object
    ) -> list[AlgorithmAtSize]:
        if one == other:
            raise KeyboardInterrupt
        return FOUND

    monkeypatch.setattr(sweep, "measured", interrupted)
    cache = ResultCache(tmp_path, b"network", {})
    with pytest.raises(KeyboardInterrupt):
        swept([RING, other], cache)
    assert (cache.find(RING, QUESTION), cache.find(other, QUESTION)) == (FOUND, None)


def test_uneven_exchanges_are_compared_with_their_counts(collhub, tmp_path: Path) -> None:
    table = tmp_path / "counts.csv"
    table.write_text("1,9,0,2\n0,0,3,3\n7,1,0,0\n2,2,2,2\n")
    arguments = ("compare", "--collective", "all-to-all-v", "--topology", "ring:4", "--jobs", "1")
    asked = (*arguments, "--size", "1MiB", "--with", "direct", "--with", "flows")
    report = collhub(*asked, "--counts", str(table), "--json").report()
    assert report["collective"] == "all-to-all-v"
    assert {one["algorithm"] for one in report["results"]} == {"direct", "flows"}
    # Other counts are another question, also for the cache.
    other = collhub(*asked, "--counts", "uniform", "--json").report()
    assert other["bounds_ns"] != report["bounds_ns"]
    assert "needs the units of each part: --counts" in collhub(*asked).err
    surplus = collhub(*ASKED, "--size", "1MiB", "--counts", "uniform")
    assert "--counts has no meaning for all-reduce" in surplus.err


def test_algorithms_for_a_runtime_serve_the_size(collhub, tmp_path: Path) -> None:
    """A file with chunks that do not divide 4 KiB never wins there; 3 KiB it serves."""
    asked = ("compare", "--collective", "all-reduce", "--topology", "ring:6", "--jobs", "1")
    run = collhub(*asked, "--size", "3KiB", "--with", "ring", "--for", "executor", "--json")
    assert json.loads(run.out)["runtime"] == "executor"
    assert json.loads(run.out)["winners"] == ["ring"]
    run = collhub(*asked, "--size", "4KiB..8KiB", "--with", "ring", "--for", "executor,mscclpp")
    assert run.code == 1
    reason = "executor and mscclpp do not serve 4 KiB: the algorithm serves multiples of 96 bytes"
    assert f"ring does not take part: {reason}, the nearest are 4032 bytes and" in run.err
