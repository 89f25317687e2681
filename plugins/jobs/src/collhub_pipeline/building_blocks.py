"""V-Min and V-Half: schedules that repeat the passes of one micro-batch, then move passes forward.

Source: Qi et al., "Pipeline parallelism with controllable memory", arXiv 2405.15362: a building
block is repeated, squeezed and reordered. The rules of the reordering are those of the authors'
scheduler (github.com/sail-sg/zero-bubble-pipeline-parallelism, zbv_greedy.py): passes of warm-up
and cool-down move to the first free slot that their inputs permit, if the largest number of
activations of any device remains; once with the weight gradients in their slots, and once without
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from collhub_pipeline.orders_of_chunks import place_in_waves
from collhub_pipeline.passes import Pass, PassTimes, PipelinePass
from collhub_pipeline.timing import Schedule, timed

_F, _I, _W = Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT

_PERIOD = 6
"""Slots between micro-batches: a device runs six passes of a micro-batch, each in one slot."""

Slots = dict[PipelinePass, int]
"""Slot of every pass of one device."""


def v_half(devices: int, micros: int) -> Schedule:
    """Build the schedule V-Half, which needs about half of the activation memory of 1F1B.

    Of D devices, device d has two stages (chunks), d and 2D - 1 - d. Input and weight
    gradients are separate passes. `micros`: microbatches, at least 1 (otherwise
    `ValueError`). The rules are those of `_build_repeated`.
    """
    lag = 0 if devices % 2 else 3
    starts = [
        (at * 2, 3 * devices - at - 2, 3 * devices + lag + 2 * at - 1, 6 * devices + lag - at - 2)
        for at in range(devices)
    ]
    return _build_repeated("v-half", starts, micros)


def v_min(devices: int, micros: int) -> Schedule:
    """Build the schedule V-Min, which needs about a third of the activation memory of 1F1B.

    Of D devices, device d has two stages (chunks), d and 2D - 1 - d. Input and weight
    gradients are separate passes. `micros`: microbatches, at least 1 (otherwise
    `ValueError`). The rules are those of `_build_repeated`.
    """
    lag = 0 if devices % 3 else 2
    starts = [
        (at, 2 * devices - at - 1, 2 * devices + lag + at, 4 * devices + lag - at - 1)
        for at in range(devices)
    ]
    return _build_repeated("v-min", starts, micros)


def _build_repeated(name: str, starts: list[tuple[int, int, int, int]], micros: int) -> Schedule:
    """Return a schedule that repeats the slots of microbatch 0 and removes idle slots.

    `starts`: per device the slots of microbatch 0: forward pass of the first and of the second
    chunk, input gradient of the second and of the first chunk. They must be distinct modulo
    `_PERIOD`. Of D devices, device d has the stages d (first chunk) and 2D - 1 - d (second).

    1. Microbatch m gets the slots + `_PERIOD` * m.
    2. Weight gradients fill free slots (`_fill_weight_gradients`).
    3. Early and late passes move to earlier free slots (`_move_forward`).
    4. Slots become start times: each pass takes 1 and starts as early as order and inputs permit.
    5. The weight gradients are removed; then step 3, then step 2 is repeated.

    The result has the passes of each device in the order of slots. `ValueError` for `micros` 0.
    """
    devices = len(starts)
    place = place_in_waves(devices, 2)
    repeated: list[Slots] = []
    for device, slots in enumerate(starts):
        up, back = device, 2 * devices - 1 - device
        kinds = (_F, up), (_F, back), (_I, back), (_I, up)
        repeated.append(
            {
                PipelinePass(kind, 0, stage, micro): slot + _PERIOD * micro
                for micro in range(micros)
                for slot, (kind, stage) in zip(slots, kinds, strict=True)
            }
        )
    lines = _move_forward([_fill_weight_gradients(line) for line in repeated])
    squeezed = timed(_list_orders(name, place, lines), PassTimes(1, 1, 1)).starts
    without = [
        {
            pass_: int(start)
            for pass_, start in zip(sorted(line, key=line.__getitem__), starts_of_line, strict=True)
            if pass_.kind is not _W
        }
        for line, starts_of_line in zip(lines, squeezed, strict=True)
    ]
    lines = [_fill_weight_gradients(line) for line in _move_forward(without)]
    return _list_orders(name, place, lines)


def _list_orders(name: str, place: tuple[int, ...], lines: Sequence[Slots]) -> Schedule:
    """Return the schedule that runs the passes of each device in the order of their slots."""
    return Schedule(
        name, (place,), tuple(tuple(sorted(line, key=line.__getitem__)) for line in lines)
    )


def _fill_weight_gradients(line: Slots) -> Slots:
    """Return the slots of a device with one weight gradient per input gradient added.

    `line`: slot by pass, distinct slots, without weight gradients; not changed. Slots are
    visited in order from 0. An occupied slot stays; if it has an input gradient, the weight
    gradient of the same microbatch and stage becomes pending. A free slot gets the weight
    gradient that is pending longest, if there is one. Slots after the last pass are used until
    none is pending. With input gradients in slots 0 and 1, the weight gradients get 2 and 3.
    Raises `ValueError` for an empty `line`.
    """
    at_slot = {slot: pass_ for pass_, slot in line.items()}
    pending: deque[PipelinePass] = deque()
    result = dict(line)
    slot, last = 0, max(at_slot)
    while pending or slot <= last:
        pass_ = at_slot.get(slot)
        if pass_ is None and pending:
            result[pending.popleft()] = slot
        elif pass_ is not None and pass_.kind is _I:
            pending.append(pass_._replace(kind=_W))
        slot += 1
    return result


@dataclass(slots=True)
class _DevicePasses:
    """Passes of one device: slots, occupied slots, and numbers of passes per slot.

    `stored`: forward passes minus weight gradients per slot; `gradients`: input gradients.
    `has_weight_gradients`: otherwise each takes the next slot that no other pass occupies.
    """

    slots: Slots
    stored: np.ndarray
    gradients: np.ndarray
    is_occupied: np.ndarray
    has_weight_gradients: bool

    @classmethod
    def create(cls, slots: Slots, length: int) -> _DevicePasses:
        """Create the record of a device from the slots of its passes, with every pass counted.

        `length`: number of slots, larger than every slot (otherwise `IndexError`). The record
        shares the mapping `slots`. `has_weight_gradients` is whether `slots` has a weight
        gradient.
        """
        stored, gradients, is_occupied = np.zeros((3, length), np.int64)
        has_weights = any(pass_.kind is _W for pass_ in slots)
        device = cls(slots, stored, gradients, is_occupied, has_weights)
        for pass_, slot in slots.items():
            device.count(pass_, slot, 1)
        return device

    def count(self, pass_: PipelinePass, slot: int, sign: int) -> None:
        """Add a pass in a slot to the counts of the device (`sign` 1), or remove it (-1).

        The counts of the slot are its passes (`is_occupied`), its input gradients
        (`gradients`), and the change of stored activations (`stored`): +1 for a forward pass,
        -1 for a weight gradient. `slots` is not changed.
        """
        self.is_occupied[slot] += sign
        if pass_.kind is _I:
            self.gradients[slot] += sign
        else:
            self.stored[slot] += sign if pass_.kind is _F else -sign

    def find_gradient(self, number: int) -> int:
        """Return the slot of the input gradient with this number in order of slots, from 0."""
        return int(np.flatnonzero(self.gradients)[number])

    def find_peak(self) -> int:
        """Return the largest number of activations that the device stores after any slot.

        An activation is that of one chunk. A forward pass stores one in its slot. A
        weight gradient releases one in its slot, so that it does not count after this
        slot. If the device has no weight gradients yet, one is assumed for each input
        gradient. They run in slots without a pass after their input gradient, one per
        slot, the one that waits longest first.
        """
        stored = np.cumsum(self.stored)
        if not self.has_weight_gradients:
            # Pending gradients are a queue that one free slot serves at a time (Lindley).
            balance = np.cumsum(self.gradients - (self.is_occupied == 0))
            pending = balance - np.minimum(np.minimum.accumulate(balance), 0)
            stored = stored - (np.cumsum(self.gradients) - pending)
        return int(stored.max())


def _move_forward(lines: Sequence[Slots]) -> list[Slots]:
    """Return the slots by device, after early and late passes were moved to earlier slots.

    `lines`: slot by pass for each device; not changed. Two kinds of passes are moved: those
    before the slot of the first input gradient of stage 0 (only if device 0 has weight
    gradients), and those after the last forward pass of stage 0. In the order of slot, then
    device, each moves to the first earlier slot that meets these conditions, if there is one:
    - No pass of the device has the slot.
    - The passes that it needs (`_list_inputs`) have earlier slots. The n-th weight gradient
      needs the n-th input gradient of the device and the previous weight gradient.
    - The peak of stored activations is at most the largest of all devices before any move.

    Then the weight gradients of a device get their slots in the order of its input gradients.
    """
    length = max(max(line.values()) for line in lines) + 1
    devices = [_DevicePasses.create(dict(line), length) for line in lines]
    peak = max(device.find_peak() for device in devices)
    num_stages = 2 * len(lines)
    slot_of: Slots = {pass_: slot for line in lines for pass_, slot in line.items()}
    first_gradient = slot_of[PipelinePass(_I, 0, 0, 0)] if devices[0].has_weight_gradients else 0
    last_forward = max(slot for pass_, slot in lines[0].items() if pass_[:3] == (_F, 0, 0))
    # The n-th weight gradient of a device needs the n-th input gradient and its predecessor.
    weights = [
        sorted((pass_ for pass_ in line if pass_.kind is _W), key=line.__getitem__)
        for line in lines
    ]
    number_of = {pass_: number for order in weights for number, pass_ in enumerate(order)}
    order = sorted(
        ((slot, at, pass_) for at, line in enumerate(lines) for pass_, slot in line.items()),
        key=itemgetter(0, 1),
    )
    for slot, at, pass_ in order:
        if slot >= first_gradient and (slot, at) <= (last_forward, 0):
            continue
        device = devices[at]
        if pass_.kind is _W:
            number = number_of[pass_]
            inputs = [device.find_gradient(number)]
            inputs += [slot_of[weights[at][number - 1]]] if number else []
        else:
            needed = _list_inputs(pass_, num_stages)
            inputs = [slot_of[one] for one in needed if one in slot_of]
        for candidate in range(max(inputs, default=-1) + 1, slot):
            if device.is_occupied[candidate]:
                continue
            device.count(pass_, slot, -1)
            device.count(pass_, candidate, 1)
            if device.find_peak() <= peak:
                device.slots[pass_] = slot_of[pass_] = candidate
                break
            device.count(pass_, candidate, -1)
            device.count(pass_, slot, 1)
    return [_number_weight_gradients(device.slots) for device in devices]


def _number_weight_gradients(line: Slots) -> Slots:
    """Assign the slots of weight gradients on a device in the order of the input gradients.

    The microbatch and stage whose input gradient is first get the first of these slots, and
    so on; with fewer slots, the last input gradients have no weight gradient. This is
    needed after moves, which change the order of the input gradients. All other passes keep
    their slots. Returns a new mapping.
    """
    result = {pass_: slot for pass_, slot in line.items() if pass_.kind is not _W}
    gradients = sorted((one for one in result if one.kind is _I), key=line.__getitem__)
    slots = sorted(slot for pass_, slot in line.items() if pass_.kind is _W)
    for pass_, slot in zip(gradients, slots, strict=False):
        result[pass_._replace(kind=_W)] = slot
    return result


def _list_inputs(pass_: PipelinePass, num_stages: int) -> list[PipelinePass]:
    """Return the two passes that must precede a forward pass or an input gradient.

    The first is the same pass of the previous microbatch. The second computes the input:
    for a forward pass the one of stage - 1, for an input gradient the one of stage + 1, and
    for an input gradient of the last stage the forward pass of this stage. The result may
    contain passes outside of the schedule, such as stage -1 or microbatch -1.
    """
    earlier = pass_._replace(micro=pass_.micro - 1)
    if pass_.kind is _F:
        return [earlier, pass_._replace(stage=pass_.stage - 1)]
    if pass_.stage == num_stages - 1:
        return [earlier, pass_._replace(kind=_F)]
    return [earlier, pass_._replace(stage=pass_.stage + 1)]
