"""CPU of `collhub compare` with the machine's profile, relative to another version of the hub.

`python benchmarks/machines/compare_cpu.py [--topology T] [--runs N] COLLHUB` runs an all-reduce of
21 sizes (default: on dgx-h100:4, 32 ranks) with all synthesizers and without the cache of results:
alternately with the program COLLHUB of the other version, with this version on nominal links, and
with this version and the profile of the machine. It prints the minimum user CPU seconds, the number
of synthesizers with a time, and the ratio to COLLHUB. One algorithm is measured at a time, so that
no process waits for another one. The first run of each may compile kernels; it is not counted.

The version before profiles existed, in an environment with the same dependencies:
`git worktree add --detach OLD db94fb35`, and `pip install --no-deps OLD OLD/plugins/*`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

SIZES = "1KiB..1GiB"
THIS = (sys.executable, "-c", "import sys; from hub_core.cli.main import main; sys.exit(main())")


def measure(program: tuple[str, ...], topology: str, options: tuple[str, ...]) -> tuple[float, int]:
    """Return the user CPU seconds of one comparison, and the number of synthesizers with a time."""
    words = ("compare", "--collective", "all-reduce", "--topology", topology, "--size", SIZES)
    before = os.times().children_user
    run = subprocess.run(
        [*program, *words, "--no-cache", "--jobs", "1", "--json", *options],
        check=True,
        capture_output=True,
    )
    seconds = os.times().children_user - before
    results = json.loads(run.stdout)["results"]
    return seconds, len({one["algorithm"] for one in results if one["time_ns"] is not None})


def main() -> None:
    """Print the CPU of the three variants and their ratios to the other version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collhub", help="the program of the other version")
    parser.add_argument("--topology", default="dgx-h100:4")
    parser.add_argument("--runs", type=int, default=3, help="runs that count, after a first one")
    asked = parser.parse_args()
    variants = {
        "other version": ((asked.collhub,), ()),
        "this version, nominal links": (THIS, ("--machine", "none")),
        "this version, profile": (THIS, ()),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    counts: dict[str, int] = {}
    for _ in range(asked.runs + 1):
        for name, (program, options) in variants.items():
            used, counts[name] = measure(program, asked.topology, options)
            seconds[name].append(used)
    reference = min(seconds["other version"][1:])
    for name, values in seconds.items():
        best = min(values[1:])
        print(f"{name:<30} {counts[name]:3} synthesizers {best:7.1f} s {best / reference:6.2f}")


if __name__ == "__main__":
    main()
