"""CPU seconds of the search for the best schedule of every example, simulations included.

`python benchmarks/coconet/searches.py` prints them beside the bar of 60 s on 2 cores, with the
programs expanded and pruned, and the winner's gain at the smallest and largest size.
"""

from __future__ import annotations

import platform
import sys
import time
from pathlib import Path

import hub_core
from hub_core.model import Workload

_EXAMPLES = Path(__file__).parents[2] / "examples" / "coconet"
_BAR_S = 60.0
_BLOCK = "K=3072,H=3072"
# File, program, network, sizes.
_CASES = (
    ("adam", "adam", "ring:16", "N=1024..1073741824"),
    ("lamb", "lamb", "ring:16", "N=1024..1073741824"),
    ("muon", "muon", "ring:16", "M=256..8192,N=1024"),
    ("transformer_blocks", "attention", "ring:16", f"B=1..16,S=1024,{_BLOCK}"),
    ("transformer_blocks", "mlp", "ring:16", "B=1..16,S=1024,H=3072,F=12288"),
    ("transformer_blocks", "pipeline_boundary", "switch:16", "B=1..8,S=2048,H=12288"),
    ("moe", "moe", "switch:16", "E=16,C=64..4096,H=1024,F=4096"),
    ("training_step", "training_step", "ring:8", "B=2048,H=1024"),
    ("attention_parallel", "ulysses", "switch:16", "A=16,S=1024..65536,D=64"),
    ("attention_parallel", "ring_attention", "ring:16", "A=16,S=1024..16384,D=64"),
)


def read(file: str, program: str, sizes: str) -> Workload:
    """The workload of an example at its smallest sizes."""
    options = {"program": program, "sizes": sizes, "num_ranks": "4"}
    return hub_core.read_workload(_EXAMPLES / f"{file}.py", options=options)


def main() -> int:
    """Run and print; 1 where a search takes longer than the bar."""
    slowest = 0.0
    registry = hub_core.discover()
    print(f"Python {platform.python_version()}, one process; bar: {_BAR_S:.0f} s CPU a search")
    for file, program, network, sizes in _CASES:
        workload = read(file, program, sizes)
        options = {"topology": network, "sizes": sizes, "points": "4"}
        start = time.process_time()
        _, report = hub_core.transform(workload, "search", options=options, registry=registry)
        took = time.process_time() - start
        slowest = max(slowest, took)
        lines = report.changes
        counts, end = (
            next(line for line in lines if text in line)
            for text in ("programs expanded", "search is")
        )
        times = lines[-1]
        gains = [one.rpartition(": ")[2] for one in lines if one.startswith("winner for")]
        completeness = end.removeprefix("search is ").partition(":")[0]
        print(f"{program:18}{took:7.1f} s  {counts}; {completeness}; {times}")
        print(f"{'':18}smallest: {gains[0]}; largest: {gains[-1]}")
    return int(slowest > _BAR_S)


if __name__ == "__main__":
    sys.exit(main())
