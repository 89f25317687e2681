"""Run one launch of a plan and find its races, compiled.

The algorithm is one deterministic run of all thread blocks, turn about, each as far as it gets
(specification of the executor's operations: microsoft/mscclpp, `execution_kernel.hpp`), with vector
clocks (Mattern 1989) and the last accesses of every cell (FastTrack, Flanagan and Freund, PLDI
2009). Actors are thread blocks, one host for every rank, which fills the inputs before a launch and
reads the outputs after it, and one proxy for every port channel that may lag behind. A proxy does
what it is asked to behind the request, in the order of its channel, and before whoever takes its
signal or flushes the channel.

Invariant: `clocks[a, b]` is the time of the last operation of actor b that is done before whatever
actor a does next, in every run. An access is in order with an earlier one exactly if the clock of
its actor has reached the time of that one. Of the reads of a cell only those are kept that are not
before another one, so a write needs to look at those alone.

Values are sums of random words, one for each contribution: two multisets have one sum with
probability 2^-64. Cost: O(accesses * readers + synchronisations * actors).

A run stops where a pool is used up; the caller enlarges it and calls again, nothing is done twice.
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

# Codes of `Role` in `plans.operations`, as numbers that machine code compares.
SIGNAL, WAIT, ACQUIRE, RELEASE, BARRIER, DATA = 1, 2, 3, 4, 5, 7

# What a run comes to an end with.
STUCK, POOL_OF_CLOCKS, POOL_OF_READS = 0, 1, 2


@kernel
def run(program: Any, state: Any, launch: int, done: int) -> tuple[int, int]:
    """Run until nothing moves or a pool is used up.

    `launch` from 0; `done`: operations that are in `state.order`. Returns one of the codes above,
    and how many operations are done.
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
    """Let the host of a rank write or read cells, in the order that its clock states."""
    for cell in cells:
        if is_write:
            _write(state, cell, host, time, launch, -1)
        else:
            _read(state, cell, host, time, launch, -1)


@kernel
def late_reads(state: Any, cells: Int64Array, host: int, launch: int) -> None:
    """Note the cells that proxies may still read when the kernel of a rank has ended."""
    for cell in cells:
        node = state.reads[cell]
        while node >= 0:
            reader, when = state.read_actor[node], state.read_time[node]
            if reader >= state.scalars[FIRST_PROXY] and state.clocks[host][reader] < when:
                _note_race(state, launch, -1, cell, reader, when, host, 1)
            node = state.read_next[node]


@part
def _clocks_of(program: Any, operation: int) -> int:
    """How many clocks an operation may keep: one an item, and one for packets that it writes."""
    items: int = program.item_first[operation + 1] - program.item_first[operation]
    return items + 1


@part
def _reads_of(program: Any, operation: int) -> int:
    """How many entries of the pool of reads an operation may take."""
    total = 0
    for move in range(program.move_first[operation], program.move_first[operation + 1]):
        ranges = program.read_first[move + 1] - program.read_first[move]
        # The proxy of every target reads by itself.
        times = 1 + program.write_first[move + 1] - program.write_first[move]
        total += ranges * program.cells[move] * times
    return total


@part
def _step(program: Any, state: Any, launch: int, block: int, operation: int) -> bool:
    """Do the next operation of a thread block; False where it has to wait."""
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
    """Whoever flushes a channel is behind all that its proxy was asked to do."""
    for place in range(program.item_first[operation], program.item_first[operation + 1]):
        if program.item_proxy[place] >= 0:
            proxy = state.scalars[FIRST_PROXY] + program.item_proxy[place]
            _join(state.clocks[block], state.clocks[proxy])


@part
def _take_all(program: Any, state: Any, launch: int, block: int, operation: int, time: int) -> bool:
    """Take one count of every item; those that were taken before the wait stay taken."""
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
        # Raises without an order: which one came tells only the last count of the launch.
        if state.is_late[counter] == 1 and state.taken[counter] == state.raised[counter]:
            _join(state.clocks[block], state.late[counter])
    return True


