"""Write and read rings within a node as files of `NCCL_GRAPH_FILE` and `NCCL_GRAPH_DUMP_FILE`.

Unmodified NCCL runs its collectives over the rings of such a file, which contains the order of GPUs
in every channel. It applies to all collectives, so the reader gets the collective from the user.
`ring_graphs` gives the source of the format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd
from types import MappingProxyType
from typing import NoReturn

from collhub_nccl.graphs.channel_algorithms import choose_root, ring_algorithm
from collhub_nccl.graphs.ring_graphs import (
    DEFAULT_ATTRIBUTES,
    EXTENSION,
    MAX_CHANNELS,
    MAX_GPUS,
    RING_PATTERN,
    RingGraph,
    is_attribute,
    restored_graph,
    rings_of,
)
from collhub_nccl.options import NcclRingOptions, RingReadOptions
from collhub_nccl.topologies.xml_entries import Element, parse
from hub_core import Provenance, installed_version
from hub_core.model import (
    Algorithm,
    CollectiveKind,
    Diagnostic,
    InputError,
    Loss,
    Severity,
    UsageError,
    parse_ranks,
)
from hub_core.plugin_api import Artifact, Source, WriteResult
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
    """Write an algorithm that consists of rings as a file of format `nccl-graph`.

    If the algorithm was read from such a file, its channels are written again if they have the
    same rings in the same ratio of shares. Otherwise the shares are divided by their greatest
    common divisor, and each ring gets that many channels: shares 2 and 4 give 1 and 2. Other
    properties of such a file are written again as far as they fit (`restored_graph`). Then
    `options` change the graph; `copies` repeats each channel (`_apply_options`). Properties that
    reading would not restore are listed as losses. The result is one ASCII file.

    Raises, in this order: `InputError` `too-many-ranks` (above 256), with the findings of `verify`
    for an incorrect algorithm, `not-rings` (no rings over all ranks), and `too-many-channels`
    (above 32 by the divided shares); `UsageError` for invalid options.
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
    """Return the graph changed by the given options; options that are not given change nothing.

    - `copies`: repeats every ring, with its network devices, if above 1; copies are adjacent.
    - `gpus`: replaces the device numbers by a list such as `0,2,4-7`, and removes the ranks.
    - `speed`: sets the speed within and between nodes, in GB/s per channel.
    - `type`: sets the type of links within a node; it is not checked here.

    Raises `UsageError` if copies make more than `MAX_CHANNELS` (32) channels, for an invalid list
    of devices or another number of them than the graph has GPUs, and for a speed that is not above
    0 and below 1e6, in this order.
    """
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
    """Yield the properties of an algorithm that reading its graph file would not restore.

    Reading gives an all-reduce on the channels of the graph. Each feature in `_CONSEQUENCES` that
    differs is one loss, in that order; the provenance is not compared. The loss states the value of
    the algorithm: `rank N` for the root, the sorted names of extensions or `none`, `all ranks` for
    `scratch_units`, otherwise the value as text. All other differences, such as columns of steps or
    dependencies, are together one last loss `steps`. Nothing is yielded if the algorithms are
    equal.
    """
    stated = graph.as_json()
    back = ring_algorithm(
        CollectiveKind.ALL_REDUCE, graph.channels, extensions={EXTENSION: stated} if stated else {}
    )
    differences = set(algorithm.differences(replace(back, provenance=algorithm.provenance)))
    value_of = {
        "root": f"rank {algorithm.collective.root}",
        "extensions": ", ".join(sorted(algorithm.extensions)) or "none",
        "scratch_units": "all ranks",
        "collective_bytes": str(algorithm.collective_bytes),
    }
    for feature, consequence in _CONSEQUENCES.items():
        if feature in differences:
            value = value_of.get(feature) or str(getattr(algorithm.collective, feature))
            yield Loss(feature, value, consequence)
            differences.remove(feature)
    # The remaining names are columns and dependencies of the step table.
    if differences:
        yield Loss("steps", "all", _CONSEQUENCES["steps"])


_DISTRIBUTION = "collhub-nccl"
_GRAPHS = {"1": "tree", "2": "collnet chain", "3": "NVLS", "4": "collnet direct"}
# NCCL reads device numbers with base 16, with or without 0x; the top byte is the number of the
# system.
_DEVICE = re.compile(r"(0[xX])?0{0,16}[0-7]?[0-9a-fA-F]{1,15}")
_RANK = re.compile(r"[0-9]{1,9}")
# Rows of the step table: four for every message of an all-reduce with its two halves.
_MAX_STEPS = 1 << 22


