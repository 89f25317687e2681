"""Chunks of a packing: rough, finest, halved, and without turns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from blink_requests import MIB, synthesized
from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.placing import build_placed_tree
from collhub_blink.packing.task import PackingTask
from collhub_blink.plugin import BlinkOptions
from collhub_blink.scheduling.schedules import (
    PackingSchedule,
    build_coarse_schedule,
    build_schedule,
    build_schedule_with_half_the_chunks,
    compute_chunk_counts,
    compute_chunk_weights,
    find_schedule,
    maximum_chunks,
    remove_link_order,
)
from collhub_blink.scheduling.streams import prepare_pipelining
from collhub_blink.scheduling.switched_networks import find_fastest
from collhub_blink.synthesize import find_packings

import hub_core
from hub_core import Collective, CollectiveKind, parse_topology
from hub_core.network import Occupancy
from hub_core.plugin_api import SynthesisRequest, UnitLimits


def _task(topology: str) -> PackingTask:
    network = parse_topology(topology)
    npus = network.num_npus
    gather = Collective(CollectiveKind.ALL_GATHER, npus, npus, in_place=True)
    everyone = tuple(range(npus))
    request = SynthesisRequest(gather, network, 64 * MIB, everyone, Occupancy.SERIALIZATION)
    return PackingTask.of(request, BlinkOptions())


def _broadcast_task(topology: str, size: int) -> PackingTask:
    network = parse_topology(topology)
    npus = network.num_npus
    broadcast = Collective(CollectiveKind.BROADCAST, npus, npus, root=0)
    everyone = tuple(range(npus))
    request = SynthesisRequest(broadcast, network, size, everyone, Occupancy.SERIALIZATION)
    return PackingTask.of(request, BlinkOptions())


def _uneven_task(topology: str, size: int) -> PackingTask:
    """An all-reduce on links of four bandwidths that differ by direction."""
    network = parse_topology(topology)
    bandwidths = np.asarray([12.5e9, 25e9, 50e9, 100e9])
    choice = np.random.default_rng(1).integers(0, 4, network.num_links)
    network = replace(network, bandwidth_bytes_per_s=bandwidths[choice])
    npus = network.num_npus
    reduce = Collective(CollectiveKind.ALL_REDUCE, npus, 1)
    everyone = tuple(range(npus))
    request = SynthesisRequest(reduce, network, size, everyone, Occupancy.SERIALIZATION)
    return PackingTask.of(request, BlinkOptions())


def _finest(task: PackingTask, packing: PlacedPacking) -> PackingSchedule:
    found = build_schedule(task, packing, maximum_chunks(task, packing))
    assert found is not None
    return found


def test_rough_schedules_have_a_quarter_of_the_finest_chunks() -> None:
    task = _task("dgx-a100")
    packing = find_packings(task)[0]
    most = _finest(task, packing)
    quarter, half = (
        build_coarse_schedule(task, packing),
        build_schedule_with_half_the_chunks(task, packing, most),
    )
    assert quarter is not None
    assert half is not None
    assert (quarter.chunks, half.chunks) == (most.chunks // 4, most.chunks // 2)


def test_one_chunk_is_tried_if_more_have_less_than_a_byte() -> None:
    task = _broadcast_task("fc:10?latency=0ns", 9)
    packing = find_packings(task)[0]
    # A quarter of the maximum, a quarter of this, and so on: 3 is followed by 0.
    assert (len(packing.weights), maximum_chunks(task, packing) // 4**6) == (9, 3)
    found = find_schedule(task, packing)
    assert found is not None
    assert found.chunks == 1


def test_equal_packings_of_a_broadcast_are_one() -> None:
    packings = find_packings(_broadcast_task("switch:4", MIB))
    methods = [packing.method for packing in packings]
    assert methods.count("trees through forwarders") == 1


def test_a_direct_link_replaces_an_earlier_route_of_the_child() -> None:
    network = parse_topology("fc:4")
    tree = build_placed_tree(network, 0, 1, [(0, 3), (0, 1, 2), (3, 2)])
    assert (tree.tree.parent.tolist(), dict(tree.stops)) == ([-1, -1, 3, 0], {})


def test_the_chosen_chunks_cost_less_than_a_percent() -> None:
    task = _task("dgx1v")
    for packing in find_packings(task):
        most, found = _finest(task, packing), find_schedule(task, packing)
        assert found is not None
        assert found.chunks <= most.chunks
        assert found.pipeline.time_ps <= 1.01 * most.pipeline.time_ps


def test_smaller_chunks_on_slow_trees_save_time_with_as_many_messages() -> None:
    task = _uneven_task("mesh:4x4", 4096 * MIB)
    (packing,) = find_packings(task)
    weights = compute_chunk_weights(task, packing)
    # Every tree has 30 messages per chunk.
    assert (packing.weights, weights) == ([1, 1, 1], (2, 1, 2))
    pipelining = prepare_pipelining(task, packing)
    equal = pipelining.schedule([500, 500, 500])
    unequal = pipelining.schedule([600, 300, 600])
    assert len(equal.transfers) == len(unequal.transfers)
    assert unequal.time_ps < equal.time_ps


@pytest.mark.parametrize("change", [{"chunks": 4}, {"units": UnitLimits(1 << 26)}])
def test_chunks_have_one_size_if_their_number_or_units_are_given(change: dict[str, object]) -> None:
    task = replace(_uneven_task("mesh:4x4", 4096 * MIB), **change)  # type: ignore[arg-type]
    (packing,) = find_packings(task)
    assert compute_chunk_weights(task, packing) == (1, 1, 1)


def test_small_chunks_are_not_made_smaller_where_latencies_decide() -> None:
    task = _uneven_task("mesh:4x4", MIB)
    (packing,) = find_packings(task)
    assert compute_chunk_weights(task, packing) == (1, 1, 1)


def test_more_than_half_a_million_messages_must_save_half_a_percent() -> None:
    task = _uneven_task("torus:8x8?latency=100ns", 256 * MIB)
    (packing,) = find_packings(task)
    most, found = _finest(task, packing), find_schedule(task, packing)
    assert found is not None
    assert found.chunks == most.chunks // 2
    assert len(found.pipeline.transfers) <= 1 << 19
    # The limit of smaller schedules, 0.3 %, is exceeded.
    assert 1.003 < found.pipeline.time_ps / most.pipeline.time_ps < 1.005


def test_an_all_reduce_that_is_later_than_planned_is_also_tried_without_deadlines() -> None:
    task = _uneven_task("mesh:4x4", MIB)
    (packing,) = find_packings(task)
    planned: list[int] = []

    def evaluate_time_ns(packing: PlacedPacking, scheduled: PackingSchedule) -> int:
        planned.append(scheduled.pipeline.time_ps)
        # Only the first one is late.
        return planned[-1] // 1000 if len(planned) > 1 else planned[-1] // 900

    found = find_fastest(task, [packing], evaluate_time_ns)
    assert found is not None
    by_rounds = replace(prepare_pipelining(task, packing), has_deadlines=False)
    counts = compute_chunk_counts(packing.weights, found.schedule.chunks)
    assert planned[1] == by_rounds.schedule(counts).time_ps == found.schedule.pipeline.time_ps


def test_without_turns_the_same_messages_are_sent() -> None:
    task = _task("dgx-a100")
    found = build_coarse_schedule(task, find_packings(task)[0])
    assert found is not None
    free = remove_link_order(found)
    assert (found.has_link_order, free.has_link_order) == (True, False)
    assert (free.pipeline.transfers.start == found.pipeline.transfers.start).all()


def test_schedules_that_are_alike_are_judged_once() -> None:
    task = _task("dgx-a100")
    packing = find_packings(task)[0]
    judged: list[PackingSchedule] = []

    def evaluate_time_ns(packing: PlacedPacking, scheduled: PackingSchedule) -> int:
        judged.append(scheduled)
        return scheduled.pipeline.time_ps // 1000

    find_fastest(task, [packing, replace(packing, method="another name")], evaluate_time_ns)
    rough_chunks = judged[0].chunks
    assert [each.has_link_order for each in judged if each.chunks == rough_chunks] == [True, False]


def test_what_is_not_faster_than_a_time_that_is_reached_stays_rough() -> None:
    task = replace(_task("dgx-a100:2"), within_ns=1.0)
    packing = find_packings(task)[0]
    judged: list[int] = []

    def evaluate_time_ns(packing: PlacedPacking, scheduled: PackingSchedule) -> int:
        judged.append(scheduled.chunks)
        return scheduled.pipeline.time_ps // 1000

    found = build_coarse_schedule(task, packing)
    assert found is not None
    assert find_fastest(task, [packing], evaluate_time_ns) is not None
    assert set(judged) == {found.chunks}


def test_slack_is_a_part_of_the_turn_of_all_trees() -> None:
    task = _task("dgx-a100:2")
    packing = find_packings(task)[0]
    plain, late = (build_schedule(task, packing, 8, slack) for slack in (0.0, 0.5))
    assert plain is not None
    assert late is not None
    assert late.slack == 0.5
    assert late.pipeline.time_ps > plain.pipeline.time_ps


@pytest.mark.once
def test_two_machines_come_near_to_their_rate() -> None:
    made = synthesized("all-reduce", "dgx-a100:2", 256 * MIB)
    rate, best = 256 * MIB / made.time_ns, made.statistics["best rate GB/s"]
    assert isinstance(best, float)
    assert rate > 0.98 * best
    assert hub_core.verify(made.algorithm).ok


def test_stated_chunks_are_kept_behind_switches() -> None:
    made = synthesized("all-gather", "dgx-a100:2", 64 * MIB, chunks=5)
    assert made.statistics["chunks"] == 5


@pytest.mark.once
def test_what_goes_without_turns_behind_switches_is_right() -> None:
    made = synthesized("all-gather", "dgx-a100:2", 256 * MIB, trees="fewest")
    assert hub_core.verify(made.algorithm).ok
