"""Check very large algorithms by ranges of units that all steps treat alike.

In an algorithm whose units are independent (`is_divisible`), the content of a unit is the set of
the ranks whose contributions it holds, the same for all units of a range of which no step treats
a part differently. Values are therefore held per range instead of per unit, and the cost is that of
the steps instead of the units that they move.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.columns import BoolArray, Int64Array, expanded_ranges
from hub_core.model.collectives import Collective, MemoryLayout
from hub_core.model.kinds import Buffer, StepKind
from hub_core.model.messages import Messages
from hub_core.verification.atoms import Accesses, Atoms, Operand, are_ordered_by_data, divide_memory
from hub_core.verification.contents import ContentsComparison
from hub_core.verification.reachability import are_linked, unordered_in
from hub_core.verification.regions import Regions
from hub_core.verification.report import VerificationInput
from hub_core.verification.values import FingerprintValues, InputIndex

_Array = npt.NDArray[Any]
# Conflicts that are not ordered by their data are decided by searches, of at most so many.
_MAX_SEARCHED = 4096


@dataclass(frozen=True, slots=True)
class RangeCheck:
    """Result of a check by ranges.

    `comparison`: of contents, None if the algorithm is wrong or not proven to be correct; then
    `row` is the first step for which there is no proof, or -1, and `address` the unit of OUTPUT
    that is not proven, or -1.
    """

    comparison: ContentsComparison | None
    row: int = -1
    address: int = -1


def check_ranges(
    verification_input: VerificationInput,
    collective: Collective,
    layout: MemoryLayout,
    regions: Regions,
    *,
    is_race_free: bool,
) -> RangeCheck:
    """Check races and contents of a divisible algorithm by ranges of units.

    `collective`, `layout`, `regions`: in equal blocks of units. With `is_race_free`, races are not
    checked. The order of the steps must be complete. A result with a comparison is a proof, up to
    the error probability of the comparison; another one is no proof of a defect.
    """
    atoms = divide_memory(regions, layout)
    if not is_race_free:
        row = _find_unproven_conflict(verification_input, atoms)
        if row >= 0:
            return RangeCheck(None, row)
    return _compare_contents(verification_input, collective, layout, atoms)


def _find_unproven_conflict(verification_input: VerificationInput, atoms: Atoms) -> int:
    """Return the later row of a conflict that is not proven to be ordered, -1 if there is none."""
    graph = verification_input.graph
    steps, messages = verification_input.algorithm.steps, verification_input.messages
    accesses = Accesses(atoms, graph.position)
    earlier, later = accesses.neighbours
    node = graph.position[accesses.row]
    is_open = ~are_linked(graph, node[earlier], node[later])
    earlier, later = earlier[is_open], later[is_open]
    if not len(earlier):
        return -1
    is_open = ~are_ordered_by_data(accesses, steps, messages, earlier, later)
    rows = accesses.row[earlier[is_open]], accesses.row[later[is_open]]
    if not len(rows[0]):
        return -1
    if len(rows[0]) > _MAX_SEARCHED:
        return int(rows[1][0])
    unordered = unordered_in(graph, *rows)
    return int(rows[1][unordered[0]]) if len(unordered) else -1


def _compare_contents(
    verification_input: VerificationInput,
    collective: Collective,
    layout: MemoryLayout,
    atoms: Atoms,
) -> RangeCheck:
    """Run the steps on the values of atoms and compare OUTPUT with the required values.

    A contribution is that of a rank to a unit. If the collective does not reduce, every unit has
    one contribution, whose value is the same for all units.
    """
    traits = collective.kind.traits
    ranks = np.arange(collective.num_ranks)
    one = np.ones(collective.num_ranks if traits.reduces else 1, np.int64)
    values = FingerprintValues.of(InputIndex(one, np.arange(len(one)), len(one)))
    contribution = ranks if traits.reduces else np.zeros_like(ranks)
    sizes = np.where(collective.defined_inputs(), layout.size[:, Buffer.INPUT], 0)
    first, length = _find_atoms(atoms, layout.base[:, Buffer.INPUT], sizes)
    owner = np.repeat(contribution, length)
    memory = values.initial(len(atoms.borders) - 1, expanded_ranges(first, length), owner)
    row = _run_steps(verification_input, values, memory, atoms)
    if row >= 0:
        return RangeCheck(None, row)
    required = layout.size[:, Buffer.OUTPUT]
    if traits.to_root:
        required = np.where(ranks == (collective.root or 0), required, 0)
    outputs = expanded_ranges(*_find_atoms(atoms, layout.base[:, Buffer.OUTPUT], required))
    expected = np.asarray([[values.weights.sum(dtype=np.uint64), len(one)]], np.uint64)
    wrong = np.flatnonzero(np.any(memory[outputs] != expected, axis=1))
    if len(wrong):
        return RangeCheck(None, address=int(atoms.borders[outputs[wrong[0]]]))
    # Fingerprints are the same for all units of an atom, which are therefore counted once.
    if not traits.reduces:
        return RangeCheck(ContentsComparison("exact", 0.0))
    probability = float(len(outputs)) * len(one) * 2.0**-64
    return RangeCheck(ContentsComparison(values.name, probability))


def _find_atoms(atoms: Atoms, start: Int64Array, size: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the first atom and the number of atoms of every buffer, which begin at borders."""
    first = np.searchsorted(atoms.borders, start)
    return first, np.searchsorted(atoms.borders, start + size) - first


