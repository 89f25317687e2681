"""Run an algorithm on contributions and compare every output unit with what is promised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from collhub_columns import Float64Array, Int64Array, counted_positions

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective, Contributions, MemoryLayout
from hub_core.model.diagnostics import InputError, Location
from hub_core.model.findings import CAP, Findings
from hub_core.model.kinds import Buffer
from hub_core.model.wording import action, region
from hub_core.verification.step_program import StepProgram, UndefinedReads, origins, run_steps
from hub_core.verification.values import ExactValues, InputIndex, Values, choose_values

# Gigabytes of memory and minutes of work: what is larger is refused with the reason.
MAX_CELLS = 1 << 25
MAX_WORK = 1 << 30
_NAMED = 4
_EXPLAINED_CELLS = 1 << 26


@dataclass(frozen=True, slots=True)
class ContentsComparison:
    """How contents were compared, and the error probability of that."""

    method: str
    error_probability: float


NOT_COMPARED = ContentsComparison("none", 0.0)


@dataclass(frozen=True, slots=True)
class Stage:
    """Where an algorithm runs in one mode: its collective and memory, in blocks of `unit` units."""

    algorithm: Algorithm
    collective: Collective
    layout: MemoryLayout
    unit: int


def check_contents(
    stage: Stage, program: StepProgram, expected: Contributions | None, findings: Findings
) -> ContentsComparison:
    """Run `program` and report undefined reads and wrong outputs.

    `expected` is in blocks of `stage.unit` units; None: the final contents are not judged. Raises
    `InputError` beyond the documented limits.
    """
    if program.cells > MAX_CELLS or program.work > MAX_WORK:
        sizes = f"{program.cells} units of memory and messages, {program.work} unit operations"
        message = f"too large to check contents: {sizes} (limits {MAX_CELLS} and {MAX_WORK})"
        raise InputError(message, code="too-large")
    index = InputIndex.of(stage.collective)
    values = choose_values(index, program.cells, program.work)
    memory = values.initial(program.cells, *_initial(stage, index))
    _report_undefined(stage, run_steps(program, values, memory), findings)
    if expected is None:
        return NOT_COMPARED
    cell_address, cell = _output_cells(stage, expected, findings)
    is_inside = cell >= 0
    rows, cell = expected.where(is_inside), cell[is_inside]
    wanted = values.expected(index, rows, len(cell_address), cell)
    wrong = np.flatnonzero(np.any(memory[cell_address] != wanted, axis=1))
    # Naming what a cell holds can take a column of all memory.
    named = wrong[: max(1, min(CAP, _EXPLAINED_CELLS // max(1, program.cells)))]
    if len(wrong):
        explanation = _Explanation(stage, index, program, findings)
        held = explanation.held(values, memory, cell_address[named])
        for which, found in zip(named.tolist(), held, strict=True):
            explanation.report(int(cell_address[which]), rows.where(cell == which), found)
    findings.count("wrong-output", len(wrong) - len(named))
    return ContentsComparison(values.name, values.error_probability(wanted))


def _initial(stage: Stage, index: InputIndex) -> tuple[Int64Array, Int64Array]:
    """Address and number of every contribution that is defined before."""
    sizes = np.where(stage.collective.defined_inputs(), index.sizes, 0)
    ranks = np.repeat(np.arange(len(sizes)), sizes)
    unit = counted_positions(sizes)
    return stage.layout.base[ranks, Buffer.INPUT] + unit, index.first[ranks] + unit


def _output_cells(
    stage: Stage, expected: Contributions, findings: Findings
) -> tuple[Int64Array, Int64Array]:
    """Addresses of the output units with a requirement, and for every row its index there.

    The index is -1 where there is no such unit; that is a finding.
    """
    layout = stage.layout
    last_rank = len(layout.size) - 1
    # Ranks that do not exist are looked up as the nearest one, and judged below.
    sizes = layout.size[np.clip(expected.rank, 0, last_rank), Buffer.OUTPUT]
    is_inside = (expected.rank >= 0) & (expected.rank <= last_rank)
    is_inside &= (expected.offset >= 0) & (expected.offset < sizes)
    for row in np.flatnonzero(~is_inside)[:CAP].tolist():
        rank, offset = int(expected.rank[row]), int(expected.offset[row])
        size = int(sizes[row]) if 0 <= rank <= last_rank else 0
        # Expectations are in single units, whatever the blocks of the run.
        unit = region(Buffer.OUTPUT, offset, 1)
        message = f"{unit} must hold a result, but OUTPUT has {size} units"
        findings.add("output-too-small", message, Location(findings.file, rank=rank))
    rows = np.flatnonzero(is_inside)
    address = layout.base[expected.rank[rows], Buffer.OUTPUT] + expected.offset[rows]
    cell = np.full(len(expected), -1, np.int64)
    # Postconditions of the named collectives have one row a unit, in the order of addresses.
    if len(address) and bool(np.all(address[1:] > address[:-1])):
        cell[rows] = np.arange(len(rows))
        return address, cell
    # Several rows of one unit are contributions that are reduced together.
    addresses, cell[rows] = np.unique(address, return_inverse=True)
    return addresses, cell


def _report_undefined(stage: Stage, reads: UndefinedReads, findings: Findings) -> None:
    """Report one read of each step."""
    steps = stage.algorithm.steps
    seen: set[int] = set()
    for row, address in reads.listed:
        # The first undefined unit of a step says enough.
        if row not in seen and len(seen) < CAP:
            seen.add(row)
            place = _place(stage, int(steps.rank[row]), address)
            message = f"this {action(steps, row)} reads {place}, which is undefined"
            findings.add("undefined-read", message, steps.location(row, findings.file))
    findings.count("undefined-read", reads.count - len(seen))


def _place(stage: Stage, rank: int, address: int) -> str:
    """Name an address by the first buffer that covers it, in units."""
    # Where buffers alias, OUTPUT is what the user looks at.
    for buffer in (Buffer.OUTPUT, Buffer.INPUT, Buffer.SCRATCH):
        offset = address - int(stage.layout.base[rank, buffer])
        if 0 <= offset < int(stage.layout.size[rank, buffer]):
            return region(buffer, offset * stage.unit, stage.unit)
    return f"address {address}"


@dataclass(frozen=True, slots=True)
class _Explanation:
    """Say what wrong output units hold, and by which step."""

    stage: Stage
    index: InputIndex
    program: StepProgram
    findings: Findings

    def held(self, values: Values, memory: npt.NDArray[Any], addresses: Int64Array) -> Float64Array:
        """Multiplicities of all contributions in these units: float64[units, contributions].

        NaN where a unit is undefined. Fingerprints are traced back to the inputs.
        """
        # Exact values are the answer; the last column only tells whether there is one.
        if isinstance(values, ExactValues):
            held = memory[addresses, :-1].astype(np.float64)
        else:
            held = np.zeros((len(addresses), self.index.total))
            start, contribution = _initial(self.stage, self.index)
            held[:, contribution] = origins(self.program, addresses)[start].T
        # An undefined operand spoils the whole unit, whatever else went in.
        held[memory[addresses, -1] == 0] = np.nan
        return held

    def report(self, address: int, wanted: Contributions, held: Float64Array) -> None:
        """Report one output unit, what it must hold and what it does."""
        steps, findings, unit = self.stage.algorithm.steps, self.findings, self.stage.unit
        _, contributions = self.index.expand(wanted)
        is_undefined = bool(np.isnan(held).any())
        what = "is undefined" if is_undefined else self._difference(held, contributions)
        rank, offset = int(wanted.rank[0]), int(wanted.offset[0])
        claim = f"{region(Buffer.OUTPUT, offset * unit, unit)} {what}"
        writer = self.program.last_writer(address)
        if writer is None:
            place = Location(findings.file, rank=rank)
            findings.add("wrong-output", f"{claim}; no step writes it", place)
        else:
            message = f"{claim} after its last write, this {action(steps, writer)}"
            findings.add("wrong-output", message, steps.location(writer, findings.file))

    def _difference(self, held: Float64Array, contributions: Int64Array) -> str:
        """Say which contributions are missing, held too often, or foreign.

        `held`: float64[contributions]; `contributions`: those that should be there, -1 for none
        that exists.
        """
        exists = contributions[contributions >= 0]
        wanted = np.bincount(exists, minlength=self.index.total)
        found = (
            ("lacks", (held < wanted) & (wanted > 0)),
            ("holds more than once", (held > wanted) & (wanted > 0)),
            ("holds as foreign", (held > 0) & (wanted == 0)),
        )
        parts = [
            f"{verb} {self._listing(np.flatnonzero(mask))}" for verb, mask in found if mask.any()
        ]
        # An expectation from a text can name units that the collective does not have.
        if absent := len(contributions) - len(exists):
            parts.append(f"should hold {absent} contributions that no INPUT has")
        return " and ".join(parts)

    def _listing(self, contributions: Int64Array) -> str:
        """The first contributions by name, and how many more there are."""
        unit = self.stage.unit
        names = []
        for number in contributions[:_NAMED].tolist():
            rank, first = self.index.name(number)
            names.append(f"{region(Buffer.INPUT, first * unit, unit)} of rank {rank}")
        more = len(contributions) - _NAMED
        return ", ".join(names) + (f" and {more} more" if more > 0 else "")
