"""Every correct real file, written for each runtime, is loaded by it and still does the same.

CI writes a part of the files; all of them are under the marker `slow`.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from collhub_msccl.plugin import ReadOptions, WriteOptions
from collhub_msccl.reading.read_xml import read
from collhub_msccl.runtimes.load_check import (
    check_executor,
    check_msccl,
    check_rccl,
    compute_fifo_safety,
)
from collhub_msccl.writing.write_xml import write

from hub_core.model import COLUMN_DTYPES, Algorithm, Buffer, CollectiveKind, InputError
from hub_core.plugin_api import CheckRequest, NoOptions, Source
from hub_core.verification import parse_expectation, verify

FOLDER = Path(__file__).resolve().parents[6] / "shared" / "corpus" / "msccl"
Row = Mapping[str, str]
CHECKS = {"msccl": check_msccl, "executor": check_executor, "rccl": check_rccl}
# A custom file reaches these runtimes' calls only under a name that they know.
NAME_OF_CUSTOM = {"executor": "allreduce", "rccl": "allreduce"}
IN_CI = 9


def _rows() -> list[Row]:
    if not (FOLDER / "index.csv").is_file():
        return []
    with (FOLDER / "index.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["verdict"] == "ok"]


ROWS = {row["file"]: row for row in _rows()}
PARAMETERS = [
    pytest.param(name, marks=[] if number % IN_CI == 0 else [pytest.mark.slow])
    for number, name in enumerate(sorted(ROWS))
]


@pytest.fixture(params=PARAMETERS or [None])
def row(request: pytest.FixtureRequest, corpus: Path) -> Row:
    """A line of the index whose file is correct in every mode that it claims."""
    if request.param is None:
        pytest.skip(f"no index in {corpus.name}/msccl")
    return ROWS[request.param]


def _read(name: str, content: bytes) -> Algorithm:
    return read(Source(name, Source.of_bytes(name, content).parts, lambda _: None), ReadOptions())


@cache
def _original(name: str) -> Algorithm:
    return _read(name, (FOLDER / name).read_bytes())


def _written(name: str, runtime: str) -> bytes:
    algorithm = _original(name)
    collective = None
    if algorithm.collective.kind is CollectiveKind.CUSTOM and runtime in NAME_OF_CUSTOM:
        collective = NAME_OF_CUSTOM[runtime]
    (artifact,) = write(algorithm, WriteOptions(runtime, collective=collective)).artifacts
    return artifact.content()


def _transfers(algorithm: Algorithm) -> Counter[tuple[object, ...]]:
    """Messages by (from, to, units, where the units lay unless in scratch)."""
    steps = algorithm.steps
    sends = steps.sends
    columns = (steps.rank, steps.peer, steps.count, steps.src_buffer, steps.src_offset)
    rows = zip(*(column[sends].tolist() for column in columns), strict=True)
    return Counter(
        (*pair, count, *((buffer, offset) if buffer != Buffer.SCRATCH else ()))
        for *pair, count, buffer, offset in rows
    )


@pytest.mark.parametrize("runtime", CHECKS)
def test_written_file_is_loaded_and_does_the_same(
    row: Row, runtime: str, loaders: ModuleType
) -> None:
    original = _original(row["file"])
    text = _written(row["file"], runtime)
    assert loaders.refusals(text.decode(), runtime) == []
    assert CHECKS[runtime](CheckRequest(source=Source.of_bytes("x.xml", text)), NoOptions()).ok
    back = _read(row["file"], text)
    assert _transfers(back) == _transfers(original)
    semantics = row["custom_semantics"] if back.collective.kind is CollectiveKind.CUSTOM else ""
    if semantics or original.collective.kind is not CollectiveKind.CUSTOM:
        report = verify(
            back, expected=parse_expectation(semantics, back.collective) if semantics else None
        )
        assert report.ok, report.diagnostics


@pytest.mark.parametrize("runtime", CHECKS)
def test_device_interpreter_gets_the_same_results(
    row: Row, runtime: str, loaders: ModuleType
) -> None:
    original = _original(row["file"])
    in_place = original.collective.in_place
    capacity = 2 if row["proto"] == "Simple" else 8
    machine = loaders.run(_written(row["file"], runtime).decode(), in_place, capacity)
    expected = original.collective.postcondition()
    if row["custom_semantics"]:
        expected = parse_expectation(row["custom_semantics"], original.collective)
    assert expected is not None
    ranks = range(original.num_ranks)
    wanted: dict[tuple[int, int], Counter[tuple[int, int]]] = {}
    columns = (expected.rank, expected.offset, expected.source_rank, expected.source_unit)
    for rank, offset, source, unit in zip(*(column.tolist() for column in columns), strict=True):
        wanted.setdefault((rank, offset), Counter()).update(
            (s, unit) for s in (ranks if source < 0 else [source])
        )
    found = {place: machine.cells.get(machine.cell(place[0], "o", place[1])) for place in wanted}
    assert found == wanted


def _by_lane(algorithm: Algorithm) -> list[tuple[int, ...]]:
    """Every step with its thread block, in the order of these."""
    steps = algorithm.steps
    order = np.lexsort((steps.lane, steps.rank))
    names = [name for name in COLUMN_DTYPES if name != "source_line"]
    return list(zip(*(getattr(steps, name)[order].tolist() for name in names), strict=True))


def test_runtime_of_the_file_gets_the_file_back(row: Row) -> None:
    """Thread blocks, channels, order in them, buffers, offsets and counts of a file stay."""
    original, back = _original(row["file"]), _read(row["file"], _written(row["file"], "msccl"))
    assert _by_lane(back) == _by_lane(original)
    assert np.array_equal(back.scratch_units, original.scratch_units)


def test_no_size_is_claimed_at_which_connections_fill_up(row: Row) -> None:
    back = _read(row["file"], _written(row["file"], "executor"))
    attributes = back.extensions["msccl"]["algo"]  # type: ignore[call-overload, index]
    safety = compute_fifo_safety(back, 2 if row["proto"] == "Simple" else 8)
    assert safety.min_units is not None
    if safety.min_units > 1:
        slice_bytes = {"Simple": 2 << 20, "LL": 32 << 10, "LL128": 576_000}[row["proto"]]
        assert (
            0
            < int(attributes["maxBytes"])
            <= back.collective.unit_count * (slice_bytes // safety.min_units)
        )


def test_custom_collective_is_refused_where_the_runtime_has_none(corpus: Path) -> None:
    name = next(name for name, row in sorted(ROWS.items()) if row["collective"] == "custom")
    with pytest.raises(InputError, match=r"Azure/msccl-executor-nccl: it has no custom collective"):
        write(_original(name), WriteOptions("executor"))
