"""Parts of programs: equal ones are one decision, and the assembled program is equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from collhub_coconet import (
    LOCAL,
    Binding,
    Program,
    ProgramBuilder,
    all_reduce,
    compare,
    dropout,
    fuse,
    norm,
    program_from_json,
    program_to_json,
    sqrt,
    update,
)
from collhub_coconet.search import parts
from collhub_coconet.search.parts import assemble, divide, is_stand_in
from flat_programs import clip_by_norm
from training_step import training_step


def momentum(count: int, *, is_adam: bool = False) -> Program:
    """A step of momentum, or of Adam without bias correction, for `count` equal tensors."""
    build = ProgramBuilder("optimizer", N=(1, 2**30))
    gradients = [
        build.argument(f"g{index}", "float32", "N", layout=LOCAL) for index in range(count)
    ]
    totals = [all_reduce(each).named(f"h{index}") for index, each in enumerate(gradients)]
    outputs = []
    for index, total in enumerate(totals):
        m = build.state(f"m{index}", "float32", "N")
        w = build.state(f"w{index}", "float32", "N", whole_after=True)
        m1 = update(m, 0.9 * m + total).named(f"m{index}_1")
        step = m1
        if is_adam:
            v = build.state(f"v{index}", "float32", "N")
            v1 = update(v, 0.99 * v + 0.01 * (total * total)).named(f"v{index}_1")
            outputs.append(v1)
            step = m1 / (sqrt(v1) + 1e-6)
        outputs += [m1, update(w, w - 0.01 * step).named(f"w{index}_1")]
    return build.program(*outputs)


@pytest.mark.parametrize("count", [2, 4, 100, pytest.param(1000, marks=pytest.mark.slow)])
def test_equal_tensors_are_one_part(count: int) -> None:
    program = momentum(count)
    (part,) = divide(program)
    assert len(part.copies) == count
    whole, origins = assemble(program, [part], [part.program])
    assert sorted(map(str, whole.operations)) == sorted(map(str, program.operations))
    assert len(origins) == len(program.operations)


def test_tensors_of_other_kinds_are_other_parts() -> None:
    build = ProgramBuilder("p", N=(1, 64), M=(1, 64))
    kinds = [("float32", "N"), ("float32", "M"), ("float64", "N"), ("float32", "N")]
    values = [
        all_reduce(build.argument(f"x{index}", element, size, layout=LOCAL)).named(f"y{index}")
        for index, (element, size) in enumerate(kinds)
    ]
    # Of the equal ones, one has a reader more.
    program = build.program(*values, (values[3] * 2.0).named("z"))
    assert [len(part.copies) for part in divide(program)] == [1, 1, 1, 1]


def test_seeds_may_differ_between_equal_parts_and_are_kept() -> None:
    build = ProgramBuilder("p", N=(1, 64))
    outputs = []
    for index, seed in enumerate((7, 11)):
        x = build.argument(f"x{index}", "float32", "N", layout=LOCAL)
        outputs.append(dropout(all_reduce(x), 0.5, seed).named(f"y{index}"))
    program = build.program(*outputs)
    (part,) = divide(program)
    whole, _ = assemble(program, [part], [part.program])
    assert compare(program, whole, Binding(2, {"N": 9})).ok
    assert {entry.seed for entry in whole.operations} == {None, 7, 11}


@pytest.mark.parametrize("count", [2, 4, 100])
def test_tensors_that_share_a_norm_are_equal_parts(count: int) -> None:
    program = clip_by_norm(count)
    part, scalars = divide(program)
    assert [len(part.copies), len(scalars.copies)] == [count, 1]
    # The factor waits for the norm of every tensor, so that it is a stand-in in the part.
    (stand_in,) = (entry for entry in part.program.operations if is_stand_in(entry))
    assert stand_in.operands == tuple(scalars.program.declared)[:1]
    whole, origins = assemble(program, [part, scalars], [part.program, scalars.program])
    assert sorted(map(str, whole.operations)) == sorted(map(str, program.operations))
    assert len(origins) == len(program.operations)
    if count < 100:
        assert compare(program, whole, Binding(2, {"N": 5})).ok


def test_a_norm_of_different_tensors_keeps_them_together() -> None:
    build = ProgramBuilder("p", N=(1, 64), M=(1, 64))
    x, y = (
        all_reduce(build.argument(name, "float32", size, layout=LOCAL))
        for name, size in (("x", "N"), ("y", "M"))
    )
    length = (norm(x) + norm(y)).named("length")
    (part,) = divide(build.program(x / length, y / length))
    assert len(part.copies) == 1


def test_more_tensors_with_a_shared_norm_gain_equally(
    collhub: Callable[..., Any], tmp_path: Path
) -> None:
    gains = []
    for count in (2, 4):
        program = clip_by_norm(count)
        options = ("-O", "search.simulate=0")
        winner, lines, _ = winner_of(collhub, tmp_path, program, *options, size=2**24)
        assert compare(program, winner, Binding(3, {"N": 10})).ok
        assert not any(is_stand_in(entry) for entry in winner.operations)
        assert "restriction: tensors that share only scalars" in " ".join(lines)
        # The gain: `times as fast as before`.
        gains.append(float(lines[0].split(", ")[1].split()[0]))
    assert gains[0] == pytest.approx(gains[1], rel=0.02)
    assert gains[0] > 1.2


def test_layers_of_a_step_are_divided_and_assembled() -> None:
    program = training_step(6)
    classes = divide(program)
    reductions = [
        part for part in classes if any(each.is_communication for each in part.program.operations)
    ]
    assert [len(part.copies) for part in reductions] == [6]
    whole, _ = assemble(program, classes, [part.program for part in classes])
    assert compare(program, whole, Binding(2, {"B": 4, "H": 3})).ok


def test_programs_with_stages_are_one_part() -> None:
    program = momentum(2)
    names = ["m0_1", program.by_name["m0_1"].reads[1]]
    (part,) = divide(fuse(program, names).program)
    assert len(part.copies) == 1


def winner_of(
    collhub: Callable[..., Any], tmp_path: Path, program: Program, *options: str, size: int = 64
) -> tuple[Program, list[str], dict[str, Any]]:
    path, out = tmp_path / "p.program.json", tmp_path / "out.program.json"
    path.write_text(program_to_json(program))
    sizes = ",".join(f"{name}={size}" for name in program.sizes)
    command = ("transform", path, "--size", sizes, "--search", "--topology", "ring:4")
    report = collhub(*command, "--jobs", "1", *options, "-o", out, "--json").report()
    lines = [entry["change"] for entry in report["changes"]]
    return program_from_json(out.read_bytes()), lines, json.loads(out.read_text())


@pytest.mark.once
@pytest.mark.parametrize("is_adam", [False, True], ids=["momentum", "adam"])
def test_more_tensors_do_not_change_the_winner(
    collhub: Callable[..., Any], tmp_path: Path, is_adam: bool
) -> None:
    kinds = []
    for count in (1, 3):
        program = momentum(count, is_adam=is_adam)
        options = ("-O", "search.simulate=0")
        # Buckets gain nothing for large tensors.
        winner, lines, document = winner_of(collhub, tmp_path, program, *options, size=2**28)
        assert compare(program, winner, Binding(3, {"N": 10})).ok
        word = "complete" if count == 1 else "restricted"
        assert any(f"search is {word}" in line for line in lines)
        assert len(winner.stages) % count == 0
        steps = [entry["transformation"] for entry in document["transformations"]]
        kinds.append((steps, sorted({stage.family for stage in winner.stages})))
        if count > 1:
            notes = document["transformations"][0]["notes"]
            assert f"applied to {count} equal parts" in notes
    assert kinds[0] == kinds[1]


@pytest.mark.once
def test_whole_programs_are_simulated_and_equal(
    collhub: Callable[..., Any], tmp_path: Path
) -> None:
    program = training_step(3)
    winner, lines, _ = winner_of(collhub, tmp_path, program, "-O", "search.simulate=1")
    assert compare(program, winner, Binding(2, {"B": 4, "H": 3})).ok
    assert lines[-1].startswith("times are simulated as a whole with")
    assert any("equal ones are one decision" in line for line in lines)


def test_a_set_with_a_shared_scalar_takes_no_part_in_cycles() -> None:
    """`x` reads the scalar, and stands between two operations of a set that is not in a cycle."""
    reads = {"first": (), "scalar": (), "x": ("first", "scalar"), "second": ("x",)}
    operations = [SimpleNamespace(name=name, reads=names) for name, names in reads.items()]
    groups = parts._DisjointNames(reads)
    groups.unite("first", "second")
    groups.unite("scalar", "x")
    program = cast(Program, SimpleNamespace(operations=operations))
    parts._unite_cycles(program, groups, {"scalar"})
    assert groups.list_groups() == [["first", "second"], ["scalar", "x"]]
