"""Ask every synthesizer random questions; each answer must be correct, or a refusal of one line.

    python benchmarks/synthesis/fuzz.py [--seed 1] [--questions 1000] [--seconds S] [--json]

The same seed gives the same questions. Networks: machines, grids and switches with extreme and
measured bandwidths, random graphs, failed links and nodes, ranks on some of the NPUs, and the
networks of `../shared/corpus/strangers` if they are present. Reported as defects: a traceback, a
warning of `auto` about a member that failed, an algorithm that does not verify, a negative time,
and a time below a bound that holds for messages of any size.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import hub_core
from hub_core import HubError, Topology
from hub_core.model import Collective, CollectiveKind, UnitCounts
from hub_core.network import Links
from hub_core.plugin_api import Synthesizer

_STRANGERS = Path(__file__).resolve().parents[3] / "shared" / "corpus" / "strangers" / "networks"
_TEXTS = (
    *("ring:{n}", "line:{n}", "mesh:2x{n}", "torus:3x{n}", "switch:{n}", "fully-connected:{n}"),
    *("hypercube:3", "dgx1v", "mi300x", "dgx-a100:2", "leaf-spine:{n},2,2", "dragonfly:2,1,1"),
    *("fat-tree:2", "dgx2", "rail:2x{n}"),
)
_NUMBERS = (1, 2, 3, 4, 5, 7)
_BANDWIDTHS = (
    *("1B/s", "1KB/s", "3MB/s", "50GB/s", "1TB/s", "999000TB/s", "1GB/s,7GB/s"),
    *("16600000000.000002B/s", "23.7GB/s", "400Gb/s"),
)
_RATES = (25e9, 50e9, 16600000000.000002, 1e9 / 3, 12.3456789e9, 1.0, 999e15)
_LATENCIES = ("0ns", "1ps", "500ns", "1s", "1000000s")
_ABILITIES = ("multicast", "reduce")
_SIZES = (1, 2, 3, 7, 8, 63, 64, 1000, 1024, 1 << 20, (1 << 20) + 1, 1 << 30, 1 << 40)
_KINDS = [kind for kind in CollectiveKind if kind is not CollectiveKind.CUSTOM]
# `auto` asks all others, and takes seconds.
_SHARE_OF_AUTO = 0.03
_MAX_NPUS_OF_AUTO = 16


@dataclass(frozen=True)
class Question:
    """A synthesizer, the collective and its size in bytes, the network, the NPU of each rank."""

    name: str
    collective: Collective
    size: int
    topology: Topology
    npus: tuple[int, ...]

    def __str__(self) -> str:
        kind = self.collective.kind
        return f"{self.name} {kind} {self.size} B on {self.topology.name}, NPUs {self.npus}"


def main() -> None:
    """Ask until the questions or the seconds are used up, and print the defects."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--seconds", type=float, help="stop earlier, after S seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    warnings.simplefilter("error")
    draw = random.Random(asked.seed)
    end = float("inf") if asked.seconds is None else time.monotonic() + asked.seconds
    names = [one.name for one in hub_core.discover().all(Synthesizer) if one.name != "auto"]
    outcomes: Counter[str] = Counter()
    defects: list[str] = []
    while outcomes.total() < asked.questions and time.monotonic() < end:
        question = draw_question(draw, names)
        if question is None:
            continue
        outcome = ask(question)
        is_defect = outcome not in ("correct", "refused")
        outcomes["defect" if is_defect else outcome] += 1
        if is_defect:
            defects.append(f"{question}: {outcome}")
            if not asked.json:
                print(defects[-1], flush=True)
    counts = {name: outcomes[name] for name in ("correct", "refused", "defect")}
    if asked.json:
        report = {"seed": asked.seed, "questions": outcomes.total(), **counts, "defects": defects}
        print(json.dumps(report, indent=2))
    else:
        print(f"{outcomes.total()} questions: {counts}")


def draw_question(draw: random.Random, names: list[str]) -> Question | None:
    """The next question; None if the drawn text is not a topology."""
    topology = _draw_topology(draw)
    if topology is None:
        return None
    npus = tuple(range(topology.num_npus))
    # Ranks on some of the NPUs, in any order.
    if draw.random() < 0.2:
        npus = tuple(draw.sample(npus, draw.randint(1, len(npus))))
    kind, size = draw.choice(_KINDS), draw.choice(_SIZES)
    name = draw.choice(names)
    if draw.random() < _SHARE_OF_AUTO and topology.num_npus <= _MAX_NPUS_OF_AUTO:
        name = "auto"
    root = draw.randrange(len(npus)) if kind.traits.is_rooted else None
    if kind.traits.is_uneven:
        counts = _draw_counts(draw, kind, len(npus))
        collective = Collective(kind, len(npus), counts.total, counts=counts)
        return Question(name, collective, size, topology, npus)
    collective = Collective(kind, len(npus), kind.traits.parts(len(npus)), root)
    return Question(name, collective, size, topology, npus)


