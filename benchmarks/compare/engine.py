"""Whether a sweep on a Dask cluster gives what processes give, with a worker killed as well.

    python benchmarks/compare/engine.py [--topology T] [--collective C] [--size A..B]
                                        [--workers N] [--with NAME ...]

Runs `collhub compare` with `processes`, on a Dask cluster of as many local workers, and on one of
which a worker is killed in the middle. Prints wall and CPU seconds (all processes) of each with
their ratio to the first, and whether the reports are equal. Exit 1 where one is not.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil

CLASSICS = (
    *("ring", "rings", "bidirectional-ring", "recursive-doubling", "halving-doubling", "bruck"),
    *("direct", "hierarchical", "double-binary-tree", "torus-rings", "swing"),
)
ENGINES = ("processes", "dask", "dask, one worker killed")


@dataclass(frozen=True)
class Run:
    """A report, and what it took."""

    report: bytes
    wall_s: float
    cpu_s: float


def main() -> int:
    """Compare, and print a row an engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", default="torus:8x8")
    parser.add_argument("--collective", default="all-reduce")
    parser.add_argument("--size", default="1KiB..1GiB")
    parser.add_argument("--workers", default="4")
    parser.add_argument("--with", dest="names", nargs="+", default=CLASSICS)
    asked = parser.parse_args()
    print(f"{'engine':26}{'wall':>9}{'ratio':>7}{'CPU':>9}{'ratio':>7}  report")
    runs: list[Run] = []
    for engine in ENGINES:
        runs.append(_run(engine, asked))
        print(_row(engine, runs[-1], runs[0]), flush=True)
    return 0 if all(run.report == runs[0].report for run in runs) else 1


def _row(engine: str, run: Run, first: Run) -> str:
    ratios = (run.wall_s / first.wall_s, run.cpu_s / first.cpu_s)
    same = "equal" if run.report == first.report else "DIFFERS"
    times = f"{run.wall_s:8.1f}s{ratios[0]:7.2f}{run.cpu_s:8.1f}s{ratios[1]:7.2f}"
    return f"{engine:26}{times}  {same}"


def _run(engine: str, asked: argparse.Namespace) -> Run:
    program = [sys.executable, "-P", "-m", "hub_core.cli.main", "compare", "--json", "--no-cache"]
    program += ["--collective", asked.collective, "--topology", asked.topology]
    program += ["--size", asked.size, "--jobs", asked.workers, "--engine", engine.split(",")[0]]
    program += [word for name in asked.names for word in ("--with", name)]
    if engine != "processes":
        program += ["-O", f"workers={asked.workers}"]
    before, start = _children_cpu_s(), time.perf_counter()
    running = subprocess.Popen(program, stdout=subprocess.PIPE, env=os.environ)
    killed: list[int] = []
    if "killed" in engine:
        arguments = (running.pid, killed)
        threading.Thread(target=_kill_a_worker, args=arguments, daemon=True).start()
    report = running.communicate()[0]
    if "killed" in engine and not killed:
        raise SystemExit("the sweep ended before a worker was killed: give a longer one")
    wall_s = time.perf_counter() - start
    if running.returncode:
        raise SystemExit(f"{engine}: exit {running.returncode}")
    return Run(report, wall_s, _children_cpu_s() - before)


def _kill_a_worker(pid: int, killed: list[int]) -> None:
    """Kill one that computes: it has taken some CPU seconds since it was started."""
    with suppress(psutil.NoSuchProcess):
        while not killed:
            for child in psutil.Process(pid).children(recursive=True):
                with suppress(psutil.ZombieProcess):
                    is_worker = "spawn_main" in " ".join(child.cmdline())
                    if is_worker and child.cpu_times().user > 3 and not killed:
                        os.kill(child.pid, signal.SIGKILL)
                        killed.append(child.pid)
            time.sleep(0.1)


def _children_cpu_s() -> float:
    """CPU seconds of all ended children, and of those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
