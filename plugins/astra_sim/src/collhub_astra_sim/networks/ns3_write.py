"""Write the topology text of ASTRA-sim's ns-3 backend, or that of SimAI with its servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from collhub_networks import Cable, cables_of

from collhub_astra_sim.options import SIMAI, Ns3WriteOptions
from hub_core.columns import BoolArray
from hub_core.model import Loss, UsageError, format_ranks
from hub_core.network import Topology
from hub_core.plugin_api import Artifact, WriteResult

_PREFIXES = (("G", 10**9), ("M", 10**6), ("K", 10**3), ("", 1))
# For more NPUs, the table of all pairs takes too much memory.
_MOST_JUDGED = 1 << 13


def write(topology: Topology, options: Ns3WriteOptions) -> WriteResult:
    """Writer of the format `ns3`.

    Raises `UsageError` for links that are no cables, and for servers that SimAI cannot describe.
    """
    cables = cables_of(topology)
    header = _format_simai_header if options.header == SIMAI else _format_header
    lines = *header(topology, len(cables), options), *_format_lines(cables)
    content = "".join(lines).encode("ascii")
    losses = (
        *report_name_losses(topology),
        *_report_rounding(cables),
        *_report_forwarding(topology),
    )
    return WriteResult([Artifact("", lambda: content)], losses, ("dimensions", "link order"))


def _format_header(topology: Topology, cables: int, options: Ns3WriteOptions) -> list[str]:
    """Return the lines of counts and of switches."""
    del options
    npus, nodes = topology.num_npus, topology.num_nodes
    return [f"{nodes} {nodes - npus} {cables}\n", " ".join(map(str, range(npus, nodes))) + "\n"]


def _format_simai_header(topology: Topology, cables: int, options: Ns3WriteOptions) -> list[str]:
    """Return the lines of counts, including servers, and of switches, NVSwitches first."""
    npus, nodes = topology.num_npus, topology.num_nodes
    servers = find_servers(topology)
    nvswitches = servers.nvswitches
    other_switches = [node for node in range(npus, nodes) if node not in set(nvswitches)]
    counts = f"{nodes} {servers.npus} {len(nvswitches)} {len(other_switches)} {cables}"
    return [
        f"{counts} {options.gpu_type}\n",
        " ".join(map(str, [*nvswitches, *other_switches])) + "\n",
    ]


def _format_lines(cables: list[Cable]) -> Iterator[str]:
    """Yield one line per cable."""
    for cable in cables:
        rate, delay = _format_rate(cable.bandwidth_bytes_per_s), _format_delay(cable.latency_s)
        yield f"{cable.source} {cable.destination} {rate} {delay} 0\n"


def _format_rate(bandwidth_bytes_per_s: float) -> str:
    """Return the rate in whole bits per second, as in ns-3.

    With the largest prefix that divides it.
    """
    bits = round(bandwidth_bytes_per_s * 8)
    prefix, factor = next(pair for pair in _PREFIXES if bits % pair[1] == 0)
    return f"{bits // factor}{prefix}bps"


def _format_delay(latency_s: float) -> str:
    """Return the latency rounded to whole nanoseconds, with its unit: 500ns."""
    return f"{round(latency_s * 1e9)}ns"


def report_name_losses(topology: Topology) -> Iterator[Loss]:
    """Yield the losses of files of numbers: names of nodes and groups, and in-switch operations."""
    for name, switches in (("multicast", topology.multicast), ("reduction", topology.reduction)):
        if switches:
            yield Loss(name, format_ranks(switches), "switches only forward")
    if topology.node_names:
        yield Loss("node_names", "all nodes", "nodes have only numbers")
    if topology.groups:
        yield Loss("groups", ", ".join(topology.groups), "there are no groups of NPUs")


def _report_rounding(cables: list[Cable]) -> Iterator[Loss]:
    """Yield losses for bandwidths and latencies that change because the file has integers.

    The units are bits per second and ns. At most one loss for bandwidths and one for latencies;
    each names the first affected value.
    """
    for cable in cables:
        bits = cable.bandwidth_bytes_per_s * 8
        if bits != round(bits):
            message = f"written as {_format_rate(cable.bandwidth_bytes_per_s)}"
            yield Loss("bandwidth_bytes_per_s", f"{cable.bandwidth_bytes_per_s} B/s", message)
            break
    for cable in cables:
        latency_ns = round(cable.latency_s * 1e9, 6)
        if latency_ns != round(latency_ns):
            where = f"{latency_ns} ns"
            yield Loss("latency_s", where, f"written as {_format_delay(cable.latency_s)}: whole ns")
            break


def _report_forwarding(topology: Topology) -> Iterator[Loss]:
    """Yield a loss for NPUs connected only via other NPUs, which do not forward in ns-3."""
    if topology.num_npus > _MOST_JUDGED:
        return
    unreachable = np.argwhere(~_find_reached(topology))
    if len(unreachable):
        first, second = unreachable[0].tolist()
        yield Loss(
            f"{len(unreachable)} paths over NPUs",
            f"from NPU {topology.node_name(first)} to NPU {topology.node_name(second)}, ...",
            "NPUs do not forward in ns-3: run algorithms that send only to neighbours",
        )


def _find_reached(topology: Topology) -> BoolArray:
    """Return whether NPU i reaches NPU j without another NPU between them, bool[NPUs, NPUs]."""
    npus = topology.num_npus
    reached = np.eye(npus, dtype=np.bool_)
    is_direct = (topology.source < npus) & (topology.destination < npus)
    reached[topology.source[is_direct], topology.destination[is_direct]] = True
    island = _find_islands(topology)
    goes_up = np.flatnonzero((topology.source < npus) & (topology.destination >= npus))
    reaches = island[topology.destination[goes_up] - npus]
    for number in np.unique(island).tolist():
        members = np.unique(topology.source[goes_up[reaches == number]])
        reached[np.ix_(members, members)] = True
    return reached


def _find_islands(topology: Topology) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return a number for every switch, equal for switches connected via switches."""
    npus = topology.num_npus
    island = np.arange(topology.num_nodes - npus)
    between = (topology.source >= npus) & (topology.destination >= npus)
    switch_pairs = topology.source[between] - npus, topology.destination[between] - npus
    # The minimum number spreads over every link until no number changes.
    while len(switch_pairs[0]):
        before = island.copy()
        np.minimum.at(island, switch_pairs[1], before[switch_pairs[0]])
        if np.array_equal(island, before):
            break
    return island


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers of equal size and their switches.

    `npus`: number of consecutive NPUs of each server; `nvswitches`: nodes that connect only NPUs of
    one server.
    """

    npus: int
    nvswitches: list[int]


def find_servers(topology: Topology) -> Servers:
    """Find the switches that connect only consecutive NPUs, which also have other links.

    Without any, every NPU is a server. Raises `UsageError` for servers that SimAI cannot number: it
    divides the number of an NPU by the server size.
    """
    npus = topology.num_npus
    ends = np.unique(np.stack([topology.source, topology.destination]), axis=1)
    links = np.bincount(ends[0], minlength=topology.num_nodes)
    npus_of_switch: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
    for switch in range(npus, topology.num_nodes):
        neighbours = ends[1][ends[0] == switch]
        # A leaf connects switches, a rail one NPU per server, a single switch NPUs with one link.
        is_inside = len(neighbours) > 1 and neighbours[-1] < npus and links[neighbours].min() > 1
        if is_inside and neighbours[-1] - neighbours[0] == len(neighbours) - 1:
            npus_of_switch[switch] = neighbours
    # A switch of all NPUs connects servers, unless there is only one server.
    inner = {
        switch: neighbours
        for switch, neighbours in npus_of_switch.items()
        if len(neighbours) < npus
    }
    npus_of_switch = inner or npus_of_switch
    if not npus_of_switch:
        return Servers(1, [])
    size = max(len(neighbours) for neighbours in npus_of_switch.values())
    for switch, neighbours in npus_of_switch.items():
        if len(neighbours) != size or neighbours[0] % size:
            name = topology.node_name(switch)
            message = (
                f"{name} joins NPUs {neighbours[0]} to {neighbours[-1]}, "
                f"others {size} NPUs of a server"
            )
            cure = "leave out -O header=simai: its servers have one size, and follow each other"
            raise UsageError(message, cure=cure, code="uneven-servers")
    return Servers(size, list(npus_of_switch))