def _draw_counts(draw: random.Random, kind: CollectiveKind, ranks: int) -> UnitCounts:
    """Counts of 0 to 9 units per pair or rank, many of them 0, and at least one unit."""
    is_per_pair = kind.traits.has_counts_per_pair
    shape = (ranks, ranks) if is_per_pair else (ranks,)
    table = np.asarray([draw.choice((0, 0, 1, 2, 9)) for _ in range(int(np.prod(shape)))])
    table[draw.randrange(len(table))] += 1
    return UnitCounts.from_table(table.reshape(shape).tolist(), is_per_pair)


def _draw_topology(draw: random.Random) -> Topology | None:
    source = draw.random()
    files = sorted(_STRANGERS.glob("*.json"))
    if source < 0.02 and files:
        topology: Topology | None = hub_core.read_topology(draw.choice(files))
    elif source < 0.2:
        topology = _draw_graph(draw)
    else:
        topology = _draw_text(draw)
    if topology is not None and topology.num_links > 1 and draw.random() < 0.25:
        topology = _with_failures(draw, topology)
    return topology


def _draw_text(draw: random.Random) -> Topology | None:
    text = draw.choice(_TEXTS).format(n=draw.choice(_NUMBERS))
    options = []
    if draw.random() < 0.4:
        options.append(f"bandwidth={draw.choice(_BANDWIDTHS)}")
    if draw.random() < 0.4:
        options.append(f"latency={draw.choice(_LATENCIES)}")
    if draw.random() < 0.3:
        npus = sorted(draw.sample(range(8), draw.randint(1, 4)))
        options.append(f"npus={','.join(map(str, npus))}")
    # Networks without switches refuse these.
    options += [f"{ability}=true" for ability in _ABILITIES if draw.random() < 0.25]
    try:
        return hub_core.parse_topology(text + ("?" + "&".join(options) if options else ""))
    except HubError:
        return None


def _draw_graph(draw: random.Random) -> Topology:
    """A random graph of 2 to 9 NPUs and up to 2 switches: a tree in both directions, and more."""
    npus, switches = draw.randint(2, 9), draw.randint(0, 2)
    nodes = npus + switches
    pairs = {(node, draw.randrange(node)) for node in range(1, nodes)}
    links = pairs | {(there, here) for here, there in pairs}
    for _ in range(draw.randint(0, 2 * nodes)):
        here, there = draw.sample(range(nodes), 2)
        links |= {(here, there)} if draw.random() < 0.5 else {(here, there), (there, here)}
    ends = np.asarray(sorted(links), np.int64)
    rates = draw.sample(_RATES, 2) if draw.random() < 0.3 else draw.sample(_RATES[:5], 2)
    bandwidth = np.asarray([draw.choice(rates) for _ in ends])
    latency = np.asarray([draw.choice((0.0, 1e-12, 5e-7)) for _ in ends])
    columns = Links(ends[:, 0].copy(), ends[:, 1].copy(), bandwidth, latency)
    name = f"graph of {npus} NPUs, {switches} switches, links {sorted(links)}"
    return columns.topology(name, npus, nodes)


def _with_failures(draw: random.Random, topology: Topology) -> Topology:
    """The network without one to three of its links, or without any link of a node.

    Links fail in one direction, or in both as a NIC does.
    """
    ends = list(zip(topology.source.tolist(), topology.destination.tolist(), strict=True))
    extent = draw.choice(("links", "both directions", "node"))
    if extent == "node":
        node = draw.choice(draw.choice(ends))
        failed = {row for row, pair in enumerate(ends) if node in pair}
    else:
        count = draw.randint(1, min(3, topology.num_links - 1))
        failed = set(draw.sample(range(topology.num_links), count))
    if extent == "both directions":
        reverse = {ends[row][::-1] for row in failed}
        failed |= {row for row, pair in enumerate(ends) if pair in reverse}
    rows = np.asarray([row for row in range(topology.num_links) if row not in failed], np.int64)
    return replace(
        topology,
        name=f"{topology.name} without {[ends[row] for row in sorted(failed)]}",
        source=topology.source[rows],
        destination=topology.destination[rows],
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s[rows],
        latency_s=topology.latency_s[rows],
        plane=topology.plane[rows],
        dimensions=(),
    )


def ask(question: Question) -> str:
    """`correct`, `refused`, or the defect of the answer."""
    collective, topology, size = question.collective, question.topology, question.size
    try:
        result = hub_core.synthesize(
            collective, topology, size, name=question.name, npus=question.npus
        )
    except HubError as error:
        # An exception that a plugin did not expect is reported as its failure.
        return str(error) if " failed: " in str(error) else "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for diagnostic in result.diagnostics:
        if diagnostic.code in ("bound-beaten", "wrong-candidate") or "failed" in diagnostic.message:
            return diagnostic.message
    report = hub_core.verify(result.algorithm)
    if not report.ok and not any(one.code == "too-large" for one in report.diagnostics):
        return f"does not verify: {report.diagnostics[0]}"
    if result.time_ns < 0:
        return f"takes {result.time_ns} ns"
    (bound,) = hub_core.best_bounds(collective, topology, [size], npus=question.npus)
    if bound is None:
        return "correct"
    exact = hub_core.exact_time(
        result.algorithm, topology, size, result.time_ns, near_ps=bound.time_ps
    )
    beaten = hub_core.beaten_bound(bound, exact.time_ps, slack_ps=exact.slack_ps)
    return beaten.message if beaten else "correct"


if __name__ == "__main__":
    main()
