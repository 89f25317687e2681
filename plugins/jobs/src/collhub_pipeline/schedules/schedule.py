"""A pipeline schedule: which device holds which stage, and the order of passes on each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Pass(Enum):
    """What a stage does with a micro-batch.

    `BACKWARD` computes the gradients of inputs and of weights; the two others are its halves, after
    the first of which the gradient leaves.
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT_GRADIENT = "input gradient"
    WEIGHT_GRADIENT = "weight gradient"

    @property
    def is_backward(self) -> bool:
        """Whether its result goes to the stage before."""
        return self in (Pass.BACKWARD, Pass.INPUT_GRADIENT)


class Operation(NamedTuple):
    """A pass of a stage: of direction `way`, stage `stage` of it, and micro-batch `micro`."""

    kind: Pass
    way: int
    stage: int
    micro: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Orders of passes.

    `device_of[way][stage]`: the device that holds a stage; a way is one direction in which
    micro-batches go through all stages. `orders`: the passes of each device in their order.
    """

    name: str
    device_of: tuple[tuple[int, ...], ...]
    orders: tuple[tuple[Operation, ...], ...]

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return len(self.orders)

    def peaks(self) -> list[int]:
        """Most activations held at once, by device: micro-batches, or chunks of them.

        From the start of the forward pass to the end of the gradient of the weights.
        """
        return [_peak(order) for order in self.orders]


def _peak(order: Sequence[Operation]) -> int:
    held = most = 0
    for operation in order:
        if operation.kind is Pass.FORWARD:
            held += 1
            most = max(most, held)
        elif operation.kind is not Pass.INPUT_GRADIENT:
            held -= 1
    return most


def in_a_row(name: str, orders: Sequence[Sequence[Operation]]) -> Schedule:
    """A schedule of one way with stage i on device i."""
    device_of = (tuple(range(len(orders))),)
    return Schedule(name, device_of, tuple(tuple(order) for order in orders))
