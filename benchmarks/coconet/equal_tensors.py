"""CPU seconds of `collhub transform --search` for many equal tensors, buckets and layers.

`python benchmarks/coconet/equal_tensors.py [CASE ...] [--counts 2,4,100,1000] [--runs 1]` writes
each program, runs the command as a process, and prints its CPU seconds (user and system, the
minimum of all runs) with the quotient to the bar, and the gain of the winner. Except for buckets,
a winner has the passes of the winner of the next smaller count, or it takes at most as much time
per tensor: it is never slower than the winner of few tensors, replicated. Cases: momentum, adam,
lamb, clip (bar 10 s each), lamb_clipped (30 s), buckets (momentum over small tensors, whose winner
must have buckets), layers (a training step of 24 layers, bar 60 s) and file (`--file` with a
captured graph or another program, bar 60 s; `--option` adds options of the command).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from collhub_coconet import (
    LOCAL,
    Program,
    ProgramBuilder,
    Value,
    all_reduce,
    norm,
    program_to_json,
    select,
    sqrt,
    total,
    update,
)

_EXAMPLES = Path(__file__).parents[2] / "examples" / "coconet"
_CASES = ("momentum", "adam", "lamb", "clip", "lamb_clipped", "buckets", "layers", "file")
_BAR_S = 10.0
_CLIPPED_BAR_S = 30.0
_LARGE_BAR_S = 60.0


def build_optimizer(case: str, count: int) -> Program:
    """Build a step of the optimizer of a case for `count` equal tensors of N elements."""
    build = ProgramBuilder("optimizer", N=(1, 2**30))
    gradients = [
        all_reduce(build.argument(f"g{index}", "float32", "N", layout=LOCAL)).named(f"h{index}")
        for index in range(count)
    ]
    if case in ("clip", "lamb_clipped"):
        squares = [total(gradient * gradient) for gradient in gradients]
        length = squares[0]
        for square in squares[1:]:
            length = length + square
        length = sqrt(length).named("length")
        factor = select(length > 1.0, 1.0 / length, 1.0).named("factor")
        gradients = [gradient * factor for gradient in gradients]
    outputs: list[Value] = []
    for index, gradient in enumerate(gradients):
        weight = build.state(f"w{index}", "float32", "N", whole_after=True)
        step = gradient
        if case != "clip":
            moment = build.state(f"m{index}", "float32", "N")
            step = update(moment, 0.9 * moment + gradient).named(f"m{index}_1")
            outputs.append(step)
        if case in ("adam", "lamb", "lamb_clipped"):
            variance = build.state(f"v{index}", "float32", "N")
            new = update(variance, 0.99 * variance + 0.01 * (gradient * gradient))
            outputs.append(new.named(f"v{index}_1"))
            step = step / (sqrt(new) + 1e-6)
        if case in ("lamb", "lamb_clipped"):
            step = (step + 0.01 * weight).named(f"u{index}")
            step = norm(weight) / norm(step) * step
        outputs.append(update(weight, weight - 0.01 * step).named(f"w{index}_1"))
    return build.program(*outputs)


def run_search(
    path: Path, options: Sequence[str], folder: Path, num_runs: int
) -> tuple[float, str]:
    """Run the search as a process; return the minimum CPU seconds of all runs, and the report."""
    best_s, report = float("inf"), folder / "report.txt"
    command = [sys.executable, "-c", "from hub_core.cli.main import main; main()", "transform"]
    command += [str(path), *options, "--search", "--jobs", "1"]
    command += ["-o", str(folder / "winner.program.json")]
    for _ in range(num_runs):
        with report.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
            _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(report.read_text())
        best_s = min(best_s, usage.ru_utime + usage.ru_stime)
    return best_s, report.read_text()


def list_passes(report: str) -> list[str]:
    """Return the names of the passes of the winner, without repetitions."""
    lines = report.splitlines()
    winner = next(index for index, line in enumerate(lines) if "winner for" in line)
    return list(dict.fromkeys(re.findall(r"--pass (\S+)", lines[winner + 1])))


def find_slower_winner(
    winners: Sequence[Sequence[str]], gains: Sequence[str], counts: Sequence[int]
) -> int | None:
    """Return a count whose winner is slower than the next smaller winner, replicated; else None.

    Winners with the same passes, except for buckets, are not compared: the decision is the same.
    `winners`: passes by count; `gains`: texts that begin with a time, such as `9.71 ms`.
    """
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
    times = []
    for gain, count in zip(gains, counts, strict=True):
        number, unit = gain.partition(",")[0].split()
        times.append(float(number) * units[unit] / count)
    kinds = [tuple(one for one in passes if one != "coalesce") for passes in winners]
    rows = pairwise(zip(counts, kinds, times, strict=True))
    return next(
        (later[0] for first, later in rows if first[1] != later[1] and later[2] > first[2]), None
    )


def main() -> int:
    """Run and print; 1 if a search takes longer than its bar or winners differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(_CASES)}")
    parser.add_argument("--counts", default="2,4,100,1000")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--topology", default="ring:8")
    arguments = parser.parse_args()
    worst = 0.0
    is_equal = True
    counts = [int(count) for count in arguments.counts.split(",")]
    for case in arguments.cases or _CASES[:-1]:
        rows: list[tuple[str, Path | Program, list[str], float]] = []
        if case == "layers":
            path = _EXAMPLES / "training_step.py"
            rows.append(("24 layers", path, ["--size", "B=2048,H=1024"], _LARGE_BAR_S))
        elif case == "file":
            options = [text for option in arguments.option for text in ("-O", option)]
            rows.append((arguments.file.name, arguments.file, options, _LARGE_BAR_S))
        else:
            size = ["--size", f"N={2**10 if case == 'buckets' else 2**20}"]
            optimizer = "momentum" if case == "buckets" else case
            for count in counts:
                program = build_optimizer(optimizer, count)
                bar_s = _CLIPPED_BAR_S if case == "lamb_clipped" else _BAR_S
                rows.append((f"K = {count}", program, size, bar_s))
        winners, gains = [], []
        for label, source, options, bar_s in rows:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                path = source if isinstance(source, Path) else folder / "tensors.program.json"
                if isinstance(source, Program):
                    path.write_text(program_to_json(source))
                options = [*options, "--topology", arguments.topology]
                seconds, report = run_search(path, options, folder, arguments.runs)
            (gain,) = re.findall(r"winner for [^\n]*", report)[:1]
            gains.append(gain.partition(": ")[2])
            ratio = seconds / bar_s
            worst = max(worst, ratio)
            winners.append(list_passes(report))
            text = f"{case:13}{label:10}{seconds:7.1f} s CPU, {ratio:.2f} of the bar"
            print(f"{text}; {gains[-1]}; {', '.join(winners[-1])}", flush=True)
        if case == "buckets" and not all("coalesce" in passes for passes in winners):
            print("buckets: a winner has none")
            is_equal = False
        slower = find_slower_winner(winners, gains, counts) if len(rows) == len(counts) else None
        if slower is not None:
            print(f"{case}: K = {slower} is slower than the winner of fewer tensors, replicated")
            is_equal = False
    return int(worst > 1 or not is_equal)


if __name__ == "__main__":
    sys.exit(main())