def read(source: Source, options: RingReadOptions) -> Algorithm:
    """Read the format `nccl-graph` as an algorithm on the rings of the graph.

    The collective is that of `options`; the root of a broadcast or reduce is `options.root`, by
    default 0. Rank i is the GPU with the i-th smallest (rank, device); a missing rank is -1. Ring
    number i sends on channel i. Properties of the graph that rings cannot express are kept as an
    extension.

    Raises `InputError` for invalid XML. Raises `InputError` (`invalid-nccl-graph`) with file and
    line if the root element is not <graphs> of version 1, and for a graph that `_read_ring_graph`
    refuses. Then raises `UsageError` for a root that is not a rank, and for a root of a collective
    that has none.
    """
    content = source.content()
    root = parse(content, source.name)
    if root.name != "graphs":
        _refuse(root, f"the root element is <{root.name}>, not <graphs>")
    if root.text("version") != "1":
        _refuse(
            root, f"version {root.text('version')!r:.40} is not 1, the only one that NCCL reads"
        )
    graph = _read_ring_graph(root, source)
    kind = CollectiveKind(options.collective)
    provenance = Provenance(
        _DISTRIBUTION,
        installed_version(_DISTRIBUTION) or "",
        source.name,
        source.sha256(),
        {"collective": options.collective},
    )
    stated = graph.as_json()
    return ring_algorithm(
        kind,
        graph.channels,
        choose_root(kind, options.root, len(graph.devices)),
        provenance,
        {EXTENSION: stated} if stated else {},
    )


def _refuse(element: Element, message: str, cure: str = "") -> NoReturn:
    raise InputError(message, location=element.place, cure=cure, code="invalid-nccl-graph")


def _read_ring_graph(root: Element, source: Source) -> RingGraph:
    """Return the ring graph of a file, which is the one with id 0.

    Raises `InputError` (`invalid-nccl-graph`) with the line for the first of:

    1. Not exactly one graph has id 0. Otherwise every other graph is reported as a note.
    2. Its pattern is not that of rings.
    3. `nchannels` is not the number of its channels, or there are none, or more than 32.
    4. A device number or rank is not a number; a rank may be missing.
    5. The first channel has not 2 to 256 GPUs, or the algorithm would have more than 2^22 steps.
    6. Another channel does not have each of these GPUs exactly once.
    7. Some GPU has a rank, but not all have one, or two have the same.
    8. `_read_nets` refuses the network devices.
    9. An attribute of `DEFAULT_ATTRIBUTES` is missing or invalid (`is_attribute`); others are
       ignored.
    """
    graphs = [graph for graph in root.named("graph") if graph.text("id") == "0"]
    if len(graphs) != 1:
        _refuse(
            root,
            f"{len(graphs)} graphs have id 0; one ring graph is expected",
            "NCCL dumps it where it runs rings: NCCL_GRAPH_DUMP_FILE",
        )
    for element in root.named("graph"):
        if element is not graphs[0]:
            name = _GRAPHS.get(element.text("id"), "unknown")
            message = f"graph {element.text('id')!r:.20} ({name}) is not read; NCCL finds its own"
            _report_note(source, element, "graph-not-read", message)
    (graph,) = graphs
    if graph.text("pattern") != str(RING_PATTERN):
        _refuse(graph, f"pattern {graph.text('pattern')!r:.20} is not {RING_PATTERN}, a ring")
    channels = list(graph.named("channel"))
    if graph.text("nchannels") != str(len(channels)) or not channels:
        _refuse(
            graph,
            f"nchannels={graph.text('nchannels')!r:.20}, but there are {len(channels)} channels",
        )
    if len(channels) > MAX_CHANNELS:
        _refuse(graph, f"{len(channels)} channels are more than the {MAX_CHANNELS} of NCCL")
    return _check_channels(graph, channels, source)


