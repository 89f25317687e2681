"""Read jobs from text: a line a node, `RANK compute NANOSECONDS` or `RANK all-reduce BYTES`."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core import InputError, Location
from hub_core.model import JobCollective, NodeColumns, NodeKind, Workload
from hub_core.plugin_api import NoOptions, Source

HEADER = "example-job 1"
_LARGEST = 1 << 53


def read(source: Source, options: NoOptions) -> Workload:
    """Nodes of a rank run one after the other. Raises `InputError` with the line."""
    lines = source.content().decode("utf-8", "replace").splitlines()
    if lines[:1] != [HEADER]:
        raise InputError(f"the first line is not {HEADER!r}", location=Location(source.name, 1))
    columns: dict[str, list[int]] = {
        name: [] for name in ("rank", "kind", "duration_ns", "bytes", "collective")
    }
    latest: dict[int, int] = {}
    edges: tuple[list[int], list[int]] = ([], [])
    for row, line in enumerate(lines[1:]):
        place = Location(source.name, row + 2)
        rank, name, number = _words(line, place)
        is_compute = name == "compute"
        columns["rank"].append(rank)
        columns["kind"].append(NodeKind.COMPUTE if is_compute else NodeKind.COLLECTIVE)
        columns["duration_ns"].append(number if is_compute else -1)
        columns["bytes"].append(-1 if is_compute else number)
        columns["collective"].append(-1 if is_compute else JobCollective.ALL_REDUCE)
        if rank in latest:
            edges[0].append(latest[rank])
            edges[1].append(row)
        latest[rank] = row
    ranks = 1 + max(columns["rank"], default=0)
    return Workload(NodeColumns.from_columns(ranks, columns, edges, file=source.name))


def _words(line: str, place: Location) -> tuple[int, str, int]:
    words = line.split()
    if len(words) == 3 and words[0].isdecimal() and words[2].isdecimal():
        rank, number = int(words[0]), int(words[2])
        if words[1] in ("compute", "all-reduce") and rank < 1024 and number < _LARGEST:
            return rank, words[1], number
    raise InputError(f"{line!r:.60} is not RANK compute|all-reduce NUMBER", location=place)


def samples() -> Sequence[Source]:
    """Small correct files."""
    text = f"{HEADER}\n0 compute 100\n1 compute 300\n0 all-reduce 1024\n1 all-reduce 1024\n"
    return [Source.of_bytes("step.example-job", text.encode("utf-8"))]
