"""The collective that a trace claims, all instances together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from collhub_columns import Int64Array

from collhub_msccl.language.instances import Instances
from collhub_msccl.language.trace import INPUT, OUTPUT, Trace
from hub_core.model import Collective, CollectiveKind, Contributions, CustomContract


def lowered_collective(trace: Trace, instances: Instances) -> Collective:
    """The collective that all instances together do."""
    kind = CollectiveKind(trace.kind)
    contract = _contract(trace, instances) if kind is CollectiveKind.CUSTOM else None
    if contract is not None:
        # The longest buffer of any rank: the full buffer of a custom collective is as long.
        units = int(max(contract.input_units.max(), contract.output_units.max(), 1))
    else:
        units = kind.traits.parts(trace.num_ranks) * trace.chunk_factor * instances.number
    return Collective(
        kind,
        trace.num_ranks,
        units,
        trace.root if kind is CollectiveKind.BROADCAST else None,
        in_place=trace.is_in_place,
        out_of_place=not trace.is_in_place,
        contract=contract,
    )


def _contract(trace: Trace, instances: Instances) -> CustomContract:
    """What the program's own collective promises, for all instances."""
    stated = trace.contract
    if stated is None:
        raise ValueError("the trace of a custom collective states no contract")
    # Sizes are in chunks of one instance; a chunk is a unit.
    return CustomContract(
        np.asarray(trace.input_sizes, np.int64) * instances.number,
        np.asarray(trace.output_sizes, np.int64) * instances.number,
        np.asarray(stated.defined, np.bool_),
        None if stated.expected is None else _expected(stated.expected, instances),
    )


def _expected(rows: list[list[int]], instances: Instances) -> Contributions:
    """The outcome of all instances, by that of one: see `StatedContract.expected`."""
    rank, index, source_rank, source_index = np.asarray(rows, np.int64).reshape(-1, 4).T
    output, given = np.full_like(rank, OUTPUT), np.full_like(rank, INPUT)
    copies = range(instances.number)

    def each(column: Callable[[int], Int64Array]) -> Int64Array:
        return np.concatenate([column(copy) for copy in copies])

    return Contributions(
        each(lambda copy: rank),
        each(lambda copy: instances.place(rank, output, index, copy)),
        each(lambda copy: source_rank),
        each(lambda copy: instances.place(source_rank, given, source_index, copy)),
    )
