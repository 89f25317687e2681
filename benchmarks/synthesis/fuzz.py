"""Every synthesizer on random networks, sizes and collectives: right results, or one clear line.

    python benchmarks/synthesis/fuzz.py [--seed 1] [--seconds 120]

Bandwidths from a byte a second, latencies of days, single NPUs, parts of networks without links.
Prints what is wrong: a traceback, an algorithm that does not verify, a time below its own bound.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings

import hub_core
from hub_core import HubError, Topology
from hub_core.model import Collective, CollectiveKind
from hub_core.plugin_api import Synthesizer

_NETWORKS = (
    *("ring:{n}", "line:{n}", "mesh:2x{n}", "torus:3x{n}", "switch:{n}", "fully-connected:{n}"),
    *("hypercube:3", "dgx1v", "mi300x", "dgx-a100:2", "leaf-spine:{n},2,2", "dragonfly:2,1,1"),
    *("fat-tree:2", "dgx2", "rail:2x{n}"),
)
_NUMBERS = (1, 2, 3, 4, 5, 7)
_BANDWIDTHS = ("1B/s", "1KB/s", "3MB/s", "50GB/s", "1TB/s", "999PB/s", "1GB/s,7GB/s")
_LATENCIES = ("0ns", "1ps", "500ns", "1s", "1000000s")
_ABILITIES = ("multicast", "reduce")
_SIZES = (1, 2, 3, 7, 8, 63, 64, 1000, 1024, 1 << 20, (1 << 20) + 1, 1 << 30, 1 << 40)
_KINDS = [kind for kind in CollectiveKind if kind is not CollectiveKind.CUSTOM]


def main() -> None:
    """Try until the time is over, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0)
    asked = parser.parse_args()
    warnings.simplefilter("error")
    draw, end = random.Random(asked.seed), time.monotonic() + asked.seconds
    names = [one.name for one in hub_core.discover().all(Synthesizer) if one.name != "auto"]
    tried = wrong = 0
    while time.monotonic() < end:
        topology = _drawn(draw)
        if topology is None:
            continue
        kind, name, size = draw.choice(_KINDS), draw.choice(names), draw.choice(_SIZES)
        root = draw.randrange(topology.num_npus) if kind.traits.is_rooted else None
        parts = kind.traits.parts(topology.num_npus)
        reason = _defect(Collective(kind, topology.num_npus, parts, root), topology, size, name)
        tried += 1
        if reason:
            wrong += 1
            print(f"{name} {kind} {size} B on {topology.name}: {reason}", flush=True)
    print(f"{tried} tried, {wrong} wrong")


def _drawn(draw: random.Random) -> Topology | None:
    """A network, None for a text that means none."""
    text = draw.choice(_NETWORKS).format(n=draw.choice(_NUMBERS))
    stated = []
    if draw.random() < 0.4:
        stated.append(f"bandwidth={draw.choice(_BANDWIDTHS)}")
    if draw.random() < 0.4:
        stated.append(f"latency={draw.choice(_LATENCIES)}")
    if draw.random() < 0.3:
        npus = sorted(draw.sample(range(8), draw.randint(1, 4)))
        stated.append(f"npus={','.join(map(str, npus))}")
    # Of networks without switches these are refused.
    stated += [f"{ability}=true" for ability in _ABILITIES if draw.random() < 0.25]
    try:
        return hub_core.parse_topology(text + ("?" + "&".join(stated) if stated else ""))
    except HubError:
        return None


def _defect(collective: Collective, topology: Topology, size: int, name: str) -> str:
    """What is wrong with an answer; nothing where it is right, or a refusal."""
    try:
        result = hub_core.synthesize(collective, topology, size, name=name)
    except HubError as error:
        # What a plugin did not expect is told as its failure.
        return str(error) if " failed: " in str(error) else ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if not hub_core.verify(result.algorithm).ok:
        return "does not verify"
    bound = result.bound_ns
    # Simulators drop fractions of nanoseconds of every message, which count without latencies.
    is_told_apart = topology.latency_s.min(initial=0.0) > 0
    if bound and is_told_apart and result.time_ns < 0.99 * bound - 5:
        return f"{result.time_ns} ns, below the bound of {bound} ns"
    return ""


if __name__ == "__main__":
    main()
