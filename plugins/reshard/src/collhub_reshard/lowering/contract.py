"""The contract of a resharding: which unit of whose INPUT every unit of an OUTPUT must hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collhub_reshard.lowering.layout import BoxLayout, Region
from collhub_reshard.lowering.step_writer import Origin
from hub_core.columns import Int64Array
from hub_core.model import Collective, CollectiveKind, Contributions, CustomContract


def reshard_collective(layout: BoxLayout, origins: Sequence[Origin]) -> Collective:
    """A custom collective.

    The inputs of replicas are equal, which a contract cannot say: it names those that are sent.
    """
    parts = [_contributions(layout, origin) for origin in origins if origin.high > origin.low]
    # One table for all ranks, as contracts are.
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    if not parts:
        columns = [np.zeros(0, np.int64)] * 4
    # Bytes of the collective follow from this count and a unit's bytes.
    total = int(max(layout.input_units.max(), layout.output_units.max(), 1))
    # Ranks of the destination alone have no INPUT to read.
    contract = CustomContract(
        layout.input_units, layout.output_units, layout.input_units > 0, Contributions(*columns)
    )
    return Collective(CollectiveKind.CUSTOM, len(layout.input_units), total, contract=contract)


def _contributions(layout: BoxLayout, origin: Origin) -> tuple[Int64Array, ...]:
    """(rank, offset, source rank, source unit) of one part of a box at one receiver."""
    inside = slice(origin.low, origin.high)
    offset = _units_of(layout.outputs[origin.row, origin.receiver])[inside]
    source = _units_of(layout.inputs[origin.row, origin.device])[inside]
    receiver = np.full_like(offset, origin.receiver)
    return receiver, offset, np.full_like(offset, origin.device), source


def _units_of(region: Region) -> Int64Array:
    """All units of a region, in order."""
    inside = np.arange(region.run_units, dtype=np.int64)
    # Runs follow one another as they do in the box.
    units: Int64Array = (region.starts[:, None] + inside).reshape(-1)
    return units
