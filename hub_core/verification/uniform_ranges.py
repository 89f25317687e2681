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

from hub_core.columns import Int64Array, expanded_ranges, first_positions
from hub_core.model.collectives import Collective, MemoryLayout
from hub_core.model.kinds import Buffer, StepKind
from hub_core.model.messages import Messages
from hub_core.verification.atoms import Accesses, Atoms, Operand, are_ordered_by_data, divide_memory
from hub_core.verification.contents import ContentsComparison
from hub_core.verification.reachability import are_linked, unordered_in
from hub_core.verification.regions import MAX_ACCESSES, Regions
from hub_core.verification.report import VerificationInput
from hub_core.verification.values import FingerprintValues, InputIndex

_Array = npt.NDArray[Any]
# Conflicts that are not ordered by their data are decided by searches, of at most so many.
_MAX_SEARCHED = 4096
# An access has several columns here, where a check at once has one key.
_MAX_ACCESSES = MAX_ACCESSES >> 2


@dataclass(frozen=True, slots=True)
class RangeCheck:
    """Result of a check by ranges.

    `comparison`: of contents, None if the algorithm is wrong or not proven to be correct; then
    `address` is a block of memory for which there is no proof.
    """

    comparison: ContentsComparison | None
    address: int = -1


def check_ranges(
    verification_input: VerificationInput,
    collective: Collective,
    layout: MemoryLayout,
    regions: Regions,
    *,
    is_race_free: bool,
) -> RangeCheck:
    """Check races and contents of an algorithm by ranges of units, which must be independent.

    `collective`, `layout`, `regions`: counted in equal blocks of units. With
    `is_race_free`, races are not checked. All steps must run, and all messages must be
    matched. The result has a `comparison` if the algorithm is proven to be correct, up to
    the error probability of the comparison. Otherwise it has the `address` of a block for
    which there is no proof, which need not be a defect. With more than `_MAX_ACCESSES`
    accesses to ranges there is no check, and the address is in the step with most accesses.
    """
    atoms = divide_memory(regions, layout)
    accesses = atoms.accesses_by_row
    if int(accesses.sum()) > _MAX_ACCESSES:
        # The memory of the check would not fit; the step with the most accesses is as good as any.
        row = int(accesses.argmax())
        return RangeCheck(None, max(int(regions.source[row]), int(regions.destination[row])))
    if not is_race_free:
        address = _find_unproven_conflict(verification_input, atoms)
        if address >= 0:
            return RangeCheck(None, address)
    return _compare_contents(verification_input, collective, layout, atoms)


def _find_unproven_conflict(verification_input: VerificationInput, atoms: Atoms) -> int:
    """Return the first address of two accesses that are not proven to be ordered, -1 if all are.

    An atom is a range of addresses that every step uses as a whole. A conflict is a pair of
    accesses to one atom, at least one writing: an access and the last write before it, or a read
    and the next write. It is proven by the first of these that succeeds: a direct edge between
    both steps, a path of the data (`are_ordered_by_data`), an exact search. The search is omitted
    if more than `_MAX_SEARCHED` (4096) different pairs of steps remain. All of them then count
    as not proven.

    The result is the first address of an atom of the first unproven pair, by row of the earlier
    step, then of the later step.
    """
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
    earlier, later = earlier[is_open], later[is_open]
    # Steps that share several atoms have as many conflicts, which are searched once.
    keys = accesses.row[earlier] * len(steps) + accesses.row[later]
    _, first = np.unique(keys, return_index=True)
    unordered = first
    if len(first) <= _MAX_SEARCHED:
        rows = accesses.row[earlier[first]], accesses.row[later[first]]
        unordered = first[unordered_in(graph, *rows)]
    return int(atoms.borders[accesses.atom[later[unordered[0]]]]) if len(unordered) else -1