def _run_steps(
    verification_input: VerificationInput,
    values: FingerprintValues,
    memory: _Array,
    atoms: Atoms,
) -> int:
    """Run all steps on `memory`, uint64[atoms, 2], which is changed.

    Returns the row of the first step that reads a region of several values or without a value, at
    which the run ends, or -1.
    """
    steps = verification_input.algorithm.steps
    messages: Messages = verification_input.messages
    order = verification_input.relation.order
    send_of = np.full(len(steps), -1)
    send_of[messages.receive] = messages.send
    in_flight = np.zeros((len(steps), 2), np.uint64)
    works = verification_input.is_valid & ~steps.is_kind(StepKind.COMPUTE)
    for low, high in pairwise(order.level_indptr.tolist()):
        rows = order.nodes[low:high]
        rows = rows[works[rows]]
        kinds = steps.kind[rows]
        is_received = (kinds == StepKind.RECV) | (kinds == StepKind.RECV_REDUCE)
        value = np.zeros((len(rows), 2), np.uint64)
        value[is_received] = in_flight[send_of[rows[is_received]]]
        # The second operand of a reduction is the destination, that of a received sum the source.
        operands = (
            (kinds != StepKind.RECV, atoms.source),
            (kinds == StepKind.REDUCE, atoms.destination),
        )
        for is_used, operand in operands:
            used = np.flatnonzero(is_used)
            read, is_uniform = _read(memory, operand, rows[used])
            if not is_uniform.all():
                return int(rows[used[np.flatnonzero(~is_uniform)[0]]])
            is_first = value[used, 1] == 0
            value[used] = np.where(is_first[:, None], read, values.combine(value[used], read))
        is_sent = kinds == StepKind.SEND
        in_flight[rows[is_sent]] = value[is_sent]
        writers = rows[~is_sent]
        length = atoms.destination.length[writers]
        written = expanded_ranges(atoms.destination.first[writers], length)
        memory[written] = np.repeat(value[~is_sent], length, axis=0)
    return -1


def _read(memory: _Array, operand: Operand, rows: Int64Array) -> tuple[_Array, BoolArray]:
    """Return the value of the first atom of an operand, and whether all atoms have it.

    uint64[rows, 2], bool[rows]; False for undefined values.
    """
    read = memory[operand.first[rows]]
    is_uniform = read[:, 1] != 0
    length = operand.length[rows]
    several = np.flatnonzero(length > 1)
    if len(several):
        counts = length[several]
        all_atoms = memory[expanded_ranges(operand.first[rows[several]], counts)]
        differs = np.any(all_atoms != np.repeat(read[several], counts, axis=0), axis=1)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        is_uniform[several] &= ~np.logical_or.reduceat(differs, starts)
    return read, is_uniform
