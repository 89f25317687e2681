"""Plans with switch channels: what they do on networks whose switches multicast or reduce."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.plugin import PlanWriteOptions
from collhub_mscclpp.reading.read import read
from collhub_mscclpp.reading.read_plan import parse_plan
from collhub_mscclpp.writing.write import write
from executor_model import schedules
from executor_verdicts import run_plan

import hub_core
from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    CustomContract,
    StepKind,
    StepTableBuilder,
)
from hub_core.plugin_api import NoOptions, Source
from hub_core.testing import ring_all_reduce

pytestmark = pytest.mark.once

BOTH = "multicast=true&reduce=true"
WAYS: dict[str, dict[str, Any]] = {
    "simple": {},
    "shared": {"tbg": 3},
    "slices": {"slices": 4096},
    "pushed": {"pull": False},
    "packets": {"protocol": "LL"},
    "shared-packets": {"protocol": "LL", "tbg": 2},
}
MODES = {"both": (True, True), "in": (True, False), "out": (False, True)}


def direct(kind: CollectiveKind, topology: str, modes: str = "both") -> Algorithm:
    """Every rank sends to all others at once; the adjacent sends and sums are for switches."""
    pytest.importorskip("collhub_classic")
    ranks = hub_core.parse_topology(topology).num_npus
    is_rooted = kind in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE)
    units = 1 if is_rooted or kind is CollectiveKind.ALL_REDUCE else ranks
    in_place, out_of_place = MODES[modes]
    collective = Collective(
        kind, ranks, units, 0 if is_rooted else None, in_place=in_place, out_of_place=out_of_place
    )
    return hub_core.synthesize(collective, topology, 1 << 20, name="direct").algorithm


def plan_of(algorithm: Algorithm, topology: str, **options: Any) -> dict[str, Any]:
    """The plan, after everything that judges it has accepted it."""
    (artifact,) = write(algorithm, PlanWriteOptions(topology=topology, **options)).artifacts
    report = check_plan(parse_plan(artifact.content(), "plan.json"))
    assert report.diagnostics == ()
    assert report.verdict == "ok"
    plan: dict[str, Any] = json.loads(artifact.content())
    orders = schedules(len(plan["gpus"]))
    # Every third order of a large plan: all orders take seconds, and differ as in small plans.
    assert run_plan(plan, orders=orders[:: 3 if len(plan["gpus"]) > 8 else 1]).verdict == "right"
    back = read(Source.of_bytes("plan.json", artifact.content()), NoOptions())
    assert hub_core.verify(back).ok
    return plan


def names(plan: dict[str, Any]) -> Counter[str]:
    """How often each operation is in a plan, pipelines left out."""
    return Counter(
        inner["name"]
        for gpu in plan["gpus"]
        for block in gpu["threadblocks"]
        for one in block["ops"]
        for inner in one.get("ops", [one])
    )


def groups(plan: dict[str, Any], rank: int) -> list[tuple[str, list[int]]]:
    return [
        (channel["buffer_type"], group["ranks"])
        for channel in plan["gpus"][rank]["channels"]
        if channel["channel_type"] == "switch"
        for group in channel["rank_groups"]
    ]


@pytest.mark.parametrize("modes", MODES)
def test_all_reduce_is_one_operation_a_rank(modes: str) -> None:
    topology = f"switch:8?{BOTH}"
    plan = plan_of(direct(CollectiveKind.ALL_REDUCE, topology, modes), topology)
    found = names(plan)
    # As the zero-copy all-reduce of the language: each rank adds and stores an eighth for all.
    assert (found["glres"], found["put"], found["copy"], found["rre"]) == (8, 0, 0, 0)
    assert {gpu["scratch_chunks"] for gpu in plan["gpus"]} == {0}
    assert groups(plan, 3) == [("o", list(range(8))), ("i", list(range(8)))]


@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize("kind", [CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST])
def test_what_all_others_receive_is_stored_once(kind: CollectiveKind, modes: str) -> None:
    topology = "switch:8?multicast=true"
    found = names(plan_of(direct(kind, topology, modes), topology))
    stores = 8 if kind is CollectiveKind.ALL_GATHER else 1
    assert (found["gstore"], found["put"]) == (stores, 0)
    # Only the copy of a sender to itself, which the algorithm has.
    assert found["copy"] <= stores


def test_sum_for_one_rank_is_stored_in_scratch_of_all() -> None:
    topology = "switch:8?reduce=true"
    plan = plan_of(direct(CollectiveKind.REDUCE, topology), topology)
    found = names(plan)
    assert (found["glres"], found["copy"], found["put"]) == (1, 1, 0)
    # A switch channel spans as much of the scratch of every member.
    assert len({gpu["scratch_chunks"] for gpu in plan["gpus"]}) == 1
    assert groups(plan, 5) == [("i", list(range(8))), ("s", list(range(8)))]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_an_all_reduce_runs_rightly(way: str) -> None:
    topology = f"switch:4?{BOTH}"
    found = names(plan_of(direct(CollectiveKind.ALL_REDUCE, topology), topology, **WAYS[way]))
    expected = "gstorepkt" if "packets" in way else "gstore" if way == "pushed" else "glres"
    assert found[expected] == 4 * WAYS[way].get("tbg", 1)
    assert (found["put"] > 0) == (way == "pushed")


def test_synthesized_multicasts_and_sums_run_rightly() -> None:
    topology = f"switch:3?{BOTH}"
    pytest.importorskip("collhub_tacos")
    collective = Collective(CollectiveKind.ALL_REDUCE, 3, 3)
    algorithm = hub_core.synthesize(collective, topology, 1 << 20, name="tacos").algorithm
    found = names(plan_of(algorithm, topology))
    sums = int(algorithm.steps.is_kind(StepKind.RECV_REDUCE).sum()) // 2
    assert (found["glres"], found["put"], found["copy"]) == (sums, 0, 0)


def test_packets_for_all_others_are_stored_once() -> None:
    topology = f"switch:5?{BOTH}"
    found = names(plan_of(direct(CollectiveKind.ALL_GATHER, topology), topology, protocol="LL"))
    assert (found["cpkt"], found["gstorepkt"], found["upkt"], found["ppkt"]) == (5, 5, 20, 0)
    found = names(plan_of(direct(CollectiveKind.ALL_REDUCE, topology), topology, protocol="LL"))
    # Sums are of packets, which no switch adds.
    assert (found["repkt"], found["cpkt"], found["gstorepkt"], found["respkt"]) == (5, 5, 5, 0)


def test_groups_of_switches_end_with_their_domain() -> None:
    pytest.importorskip("collhub_topologies")
    topology = f"dgx-h100:2?{BOTH}"
    plan = plan_of(direct(CollectiveKind.ALL_GATHER, topology), topology)
    # The network switch is declared to multicast as well, but no switch channel leads through it.
    assert groups(plan, 0) == [("o", list(range(8)))]
    assert groups(plan, 9) == [("o", list(range(8, 16)))]
    found = names(plan)
    assert (found["gstore"], found["pws"], found["put"]) == (16, 16 * 8, 0)


@pytest.mark.parametrize("topology", ["dgx-h100", "dgx-h200", "dgx-b200", "gb200"])
def test_switches_of_known_machines_add_up_and_multicast(topology: str) -> None:
    pytest.importorskip("collhub_topologies")
    algorithm = direct(CollectiveKind.ALL_REDUCE, topology)
    ranks = algorithm.num_ranks
    plan = plan_of(algorithm, topology)
    found = names(plan)
    assert (found["glres"], found["put"]) == (ranks, 0)
    assert {tuple(ranks_of_group) for _, ranks_of_group in groups(plan, 0)} == {(*range(ranks),)}


@pytest.mark.parametrize("topology", ["switch:4", "fully-connected:4", "ring:4"])
def test_networks_without_such_switches_need_no_switch_channels(topology: str) -> None:
    plan = plan_of(direct(CollectiveKind.ALL_REDUCE, topology), topology)
    assert not names(plan).keys() & {"gstore", "glres"}
    assert groups(plan, 0) == []


def test_chains_of_single_messages_need_no_switch_channels() -> None:
    plan = plan_of(ring_all_reduce(4), f"switch:4?{BOTH}")
    assert groups(plan, 0) == []


@pytest.mark.parametrize("slices", [None, 4096])
def test_more_members_than_a_thread_block_has_channels(slices: int | None) -> None:
    topology = f"switch:18?{BOTH}"
    algorithm = direct(CollectiveKind.ALL_REDUCE, topology)
    plan = plan_of(algorithm, topology, slices=slices)
    # The channels of a pipeline must fit into one thread block.
    assert names(plan)["glres"] == (18 if slices is None else 0)
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            assert all(len(channel["channel_ids"]) <= 16 for channel in block["channels"])


def scattered_broadcast() -> Algorithm:
    """Rank 0 sends its unit to two others, which store it in different places."""
    steps = StepTableBuilder(3)
    source = {"src_buffer": Buffer.INPUT, "count": 1}
    for peer in (1, 2):
        steps.add(0, StepKind.SEND, peer=peer, **source)
    steps.add(0, StepKind.COPY, dst_buffer=Buffer.OUTPUT, **source)
    for rank in (1, 2):
        target = {"dst_buffer": Buffer.SCRATCH, "dst_offset": rank - 1, "count": 1}
        landed = steps.add(rank, StepKind.RECV, peer=0, **target)
        copied = {"src_buffer": Buffer.SCRATCH, "src_offset": rank - 1, "count": 1}
        steps.add(rank, StepKind.COPY, data=[landed], dst_buffer=Buffer.OUTPUT, **copied)
    collective = Collective(CollectiveKind.BROADCAST, 3, 1, 0)
    return Algorithm(collective, steps.build(), np.asarray([0, 1, 2]))


def test_messages_to_different_places_land_in_scratch_of_all_members() -> None:
    plan = plan_of(scattered_broadcast(), f"switch:3?{BOTH}")
    assert names(plan)["gstore"] == 1
    assert groups(plan, 0) == [("s", [0, 1, 2])]
    (store,) = [
        one
        for block in plan["gpus"][0]["threadblocks"]
        for one in block["ops"]
        if one["name"] == "gstore"
    ]
    # The place is behind the scratch that the algorithm uses on any member.
    assert store["dst_buff"][0]["index"] == 2


def all_pairs(num_ranks: int) -> Algorithm:
    """Every rank sends its vector to all others, which add all of them to their own."""
    steps = StepTableBuilder(num_ranks)
    for rank in range(num_ranks):
        for peer in range(num_ranks):
            if peer != rank:
                steps.add(rank, StepKind.SEND, peer=peer, src_buffer=Buffer.INPUT, count=1)
        source, before = Buffer.INPUT, []
        for peer in range(num_ranks):
            if peer != rank:
                place = {"src_buffer": source, "dst_buffer": Buffer.OUTPUT, "count": 1}
                before = [steps.add(rank, StepKind.RECV_REDUCE, peer=peer, data=before, **place)]
                source = Buffer.OUTPUT
    collective = Collective(CollectiveKind.ALL_REDUCE, num_ranks, 1, in_place=False)
    algorithm = Algorithm(collective, steps.build(), np.zeros(num_ranks, np.int64))
    assert hub_core.verify(algorithm).ok
    return algorithm


@pytest.mark.parametrize("way", WAYS)
def test_multicasts_that_are_added_land_in_scratch(way: str) -> None:
    plan = plan_of(all_pairs(4), f"switch:4?{BOTH}", **WAYS[way])
    found = names(plan)
    store = "gstorepkt" if "packets" in way else "gstore"
    assert found[store] == 4 * WAYS[way].get("tbg", 1)
    # What was multicast is in no sum of a switch.
    assert found["glres"] == found["put"] == found["rre"] == 0


def test_multicast_that_one_receive_adds_is_not_stored_over_the_sum() -> None:
    steps = StepTableBuilder(3)
    for peer in (1, 2):
        steps.add(0, StepKind.SEND, peer=peer, src_buffer=Buffer.INPUT, count=1)
        place = {"src_buffer": Buffer.INPUT, "dst_buffer": Buffer.OUTPUT, "count": 1}
        steps.add(peer, StepKind.RECV_REDUCE, peer=0, **place)
    units = np.ones(3, np.int64)
    contract = CustomContract(units, units, np.ones(3, np.bool_), None)
    collective = Collective(CollectiveKind.CUSTOM, 3, 1, contract=contract, in_place=False)
    algorithm = Algorithm(collective, steps.build(), np.zeros(3, np.int64))
    plan = plan_of(algorithm, f"switch:3?{BOTH}")
    assert names(plan)["gstore"] == 1
    assert groups(plan, 0) == [("s", [0, 1, 2])]


def test_operands_in_different_places_are_no_sum_of_a_switch() -> None:
    steps = StepTableBuilder(3)
    for rank in (1, 2):
        # Rank 2 sends the second unit, where rank 0 adds to the first one.
        offset = rank - 1
        steps.add(rank, StepKind.SEND, peer=0, src_buffer=Buffer.INPUT, src_offset=offset, count=1)
    place = {"src_buffer": Buffer.INPUT, "dst_buffer": Buffer.INPUT, "count": 1}
    first = steps.add(0, StepKind.RECV_REDUCE, peer=1, **place)
    steps.add(0, StepKind.RECV_REDUCE, peer=2, data=[first], **place)
    collective = Collective(
        CollectiveKind.CUSTOM, 3, 2, in_place=True, out_of_place=False, contract=shifted_sum()
    )
    algorithm = Algorithm(collective, steps.build(), np.zeros(3, np.int64))
    options = PlanWriteOptions(topology=f"switch:3?{BOTH}")
    (artifact,) = write(algorithm, options).artifacts
    assert "glres" not in names(json.loads(artifact.content()))


def shifted_sum() -> CustomContract:
    units = np.full(3, 2, np.int64)
    return CustomContract(units, units, np.ones(3, np.bool_), None)


def test_switch_groups_listed_in_different_orders_are_refused() -> None:
    topology = f"switch:4?{BOTH}"
    plan = plan_of(direct(CollectiveKind.ALL_REDUCE, topology), topology)
    switches = [one for one in plan["gpus"][2]["channels"] if one["channel_type"] == "switch"]
    others = [one for one in plan["gpus"][2]["channels"] if one["channel_type"] != "switch"]
    plan["gpus"][2]["channels"] = [*others, *reversed(switches)]
    report = check_plan(parse_plan(json.dumps(plan).encode(), "plan.json"))
    assert "switch-order" in {one.code for one in report.errors}
