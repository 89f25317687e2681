"""Measure the way from a ring all-reduce in MSCCL XML to trace files, and what verifying costs.

    python benchmarks/ring_to_traces.py [--ranks 128] [--runs 5]

The first table has whole runs of `collhub convert`, interpreter start included, with verification
as by default and with `--verify off`; the second the parts of the work, in this process. CPU
seconds, medians.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from processes import PROGRAM, median_costs

import hub_core

# CPU seconds of the published converter for the same file and ranks, and its bytes on disk:
# collectiveapi 718cafd, 2-core x86, best of 2-3 runs, interpreter start included.
_PUBLISHED = {
    16: (0.110, 2_040_928),
    32: (0.160, 15_849_568),
    64: (0.810, 125_082_368),
    128: (5.790, 997_060_736),
}
_BAR_RANKS, _BAR_CPU_S = 128, 0.9
_PARTS = ("XML MB", "read s", "verify s", "write s", "out MB", "published MB")
_WHOLES = ("verified s", "--verify off", "verifying", "peak MB", "published s")


def main() -> None:
    """Print whole runs of the program, then the parts of the work in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=sorted(_PUBLISHED))
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    head = f"collhub {hub_core.__version__}, {versions}, load {os.getloadavg()[0]:.1f}"
    print(f"{head}, median of {arguments.runs} runs")
    with tempfile.TemporaryDirectory() as folder:
        # First, while this process is small: a child begins with the peak memory of its parent.
        _print_head(_WHOLES)
        for ranks in arguments.ranks:
            _print_wholes(ranks, _source(Path(folder), ranks), arguments.runs)
        print()
        _print_head(_PARTS)
        for ranks in arguments.ranks:
            _print_row(ranks, _parts(ranks, _source(Path(folder), ranks), arguments.runs))


def _print_head(titles: tuple[str, ...]) -> None:
    print(f"{'ranks':>6}{'nodes':>8}" + "".join(f"{title:>14}" for title in titles))


def _print_row(ranks: int, values: list[float], remark: str = "") -> None:
    nodes = 5 * (ranks - 1) * ranks
    cells = "".join(f"{value:>14.3f}" for value in values)
    print(f"{ranks:>6}{nodes:>8}{cells}{remark}", flush=True)


def _source(folder: Path, ranks: int) -> Path:
    source = folder / f"ring_{ranks}.xml"
    if not source.exists():
        source.write_text("\n".join(_xml_lines(ranks)) + "\n")
    return source


def _parts(ranks: int, source: Path, runs: int) -> list[float]:
    """Values of `_PARTS`."""
    # Found once, as in a run of the program, which finds its plugins once too.
    registry = hub_core.discover()
    algorithm = hub_core.read(source, registry=registry)
    prefix = source.with_suffix("") / "ring"
    read_s = _median_s(runs, lambda: hub_core.read(source, registry=registry))
    verify_s = _median_s(runs, lambda: hub_core.verify(algorithm))
    write_s = _median_s(
        runs, lambda: hub_core.write(algorithm, prefix, force=True, registry=registry)
    )
    out_bytes = sum(path.stat().st_size for path in prefix.parent.iterdir())
    _, published_bytes = _PUBLISHED.get(ranks, (float("nan"), float("nan")))
    sizes = [out_bytes / 1e6, published_bytes / 1e6]
    return [source.stat().st_size / 1e6, read_s, verify_s, write_s, *sizes]


def _median_s(runs: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(runs):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def _print_wholes(ranks: int, source: Path, runs: int) -> None:
    """Print whole runs of the program, with verification and without, run in turn."""
    out = source.with_suffix("") / "ring"
    convert = (*PROGRAM, "convert", str(source), "-o", str(out), "--force")
    commands = {"verified": convert, "off": (*convert, "--verify", "off")}
    costs = median_costs(commands, runs)
    verified_s, off_s = costs["verified"].cpu_s, costs["off"].cpu_s
    published_s, _ = _PUBLISHED.get(ranks, (float("nan"), float("nan")))
    peak = costs["verified"].peak_bytes / 1e6
    remark = ""
    if ranks == _BAR_RANKS:
        kept = "kept" if verified_s <= _BAR_CPU_S else "MISSED"
        remark = f"  {kept}: at most {_BAR_CPU_S} s of CPU, verified"
    _print_row(ranks, [verified_s, off_s, verified_s - off_s, peak, published_s], remark)


def _xml_lines(ranks: int) -> Iterator[str]:
    """A ring all-reduce without fused steps: a thread block a rank sends and receives in turn."""
    counts = f'nchannels="1" nchunksperloop="{ranks}" ngpus="{ranks}"'
    yield f'<algo name="ring" {counts} proto="Simple" coll="allreduce" inplace="1">'
    for rank in range(ranks):
        ends = f'send="{(rank + 1) % ranks}" recv="{(rank - 1) % ranks}"'
        yield f'  <gpu id="{rank}" i_chunks="{ranks}" o_chunks="0" s_chunks="0">'
        yield f'    <tb id="0" {ends} chan="0">'
        for number in range(4 * (ranks - 1)):
            yield _step_line(ranks, rank, number)
        yield "    </tb>"
        yield "  </gpu>"
    yield "</algo>"


def _step_line(ranks: int, rank: int, number: int) -> str:
    """Step `number` of a rank; even ones send, odd ones receive, half of these reduce too."""
    turn, is_receive = divmod(number, 2)
    receive = "rrc" if turn < ranks - 1 else "r"
    kind = receive if is_receive else "s"
    chunk = (rank - turn - is_receive) % ranks
    place = f'srcbuf="i" srcoff="{chunk}" dstbuf="i" dstoff="{chunk}" cnt="1"'
    return f'      <step s="{number}" type="{kind}" {place} depid="-1" deps="-1" hasdep="0"/>'


if __name__ == "__main__":
    main()
