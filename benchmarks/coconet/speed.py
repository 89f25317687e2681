"""Time of typing and of transformations of a program of a thousand operations.

`python benchmarks/coconet/speed.py` prints medians of several runs in milliseconds; the bar for
typing and one transformation together is 50 ms.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable

from collhub_coconet import (
    LOCAL,
    Program,
    ProgramBuilder,
    all_reduce,
    fuse,
    movable,
    reorder,
    split,
    tanh,
)

_OPERATIONS = 1000
_RUNS = 9


def program(count: int) -> Program:
    """An all-reduce, and a long chain of pointwise operations that reads it again and again."""
    build = ProgramBuilder("long", N=(1, 2**20), M=(1, 2**20))
    x = build.argument("x", "float32", "N", "M", layout=LOCAL)
    r = build.argument("r", "float32", "N", "M")
    g = all_reduce(x).named("g")
    value = g
    for place in range(count // 3):
        value = (tanh(value) * g + r).named(f"v{place}")
    return build.program(value * 2)


def median_ms(function: Callable[[], object]) -> float:
    """Milliseconds of CPU of one call: the median of several."""
    times = []
    for _ in range(_RUNS):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return 1000 * statistics.median(times)


def main() -> None:
    """Run and print."""
    long = program(_OPERATIONS)
    scattered = split(long, "g").program
    members = movable(scattered, "g")
    names = [one.name for one in long.operations if one.name != "g"]
    rows = {
        "typing": lambda: Program(
            long.name, long.sizes, long.arguments, long.operations, long.outputs
        ),
        "split, with typing": lambda: split(long, "g"),
        "reorder of all, with typing": lambda: reorder(scattered, "g", members),
        "fuse of all, with typing": lambda: fuse(long, names),
    }
    print(f"{len(long.operations)} operations, Python {platform.python_version()}")
    for label, function in rows.items():
        print(f"{label:30}{median_ms(function):8.1f} ms")


if __name__ == "__main__":
    main()
