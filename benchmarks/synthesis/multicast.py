"""What switches that multicast and reduce are worth: `auto` with and without them.

    python benchmarks/synthesis/multicast.py [--size S ...]

Per network and collective: microseconds by what the switches do, each by its bound. The network
"two DGX-2" is that of TE-CCL's evaluation (its public code, `topologies/dgx2.py`): 16 NPUs at one
switch (125 GB/s, 0.35 us), and a cable of 12.5 GB/s and 2.6 us from every odd NPU to the even one
before it in the other machine.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

import hub_core
from hub_core import Collective, CollectiveKind, Topology, parse_topology
from hub_core.model import parse_size
from hub_core.network import Links

_NETWORKS = ("switch:8", "switch:16", "dgx-h100:2", "leaf-spine:4,4,4")
_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce", "all-to-all")
_ABILITIES = ("neither", "multicast", "reduce", "both")
_SIZES = ("1KiB", "64KiB", "64MiB")
_NPUS = 16


def main() -> None:
    """Print one row a network, collective and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", nargs="+", default=_SIZES)
    asked = parser.parse_args()
    print(f"| network | collective | size | {' | '.join(_ABILITIES)} |")
    print(f"|---|---|---|{'---|' * len(_ABILITIES)}")
    for topology in (_two_dgx2(), *map(parse_topology, _NETWORKS)):
        for kind in _KINDS:
            for size in asked.size:
                cells = [_cell(topology, kind, size, ability) for ability in _ABILITIES]
                print(f"| {topology.name} | {kind} | {size} | {' | '.join(cells)} |", flush=True)


def _cell(topology: Topology, name: str, size: str, ability: str) -> str:
    """Microseconds, winner, and the time by its bound."""
    switches = tuple(range(topology.num_npus, topology.num_nodes))
    able = replace(
        topology,
        multicast=switches if ability in ("multicast", "both") else (),
        reduction=switches if ability in ("reduce", "both") else (),
    )
    kind, ranks = CollectiveKind(name), topology.num_npus
    root = 0 if kind.traits.is_rooted else None
    collective = Collective(kind, ranks, kind.traits.parts(ranks), root)
    made = hub_core.synthesize(collective, able, parse_size(size), name="auto")
    ratio = made.ratio_to_bound or float("nan")
    return f"{made.time_ns / 1000:.2f} ({ratio:.3f}, {made.statistics['winner']})"


def _two_dgx2() -> Topology:
    npu = np.arange(2 * _NPUS)
    switch = 2 * _NPUS + npu // _NPUS
    odd = npu[npu % 2 == 1]
    across = (odd + _NPUS) % (2 * _NPUS) - 1
    links = Links.joined(
        [
            Links.uniform(npu, switch, 125e9, 350e-9),
            Links.uniform(switch, npu, 125e9, 350e-9),
            Links.uniform(odd, across, 12.5e9, 2.6e-6),
        ]
    )
    groups = {"first": tuple(range(_NPUS)), "second": tuple(range(_NPUS, 2 * _NPUS))}
    return links.topology("two DGX-2", 2 * _NPUS, 2 * _NPUS + 2, groups=groups)


if __name__ == "__main__":
    main()
