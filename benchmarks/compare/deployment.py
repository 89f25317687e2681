"""Whether every folder that `collhub tune` writes serves every size, as its check reads it.

    python benchmarks/compare/deployment.py [--topology T ...] [--with NAME ...] [--size A..B]

Tunes each machine for every MSCCL runtime and all other formats, and checks the folder: one row a
machine and runtime with the files, the stretches of sizes, those with a gap, an overlap or another
server than stated, and the seconds of both commands. Exit 1 where there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MACHINES = ("dgx1v", "dgx-a100:2", "mesh:4x4", "fat-tree:4", "ring:6")
CLASSICS = ("ring", "rings", "direct", "hierarchical", "recursive-doubling", "halving-doubling")
RUNTIMES = ("executor", "rccl", "msccl")


def main() -> int:
    """Tune, check, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", nargs="+", default=MACHINES)
    parser.add_argument("--with", dest="names", nargs="+", default=CLASSICS)
    parser.add_argument("--size", default="1KiB..256MiB")
    asked = parser.parse_args()
    print(
        f"{'machine':16}{'runtime':12}{'files':>6}{'stretches':>11}{'wrong':>7}{'tune':>8}{'check':>8}"
    )
    total = 0
    for topology in asked.topology:
        for runtime in RUNTIMES:
            total += _deployed(topology, runtime, asked)
    return 1 if total else 0


def _deployed(topology: str, runtime: str, asked: argparse.Namespace) -> int:
    """Print the row of a machine and a runtime; return how many stretches are wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "tuned"
        names = [word for name in asked.names for word in ("--with", name)]
        options = ["--topology", topology, "--size", asked.size, *names, "-o", str(folder)]
        _, tune_s = _run("tune", *options, "-O", f"runtime={runtime}")
        report, check_s = _run("tune", "--check", str(folder), "--json")
        files = sum(path.is_file() for path in folder.rglob("*"))
    found = [call for one in report["formats"] for call in one["calls"]]
    wrong = [call for call in found if call["served_by"] != [call["stated"]] and call["stated"]]
    total = len(wrong) + (not report["ok"])
    times = f"{tune_s:7.1f}s{check_s:7.1f}s"
    print(f"{topology:16}{runtime:12}{files:6}{len(found):11}{len(wrong):7}{times}")
    return total


def _run(*arguments: str) -> tuple[dict, float]:
    command = [sys.executable, "-P", "-m", "hub_core.cli.main", *arguments]
    start = time.perf_counter()
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    taken_s = time.perf_counter() - start
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    return (json.loads(done.stdout) if "--json" in arguments else {}), taken_s


if __name__ == "__main__":
    sys.exit(main())
