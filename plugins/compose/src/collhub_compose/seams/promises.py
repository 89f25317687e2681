"""What two collectives promise when one follows the other, and which one of the field that is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collhub_compose.buffers.usage import BufferUsage, contract_of, required_units
from collhub_compose.seams.relations import are_equal, canonical, substituted
from hub_core.model import (
    Collective,
    CollectiveKind,
    CustomContract,
    ReduceOp,
)

# In the order in which they are tried: for one rank alone, where several promise the same, the
# first one stands for all.
_UNROOTED = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)


def followed_by(first: CustomContract, second: CustomContract) -> CustomContract:
    """The contract of `second` on what `first` leaves in OUTPUT.

    Nothing is expected where one of them states nothing.
    """
    expected = None
    if first.expected is not None and second.expected is not None:
        num_ranks = len(first.defined)
        expected = substituted(first.expected, second.expected, num_ranks)
    return CustomContract(
        first.input_units,
        second.output_units,
        first.defined,
        expected,
    )


def promise(contract: CustomContract, usage: BufferUsage, op: ReduceOp) -> Collective:
    """The collective with this contract.

    One of the field where the contracts are equal, else a custom one. Sizes of buffers that hold no
    data before or results after do not tell collectives apart, as long as the steps (`usage`) stay
    inside; a custom collective gets no more of them than that. Claims to be out of place, for now.
    """
    trimmed = _trimmed(contract, usage)
    largest_input = int(trimmed.input_units.max())
    largest_output = int(trimmed.output_units.max())
    unit_count = max(1, largest_input, largest_output)
    for kind, root in _candidates(trimmed):
        found = _candidate(kind, root, unit_count, trimmed, op)
        if found is not None:
            return found
    return Collective(
        CollectiveKind.CUSTOM,
        len(contract.defined),
        unit_count,
        reduce_op=op,
        contract=trimmed,
    )


def _trimmed(contract: CustomContract, usage: BufferUsage) -> CustomContract:
    """The contract in canonical form, with buffers no larger than data, results and steps need."""
    # Steps may use more of a buffer than the contract states, as room to work in.
    expected = contract.expected
    if expected is not None:
        expected = canonical(expected, len(contract.defined))
    inputs = np.where(contract.defined, contract.input_units, usage.reached_input)
    outputs = np.maximum(usage.reached_output, required_units(contract))
    return CustomContract(inputs, outputs, contract.defined, expected)


def _candidates(contract: CustomContract) -> Iterator[tuple[CollectiveKind, int | None]]:
    """Kinds with the root that the contract suggests.

    That is the only rank with data before, or with results after; nothing is suggested where no
    result is stated.
    """
    if contract.expected is None:
        return
    for kind in _UNROOTED:
        yield kind, None
    sources = np.flatnonzero(contract.defined)
    if len(sources) == 1:
        root = int(sources[0])
        yield CollectiveKind.BROADCAST, root
        yield CollectiveKind.SCATTER, root
    targets = np.unique(contract.expected.rank)
    if len(targets) == 1:
        root = int(targets[0])
        yield CollectiveKind.REDUCE, root
        yield CollectiveKind.GATHER, root


def _candidate(
    kind: CollectiveKind, root: int | None, unit_count: int, contract: CustomContract, op: ReduceOp
) -> Collective | None:
    """The collective of this kind, if it promises just what `contract` (canonical) says."""
    num_ranks = len(contract.defined)
    if unit_count % num_ranks and kind.traits.is_split:
        return None
    candidate = Collective(kind, num_ranks, unit_count, root, reduce_op=op)
    stated = contract_of(candidate)
    if not _has_room_for(stated, contract):
        return None
    assert stated.expected is not None
    assert contract.expected is not None
    expected = canonical(stated.expected, num_ranks)
    return candidate if are_equal(expected, contract.expected) else None


def _has_room_for(stated: CustomContract, contract: CustomContract) -> bool:
    """Whether the same ranks have as much data, and all buffers are large enough."""
    # Where a rank has no data before, its INPUT may be of any size: nothing reads it.
    defined = stated.defined
    if not np.array_equal(defined, contract.defined):
        return False
    if not np.array_equal(stated.input_units[defined], contract.input_units[defined]):
        return False
    inputs_fit = np.all(stated.input_units >= contract.input_units)
    return bool(inputs_fit and np.all(stated.output_units >= contract.output_units))
