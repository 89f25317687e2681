"""Simulate one launch of a plan and find its races (compiled).

The algorithm executes all thread blocks round robin, each until it has to wait, which is one
deterministic run (specification of the operations: microsoft/mscclpp, `execution_kernel.hpp`). It
uses vector clocks (Mattern 1989) and the last accesses of every cell (FastTrack, Flanagan and
Freund, PLDI 2009). Actors are thread blocks, one host per rank, which fills the inputs before a
launch and reads the outputs after it, and one proxy for every port channel that may lag. A proxy
executes a request after it was made, in the order of its channel, and before an actor that takes
its signal or flushes the channel continues.

Invariant: `clocks[a, b]` is the time of the last operation of actor b that precedes the next
operation of actor a in every run. An access is ordered after an earlier one if and only if the
clock of its actor has reached the time of the earlier access. Only those reads of a cell are stored
that do not precede another stored read; a write is compared with these.

Values are sums of random words, one per contribution; different multisets have equal sums with
probability 2^-64. Cost: O(accesses * readers + synchronisations * actors).

A run stops if a pool is exhausted. The caller enlarges it and calls again; nothing is repeated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from collhub_packing.compiling import kernel, part

from collhub_mscclpp.checking.program import (
    FIRST_PROXY,
    FREE_CLOCKS,
    FREE_READS,
    NEXT_READ,
    RACES,
    Clocks,
)
from hub_core.columns import Int64Array

# Codes of `Role` in `plans.records`, as constants of the compiled code.
SIGNAL, WAIT, ACQUIRE, RELEASE, BARRIER, DATA = 1, 2, 3, 4, 5, 7

# Reasons for the end of a run.
STUCK, POOL_OF_CLOCKS, POOL_OF_READS = 0, 1, 2


@kernel
def run(program: Any, state: Any, launch: int, done: int) -> tuple[int, int]:
    """Execute operations and record races until every thread block waits or is finished.

    Blocks are executed in turn, each until it must wait, until a full round executes nothing.
    `launch`: from 0. `done`: number of operations in `state.order` so far. Returns the reason and
    the new number of operations. The reason is STUCK (no operation can proceed, also at the end),
    or POOL_OF_CLOCKS or POOL_OF_READS if a pool may not suffice for the next operation; the caller
    enlarges the pool and calls again.
    """
    blocks = len(program.block_first) - 1
    moved = True
    while moved:
        moved = False
        for block in range(blocks):
            last = program.block_first[block + 1]
            while state.position[block] < last:
                operation = state.position[block]
                if state.scalars[FREE_CLOCKS] < _clocks_of(program, operation):
                    return POOL_OF_CLOCKS, done
                if state.scalars[FREE_READS] < _reads_of(program, operation):
                    return POOL_OF_READS, done
                if not _step(program, state, launch, block, operation):
                    break
                state.order[done] = operation
                done += 1
                state.position[block] = operation + 1
                state.item_at[block] = 0
                moved = True
    return STUCK, done


@kernel
def host_access(
    state: Any, cells: Int64Array, host: int, time: int, launch: int, is_write: bool
) -> None:
    """Record that the host of a rank writes or reads each of these cells, and the races that
    follow.

    `host`: its actor number; `time`: of the access, by the host's clock.
    """
    for cell in cells:
        if is_write:
            _write(state, cell, host, time, launch, -1)
        else:
            _read(state, cell, host, time, launch, -1)


@kernel
def late_reads(state: Any, cells: Int64Array, host: int, launch: int) -> None:
    """Record races of the host with proxies that may read these cells after the end of the kernel.

    One for each recorded read by a proxy that the host's clock has not reached; reads of thread
    blocks are ignored. `host`: actor of the host. The reads remain recorded.
    """
    for cell in cells:
        node = state.reads[cell]
        while node >= 0:
            reader, when = state.read_actor[node], state.read_time[node]
            if reader >= state.scalars[FIRST_PROXY] and state.clocks[host][reader] < when:
                _note_race(state, launch, -1, cell, reader, when, host, 1)
            node = state.read_next[node]


@part
def _clocks_of(program: Any, operation: int) -> int:
    """Return the maximum number of clocks that an operation stores.

    A clock is stored with every signal, and once for all packets of the operation. So it is one for
    each item (channel or semaphore), and one more.
    """
    items: int = program.item_first[operation + 1] - program.item_first[operation]
    return items + 1


@part
def _reads_of(program: Any, operation: int) -> int:
    """Return the maximum number of reads that an operation records, as entries of the pool.

    An operation consists of moves (sources that are added and written to targets). Each cell of
    each range that a move reads counts once for the thread block, and once more for each target,
    whose proxy may read separately.
    """
    total = 0
    for move in range(program.move_first[operation], program.move_first[operation + 1]):
        ranges = program.read_first[move + 1] - program.read_first[move]
        # The proxy of every target reads separately.
        times = 1 + program.write_first[move + 1] - program.write_first[move]
        total += ranges * program.cells[move] * times
    return total


@part
def _step(program: Any, state: Any, launch: int, block: int, operation: int) -> bool:
    """Execute an operation of a thread block unless it must wait; return whether it was executed.

    It must wait for a missing count of a counter, for other blocks at a barrier, or for packets;
    contents are then unchanged. The operation sets the block's own entry of its vector clock to its
    time: its position in the block plus 1, plus the length of the block for each earlier launch.
    Signals of a data operation follow its data. A flush orders the block after its proxies.
    """
    role = program.role[operation]
    first = program.block_first[block]
    time = launch * (program.block_first[block + 1] - first) + operation - first + 1
    if role in (WAIT, ACQUIRE):
        if not _take_all(program, state, launch, block, operation, time):
            return False
    elif role == BARRIER:
        if not _pass_barrier(program, state, block, operation, time):
            return False
    elif role == DATA:
        if not _has_packets(program, state, launch, operation):
            return False
        state.clocks[block, block] = time
        _move_all(program, state, launch, block, operation, time)
    state.clocks[block, block] = time
    if role in (SIGNAL, RELEASE, DATA):
        _raise_all(program, state, block, operation, time)
    if program.flushes[operation]:
        _await_proxies(program, state, block, operation)
    return True


@part
def _await_proxies(program: Any, state: Any, block: int, operation: int) -> None:
    """Order the operations after this one after all requests to the proxies of the flushed
    channels.
    """
    for place in range(program.item_first[operation], program.item_first[operation + 1]):
        if program.item_proxy[place] >= 0:
            proxy = state.scalars[FIRST_PROXY] + program.item_proxy[place]
            _join(state.clocks[block], state.clocks[proxy])


@part
def _take_all(program: Any, state: Any, launch: int, block: int, operation: int, time: int) -> bool:
    """Take one count of the counter of every item (channel or semaphore) that an operation awaits.

    Returns False if a count is missing; counts taken so far are kept, and the next call continues
    with the missing one. An item without a counter (negative) waits forever. The clock of the block
    is joined (element-wise maximum) with the clock of the signal of each count, so operations that
    precede the signal also precede the block's later operations. For a counter that is incremented
    without an order, it is joined with the clocks of all its signals when the last count of the
    launch is taken.
    """
    first, last = program.item_first[operation], program.item_first[operation + 1]
    while first + state.item_at[block] < last:
        counter = program.item[first + state.item_at[block]]
        if counter < 0 or state.head[counter] == state.tail[counter]:
            return False
        row = state.queue[state.queue_first[counter] + state.head[counter]]
        state.head[counter] += 1
        state.item_at[block] += 1
        state.taken[counter] += 1
        _note_take(state, launch, operation, counter, block, time)
        if row >= 0:
            if state.is_late[counter] != 1:
                _join(state.clocks[block], state.kept[row])
            _free_clock(state, row)
        # Without an order, only the last count of the launch implies which signals have come.
        if state.is_late[counter] == 1 and state.taken[counter] == state.raised[counter]:
            _join(state.clocks[block], state.late[counter])
    return True


@part
def _note_take(
    state: Any, launch: int, operation: int, counter: int, block: int, time: int
) -> None:
    """Record a race if the previous take of this counter is not ordered before this one.

    A take is a wait that receives one count of the counter. Then stores this take (`block`, `time`)
    as the previous one. In the race the counter n has the cell number -1 - n.
    """
    uses = state.uses[counter]
    if uses[2] >= 0 and state.clocks[block, uses[2]] < uses[3]:
        _note_race(state, launch, operation, -1 - counter, uses[2], uses[3], block, 0)
    uses[2], uses[3] = block, time


@part
def _note_raise(state: Any, counter: int, block: int, time: int, raiser: int) -> None:
    """Record that `block` increments a counter at `time`, and check whether increments are ordered.

    If the clock of `block` does not include the previous increment, `state.is_late` of the counter
    changes from 0 to 2 (newly detected as unordered). If it is 1 (known to be unordered), the clock
    of the actor `raiser` (the block, or its proxy) is joined into `state.late` of the counter.
    """
    uses = state.uses[counter]
    if uses[0] >= 0 and state.clocks[block, uses[0]] < uses[1] and state.is_late[counter] == 0:
        state.is_late[counter] = 2
    uses[0], uses[1] = block, time
    if state.is_late[counter] == 1:
        _join(state.late[counter], state.clocks[raiser])


@part
def _raise_all(program: Any, state: Any, block: int, operation: int, time: int) -> None:
    """Increment the counter of every item; the raiser's clock is stored with the count.

    Counters below 0 have no partner and are skipped. The raiser is the block, or the proxy of a
    lagging port channel, whose clock then also covers the block's. Counts queue in the order in
    which they are raised, and each takes one free clock of the pool.
    """
    for place in range(program.item_first[operation], program.item_first[operation + 1]):
        counter = program.item[place]
        if counter < 0:
            continue
        raiser = block
        if program.item_proxy[place] >= 0:
            # The signal of a port channel follows all earlier puts through it.
            raiser = state.scalars[FIRST_PROXY] + program.item_proxy[place]
            _join(state.clocks[raiser], state.clocks[block])
        _note_raise(state, counter, block, time, raiser)
        row = _take_clock(state)
        state.kept[row] = state.clocks[raiser]
        state.queue[state.queue_first[counter] + state.tail[counter]] = row
        state.tail[counter] += 1


@part
def _pass_barrier(program: Any, state: Any, block: int, operation: int, time: int) -> bool:
    """Arrive at a barrier, or leave it if all blocks have arrived; return whether the block left.

    The first call of a block is its arrival at `time`, later calls only test. The arrival that
    completes `barrier_blocks` releases all, and that block leaves immediately. The clock of a block
    that leaves is joined with the clocks of all that arrived, so all earlier operations of these
    precede its later ones.
    """
    barrier = program.barrier[operation]
    if state.arrived[block] < 0:
        state.clocks[block, block] = time
        _join(state.gathered[barrier], state.clocks[block])
        state.arrived[block] = state.generation[barrier]
        state.waiting[barrier] += 1
        if state.waiting[barrier] == program.barrier_blocks[operation]:
            state.released[barrier] = state.gathered[barrier]
            state.waiting[barrier] = 0
            state.generation[barrier] += 1
    if state.generation[barrier] == state.arrived[block]:
        return False
    state.arrived[block] = -1
    _join(state.clocks[block], state.released[barrier])
    return True


@part
def _has_packets(program: Any, state: Any, launch: int, operation: int) -> bool:
    """Return whether all packets that an operation reads were written in this launch.

    True if it reads no packets. `launch`: from 0. `state.packet` has for every cell the launch
    (from 1) that last wrote it as a packet; 0 if none did. In odd launches `read_shift` is added to
    the addresses of a range, because double scratch has one half for even and one for odd launches;
    it is 0 for other ranges.
    """
    odd = launch % 2
    for move in range(program.move_first[operation], program.move_first[operation + 1]):
        for source in range(program.read_first[move], program.read_first[move + 1]):
            if not program.read_is_packet[source]:
                continue
            base = program.read_base[source] + odd * program.read_shift[source]
            for cell in range(base, base + program.cells[move]):
                if state.packet[cell] != launch + 1:
                    return False
    return True


@part
def _move_all(program: Any, state: Any, launch: int, block: int, operation: int, time: int) -> None:
    """Execute all moves of a data operation: each reads sources and writes their sum to targets.

    The block is first ordered after the writers of all packets that it reads. In each move the
    block writes its own targets; then each target of a proxy is a request, which the proxy executes
    immediately, at the proxy's own time. All packets that the block writes share one stored clock.
    """
    odd = launch % 2
    for move in range(program.move_first[operation], program.move_first[operation + 1]):
        _await_packets(program, state, odd, block, move)
    row = -1
    for move in range(program.move_first[operation], program.move_first[operation + 1]):
        first, last = program.write_first[move], program.write_first[move + 1]
        by_proxy = 0
        for target in range(first, last):
            by_proxy += program.write_proxy[target] >= 0
        if by_proxy < last - first:
            row = _move(program, state, launch, operation, move, (first, last), block, time, row)
        for target in range(first, last):
            if program.write_proxy[target] >= 0:
                proxy = _request(state, program.write_proxy[target], block, time)
                when = state.clocks[proxy, proxy]
                one = (target, target + 1)
                _move(program, state, launch, operation, move, one, proxy, when, -1)


@part
def _request(state: Any, channel: int, block: int, time: int) -> int:
    """Record a request of a thread block to the proxy of a channel; return the proxy's actor.

    A proxy is a thread of the host that executes the puts of a port channel. `channel`: number of
    the lagging channel; `time`: time of the block. The proxy's clock is joined with the block's
    clock, and its own entry, the number of its requests, increases by 1.
    """
    proxy: int = state.scalars[FIRST_PROXY] + channel
    _join(state.clocks[proxy], state.clocks[block])
    request = state.request_first[channel] + state.clocks[proxy, proxy]
    state.request_block[request] = block
    state.request_time[request] = time
    state.clocks[proxy, proxy] += 1
    return proxy


@part
def _move(
    program: Any,
    state: Any,
    launch: int,
    operation: int,
    move: int,
    targets: tuple[int, int],
    actor: int,
    time: int,
    row: int,
) -> int:
    """Read the sources of one move, add them, and write the sum to some of its targets.

    `targets`: (first, end) of the targets. `actor`: the thread block or proxy that executes it.
    Sums are modulo 2^64 and defined only if all sources are. A thread block skips targets that
    proxies write. A copy of a cell to itself writes nothing. Writing a packet that was already
    written in this launch is recorded as a race.

    `row`: row of the clock stored for the packets of this operation, or -1. Returns it, or the row
    of the clock that is stored for the first packet here.
    """
    odd = launch % 2
    is_block = actor < state.scalars[FIRST_PROXY]
    sources = program.read_first[move + 1] - program.read_first[move]
    for offset in range(program.cells[move]):
        total = np.uint64(0)
        is_defined = np.uint8(1)
        read = np.int64(-1)
        for source in range(program.read_first[move], program.read_first[move + 1]):
            read = program.read_base[source] + odd * program.read_shift[source] + offset
            _read(state, read, actor, time, launch, operation)
            total += state.value[read]
            is_defined &= state.is_defined[read]
        for target in range(targets[0], targets[1]):
            if is_block and program.write_proxy[target] >= 0:
                continue
            cell = program.write_base[target] + odd * program.write_shift[target] + offset
            if sources == 1 and cell == read:
                # A copy of a cell to itself changes nothing, so it cannot race.
                continue
            if program.write_is_packet[target] and state.packet[cell] == launch + 1:
                # The reader of the packet takes either the first packet or this one.
                writer, when = state.write_actor[cell], state.write_time[cell]
                _note_race(state, launch, operation, cell, writer, when, actor, 0)
            _write(state, cell, actor, time, launch, operation)
            state.value[cell] = total
            state.is_defined[cell] = is_defined
            if program.write_is_packet[target]:
                if row < 0:
                    row = _take_clock(state)
                    state.kept[row] = state.clocks[actor]
                state.packet[cell] = launch + 1
                state.packet_clock[cell] = row
    return row


@part
def _await_packets(program: Any, state: Any, odd: int, block: int, move: int) -> None:
    """Order a thread block after the writers of the packets that a move reads.

    The clocks stored with the packets are joined into the clock of the block. Sources that are not
    packets are skipped. The packets must have been written. `odd`: 1 in every second launch, in
    which `read_shift` is added to addresses, otherwise 0.
    """
    last = -1
    for source in range(program.read_first[move], program.read_first[move + 1]):
        if not program.read_is_packet[source]:
            continue
        base = program.read_base[source] + odd * program.read_shift[source]
        for cell in range(base, base + program.cells[move]):
            row = state.packet_clock[cell]
            # Neighbouring packets usually come from one operation.
            if row != last:
                _join(state.clocks[block], state.kept[row])
                last = row


@part
def _read(state: Any, cell: int, actor: int, time: int, launch: int, operation: int) -> None:
    """Record a read of a cell by `actor`, and a race if the last write is not ordered before it.

    A write is ordered before it if the clock of `actor` has reached the time of the write.
    `operation`: of the actor, for the race. Recorded reads that precede this one are dropped,
    because everything that is ordered after this read is ordered after them too; their entries
    return to the pool. The pool must have a free entry.
    """
    clock = state.clocks[actor]
    writer = state.write_actor[cell]
    if writer >= 0 and clock[writer] < state.write_time[cell]:
        _note_race(state, launch, operation, cell, writer, state.write_time[cell], actor, 0)
    kept = -1
    node = state.reads[cell]
    while node >= 0:
        following = state.read_next[node]
        if clock[state.read_actor[node]] >= state.read_time[node]:
            state.read_next[node] = state.scalars[NEXT_READ]
            state.scalars[NEXT_READ] = node
            state.scalars[FREE_READS] += 1
        else:
            state.read_next[node] = kept
            kept = node
        node = following
    node = state.scalars[NEXT_READ]
    state.scalars[NEXT_READ] = state.read_next[node]
    state.scalars[FREE_READS] -= 1
    state.read_actor[node] = actor
    state.read_time[node] = time
    state.read_next[node] = kept
    state.reads[cell] = node


@part
def _write(state: Any, cell: int, actor: int, time: int, launch: int, operation: int) -> None:
    """Record a write of a cell by `actor`, and its races with earlier accesses.

    There is a race for each earlier access that is not ordered before the write: the clock of
    `actor` has not reached its time. Late reads of proxies are skipped if the host writes
    (`operation` < 0), because `late_reads` records them. All recorded reads of the cell are dropped
    and their entries return to the pool. This write becomes the last one of the cell.
    """
    clock = state.clocks[actor]
    writer = state.write_actor[cell]
    if writer >= 0 and clock[writer] < state.write_time[cell]:
        _note_race(state, launch, operation, cell, writer, state.write_time[cell], actor, 0)
    node = state.reads[cell]
    while node >= 0:
        following = state.read_next[node]
        reader, when = state.read_actor[node], state.read_time[node]
        if clock[reader] < when:
            is_late = _is_late(state, clock, reader, when)
            # Races of the host with late reads were recorded by `late_reads`.
            if operation >= 0 or not is_late:
                _note_race(state, launch, operation, cell, reader, when, actor, is_late)
        state.read_next[node] = state.scalars[NEXT_READ]
        state.scalars[NEXT_READ] = node
        state.scalars[FREE_READS] += 1
        node = following
    state.reads[cell] = -1
    state.write_actor[cell] = actor
    state.write_time[cell] = time


@part
def _is_late(state: Any, clock: Clocks, reader: int, when: int) -> int:
    """Return 1 if only the execution of a proxy's read may be late, not its request; otherwise 0.

    That is so if `reader` is a proxy and its request was made before `clock` (which has reached the
    time of the block's request). 0 for thread blocks and hosts. `when`: time of the proxy, which is
    the number of its request from 1.
    """
    channel = reader - state.scalars[FIRST_PROXY]
    if channel < 0:
        return 0
    request = state.request_first[channel] + when - 1
    return int(clock[state.request_block[request]] >= state.request_time[request])


@part
def _note_race(
    state: Any,
    launch: int,
    operation: int,
    cell: int,
    other: int,
    when: int,
    actor: int,
    is_late: int,
) -> None:
    """Append a race to `state.races`: `actor` accesses `cell` after `other` did at time `when`.

    `operation`: operation of `actor`, -1 for the host. `is_late`: flag that is stored with the
    race. Nothing is appended if the last entry is the same pair of accesses in another cell, or if
    the table is full.
    """
    count = state.scalars[RACES]
    if count:
        last = state.races[count - 1]
        if last[1] == operation and last[3] == other and last[4] == when and last[5] == actor:
            return
    if count < len(state.races):
        found = state.races[count]
        found[0], found[1], found[2] = launch, operation, cell
        found[3], found[4], found[5] = other, when, actor
        found[6] = is_late
        state.scalars[RACES] = count + 1


@part
def _join(clock: Clocks, other: Clocks) -> None:
    """Set a clock, in place, to the element-wise maximum of it and another clock."""
    for actor in range(len(clock)):
        clock[actor] = max(clock[actor], other[actor])


@part
def _take_clock(state: Any) -> int:
    """Take a free row of `state.kept`, the table of stored clocks, and return its number.

    A stored clock is a copy of the clock of an actor, for example at a signal. The caller writes it
    into the row. The last row of the list of free rows is taken. An empty list is not checked here:
    `run` executes an operation only if there are enough free rows for it.
    """
    left = state.scalars[FREE_CLOCKS]
    state.scalars[FREE_CLOCKS] = left - 1
    row: int = state.free_clocks[left - 1]
    return row


@part
def _free_clock(state: Any, row: int) -> None:
    """Return a row of `state.kept`, the table of stored clocks, to the list of free rows.

    It is the next one that `_take_clock` returns. The row must not be free already.
    """
    state.free_clocks[state.scalars[FREE_CLOCKS]] = row
    state.scalars[FREE_CLOCKS] += 1
