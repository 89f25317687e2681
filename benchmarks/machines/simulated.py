"""Errors of simulated algorithms on public measurements of machines.

`python benchmarks/machines/simulated.py [measured.json]` (default: ../shared/corpus/measured)
simulates NCCL's algorithms, with its own choice of algorithm, protocol and channels, and the
kernels of MSCCL++ by the simulator of machines with the shipped profiles, and prints median, 90th
percentile and worst relative error. It also compares descriptions of one cluster, and the winners
of three algorithms with and without copies.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from collhub_compose.replication import replicate
from collhub_machine_profiles import shipped_profile
from collhub_machine_profiles.gpus import Gpu, has_switched_links, known_gpu
from collhub_machine_profiles.nccl_choice import choose

import hub_core
from hub_core.model import Algorithm, Collective, CollectiveKind

CORPUS = Path(__file__).resolve().parents[2].parent / "shared/corpus/measured/measured.json"
LINKS = {"A100": 300, "H100": 450, "H200": 450, "B200": 900, "GB200": 900}
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Comparison:
    """A measured point and its simulated time in us."""

    group: str
    measured_us: float
    simulated_us: float
    text: str

    @property
    def error(self) -> float:
        """Relative error, negative if the simulation is too fast."""
        return self.simulated_us / self.measured_us - 1


@cache
def synthesized(kind: str, name: str, topology: str, copies: int = 1) -> Algorithm:
    """Synthesize an algorithm for all NPUs of a topology; `copies` of it in parallel."""
    ranks = hub_core.read_topology(topology).num_npus
    units = CollectiveKind(kind).traits.parts(ranks)
    collective = Collective(CollectiveKind(kind), ranks, units)
    algorithm = hub_core.synthesize(collective, topology, MIB, name=name).algorithm
    return replicate(algorithm, copies) if copies > 1 else algorithm


def simulated_us(algorithm: Algorithm, topology: str, size: int, **options: str) -> float:
    """Simulate an algorithm on a machine; its time in us."""
    result = hub_core.simulate(algorithm, topology, size, backend="machine", options=options)
    assert result.time_ns is not None
    return result.time_ns / 1e3


def compare_nccl(points: Sequence[Mapping[str, object]], source: str) -> list[Comparison]:
    """Simulate NCCL's algorithms for all points of a source on one node with NVSwitch."""
    return [
        comparison
        for point in points
        if point["source"] == source and (comparison := _compare_nccl_point(point)) is not None
    ]


def _compare_nccl_point(point: Mapping[str, object]) -> Comparison | None:
    label, library = str(point["machine"]), str(point["library"])
    gpu, ranks = known_gpu(label), int(str(point["ranks"]))
    is_plain = library.startswith("NCCL") and len(library.split()) <= 2
    is_modelled = gpu is not None and gpu.name in LINKS and has_switched_links(label)
    if gpu is None or not (is_plain and is_modelled and point["nodes"] == 1):
        return None
    kind, size = str(point["collective"]), int(str(point["size_bytes"]))
    topology, algorithm, options = _nccl_algorithm(gpu, library, kind, ranks, size)
    time_us = simulated_us(algorithm, topology, size, machine=gpu.name.lower(), **options)
    text = f"{gpu.name} {kind} {ranks} ranks {size} B {options} {library}"
    return Comparison(f"{gpu.name} {kind}", float(str(point["time_us"])), time_us, text)


def _nccl_algorithm(
    gpu: Gpu, library: str, kind: str, ranks: int, size: int
) -> tuple[str, Algorithm, dict[str, str]]:
    """Return (topology, NCCL's algorithm with a copy per channel, options of the simulator)."""
    version = library.removeprefix("NCCL").strip()
    version = version or shipped_profile(gpu.name.lower()).library.version
    choice = choose(gpu, version, kind, ranks, size)
    network = f"switch:{ranks}?bandwidth={LINKS[gpu.name]}GB/s"
    name, kernel = "ring", "fifo"
    if choice.algorithm == "nvls":
        name, kernel, network = "direct", "nvls", f"{network}&multicast=true&reduce=true"
    elif choice.algorithm == "p2p":
        name, kernel = "direct", "exchange"
    algorithm = synthesized(kind, name, network, choice.channels)
    return network, algorithm, {"kernel": kernel, "protocol": choice.protocol}


def compare_mscclpp(points: Sequence[Mapping[str, object]]) -> list[Comparison]:
    """Simulate the kernels of MSCCL++ for the points of its CI.

    Packets up to 1 MiB, else puts in chunks of at most 1 MiB; all pairs on one node, the
    hierarchical algorithm on two.
    """
    comparisons = []
    for point in points:
        if point["source"] != "mscclpp-ci":
            continue
        gpu = known_gpu(str(point["machine"]))
        assert gpu is not None
        kind, nodes = str(point["collective"]), int(str(point["nodes"]))
        size = int(str(point["size_bytes"]))
        topology = f"switch:8?bandwidth={LINKS[gpu.name]}GB/s"
        if nodes > 1:
            # One fabric joins all NICs, of 200 and 400 Gbit/s.
            network = {"A100": 25, "H100": 50}[gpu.name]
            topology = f"dgx-h100:{nodes}?bandwidth={LINKS[gpu.name]}GB/s,{network}GB/s"
        name = "hierarchical" if nodes > 1 and kind != "all-to-all" else "direct"
        protocol = "ll" if size <= MIB else "simple"
        options = {
            "machine": gpu.name.lower(),
            "kernel": "direct",
            "protocol": protocol,
            "instances": "1" if size <= MIB else "8",
            "chunk": "1MiB",
        }
        time_us = simulated_us(synthesized(kind, name, topology), topology, size, **options)
        text = f"{gpu.name} {kind} {nodes} nodes {size} B {point['library']}"
        group = f"MSCCL++ {nodes} node{'s' if nodes > 1 else ''}"
        comparisons.append(Comparison(group, float(str(point["time_us"])), time_us, text))
    return comparisons


