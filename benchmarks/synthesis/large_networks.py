"""Time, bound, CPU and memory of `collhub synthesize auto` on networks of 1 024 and 10 240 NPUs.

    python benchmarks/synthesis/large_networks.py [--ranks 1024|10240] [--collective KIND]
                                                  [--verify off] [--topology T]

Runs the command once per case, as a process of its own, with verification as by default (warn with
`--verify off`). Prints the time relative to the largest bound, the CPU seconds of the process (user
and system, without start-up of kernels if they are compiled), its peak memory and the winner. These
are the tables of `docs/synthesis.md`. Exit 1 if an algorithm is not verified although it should be,
or a time is below a bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from processes import PROGRAM, process_cost

# Ranks, topology, collective, size.
CASES = (
    *((1024, name, "all-reduce", "64MiB") for name in ("fat-tree:16", "rail:128x8", "torus:32x32")),
    *(
        (1024, name, "all-reduce", size)
        for name in ("fat-tree:16", "leaf-spine:32,32,8")
        for size in ("1KiB", "64KiB")
    ),
    *(
        (1024, name, "all-to-all", "64MiB")
        for name in (
            *("fat-tree:16", "leaf-spine:32,32,8", "rail:128x8", "torus:32x32", "torus:8x8x16"),
            *("mesh:32x32", "ring:1024", "mesh:1024"),
        )
    ),
    (1024, "torus:8x8x16", "all-reduce", "64MiB"),
    *(
        (1024, "torus:32x32", kind, "64MiB")
        for kind in ("all-gather", "reduce-scatter", "broadcast", "reduce")
    ),
    *(
        (1024, name, kind, "64MiB")
        for name in ("mesh:32x32", "rail:128x8")
        for kind in ("broadcast", "reduce")
    ),
    *(
        (10240, name, kind, "1GiB")
        for name in ("rail:1280x8", "leaf-spine:320,32,32")
        for kind in ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce")
    ),
    (10240, "torus:32x20x16", "all-reduce", "1GiB"),
    *(
        (10240, "torus:32x20x16", kind, "64MiB")
        for kind in ("all-gather", "reduce-scatter", "broadcast", "reduce")
    ),
)


def main() -> int:
    """Run the chosen cases; return 1 if one of them is wrong, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, choices=(1024, 10240), default=1024)
    parser.add_argument("--topology", help="only this network")
    parser.add_argument("--collective", help="only this collective")
    parser.add_argument("--verify", choices=("refuse", "off"), default="refuse")
    asked = parser.parse_args()
    print(
        "topology              collective      size    time/bound  CPU s    GB  winner", flush=True
    )
    is_wrong = False
    for ranks, topology, kind, size in CASES:
        if ranks != asked.ranks or asked.topology not in (None, topology):
            continue
        if asked.collective not in (None, kind):
            continue
        words = ["synthesize", "auto", "--collective", kind, "--topology", topology]
        words += ["--size", size, "--verify", asked.verify, "--json"]
        with tempfile.TemporaryFile() as output:
            cost = process_cost([*PROGRAM, *words], output=output)
            output.seek(0)
            report = json.load(output)
        ratio = report["ratio_to_bound"]
        is_wrong |= ratio < 1 or report["is_verified"] != (asked.verify == "refuse")
        print(
            f"{topology:20}  {kind:14}  {size:6}  {ratio:10.3f}  {cost.cpu_s:5.1f}  "
            f"{cost.peak_bytes / 1e9:4.1f}  {report['statistics'].get('winner', '')}",
            flush=True,
        )
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
