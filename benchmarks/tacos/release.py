"""The peer: the matching of TACOS's public release, written anew from its description.

    python benchmarks/tacos/release.py [TOPOLOGY] [--chunks 1] [--seeds 20]

astra-sim/tacos v1.3.0: all-gathers only, dense arrays over all pairs of nodes, and a rescan of all
of them at every event, as there. Its replacement of a chunk that comes a second time may deliver
one that the source got after the transfer began; `causal=True` forbids that and changes nothing
else. Run it to see it on a network: time, and deliveries that cannot be.
"""

from __future__ import annotations

import argparse
import heapq
import statistics
import time
from dataclasses import dataclass

import numpy as np
from collhub_packing.compiling import kernel, part

from hub_core import parse_topology
from hub_core.columns import BoolArray, Float64Array, Int64Array
from hub_core.network import Topology


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the release reports in microseconds, and the deliveries that no schedule can make."""

    time_us: float
    impossible: int


def all_gather(
    topology: Topology, chunk_bytes: int, chunks: int, seed: int, *, causal: bool
) -> Outcome:
    """One run on `chunks` chunks a node; links are busy until the arrival."""
    duration_s = topology.latency_s + chunk_bytes / topology.bandwidth_bytes_per_s
    link_us = np.zeros((topology.num_npus, topology.num_npus))
    # Of parallel links the last one stands, as there.
    link_us[topology.source, topology.destination] = 1e6 * duration_s
    time_us, impossible = _run(link_us, chunks, seed, causal)
    return Outcome(time_us, impossible)


@kernel
def _run(link_us: Float64Array, chunks: int, seed: int, causal: bool) -> tuple[float, int]:
    """Finish in microseconds, and impossible deliveries.

    At every event: what has come is delivered, then all (chunk, node) that are missing are gone
    through in random order, each on the fastest free link from a node that has the chunk. An event
    costs the square of the nodes times the chunks. `link_us`: 0 where there is no link.
    """
    np.random.seed(seed)
    num_nodes = len(link_us)
    num_chunks = chunks * num_nodes
    has = np.zeros((num_chunks, num_nodes), np.bool_)
    arrival = np.full((num_chunks, num_nodes), np.inf)
    for chunk in range(num_chunks):
        has[chunk, chunk % num_nodes] = True
        arrival[chunk, chunk % num_nodes] = 0.0
    start = np.zeros((num_nodes, num_nodes))
    busy_until = np.zeros((num_nodes, num_nodes))
    in_flight = np.full((num_nodes, num_nodes), -1)
    # Every time once, however many links end then.
    events, known = [0.0], {0.0}
    finish, impossible = 0.0, 0
    while len(events):
        now = heapq.heappop(events)
        delivered, wrong = _arrive(link_us, now, has, arrival, start, busy_until, in_flight, causal)
        impossible += wrong
        if delivered:
            finish = now
        conditions = _open_conditions(has)
        np.random.shuffle(conditions)
        for condition in conditions:
            chunk, node = divmod(condition, num_nodes)
            source = _fastest(link_us, now, has[chunk], busy_until, node)
            if source >= 0:
                until = now + link_us[source, node]
                start[source, node] = now
                busy_until[source, node] = until
                in_flight[source, node] = chunk
                if until not in known:
                    known.add(until)
                    heapq.heappush(events, until)
    return finish, impossible


@part
def _open_conditions(has: BoolArray) -> Int64Array:
    """Every (chunk, node) that is missing, as one number."""
    num_chunks, num_nodes = has.shape
    found = np.empty(has.size, np.int64)
    count = 0
    for chunk in range(num_chunks):
        for node in range(num_nodes):
            if not has[chunk, node]:
                found[count] = chunk * num_nodes + node
                count += 1
    return found[:count]


@part
def _arrive(
    link_us: Float64Array,
    now: float,
    has: BoolArray,
    arrival: Float64Array,
    start: Float64Array,
    busy_until: Float64Array,
    in_flight: Int64Array,
    causal: bool,
) -> tuple[int, int]:
    """Deliver what has come by now; return how many did, and how many of them cannot have.

    A chunk that is there already is replaced by another.
    """
    delivered, impossible = 0, 0
    for source in range(len(link_us)):
        for node in range(len(link_us)):
            chunk = in_flight[source, node]
            if chunk < 0 or busy_until[source, node] > now:
                continue
            in_flight[source, node] = -1
            if has[chunk, node]:
                # The release does not ask when the source got it.
                latest = start[source, node] if causal else np.inf
                chunk = _replacement(has, arrival, source, node, latest)
            if chunk >= 0:
                has[chunk, node] = True
                arrival[chunk, node] = now
                delivered += 1
                impossible += arrival[chunk, source] > start[source, node]
    return delivered, impossible


@part
def _replacement(
    has: BoolArray, arrival: Float64Array, source: int, node: int, latest: float
) -> int:
    """Any chunk that the node lacks and its source has had since `latest`, -1 for none."""
    candidates, chosen = 0, -1
    for chunk in range(len(has)):
        if has[chunk, source] and not has[chunk, node] and arrival[chunk, source] <= latest:
            candidates += 1
            # All are as likely to stay chosen.
            if np.random.randint(candidates) == 0:
                chosen = chunk
    return chosen


@part
def _fastest(
    link_us: Float64Array,
    now: float,
    holders: BoolArray,
    busy_until: Float64Array,
    node: int,
) -> int:
    """A random one of the fastest free in-links whose source has the chunk, -1 for none."""
    least, candidates, chosen = np.inf, 0, -1
    for source in range(len(link_us)):
        duration = link_us[source, node]
        if duration <= 0.0 or not holders[source] or busy_until[source, node] > now:
            continue
        # Equal but for rounding are equally fast.
        if duration < least - 1e-9:
            least, candidates, chosen = duration, 1, source
        elif duration <= least + 1e-9:
            candidates += 1
            if np.random.randint(candidates) == 0:
                chosen = source
    return chosen


def main() -> None:
    """Print minimum and mean of both forms on one network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "topology", nargs="?", default="mesh:5x5?bandwidth=16GiB/s,73GiB/s&latency=1500ns"
    )
    parser.add_argument("--chunks", type=int, default=1, help="chunks a node, of 1 MiB together")
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    topology = parse_topology(arguments.topology)
    chunk_bytes = (1 << 20) // arguments.chunks
    all_gather(parse_topology("ring:2"), 1, 1, 0, causal=True)
    print(f"{'':<10}{'min us':>10}{'mean us':>10}{'impossible':>12}{'CPU s':>9}")
    for name, causal in (("reported", False), ("causal", True)):
        begin = time.process_time()
        runs = [
            all_gather(topology, chunk_bytes, arguments.chunks, seed, causal=causal)
            for seed in range(arguments.seeds)
        ]
        cpu = (time.process_time() - begin) / len(runs)
        times = [run.time_us for run in runs]
        mean_us = statistics.mean(times)
        impossible = statistics.mean(run.impossible for run in runs)
        print(f"{name:<10}{min(times):>10.2f}{mean_us:>10.2f}{impossible:>12.0f}{cpu:>9.4f}")


if __name__ == "__main__":
    main()
