"""Re-check the proof of streams on a topology: what they bring, how full links are, the bound.

Deliveries follow from the moves, the load of links from the streams, and the bound from the weights
of links; no solver is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

import numpy as np
from collhub_shardings import UnitTasks, unit_tasks

from collhub_reshard.fabric.bound import compute_proved_bound_s
from collhub_reshard.fabric.links import Delivery, FabricLinks, group_deliveries
from collhub_reshard.fabric.streams import Stream, compute_stream_time_s
from collhub_reshard.proof import (
    FlawError,
    Interval,
    check_labels,
    is_covering,
    parse_move_object,
    place_on_hosts,
    report_valid_proof,
    require_list,
)
from hub_core.model import Algorithm, JsonValue, StepKind
from hub_core.network import Topology
from hub_core.plugin_api import CheckReport

# Weights beyond would not be exact in float64 sums.
_MOST_WEIGHT = 10**6


@dataclass(frozen=True, slots=True)
class _Claim:
    """Streams as they are stated, on the stated links, with the deliveries of the moves."""

    document: Mapping[str, JsonValue]
    units: UnitTasks
    deliveries: Sequence[Delivery]
    fabric: FabricLinks
    streams: Sequence[Stream]


def check_streams(
    algorithm: Algorithm, document: Mapping[str, JsonValue], topology: Topology | None
) -> CheckReport:
    """The report on a proof. Raises `FlawError`, and other errors for what has not its form."""
    check_labels(document)
    claim = _read_claim(document, topology)
    _check_streams(claim)
    makespan = compute_stream_time_s(claim.fabric, claim.deliveries, claim.streams)
    if makespan != Fraction(str(document["makespan_s"])):
        raise FlawError("makespan", "the makespan is not that of the fullest link")
    weights = _read_weights(claim)
    bound = compute_proved_bound_s(claim.fabric, claim.deliveries, weights)
    stated = cast("Mapping[str, JsonValue]", document["bound"])
    if stated["kind"] != ("links" if claim.deliveries else "nothing"):
        raise FlawError("bound", f"{stated['kind']!r:.40} is no bound of streams")
    if bound != Fraction(str(stated["seconds"])):
        message = f"the weights of links prove {bound} s, not {stated['seconds']} s as claimed"
        raise FlawError("bound", message)
    if makespan < bound:
        raise FlawError("bound", "the streams are faster than their bound: one of them is wrong")
    if document["proof"] == "bound" and makespan != bound:
        raise FlawError("optimal", "called optimal by its bound, but it is longer")
    _check_messages(claim, algorithm)
    gap = float(makespan / bound - 1) if bound else 0.0
    verdict = f"holds: at most {100 * gap:.3g} % longer than any schedule"
    if makespan == bound:
        verdict = "holds: no schedule is faster"
    unproved = {
        "moves.name": "the names of tensors",
        "method": f"the method {document['method']!r:.40}",
        "host_of": "the hosts of devices, which do not matter for streams",
    }
    if topology is None:
        network = "the network, which is taken as stated: give --topology"
        unproved |= dict.fromkeys(("links", "nodes", "npus"), network)
    binding = _describe_links(claim, weights)
    return report_valid_proof(verdict, makespan, bound, makespan == bound, binding, unproved)


def _read_claim(document: Mapping[str, JsonValue], topology: Topology | None) -> _Claim:
    moves = [
        parse_move_object(cast("Mapping[str, JsonValue]", one))
        for one in require_list(document["moves"])
    ]
    if any(move.release_s or move.due_s is not None for move in moves):
        raise FlawError("form", "streams have no release or due times, which are stated")
    hosts = np.asarray(document["host_of"], np.int64)
    units = unit_tasks([place_on_hosts(move, hosts) for move in moves])
    network = _read_topology(document)
    if topology is not None and not _are_equal(network, topology):
        raise FlawError("topology", f"it is for other links than those of {topology.name}")
    devices = [*units.senders.tolist(), *units.receivers.tolist()]
    fabric = FabricLinks.of(topology or network, devices)
    return _Claim(document, units, group_deliveries(units), fabric, list(_streams(document)))


def _read_topology(document: Mapping[str, JsonValue]) -> Topology:
    """The stated links; their latency takes no part in the proof."""
    source, destination, rate = (require_list(column) for column in require_list(document["links"]))
    return Topology(
        "stated",
        int(cast("int", document["npus"])),
        int(cast("int", document["nodes"])),
        np.asarray(source, np.int64),
        np.asarray(destination, np.int64),
        np.asarray(rate, np.float64),
        np.zeros(len(rate)),
    )


def _are_equal(stated: Topology, real: Topology) -> bool:
    """Whether two networks have the same links in the same order, which decides the routes."""
    sizes = (stated.num_npus, stated.num_nodes) == (real.num_npus, real.num_nodes)
    return sizes and all(
        np.array_equal(one, other)
        for one, other in (
            (stated.source, real.source),
            (stated.destination, real.destination),
            (stated.bandwidth_bytes_per_s, real.bandwidth_bytes_per_s),
            (stated.plane, real.plane),
        )
    )


def _streams(document: Mapping[str, JsonValue]) -> Iterator[Stream]:
    for entry in require_list(document["streams"]):
        delivery, edges, first, last = cast("tuple[int, list[list[int]], str, str]", entry)
        named = tuple((int(source), int(destination)) for source, destination in edges)
        yield Stream(int(delivery), named, (Fraction(first), Fraction(last)))


def _check_streams(claim: _Claim) -> None:
    """Every part of a delivery goes once, from who has it, to all that need it."""
    parts: list[list[Interval]] = [[] for _ in claim.deliveries]
    for stream in claim.streams:
        delivery = claim.deliveries[stream.delivery]
        parts[stream.delivery].append(stream.part)
        holders = set(delivery.senders)
        for source, destination in stream.edges:
            if source not in holders or destination not in claim.fabric.devices:
                message = f"device {source} passes on delivery {stream.delivery} before it has it"
                raise FlawError("sender", message)
            holders.add(destination)
        if not holders.issuperset(delivery.receivers):
            message = f"a stream of delivery {stream.delivery} does not reach all receivers"
            raise FlawError("receivers", message)
    for number, found in enumerate(parts):
        if not is_covering(found):
            raise FlawError("coverage", f"delivery {number} is not sent as a whole")


def _read_weights(claim: _Claim) -> dict[int, int]:
    """The stated weights by link, none below 1."""
    stated = cast("Mapping[str, JsonValue]", claim.document["bound"])
    found: dict[int, int] = {}
    for entry in require_list(stated["weights"]):
        link, weight = cast("tuple[int, int]", entry)
        is_known = 0 <= link < len(claim.fabric.rates) and link not in found
        if not is_known or not isinstance(weight, int) or not 1 <= weight <= _MOST_WEIGHT:
            raise FlawError("bound", f"link {link} with weight {weight} proves nothing")
        found[link] = weight
    return found


def _check_messages(claim: _Claim, algorithm: Algorithm) -> None:
    """The algorithm sends between the devices of streams, and at least the bytes of each pair."""
    unit = Fraction(algorithm.collective_bytes or 0, algorithm.collective.unit_count)
    due: dict[tuple[int, int], Fraction] = {}
    for stream in claim.streams:
        delivery = claim.deliveries[stream.delivery]
        size = (stream.part[1] - stream.part[0]) * delivery.bytes
        # A part of a box ends at a whole unit, so that each may be less than a unit short.
        short = unit * len(list(delivery.boxes(stream.part)))
        for edge in stream.edges:
            due[edge] = due.get(edge, Fraction(0)) + size - short
    steps = algorithm.steps
    rows = np.flatnonzero(steps.kind == StepKind.SEND)
    sent: dict[tuple[int, int], int] = {}
    columns = (steps.rank[rows], steps.peer[rows], steps.count[rows])
    for source, destination, count in zip(*(one.tolist() for one in columns), strict=True):
        sent[source, destination] = sent.get((source, destination), 0) + count
    if not sent.keys() <= due.keys():
        raise FlawError("traffic", "the algorithm sends between other devices than the streams")
    for edge, size in due.items():
        if sent.get(edge, 0) * unit < size:
            raise FlawError("traffic", f"device {edge[0]} sends too little to device {edge[1]}")


def _describe_links(claim: _Claim, weights: Mapping[int, int]) -> str:
    """The binding links for people."""
    topology = claim.fabric.topology
    names = [
        f"{topology.node_name(int(topology.source[link]))} -> "
        f"{topology.node_name(int(topology.destination[link]))}"
        for link in sorted(weights)[:2]
    ]
    return f"{len(weights)} links: " + ", ".join(names) + (" ..." if len(weights) > 2 else "")
