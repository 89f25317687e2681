"""Programs as JSON documents and as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adam import adam
from collhub_coconet import (
    Program,
    ProgramBuilder,
    fuse,
    movable,
    overlap,
    program_from_json,
    program_to_json,
    reorder,
    split,
    sqrt,
    statements,
    text,
)
from collhub_coconet.lowering.workload import samples
from lamb import lamb
from transformer_blocks import attention, mlp, pipeline_boundary

from hub_core.model import InputError


def test_inspect_shows_the_text_of_a_program(collhub: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "p.program.json"
    path.write_text(program_to_json(attention()))
    words = ("inspect", path, "-O", "sizes=B=4,S=8,K=8,H=4")
    lines = collhub(*words).out.splitlines()
    assert lines[lines.index("program attention") :] == text(attention()).splitlines()
    assert collhub(*words, "--json").report()["lines"] == text(attention()).splitlines()


@pytest.mark.parametrize(
    "program",
    [adam(), lamb(), attention(), mlp(), pipeline_boundary()],
    ids=lambda program: program.name,
)
def test_documents_keep_programs(program: Program) -> None:
    content = program_to_json(program)
    assert program_from_json(content) == program
    assert program_to_json(program_from_json(content)) == content


def test_documents_keep_stages_and_chains() -> None:
    after = split(attention(), "z").program
    after = reorder(after, "z", movable(after, "z")).program
    names = [one.name for one in after.operations]
    after = overlap(fuse(after, names[1:], "f").program, ["y", "f"]).program
    assert program_from_json(program_to_json(after)) == after


def damaged(change: dict[str, Any]) -> str:
    return json.dumps(json.loads(program_to_json(adam())) | change)


def operation(**fields: Any) -> dict[str, Any]:
    return {"operations": [{"name": "a", **fields}], "outputs": ["a"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "file.json:1: this is not JSON"),
        ("[]", "file.json: this is not a JSON object"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"name": "a", "name": "b"}', "the key 'name' occurs twice"),
        (damaged({"schema": "x"}), r"\$\.schema: 'collhub/tensor-program-1' was expected"),
        (
            damaged(operation(kind="Sqr", operands=["g"])),
            r"\$\.operations\[0\]\.kind: 'Sqr' is not",
        ),
        (damaged(operation(kind="Sqrt", operands=["h"])), "adam:1: a = Sqrt.h.: h is not defined"),
        (damaged(operation(kind="AllReduce", operands=["g"])), "reduction is not stated"),
        (damaged(operation(kind="Sqrt", operands=["g"], seed=1)), "seed is no attribute here"),
        (damaged(operation(kind="Add", operands=["g"])), "1 operands are given, 2 expected"),
        (damaged(operation(kind="Add", operands=[1, 2])), "all operands are numbers"),
        (damaged({"outputs": ["nobody"]}), "output nobody is not defined"),
        (damaged({"sizes": {}}), "symbol N is not defined"),
        (damaged({"sizes": {"N": [0, 1]}}), "size N is 0..1"),
        (
            damaged({"stages": [{"name": "f", "family": "pointwise", "members": ["x"]}]}),
            "member x is no operation",
        ),
    ],
)
def test_damaged_document_is_refused_with_place_and_reason(content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        program_from_json(content, "file.json")


def test_an_argument_without_layouts_of_axes_is_replicated_without_a_mesh() -> None:
    """The schema permits the empty object, which gave a layout without axes, and a KeyError."""
    document = json.loads(program_to_json(mlp()))
    for argument in document["arguments"]:
        if argument["layout"] == "replicated":
            argument["layout"] = {}
    assert program_from_json(json.dumps(document)) == mlp()


def test_text_has_parentheses_where_they_are_needed_and_nowhere_else() -> None:
    build = ProgramBuilder("p")
    x = build.argument("x", "float32", 4)
    y = (x - (x - 1)) / (x * x) * sqrt(x**2 + 1)
    program = build.program(y.named("y"))
    expected = "y = (x - (x - 1)) / (x * x) * Sqrt(x ** 2 + 1)  [R]"
    assert statements(program) == [expected]


def test_a_value_that_is_read_twice_has_a_line_of_its_own() -> None:
    build = ProgramBuilder("p")
    x = build.argument("x", "float32", 4)
    twice = x + 1
    program = build.program((twice * twice).named("y"))
    assert statements(program) == ["_1 = x + 1  [R]", "y = _1 * _1  [R]"]


def test_text_names_arguments_outputs_and_stages() -> None:
    lines = text(fuse(adam(), ["mh", "vh"], "f").program).splitlines()
    assert lines[:3] == ["program adam", "argument g: float32[N] L", "state m: float32[N] R"]
    assert lines[-2:] == ["output m1, v1, w1", "fuse f (pointwise): mh, vh"]


def test_an_ill_typed_document_names_the_file_and_the_operation(
    collhub: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "x.program.json"
    content = samples()[0].content().replace(b'"operands": ["g"]', b'"operands": ["e"]')
    path.write_bytes(content)
    run = collhub("inspect", path)
    assert run.code == 1
    assert run.err.startswith(f"error: {path}: operation 1: s = ReduceScatter(e, sum, 0): e is not")
