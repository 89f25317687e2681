"""Compiled kernel of the search: move single passes within the order of a device.

Import this module inside functions: numba takes a second to import.

A list schedule never leaves a device idle for a pass that is not ready yet, but with little memory
the best order does. This kernel changes complete orders: it takes a pass out of the order of its
device and puts it back at most `_REACH` places away, and runs all orders again. A worse order is
accepted within a threshold that falls to zero (Dueck and Scheuer, J. Computational Physics 90,
1990). All numbers are integers, so the result is equal on every host. Cost of a move: all passes.
"""

from __future__ import annotations

import numpy as np
from collhub_packing.compiling import kernel, part

from hub_core.columns import Int64Array

_REACH = 12
_UNKNOWN = -1


@part
def _run_orders(  # noqa: C901
    orders: Int64Array,
    device_of: Int64Array,
    durations: Int64Array,
    transfer: int,
    is_blocking: bool,
    units: int,
    ready: Int64Array,
    done: Int64Array,
    channel: Int64Array,
    free: Int64Array,
    first_start: Int64Array,
    position: Int64Array,
) -> bool:
    """Run the passes of all devices in their given orders; return False for a deadlock.

    `orders`: [devices, positions], numbers of passes, -1 after the last one. The number is
    (kind x stages + stage) x units + unit with kind 0 forward, 1 backward or input gradient, 2
    weight gradient; a unit is a token slice of a microbatch. A pass starts when the previous
    pass of its device has ended and its inputs are there: data from the stage before (kind 0)
    or after (1), earlier slices (0) or later ones (1), and for kind 1 the forward pass, for
    kind 2 the pass of kind 1. To another device data take `transfer`, one message of a pair at
    a time; with `is_blocking` the sender waits for it.

    The last six arrays are overwritten; `free` and `first_start` then have the last end and
    the first start of each device.
    """
    devices, count = orders.shape
    stages = device_of.shape[0]
    slices = durations.shape[2]
    # Loops instead of assignments to slices, which take seconds to compile.
    for stage in range(stages):
        for unit in range(units):
            ready[0, stage, unit] = 0 if stage == 0 else _UNKNOWN
            ready[1, stage, unit] = 0 if stage == stages - 1 else _UNKNOWN
            done[0, stage, unit] = 0
            done[1, stage, unit] = 0
    left = 0
    for device in range(devices):
        free[device] = 0
        first_start[device] = _UNKNOWN
        position[device] = 0
        for receiver in range(devices):
            channel[device, receiver] = 0
        for at in range(count):
            if orders[device, at] >= 0:
                left += 1
    is_moving = True
    while is_moving and left > 0:
        is_moving = False
        for device in range(devices):
            while position[device] < count and orders[device, position[device]] >= 0:
                pass_ = orders[device, position[device]]
                kind = pass_ // (stages * units)
                stage = pass_ // units % stages
                unit = pass_ % units
                start = free[device]
                if kind == 2:
                    if done[1, stage, unit] == 0:
                        break
                else:
                    if ready[kind, stage, unit] < 0:
                        break
                    if kind == 0 and unit % slices > 0 and done[0, stage, unit - 1] == 0:
                        break
                    if kind == 1:
                        if done[0, stage, unit] == 0:
                            break
                        if unit % slices < slices - 1 and done[1, stage, unit + 1] == 0:
                            break
                    start = max(start, ready[kind, stage, unit])
                end = start + durations[kind, stage, unit % slices]
                if first_start[device] < 0:
                    first_start[device] = start
                free[device] = end
                position[device] += 1
                left -= 1
                is_moving = True
                if kind == 2:
                    continue
                done[kind, stage, unit] = 1
                onward = stage + 1 if kind == 0 else stage - 1
                if 0 <= onward < stages:
                    receiver = device_of[onward]
                    arrival = end
                    if receiver != device:
                        arrival = max(end, channel[device, receiver]) + transfer
                        channel[device, receiver] = arrival
                        if is_blocking:
                            free[device] = arrival
                    ready[kind, onward, unit] = arrival
    return left == 0


@part
def _copy(source: Int64Array, target: Int64Array) -> None:
    """Copy a table."""
    for row in range(source.shape[0]):
        for at in range(source.shape[1]):
            target[row, at] = source[row, at]


@part
def _move(line: Int64Array, source: int, target: int) -> None:
    """Move the pass at position `source` of an order to position `target`; modifies `line`."""
    pass_ = line[source]
    way = 1 if target > source else -1
    for at in range(source, target, way):
        line[at] = line[at + way]
    line[target] = pass_


@part
def _fits_memory(
    line: Int64Array, length: int, kept: Int64Array, restored: Int64Array, limit: int, units: int
) -> bool:
    """Return whether the activations of a device fit while it runs the first `length` passes.

    `line`: pass numbers in order. `kept`, `restored`: [stages], memory of an activation from the
    forward pass on, and additional memory from the input gradient on; both are released by the
    weight gradient. The stored memory must not exceed `limit` after any pass.
    """
    stages = kept.shape[0]
    level = 0
    for at in range(length):
        kind = line[at] // (stages * units)
        stage = line[at] // units % stages
        if kind == 0:
            level += kept[stage]
        elif kind == 1:
            level += restored[stage]
        else:
            level -= kept[stage] + restored[stage]
        if level > limit:
            return False
    return True


