"""The golden runs of the real ASTRA-sim (public release of March 2026).

Every rank's finishing cycle is equal.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from astra_calls import simulate_analytically
from collhub_astra_sim.simulating.analytical import simulate_nodes
from collhub_astra_sim.simulating.simulated_network import TimingModel
from spec_simulator import SpecSimulator
from trace_graphs import graph_of_golden

from hub_core import parse_topology
from hub_core.network import Topology
from hub_core.plugin_api import Source, SourcePart
from hub_core.trace_profile.formats import CHAKRA_READER
from hub_core.trace_profile.read import chakra_algorithm as read_traces

READ_OPTIONS = CHAKRA_READER.options()
BUILDERS = {"Ring": "ring", "FullyConnected": "fully-connected", "Switch": "switch"}


@pytest.fixture(scope="session")
def golden(corpus: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((corpus / "astra-sim" / "golden.json").read_text())
    assert len(cases) == 120
    return cases


def topology_of(case: dict[str, Any]) -> Topology:
    constants = f"bandwidth={case['bandwidth']}GiB/s&latency={case['latency']}ns"
    return parse_topology(f"{BUILDERS[case['topology']]}:{case['npus']}?{constants}")


@pytest.mark.parametrize("number", range(120))
def test_every_rank_finishes_in_the_cycle_that_astra_sim_printed(
    golden: list[dict[str, Any]], number: int
) -> None:
    case = golden[number]
    times = simulate_nodes(
        graph_of_golden(case).table(), topology_of(case), TimingModel(case["backend"] == "aware")
    )
    assert list(times.rank_finish_ns) == case["cycles"]
    named = [
        finding.location.rank for finding in times.diagnostics if finding.code == "never-finishes"
    ]
    assert named == [rank for rank, cycles in enumerate(case["cycles"]) if cycles is None]


def test_the_golden_runs_come_out_equal_through_trace_files(golden: list[dict[str, Any]]) -> None:
    """Nodes to files to an algorithm, which is simulated: ids, order and tags survive."""
    for case in golden:
        files = graph_of_golden(case).files()
        parts = tuple(map(_part, range(len(files)), files))
        algorithm = read_traces(Source("golden", parts), READ_OPTIONS)
        assert algorithm.collective_bytes is not None
        network = f"congestion-{case['backend']}"
        result = simulate_analytically(
            algorithm, topology_of(case), algorithm.collective_bytes, network=network
        )
        assert list(result.rank_finish_ns) == case["cycles"]


def _part(rank: int, content: bytes) -> SourcePart:
    return SourcePart(f"golden.{rank}.et", lambda: content, rank, len(content))


@pytest.mark.parametrize("network", ["congestion-aware", "congestion-unaware"])
def test_the_shipped_custom_ring_takes_90174_cycles(corpus: Path, network: str) -> None:
    folder = corpus / "chakra" / "astra-sim-custom-ring-8"
    files = [folder / f"custom_allreduce.{rank}.et" for rank in range(8)]
    parts = tuple(SourcePart(file.name, file.read_bytes, rank) for rank, file in enumerate(files))
    algorithm = read_traces(Source("custom_allreduce", parts), READ_OPTIONS)
    assert algorithm.collective_bytes is not None
    topology = parse_topology("ring:8?bandwidth=50GiB/s&latency=500ns")
    result = simulate_analytically(algorithm, topology, algorithm.collective_bytes, network=network)
    assert result.rank_finish_ns == (90174,) * 8
    assert result.diagnostics == ()


def test_the_plain_implementation_agrees_too(golden: list[dict[str, Any]]) -> None:
    """It is what random graphs are compared with, so it has to be right itself."""
    for case in golden:
        if case["backend"] == "aware":
            topology = topology_of(case)
            links = {
                (link.source, link.destination): (link.bandwidth_bytes_per_s / 1e9, case["latency"])
                for link in topology.links()
            }
            assert (
                SpecSimulator(graph_of_golden(case), links, route_of(case)).run() == case["cycles"]
            )


def route_of(case: dict[str, Any]) -> Callable[[int, int], list[int]]:
    """ASTRA-sim's routes.

    Rings: the shorter way round, clockwise when both are equal. Switches: through the switch.
    """
    n = case["npus"]

    def around(source: int, destination: int) -> list[int]:
        distance = (destination - source) % n
        step = -1 if n - distance < distance else 1
        hops = min(distance, n - distance)
        return [(source + step * hop) % n for hop in range(hops + 1)]

    routes: dict[str, Callable[[int, int], list[int]]] = {
        "Ring": around,
        "Switch": lambda source, destination: [source, n, destination],
        "FullyConnected": lambda source, destination: [source, destination],
    }
    return routes[case["topology"]]
