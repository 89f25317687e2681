"""Build the collective of a trace, for all instances together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collhub_msccl.language.instances import Instances
from collhub_msccl.language.trace import INPUT, OUTPUT, Trace
from hub_core.columns import Int64Array
from hub_core.model import Collective, CollectiveKind, Contributions, CustomContract


def lower_collective(trace: Trace, instances: Instances) -> Collective:
    """Collective of all instances together.

    Raises `ValueError` for a custom one without contract.
    """
    kind = CollectiveKind(trace.kind)
    contract = _build_contract(trace, instances) if kind is CollectiveKind.CUSTOM else None
    if contract is not None:
        # The longest buffer of any rank: the full buffer of a custom collective has this length.
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


def _build_contract(trace: Trace, instances: Instances) -> CustomContract:
    """Contract of a user-defined collective, for all instances."""
    stated = trace.contract
    if stated is None:
        raise ValueError("the trace of a custom collective has no contract")
    # Sizes are in chunks of one instance; one chunk is one unit.
    return CustomContract(
        np.asarray(trace.input_sizes, np.int64) * instances.number,
        np.asarray(trace.output_sizes, np.int64) * instances.number,
        np.asarray(stated.defined, np.bool_),
        None if stated.expected is None else _build_expected(stated.expected, instances),
    )


def _build_expected(rows: list[list[int]], instances: Instances) -> Contributions:
    """Result of all instances, from that of one: see `TracedContract.expected`."""
    rank, index, source_rank, source_index = np.asarray(rows, np.int64).reshape(-1, 4).T
    output, source = np.full_like(rank, OUTPUT), np.full_like(rank, INPUT)
    copies = range(instances.number)

    def concatenate_copies(column: Callable[[int], Int64Array]) -> Int64Array:
        """The column of every instance, one after the other."""
        return np.concatenate([column(copy) for copy in copies])

    return Contributions(
        concatenate_copies(lambda copy: rank),
        concatenate_copies(lambda copy: instances.compute_offsets(rank, output, index, copy)),
        concatenate_copies(lambda copy: source_rank),
        concatenate_copies(
            lambda copy: instances.compute_offsets(source_rank, source, source_index, copy)
        ),
    )