def _check_channels(graph: Element, channels: list[Element], source: Source) -> RingGraph:
    """Return the ring graph of the channels of a graph, or raise the error of rule 4 to 9.

    The rules are those of `_read_ring_graph`. `channels`: at least one. Positions in the rings are
    those of the GPUs in ascending order of (rank or -1, device). Without any rank, `ranks` is ().
    """
    keys = [[_read_key(gpu) for gpu in channel.named("gpu")] for channel in channels]
    devices = dict(keys[0])
    gpus = len(devices)
    if not 2 <= gpus <= MAX_GPUS:
        _refuse(channels[0], f"the channel has {gpus} GPUs; 2 to {MAX_GPUS} form a ring")
    if len(channels) * gpus * (gpus - 1) * 4 > _MAX_STEPS:
        _refuse(graph, f"{len(channels)} rings of {gpus} GPUs need more than {_MAX_STEPS} steps")
    for channel, row in zip(channels, keys, strict=True):
        if len(row) != gpus or dict(row) != devices:
            _refuse(channel, f"the channel does not hold each of the {gpus} GPUs once")
    position = {key: index for index, key in enumerate(sorted(devices))}
    ranks = [rank for rank, _ in position]
    has_ranks = ranks[-1] >= 0
    if has_ranks and (len(set(ranks)) < gpus or ranks[0] < 0):
        _refuse(channels[0], "the ranks of the GPUs are not all stated and different")
    nets = _read_nets(channels, source)
    attributes = {}
    for name, default in DEFAULT_ATTRIBUTES.items():
        # NCCL requires all of these attributes, except for the latency.
        text = graph.text(name, default if name == "latencyinter" else "")
        if not is_attribute(name, text):
            expected = "a kind of path, such as NVL" if name.startswith("type") else "a number"
            _refuse(graph, f"{name}={text!r:.40} is not {expected}; NCCL requires it")
        attributes[name] = text
    return RingGraph(
        tuple(tuple(position[key] for key, _ in row) for row in keys),
        tuple(devices[key] for key in position),
        tuple(ranks) if has_ranks else (),
        nets,
        attributes,
    )


_Key = tuple[int, int]


def _read_key(gpu: Element) -> tuple[_Key, int]:
    """Return (key, device) of a GPU; the key, (rank or -1, device), sorts and compares GPUs.

    In the file, the device is hexadecimal, with or without `0x`, and the rank is decimal. A
    missing rank is -1. Raise `InputError` for a missing device and for other texts.
    """
    device, rank = gpu.text("dev"), gpu.text("rank")
    if not _DEVICE.fullmatch(device):
        _refuse(gpu, f"dev={device!r:.40} is not a hexadecimal device number")
    if rank and not _RANK.fullmatch(rank):
        _refuse(gpu, f"rank={rank!r:.40} is not a whole number")
    number = int(device, 16)
    return (int(rank) if rank else -1, number), number


def _read_nets(channels: list[Element], source: Source) -> tuple[tuple[int, int], ...]:
    """Return (first, last) network device of every channel, or () if no channel has any.

    Device numbers are hexadecimal in the file. If there are any, a note `one-node` is reported to
    `source`: the rings continue in other nodes, but are read as rings of this node.

    Raises `InputError` (`invalid-nccl-graph`) at the first channel with one of these faults:

    1. It has network devices, but they are not exactly its first and its last element.
    2. A device number is not hexadecimal.

    Then raises it at the first channel of the file if only some channels have network devices.
    """
    pairs = []
    for channel in channels:
        nets = list(channel.named("net"))
        is_framed = len(nets) == 2 and [channel.children[0], channel.children[-1]] == nets
        if nets and not is_framed:
            _refuse(channel, "the network devices are not the first and the last of the channel")
        texts = [net.text("dev") for net in nets]
        for net, text in zip(nets, texts, strict=True):
            if not _DEVICE.fullmatch(text):
                _refuse(net, f"dev={text!r:.40} is not a hexadecimal device number")
        if nets:
            pairs.append((int(texts[0], 16), int(texts[1], 16)))
    if not pairs:
        return ()
    if len(pairs) != len(channels):
        _refuse(channels[0], "only some channels begin and end at network devices")
    message = "the rings continue in other nodes; they are read as rings of this node's ranks"
    _report_note(source, channels[0], "one-node", message)
    return tuple(pairs)


def _report_note(source: Source, element: Element, code: str, message: str) -> None:
    source.report(Diagnostic(code, message, Severity.NOTE, element.place))