def _compare_contents(
    verification_input: VerificationInput,
    collective: Collective,
    layout: MemoryLayout,
    atoms: Atoms,
) -> RangeCheck:
    """Run the steps on one value per range of units (atom), and compare OUTPUT with the result.

    Before the run, the defined input units have these numbers; all others have none:

    - The collective reduces: one random number per rank. OUTPUT must have the sum of all.
    - Otherwise: one common number for all ranks. OUTPUT must have this number.

    In a collective to a root, only the root's OUTPUT is compared (rank 0 if the root is None).
    If all values agree, the result has a comparison: `exact` with probability 0.0 without a
    reduction, otherwise `fingerprint` with an upper limit of the probability of a wrong
    acceptance. If not, the comparison is None, and `address` is the first one of these:

    1. that of `_run_steps`, if a step reads a region without a value or with several values
    2. the first address of the first atom of OUTPUT, by rank, with a wrong or no value
    """
    traits = collective.kind.traits
    ranks = np.arange(collective.num_ranks)
    one = np.ones(collective.num_ranks if traits.reduces else 1, np.int64)
    values = FingerprintValues.of(InputIndex(one, np.arange(len(one)), len(one)))
    contribution = ranks if traits.reduces else np.zeros_like(ranks)
    sizes = np.where(collective.defined_inputs(), layout.size[:, Buffer.INPUT], 0)
    first, length = atoms.locate(layout.base[:, Buffer.INPUT], sizes)
    owner = np.repeat(contribution, length)
    memory = values.initial(len(atoms.borders) - 1, expanded_ranges(first, length), owner)
    address, compared = _run_steps(verification_input, values, memory, atoms)
    if address >= 0:
        return RangeCheck(None, address)
    required = layout.size[:, Buffer.OUTPUT]
    if traits.to_root:
        required = np.where(ranks == (collective.root or 0), required, 0)
    outputs = expanded_ranges(*atoms.locate(layout.base[:, Buffer.OUTPUT], required))
    expected = np.asarray([[values.weights.sum(dtype=np.uint64), len(one)]], np.uint64)
    wrong = np.flatnonzero(np.any(memory[outputs] != expected, axis=1))
    if len(wrong):
        return RangeCheck(None, address=int(atoms.borders[outputs[wrong[0]]]))
    # Fingerprints are the same for all units of an atom, which are therefore counted once; those
    # that a step must find equal count too.
    if not traits.reduces:
        return RangeCheck(ContentsComparison("exact", 0.0))
    probability = float(len(outputs) + compared) * len(one) * 2.0**-64
    return RangeCheck(ContentsComparison(values.name, probability))


def _run_steps(
    verification_input: VerificationInput,
    values: FingerprintValues,
    memory: _Array,
    atoms: Atoms,
) -> tuple[int, int]:
    """Run the steps on the values in `memory`, uint64[atoms, 2], until one reads a wrong region.

    An atom is a range of units that no step divides. Its value is (fingerprint, count), undefined
    if the count is 0. Steps run level by level of the order, which must be complete; every receive
    must be matched with a send. COMPUTE steps and steps with invalid regions are skipped.

    A region that a step reads is right if its first atom is defined and all its atoms have the same
    value. Within a level, first the sources of all steps except RECV are read, then the
    destinations of REDUCE. The run ends at the first wrong region, before its level writes.
    `memory` is changed.

    Returns (address, compared). `address` is -1 if all regions are right. Otherwise it is the first
    block of the first atom of the wrong region if that atom is undefined, else of its first atom
    with another value. `compared` counts all atoms of the read regions except the first ones.
    """
    steps = verification_input.algorithm.steps
    messages: Messages = verification_input.messages
    order = verification_input.relation.order
    send_of = np.full(len(steps), -1)
    send_of[messages.receive] = messages.send
    in_flight = np.zeros((len(steps), 2), np.uint64)
    works = verification_input.is_valid & ~steps.is_kind(StepKind.COMPUTE)
    compared = 0
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
            read, other = _read(memory, operand, rows[used])
            compared += int(operand.length[rows[used]].sum()) - len(used)
            if (other >= 0).any():
                return int(atoms.borders[other[other >= 0][0]]), compared
            is_first = value[used, 1] == 0
            value[used] = np.where(is_first[:, None], read, values.combine(value[used], read))
        is_sent = kinds == StepKind.SEND
        in_flight[rows[is_sent]] = value[is_sent]
        writers = rows[~is_sent]
        length = atoms.destination.length[writers]
        written = expanded_ranges(atoms.destination.first[writers], length)
        memory[written] = np.repeat(value[~is_sent], length, axis=0)
    return -1, compared


def _read(memory: _Array, operand: Operand, rows: Int64Array) -> tuple[_Array, Int64Array]:
    """Return the value of each operand `rows[i]`, and its first atom with another value.

    An operand is a sequence of adjacent atoms (ranges of units with one value), at least one. Its
    value, uint64[2], is that of its first atom in `memory`; it is undefined if its second number is
    0. The second result is int64 with the number of an atom: the operand's first one if the value
       is undefined, else the lowest one with another value, or -1 if all have the same value.
    """
    first, length = operand.first[rows], operand.length[rows]
    read = memory[first]
    other = np.where(read[:, 1] == 0, first, -1)
    several = np.flatnonzero((length > 1) & (other < 0))
    if len(several):
        counts = length[several]
        atoms = expanded_ranges(first[several], counts)
        differs = np.any(memory[atoms] != np.repeat(read[several], counts, axis=0), axis=1)
        # The number of the memory's atoms stands for none.
        least = np.minimum.reduceat(np.where(differs, atoms, len(memory)), first_positions(counts))
        other[several] = np.where(least < len(memory), least, -1)
    return read, other
