"""Zero-bubble orders (Qi et al., arXiv 2401.10241): gradients of weights fill idle times."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_pipeline.schedules.schedule import Operation, Pass, Schedule, in_a_row


def zb_h1(stages: int, micros: int) -> Schedule:
    """ZB-H1: the memory of 1F1B, a third of its bubble where all passes take equally long."""
    warmups = [min(micros, stages - stage) for stage in range(stages)]
    return with_delays("zb-h1", warmups, list(range(stages)), micros)


def zb_h2(stages: int, micros: int) -> Schedule:
    """ZB-H2: twice the memory, and no bubble where all passes take equally long."""
    warmups = [min(micros, 2 * (stages - stage) - 1) for stage in range(stages)]
    return with_delays("zb-h2", warmups, [2 * stage for stage in range(stages)], micros)


def with_delays(name: str, warmups: Sequence[int], delays: Sequence[int], micros: int) -> Schedule:
    """Stage i runs `warmups[i]` forward passes, then for every backward pass its input's gradient.

    Behind it one gradient of weights as soon as more than `delays[i]` are open, then one forward
    pass while there are any; at the end the gradients that are open.
    """
    orders = [
        _order(stage, warmup, delay, micros)
        for stage, (warmup, delay) in enumerate(zip(warmups, delays, strict=True))
    ]
    return in_a_row(name, orders)


def _order(stage: int, warmup: int, delay: int, micros: int) -> list[Operation]:
    def step(kind: Pass, micro: int) -> Operation:
        """A pass of the one chunk of this stage."""
        return Operation(kind, 0, stage, micro)

    order = [step(Pass.FORWARD, micro) for micro in range(warmup)]
    finished = 0
    for micro in range(micros):
        order.append(step(Pass.INPUT_GRADIENT, micro))
        if micro + 1 - finished > delay:
            order.append(step(Pass.WEIGHT_GRADIENT, finished))
            finished += 1
        if warmup + micro < micros:
            order.append(step(Pass.FORWARD, warmup + micro))
    return order + [step(Pass.WEIGHT_GRADIENT, micro) for micro in range(finished, micros)]
