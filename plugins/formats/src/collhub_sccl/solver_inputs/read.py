"""Read a node profile of TACCL's solver as the network of one node, or of several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from collhub_networks import Value, document_of

from collhub_sccl.solver_inputs.options import TacclReadOptions
from hub_core.network import Links, Topology
from hub_core.plugin_api import Source

CODE = "invalid-taccl-topology"
_MAX_GPUS = 1024
_MAX_PARALLEL_LINKS = 64
_MAX_CHUNK_BYTES = 1 << 50
_MAX_UNITS_PER_SECOND = 10**15
# Limits for plausible bandwidths, in bytes per second.
_MIN_RATE, _MAX_RATE = 1.0, 1e18
# Pairs of an NDv2 with two NVLinks, and those with one (DGX-1V, hybrid cube mesh).
_DOUBLE = ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))
_SINGLE = ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))


@dataclass(frozen=True, slots=True)
class _Units:
    """Units of the numbers in a profile: bytes of a chunk, and time units per second."""

    chunk_bytes: int
    per_s: float

    def to_bandwidth(self, beta: Value) -> float:
        """Bandwidth (bytes per second) of a link from the time of a chunk. Raises `InputError`."""
        units = float(beta.number())
        if units <= 0:
            beta.fail(f"{units} is no time of a chunk", "state a positive number")
        # Rounding restores integer bandwidths, of which the times are quotients.
        rate = self.chunk_bytes * self.per_s / units
        if not _MIN_RATE <= rate <= _MAX_RATE:
            beta.fail(
                f"a chunk of {self.chunk_bytes} bytes in {units:g} units is a bandwidth of "
                f"{rate:.3g} bytes/s, which is out of range",
                f"state a time that gives {_MIN_RATE:g} to {_MAX_RATE:g} bytes/s",
            )
        return float(round(rate)) if rate >= 1e6 else rate

    def to_latency_s(self, alpha: Value) -> float:
        """Latency in seconds. Raises `InputError` for a negative value."""
        units = float(alpha.number())
        if units < 0:
            alpha.fail(f"{units} is no latency", "state a number that is not negative")
        return units / self.per_s


@dataclass(frozen=True, slots=True)
class _Pair:
    """Links from one GPU of the node to another."""

    source: int
    destination: int
    count: int
    bandwidth_bytes_per_s: float


def read(source: Source, options: TacclReadOptions) -> Topology:
    """Network of `nodes` copies of a profile.

    Raises `InputError` with file and path of a defect.
    """
    root = document_of(source, CODE)
    units = _read_units(root, options)
    gpus = root["gpus_per_node"].count(_MAX_GPUS // options.nodes)
    latency_s = units.to_latency_s(root["alpha"])
    pairs = list(_iterate_pairs(root, gpus, units))
    rows = [
        (node * gpus + pair.source, node * gpus + pair.destination, pair.bandwidth_bytes_per_s)
        for node in range(options.nodes)
        for pair in pairs
        for _ in range(pair.count)
    ]
    latencies = [latency_s] * len(rows)
    if options.nodes > 1:
        between = list(_iterate_remote(root, gpus, options.nodes, units))
        rows += between
        latencies += [units.to_latency_s(root["remote_alpha"])] * len(between)
    if not rows and gpus * options.nodes > 1:
        root.fail("no two GPUs are joined", "state links, or node_betas_list")
    # An empty list has no columns.
    link_ends = np.asarray([row[:2] for row in rows], np.int64).reshape(-1, 2)
    rates = np.asarray([row[2] for row in rows], np.float64)
    links = Links(link_ends[:, 0], link_ends[:, 1], rates, np.asarray(latencies, np.float64))
    npus = gpus * options.nodes
    return links.topology(root["name"].text(), npus, npus)


def _read_units(root: Value, options: TacclReadOptions) -> _Units:
    """Units from the file if the hub wrote it, else from the options."""
    chunk, per_s = root.get("chunk_bytes"), root.get("units_per_second")
    return _Units(
        options.chunk if chunk is None else chunk.count(_MAX_CHUNK_BYTES),
        1 / options.unit if per_s is None else per_s.count(_MAX_UNITS_PER_SECOND),
    )


def _iterate_pairs(
    root: Value,
    gpus: int,
    units: _Units,
) -> Iterator[_Pair]:
    """Yield the links of a node, given as matrices, or implied by the kind of machine."""
    if root.get("links") is not None:
        yield from _iterate_matrix_pairs(root, gpus, units)
        return
    betas = list(root["node_betas_list"].items())
    if len(betas) == 1:
        rate = units.to_bandwidth(betas[0])
        for source, destination in product(range(gpus), repeat=2):
            if source != destination:
                yield _Pair(source, destination, 1, rate)
        return
    if len(betas) != 2 or gpus != 8:
        root["node_betas_list"].fail(
            f"{len(betas)} times for a node of {gpus} GPUs are of no machine that is known",
            "state one for pairs that are alike, two for an NDv2, or links, betas and invbws",
        )
    for joined, beta in zip((_DOUBLE, _SINGLE), betas, strict=True):
        rate = units.to_bandwidth(beta)
        for first, second in joined:
            yield _Pair(first, second, 1, rate)
            yield _Pair(second, first, 1, rate)


def _iterate_matrix_pairs(root: Value, gpus: int, units: _Units) -> Iterator[_Pair]:
    """Yield the links of the matrices, whose rows are destinations."""
    counts, betas = _read_matrix(root["links"], gpus), _read_matrix(root["betas"], gpus)
    for source, destination in product(range(gpus), repeat=2):
        count = counts[destination][source]
        if count.raw == 0:
            continue
        if source == destination:
            count.fail("a GPU is joined to itself", "state 0 on the diagonal")
        links = count.count(_MAX_PARALLEL_LINKS)
        yield _Pair(source, destination, links, units.to_bandwidth(betas[destination][source]))


def _read_matrix(value: Value, gpus: int) -> list[list[Value]]:
    """Rows of a square matrix with one row per GPU. Raises `InputError` otherwise."""
    rows = [list(row.items()) for row in value.items()]
    sizes = {len(rows), *(len(row) for row in rows)}
    if sizes != {gpus}:
        value.fail(f"expected {gpus} rows of {gpus} values", "state a value for every two GPUs")
    return rows


def _iterate_remote(
    root: Value, gpus: int, nodes: int, units: _Units
) -> Iterator[tuple[int, int, float]]:
    """Yield (source, destination, rate): each GPU to the same GPU of every other node.

    All connections of a node share its network cards.
    """
    cards = root["nics_per_node"].count(gpus)
    rate = units.to_bandwidth(root["remote_beta"]) * cards / gpus
    for source_node, destination_node in _iterate_node_pairs(nodes):
        for gpu in range(gpus):
            yield source_node * gpus + gpu, destination_node * gpus + gpu, rate


def _iterate_node_pairs(nodes: int) -> Iterator[tuple[int, int]]:
    """Yield all ordered pairs of different nodes."""
    for first, second in product(range(nodes), repeat=2):
        if first != second:
            yield first, second
