"""Run an algorithm on symbolic contributions and compare its output with the postcondition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.columns import Float64Array, Int64Array, counted_positions
from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective, Contributions, MemoryLayout
from hub_core.model.diagnostics import CAP, Findings, InputError, Location
from hub_core.model.kinds import Buffer
from hub_core.model.messages import action, region
from hub_core.verification.step_program import StepProgram, UndefinedReads, origins, run_steps
from hub_core.verification.values import ExactValues, InputIndex, Values, choose_values

# Limits of gigabytes of memory and minutes of work; larger algorithms are refused.
MAX_CELLS = 1 << 25
MAX_WORK = 1 << 30
_NAMED = 4
_EXPLAINED_CELLS = 1 << 26


@dataclass(frozen=True, slots=True)
class ContentsComparison:
    """Method of a comparison of contents, and the probability that it accepted a wrong output."""

    method: str
    error_probability: float


NOT_COMPARED = ContentsComparison("none", 0.0)


@dataclass(frozen=True, slots=True)
class CallingMode:
    """An algorithm in one mode of calling, with collective and memory in blocks of `unit` units."""

    algorithm: Algorithm
    collective: Collective
    layout: MemoryLayout
    unit: int


def check_contents(
    stage: CallingMode, program: StepProgram, expected: Contributions | None, findings: Findings
) -> ContentsComparison:
    """Run `program` on symbolic contents, add findings, and return the method of comparison.

    Findings, in this order; the last two only if `expected` is not None:

    1. `undefined-read`: the first undefined unit that a step reads, for at most 8 steps
    2. `output-too-small`: at most 8 rows of `expected` outside OUTPUT
    3. `wrong-output`: units of OUTPUT with wrong contents, by address. The first min(8, 2^26 //
       cells), at least 1, are explained; the others are only counted.

    If `expected` is None, the result is `NOT_COMPARED`. The method is "exact", with the error
    probability 0, if (contributions + 1) x cells is at most 2^24 and (contributions + 1) x unit
    operations is at most 2^28. Otherwise it is "fingerprint", with the probability 2^-64 x number
    of expected contributions. Raises `InputError` (`too-large`) before any work above 2^25 cells or
    2^30 unit operations.
    """
    if program.cells > MAX_CELLS or program.work > MAX_WORK:
        sizes = f"{program.cells} units of memory and messages, {program.work} unit operations"
        message = f"too large to check contents: {sizes} (limits {MAX_CELLS} and {MAX_WORK})"
        raise InputError(message, code="too-large")
    index = InputIndex.of(stage.collective)
    values = choose_values(index, program.cells, program.work)
    memory = values.initial(program.cells, *_initial_contributions(stage, index))
    _report_undefined(stage, run_steps(program, values, memory), findings)
    if expected is None:
        return NOT_COMPARED
    cell_address, cell = _find_output_cells(stage, expected, findings)
    is_inside = cell >= 0
    rows, cell = expected.where(is_inside), cell[is_inside]
    expected_values = values.expected(index, rows, len(cell_address), cell)
    wrong = np.flatnonzero(np.any(memory[cell_address] != expected_values, axis=1))
    # Explaining one cell may take a column over the entire memory.
    named = wrong[: max(1, min(CAP, _EXPLAINED_CELLS // max(1, program.cells)))]
    if len(wrong):
        explanation = _Explanation(stage, index, program, findings)
        actual = explanation.held(values, memory, cell_address[named])
        for output, contributions in zip(named.tolist(), actual, strict=True):
            explanation.report(int(cell_address[output]), rows.where(cell == output), contributions)
    findings.count("wrong-output", len(wrong) - len(named))
    return ContentsComparison(values.name, values.error_probability(expected_values))


def _initial_contributions(stage: CallingMode, index: InputIndex) -> tuple[Int64Array, Int64Array]:
    """Return the units of all defined INPUTs as (addresses, contributions), both int64.

    A contribution is the number of an INPUT unit in `index`, which also counts undefined
    INPUTs. The units are ordered by rank, then by unit. Ranks whose INPUT is undefined are
    omitted.
    """
    sizes = np.where(stage.collective.defined_inputs(), index.sizes, 0)
    ranks = np.repeat(np.arange(len(sizes)), sizes)
    unit = counted_positions(sizes)
    return stage.layout.base[ranks, Buffer.INPUT] + unit, index.first[ranks] + unit


def _find_output_cells(
    stage: CallingMode, expected: Contributions, findings: Findings
) -> tuple[Int64Array, Int64Array]:
    """Return the addresses of the output units in `expected`, and the unit of each of its rows.

    The addresses are distinct and ascending. The second array has, for each row, the index of
    its unit in the first array; several rows may have the same unit. The index is -1 for a row
    with a rank that does not exist or an offset outside OUTPUT (below 0 or not below its size).
    Each of the first 8 (`CAP`) of these rows becomes a finding (`output-too-small`) at its
    rank; further ones are neither listed nor counted. Without rows both arrays are empty.
    """
    layout = stage.layout
    last_rank = len(layout.size) - 1
    # Ranks outside 0..n-1 are clipped here and excluded by `is_inside`.
    sizes = layout.size[np.clip(expected.rank, 0, last_rank), Buffer.OUTPUT]
    is_inside = (expected.rank >= 0) & (expected.rank <= last_rank)
    is_inside &= (expected.offset >= 0) & (expected.offset < sizes)
    for row in np.flatnonzero(~is_inside)[:CAP].tolist():
        rank, offset = int(expected.rank[row]), int(expected.offset[row])
        size = int(sizes[row]) if 0 <= rank <= last_rank else 0
        # Texts of expectations use single units, so that the block size is 1 here.
        unit = region(Buffer.OUTPUT, offset, 1)
        message = f"{unit} must hold a result, but OUTPUT has {size} units"
        findings.add("output-too-small", message, Location(findings.file, rank=rank))
    rows = np.flatnonzero(is_inside)
    address = layout.base[expected.rank[rows], Buffer.OUTPUT] + expected.offset[rows]
    cell = np.full(len(expected), -1, np.int64)
    # Standard collectives have one row per unit, in the order of addresses.
    if len(address) and bool(np.all(address[1:] > address[:-1])):
        cell[rows] = np.arange(len(rows))
        return address, cell
    # Several rows of one unit are contributions of a reduction.
    addresses, cell[rows] = np.unique(address, return_inverse=True)
    return addresses, cell


def _report_undefined(stage: CallingMode, reads: UndefinedReads, findings: Findings) -> None:
    """Add a finding (`undefined-read`) for each of the first 8 steps with undefined reads.

    `reads.listed` has (row of the step, address) of the first reads of undefined units. A
    step is reported once, with its first listed read. `reads.count` is the number of all
    such reads; those without a finding only increase the count in `findings`. Without such
    reads, no finding is added.
    """
    steps = stage.algorithm.steps
    seen: set[int] = set()
    for row, address in reads.listed:
        # One undefined unit per step is reported.
        if row not in seen and len(seen) < CAP:
            seen.add(row)
            location = _describe_address(stage, int(steps.rank[row]), address)
            message = f"this {action(steps, row)} reads {location}, which is undefined"
            findings.add("undefined-read", message, steps.location(row, findings.file))
    findings.count("undefined-read", reads.count - len(seen))


def _describe_address(stage: CallingMode, rank: int, address: int) -> str:
    """Describe an address of a rank as a region of a buffer, such as `OUTPUT[4:6]`.

    The region is the block at this address, in units of the algorithm (`stage.unit` per
    block). If several buffers contain the address, OUTPUT takes precedence over INPUT, and
    INPUT over SCRATCH. For an address outside all buffers, the text is `address N`.
    """
    # Users look at OUTPUT first.
    for buffer in (Buffer.OUTPUT, Buffer.INPUT, Buffer.SCRATCH):
        offset = address - int(stage.layout.base[rank, buffer])
        if 0 <= offset < int(stage.layout.size[rank, buffer]):
            return region(buffer, offset * stage.unit, stage.unit)
    return f"address {address}"


@dataclass(frozen=True, slots=True)
class _Explanation:
    """Describes the contents of wrong output units and the step that wrote them."""

    stage: CallingMode
    index: InputIndex
    program: StepProgram
    findings: Findings

    def held(self, values: Values, memory: npt.NDArray[Any], addresses: Int64Array) -> Float64Array:
        """Return how often each contribution is in each unit: float64[units, contributions].

        `addresses`: positions of the units in `memory`. Columns are the numbers of the index.
        The row of an undefined unit is NaN. Exact values have at most 255, which means 255 or
        more. For fingerprints, the numbers are found by tracing the units back to the inputs;
        this takes a column over all cells of the program per unit.
        """
        # Exact values are multiplicities; the last column marks defined units.
        if isinstance(values, ExactValues):
            counts = memory[addresses, :-1].astype(np.float64)
        else:
            counts = np.zeros((len(addresses), self.index.total))
            start, contribution = _initial_contributions(self.stage, self.index)
            counts[:, contribution] = origins(self.program, addresses)[start].T
        # A reduction with an undefined operand is undefined.
        counts[memory[addresses, -1] == 0] = np.nan
        return counts

    def report(self, address: int, expected: Contributions, actual: Float64Array) -> None:
        """Add one finding (`wrong-output`) for one wrong output unit.

        The message has three parts. The first is the region of the buffer OUTPUT: `stage.unit`
        elements from offset times `stage.unit`, with the offset of the first row of `expected`.
        The second is `is undefined` if `actual` has a NaN, otherwise `_describe_difference`.
        The third names the step that last wrote the unit. The finding has this step's location.
        If no step wrote it, the message says so, and the location is the rank.

        `address`: address of the unit. `expected`: the rows of the unit, at least one.
        `actual`: float64[contributions], how often each contribution is in the unit.
        """
        steps, findings, unit = self.stage.algorithm.steps, self.findings, self.stage.unit
        _, contributions = self.index.expand(expected)
        is_undefined = bool(np.isnan(actual).any())
        defect = (
            "is undefined" if is_undefined else self._describe_difference(actual, contributions)
        )
        rank, offset = int(expected.rank[0]), int(expected.offset[0])
        claim = f"{region(Buffer.OUTPUT, offset * unit, unit)} {defect}"
        writer = self.program.last_writer(address)
        if writer is None:
            location = Location(findings.file, rank=rank)
            findings.add("wrong-output", f"{claim}; no step writes it", location)
        else:
            message = f"{claim} after its last write, this {action(steps, writer)}"
            findings.add("wrong-output", message, steps.location(writer, findings.file))

    def _describe_difference(self, actual: Float64Array, contributions: Int64Array) -> str:
        """Describe how contributions of a unit differ from the expected ones; "" if they do not.

        `actual`: float64[contributions], how often each contribution of the index is in the unit.
        `contributions`: numbers of the expected contributions, each as often as expected; -1 stands
        for an expected unit that no INPUT has. The text has these parts, joined by `and`, with
        names as in `_list_names`:

        - `lacks`: less often than expected
        - `holds more than once`: expected, and more often than expected
        - `holds as foreign`: not expected
        - `should hold N contributions that no INPUT has`: N entries are -1
        """
        exists = contributions[contributions >= 0]
        expected_counts = np.bincount(exists, minlength=self.index.total)
        differences = (
            ("lacks", (actual < expected_counts) & (expected_counts > 0)),
            ("holds more than once", (actual > expected_counts) & (expected_counts > 0)),
            ("holds as foreign", (actual > 0) & (expected_counts == 0)),
        )
        parts = [
            f"{verb} {self._list_names(np.flatnonzero(mask))}"
            for verb, mask in differences
            if mask.any()
        ]
        # A text of an expectation may name units that the collective does not have.
        if absent := len(contributions) - len(exists):
            parts.append(f"should hold {absent} contributions that no INPUT has")
        return " and ".join(parts)

    def _list_names(self, contributions: Int64Array) -> str:
        """Return the names of the first `_NAMED` (4) contributions, and how many follow.

        An example is `INPUT[0] of rank 0, INPUT[0] of rank 1`; with six contributions, four names
        and ` and 2 more`. Offsets are in the units of the algorithm, of which a contribution may
        have several. `contributions`: numbers in the index, named in this order. Returns "" if
        there are none.
        """
        unit = self.stage.unit
        names = []
        for number in contributions[:_NAMED].tolist():
            rank, first = self.index.name(number)
            names.append(f"{region(Buffer.INPUT, first * unit, unit)} of rank {rank}")
        more = len(contributions) - _NAMED
        return ", ".join(names) + (f" and {more} more" if more > 0 else "")
