"""Single ranks: their plans, and the engine that runs them."""

from __future__ import annotations

import numpy as np
import pytest
import threaded_ranks as threads
from collhub_execution import (
    LevelledRequest,
    RankLog,
    RankPlans,
    RecordKind,
    fused_reductions,
    judge,
    rank_tasks,
    run_task,
)
from collhub_execution.testing import levelled_for, list_claimed_modes

from hub_core.model import ReduceOp
from hub_core.testing import all_samples, ring_all_reduce

SAMPLES = all_samples(4)


def outputs_of(request: LevelledRequest) -> list[object]:
    tasks, world = list(rank_tasks(request)), threads.ThreadWorld(request.program.num_ranks)
    return world.run(
        lambda rank: run_task(
            tasks[rank], threads.thread_engine(tasks[rank], world), RankLog.blank(tasks[rank])
        )
    )


@pytest.mark.parametrize("sample", sorted(SAMPLES))
def test_plans_of_all_ranks_compute_the_collective(sample: str) -> None:
    for in_place in list_claimed_modes(SAMPLES[sample]):
        request = levelled_for(SAMPLES[sample], in_place=in_place, repeats=2)
        outputs = outputs_of(request)
        collective = request.algorithm.collective
        assert judge(collective, request.inputs, outputs, ReduceOp.SUM, True).is_right


def test_a_receive_that_reduces_takes_the_place_of_its_reduction() -> None:
    request = levelled_for(ring_all_reduce(4), in_place=True)
    fused = fused_reductions(request)
    plans = RankPlans(request.program, request.elements, fused)
    assert np.count_nonzero(fused >= 0) == 4 * 3
    for rank in range(4):
        levels = list(plans.plan(rank).levels())
        assert [end.reduces for level in levels for end in level.receives] == [True] * 3 + [
            False
        ] * 3
        assert not any(level.moves for level in levels)
    reductions = request.program.kind[fused[fused >= 0]]
    assert set(reductions.tolist()) == {RecordKind.REDUCE}


def test_both_ends_of_a_message_have_one_tag_and_tags_of_a_pair_count_up() -> None:
    request = levelled_for(ring_all_reduce(4), in_place=True)
    ends: dict[str, dict[tuple[int, int], list[int]]] = {"sends": {}, "receives": {}}
    for task in rank_tasks(request):
        for level in task.plan.levels():
            for end in level.sends:
                ends["sends"].setdefault((task.plan.rank, end.peer), []).append(end.tag)
            for end in level.receives:
                ends["receives"].setdefault((end.peer, task.plan.rank), []).append(end.tag)
    assert ends["sends"] == ends["receives"]
    assert ends["sends"] == {(rank, (rank + 1) % 4): list(range(6)) for rank in range(4)}
