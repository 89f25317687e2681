"""Scale of whole jobs: CPU seconds and peak memory of `collhub simulate`, reading included.

`python benchmarks/workload/scale.py [CORPUS]`: a set of traces of 64 ranks by another generator
(`CORPUS`/llama_dp8_tp8.tar.gz, where it is there) against 2 s, and a generated transformer of 1024
ranks and a million nodes against 30 s and 4 GB. Each is a process of its own, the second of two,
since the first one may compile; medians of three.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus" / "workload"
LLAMA = "llama_dp8_tp8"
RUNS = 3
# 56 layers in 8 stages, 16 microbatches: 963 nodes a rank.
LARGE = {
    "layers": 56,
    "hidden": 8192,
    "heads": 64,
    "sequence": 2048,
    "batch": 256,
    "data": 16,
    "tensor": 8,
    "pipeline": 8,
}
_ROOFLINE = ("-O", "peak_tflops=312", "-O", "memory_bandwidth=2039GB/s")
_CHILD = """
import resource, sys, time
from hub_core.cli.main import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, file=sys.stderr)
raise SystemExit(code)
"""


def run(*arguments: str) -> tuple[float, float]:
    """(CPU seconds, peak MiB) of the program with these arguments, start included."""
    command = [sys.executable, "-c", _CHILD, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, peak = done.stderr.splitlines()[-1].split()
    return float(seconds), float(peak)


def simulated(name: str, prefix: Path, ranks: int, bar: str, *options: str) -> None:
    """Simulate a set of traces and print what it cost."""
    network = f"switch:{ranks}?bandwidth=50GiB/s&latency=500ns"
    command = ("simulate", str(prefix), "--topology", network, *options)
    run(*command)
    costs = [run(*command) for _ in range(RUNS)]
    seconds = statistics.median(seconds for seconds, _ in costs)
    peak = max(peak for _, peak in costs)
    print(f"{name}: {seconds:.2f} CPU s, peak {peak:.0f} MiB (bar: {bar})")


def main() -> None:
    """Run and print."""
    corpus = Path(sys.argv[1]) if sys.argv[1:] else CORPUS
    with tempfile.TemporaryDirectory() as folder:
        archive = corpus / f"{LLAMA}.tar.gz"
        if archive.is_file():
            with tarfile.open(archive) as opened:
                opened.extractall(folder, filter="data")
            (first,) = Path(folder).rglob("w.0.et")
            simulated(LLAMA, first.parent / "w", 64, "2 s", *_ROOFLINE)
        options = [word for pair in LARGE.items() for word in ("-O", f"{pair[0]}={pair[1]}")]
        prefix = Path(folder) / "large"
        start = time.perf_counter()
        seconds, peak = run("generate", "transformer", *options, "-o", str(prefix))
        wall = time.perf_counter() - start
        print(f"generated and written: {seconds:.2f} CPU s, {wall:.1f} s, peak {peak:.0f} MiB")
        simulated("1024 ranks, a million nodes", prefix, 1024, "30 s, 4096 MiB")


if __name__ == "__main__":
    main()
