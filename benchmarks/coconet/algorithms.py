"""Winners of the search against exhaustive choice of the hub's algorithms for their collectives.

`python benchmarks/coconet/algorithms.py [NETWORK ...]` searches small programs on several networks.
For each winner, every combination of all compared algorithms, one per distinct collective, is
simulated with the fastest protocol of each and one chunk count for all. Left out are combinations
whose busiest link alone needs as long as a simulated combination. The bar is 3 % above the best
combination; every network gets a verdict.
"""

from __future__ import annotations

import itertools
import sys
import time

import numpy as np
import numpy.typing as npt
from collhub_coconet import (
    LOCAL,
    Binding,
    Program,
    ProgramBuilder,
    all_reduce,
    norm,
    select,
    update,
)
from collhub_coconet.search.collective_times import (
    Demand,
    Means,
    Rates,
    find_demand,
    find_slowest_link,
)
from collhub_coconet.search.cost_models import FormulaModel
from collhub_coconet.search.explore import Exploration, explore
from collhub_coconet.search.hub_algorithms import OfferedAlgorithm
from collhub_coconet.search.simulation import CHUNKS, Simulation, simulate_candidates

import hub_core

_NETWORKS = ("ring:8", "torus:2x4", "switch:8", "dgx-a100:2", "fat-tree:4")
_BAR = 1.03
_ELEMENTS = 2**22
_SCALAR_BYTES = 64


def clip() -> Program:
    """A step of gradient descent with a gradient that is clipped by its norm."""
    build = ProgramBuilder("clip", N=(1, 2**30))
    gradient = all_reduce(build.argument("g", "float32", "N", layout=LOCAL)).named("h")
    weight = build.state("w", "float32", "N", whole_after=True)
    length = norm(gradient).named("n")
    factor = select(length > 1.0, 1.0 / length, 1.0).named("factor")
    return build.program(update(weight, weight - 0.01 * factor * gradient).named("w1"))


def momentum() -> Program:
    """A step of momentum."""
    build = ProgramBuilder("momentum", N=(1, 2**30))
    gradient = all_reduce(build.argument("g", "float32", "N", layout=LOCAL)).named("h")
    state = build.state("m", "float32", "N")
    weight = build.state("w", "float32", "N", whole_after=True)
    new = update(state, 0.9 * state + gradient).named("m1")
    return build.program(new, update(weight, weight - 0.01 * new).named("w1"))


def find_best_combination(
    simulation: Simulation, program: Program, binding: Binding
) -> tuple[float, int, int]:
    """Simulate combinations of algorithms with common chunk counts.

    Returns the best seconds, and the numbers of simulated and of all combinations.
    """
    names: dict[Demand, list[str]] = {}
    for operation in program.operations:
        demand = find_demand(program, binding, operation)
        if demand is not None:
            names.setdefault(demand, []).append(operation.name)
    offers = [simulation.hub.list_offers(demand) for demand in names]
    loads = [
        [len(group) * compute_link_seconds(simulation, demand, offer) for offer in of_demand]
        for of_demand, (demand, group) in zip(offers, names.items(), strict=True)
    ]
    combinations = sorted(
        (
            float(np.sum([of[index] for of, index in zip(loads, chosen, strict=True)], 0).max()),
            chosen,
        )
        for chosen in itertools.product(*(range(len(of_demand)) for of_demand in offers))
    )
    best_s = float("inf")
    num_simulated = 0
    for bound_s, chosen in combinations:
        if bound_s >= best_s:
            break
        num_simulated += 1
        for count in CHUNKS:
            means: dict[str, Means] = {}
            for index, of_demand, (demand, group) in zip(
                chosen, offers, names.items(), strict=True
            ):
                # A scalar is one chunk.
                chunks = count if demand.size_bytes > _SCALAR_BYTES else 1
                offer = of_demand[index]
                one = Means(offer.name, offer.find_fastest_protocol(), chunks)
                means |= dict.fromkeys(group, one)
            seconds = simulation.simulate_means(program, binding, means)
            if not isinstance(seconds, str):
                best_s = min(best_s, seconds)
    return best_s, num_simulated, len(combinations)


def compute_link_seconds(
    simulation: Simulation, demand: Demand, offer: OfferedAlgorithm
) -> npt.NDArray[np.float64]:
    """Return the seconds for which an algorithm occupies every link, in any chunk count."""
    network = simulation.hub.find_network(demand.members, offer.find_fastest_protocol())
    result = hub_core.simulate(offer.algorithm, network, demand.size_bytes)
    ends = zip(network.source.tolist(), network.destination.tolist(), strict=True)
    # Parallel links share one number, and the traffic.
    numbers: dict[tuple[int, int], int] = {}
    links = [numbers.setdefault(pair, len(numbers)) for pair in ends]
    busy_s = np.zeros(len(numbers))
    for load in result.link_loads:
        busy_s[numbers[load.source, load.destination]] += load.busy_ns / 1e9
    return busy_s / np.bincount(links)


def main() -> int:
    """Run and print; 1 if a winner is slower than the bar."""
    worst = 0.0
    for text in sys.argv[1:] or _NETWORKS:
        network = hub_core.parse_topology(text)
        rates = Rates(90e12, 765e9, *find_slowest_link(network), 5e-6)
        # Every algorithm is built once for all programs and combinations.
        simulation = Simulation(rates, network)
        binding = Binding(network.num_npus, {"N": _ELEMENTS})
        ratios = []
        for program in (clip(), momentum()):
            start = time.process_time()
            found = explore(program, [binding], FormulaModel(rates, simulation.hub), 5000)
            judged = simulate_candidates(found, [binding], simulation, 3)
            assert isinstance(judged, Exploration), judged
            searched_s = time.process_time() - start
            winner = judged.fastest(0)
            start = time.process_time()
            best_s, num_simulated, count = find_best_combination(
                simulation, winner.program, binding
            )
            compared_s = time.process_time() - start
            ratios.append(winner.timings[0].seconds / best_s)
            times = f"{winner.timings[0].seconds * 1e6:9.1f} us, exhaustive {best_s * 1e6:9.1f} us"
            print(f"{text:12}{program.name:10}{times}, ratio {ratios[-1]:.3f}", end="; ")
            print(f"{num_simulated} of {count} combinations simulated", end="; ")
            print(f"CPU {searched_s:.1f} + {compared_s:.1f} s", flush=True)
        worst = max(worst, *ratios)
        verdict = "passed" if max(ratios) <= _BAR else "FAILED"
        print(f"{text:12}{verdict}: at most {max(ratios):.3f}, bar {_BAR}", flush=True)
    return int(worst > _BAR)


if __name__ == "__main__":
    sys.exit(main())
