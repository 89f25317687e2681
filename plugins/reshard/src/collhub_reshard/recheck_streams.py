"""Re-check the proof of streams on a topology.

Deliveries follow from the moves, the load of links from the streams, and the bound from the weights
of links; no solver is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

import numpy as np
from collhub_shardings import UnitTasks, unit_tasks

from collhub_reshard.fabric_links import (
    Delivery,
    FabricLinks,
    compute_proved_bound_s,
    group_deliveries,
)
from collhub_reshard.fabric_streams import DeliveryStream, compute_stream_time_s
from collhub_reshard.proof import (
    Interval,
    ProofFlawError,
    check_labels,
    is_covering,
    parse_fraction,
    parse_move_object,
    place_on_hosts,
    read_hosts,
    report_valid_proof,
    require_integer,
    require_list,
    require_number,
)
from hub_core.model import Algorithm, JsonValue, StepKind
from hub_core.network import Topology
from hub_core.plugin_api import CheckReport

# Sums of larger weights would not be exact in float64.
_MAX_WEIGHT = 10**6


@dataclass(frozen=True, slots=True)
class _StreamClaim:
    """The streams and links of a proof, with the deliveries that follow from its moves."""

    document: Mapping[str, JsonValue]
    units: UnitTasks
    deliveries: Sequence[Delivery]
    fabric: FabricLinks
    streams: Sequence[DeliveryStream]


def check_streams(
    algorithm: Algorithm, document: Mapping[str, JsonValue], topology: Topology | None
) -> CheckReport:
    """Check a proof of streams and return the report of the valid proof.

    Raises `ProofFlawError` for the first flaw, in this order of the checks:

    1. The labels (`check_labels`), the links and moves (`_read_claim`), and the streams.
    2. The makespan must be the exact time of the busiest link.
    3. The weights of links must be valid (`_read_weights`). The kind of the bound must be
       `links`, or `nothing` without deliveries. Its seconds must be those that the weights
       prove.
    4. The makespan must not be below the bound, and must equal it if the document has `proof`
       "bound".
    5. The messages of the algorithm must send the bytes of the streams.

    If the makespan equals the bound, the verdict is that no schedule is faster. Otherwise it
    tells by how many percent the streams may be longer than the best schedule. Names of
    tensors, method, hosts and, without a topology, the network are listed as not proved.

    Raises `KeyError`, `TypeError` or `ValueError` for a malformed document. Raises `InputError`
    for moves that do not parse, links that no network has, and devices without a path.
    """
    check_labels(document)
    claim = _read_claim(document, topology)
    _check_streams(claim)
    makespan = compute_stream_time_s(claim.fabric, claim.deliveries, claim.streams)
    if makespan != parse_fraction(document["makespan_s"], "makespan_s"):
        raise ProofFlawError("makespan", "the makespan is not that of the fullest link")
    weights = _read_weights(claim)
    bound = compute_proved_bound_s(claim.fabric, claim.deliveries, weights)
    claimed = cast("Mapping[str, JsonValue]", document["bound"])
    if claimed["kind"] != ("links" if claim.deliveries else "nothing"):
        raise ProofFlawError("bound", f"{claimed['kind']!r:.40} is no bound of streams")
    if bound != parse_fraction(claimed["seconds"], "the bound"):
        message = f"the weights of links prove {bound} s, not {claimed['seconds']} s as claimed"
        raise ProofFlawError("bound", message)
    if makespan < bound:
        raise ProofFlawError(
            "bound", "the streams are faster than their bound: one of them is wrong"
        )
    if document["proof"] == "bound" and makespan != bound:
        raise ProofFlawError("optimal", "claimed optimal by its bound, but the streams take longer")
    _check_messages(claim, algorithm)
    gap = float(makespan / bound - 1) if bound else 0.0
    verdict = f"holds: at most {100 * gap:.3g} % longer than any schedule"
    if makespan == bound:
        verdict = "holds: no schedule is faster"
    unproved = {
        "moves.name": "the names of tensors",
        "method": f"the method {document['method']!r:.40}",
        "host_of": "the hosts of devices, which streams do not use",
    }
    if topology is None:
        network = "the network, taken from the proof: give --topology"
        unproved |= dict.fromkeys(("links", "nodes", "npus"), network)
    binding = _describe_links(claim, weights)
    return report_valid_proof(verdict, makespan, bound, makespan == bound, binding, unproved)


def _read_claim(document: Mapping[str, JsonValue], topology: Topology | None) -> _StreamClaim:
    """Read the moves, links and streams of a proof of streams, and group the moves into deliveries.

    Routes are those of `topology`, or if it is None, of the links in the proof. `fabric.devices`
    are all senders and receivers of the moves. Errors:

    - `ProofFlawError` `form`: a move has a release time other than 0 or any due time, the hosts are
      wrong, or a number of a link or stream is malformed.
    - `ProofFlawError` `topology`: node numbers or links of the proof differ from those of
      `topology`. Links are compared in order, by ends, bandwidth and plane, not by latency.
    - `KeyError`, `TypeError` or `ValueError`: a field is missing or has another form.
    - `InputError`: moves that do not parse, links that no network has, devices without a path.
    """
    moves = [
        parse_move_object(cast("Mapping[str, JsonValue]", entry))
        for entry in require_list(document["moves"])
    ]
    if any(move.release_s or move.due_s is not None for move in moves):
        raise ProofFlawError("form", "streams cannot have release or due times")
    hosts = read_hosts(document, moves)
    units = unit_tasks([place_on_hosts(move, hosts) for move in moves])
    network = _read_network(document)
    if topology is not None and not _are_equal(network, topology):
        raise ProofFlawError(
            "topology", f"the proof is for links other than those of {topology.name}"
        )
    devices = [*units.senders.tolist(), *units.receivers.tolist()]
    fabric = FabricLinks.of(topology or network, devices)
    deliveries = group_deliveries(units)
    streams = list(_read_streams(document, len(deliveries)))
    return _StreamClaim(document, units, deliveries, fabric, streams)


def _read_network(document: Mapping[str, JsonValue]) -> Topology:
    """Read the network that a proof of streams contains; all latencies are 0.

    The document has the numbers `npus` and `nodes`, and `links` as three lists: sources,
    destinations and rates in bytes/s. Links keep their order.

    Raises `ProofFlawError` (`form`) for an end of a link that is no integer from 0 to `nodes` - 1,
    and for a rate that is no finite number from 0 on. It also does so for a number of nodes or
    NPUs that is no integer from 0 on. Raises `KeyError` for a missing field, `TypeError` for
    another value than a list, `ValueError` if `links` is not three lists, and `InputError` for
    links that no network has.
    """
    node_count = require_integer(document["nodes"], "nodes", 0)
    sources, destinations, rates = map(require_list, require_list(document["links"]))
    # A conversion by numpy would accept 0.9, true and "1" as node numbers.
    source, destination = (
        [
            require_integer(end, f"the {name} of link {link}", 0, node_count - 1)
            for link, end in enumerate(column)
        ]
        for name, column in (("source", sources), ("destination", destinations))
    )
    bandwidth_bytes_per_s = [
        require_number(rate, f"the rate of link {link}", "a rate in bytes/s")
        for link, rate in enumerate(rates)
    ]
    return Topology(
        "stated",
        require_integer(document["npus"], "npus", 0),
        node_count,
        np.asarray(source, np.int64),
        np.asarray(destination, np.int64),
        np.asarray(bandwidth_bytes_per_s, np.float64),
        np.zeros(len(rates)),
    )


def _are_equal(claimed: Topology, actual: Topology) -> bool:
    """Return whether two networks have equal numbers of NPUs and nodes, and the same links.

    Source, destination, bandwidth and plane of the links are compared in their order,
    because the order decides the routes. Latencies, names and groups are not compared.
    """
    sizes = (claimed.num_npus, claimed.num_nodes) == (actual.num_npus, actual.num_nodes)
    return sizes and all(
        np.array_equal(column, actual_column)
        for column, actual_column in (
            (claimed.source, actual.source),
            (claimed.destination, actual.destination),
            (claimed.bandwidth_bytes_per_s, actual.bandwidth_bytes_per_s),
            (claimed.plane, actual.plane),
        )
    )


def _read_streams(
    document: Mapping[str, JsonValue], delivery_count: int
) -> Iterator[DeliveryStream]:
    """Yield the streams of the proof in order: number of the delivery, (source, destination)
    devices, and the exact first and last fraction of the delivery. Raises `TypeError` if `streams`
    is no list, `TypeError` or `ValueError` for entries of another form, and `ProofFlawError`
    ("form") for a delivery that does not exist and a part that is empty or not within 0..1.
    """
    for number, entry in enumerate(require_list(document["streams"])):
        delivery, edges, first, last = require_list(entry)
        where = f"of stream {number}"
        devices = []
        for edge in require_list(edges):
            source, destination = (
                require_integer(device, f"a device {where}", 0) for device in require_list(edge)
            )
            devices.append((source, destination))
        part = tuple(parse_fraction(end, f"a part {where}") for end in (first, last))
        if part[0] >= part[1]:
            raise ProofFlawError(
                "form", f"the part {where} is {part[0]} to {part[1]}, expected first < last"
            )
        index = require_integer(delivery, f"the delivery {where}", 0, delivery_count - 1)
        yield DeliveryStream(index, tuple(devices), (part[0], part[1]))


def _check_streams(claim: _StreamClaim) -> None:
    """Check that streams bring every byte of each delivery to all receivers, once.

    Streams are checked in order, and the edges of each in order. A stream starts at the senders
    of its delivery; the end of an edge then holds the stream too. Raises `ProofFlawError` for the
    first flaw:

    - `sender`: an edge starts at a device that does not hold the stream yet, or ends at a
      device that is no sender or receiver of any move.
    - `receivers`: a stream does not reach all receivers of its delivery.
    - `coverage`, after all streams: the parts of a delivery, fractions of it, do not fill 0 to
      1 without gaps and overlaps. A delivery without streams has a gap.
    """
    parts: list[list[Interval]] = [[] for _ in claim.deliveries]
    for stream in claim.streams:
        delivery = claim.deliveries[stream.delivery]
        parts[stream.delivery].append(stream.part)
        holders = set(delivery.senders)
        for source, destination in stream.edges:
            if source not in holders or destination not in claim.fabric.devices:
                message = f"device {source} passes on delivery {stream.delivery} before it has it"
                raise ProofFlawError("sender", message)
            holders.add(destination)
        if not holders.issuperset(delivery.receivers):
            message = f"a stream of delivery {stream.delivery} does not reach all receivers"
            raise ProofFlawError("receivers", message)
    for number, intervals in enumerate(parts):
        if not is_covering(intervals):
            raise ProofFlawError(
                "coverage", f"delivery {number} is not sent completely, or a part is sent twice"
            )


def _read_weights(claim: _StreamClaim) -> dict[int, int]:
    """Read the weights of links that prove the bound, by link number.

    The document has a list of pairs [link, weight]. Raises `ProofFlawError` (`bound`) for an
    unknown or repeated link and a weight that is not in 1..`_MAX_WEIGHT`; `ProofFlawError` (`form`)
    for a value that is no integer or below 0; `TypeError` for another value than a list;
    `ValueError` for a list that is no pair.
    """
    claimed = cast("Mapping[str, JsonValue]", claim.document["bound"])
    weights: dict[int, int] = {}
    for entry in require_list(claimed["weights"]):
        link, weight = (
            require_integer(value, "a link or weight of the bound", 0)
            for value in require_list(entry)
        )
        is_known = link < len(claim.fabric.rates) and link not in weights
        if not is_known or not 1 <= weight <= _MAX_WEIGHT:
            raise ProofFlawError("bound", f"link {link} with weight {weight} proves nothing")
        weights[link] = weight
    return weights


def _check_messages(claim: _StreamClaim, algorithm: Algorithm) -> None:
    """Check that the algorithm sends the bytes of the streams, and only between their devices.

    Rank r is device r. A unit has (bytes of the collective / units) bytes, 0 if these bytes are
    None. Raises `ProofFlawError` (`traffic`) for the first violation:

    1. A SEND is between two devices that are not an edge (source, destination) of a stream.
    2. The SENDs over an edge have too few bytes. Required is the sum over its streams of the bytes
       of the stream, minus one unit for each box (block of a tensor) of which the stream carries
       bytes. This tolerance is needed, because boxes are divided at unit boundaries. Edges are
       checked in the order of the streams. More bytes are allowed.
    """
    unit = Fraction(algorithm.collective_bytes or 0, algorithm.collective.unit_count)
    required: dict[tuple[int, int], Fraction] = {}
    for stream in claim.streams:
        delivery = claim.deliveries[stream.delivery]
        size = (stream.part[1] - stream.part[0]) * delivery.bytes
        allowance = unit * len(list(delivery.boxes(stream.part)))
        for edge in stream.edges:
            required[edge] = required.get(edge, Fraction(0)) + size - allowance
    steps = algorithm.steps
    rows = np.flatnonzero(steps.kind == StepKind.SEND)
    sent: dict[tuple[int, int], int] = {}
    columns = (steps.rank[rows], steps.peer[rows], steps.count[rows])
    for source, destination, count in zip(*(column.tolist() for column in columns), strict=True):
        sent[source, destination] = sent.get((source, destination), 0) + count
    if not sent.keys() <= required.keys():
        raise ProofFlawError(
            "traffic", "the algorithm sends between other devices than the streams"
        )
    for edge, size in required.items():
        if sent.get(edge, 0) * unit < size:
            raise ProofFlawError(
                "traffic", f"device {edge[0]} sends too little to device {edge[1]}"
            )


def _describe_links(claim: _StreamClaim, weights: Mapping[int, int]) -> str:
    """Return the links that prove the bound as text, such as `2 links: a -> b, b -> c`.

    The keys of `weights` are link numbers. The text begins with their number, always with
    the word `links` (`1 links`, `0 links`). The source and destination node of the two
    links with the lowest numbers follow, and ` ...` if there are more than two links.
    """
    topology = claim.fabric.topology
    names = [
        f"{topology.node_name(int(topology.source[link]))} -> "
        f"{topology.node_name(int(topology.destination[link]))}"
        for link in sorted(weights)[:2]
    ]
    return f"{len(weights)} links: " + ", ".join(names) + (" ..." if len(weights) > 2 else "")
