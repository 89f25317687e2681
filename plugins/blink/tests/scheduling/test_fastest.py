"""Chunks of a packing: rough, finest, halved, and without turns."""

from __future__ import annotations

from dataclasses import replace

from blink_requests import MIB, synthesized
from collhub_blink.options import BlinkOptions
from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.fastest import fastest
from collhub_blink.scheduling.schedules import (
    Scheduled,
    halved,
    most_chunks,
    rough,
    schedule,
    with_chunks,
    without_turns,
)
from collhub_blink.synthesize import packings_of

import hub_core
from hub_core import Collective, CollectiveKind, parse_topology
from hub_core.network import Occupancy
from hub_core.plugin_api import SynthesisRequest


def _task(topology: str) -> PackingTask:
    network = parse_topology(topology)
    npus = network.num_npus
    gather = Collective(CollectiveKind.ALL_GATHER, npus, npus, in_place=True)
    everyone = tuple(range(npus))
    request = SynthesisRequest(gather, network, 64 * MIB, everyone, Occupancy.SERIALIZATION)
    return PackingTask.of(request, BlinkOptions())


def _finest(task: PackingTask, packing: PlacedPacking) -> Scheduled:
    found = with_chunks(task, packing, most_chunks(task, packing))
    assert found is not None
    return found


def test_rough_schedules_have_a_quarter_of_the_finest_chunks() -> None:
    task = _task("dgx-a100")
    packing = packings_of(task)[0]
    most = _finest(task, packing)
    quarter, half = rough(task, packing), halved(task, packing, most)
    assert quarter is not None
    assert half is not None
    assert (quarter.chunks, half.chunks) == (most.chunks // 4, most.chunks // 2)


def test_the_chosen_chunks_cost_less_than_a_percent() -> None:
    task = _task("dgx1v")
    for packing in packings_of(task):
        most, found = _finest(task, packing), schedule(task, packing)
        assert found is not None
        assert found.chunks <= most.chunks
        assert found.pipeline.time_ps <= 1.01 * most.pipeline.time_ps


def test_without_turns_the_same_messages_are_sent() -> None:
    task = _task("dgx-a100")
    found = rough(task, packings_of(task)[0])
    assert found is not None
    free = without_turns(found)
    assert (found.has_turns, free.has_turns) == (True, False)
    assert (free.pipeline.transfers.start == found.pipeline.transfers.start).all()


def test_schedules_that_are_alike_are_judged_once() -> None:
    task = _task("dgx-a100")
    packing = packings_of(task)[0]
    judged: list[Scheduled] = []

    def judge(packing: PlacedPacking, scheduled: Scheduled) -> int:
        judged.append(scheduled)
        return scheduled.pipeline.time_ps // 1000

    fastest(task, [packing, replace(packing, method="another name")], judge)
    rough_chunks = judged[0].chunks
    assert [each.has_turns for each in judged if each.chunks == rough_chunks] == [True, False]


def test_what_is_not_faster_than_a_time_that_is_reached_stays_rough() -> None:
    task = replace(_task("dgx-a100:2"), within_ns=1.0)
    packing = packings_of(task)[0]
    judged: list[int] = []

    def judge(packing: PlacedPacking, scheduled: Scheduled) -> int:
        judged.append(scheduled.chunks)
        return scheduled.pipeline.time_ps // 1000

    found = rough(task, packing)
    assert found is not None
    assert fastest(task, [packing], judge) is not None
    assert set(judged) == {found.chunks}


def test_slack_is_a_part_of_the_turn_of_all_trees() -> None:
    task = _task("dgx-a100:2")
    packing = packings_of(task)[0]
    plain, late = (with_chunks(task, packing, 8, slack) for slack in (0.0, 0.5))
    assert plain is not None
    assert late is not None
    assert late.slack == 0.5
    assert late.pipeline.time_ps > plain.pipeline.time_ps


def test_two_machines_come_near_to_their_rate() -> None:
    made = synthesized("all-reduce", "dgx-a100:2", 256 * MIB)
    rate, best = 256 * MIB / made.time_ns, made.statistics["best rate GB/s"]
    assert isinstance(best, float)
    assert rate > 0.98 * best
    assert hub_core.verify(made.algorithm).ok


def test_stated_chunks_are_kept_behind_switches() -> None:
    made = synthesized("all-gather", "dgx-a100:2", 64 * MIB, chunks=5)
    assert made.statistics["chunks"] == 5


def test_what_goes_without_turns_behind_switches_is_right() -> None:
    made = synthesized("all-gather", "dgx-a100:2", 256 * MIB, trees="fewest")
    assert hub_core.verify(made.algorithm).ok