def show(title: str, comparisons: Sequence[Comparison], bar: str = "") -> None:
    """Print one line of statistics in percent."""
    if comparisons:
        errors = 100 * np.abs([one.error for one in comparisons])
        numbers = f"{np.median(errors):5.1f} {np.percentile(errors, 90):6.1f} {errors.max():6.1f}"
        print(f"{title:<52} {len(errors):5} {numbers}  {bar}")


def show_groups(title: str, comparisons: Sequence[Comparison], bar: str) -> None:
    """Print the statistics of all groups, of all points, and the points beyond 25 %."""
    for group in sorted({one.group for one in comparisons}):
        show(f"{title}: {group}", [one for one in comparisons if one.group == group])
    show(f"{title}: all", comparisons, bar)
    for one in comparisons:
        if abs(one.error) > 0.25:
            figures = f"measured {one.measured_us:.1f} us, simulated {one.simulated_us:.1f} us"
            print(f"  {100 * one.error:+6.1f} %  {one.text}: {figures}")


def compare_descriptions() -> float:
    """Print the times of one cluster in three descriptions; return the largest difference."""
    spreads = []
    with tempfile.TemporaryDirectory() as folder:
        matrix = Path(folder, "nvidia-smi.txt")
        matrix.write_text(_format_matrix())
        facts = "profile=h100&nodes=4&net_bandwidth=400Gbit/s&fabric=rail"
        for name in ("ring", "hierarchical"):
            for size in (MIB, 256 * MIB):
                times_us = [
                    simulated_us(
                        synthesized("all-reduce", name, text),
                        text, size, machine="h100", instances="0",
                    )
                    for text in ("dgx-h100:4", "rail:4x8", f"{matrix}?{facts}")
                ]  # fmt: skip
                spread = max(times_us) / min(times_us) - 1
                print(
                    f"{name} {size >> 20} MiB: dgx-h100:4, rail:4x8, nvidia-smi {times_us}"
                    f" {100 * spread:.1f} %"
                )
                spreads.append(spread)
    return max(spreads)


def _format_matrix() -> str:
    """Return `nvidia-smi topo -m` of a DGX H100: 18 NVLinks of every GPU, a NIC next to each."""
    devices = [(kind, number) for kind in ("GPU", "NIC") for number in range(8)]
    lines = ["\t".join(["", *(f"{kind}{number}" for kind, number in devices)])]
    for kind, number in devices:
        cells = []
        for other, column in devices:
            if kind == other == "GPU":
                cells.append("X" if number == column else "NV18")
            elif number == column:
                cells.append("X" if kind == other else "PIX")
            else:
                cells.append("NODE" if number // 4 == column // 4 else "SYS")
        lines.append("\t".join([f"{kind}{number}", *cells]))
    return "\n".join(lines) + "\n"


def compare_replication() -> float:
    """Print winners with the fastest number of copies and with 32 explicit copies.

    Return the largest gain of explicit copies, as a fraction.
    """
    leads = []
    for topology in ("dgx-h100", "dgx-h100:2"):
        names = ("ring", "hierarchical", "rings") if ":" in topology else ("ring", "rings")
        for size in (MIB, 64 * MIB, 1024 * MIB):
            best = {
                name: simulated_us(
                    synthesized("all-reduce", name, topology), topology, size,
                    machine="h100", instances="0",
                )
                for name in names
            }  # fmt: skip
            copied = {
                name: simulated_us(
                    synthesized("all-reduce", name, topology, 32), topology, size, machine="h100"
                )
                for name in names
            }
            lead = min(best.values()) / min(copied.values()) - 1
            leads.append(lead)
            print(
                f"{topology} {size >> 20} MiB: best {min(best, key=lambda one: best[one])}"
                f" {min(best.values()):.1f} us, copied {min(copied, key=lambda one: copied[one])}"
                f" {min(copied.values()):.1f} us: copies are {100 * lead:+.1f} % faster"
            )
    return max(leads)


def main() -> None:
    """Print all errors and the CPU time."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else CORPUS
    points = json.loads(path.read_text())["points"]
    start = time.process_time()
    print(f"{'':<52} {'n':>5} {'med':>5} {'p90':>6} {'worst':>6}  %")
    show_groups("NCCL", compare_nccl(points, "aiconfigurator"), "bar: 10 and 25")
    others = [*compare_nccl(points, "ml-engineering"), *compare_nccl(points, "vidur")]
    show_groups("NCCL, other hosts and benchmarks", others, "")
    show_groups("MSCCL++", compare_mscclpp(points), "bar: each point 25")
    compare_descriptions()
    compare_replication()
    print(f"{time.process_time() - start:.1f} s of CPU")


if __name__ == "__main__":
    main()
