"""Programs in Python, executed when they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adam import adam
from collhub_coconet.documents.from_workload import extract_program

import hub_core
from hub_core.model import InputError, UsageError
from hub_core.testing import ring_all_reduce

EXAMPLES = Path(__file__).parents[3] / "examples" / "coconet"


def test_a_file_with_one_function_is_its_program() -> None:
    found = hub_core.read_workload(EXAMPLES / "adam.py", options={"sizes": "N=64"})
    assert extract_program(found).program == adam()


def test_one_of_several_programs_is_chosen_by_name() -> None:
    path = EXAMPLES / "transformer_blocks.py"
    options = {"sizes": "B=2,S=2,K=8,H=4", "program": "attention"}
    assert (
        extract_program(hub_core.read_workload(path, options=options)).program.name == "attention"
    )
    with pytest.raises(UsageError, match="defines 3 programs: 1 'attention', 2 'mlp'"):
        hub_core.read_workload(path, options={"sizes": "B=2,S=2,K=8,H=4"})


def test_transform_takes_a_program_in_python(collhub: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "out.program.json"
    source = EXAMPLES / "adam.py"
    run = collhub("transform", source, "--size", "N=64", "--pass", "split", "-o", out)
    assert run.code == 0
    assert out.exists()


@pytest.mark.once
@pytest.mark.parametrize("command", [("inspect",), ("transform", "--list")])
def test_sizes_of_symbols_are_given_in_one_form(
    collhub: Callable[..., Any], command: tuple[str, ...]
) -> None:
    name, *flags = command
    by_size = collhub(name, EXAMPLES / "adam.py", *flags, "--size", "N=64")
    by_option = collhub(name, EXAMPLES / "adam.py", *flags, "-O", "sizes=N=64")
    assert (by_size.code, by_size.out) == (0, by_option.out)


def test_sizes_of_symbols_are_refused_for_an_algorithm(
    collhub: Callable[..., Any], tmp_path: Path
) -> None:
    hub_core.write(ring_all_reduce(2), tmp_path / "ring.json")
    run = collhub("inspect", tmp_path / "ring.json", "--size", "B=8")
    assert run.code == 2
    assert "--size B=8: IN has no symbols, to which this would give sizes" in run.err


HEAD = "from collhub_coconet import *\nbuild = ProgramBuilder('p', N=8)\n"
ARGUMENTS = (
    "x = build.argument('x', 'float32', 'N', layout=LOCAL)\n"
    "s = build.argument('s', 'float32', 'N', layout=sliced(0))\n"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("print('hello')\n", "it does not import collhub_coconet; it was not executed"),
        (HEAD, "defines no program"),
        (HEAD + "def f(\n", "bad.py:3: is no Python program"),
        (HEAD + ARGUMENTS + "x + s\n", "bad.py:5: .*a local operand meets a sliced one"),
        (HEAD + "build.argument('x', 'float32', 'M')\n", "bad.py:3: .*symbol M is not defined"),
        (HEAD + "build.argument('x', 'float32', 0)\n", "bad.py:3: .*a size is 0"),
        (
            HEAD + "build.argument('x', 'float8', 'N')\n",
            "bad.py:3: .*element type 'float8' is none",
        ),
        (
            HEAD + "build.argument('x', 'int32', 'N', layout='S')\n",
            "bad.py:3: .*layout 'S' is none",
        ),
        (HEAD + "1 / 0\n", "bad.py:3: ZeroDivisionError"),
        (HEAD + "def f() -> Program:\n    return 3\n", "returns int, not a Program"),
        (
            HEAD + "def step(n=2):\n    return build.program()\n",
            "bad.py:3: defines no program: .*function 'step' is not annotated with '-> Program': add",
        ),
        (
            HEAD + "def step(n, m) -> Program:\n    return build.program()\n",
            "function 'step' needs the arguments n, m: give them default values",
        ),
    ],
)
def test_a_program_that_fails_is_refused_with_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        hub_core.read_workload(path, format="tensor-program-python")
