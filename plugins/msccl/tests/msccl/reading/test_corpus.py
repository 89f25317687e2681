"""Every real file reads, and hub and index agree on what it contains and on whether it is correct.

Verdicts are those of `verdict*` in corpus/msccl/index.csv, found there with an interpreter of
MSCCL-IR; here with the core's verification of the lowered steps.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from collhub_msccl.findings import FileFindings
from collhub_msccl.plugin import ReadOptions
from collhub_msccl.reading.header import read_header
from collhub_msccl.reading.read_thread_blocks import read_thread_blocks
from collhub_msccl.reading.read_xml import read
from collhub_msccl.reading.scan import scan_xml
from collhub_msccl.runtimes.load_check import compute_fifo_safety
from collhub_msccl.thread_block_program import STEP_TYPE_NAMES, ThreadBlockProgram

import hub_core
from hub_core.model import Algorithm, CollectiveKind, Diagnostic
from hub_core.plugin_api import Source
from hub_core.verification import VerifyReport, parse_expectation, verify

FOLDER = Path(__file__).resolve().parents[6] / "shared" / "corpus" / "msccl"
Row = Mapping[str, str]

_WORST = ("ok", "race", "wrong", "wrong+race")
_FIFO_CAPACITY = {"Simple": 2, "LL": 8, "LL128": 8}
# Bytes of one chunk that microsoft/msccl and Azure/msccl-executor-nccl move in one iteration.
_SLICE_BYTES = {"Simple": 2 << 20, "LL": 32 << 10, "LL128": 576_000}


def _index(folder: Path) -> list[Row]:
    if not (folder / "index.csv").is_file():
        return []
    with (folder / "index.csv").open(newline="") as file:
        return list(csv.DictReader(file))


FILES = {row["file"]: row for row in _index(FOLDER)}


@pytest.fixture(params=sorted(FILES) or [None])
def row(request: pytest.FixtureRequest, corpus: Path) -> Row:
    """A line of the index."""
    if request.param is None:
        pytest.skip(f"no index in {corpus.name}/msccl")
    return FILES[request.param]


@pytest.fixture(
    params=sorted(name for name, row in FILES.items() if row["verdict"] == "ok") or [None]
)
def correct_row(request: pytest.FixtureRequest, corpus: Path) -> Row:
    """A line of the index whose file is correct in every mode that it claims."""
    if request.param is None:
        pytest.skip(f"no index in {corpus.name}/msccl")
    return FILES[request.param]


def _ignore(_diagnostic: Diagnostic) -> None:
    pass


def _read(file: Path, **options: str) -> Algorithm:
    return read(
        Source(file.name, Source.of_bytes(file.name, file.read_bytes()).parts, _ignore),
        ReadOptions(**options),
    )


@cache
def _algorithm(name: str) -> Algorithm:
    return _read(FOLDER / name)


def _verify(algorithm: Algorithm, row: Row) -> VerifyReport:
    stated = row["custom_semantics"]
    return verify(
        algorithm, expected=parse_expectation(stated, algorithm.collective) if stated else None
    )


def _claimed_verdict(report: VerifyReport) -> str:
    return max(
        (mode.verdict for mode in report.modes.values() if mode.is_claimed), key=_WORST.index
    )


def _program(file: Path) -> ThreadBlockProgram:
    findings = FileFindings(file.name, _ignore)
    document = scan_xml(file.read_bytes(), file.name, findings)
    return read_thread_blocks(document, read_header(document, findings), findings)


def test_header_agrees_with_the_index(row: Row) -> None:
    algorithm = _algorithm(row["file"])
    written = algorithm.extensions["msccl"]["algo"]
    for column in (
        "proto",
        "nchannels",
        "nchunksperloop",
        "inplace",
        "outofplace",
        "minBytes",
        "maxBytes",
    ):
        assert written.get(column, "") == row[column]
    assert written.get("coll", "(missing)") == row["collective"]
    assert written["name"] == row["algo_name"]
    collective = algorithm.collective
    assert (collective.num_ranks, collective.unit_count) == (
        int(row["ranks"]),
        int(row["nchunksperloop"]),
    )
    claims = {(True, False): "in", (False, True): "out", (True, True): "both"}[
        collective.in_place, collective.out_of_place
    ]
    assert claims == row["claims"].split()[0]
    assert (collective.kind is CollectiveKind.CUSTOM) == (
        row["collective"] in ("custom", "(missing)")
    )


def test_counts_agree_with_the_index(row: Row) -> None:
    program = _program(FOLDER / row["file"])
    types = Counter(STEP_TYPE_NAMES[number] for number in program.type.tolist())
    counts = {
        "steps": len(program),
        "step_types": " ".join(f"{name}:{types[name]}" for name in sorted(types)),
        "nops": types["nop"],
        "deps": int(np.count_nonzero(program.depid >= 0)),
        "max_tbs": int(np.diff(program.block_indptr).max()),
        "max_steps_per_tb": int(program.position.max()) + 1,
        "max_cnt": int(program.count.max()),
        "max_scratch": int(program.scratch_chunks.max()),
    }
    assert {name: str(value) for name, value in counts.items()} == {
        name: row[name] for name in counts
    }


def test_steps_are_the_lowered_ones(row: Row) -> None:
    types = dict(part.split(":") for part in row["step_types"].split())
    rows = {"rcs": 2, "rrs": 2, "rrcs": 2, "nop": 0}
    assert len(_algorithm(row["file"]).steps) == sum(
        rows.get(name, 1) * int(number) for name, number in types.items()
    )


def test_verdicts_agree_with_the_index(row: Row) -> None:
    report = _verify(_algorithm(row["file"]), row)
    assert report.modes["in_place"].verdict == row["verdict_inplace"]
    assert report.modes["out_of_place"].verdict == row["verdict_outofplace"]
    assert _claimed_verdict(report) == row["verdict"]


def test_verdict_of_the_other_reading_agrees_with_the_index(row: Row) -> None:
    report = _verify(_read(FOLDER / row["file"], reading="dsl"), row)
    assert _claimed_verdict(report) == row["verdict_dsl_reading"]


def test_size_without_deadlock_agrees_with_the_index(row: Row) -> None:
    algorithm = _algorithm(row["file"])
    safety = compute_fifo_safety(algorithm, _FIFO_CAPACITY[row["proto"]])
    assert (str(safety.min_units), safety.is_exact) == (row["fifo_min_count"], True)
    safe_bytes = algorithm.collective.unit_count * (
        _SLICE_BYTES[row["proto"]] // int(row["fifo_min_count"])
    )
    assert row["fifo_safe_bytes"] == ("" if safety.min_units == 1 else str(safe_bytes))


def test_data_dependencies_alone_keep_correct_files_correct(correct_row: Row) -> None:
    algorithm = _algorithm(correct_row["file"])
    nothing = {
        "control_indptr": np.zeros(len(algorithm.steps) + 1, np.int64),
        "control_indices": np.zeros(0, np.int64),
    }
    assert _verify(replace(algorithm, steps=replace(algorithm.steps, **nothing)), correct_row).ok


@pytest.fixture(scope="module")
def registry() -> hub_core.Registry:
    """The installed plugins, looked for once."""
    return hub_core.discover()


def test_trace_and_back_is_the_same_algorithm(
    row: Row, registry: hub_core.Registry, tmp_path: Path
) -> None:
    algorithm = _algorithm(row["file"])
    hub_core.write(algorithm, tmp_path / "trace", registry=registry)
    back = hub_core.read(tmp_path / "trace", registry=registry)
    assert algorithm.differences(back) == []


def test_every_file_of_the_folder_is_in_the_index(corpus: Path) -> None:
    assert sorted(file.name for file in (corpus / "msccl").glob("*.xml")) == sorted(FILES)


def test_taccl_files_agree_with_their_index(corpus: Path) -> None:
    """Runtimes ignore <copy>, and so does the hub: some files of TACCL are wrong by it."""
    for row in _index(corpus / "taccl"):
        if row["file"].endswith(".xml"):
            given = {
                **row,
                "custom_semantics": "broadcast root 0" if row["collective"] == "(missing)" else "",
            }
            report = _verify(_read(corpus / "taccl" / row["file"]), given)
            assert _claimed_verdict(report) == row["verdict_copies_ignored"], row["file"]


def test_programs_beside_the_traces_are_correct(corpus: Path) -> None:
    files = sorted((corpus / "chakra").glob("*/*.xml"))
    assert files
    for file in files:
        assert verify(_read(file)).ok, file.name
