"""The one mechanism for bounds: the core's first, then offers of plugins by their counted work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hub_core
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Links
from hub_core.pipeline.bounds import (
    CORE_METHOD,
    QUICK_WORK,
    ProvenBound,
    beaten_bound,
    best_bounds,
)
from hub_core.plugin_api import LowerBound
from hub_core.registry.discovery import discover

ALL_TO_ALL = CollectiveKind.ALL_TO_ALL


def bounds(text: str, kind: CollectiveKind = ALL_TO_ALL, **arguments) -> ProvenBound | None:
    topology = hub_core.parse_topology(text)
    collective = Collective(kind, topology.num_npus, topology.num_npus)
    return best_bounds(collective, topology, (1 << 30,), **arguments)[0]


def test_ratios_are_computed_in_picoseconds_and_never_below_one() -> None:
    bound = ProvenBound(1_000_400, "links")
    assert bound.time_ns == 1000
    assert bound.ratio(1_500_600) == 1.5
    # Within what rounding takes, a time is at the bound; below that, one of the two is wrong.
    assert bound.ratio(1_000_000, 500) == 1.0
    assert bound.ratio(1_000_000, 399) is None
    found = beaten_bound(bound, 1_000_000, slack_ps=399)
    assert found is not None
    assert found.code == "bound-beaten"
    assert "bug" in found.cure
    assert beaten_bound(bound, 1_000_000, slack_ps=400) is None


@pytest.mark.needs_plugins
@pytest.mark.parametrize("text", ["dgx-h100:4", "torus:8x8"])
def test_all_pairs_of_small_messages_are_not_faster_than_the_bound(text: str) -> None:
    topology = hub_core.parse_topology(text)
    collective = Collective(ALL_TO_ALL, topology.num_npus, topology.num_npus)
    made = hub_core.synthesize(collective, topology, 1024, name="direct")
    registry = discover()
    time_ns = hub_core.simulate(made.algorithm, topology, 1024).time_ns
    exact = hub_core.exact_time(made.algorithm, topology, 1024, time_ns)
    (bound,) = best_bounds(collective, topology, (1024,), registry=registry)
    assert bound is not None
    assert time_ns is not None
    assert exact.time_ps is not None
    # 32 bytes over 450 GB/s take 71.1 ps, which the simulator drops; femtoseconds keep them.
    assert exact.time_ps > 1000 * time_ns
    ratio = bound.ratio(exact.time_ps, exact.slack_ps)
    assert ratio is not None
    assert ratio >= 1.0


@pytest.mark.needs_plugins
def test_a_solver_is_asked_where_the_time_is_far_from_the_bound_alone(tmp_path: Path) -> None:
    # Random links of a geometric graph: the flow proves 1 % more than any cut.
    links = Path(__file__).parents[2].parent / "shared/corpus/strangers/networks/geo20m.json"
    if not links.exists():
        pytest.skip("the corpus is not next to the checkout")
    topology = hub_core.read_topology(str(links))
    collective = Collective(ALL_TO_ALL, 20, 20)
    sizes = (1 << 30,)
    (own,) = best_bounds(collective, topology, sizes, best_times_ps=(1,))
    assert own is not None
    assert own.method == CORE_METHOD
    (near,) = best_bounds(collective, topology, sizes, best_times_ps=(int(1.01 * own.time_ps),))
    assert near == own
    (far,) = best_bounds(collective, topology, sizes, best_times_ps=(2 * own.time_ps,))
    assert far is not None
    assert far.method == "flows"
    assert 1.005 < far.time_ps / own.time_ps < 1.02


@pytest.mark.needs_plugins
def test_simulate_loads_no_solver_for_all_reduces_and_tight_times(tmp_path: Path) -> None:
    examples = Path(__file__).parents[2] / "examples"
    code = (
        "import sys\n"
        "from hub_core.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted(m for m in ('highspy', 'collhub_packing') if m in sys.modules))\n"
    )
    arguments = ("simulate", str(examples / "ring_all_reduce_8.xml"), "--size", "1MiB")
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--topology", "ring:8"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert run.stdout.splitlines()[-1] == "[]"


@pytest.mark.needs_plugins
def test_offers_declare_what_they_take_to_load() -> None:
    offers = {one.name: one.offer for one in discover().all(LowerBound)}
    assert {"flows", "packing"} <= set(offers)
    # The packing's kernels take longer to load than `simulate` may spend.
    assert offers["flows"].loading_work < QUICK_WORK < offers["packing"].loading_work


@pytest.mark.needs_plugins
def test_the_worst_partition_bounds_an_all_reduce() -> None:
    links = Path(__file__).parents[2].parent / "shared/corpus/strangers/networks/treerings20.json"
    if not links.exists():
        pytest.skip("the corpus is not next to the checkout")
    topology = hub_core.read_topology(str(links))
    collective = Collective(CollectiveKind.ALL_REDUCE, 20, 20)
    quick, thorough = (
        best_bounds(collective, topology, (1 << 33,), is_thorough=flag)[0] for flag in (False, True)
    )
    assert quick is not None
    assert thorough is not None
    assert (quick.method, thorough.method) == (CORE_METHOD, "packing")
    assert thorough.time_ps > quick.time_ps


def test_a_custom_collective_has_no_bound() -> None:
    from hub_core.testing import custom_collective

    assert best_bounds(custom_collective(2, 1), hub_core.parse_topology("ring:2"), (1,)) == (None,)


@pytest.mark.needs_plugins
def test_links_too_slow_to_be_slowed_down_further_give_the_plain_time() -> None:
    topology = hub_core.parse_topology("ring:2?bandwidth=1B/s&latency=0ns")
    collective = Collective(ALL_TO_ALL, 2, 2)
    result = hub_core.synthesize(collective, topology, 2, name="direct")
    exact = hub_core.exact_time(result.algorithm, topology, 2, result.time_ns)
    assert exact.time_ps == 1000 * result.time_ns


@pytest.mark.needs_plugins
def test_times_of_years_are_not_below_the_bound_by_rounding() -> None:
    topology = hub_core.parse_topology("torus:3x7?bandwidth=1B/s&npus=3,6")
    collective = Collective(ALL_TO_ALL, 2, 2)
    size = 1 << 30
    result = hub_core.synthesize(collective, topology, size, name="direct")
    (bound,) = best_bounds(collective, topology, (size,))
    exact = hub_core.exact_time(result.algorithm, topology, size, result.time_ns)
    assert bound is not None
    # Both ranks send 2^29 bytes at the same time over one link of 500 ns and 1 B/s.
    assert bound.time_ps <= (1 << 29) * 10**12 + 500_000
    assert beaten_bound(bound, exact.time_ps, slack_ps=exact.slack_ps) is None


@pytest.mark.needs_plugins
def test_one_way_networks_have_a_bound_for_what_can_be_sent() -> None:
    # No link leads back to NPU 0, so that flows between all pairs do not exist.
    ends = np.asarray([0, 3, 3, 1, 2]), np.asarray([3, 1, 2, 3, 3])
    links = Links.uniform(*ends, 1e9, 0.0)
    collective = Collective(CollectiveKind.SCATTER, 3, 3, 0)
    (bound,) = best_bounds(collective, links.topology("one way", 3, 4), (3 << 20,))
    assert bound is not None
    assert bound.time_ps == (2 << 20) * 1000