@part
def _count_passes(orders: Int64Array) -> Int64Array:
    """Return the number of passes of each device, int64[devices]; rows of `orders` end with -1."""
    lengths = np.zeros(len(orders), np.int64)
    for device in range(len(orders)):
        for at in range(orders.shape[1]):
            if orders[device, at] >= 0:
                lengths[device] = at + 1
    return lengths


@part
def _all_fit_memory(
    orders: Int64Array,
    lengths: Int64Array,
    kept: Int64Array,
    restored: Int64Array,
    limits: Int64Array,
    units: int,
) -> bool:
    """Return whether the activations of every device fit its memory (`_fits_memory`).

    Device d runs the first `lengths[d]` passes of `orders[d]` and has the memory `limits[d]`.
    """
    for device in range(len(lengths)):
        if not _fits_memory(orders[device], lengths[device], kept, restored, limits[device], units):
            return False
    return True


@part
def _draw_move(state: int, lengths: Int64Array) -> tuple[int, int, int, int]:
    """Draw a random move of a pass within the order of a device.

    `state`: state of the random numbers; `lengths`: passes by device. Returns the next state, the
    device, and the source and target positions, which differ by 1 to `_REACH`. The target is
    negative if there is no such position, or the device has fewer than 2 passes: then no pass must
    be moved.
    """
    state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    device = (state >> 8) % lengths.shape[0]
    if lengths[device] < 2:
        return state, device, 0, -1
    state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    source = (state >> 8) % lengths[device]
    state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    offset = (state >> 8) % (2 * _REACH) - _REACH
    target = source + offset + (1 if offset >= 0 else 0)
    return state, device, source, target if target < lengths[device] else -1


@part
def _measure(free: Int64Array, first_start: Int64Array, is_span: bool) -> tuple[int, int]:
    """Return value and cost of orders that were run; lower is better for both.

    `free`, `first_start`: last end and first start of each device. The value is the last end of any
    device, or with `is_span` the longest time from first start to end of a device. The cost orders
    first by value, then by the sum over all devices, because earlier ends of other devices permit
    later improvements.
    """
    devices = free.shape[0]
    value = 0
    total = 0
    for device in range(devices):
        spent = free[device] - (first_start[device] if is_span else 0)
        value = max(value, spent)
        total += spent
    return value, value * 4 * devices + total


@kernel
def improve_orders(
    orders: Int64Array,
    device_of: Int64Array,
    durations: Int64Array,
    transfer: int,
    is_blocking: bool,
    units: int,
    kept: Int64Array,
    restored: Int64Array,
    limits: Int64Array,
    is_span: bool,
    worsening: int,
    moves: int,
    goal: int,
) -> tuple[Int64Array, int]:
    """Improve orders by random moves of single passes; return the best orders and their value.

    - `orders`: [devices, positions], passes as numbers (kind x stages + stage) x `units` + unit,
      with kind 0 forward, 1 input gradient, 2 weight gradient; shorter rows end with -1. They
      must fit the memory of each device and not deadlock, otherwise the value is -1. They are
      not changed.
    - `device_of`: [stages]; `durations`: [kinds, stages, slices]; `transfer`: time between devices
    - `is_blocking`: the sender waits for the end of a transfer
    - `kept`, `restored`: [stages], memory of an activation from the forward pass on, and additional
      memory from the input gradient on; `limits`: [devices]
    - `is_span`: the value is the longest span of a device instead of the makespan
    - `worsening`: accepted increase of the value at the beginning; it decreases linearly to 0
    - `moves`: number of moves; `goal`: value at or below which the search ends

    Each quarter of the moves starts from the best orders. The random numbers are always the same.
    """
    devices, count = orders.shape
    stages = device_of.shape[0]
    ready = np.empty((2, stages, units), np.int64)
    done = np.empty((2, stages, units), np.int64)
    channel = np.empty((devices, devices), np.int64)
    free = np.empty(devices, np.int64)
    first_start = np.empty(devices, np.int64)
    position = np.empty(devices, np.int64)
    lengths = _count_passes(orders)

    current = np.empty((devices, count), np.int64)
    best = np.empty((devices, count), np.int64)
    _copy(orders, current)
    _copy(orders, best)
    if not _all_fit_memory(orders, lengths, kept, restored, limits, units):
        return best, -1
    best_value = 1 << 60
    best_cost = 1 << 60
    current_cost = 1 << 60
    state = 1
    for move in range(moves + 1):
        source = 0
        target = 0
        device = 0
        if move > 0:
            # Every fourth part of the moves continues from the best order.
            if move > 1 and (move - 1) % max(1, moves // 4) == 0:
                _copy(best, current)
                current_cost = best_cost
            state, device, source, target = _draw_move(state, lengths)
            if target < 0:
                continue
            _move(current[device], source, target)
        is_valid = _fits_memory(
            current[device], lengths[device], kept, restored, limits[device], units
        )
        if is_valid:
            is_valid = _run_orders(
                current,
                device_of,
                durations,
                transfer,
                is_blocking,
                units,
                ready,
                done,
                channel,
                free,
                first_start,
                position,
            )
        is_accepted = False
        if is_valid:
            value, cost = _measure(free, first_start, is_span)
            threshold = worsening * 4 * devices * (moves - move) // max(1, moves)
            is_accepted = cost <= current_cost + threshold
            if is_accepted:
                current_cost = cost
            if value < best_value or (value == best_value and cost < best_cost):
                best_value = value
                best_cost = cost
                _copy(current, best)
                if value <= goal:
                    break
        if not is_accepted and move > 0:
            _move(current[device], target, source)
        elif not is_accepted:
            # The given orders are invalid.
            return best, -1
    return best, best_value
