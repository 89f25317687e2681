"""Real algorithms on real data: what is verified gives right results, what is wrong does not."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from collhub_execution import (
    ComparisonMethod,
    LevelledRequest,
    block_counts,
    exact_inputs,
    is_well_levelled,
    judge,
    levelled_program,
)
from collhub_execution.input_data import check_inputs, choose_background
from collhub_execution.testing import request_for
from collhub_local import numpy_executor, shared_memory

import hub_core
from hub_core import Algorithm, Collective, CollectiveKind, HubError, InputError, ReduceOp, verify
from hub_core.plugin_api import NoOptions, Synthesizer
from hub_core.registry.plugins import Registry
from hub_core.verification import ModeReport

pytestmark = pytest.mark.needs_plugins

FOLDER = Path(__file__).resolve().parents[5] / "shared" / "corpus" / "msccl"
MAX_RANKS = 32
DTYPES = (np.int64, np.float32)


def _files() -> list[str]:
    if not (FOLDER / "index.csv").is_file():
        return []
    with (FOLDER / "index.csv").open(newline="") as file:
        return sorted(row["file"] for row in csv.DictReader(file) if int(row["ranks"]) <= MAX_RANKS)


FILES = _files()
SAMPLE = FILES[::12] or [None]


@cache
def _registry() -> Registry:
    return hub_core.discover()


def _read(corpus: Path, name: str) -> Algorithm:
    return hub_core.read(corpus / "msccl" / name, registry=_registry(), report=lambda found: None)


def _executed(algorithm: Algorithm, in_place: bool, dtype: type) -> tuple[bool, ComparisonMethod]:
    """Whether the result is right, and how that was judged; what cannot run is wrong."""
    try:
        program = levelled_program(algorithm, in_place, allow_races=True)
    except InputError:
        return False, ComparisonMethod.BITWISE
    assert is_well_levelled(program)
    inputs = exact_inputs(block_counts(algorithm), 3, np.dtype(dtype), ReduceOp.SUM)
    fill = choose_background(np.dtype(dtype), ReduceOp.SUM)
    given = check_inputs(algorithm.collective, program.blocks, inputs, fill)
    request = LevelledRequest(algorithm, program, given, ReduceOp.SUM, fill)
    result = numpy_executor.run_in_one_thread(request)
    judgement = judge(algorithm.collective, inputs, result.outputs, ReduceOp.SUM, True)
    return judgement.is_right, judgement.comparison


def _contents_are_right(mode: ModeReport) -> bool:
    """The verifier's verdict on contents: a race is right in the order in which it is run here."""
    return mode.verdict in ("ok", "race")


def _check(corpus: Path, name: str) -> None:
    algorithm = _read(corpus, name)
    modes = verify(algorithm).modes
    for mode, in_place in (("in_place", True), ("out_of_place", False)):
        for dtype in DTYPES:
            is_right, comparison = _executed(algorithm, in_place, dtype)
            # Where a custom collective states no result, there is nothing to compare.
            assert (
                is_right == _contents_are_right(modes[mode]) or comparison is ComparisonMethod.NONE
            )


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_files_is_executed_as_it_verifies(corpus: Path, name: str | None) -> None:
    if name is None:
        pytest.skip("no index in corpus/msccl")
    _check(corpus, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES or [None])
def test_every_file_is_executed_as_it_verifies(corpus: Path, name: str | None) -> None:
    if name is None:
        pytest.skip("no index in corpus/msccl")
    _check(corpus, name)


@pytest.mark.once
@pytest.mark.parametrize("name", [name for name in FILES if "_8_" in name][::40] or [None])
def test_processes_give_the_same_bits_as_one_thread(corpus: Path, name: str | None) -> None:
    if name is None:
        pytest.skip("no index in corpus/msccl")
    algorithm = _read(corpus, name)
    request = request_for(algorithm, np.float32)
    results = [
        executor.execute(request, NoOptions()).outputs
        for executor in (numpy_executor, shared_memory)
    ]
    assert all(np.array_equal(*pair, equal_nan=True) for pair in zip(*results, strict=True))


@pytest.mark.once
@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "all-to-all", "broadcast"])
def test_what_synthesizers_make_gives_what_it_promises(kind: str) -> None:
    topology = hub_core.parse_topology("torus:3x2")
    collective = Collective(CollectiveKind(kind), 6, 6, root=0 if kind == "broadcast" else None)
    made = 0
    for synthesizer in _registry().all(Synthesizer):
        try:
            result = hub_core.synthesize(
                collective, topology, 6 << 10, name=synthesizer.name, registry=_registry()
            )
        except HubError:
            continue
        made += 1
        for dtype in DTYPES:
            assert _executed(
                result.algorithm, not result.algorithm.collective.out_of_place, dtype
            ) == (True, "bitwise")
    if not made:
        pytest.skip("no synthesizer is installed that makes this collective")
