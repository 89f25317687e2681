"""Plans of asymmetric algorithms run in the executor model, with chunks of odd sizes."""

from __future__ import annotations

import pytest
from collhub_mscclpp.plugin import PlanWriteOptions
from collhub_mscclpp.writing.write import build_draft, write
from executor_model import schedules
from executor_verdicts import run_written

import hub_core
from hub_core.model import Collective, CollectiveKind

WAYS = {
    "simple": PlanWriteOptions(),
    "packets": PlanWriteOptions(protocol="LL"),
    "groups": PlanWriteOptions(tbg=3),
    "slices": PlanWriteOptions(slices=48),
}
CASES = [
    ("binomial", "fully-connected:5", CollectiveKind.BROADCAST, "collhub_classic"),
    ("binomial", "fully-connected:5", CollectiveKind.REDUCE, "collhub_classic"),
    ("double-binary-tree", "fully-connected:5", CollectiveKind.ALL_REDUCE, "collhub_classic"),
    ("blink", "mesh:2x2", CollectiveKind.BROADCAST, "collhub_blink"),
    ("tacos", "mesh:3x3", CollectiveKind.ALL_GATHER, "collhub_tacos"),
    ("tacos", "mesh:2x3", CollectiveKind.SCATTER, "collhub_tacos"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "topology", "kind", "distribution"), CASES)
def test_plans_of_asymmetric_algorithms_are_right(
    name: str, topology: str, kind: CollectiveKind, distribution: str, way: str
) -> None:
    pytest.importorskip(distribution)
    ranks = hub_core.parse_topology(topology).num_npus
    root = ranks - 1 if kind.traits.is_rooted else None
    collective = Collective(kind, ranks, ranks, root=root, in_place=True)
    algorithm = hub_core.synthesize(collective, topology, 1 << 12, name=name).algorithm
    unit = build_draft(algorithm, WAYS[way]).work.unit
    (artifact,) = write(algorithm, WAYS[way]).artifacts
    # Three units are one a block of a group; seven do not divide evenly into blocks or slices.
    for units in (3, 7):
        outcomes = run_written(
            artifact.content(),
            algorithm.collective,
            unit,
            units * 16 * unit,
            orders=schedules(ranks, 1)[::4],
        )
        assert {outcome.verdict for outcome in outcomes.values()} == {"right"}, outcomes
