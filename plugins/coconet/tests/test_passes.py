"""Transformations as passes over workloads: `collhub transform` on programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adam import adam
from collhub_coconet import Binding, as_slice, movable, program_from_json, program_to_json, reorder
from collhub_coconet import split as split_program
from collhub_coconet.documents.from_workload import extract_program
from lamb import lamb

import hub_core
from hub_core.model import Workload

Run = Callable[..., Any]
SIZES = ("-O", "num_ranks=4", "-O", "sizes=N=64")


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """Adam as a document."""
    path = tmp_path / "adam.program.json"
    path.write_text(program_to_json(adam()))
    return path


def derived() -> str:
    """Adam after split, reorder and as-slice, by the functions."""
    program = split_program(adam(), "g1").program
    program = reorder(program, "g1", movable(program, "g1")).program
    return program_to_json(as_slice(program, ["m", "v"]).program)


CHAIN = (
    *("--pass", "split", "-O", "target=g1"),
    *("--pass", "reorder", "-O", "target=g1"),
    *("--pass", "as-slice", "-O", "states=m+v"),
)


def test_passes_give_what_the_functions_give(collhub: Run, document: Path) -> None:
    out = document.with_name("out.program.json")
    run = collhub("transform", document, *SIZES, *CHAIN, "-o", out)
    assert run.code == 0
    assert program_to_json(program_from_json(out.read_bytes())) == derived()


def test_every_step_tells_the_conditions_that_hold(collhub: Run, document: Path) -> None:
    out = document.with_name("out.program.json")
    report = collhub("transform", document, *SIZES, *CHAIN, "-o", out, "--json").report()
    told = [(one["pass"], one["change"]) for one in report["changes"]]
    assert ("split", "holds: commutative: g1") in told
    assert ("as-slice", "holds: not-needed-whole: m, v") in told
    # 64 floats each, of which a rank keeps a quarter.
    effect = next(text for name, text in told if name == "as-slice" and text.startswith("effect"))
    assert "state bytes -384" in effect
    kept = json.loads(out.read_text())["transformations"]
    assert [one["transformation"] for one in kept] == ["split", "reorder", "as-slice"]
    assert kept[0]["conditions"] == ["commutative: g1", "dimension: g1"]


@pytest.mark.parametrize("name", ["step", "step.json", "step.program.json"])
def test_a_transformed_workload_goes_on_from_any_format(
    collhub: Run, document: Path, tmp_path: Path, name: str
) -> None:
    middle, out = tmp_path / name, tmp_path / "out.program.json"
    assert collhub("transform", document, *SIZES, *CHAIN[:8], "-o", middle).code == 0
    assert collhub("transform", middle, *CHAIN[8:], "-o", out).code == 0
    assert program_to_json(program_from_json(out.read_bytes())) == derived()
    # History goes along.
    assert len(json.loads(out.read_text())["transformations"]) == 3


def test_one_pass_many_times_with_its_own_options(collhub: Run, document: Path) -> None:
    out = document.with_name("out.program.json")
    fuse = ("--pass", "fuse", "-O", "members=mh+vh", "--pass", "fuse", "-O")
    run = collhub("transform", document, *SIZES, *fuse, "members=_13+_16", "-o", out)
    assert run.code == 0
    stages = program_from_json(out.read_bytes()).stages
    assert [stage.members for stage in stages] == [("mh", "vh"), ("_13", "_16")]


def test_list_shows_moves_with_effects(collhub: Run, document: Path) -> None:
    moves = collhub("transform", document, *SIZES, "--list", "--json").report()["moves"]
    (split,) = [one for one in moves if one["pass"] == "split"]
    assert split["options"] == {"target": "g1", "dimension": "0"}
    assert split["effect"]["kernels"] == 1


def test_list_shows_what_is_legal_behind_passes(collhub: Run, document: Path) -> None:
    moves = collhub("transform", document, *SIZES, *CHAIN[:8], "--list", "--json").report()["moves"]
    assert {one["options"].get("states") for one in moves} >= {"m", "v"}
    text = collhub("transform", document, *SIZES, *CHAIN[:8], "--list").out
    assert "-O states=m" in text


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (("split", "target=mh"), "adam:11: split refused: mh: AllReduce is expected, it is Divide"),
        (("reorder", "target=mh"), "reorder refused: mh: AllGather is expected"),
        (("as-slice", "states=w"), "refused: w: every rank reads all of it after the program"),
        (("as-slice", "states="), "option states is missing"),
        (("fuse", "members=g1+w1"), "it reads a member and a member reads it"),
        (("overlap", "members=g1+vh"), "it does not read the member before it"),
    ],
)
def test_refusal_is_one_line(
    collhub: Run, document: Path, steps: tuple[str, str], message: str
) -> None:
    out = document.with_name("out.program.json")
    run = collhub("transform", document, *SIZES, "--pass", steps[0], "-O", steps[1], "-o", out)
    assert run.code in (1, 2)
    (line,) = run.error_lines
    assert message in line
    assert not out.exists()


def test_overlap_across_a_norm_is_refused(collhub: Run, tmp_path: Path) -> None:
    path = tmp_path / "lamb.program.json"
    path.write_text(program_to_json(lamb()))
    chain = ("--pass", "overlap", "-O", "members=u+b", "--list")
    (line,) = collhub("transform", path, *SIZES, *chain).error_lines
    assert "Norm in b needs all chunks before it gives one (chunkable)" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("sizes=N=" + "1" * 5000, "is not understood"),
        ("sizes=N=0", "size N is 0, the program has 1..1073741824"),
        ("num_ranks=4", "symbol N is not bound"),
        ("sizes=M=8", "the program has no symbol M"),
        ("sizes=N=8,M=8", "the program has no symbol M"),
        ("num_ranks=1", "'1' is not at least 2"),
    ],
)
def test_sizes_and_ranks_that_are_none_are_refused(
    collhub: Run, document: Path, options: str, message: str
) -> None:
    (line,) = collhub("transform", document, "-O", options, "--list").error_lines
    assert message in line


def test_text_shows_the_program(collhub: Run, document: Path) -> None:
    out = document.with_name("out.program.txt")
    assert collhub("transform", document, *SIZES, *CHAIN, "-o", out).code == 0
    assert "w1 = Update(w, AllGather(w1_S_0))  [R]" in out.read_text().splitlines()


def test_something_to_do_has_to_be_named(collhub: Run, document: Path) -> None:
    assert "Missing option '--pass'" in collhub("transform", document, "-o", "x").err
    assert "Missing option '-o'" in collhub("transform", document, "--pass", "split").err


def stated(path: Path) -> Workload:
    return hub_core.read_workload(path, options={"num_ranks": "4", "sizes": "N=64"})


def test_workloads_give_their_program_back(document: Path) -> None:
    found = extract_program(stated(document))
    assert found.program == adam()
    assert found.binding == Binding(4, {"N": 64})
