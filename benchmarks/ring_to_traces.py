"""Measure the way from a ring all-reduce in MSCCL XML to trace files, as one program run and by its parts, in CPU seconds."""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import hub_core
from hub_core.model import Algorithm
from hub_core.version import __version__

# CPU seconds of the published converter for the same file and ranks, and its bytes on disk: specification of the
# paper's converter, collectiveapi 718cafd, 2-core x86, best of 2-3 runs, interpreter start included.
_PUBLISHED = {
    16: (0.110, 2_040_928),
    32: (0.160, 15_849_568),
    64: (0.810, 125_082_368),
    128: (5.790, 997_060_736),
}


def main() -> None:
    """Print the parts of the work in this process, then whole runs of the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    print(
        f"collhub {__version__}, numpy {np.__version__}, Python {platform.python_version()}, median of {arguments.runs} runs"
    )
    heads = ("XML MB", "read s", "write s", "whole s", "peak MB", "out MB", "published s", "its MB")
    print(f"{'ranks':>6}{'nodes':>8}" + "".join(f"{head:>12}" for head in heads))
    for ranks in arguments.ranks:
        with tempfile.TemporaryDirectory() as folder:
            _measure(ranks, Path(folder), arguments.runs)


def _measure(ranks: int, folder: Path, runs: int) -> None:
    source = folder / "ring.xml"
    source.write_text(ring_xml(ranks))
    algorithm = hub_core.read(source)
    read = _median(runs, lambda: hub_core.read(source))
    write = _median(runs, lambda: _write(algorithm, folder / "parts" / "ring"))
    command = [
        sys.executable,
        "-m",
        "hub_core.cli.main",
        "convert",
        str(source),
        "-o",
        str(folder / "whole" / "ring"),
        "--force",
    ]
    whole, peak = zip(*(_run(command) for _ in range(runs)), strict=True)
    out = sum(path.stat().st_size for path in (folder / "whole").iterdir())
    published, published_bytes = _PUBLISHED.get(ranks, (float("nan"), float("nan")))
    row = (
        source.stat().st_size / 1e6,
        read,
        write,
        statistics.median(whole),
        max(peak) / 1e3,
        out / 1e6,
        published,
        published_bytes / 1e6,
    )
    print(f"{ranks:>6}{5 * (ranks - 1) * ranks:>8}" + "".join(f"{value:>12.3f}" for value in row))


def _write(algorithm: Algorithm, prefix: Path) -> None:
    hub_core.write(algorithm, prefix, force=True)


def _median(runs: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(runs):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def _run(command: list[str]) -> tuple[float, int]:
    """CPU seconds of a program run, interpreter start included, and the largest peak memory of any run so far in kB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, after.ru_maxrss


def ring_xml(ranks: int) -> str:
    """A ring all-reduce without fused steps: one thread block a rank that sends and receives in turn."""
    lines = [
        f'<algo name="ring" nchannels="1" nchunksperloop="{ranks}" proto="Simple" ngpus="{ranks}" coll="allreduce" inplace="1">'
    ]
    for rank in range(ranks):
        lines.append(f'  <gpu id="{rank}" i_chunks="{ranks}" o_chunks="0" s_chunks="0">')
        lines.append(
            f'    <tb id="0" send="{(rank + 1) % ranks}" recv="{(rank - 1) % ranks}" chan="0">'
        )
        for half in range(2 * (ranks - 1)):
            for number, kind in (
                (2 * half, "s"),
                (2 * half + 1, "rrc" if half < ranks - 1 else "r"),
            ):
                chunk = (rank - half - number % 2) % ranks
                place = f'srcbuf="i" srcoff="{chunk}" dstbuf="i" dstoff="{chunk}" cnt="1"'
                lines.append(
                    f'      <step s="{number}" type="{kind}" {place} depid="-1" deps="-1" hasdep="0"/>'
                )
        lines += ["    </tb>", "  </gpu>"]
    return "\n".join([*lines, "</algo>", ""])


if __name__ == "__main__":
    main()
