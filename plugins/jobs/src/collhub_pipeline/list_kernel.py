"""Compiled kernel of the search: list schedules from tables of keys.

Import this module inside functions: numba takes a second to import.

A pass is (kind, stage, unit) with kind 0 forward, 1 input gradient, 2 weight gradient. Per stage,
forward passes run in the order of units, both gradients in the order of `backward_units`. Times are
integers. A device commits the pass with the lowest key among those that can start first. If a pass
with a lower key becomes ready within a part of the duration of that pass, the device waits.

With `guard` 2, memory never blocks the schedule: an activation is accepted only if every unfinished
micro-batch up to this one could still pass the device after the older micro-batches have finished
(the banker's algorithm with the fixed order of micro-batches). So the oldest unfinished micro-batch
can always continue, and the limit only has to admit one micro-batch alone.

The function is long because a compiled kernel keeps its state in local variables for speed: with
parts that take the state as a record, a schedule of 8 devices takes 1.4 to 9 times as long.
Cost: passes x stages of a device, plus micro-batches in flight per forward pass.
"""

from __future__ import annotations

import numpy as np
from collhub_packing.compiling import kernel

from hub_core.columns import Int64Array

_FAR = 1 << 60


@kernel
def build_list_schedule(  # noqa: C901
    device_of: Int64Array,
    durations: Int64Array,
    transfer: int,
    is_blocking: bool,
    backward_units: Int64Array,
    kept: Int64Array,
    recomputed: Int64Array,
    limits: Int64Array,
    ahead: Int64Array,
    keys: Int64Array,
    patience: int,
    guard: int,
    is_span: bool,
) -> tuple[Int64Array, Int64Array, Int64Array, int]:
    """Build a list schedule: repeatedly start the pass that can start first, by the lowest key.

    - `device_of`: [stages]; `durations`: [3, stages, slices]; `keys`: [3, stages, units]. The first
      axis is forward pass, input gradient, weight gradient. A unit is a slice of a microbatch.
    - `transfer`: duration of a message to a stage on another device; messages of a pair of devices
      follow each other. With `is_blocking` the sender does not compute until its arrival.
    - `backward_units`: [units], the units in the order of the gradients; a stage runs forward
      passes in ascending order of units
    - `kept`, `recomputed`: [stages], memory of an activation from the forward pass on, and
      additional memory from the input gradient on, both until the end of the weight gradient
    - `limits`: [devices], memory; `ahead`: [stages], maximum number of activations of the stage
    - `patience`: sixteenths of the duration of a pass that a device waits for a lower key
    - `guard`: 0 ignores the memory limits, 1 observes them but may block, 2 also applies the
      banker's algorithm
    - `is_span`: the value is not the makespan, but the longest time from the first start to the
      last end of a device, which is an upper bound of the time per step of many steps

    Equal starts of devices are taken in the order of devices. Returns the passes as `kind * stages
    * units + stage * units + unit` in the order in which they were started, their starts, their
    devices, and the value; -1 as value, with the passes so far, if no further pass can start.
    """
    stages = device_of.shape[0]
    slices = durations.shape[2]
    units = keys.shape[2]
    micros = units // slices
    devices = limits.shape[0]
    total = 3 * stages * units
    passes = np.empty(total, np.int64)
    starts = np.empty(total, np.int64)
    places = np.empty(total, np.int64)

    # Stages of each device as linked lists.
    first = np.full(devices, -1, np.int64)
    following = np.full(stages, -1, np.int64)
    for stage in range(stages - 1, -1, -1):
        following[stage] = first[device_of[stage]]
        first[device_of[stage]] = stage

    forward_ready = np.full((stages, units), _FAR, np.int64)
    backward_ready = np.full((stages, units), _FAR, np.int64)
    forward_ready[0] = 0
    backward_ready[stages - 1] = 0
    done = np.zeros((3, stages), np.int64)
    has_forward = np.zeros((stages, units), np.bool_)
    channel = np.zeros((devices, devices), np.int64)
    free = np.zeros(devices, np.int64)
    first_start = np.full(devices, _FAR, np.int64)

    held_total = np.zeros(devices, np.int64)
    held = np.zeros((devices, micros), np.int64)
    remaining = np.zeros((devices, micros), np.int64)
    open_passes = np.zeros((devices, micros), np.int64)
    oldest = np.zeros(devices, np.int64)
    for device in range(devices):
        one = 0
        most = 0
        count = 0
        stage = first[device]
        while stage >= 0:
            one += kept[stage] * slices
            most = max(most, recomputed[stage])
            count += slices
            stage = following[stage]
        remaining[device, :] = one + most
        open_passes[device, :] = count

    choice_start = np.full(devices, _FAR, np.int64)
    choice = np.full(devices, -1, np.int64)
    is_stale = np.ones(devices, np.bool_)
    makespan = 0
    for committed in range(total):
        best = -1
        for device in range(devices):
            if is_stale[device]:
                is_stale[device] = False
                # Twice: the pass that starts first, then one with a lower key soon after it.
                horizon = np.int64(_FAR - 1)
                chosen = np.int64(-1)
                chosen_start = np.int64(_FAR)
                chosen_key = np.int64(_FAR)
                for attempt in range(2):
                    stage = first[device]
                    while stage >= 0:
                        for kind in range(3):
                            at = done[kind, stage]
                            if at >= units:
                                continue
                            unit = at if kind == 0 else backward_units[at]
                            if kind == 0:
                                ready = forward_ready[stage, unit]
                                if done[0, stage] - done[2, stage] >= ahead[stage]:
                                    continue
                                need = kept[stage]
                            elif kind == 1:
                                if not has_forward[stage, unit]:
                                    continue
                                ready = backward_ready[stage, unit]
                                need = recomputed[stage]
                            else:
                                if done[1, stage] <= at:
                                    continue
                                ready = 0
                                need = 0
                            if ready >= _FAR:
                                continue
                            if need > 0 and guard > 0:
                                if held_total[device] + need > limits[device]:
                                    continue
                                micro = unit // slices
                                younger = held_total[device]
                                is_safe = True
                                for older in range(oldest[device], micro if guard > 1 else 0):
                                    if younger + need + remaining[device, older] > limits[device]:
                                        is_safe = False
                                        break
                                    younger -= held[device, older]
                                if not is_safe:
                                    continue
                            start = max(ready, free[device])
                            key = keys[kind, stage, unit]
                            if attempt == 0:
                                is_better = start < chosen_start or (
                                    start == chosen_start and key < chosen_key
                                )
                            else:
                                is_better = start < horizon and key < chosen_key
                            if is_better:
                                chosen = kind * stages * units + stage * units + unit
                                chosen_start = start
                                chosen_key = key
                        stage = following[stage]
                    if chosen < 0 or patience == 0:
                        break
                    kind = chosen // (stages * units)
                    stage = chosen // units % stages
                    length = durations[kind, stage, chosen % units % slices]
                    horizon = chosen_start + length * patience // 16
                choice[device] = chosen
                choice_start[device] = chosen_start
            if choice[device] >= 0 and (best < 0 or choice_start[device] < choice_start[best]):
                best = device
        if best < 0:
            return passes[:committed], starts[:committed], places[:committed], -1

        device = best
        chosen = choice[device]
        start = choice_start[device]
        kind = chosen // (stages * units)
        stage = chosen // units % stages
        unit = chosen % units
        micro = unit // slices
        end = start + durations[kind, stage, unit % slices]
        first_start[device] = min(first_start[device], start)
        passes[committed] = chosen
        starts[committed] = start
        places[committed] = device
        makespan = max(makespan, end)
        done[kind, stage] += 1
        free[device] = end
        is_stale[device] = True
        if kind == 0:
            has_forward[stage, unit] = True
            held_total[device] += kept[stage]
            held[device, micro] += kept[stage]
            remaining[device, micro] -= kept[stage]
        elif kind == 1:
            held_total[device] += recomputed[stage]
            held[device, micro] += recomputed[stage]
        else:
            size = kept[stage] + recomputed[stage]
            held_total[device] -= size
            held[device, micro] -= size
            open_passes[device, micro] -= 1
            if open_passes[device, micro] == 0:
                remaining[device, micro] = 0
                while oldest[device] < micros and open_passes[device, oldest[device]] == 0:
                    oldest[device] += 1
        onward = stage + 1 if kind == 0 else stage - 1
        if kind < 2 and 0 <= onward < stages:
            receiver = device_of[onward]
            arrival = end
            if receiver != device:
                arrival = max(end, channel[device, receiver]) + transfer
                channel[device, receiver] = arrival
                if is_blocking:
                    free[device] = arrival
            if kind == 0:
                forward_ready[onward, unit] = arrival
            else:
                backward_ready[onward, unit] = arrival
            is_stale[receiver] = True
    if is_span:
        makespan = 0
        for device in range(devices):
            makespan = max(makespan, free[device] - first_start[device])
    return passes, starts, places, makespan
