"""Write rings within a node as a file for `NCCL_GRAPH_FILE`.

Unmodified NCCL then runs its collectives over them; `ring_graph` gives the source of the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd
from types import MappingProxyType

from collhub_nccl.graphs.channel_algorithms import ring_algorithm
from collhub_nccl.graphs.ring_graph import (
    EXTENSION,
    MAX_CHANNELS,
    MAX_GPUS,
    RingGraph,
    restored_graph,
)
from collhub_nccl.graphs.rings import rings_of
from collhub_nccl.options import NcclRingOptions
from hub_core.model import (
    Algorithm,
    CollectiveKind,
    InputError,
    Loss,
    UsageError,
    parse_ranks,
)
from hub_core.plugin_api import Artifact, WriteResult
from hub_core.verification import verify

# Fields of an algorithm that the file does not express, and the consequences.
_CONSEQUENCES: Mapping[str, str] = MappingProxyType(
    {
        "kind": "NCCL runs every collective over these rings where it chooses rings; "
        "NCCL_ALGO=Ring makes it",
        "root": "the call names it",
        "reduce_op": "the call names it",
        "in_place": "NCCL serves calls in place and out of place",
        "out_of_place": "NCCL serves calls in place and out of place",
        "unit_count": "NCCL chooses the size of its chunks",
        "scratch_units": "NCCL has buffers of its own",
        "collective_bytes": "the call names the size",
        "extensions": "not in the file",
        "steps": "NCCL cuts, orders and joins messages itself; only the order of the ranks is kept",
    }
)


def write(algorithm: Algorithm, options: NcclRingOptions) -> WriteResult:
    """Writer of the format `nccl-graph`.

    Raises `InputError` with the reason unless the algorithm is correct and consists of rings over
    all ranks, each with a share of the data that an integer number of equal channels carries.
    """
    if algorithm.num_ranks > MAX_GPUS:
        raise InputError(
            f"{algorithm.num_ranks} ranks do not fit one node",
            cure=f"use at most {MAX_GPUS}",
            code="too-many-ranks",
        )
    # An incorrect algorithm must not become correct because NCCL executes its rings correctly.
    report = verify(algorithm)
    if not report.ok:
        raise InputError(report.diagnostics)
    rings = rings_of(algorithm)
    unit = gcd(*rings.values())
    shares = [share // unit for share in rings.values()]
    if sum(shares) > MAX_CHANNELS:
        listed = ", ".join(map(str, shares[:8])) + (", ..." if len(shares) > 8 else "")
        raise InputError(
            f"{len(rings)} rings with shares {listed} of the data need {sum(shares)} equal "
            f"channels, NCCL has at most {MAX_CHANNELS}",
            cure="write it as a program: --to nccl",
            code="too-many-channels",
        )
    graph = _apply_options(restored_graph(rings, algorithm.extensions.get(EXTENSION)), options)
    content = graph.as_xml().encode("ascii")
    return WriteResult([Artifact("", lambda: content)], tuple(_find_losses(algorithm, graph)))


def _apply_options(graph: RingGraph, options: NcclRingOptions) -> RingGraph:
    """The graph with the values of the given options. Raises `UsageError` for invalid ones."""
    copies = options.copies
    if copies > 1 and copies * len(graph.channels) > MAX_CHANNELS:
        raise UsageError(
            f"{copies} times {len(graph.channels)} rings are not 1 to {MAX_CHANNELS} channels",
            cure="use option copies",
        )
    if copies > 1:
        graph = replace(
            graph,
            channels=tuple(ring for ring in graph.channels for _ in range(copies)),
            nets=tuple(pair for pair in graph.nets for _ in range(copies)),
        )
    if options.gpus is not None:
        devices = parse_ranks(options.gpus, "device", len(graph.devices))
        graph = replace(graph, devices=devices, ranks=())
    attributes = dict(graph.attributes)
    if options.speed is not None:
        if not 0 < options.speed < 1e6:
            raise UsageError(
                f"option speed: {options.speed} GB/s",
                cure="state the bandwidth of one channel, as 20",
            )
        attributes |= dict.fromkeys(("speedintra", "speedinter"), f"{options.speed:g}")
    if options.type is not None:
        attributes["typeintra"] = options.type
    return replace(graph, attributes=attributes)


def _find_losses(algorithm: Algorithm, graph: RingGraph) -> Iterator[Loss]:
    """Yield the differences to the algorithm that would be read back."""
    stated = graph.as_json()
    back = ring_algorithm(
        CollectiveKind.ALL_REDUCE, graph.channels, extensions={EXTENSION: stated} if stated else {}
    )
    differences = set(algorithm.differences(replace(back, provenance=algorithm.provenance)))
    for feature, consequence in _CONSEQUENCES.items():
        if feature in differences:
            yield Loss(feature, _describe_value(algorithm, feature), consequence)
            differences.remove(feature)
    # The remaining names are columns and dependencies of the step table.
    if differences:
        yield Loss("steps", "all", _CONSEQUENCES["steps"])


def _describe_value(algorithm: Algorithm, feature: str) -> str:
    """The lost value if it is short, else its extent."""
    if feature == "root":
        return f"rank {algorithm.collective.root}"
    if feature == "extensions":
        return ", ".join(sorted(algorithm.extensions)) or "none"
    if feature == "scratch_units":
        return "all ranks"
    if feature == "collective_bytes":
        return str(algorithm.collective_bytes)
    return str(getattr(algorithm.collective, feature))
