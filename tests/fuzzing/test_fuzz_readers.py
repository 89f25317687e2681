"""A share of the fuzzing of all readers, and the oracles of the fuzzer itself."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import fuzz_readers
import pytest
from fuzz_readers import Coverage, Layout, Mutator, Target, Watch, execute, fuzz_all, targets

pytestmark = pytest.mark.needs_plugins

# `tox -e fuzz` fuzzes for an hour; here each reader gets enough inputs to reach its errors.
EXECUTIONS = 20
TARGETS = targets()
TOY = Target("toy", Layout.FILE, ".toy", ("inspect",))


@pytest.mark.parametrize("target", TARGETS, ids=[target.folder for target in TARGETS])
def test_mutated_inputs_are_read_or_refused(target: Target) -> None:
    (outcome,) = fuzz_all([target], EXECUTIONS, 1, float("inf"), None, 1)
    assert outcome.defects == []
    assert outcome.executions == outcome.seeds + EXECUTIONS
    assert outcome.lines > 100


def test_a_reader_without_inputs_is_a_defect_with_a_cure() -> None:
    (outcome,) = fuzz_all([TOY], EXECUTIONS, 1, float("inf"), None, 1)
    assert "store a small file in tests/fuzzing/corpus/toy" in outcome.defects[0]


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


def _raise() -> int:
    raise ValueError("a defect")


def _loop() -> int:
    while True:
        pass


def _hide_the_end() -> int:
    try:
        _loop()
    except BaseException:
        return 0


def _write_elsewhere() -> int:
    # The event is raised before the operating system refuses.
    with pytest.raises(OSError):
        Path("/nowhere/at/all").write_text("")
    return 0


def _start() -> int:
    subprocess.run([sys.executable, "-c", ""], check=True)
    return 0


def _print_control() -> int:
    print("\x1b[31mred", file=sys.stderr)
    return 1


DEFECTS = {
    "ValueError: a defect": _raise,
    "exit code 70": lambda: 70,
    "exit code 3": lambda: 3,
    "more than 1 s of CPU time": _loop,
    "took more than 1 s": _hide_the_end,
    "open /nowhere/at/all": _write_elsewhere,
    "subprocess.Popen": _start,
    "control character": _print_control,
    "does not name the input": lambda: 1,
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_oracles(
    defect: str, watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_readers, "run_program", lambda command: DEFECTS[defect]())
    monkeypatch.setattr(fuzz_readers, "MAX_CPU_S", 1)
    folder = tmp_path / "input"
    folder.mkdir()
    found = execute(TOY, {"a.toy": b""}, folder, watch, is_seed=False, with_format=True)
    assert defect in found


def test_a_process_that_ends_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_readers, "fuzz", lambda *arguments: os._exit(7))
    (outcome,) = fuzz_all([TOY], EXECUTIONS, 1, float("inf"), None, 1)
    assert outcome.defects == ["the process ended with code 7"]
    assert not outcome.is_complete


def test_a_seed_gives_the_same_inputs() -> None:
    parts = {"a.json": b'{"ranks": 4, "steps": [1, 2, 3], "name": "ring"}'}
    first, second = (
        [Mutator(random.Random(5), [b"ring"]).mutated(parts, parts) for _ in range(50)]
        for _ in range(2)
    )
    assert first == second
    draw = Mutator(random.Random(5), [b"ring"])
    assert len({draw.mutated(parts, parts)["a.json"] for _ in range(50)}) > 40


def test_new_lines_are_noticed_once() -> None:
    coverage = Coverage()
    with coverage.tracing():
        fuzz_readers.Outcome("x")
        input_name = fuzz_readers.input_name(TOY, {"a.toy": b""})
    assert input_name == "a.toy"
    # The fuzzer is not a part of the hub, the hub's own model is.
    assert not coverage.is_new
    for is_new in (True, False):
        with coverage.tracing():
            fuzz_readers.hub_core.model.format_time(5)
        assert coverage.is_new is is_new
