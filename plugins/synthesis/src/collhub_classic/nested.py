"""All-reduce in nested groups: direct exchanges within a group, then between groups, and back.

A reduce-scatter in the smallest groups leaves every rank one part of the vector; ranks of equal
position reduce their part between the groups of the next level, and so on. The all-gathers follow
in the opposite order (Thakur, Rabenseifner, Gropp 2005, for levels of equal size). Every rank sends
2 (n-1)/n of the vector, and only the sum of the level sizes messages instead of n. The steps are
built as columns, without lists of blocks, so that ten thousand ranks take seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from math import ceil, floor, prod

import numpy as np

from collhub_classic.message_plan import compute_mean_link
from collhub_classic.orders import find_equal_groups
from collhub_classic.plugin import NestedOptions
from hub_core import installed_version
from hub_core.columns import Int64Array
from hub_core.model import (
    Algorithm,
    Buffer,
    CollectiveKind,
    InputError,
    JsonValue,
    Provenance,
    StepKind,
    StepTable,
    UsageError,
)
from hub_core.network import Topology, lower_bound_ns
from hub_core.plugin_api import SynthesisRequest, SynthesisResult

_NAME = "collhub-classic"
# Larger levels are divided: messages per rank are the sum of the sizes, latencies their number.
_MAX_LEVEL = 32
# Chunks of the vector overlap: a switch forwards a chunk while it receives the next one.
_MAX_CHUNKS, _MAX_STEPS, _MIN_UNIT_BYTES = 16, 3_000_000, 64


def synthesize(request: SynthesisRequest, options: NestedOptions) -> SynthesisResult:
    """Synthesize the all-reduce in the levels of the network, or those of the option `sizes`.

    The statistics state the sizes, the closest level first, and the cost. Raises `InputError` for
    other collectives, and for requests in which not every NPU is a rank; `UsageError` for sizes
    that do not multiply to the number of ranks, a single rank, and less than a byte per rank.
    """
    ranks = request.collective.num_ranks
    if request.collective.kind is not CollectiveKind.ALL_REDUCE:
        raise InputError("nested supports all-reduce only", code="collective-unsupported")
    if request.npus != tuple(range(request.topology.num_npus)):
        raise InputError("nested needs every NPU as a rank", code="subset-unsupported")
    if ranks == 1:
        raise UsageError(
            "one rank has nothing to send", cure="let at least two ranks take part", code="one-rank"
        )
    if request.collective_bytes < ranks:
        raise UsageError(
            f"{request.collective_bytes} bytes cannot be cut in {ranks} parts",
            cure="choose a larger size",
            code="size-too-small",
        )
    sizes = choose_levels(request.topology, options.sizes)
    best: tuple[int, int, Algorithm] | None = None
    try:
        for chunks in _list_chunks(request, options, sizes):
            algorithm = _build_algorithm(request, options, sizes, chunks)
            time_ns = request.simulate(algorithm) or estimate(request, options)
            if best is not None and time_ns >= best[0]:
                break
            best = time_ns, chunks, algorithm
    except KeyboardInterrupt:
        # The best number of chunks so far is the result.
        if best is None:
            raise
    assert best is not None
    time_ns, chunks, algorithm = best
    statistics: dict[str, JsonValue] = {
        "sizes": "x".join(map(str, sizes)),
        "chunks": chunks,
        "rounds": 2 * len(sizes),
        "cost": f"{2 * len(sizes)} alpha + {2 * (ranks - 1)}/{ranks} m beta, one port",
    }
    bound = lower_bound_ns(request.collective, request.topology, request.collective_bytes)
    bounds = {} if bound is None else {"ports and distances": floor(bound)}
    return SynthesisResult(algorithm, time_ns, bounds, statistics)


def _list_chunks(
    request: SynthesisRequest, options: NestedOptions, sizes: Sequence[int]
) -> list[int]:
    """List the numbers of chunks to try: that of the option, or 1, 2, 4, ... up to `_MAX_CHUNKS`.

    Numbers with more than `_MAX_STEPS` steps, or units of less than `_MIN_UNIT_BYTES`, are left
    out, except 1. Raises `UsageError` for an option with units of less than a byte.
    """
    ranks, size = request.collective.num_ranks, request.collective_bytes
    if options.chunks:
        if size < ranks * options.chunks:
            raise UsageError(
                f"{size} bytes cannot be cut in {ranks * options.chunks} parts",
                cure="choose a larger size, or fewer chunks",
                code="size-too-small",
            )
        return [options.chunks]
    steps = 4 * ranks * sum(level - 1 for level in sizes)
    counts = [1 << power for power in range(_MAX_CHUNKS.bit_length())]
    return [
        chunks
        for chunks in counts
        if chunks == 1
        or (steps * chunks <= _MAX_STEPS and size >= ranks * chunks * _MIN_UNIT_BYTES)
    ]


def _build_algorithm(
    request: SynthesisRequest, options: NestedOptions, sizes: Sequence[int], chunks: int
) -> Algorithm:
    """Build the algorithm for the group sizes `sizes`, with one unit per rank and chunk.

    It works in place and out of place and needs no scratch memory. `sizes`, `chunks`: arguments of
    `build_nested_steps`. The provenance lists all options as text.
    """
    ranks = request.collective.num_ranks
    return Algorithm(
        replace(request.collective, unit_count=ranks * chunks, in_place=True, out_of_place=True),
        build_nested_steps(sizes, chunks),
        np.zeros(ranks, np.int64),
        Provenance(
            _NAME,
            installed_version("collhub-synthesis") or "",
            request.topology.name,
            "",
            {name: str(value) for name, value in asdict(options).items()},
        ),
        request.collective_bytes,
    )


def estimate(request: SynthesisRequest, options: NestedOptions) -> int:
    """Estimate the time in ns: latencies of all rounds, and 2 (n-1)/n of the vector on one port.

    Latency and time per byte are the means of the routes from the first rank. Raises `UsageError`
    as `synthesize` does for the option `sizes`.
    """
    ranks = request.collective.num_ranks
    sizes = choose_levels(request.topology, options.sizes)
    alpha_s, beta_s_per_byte = compute_mean_link(request.topology, request.npus)
    sent_bytes = 2 * (ranks - 1) / ranks * request.collective_bytes
    return max(1, ceil((2 * len(sizes) * alpha_s + sent_bytes * beta_s_per_byte) * 1e9))


def choose_levels(topology: Topology, text: str) -> list[int]:
    """Choose the sizes of the levels, the closest first: those of `text`, as `8x8x16`, or `auto`.

    `auto`: groups of NPUs at equal distance from NPU 0, in links, if their sizes divide one
    another; else the equal groups of the topology if their NPUs are numbered consecutively; else
    one level. Levels above `_MAX_LEVEL` are divided into two factors, as equal as possible, until
    they are below it; primes are not divided. Raises `UsageError` for sizes whose product is not
    the number of NPUs.
    """
    ranks = topology.num_npus
    if text != "auto":
        parts = text.split("x")
        is_valid = all(part.isascii() and part.isdigit() and len(part) < 8 for part in parts)
        sizes = [int(part) for part in parts] if is_valid else []
        if not sizes or prod(sizes) != ranks:
            raise UsageError(
                f"option sizes: {text[:60]} is not {ranks} ranks",
                cure="name sizes whose product is the number of ranks, as 8x4",
                code="option-range",
            )
        return [size for size in sizes if size > 1] or [1]
    levels = _find_distance_levels(topology)
    groups = find_equal_groups(topology, range(ranks))
    is_numbered = np.array_equal(groups.ravel(), np.arange(ranks))
    if len(levels) == 1 and len(groups) > 1 and is_numbered:
        levels = [groups.shape[1], len(groups)]
    return [part for level in levels for part in _divide_level(level)]


def _find_distance_levels(topology: Topology) -> list[int]:
    """Return the sizes of nested groups by distance from NPU 0; one level if they do not nest."""
    (hops,) = topology.arcs().hops(np.zeros(1, np.int64))
    distance = hops[: topology.num_npus]
    levels, inside = [], 1
    for limit in np.unique(distance[1:]).tolist():
        members = np.flatnonzero(distance <= limit)
        # Groups must have consecutive numbers, and divide the next larger group.
        if len(members) % inside or members[-1] != len(members) - 1:
            return [topology.num_npus]
        levels.append(len(members) // inside)
        inside = len(members)
    if inside != topology.num_npus:
        return [topology.num_npus]
    return [level for level in levels if level > 1]


def _divide_level(size: int) -> list[int]:
    """Divide a size into factors at most `_MAX_LEVEL`, as equal as possible.

    The product of the factors is `size`. A prime above `_MAX_LEVEL` remains a single factor.
    """
    if size <= _MAX_LEVEL:
        return [size]
    factor = max(each for each in range(1, int(size**0.5) + 1) if size % each == 0)
    if factor == 1:
        return [size]
    return [*_divide_level(factor), *_divide_level(size // factor)]


def build_nested_steps(sizes: Sequence[int], chunks: int = 1) -> StepTable:
    """Build the steps of an all-reduce on prod(sizes) ranks, one unit per rank and chunk.

    Rank r has the coordinates of r in the mixed radix of `sizes`, the first level fastest. Units
    are numbered chunk by chunk, in a chunk with the first level slowest, so that every message is
    one range. The program of every rank has the same shape: per level and chunk its sends, then its
    receives, with the next partner first; sends of a level wait for all receives of the same chunk
    in the level before.
    """
    ranks = prod(sizes)
    widths = [ranks // prod(sizes[: level + 1]) for level in range(len(sizes))]
    strides = [prod(sizes[:level]) for level in range(len(sizes))]
    number = np.arange(ranks)
    place = [number // stride % size for stride, size in zip(strides, sizes, strict=True)]
    # First unit of the part of a rank after the levels so far.
    prefix = [np.zeros(ranks, np.int64)]
    for coordinate, width in zip(place, widths, strict=True):
        prefix.append(prefix[-1] + coordinate * width)
    columns = _StepColumns(ranks)
    parents: list[list[int]] = [[] for _ in range(chunks)]

    def list_partners(level: int, direction: int) -> list[tuple[Int64Array, Int64Array]]:
        """Return (coordinate in the level, rank) of all partners, nearest first, as arrays by rank.

        `direction`: 1 for ascending coordinates, -1 for descending ones; coordinates wrap around. A
        rank is not its own partner.
        """
        pairs = []
        for hop in range(1, sizes[level]):
            coordinate = (place[level] + direction * hop) % sizes[level]
            pairs.append((coordinate, number + (coordinate - place[level]) * strides[level]))
        return pairs

    for level in range(len(sizes)):
        width = widths[level]
        for chunk in range(chunks):
            base = chunk * ranks
            # A level of one rank adds nothing, so that INPUT still has the data.
            buffer = Buffer.OUTPUT if parents[chunk] else Buffer.INPUT
            for coordinate, peer in list_partners(level, 1):
                offset = base + prefix[level] + coordinate * width
                columns.add(StepKind.SEND, peer, offset, width, parents[chunk], src_buffer=buffer)
            for _, peer in list_partners(level, -1):
                # The first sum of a rank reads its INPUT and writes OUTPUT.
                row = columns.add(
                    StepKind.RECV_REDUCE,
                    peer,
                    base + prefix[level + 1],
                    width,
                    parents[chunk],
                    src_buffer=buffer,
                    dst_buffer=Buffer.OUTPUT,
                )
                parents[chunk], buffer = [row], Buffer.OUTPUT
    for level in range(len(sizes) - 1, -1, -1):
        width = widths[level]
        for chunk in range(chunks):
            base = chunk * ranks
            for _, peer in list_partners(level, 1):
                offset = base + prefix[level + 1]
                columns.add(
                    StepKind.SEND, peer, offset, width, parents[chunk], src_buffer=Buffer.OUTPUT
                )
            for coordinate, peer in list_partners(level, -1):
                offset = base + prefix[level] + coordinate * width
                row = columns.add(StepKind.RECV, peer, offset, width, [], dst_buffer=Buffer.OUTPUT)
                parents[chunk] = [*parents[chunk], row]
    return columns.build()


class _StepColumns:
    """Columns of programs that have the same shape on all ranks, one row after another."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._rows: list[dict[str, Int64Array | int]] = []
        self._edges: list[tuple[int, int]] = []

    def add(
        self,
        kind: StepKind,
        peer: Int64Array,
        offset: Int64Array,
        count: int,
        parents: Sequence[int],
        **buffers: Buffer,
    ) -> int:
        """Add one row to every rank; return its position in the program.

        `peer`, `offset`: int64[ranks]; the offset is that of every buffer which the row uses.
        `parents`: positions of rows that it waits for.
        """
        position = len(self._rows)
        row: dict[str, Int64Array | int] = {"kind": kind, "peer": peer, "count": count}
        for name, buffer in buffers.items():
            row[name] = buffer
            row[name.replace("buffer", "offset")] = offset
        self._rows.append(row)
        self._edges += [(parent, position) for parent in parents]
        return position

    def build(self) -> StepTable:
        """Build the table of all ranks from the collected rows.

        Every rank has the same number of steps, in the order in which the rows were added; ranks
        ascend. A row without a value has 0 in that column, and the buffer UNKNOWN. The data
        dependencies between rows are repeated for every rank.
        """
        length = len(self._rows)
        defaults = {"src_buffer": Buffer.UNKNOWN, "dst_buffer": Buffer.UNKNOWN}
        table: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = {}
        for name in (
            "kind",
            "peer",
            "count",
            "src_buffer",
            "src_offset",
            "dst_buffer",
            "dst_offset",
        ):
            column = np.empty((self._ranks, length), np.int64)
            for position, row in enumerate(self._rows):
                column[:, position] = row.get(name, defaults.get(name, 0))
            table[name] = column.ravel()
        table["rank"] = np.repeat(np.arange(self._ranks), length)
        pairs = np.asarray(self._edges, np.int64).reshape(-1, 2)
        starts = np.arange(self._ranks)[:, None] * length
        data = ((starts + pairs[:, 0]).ravel(), (starts + pairs[:, 1]).ravel())
        return StepTable.from_columns(self._ranks, table, data)
