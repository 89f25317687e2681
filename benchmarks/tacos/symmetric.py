"""All-gathers on networks that look alike from every node: one node's part, moved to all.

    python benchmarks/tacos/symmetric.py [--seeds 20]

Beside the bound, and what is published for the ring, fully connected and switch network of
2 x 4 x groups, its switch unwound into links to the next `degree` groups; 1 MiB a node. Published
with TACOS v1.3.0: the least of 20 runs (10 for 2x4x16 with 4 chunks) as reported, which no schedule
can have, and with causal replacements. Every schedule of ours is replayed.
"""

from __future__ import annotations

import argparse

import numpy as np
from collhub_tacos.link_network import LinkNetwork
from collhub_tacos.lower_bounds import compute_lower_bounds_ps
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.replay import replay
from collhub_tacos.spreading.symmetric import find_all_gather
from collhub_tacos.symmetry import Translations
from measuring import median_timed, networks_of_tests, versions

from hub_core import Collective, CollectiveKind, parse_topology
from hub_core.network import Occupancy, Topology

MIB = 1 << 20
# Groups, degree, chunks: reported us, causal us.
PUBLISHED = {
    (4, 1, 1): (145.60, 148.99),
    (8, 1, 1): (303.35, 365.45),
    (16, 1, 1): (626.74, 781.22),
    (16, 3, 1): (590.94, 684.83),
    (4, 1, 4): (125.97, 133.35),
    (8, 1, 4): (260.92, 279.23),
    (16, 1, 4): (536.3, 565.2),
    (16, 3, 4): (479.15, 492.93),
}
OTHERS = (
    "torus:8x8?bandwidth=16GiB/s,73GiB/s&latency=1.5us",
    "torus:4x4x4?bandwidth=25GiB/s,50GiB/s,100GiB/s&latency=500ns",
)


def main() -> None:
    """Print one row a network and link model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    # Compiles.
    _ours(parse_topology("ring:3"), 1, Occupancy.ALPHA_BETA, 1)
    print(f"{versions()}; {seeds} seeds; times in us; CPU s: median of 3, the whole search")
    ours = f"{'bound':>9}{'ours':>9}{'/bound':>8}{'CPU s':>8}"
    published = f"{'reported':>10}{'causal':>9}{'/ours':>7}"
    print(f"{'network':<24}{'c':>2} {'occupancy':<14}{ours}{published}")
    networks = networks_of_tests()
    for (groups, degree, chunks), times_us in PUBLISHED.items():
        _rows(networks.ring_full_switch(groups, degree), chunks, seeds, times_us)
    for text in OTHERS:
        for chunks in (1, 4):
            _rows(parse_topology(text), chunks, seeds)


def _rows(
    topology: Topology, chunks: int, seeds: int, published: tuple[float, float] | None = None
) -> None:
    for occupancy in (Occupancy.ALPHA_BETA, Occupancy.SERIALIZATION):
        ours_us, bound_us, cpu_s = _ours(topology, chunks, occupancy, seeds)
        name = f"{topology.name.partition('?')[0]:<24}{chunks:>2} {occupancy:<14}"
        ours = f"{bound_us:>9.2f}{ours_us:>9.2f}{ours_us / bound_us:>8.4f}{cpu_s:>8.4f}"
        peer = ""
        # The release has this link model alone.
        if published is not None and occupancy is Occupancy.ALPHA_BETA:
            reported_us, causal_us = published
            peer = f"{reported_us:>10.2f}{causal_us:>9.2f}{causal_us / ours_us:>7.2f}"
        print(f"{name}{ours}{peer}", flush=True)


def _ours(
    topology: Topology, chunks: int, occupancy: Occupancy, seeds: int
) -> tuple[float, float, float]:
    """Time and bound in us, and median CPU seconds."""
    network, npus = LinkNetwork.of(topology), topology.num_npus
    times = network.link_times(MIB // chunks, occupancy)
    origin = np.repeat(np.arange(npus), chunks)

    def search() -> LinkSchedule:
        translations = Translations.of(network, origin, times)
        assert translations is not None
        return find_all_gather(network, translations, times, origin, seeds).result

    schedule, cpu_s = median_timed(search, 3)
    collective = Collective(CollectiveKind.ALL_GATHER, npus, npus * chunks)
    bounds = compute_lower_bounds_ps(collective, network, np.arange(npus), MIB // chunks, occupancy)
    return replay(schedule, times, origin) / 1e6, max(bounds.values()) / 1e6, cpu_s


if __name__ == "__main__":
    main()
