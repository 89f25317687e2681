"""Measure writing and reading execution traces beside a plain loop over protobuf messages.

    python benchmarks/trace_codec.py [--ranks 128 1024] [--runs 3]

A line is a measurement: what, ranks, nodes, median CPU seconds, microseconds a node, ratio to ours.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import google.protobuf
import numpy as np

from hub_core import Algorithm, __version__
from hub_core.chakra import message_class, record_bounds, varint
from hub_core.plugin_api import Source, SourcePart
from hub_core.testing import ring_all_reduce
from hub_core.trace_profile.formats import ChakraReadOptions, ChakraWriteOptions
from hub_core.trace_profile.read import chakra_algorithm
from hub_core.trace_profile.write import write

_LOOP_RANKS = 4


def main() -> None:
    """Print one row a measurement, and the peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    libraries = f"numpy {np.__version__}, protobuf {google.protobuf.__version__}"
    versions = f"{libraries}, Python {platform.python_version()}"
    print(f"collhub {__version__}, {versions}, median of {arguments.runs} runs")
    print(f"{'what':<28}{'ranks':>7}{'nodes':>10}{'CPU s':>9}{'us/node':>9}{'ratio':>8}")
    for ranks in arguments.ranks:
        with tempfile.TemporaryDirectory() as folder:
            _compare(ring_all_reduce(ranks), Path(folder), arguments.runs)
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory {peak_gb:.2f} GB, the step tables included")


def _compare(algorithm: Algorithm, folder: Path, runs: int) -> None:
    ranks = algorithm.num_ranks
    nodes = 5 * (ranks - 1) * ranks
    part = nodes // ranks * _LOOP_RANKS
    ours = _measure("write", ranks, nodes, runs, lambda: _write(algorithm, folder))
    total = sum(path.stat().st_size for path in folder.iterdir())
    contents = [(folder / f"x.{rank}.et").read_bytes() for rank in range(_LOOP_RANKS)]
    rows = [_decode_loop(content) for content in contents]
    _measure(
        "write, protobuf loop", _LOOP_RANKS, part, runs, lambda: _check_loop(rows, contents), ours
    )
    ours = _measure("read", ranks, nodes, runs, lambda: _read(algorithm, folder))
    _measure(
        "read, protobuf loop",
        _LOOP_RANKS,
        part,
        runs,
        lambda: [_decode_loop(content) for content in contents],
        ours,
    )
    print(f"{total / 1e6:.1f} MB on disk, {total / nodes:.0f} bytes a node")


def _measure(
    what: str,
    ranks: int,
    nodes: int,
    runs: int,
    run: Callable[[], object],
    ours: float | None = None,
) -> float:
    times = []
    for _ in range(runs):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    median = statistics.median(times)
    per_node = median / nodes * 1e6
    ratio = f"{per_node / ours:8.1f}" if ours else f"{'1':>8}"
    print(f"{what:<28}{ranks:>7}{nodes:>10}{median:>9.3f}{per_node:>9.2f}{ratio}")
    return per_node


def _write(algorithm: Algorithm, folder: Path) -> None:
    for artifact in write(algorithm, ChakraWriteOptions()).artifacts:
        (folder / f"x{artifact.name}").write_bytes(artifact.content())


def _read(algorithm: Algorithm, folder: Path) -> None:
    names = [f"x.{rank}.et" for rank in range(algorithm.num_ranks)]
    parts = tuple(
        SourcePart(name, (folder / name).read_bytes, rank) for rank, name in enumerate(names)
    )
    read_back = chakra_algorithm(Source("x", parts), ChakraReadOptions())
    if algorithm.differences(read_back):
        raise SystemExit("what was read is not what was written")


_Row = tuple[int, str, int, list[int], list[tuple[str, str, int | list[int]]]]


def _decode_loop(content: bytes) -> list[_Row]:
    """The textbook reader: one message a record, one Python value an attribute."""
    node_class: Any = message_class("Node")
    rows = []
    starts, stops = record_bounds(content)
    for start, stop in zip(starts[1:].tolist(), stops[1:].tolist(), strict=True):
        node = node_class.FromString(content[start:stop])
        attributes: list[tuple[str, str, int | list[int]]] = []
        for attribute in node.attr:
            kind = attribute.WhichOneof("value")
            value = getattr(attribute, kind)
            plain = list(value.values) if kind.endswith("_list") else value
            attributes.append((attribute.name, kind, plain))
        rows.append((node.id, node.name, node.type, list(node.data_deps), attributes))
    return rows


def _encode_loop(rows: Sequence[_Row]) -> bytes:
    """The textbook writer: one message a node, one assignment an attribute."""
    node_class: Any = message_class("Node")
    records = []
    for number, name, node_type, parents, attributes in rows:
        node = node_class(id=number, name=name, type=node_type, data_deps=parents)
        for key, kind, value in attributes:
            attribute = node.attr.add(name=key)
            if isinstance(value, list):
                getattr(attribute, kind).values.extend(value)
            else:
                setattr(attribute, kind, value)
        body = node.SerializeToString()
        records += [varint(len(body)), body]
    return b"".join(records)


def _check_loop(rows: Sequence[Sequence[_Row]], contents: Sequence[bytes]) -> None:
    for of_rank, content in zip(rows, contents, strict=True):
        if not content.endswith(_encode_loop(of_rank)):
            raise SystemExit("the loop wrote other bytes than we did")


if __name__ == "__main__":
    main()
