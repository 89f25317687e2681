"""All-to-all at once: no slower than the textbook's, and right."""

from __future__ import annotations

import hub_core
from hub_core import Collective, CollectiveKind, parse_topology, verify


def test_oversubscribed_all_to_all_is_as_fast_as_direct() -> None:
    topology = parse_topology("leaf-spine:4,4,2")
    collective = Collective(CollectiveKind.ALL_TO_ALL, topology.num_npus, topology.num_npus)
    times = {}
    for name in ("tacos", "direct"):
        result = hub_core.synthesize(collective, topology, 1 << 20, name=name)
        assert verify(result.algorithm).ok
        times[name] = result.time_ns
    assert times["tacos"] <= 1.01 * times["direct"]
