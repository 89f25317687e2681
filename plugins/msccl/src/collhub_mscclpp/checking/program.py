"""Columns for `kernel`: a plan, and the state that changes during a launch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hub_core.columns import Int32Array, Int64Array, UInt8Array, UInt64Array

Clocks = npt.NDArray[np.int32]

# Compiled code contains these numbers: after a change here, change `kernel.py` too, so that it is
# compiled again. Indices in `LaunchState.scalars`: free entries of the two pools, number of races,
# first free read, and the first actor that is a proxy.
FREE_CLOCKS, FREE_READS, RACES, NEXT_READ, FIRST_PROXY = 0, 1, 2, 3, 4


class PlanColumns(NamedTuple):
    """A plan for the kernel; columns are int64 unless another type is given.

    `block_first` [blocks + 1]: first operation of each thread block. Per operation: `role`,
    `barrier` (-1 for none), `barrier_blocks`, `flushes` (uint8, whether it waits for its proxies),
    and CSR pointers `item_first` into `item` (counter that is incremented or awaited, -1 without a
    partner) and `item_proxy` (number of the lagging channel, -1 for none), and `move_first` into
    moves. Per move: `cells`, and CSR pointers `read_first`, `write_first`; every written cell gets
    the sum of the read cells. Per range: `*_base`, its first cell, `*_shift`, added to it in every
    second launch, and `*_is_packet` (uint8); `write_proxy`: number of the lagging channel whose
    proxy writes the range, -1 for the thread block itself.
    """

    block_first: Int64Array
    role: Int64Array
    barrier: Int64Array
    barrier_blocks: Int64Array
    flushes: UInt8Array
    item_first: Int64Array
    item: Int64Array
    item_proxy: Int64Array
    move_first: Int64Array
    cells: Int64Array
    read_first: Int64Array
    read_base: Int64Array
    read_shift: Int64Array
    read_is_packet: UInt8Array
    write_first: Int64Array
    write_base: Int64Array
    write_shift: Int64Array
    write_is_packet: UInt8Array
    write_proxy: Int64Array


class LaunchState(NamedTuple):
    """The state that changes during launches.

    `clocks` int32[actors, actors]; `kept` int32[pool, actors]: clocks at signals, releases and
    packets; `free_clocks`: its free rows. Per cell: `value`, `is_defined`, `packet` (launch
    that wrote it, from 1) and `packet_clock` (row of `kept`), `write_actor`, `write_time`, and
    `reads`: head of a list in the pool of `read_actor`, `read_time`, `read_next`. Per thread block:
    `position` of its next operation, `item_at`: number of its completed items, `arrived`:
    generation of the barrier at which it waits, or -1. Per counter: `head`, `tail` in `queue` from
    `queue_first` on; `uses` int32[counters, 4]: actor and time of the last raise and of the last
    take; `is_late`: 1 if increments are known to have no order, set to 2 when this is detected;
    `late`: joined clocks of all increments; `taken`: counts taken in this launch; `raised`:
    increments in each launch (0 if counts cannot be identified). Per barrier: `generation`,
    `waiting`, and clocks `gathered`, `released`. `order`: operations in execution order. `races`:
    launch, operation, cell, earlier actor and its time, current actor, and 1 if the earlier actor
    is a proxy whose request, but not its read, precedes the write. Proxies: request k of lagging
    channel c, numbered from 0 over all launches, is row `request_first[c] + k` of `request_block`
    (thread block that made the request) and `request_time` (its time).
    """

    clocks: Clocks
    kept: Clocks
    free_clocks: Int64Array
    value: UInt64Array
    is_defined: UInt8Array
    packet: Int32Array
    packet_clock: Int32Array
    write_actor: Int32Array
    write_time: Int32Array
    reads: Int32Array
    read_actor: Int32Array
    read_time: Int32Array
    read_next: Int32Array
    position: Int64Array
    item_at: Int64Array
    arrived: Int64Array
    uses: Int32Array
    is_late: UInt8Array
    late: Clocks
    taken: Int64Array
    raised: Int64Array
    head: Int64Array
    tail: Int64Array
    queue_first: Int64Array
    queue: Int64Array
    generation: Int64Array
    waiting: Int64Array
    gathered: Clocks
    released: Clocks
    order: Int64Array
    races: Int64Array
    request_first: Int64Array
    request_block: Int64Array
    request_time: Int64Array
    scalars: Int64Array
