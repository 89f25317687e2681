"""Trees of several machines: they span, follow the messages' routes, and have the best rate."""

from __future__ import annotations

import pytest
from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.plugin import BlinkOptions
from collhub_blink.synthesize import find_packings

from hub_core import Collective, CollectiveKind, parse_topology
from hub_core.network import Occupancy
from hub_core.plugin_api import SynthesisRequest

MIB = 1 << 20
THREE_PHASES = "three phases"
BOTH = "three phases, part straight across"
BY_WAY = "by way of every machine"


def _packings(kind: CollectiveKind, topology: str, root: int = 0) -> dict[str, PlacedPacking]:
    network = parse_topology(topology)
    ranks = network.num_npus
    is_rooted = kind in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE)
    collective = Collective(
        kind, ranks, kind.traits.parts(ranks), root=root if is_rooted else None, in_place=True
    )
    everyone = tuple(range(ranks))
    request = SynthesisRequest(collective, network, MIB, everyone, Occupancy.SERIALIZATION)
    return {made.method: made for made in find_packings(PackingTask.of(request, BlinkOptions()))}


@pytest.mark.once
@pytest.mark.parametrize("topology", ["dgx-a100:2", "rail:2x8"])
@pytest.mark.parametrize(
    "kind", [CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER]
)
def test_room_between_machines_is_used(kind: CollectiveKind, topology: str) -> None:
    made = _packings(kind, topology)
    plan, both = made[THREE_PHASES], made[BOTH]
    # By the sum of all bandwidths: 520 / 3 and 800 / 3 GB/s for an all-reduce.
    assert plan.rate < 0.99 * both.bound.rate
    assert both.bound.rate >= both.rate > 0.999 * both.bound.rate
    assert both.depth == 2


def test_a_second_kind_of_tree_is_left_out_where_it_adds_nothing() -> None:
    assert BOTH not in _packings(CollectiveKind.ALL_GATHER, "dgx-h100:8")


@pytest.mark.parametrize("kind", [CollectiveKind.BROADCAST, CollectiveKind.REDUCE])
@pytest.mark.parametrize("root", [0, 13])
@pytest.mark.parametrize("topology", ["dgx-a100:2", "dgx-h100:4"])
def test_by_way_of_every_machine_is_at_the_best_rate(
    kind: CollectiveKind, root: int, topology: str
) -> None:
    made = _packings(kind, topology, root)[BY_WAY]
    assert made.is_optimal
    assert made.depth <= 4
    assert {placed.tree.root for placed in made.trees} == {root}


@pytest.mark.once
def test_trees_of_servers_join_them_once() -> None:
    # Two servers of eight pairs of dies: the last partition is that into servers.
    made = _packings(CollectiveKind.ALL_REDUCE, "mi250:2")[THREE_PHASES]
    for placed in made.trees:
        parents = enumerate(placed.tree.parent[:32].tolist())
        crossing = [node for node, parent in parents if (node < 16) != (parent < 16)]
        assert len(crossing) == 1 + (placed.tree.root >= 16)
