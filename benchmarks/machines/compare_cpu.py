"""CPU of `collhub compare` or `tune` with the machine's profile, relative to another version.

`python benchmarks/machines/compare_cpu.py [--topology T] [--size S] [--runs N] COLLHUB` runs an
all-reduce of 21 sizes (default: on dgx-h100:4, 32 ranks) with all synthesizers and without the
cache of results: with the program COLLHUB of the other version, with this version on nominal links,
and with this version and the profile of the machine. The three run at the same time, one algorithm
each, so that other programs slow them down equally. It prints the minimum CPU seconds (user and
system), the number of synthesizers with a time, and the ratio to COLLHUB. The first run of each may
compile kernels; it is not counted, unless it is the only one.

With `--command tune` (default: on dgx-a100:2, 1MiB..2MiB), the commands are `tune` with the files
of all formats; this version runs with the runtimes of these files and without any (`--for ideal`).

The version before profiles existed, in an environment with the same dependencies:
`git worktree add --detach OLD db94fb35`, and `pip install --no-deps OLD OLD/plugins/*`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

THIS = (sys.executable, "-c", "import sys; from hub_core.cli.main import main; sys.exit(main())")


def measure(commands: Mapping[str, Sequence[str]], reports: Mapping[str, Path]) -> dict[str, float]:
    """Run the commands at the same time; return their CPU seconds. Outputs go to `reports`."""
    started = {}
    for name, command in commands.items():
        with reports[name].open("wb") as output:
            started[name] = subprocess.Popen(command, stdout=output)
    seconds = {}
    for name, process in started.items():
        # The usage of only this child, which `Popen.wait` does not return.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{name}: exit code {process.returncode}")
        seconds[name] = usage.ru_utime + usage.ru_stime
    return seconds


def count_algorithms(report: Path) -> int | None:
    """Return the number of algorithms with a time in a report of `collhub compare --json`.

    None for a report of `tune`, which has no times of all algorithms.
    """
    results = json.loads(report.read_text()).get("results")
    if results is None:
        return None
    return len({one["algorithm"] for one in results if one["time_ns"] is not None})


def main() -> None:
    """Print the CPU of the three variants and their ratios to the other version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collhub", help="the program of the other version")
    parser.add_argument("--command", choices=("compare", "tune"), default="compare")
    parser.add_argument("--topology")
    parser.add_argument("--size")
    parser.add_argument("--runs", type=int, default=2)
    asked = parser.parse_args()
    topology, size = {
        "compare": ("dgx-h100:4", "1KiB..1GiB"),
        "tune": ("dgx-a100:2", "1MiB..2MiB"),
    }[asked.command]
    words = [asked.command, "--collective", "all-reduce", "--topology", asked.topology or topology]
    words += ["--size", asked.size or size, "--no-cache", "--jobs", "1", "--json"]
    commands = {"other version": [asked.collhub, *words]}
    if asked.command == "compare":
        commands["this version, nominal links"] = [*THIS, *words, "--machine", "none"]
        commands["this version, profile"] = [*THIS, *words]
    else:
        commands["this version, no runtimes"] = [*THIS, *words, "--for", "ideal"]
        commands["this version, runtimes"] = [*THIS, *words]
    with tempfile.TemporaryDirectory() as folder:
        if asked.command == "tune":
            for place, command in enumerate(commands.values()):
                command += ["-o", str(Path(folder, f"{place}")), "--force"]
        reports = {name: Path(folder, f"{place}.json") for place, name in enumerate(commands)}
        runs = [measure(commands, reports) for _ in range(asked.runs)]
        counts = {name: count_algorithms(report) for name, report in reports.items()}
    seconds = {name: min(run[name] for run in runs[1:] or runs) for name in commands}
    reference = seconds["other version"]
    for name, best in seconds.items():
        count = counts[name]
        synthesizers = "" if count is None else f"{count:3} synthesizers "
        print(f"{name:<30} {synthesizers}{best:7.1f} s {best / reference:6.2f}")


if __name__ == "__main__":
    main()
