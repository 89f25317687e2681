"""Whole processes of `collhub simulate FOLDER` against ASTRA-sim on the same folders.

    python benchmarks/workload/whole_process.py [--runs 3] [--only NAME ...]

Every set is one training step of a transformer, written by `collhub generate transformer` as a
folder that ASTRA-sim runs as it is (`SETS` lists the options). A line prints ranks, nodes, events
of the hub's simulator, the median CPU seconds (user and system) and the largest peak memory over
the runs, and their bars. The kernels are compiled and stored beforehand, as by `collhub doctor
--warm`, so that all measured runs load machine code.

If ASTRA_SIM_BIN names the real simulator (congestion-aware), it runs each folder in turn with the
hub, and the bars are: not slower at 64 ranks where it takes more than a second, ten times faster at
256 ranks and above, and at most 150 MB more memory. Otherwise the line prints published seconds of
ASTRA-sim (g++ -O2, user CPU) on sets of the same kind and number of ranks by another generator.
These files are not the published ones, so that such a ratio is an orientation and no comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from processes import PROGRAM, ProcessCost, process_cost

_WARM = """
from collhub_astra_sim.plugin import check
from hub_core.plugin_api import CheckRequest, WarmOptions
check(CheckRequest(), WarmOptions(warm=True))
"""
EXTRA_BYTES = 150_000_000
_MEGABYTE = 1e6
_LLAMA = {"sequence_parallel": "true", "gated": "true", "kv_heads": 8}


@dataclass(frozen=True, slots=True)
class TraceSet:
    """A generated set. `published_s`: CPU seconds of ASTRA-sim on a set of this kind."""

    ranks: int
    options: dict[str, int | str]
    published_s: float


SETS = {
    "gpt, 64 ranks": TraceSet(
        64, {"layers": 4, "data": 8, "tensor": 4, "pipeline": 2, "batch": 32}, 0.57
    ),
    "mixture of experts, 64 ranks": TraceSet(
        64,
        {
            "layers": 2, "data": 16, "tensor": 4, "experts": 16, "expert": 8, "batch": 32,
            "sequence_parallel": "true",
        },
        1.37,
    ),
    "llama, 64 ranks, 8 micro-batches": TraceSet(
        64, {"layers": 16, "data": 4, "tensor": 4, "pipeline": 4, "batch": 32, **_LLAMA}, 1.99
    ),
    "fsdp, 128 ranks": TraceSet(
        128, {"layers": 8, "data": 16, "tensor": 8, "fsdp": "true", "batch": 16}, 2.81
    ),
    "llama, 256 ranks": TraceSet(
        256, {"layers": 16, "data": 8, "tensor": 8, "pipeline": 4, "batch": 32, **_LLAMA}, 10.3
    ),
    "llama, 512 ranks": TraceSet(
        512, {"layers": 16, "data": 16, "tensor": 8, "pipeline": 4, "batch": 48, **_LLAMA}, 12.3
    ),
}  # fmt: skip


def main() -> None:
    """Generate, measure and print one line for each set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(SETS), default=list(SETS))
    arguments = parser.parse_args()
    binary = os.environ.get("ASTRA_SIM_BIN")
    _output(sys.executable, "-c", _WARM)
    source = "ASTRA_SIM_BIN" if binary else "published for other files of this kind"
    print(f"median of {arguments.runs}; seconds of ASTRA-sim: {source}")
    print(
        f"{'set':<33}{'nodes':>8}{'events':>9}{'hub CPU s':>10}{'hub MB':>8}"
        f"{'peer CPU s':>11}{'peer MB':>8}{'peer/hub':>9}  bars"
    )
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            print(measured_line(name, Path(folder) / "set", arguments.runs, binary), flush=True)


def measured_line(name: str, folder: Path, runs: int, binary: str | None) -> str:
    """The line of a set, which is generated in `folder`."""
    chosen = SETS[name]
    _generate(chosen, folder)
    command = (*PROGRAM, "simulate", str(folder))
    events = json.loads(_output(*command, "--json"))["details"]["events"]
    nodes = json.loads(_output(*PROGRAM, "inspect", str(folder), "--json"))["nodes"]
    hub: list[ProcessCost] = []
    peer: list[ProcessCost] = []
    # In turn, so that a slow minute of the machine falls on both.
    for _ in range(runs):
        hub.append(process_cost(command))
        if binary:
            peer.append(process_cost(("sh", str(folder / "run.sh")), {"ASTRA_SIM_BIN": binary}))
    hub_s, hub_bytes = median(cost.cpu_s for cost in hub), max(cost.peak_bytes for cost in hub)
    peer_s = median(cost.cpu_s for cost in peer) if peer else chosen.published_s
    peer_bytes = max((cost.peak_bytes for cost in peer), default=0)
    verdicts = _verdicts(chosen, peer_s / hub_s, peer_s, hub_bytes, peer_bytes) if peer else ()
    peer_memory = f"{peer_bytes / _MEGABYTE:.0f}" if peer else "-"
    return (
        f"{name:<33}{nodes:>8}{events:>9}{hub_s:>10.2f}"
        f"{hub_bytes / _MEGABYTE:>8.0f}{peer_s:>11.2f}{peer_memory:>8}{peer_s / hub_s:>9.1f}  "
        + "; ".join(verdicts)
    ).rstrip()


def _verdicts(
    chosen: TraceSet, ratio: float, peer_s: float, hub_bytes: int, peer_bytes: int
) -> tuple[str, ...]:
    """Whether the bars of speed and memory are met."""
    least = 10.0 if chosen.ranks >= 256 else 1.0
    is_fast = ratio >= least or (least == 1.0 and peer_s <= 1.0)
    is_small = hub_bytes <= peer_bytes + EXTRA_BYTES
    return (
        f"{'met' if is_fast else 'MISSED'}: {least:g} times as fast",
        f"{'met' if is_small else 'MISSED'}: at most 150 MB more",
    )


def _generate(chosen: TraceSet, folder: Path) -> None:
    """Write the folder of a set, whose network is a switch."""
    options = {
        **chosen.options,
        "topology": f"switch:{chosen.ranks}?bandwidth=50GiB/s&latency=500ns",
    }
    words = [word for key, value in options.items() for word in ("-O", f"{key}={value}")]
    _output(*PROGRAM, "generate", "transformer", *words, "--to", "astra-sim", "-o", str(folder))


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
