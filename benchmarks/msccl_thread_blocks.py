"""Compare what becomes of MSCCLang programs with what the public compiler makes of them.

Modelled time, thread blocks, channels and executed operations. The model: a thread block runs its
steps in order; a step lasts as long as its part of a buffer, a run of reductions as long as all its
operands; it begins when its block is free, what it waits for is done and, where it receives, when
the step that sends has begun. The makespan is the last end, in times of a whole buffer.

The files are also simulated on a topology, where messages take latency and bandwidth of links that
they share, and thread blocks run in order.
"""

from __future__ import annotations

import argparse
import csv
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from collhub_msccl.plugin import LanguageOptions, ReadOptions, WriteOptions
from collhub_msccl.read_program import read as read_mscclang
from collhub_msccl.reading.read_xml import read, read_program
from collhub_msccl.writing.execution_times import BlockFigures, compute_block_figures
from collhub_msccl.writing.write_xml import write

import hub_core
from hub_core import Algorithm, __version__
from hub_core.model import parse_size
from hub_core.plugin_api import Source
from hub_core.verification import verify

_REPOSITORY = Path(__file__).resolve().parents[1]
_PROGRAMS = _REPOSITORY / "plugins" / "msccl" / "tests" / "programs"
_CORPUS = _REPOSITORY.parent / "shared" / "corpus" / "msccl"
_RINGS = "two_level_rings"
# Of the public compiler (microsoft/msccl-tools 030a750), on programs with the same constructs: the
# time of the file in the model, its thread blocks of a rank, and its channels.
_PUBLIC = (
    ("hierarchical all-reduce 8 4 1", _RINGS, "32 1 --nodes 4 --blocked", 7 / 32, 30, 26),
    ("hierarchical all-reduce 8 2 2", _RINGS, "16 2 --nodes 2 --blocked", 3 / 32, 52, 48),
    ("hierarchical all-reduce 4 3 1", _RINGS, "12 1 --nodes 3 --blocked", 5 / 12, 16, 13),
    ("hierarchical 3 2 1 LL", _RINGS, "6 1 --nodes 2 --protocol LL", 1 / 2, 11, 9),
    ("hierarchical 2 4 1 LL", _RINGS, "8 1 --nodes 4 --protocol LL", 1.0, 12, 8),
    ("stated channels 8 2 1", _RINGS, "16 1 --nodes 2 --channels --shared", 9 / 8, 6, 6),
    ("all-gather ring of 4", "passed_on_all_gather", "4 1", 1 / 2, 5, 4),
    ("all-pairs, sums in a tree, 4 2", "tree_sum_all_reduce", "4 2", 6 / 8, 8, 2),
    ("all-pairs, sums in a tree, 8 2", "tree_sum_all_reduce", "8 2", 7 / 16, 16, 2),
)
_HEADS = ("time", "public", "ratio", "blocks", "public", "channels", "public", "longest", "CPU s")
_FILE_HEADS = ("files", "mean time", "worst", "executed", "source", "unfused")
_SIZES = ("64KiB", "16MiB")
_WIDTH = 9


@dataclass(frozen=True, slots=True)
class _FileResult:
    """A file of the public compiler, and what becomes of the same steps without its blocks."""

    construct: str
    source: BlockFigures
    ours: BlockFigures
    unfused: int
    # Simulated, ours by the source's, at each of `_SIZES`.
    simulated: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Our time by that of the source."""
        return self.ours.makespan / max(self.source.makespan, 1)


def main() -> None:
    """Print a row a program, then a row a construct of the files of the public compilers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5000, help="largest file that is compared")
    parser.add_argument(
        "--topology",
        default="switch:{n}?bandwidth=50GB/s&latency=500ns",
        help="where files are simulated; {n} is their number of ranks",
    )
    arguments = parser.parse_args()
    print(f"collhub {__version__}, numpy {np.__version__}, Python {platform.python_version()}")
    _print_row("program", _HEADS)
    for public in _PUBLIC:
        _print_program(*public)
    if not _CORPUS.is_dir():
        print(f"no files of the public compilers: {_CORPUS} is absent")
        return
    print("\nfiles of the public compilers, their thread blocks and channels taken away;")
    print("times as ratios to theirs; steps executed: by ours, by theirs, and with nothing fused;")
    print(f"simulated on {arguments.topology}: the mean and the worst ratio at each size")
    heads = [head for size in _SIZES for head in (size, "worst")]
    _print_row("construct", (*_FILE_HEADS, *heads))
    results = list(_files(arguments.steps, arguments.topology))
    for construct in sorted({result.construct for result in results}):
        _print_files(construct, [each for each in results if each.construct == construct])
    _print_files("all", results)


