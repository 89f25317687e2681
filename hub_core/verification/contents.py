"""Run an algorithm on contributions and compare every output unit with what the collective promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Buffer, Collective, Contributions, MemoryLayout
from hub_core.model.diagnostics import InputError, Location
from hub_core.model.findings import CAP, Findings
from hub_core.model.wording import action, region
from hub_core.verification.program import Program, UndefinedReads, origins, run_program
from hub_core.verification.values import ExactValues, InputIndex, choose_values

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]

MAX_CELLS = 1 << 25
MAX_WORK = 1 << 30
_NAMED = 4
_EXPLAINED_CELLS = 1 << 26


@dataclass(frozen=True, slots=True)
class Judgement:
    """How contents were compared, and the error probability of that."""

    method: str
    error_probability: float


@dataclass(frozen=True, slots=True)
class _Stage:
    """One run: the collective and the layout in blocks of `unit` units, and the numbering of the inputs."""

    collective: Collective
    layout: MemoryLayout
    index: InputIndex
    unit: int


def check_contents(
    algorithm: Algorithm,
    program: Program,
    layout: MemoryLayout,
    collective: Collective,
    expected: Contributions | None,
    unit: int,
    findings: Findings,
) -> Judgement:
    """Run `program` in `layout` and report undefined reads and wrong outputs of one mode.

    `layout`, `collective` and `expected` are in blocks of `unit` units. Raises `InputError` beyond the documented limits.
    """
    _refuse_too_large(program)
    stage = _Stage(collective, layout, InputIndex.of(collective), unit)
    values = choose_values(stage.index, program.cells, program.work)
    addresses, contributions = _initial(stage)
    memory = values.initial(program.cells, addresses, contributions)
    _report_undefined(algorithm, stage, run_program(program, values, memory), findings)
    if expected is None:
        return Judgement("none", 0.0)
    cell_address, cell = _output_cells(stage, expected, findings)
    rows = _select(expected, cell >= 0)
    wanted = values.expected(stage.index, rows, len(cell_address), cell[cell >= 0])
    wrong = np.flatnonzero(np.any(memory[cell_address] != wanted, axis=1))
    if len(wrong):
        named = wrong[: max(1, min(CAP, _EXPLAINED_CELLS // program.cells))]
        at = cell_address[named]
        held = (
            memory[at, :-1].astype(np.float64)
            if isinstance(values, ExactValues)
            else _trace(program, stage, at)
        )
        held[memory[at, -1] == 0] = np.nan
        mine = [_select(rows, cell[cell >= 0] == which) for which in named.tolist()]
        for address, wanted_rows, found in zip(at.tolist(), mine, held, strict=True):
            _report_wrong(
                algorithm, stage, program.last_writer(address), wanted_rows, found, findings
            )
        findings.count("wrong-output", len(wrong) - len(named))
    return Judgement(values.name, values.error_probability(wanted))


def _refuse_too_large(program: Program) -> None:
    if program.cells > MAX_CELLS or program.work > MAX_WORK:
        raise InputError(
            f"too large to check contents: {program.cells} units of memory and messages, {program.work} unit operations "
            f"(limits {MAX_CELLS} and {MAX_WORK})",
            code="too-large",
        )


def _initial(stage: _Stage) -> tuple[Int64Array, Int64Array]:
    """Address and number of every contribution that is defined before."""
    sizes = np.where(stage.collective.defined_inputs(), stage.index.sizes, 0)
    ranks = np.repeat(np.arange(len(sizes)), sizes)
    unit = np.arange(len(ranks)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return stage.layout.base[ranks, Buffer.INPUT] + unit, stage.index.first[ranks] + unit


def _output_cells(
    stage: _Stage, expected: Contributions, findings: Findings
) -> tuple[Int64Array, Int64Array]:
    """Addresses of the output units with a requirement, and for every row of `expected` its index there (-1: no such unit)."""
    ranks = len(stage.layout.size)
    inside = (expected.rank >= 0) & (expected.rank < ranks) & (expected.offset >= 0)
    inside &= (
        expected.offset < stage.layout.size[np.clip(expected.rank, 0, ranks - 1), Buffer.OUTPUT]
    )
    for row in np.flatnonzero(~inside)[:CAP].tolist():
        rank, offset = int(expected.rank[row]), int(expected.offset[row])
        size = int(stage.layout.size[rank, Buffer.OUTPUT]) if 0 <= rank < ranks else 0
        message = (
            f"{region(Buffer.OUTPUT, offset, 1)} must hold a result, but OUTPUT has {size} units"
        )
        findings.add("output-too-small", message, Location(findings.file, rank=rank))
    cell = np.full(len(expected), -1, np.int64)
    rows = np.flatnonzero(inside)
    address = stage.layout.base[expected.rank[rows], Buffer.OUTPUT] + expected.offset[rows]
    if len(address) and bool(np.all(address[1:] > address[:-1])):
        cell[rows] = np.arange(len(rows))
        return address, cell
    addresses, cell[rows] = np.unique(address, return_inverse=True)
    return addresses, cell


def _select(rows: Contributions, mask: npt.NDArray[np.bool_]) -> Contributions:
    return Contributions(
        rows.rank[mask], rows.offset[mask], rows.source_rank[mask], rows.source_unit[mask]
    )


def _trace(program: Program, stage: _Stage, addresses: Int64Array) -> npt.NDArray[np.float64]:
    """Exact multiplicities of all contributions in the units at `addresses`: float64[units, contributions]."""
    shares = origins(program, addresses)
    held = np.zeros((len(addresses), stage.index.total))
    start, contribution = _initial(stage)
    held[:, contribution] = shares[start].T
    return held


def _report_undefined(
    algorithm: Algorithm, stage: _Stage, reads: UndefinedReads, findings: Findings
) -> None:
    seen: set[int] = set()
    for row, address in reads.listed:
        if row not in seen and len(seen) < CAP:
            seen.add(row)
            place = _place(stage, int(algorithm.steps.rank[row]), address)
            message = f"this {action(algorithm.steps, row)} reads {place}, which is undefined"
            findings.add("undefined-read", message, algorithm.steps.location(row, findings.file))
    findings.count("undefined-read", reads.count - len(seen))


def _place(stage: _Stage, rank: int, address: int) -> str:
    """Name an address by the first buffer that covers it, in units."""
    for buffer in (Buffer.OUTPUT, Buffer.INPUT, Buffer.SCRATCH):
        offset = address - int(stage.layout.base[rank, buffer])
        if 0 <= offset < int(stage.layout.size[rank, buffer]):
            return region(buffer, offset * stage.unit, stage.unit)
    return f"address {address}"


def _report_wrong(
    algorithm: Algorithm,
    stage: _Stage,
    writer: int | None,
    wanted: Contributions,
    held: npt.NDArray[np.float64],
    findings: Findings,
) -> None:
    """Report one output unit: `held` are the multiplicities in it, NaN where it is undefined; `writer` wrote it last."""
    rank, offset = int(wanted.rank[0]), int(wanted.offset[0])
    _, contributions = stage.index.expand(wanted)
    what = "is undefined" if np.isnan(held).any() else _difference(stage, held, contributions)
    place = region(Buffer.OUTPUT, offset * stage.unit, stage.unit)
    if writer is None:
        findings.add(
            "wrong-output", f"{place} {what}; no step writes it", Location(findings.file, rank=rank)
        )
    else:
        after = f"after its last write, this {action(algorithm.steps, writer)}"
        findings.add(
            "wrong-output",
            f"{place} {what} {after}",
            algorithm.steps.location(writer, findings.file),
        )


def _difference(stage: _Stage, held: npt.NDArray[np.float64], contributions: Int64Array) -> str:
    """Say which contributions are missing, held too often, or foreign."""
    exists = contributions[contributions >= 0]
    wanted = np.bincount(exists, minlength=stage.index.total)
    missing, doubled, foreign = (
        np.flatnonzero((held < wanted) & (wanted > 0)),
        np.flatnonzero((held > wanted) & (wanted > 0)),
        np.flatnonzero((held > 0) & (wanted == 0)),
    )
    parts = [
        f"{_NAMES[k]} {_listing(stage, which)}"
        for k, which in enumerate((missing, doubled, foreign))
        if len(which)
    ]
    absent = len(contributions) - len(exists)
    if absent:
        parts.append(f"should hold {absent} contributions that no INPUT has")
    return " and ".join(parts)


_NAMES = ("lacks", "holds more than once", "holds as foreign")


def _listing(stage: _Stage, contributions: Int64Array) -> str:
    names = []
    for number in contributions[:_NAMED].tolist():
        rank, unit = stage.index.name(number)
        names.append(f"{region(Buffer.INPUT, unit * stage.unit, stage.unit)} of rank {rank}")
    more = f" and {len(contributions) - _NAMED} more" if len(contributions) > _NAMED else ""
    return ", ".join(names) + more
