"""Time of typing and of transformations of programs of a thousand and ten thousand operations.

`python benchmarks/coconet/speed.py` prints medians of several runs in milliseconds. Bars: 50 ms for
typing and one transformation of a thousand operations together, 500 ms for typing ten thousand.
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
    exp,
    fuse,
    matmul,
    movable,
    reorder,
    reshape,
    row_reduce,
    sliced,
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


def layers(count: int, mesh: tuple[str, ...]) -> Program:
    """Tensor-parallel layers with a softmax each, with as many operations in total."""
    build = ProgramBuilder("layers", mesh, B=(1, 2**20))
    batch = {"dp": sliced(0)} if len(mesh) > 1 else {}
    x = build.argument("x", "bfloat16", "B", 64, layout=batch)
    w = build.argument("w", "bfloat16", 64, 256, layout={"tp": sliced(1)})
    v = build.argument("v", "bfloat16", 256, 64, layout={"tp": sliced(0)})
    for _ in range(count // 10):
        h = exp(matmul(x, w))
        h = h / all_reduce(row_reduce(h, 1), axes="tp")
        y = reshape(matmul(h * 0.5, v), "B", 8, 8)
        x = tanh(reshape(all_reduce(y, axes="tp"), "B", 64))
    return build.program(x)


def typed(program: Program) -> Program:
    """Type a program again."""
    return Program(
        program.name,
        program.sizes,
        program.arguments,
        program.operations,
        program.outputs,
        mesh=program.mesh,
    )


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
        "typing": lambda: typed(long),
        "split, with typing": lambda: split(long, "g"),
        "reorder of all, with typing": lambda: reorder(scattered, "g", members),
        "fuse of all, with typing": lambda: fuse(long, names),
    }
    print(f"{len(long.operations)} operations, Python {platform.python_version()}")
    for label, function in rows.items():
        print(f"{label:30}{median_ms(function):8.1f} ms")
    for large in (program(10_000), layers(10_000, ("tp",)), layers(10_000, ("dp", "tp"))):
        label = f"typing of {len(large.operations)}, {max(1, len(large.mesh))} axes"
        print(f"{label:30}{median_ms(lambda: typed(large)):8.1f} ms")  # noqa: B023


if __name__ == "__main__":
    main()
