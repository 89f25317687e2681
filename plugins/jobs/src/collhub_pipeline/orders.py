"""Orders of passes with one stage per device: warm-up orders, zero bubble, two directions.

Warm-up orders alternate backward and forward passes after initial forward passes: GPipe (Huang et
al., arXiv 1811.06965) runs all forward passes first; 1F1B (Narayanan et al., arXiv 1806.03377) the
minimum that fills the pipeline; eager 1F1B (Zhuang et al., MLSys 2023) twice as many, to hide
transfers. Zero-bubble orders (Qi et al., arXiv 2401.10241) fill idle times with weight gradients.

Two directions follow DualPipe (DeepSeek-V3, arXiv 2412.19437) and Chimera (Li and Hoefler, SC
2021): micro-batches enter at both ends, each device has a stage of both directions, and parameters
are stored twice. The order has not been published as a rule. Here each device selects, among the
ready passes, input gradients first, then forward passes while it has fewer activations of the
direction than 1F1B (p + 1 in total), then weight gradients. The order depends on exact times.
"""

from __future__ import annotations

from collections.abc import Sequence

from collhub_pipeline.timing import Operation, Pass, PassTimes, Schedule, greedy, in_a_row
from hub_core import UsageError


def gpipe_warmups(stages: int, micros: int) -> list[int]:
    """Return warm-ups that run all forward passes before the first backward pass."""
    return [micros] * stages


def one_forward_one_backward_warmups(stages: int, micros: int) -> list[int]:
    """Return warm-ups equal to the number of remaining stages, including the stage itself."""
    return [min(micros, stages - stage) for stage in range(stages)]


def eager_warmups(stages: int, micros: int) -> list[int]:
    """Return per stage twice the warm-ups of 1F1B minus one; at most all micro-batches."""
    return [min(micros, 2 * (stages - stage) - 1) for stage in range(stages)]


def in_turns(name: str, warmups: Sequence[int], micros: int, *, delayed: bool) -> Schedule:
    """Run `warmups[i]` forward passes on stage i, then alternate backward and forward passes.

    `delayed`: the input gradient is sent before the weight gradient is computed.
    """
    orders = [
        _order_with_warmup(stage, warmup, micros, delayed=delayed)
        for stage, warmup in enumerate(warmups)
    ]
    return in_a_row(name, orders)


def _order_with_warmup(stage: int, warmup: int, micros: int, *, delayed: bool) -> list[Operation]:
    """Order the passes of a stage: `warmup` forward passes, then backward and forward in turns.

    `delayed`: a backward pass is an input-gradient pass and a weight-gradient pass.
    """

    def step(kind: Pass, micro: int) -> Operation:
        """A pass of the one chunk of this stage."""
        return Operation(kind, 0, stage, micro)

    order = [step(Pass.FORWARD, micro) for micro in range(warmup)]
    for micro in range(micros):
        if delayed:
            order += [step(Pass.INPUT_GRADIENT, micro), step(Pass.WEIGHT_GRADIENT, micro)]
        else:
            order.append(step(Pass.BACKWARD, micro))
        # One forward pass per backward pass, until all have run.
        if warmup + micro < micros:
            order.append(step(Pass.FORWARD, warmup + micro))
    return order


def two_directions(devices: int, micros: int, times: PassTimes) -> Schedule:
    """Send half of the micro-batches in each direction, in a greedy order.

    Per direction, stage s holds at most devices - s micro-batches, as in 1F1B. Raises `UsageError`
    for an odd number of micro-batches or devices.
    """
    for number, option in ((micros, "micro_batches"), (devices, "stages")):
        if number % 2:
            message = f"{number} {option.replace('_', '-')} cannot be split in two directions"
            raise UsageError(message, cure=f"make -O {option} even", code="two-directions")
    up = tuple(range(devices))
    passes = [
        Operation(kind, direction, stage, micro)
        for direction in range(2)
        for stage in range(devices)
        for micro in range(micros // 2)
        for kind in (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT)
    ]
    # As in 1F1B per direction; the sum is the number of devices plus 1.
    max_held = [devices - stage for stage in range(devices)]
    return greedy("two-directions", (up, up[::-1]), passes, times, most_held=(max_held, max_held))


def zb_h1(stages: int, micros: int) -> Schedule:
    """Build ZB-H1: memory of 1F1B, and a third of its bubble if all passes take equal times."""
    warmups = [min(micros, stages - stage) for stage in range(stages)]
    return with_delays("zb-h1", warmups, list(range(stages)), micros)


def zb_h2(stages: int, micros: int) -> Schedule:
    """Build ZB-H2: twice the memory of 1F1B, and no bubble if all passes take equal times."""
    warmups = [min(micros, 2 * (stages - stage) - 1) for stage in range(stages)]
    return with_delays("zb-h2", warmups, [2 * stage for stage in range(stages)], micros)


def with_delays(name: str, warmups: Sequence[int], delays: Sequence[int], micros: int) -> Schedule:
    """Run `warmups[i]` forward passes on stage i, then all input gradients.

    Each input gradient is followed by a weight gradient if more than `delays[i]` are pending, and
    by a remaining forward pass; pending weight gradients run at the end.
    """
    orders = [
        _order_with_delay(stage, warmup, delay, micros)
        for stage, (warmup, delay) in enumerate(zip(warmups, delays, strict=True))
    ]
    return in_a_row(name, orders)


def _order_with_delay(stage: int, warmup: int, delay: int, micros: int) -> list[Operation]:
    """Order the passes of a stage: a weight gradient follows if more than `delay` are pending.

    First come `warmup` forward passes; then per micro-batch its input gradient, at most one weight
    gradient (the oldest pending one), and a remaining forward pass. The remaining weight gradients
    come at the end.
    """

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
