"""Orders with a warm-up: forward passes ahead, then a backward and a forward pass in turn.

GPipe (Huang et al., arXiv 1811.06965) runs all forward passes first; 1F1B (Narayanan et al.,
arXiv 1806.03377) as few as fill the pipeline; eager 1F1B (Zhuang et al., MLSys 2023) twice as many,
so that transfers hide.
"""

from __future__ import annotations

from collections.abc import Sequence

from collhub_pipeline.schedules.schedule import Operation, Pass, Schedule, in_a_row


def gpipe_warmups(stages: int, micros: int) -> list[int]:
    """All forward passes before the first backward one."""
    return [micros] * stages


def one_forward_one_backward_warmups(stages: int, micros: int) -> list[int]:
    """As many as there are stages from here on."""
    return [min(micros, stages - stage) for stage in range(stages)]


def eager_warmups(stages: int, micros: int) -> list[int]:
    """Of 1F1B, twice as many but one."""
    return [min(micros, 2 * (stages - stage) - 1) for stage in range(stages)]


def in_turns(name: str, warmups: Sequence[int], micros: int, *, delayed: bool) -> Schedule:
    """Stage i runs `warmups[i]` forward passes, then a backward and a forward pass in turn.

    `delayed`: the gradient of the weights waits until that of the input has left.
    """
    orders = [
        _order(stage, warmup, micros, delayed=delayed) for stage, warmup in enumerate(warmups)
    ]
    return in_a_row(name, orders)


def _order(stage: int, warmup: int, micros: int, *, delayed: bool) -> list[Operation]:
    def step(kind: Pass, micro: int) -> Operation:
        """A pass of the one chunk of this stage."""
        return Operation(kind, 0, stage, micro)

    order = [step(Pass.FORWARD, micro) for micro in range(warmup)]
    for micro in range(micros):
        if delayed:
            order += [step(Pass.INPUT_GRADIENT, micro), step(Pass.WEIGHT_GRADIENT, micro)]
        else:
            order.append(step(Pass.BACKWARD, micro))
        # One forward pass for each backward one, while there are any.
        if warmup + micro < micros:
            order.append(step(Pass.FORWARD, warmup + micro))
    return order