def _print_program(
    title: str,
    name: str,
    arguments: str,
    public_time: float,
    public_blocks: int,
    public_channels: int,
) -> None:
    """Compile a program of ours and print it beside the figures of the public compiler."""
    file = _PROGRAMS / f"{name}.py"
    source = Source.of_bytes(file.name, file.read_bytes())
    algorithm = read_mscclang(source, LanguageOptions(arguments))
    start = time.process_time()
    figures = _figures(algorithm, WriteOptions())
    seconds = time.process_time() - start
    ours = figures.makespan / algorithm.collective.unit_count
    times = f"{ours:.3f}", f"{public_time:.3f}", f"{ours / public_time:.2f}"
    blocks = str(figures.blocks), str(public_blocks)
    channels = str(figures.channels), str(public_channels)
    _print_row(title, (*times, *blocks, *channels, str(figures.longest), f"{seconds:.2f}"))


def _files(most_steps: int, topology: str) -> Iterator[_FileResult]:
    """Every correct file of the public compilers, written anew."""
    with (_CORPUS / "index.csv").open(newline="") as index:
        rows = [row for row in csv.DictReader(index) if row["verdict"] == "ok"]
    for row in rows:
        if not row["file"].startswith(("mt_", "az_")) or int(row["steps"]) > most_steps:
            continue
        parts = Source.of_bytes(row["file"], (_CORPUS / row["file"]).read_bytes()).parts
        source = Source(row["file"], parts, lambda _: None)
        _, program = read_program(source)
        algorithm = read(source, ReadOptions())
        lane = np.full(len(algorithm.steps), -1, np.int32)
        bare = replace(algorithm, steps=replace(algorithm.steps, lane=lane))
        written = _written(bare, WriteOptions("msccl", channels=32))
        where = topology.format(n=algorithm.collective.num_ranks)
        yield _FileResult(
            construct="_".join(part for part in _words(row["file"]) if not part.isdigit()),
            source=compute_block_figures(program),
            ours=compute_block_figures(read_program(written)[1]),
            unfused=int(row["steps"]) - int(row["nops"]),
            simulated=_time_ratios(read(written, ReadOptions()), algorithm, where),
        )


def _time_ratios(ours: Algorithm, theirs: Algorithm, topology: str) -> tuple[float, ...]:
    """Simulated time of one algorithm by that of another at every size."""
    network = hub_core.read_topology(topology)
    ratios = []
    for text in _SIZES:
        size = parse_size(text)
        times = [hub_core.simulate(each, network, size).time_ns for each in (ours, theirs)]
        if None in times:
            sys.exit("a file never ends")
        ratios.append(times[0] / times[1])
    return tuple(ratios)


def _words(name: str) -> list[str]:
    """The parts of a file's name that tell the construct."""
    words = name.removesuffix(".xml").split("_")[1:]
    return [word for word in words if word.lower() not in ("simple", "ll", "ll128")]


def _figures(algorithm: Algorithm, options: WriteOptions) -> BlockFigures:
    return compute_block_figures(read_program(_written(algorithm, options))[1])


def _written(algorithm: Algorithm, options: WriteOptions) -> Source:
    """An algorithm as a file, which is read back and verified."""
    (artifact,) = write(algorithm, options).artifacts
    file = Source.of_bytes("written.xml", artifact.content())
    if not verify(read(file, ReadOptions())).ok:
        sys.exit("what was written is wrong")
    return file


def _print_files(construct: str, results: list[_FileResult]) -> None:
    """One row for all files of a construct."""
    ratios = [result.ratio for result in results]
    executed = sum(result.ours.executed for result in results)
    of_source = sum(result.source.executed for result in results)
    unfused = sum(result.unfused for result in results)
    facts = str(len(results)), f"{np.mean(ratios):.2f}", f"{max(ratios):.2f}"
    by_size = list(zip(*(result.simulated for result in results), strict=True))
    simulated = [f"{each:.2f}" for times in by_size for each in (np.mean(times), max(times))]
    _print_row(construct, (*facts, str(executed), str(of_source), str(unfused), *simulated))


def _print_row(name: str, texts: tuple[str, ...]) -> None:
    columns = [f" {text:>{_WIDTH}}" for text in texts]
    print(f"{name:<38}{''.join(columns)}")


if __name__ == "__main__":
    main()
