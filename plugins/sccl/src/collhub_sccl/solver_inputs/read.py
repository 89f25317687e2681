"""Read the profile of a node as TACCL's solver takes it: the network of one node, or of several."""

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
_MOST_GPUS = 1024
_MOST_PARALLEL = 64
_MOST_CHUNK = 1 << 50
_MOST_UNITS = 10**15
# Bandwidths of links that exist, in bytes per second.
_MIN_RATE, _MAX_RATE = 1.0, 1e18
# Pairs of an NDv2 that its two NVLinks join, and those that one joins (DGX-1V, hybrid cube mesh).
_DOUBLE = ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))
_SINGLE = ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))


@dataclass(frozen=True, slots=True)
class _Units:
    """What the numbers of a profile are."""

    chunk_bytes: int
    per_s: float

    def rate(self, beta: Value) -> float:
        """Bytes per second of a link on which a chunk takes so long."""
        units = float(beta.number())
        if units <= 0:
            beta.fail(f"{units} is no time of a chunk", "state a positive number")
        # Quotients of whole bytes per second come back as these.
        rate = self.chunk_bytes * self.per_s / units
        if not _MIN_RATE <= rate <= _MAX_RATE:
            beta.fail(
                f"a chunk of {self.chunk_bytes} bytes in {units:g} units is a bandwidth of "
                f"{rate:.3g} bytes/s, which is out of range",
                f"state a time that gives {_MIN_RATE:g} to {_MAX_RATE:g} bytes/s",
            )
        return float(round(rate)) if rate >= 1e6 else rate

    def latency_s(self, alpha: Value) -> float:
        """Seconds."""
        units = float(alpha.number())
        if units < 0:
            alpha.fail(f"{units} is no latency", "state a number that is not negative")
        return units / self.per_s


@dataclass(frozen=True, slots=True)
class _Pair:
    """Links from one GPU to another of the node."""

    source: int
    destination: int
    count: int
    bandwidth_bytes_per_s: float


def read(source: Source, options: TacclReadOptions) -> Topology:
    """The network of a profile, with `nodes=` of it. Raises `InputError` with file and path."""
    root = document_of(source, CODE)
    units = _units(root, options)
    gpus = root["gpus_per_node"].count(_MOST_GPUS // options.nodes)
    latency_s = units.latency_s(root["alpha"])
    pairs = list(_pairs(root, gpus, units))
    rows = [
        (node * gpus + pair.source, node * gpus + pair.destination, pair.bandwidth_bytes_per_s)
        for node in range(options.nodes)
        for pair in pairs
        for _ in range(pair.count)
    ]
    latencies = [latency_s] * len(rows)
    if options.nodes > 1:
        between = list(_between(root, gpus, options.nodes, units))
        rows += between
        latencies += [units.latency_s(root["remote_alpha"])] * len(between)
    if not rows and gpus * options.nodes > 1:
        root.fail("no two GPUs are joined", "state links, or node_betas_list")
    # An empty list has no columns.
    ends = np.asarray([row[:2] for row in rows], np.int64).reshape(-1, 2)
    rates = np.asarray([row[2] for row in rows], np.float64)
    links = Links(ends[:, 0], ends[:, 1], rates, np.asarray(latencies, np.float64))
    npus = gpus * options.nodes
    return links.topology(root["name"].text(), npus, npus)


def _units(root: Value, options: TacclReadOptions) -> _Units:
    """As the hub's own profiles state them, else as the user does."""
    chunk, per_s = root.get("chunk_bytes"), root.get("units_per_second")
    return _Units(
        options.chunk if chunk is None else chunk.count(_MOST_CHUNK),
        1 / options.unit if per_s is None else per_s.count(_MOST_UNITS),
    )


def _pairs(
    root: Value,
    gpus: int,
    units: _Units,
) -> Iterator[_Pair]:
    """Links of a node: stated as matrices, or by the kind of machine that the times are of."""
    if root.get("links") is not None:
        yield from _stated(root, gpus, units)
        return
    betas = list(root["node_betas_list"].items())
    if len(betas) == 1:
        rate = units.rate(betas[0])
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
        rate = units.rate(beta)
        for one, other in joined:
            yield _Pair(one, other, 1, rate)
            yield _Pair(other, one, 1, rate)


def _stated(root: Value, gpus: int, units: _Units) -> Iterator[_Pair]:
    """Links of the matrices, whose rows are destinations."""
    counts, betas = _matrix(root["links"], gpus), _matrix(root["betas"], gpus)
    for source, destination in product(range(gpus), repeat=2):
        count = counts[destination][source]
        if count.raw == 0:
            continue
        if source == destination:
            count.fail("a GPU is joined to itself", "state 0 on the diagonal")
        links = count.count(_MOST_PARALLEL)
        yield _Pair(source, destination, links, units.rate(betas[destination][source]))


def _matrix(value: Value, gpus: int) -> list[list[Value]]:
    """Rows of as many values as there are GPUs."""
    rows = [list(row.items()) for row in value.items()]
    sizes = {len(rows), *(len(row) for row in rows)}
    if sizes != {gpus}:
        value.fail(f"expected {gpus} rows of {gpus} values", "state a value for every two GPUs")
    return rows


def _between(root: Value, gpus: int, nodes: int, units: _Units) -> Iterator[tuple[int, int, float]]:
    """Each GPU joined to its own of every other node, all sharing the cards of their node."""
    cards = root["nics_per_node"].count(gpus)
    rate = units.rate(root["remote_beta"]) * cards / gpus
    for one, other in _ordered_pairs(nodes):
        for gpu in range(gpus):
            yield one * gpus + gpu, other * gpus + gpu, rate


def _ordered_pairs(nodes: int) -> Iterator[tuple[int, int]]:
    """All ordered pairs of different nodes."""
    for one, other in product(range(nodes), repeat=2):
        if one != other:
            yield one, other