@part
def _note_take(
    state: Any, launch: int, operation: int, counter: int, block: int, time: int
) -> None:
    """Note the race of two thread blocks that take counts without an order: either may be first."""
    uses = state.uses[counter]
    if uses[2] >= 0 and state.clocks[block, uses[2]] < uses[3]:
        _note_race(state, launch, operation, -1 - counter, uses[2], uses[3], block, 0)
    uses[2], uses[3] = block, time


@part
def _note_raise(state: Any, counter: int, block: int, time: int, raiser: int) -> None:
    """Note where raises have no order, so that a count does not tell which one it is."""
    uses = state.uses[counter]
    if uses[0] >= 0 and state.clocks[block, uses[0]] < uses[1] and state.is_late[counter] == 0:
        state.is_late[counter] = 2
    uses[0], uses[1] = block, time
    if state.is_late[counter] == 1:
        _join(state.late[counter], state.clocks[raiser])


@part
def _raise_all(program: Any, state: Any, block: int, operation: int, time: int) -> None:
    """Raise every item by one; the count carries the clock."""
    for place in range(program.item_first[operation], program.item_first[operation + 1]):
        counter = program.item[place]
        if counter < 0:
            continue
        raiser = block
        if program.item_proxy[place] >= 0:
            # The signal of a port channel comes behind all that was put through it before.
            raiser = state.scalars[FIRST_PROXY] + program.item_proxy[place]
            _join(state.clocks[raiser], state.clocks[block])
        _note_raise(state, counter, block, time, raiser)
        row = _take_clock(state)
        state.kept[row] = state.clocks[raiser]
        state.queue[state.queue_first[counter] + state.tail[counter]] = row
        state.tail[counter] += 1


@part
def _pass_barrier(program: Any, state: Any, block: int, operation: int, time: int) -> bool:
    """Arrive at a barrier, or leave it once all have arrived."""
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
    """Whether all packets that the operation reads are those of this launch."""
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
    """Read, add up and write all ranges of a data operation."""
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
    """Ask the proxy of a lagging channel for one move; returns its actor."""
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
    """Read, add up and write the ranges of one move that an actor does.

    A thread block leaves out the targets of proxies. Returns the row of its clock for packets.
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
                # What is written over itself does not change, whoever reads it meanwhile.
                continue
            if program.write_is_packet[target] and state.packet[cell] == launch + 1:
                # Its reader takes the first one or this one, as it happens.
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
    """Whoever reads a packet is behind its writer."""
    last = -1
    for source in range(program.read_first[move], program.read_first[move + 1]):
        if not program.read_is_packet[source]:
            continue
        base = program.read_base[source] + odd * program.read_shift[source]
        for cell in range(base, base + program.cells[move]):
            row = state.packet_clock[cell]
            # Neighbouring packets mostly come from one operation.
            if row != last:
                _join(state.clocks[block], state.kept[row])
                last = row


@part
def _read(state: Any, cell: int, actor: int, time: int, launch: int, operation: int) -> None:
    """Note a read, and the race with an unordered write; drop reads that are before it."""
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
    """Note a write, and the races with unordered accesses before it."""
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
            # What the host overwrites too early was noted when the kernel ended: `late_reads`.
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
    """Whether a reader is a proxy that the owner of a clock knows to have been asked: 0 or 1."""
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
    """Keep a race; those of further cells of the same two operations are not kept."""
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
    """Move a clock forward to another one."""
    for actor in range(len(clock)):
        clock[actor] = max(clock[actor], other[actor])


@part
def _take_clock(state: Any) -> int:
    """A free row of `kept`: `run` has seen to it that there is one."""
    left = state.scalars[FREE_CLOCKS]
    state.scalars[FREE_CLOCKS] = left - 1
    row: int = state.free_clocks[left - 1]
    return row


@part
def _free_clock(state: Any, row: int) -> None:
    """Give a row of `kept` back."""
    state.free_clocks[state.scalars[FREE_CLOCKS]] = row
    state.scalars[FREE_CLOCKS] += 1
