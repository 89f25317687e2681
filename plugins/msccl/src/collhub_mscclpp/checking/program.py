"""Columns that `kernel` runs on: a plan, and all that changes while it runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hub_core.columns import Int32Array, Int64Array, UInt8Array, UInt64Array

Clocks = npt.NDArray[np.int32]

# Machine code keeps these numbers: whoever changes one touches `kernel.py` too.
# Entries of `State.scalars`: free entries of the pools, found races, first free read, and the first
# actor that is a proxy.
FREE_CLOCKS, FREE_READS, RACES, NEXT_READ, FIRST_PROXY = 0, 1, 2, 3, 4


class Program(NamedTuple):
    """A plan in the form that runs; int64 columns unless stated.

    `block_first` [blocks + 1]: operations of a thread block. For every operation: `role`, `barrier`
    (-1 for none), `barrier_blocks`, `flushes` (uint8, whether it waits for its proxies), and CSR
    pointers `item_first` into `item` (counters that are raised or awaited, -1: nobody is there) and
    `item_proxy` (number of the lagging channel, -1 for none), and `move_first` into moves. For
    every move: `cells`, and CSR pointers `read_first`, `write_first`; every written cell gets the
    sum of the read ones. For every range: its first cell, what is added to it in every second
    launch, and whether it is packets (uint8); for a written one `write_proxy`, the number of the
    lagging channel whose proxy moves it, -1 for the thread block itself.
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


class State(NamedTuple):
    """All that changes while a plan runs.

    `clocks` int32[actors, actors]; `kept` int32[pool, actors]: clocks at signals, releases and
    packets, free rows listed in `free_clocks`. Per cell: `value`, `is_defined`, `packet` (launch
    that wrote it, from 1) and `packet_clock` (row of `kept`), `write_actor`, `write_time`, and
    `reads`: head of a list in the pool of `read_actor`, `read_time`, `read_next`. Per thread block:
    `position` of its next operation, `item_at`: items of it that are done, `arrived`: generation of
    the barrier that it waits at, or -1. Per counter: `head` and `tail` in `queue` from
    `queue_first` on; `uses` int32[counters, 4]: actor and time of the last raise and of the last
    take; `is_late`: 1 where raises have no order, set to 2 where that is found; `late`: all raises
    together; `taken` in this launch, of `raised` in every one (0 for never known). Per barrier:
    `generation`, `waiting`, and clocks `gathered`, `released`.
    `order`: operations as they were done, `races`: launch, operation, cell, other actor and its
    time, own actor, and 1 where the other one is a proxy that reads late what the writer knows to
    be requested. Proxies: request k of lagging channel c, counted from 0 over all launches, is row
    `request_first[c] + k` of `request_block`, the thread block that made the request, and
    `request_time`, its time then.
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
