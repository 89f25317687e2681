"""All steps of a schedule: start-ups, messages, and copies of what ranks keep."""

from __future__ import annotations

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import StepTable
from hub_core.schedules.lowering.columns import RowPairs, concatenated
from hub_core.schedules.lowering.holders import ChunkHolders
from hub_core.schedules.lowering.link_turns import link_turns
from hub_core.schedules.lowering.message_ends import MessageEnds, check_causality
from hub_core.schedules.lowering.messages import message_steps
from hub_core.schedules.lowering.own_copies import own_copies
from hub_core.schedules.lowering.scratch import scratch_slots
from hub_core.schedules.lowering.startups import startup_steps
from hub_core.schedules.transfers import Transfers, link_channels


def steps_of(
    ends: MessageEnds, transfers: Transfers, holders: ChunkHolders, startup_ns: Int64Array
) -> tuple[StepTable, Int64Array]:
    """The steps of a schedule, and the units of SCRATCH that they use, int64[num_npus].

    `startup_ns`: int64 per plane. Raises `InputError` for a chunk that is sent before its source
    has it.
    """
    check_causality(ends, transfers, holders)
    channel = _channels(transfers)[ends.transfer]
    needs = holders.needs(ends.rank, ends.chunk)
    slot, scratch_units = scratch_slots(ends, needs, holders)
    startups, started = startup_steps(ends, channel, startup_ns)
    messages = message_steps(ends, transfers, holders, needs, slot, channel)
    copies, reads = own_copies(ends, holders)

    # Start-ups stand in front, so that messages on a channel stay in the order of time.
    parts = [startups, messages, copies]
    first_end = len(startups["rank"])
    turns = link_turns(ends, transfers)
    control = [started, _shifted(turns, first_end), _shifted(reads, first_end)]
    steps = StepTable.from_columns(
        holders.num_npus,
        concatenated(parts),
        _shifted(_data(ends), first_end),
        _joined(control),
    )
    return steps, scratch_units


def _channels(transfers: Transfers) -> Int64Array:
    """The channel of every transfer, int64."""
    if transfers.channel is None:
        return link_channels(transfers)
    return transfers.channel


def _data(ends: MessageEnds) -> RowPairs:
    """Whatever is sent or added to waits for its last arrival."""
    rows = np.flatnonzero(ends.has_arrived)
    return ends.previous[rows], rows


def _shifted(pairs: RowPairs, rows: int) -> RowPairs:
    """Dependencies in rows of the table, of which the first end has row `rows`."""
    parents, children = pairs
    return parents + rows, children + rows


def _joined(parts: list[RowPairs]) -> RowPairs:
    """All dependencies of all parts."""
    parents = [pairs[0] for pairs in parts]
    children = [pairs[1] for pairs in parts]
    return np.concatenate(parents), np.concatenate(children)
