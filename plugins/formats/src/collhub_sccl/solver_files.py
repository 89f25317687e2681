"""Read and write the inputs of TACCL's solver: the profile of a node, and a sketch.

taccl solve HubAndSpoke Allgather --topology-file NAME.taccl.json --sketch-file NAME.sketch.json

A profile is read as the network of one node, or of several. A node with equal pairs is written as a
`HubAndSpoke` (or `DGX2`), all others with matrices, for `custom`: the constructor of that name in
microsoft/taccl 426bd1e raises an error, but uses these keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
from collhub_networks import DocumentValue, document_of

from collhub_sccl.plugin import TacclReadOptions, TacclSketchOptions, TacclTopologyOptions
from collhub_sccl.taccl_machine import TacclMachine, build_machine
from hub_core.columns import Float64Array
from hub_core.model import Diagnostic, JsonValue, Location, Loss, Severity, UsageError
from hub_core.network import Links, Topology
from hub_core.plugin_api import Artifact, Source, WriteResult

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


# Chunk at the end of a name; 1 KB of TACCL is 2^10 bytes.
_NAMED_SIZE = re.compile(r"_([1-9][0-9]{0,5})([KMG])B\Z")
# Of microsoft/taccl, examples/topo: alpha is 0.3 us in all of them, as 0.3 (1 MB), 3 (32 KB) and 30
# (1 KB); a chunk of 32 KB takes 1/32 of that of 1 MB.
_PUBLISHED_UNITS_PER_S = {1 << 10: 1e8, 32 << 10: 1e7}


_HYPEREDGES = ("uc-min", "uc-max")


_CONSEQUENCES = {
    "num_npus": "a different number of GPUs is read back",
    "num_nodes": "pairs of GPUs are joined directly: the sketch contains the switches they share",
    "links": "pairs of GPUs are joined directly, and all links have the node's maximum latency",
    "link_order": "links are read back in a different order, which decides between equal routes",
    "node_names": "nodes have only numbers",
    "groups": "there are no groups of NPUs",
    "dimensions": "the network is not known to be regular",
    "multicast": "multicast of switches is not written",
    "reduction": "reduction in switches is not written",
}


# The solver truncates times to integers: with at least 100 units the error is at most a percent.
_MIN_UNITS = 100


def read(source: Source, options: TacclReadOptions) -> Topology:
    """Read a profile as a network of `options.nodes` equal nodes, whose GPUs become NPUs.

    NPUs are numbered node by node. Units of times are those of the file (`chunk_bytes`,
    `units_per_second`), else those of the options, else assumed with a warning (`_read_units`).
    Links within nodes come first, node by node, in the order of `_iterate_pairs`; a pair may have
    several. They have the latency `alpha` and the bandwidth of the pair.

    With several nodes, each GPU is also linked with the GPU of the same number in every other node.
    The latency is `remote_alpha`, the bandwidth that of `remote_beta` times `nics_per_node` divided
    by the GPUs of a node. The order is by source node, destination node and GPU.

    Raises `InputError` (`invalid-taccl-topology`) with file and path of the first defect, also for
    more than 1024 GPUs in all nodes, for several GPUs without any link, and for a sketch, i.e.
    hints for TACCL's solver without times.
    """
    root = document_of(source, CODE)
    if root.get("intranode_sketch") is not None:
        message = "a sketch tells TACCL's solver how to search, and has no links with times"
        root.fail(message, "read the profile of the node that belongs to it (topo-*.json)")
    units = _read_units(root, options, source)
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
        # The GPUs of a node share its network cards equally.
        cards = root["nics_per_node"].count(gpus)
        rate = units.to_bandwidth(root["remote_beta"]) * cards / gpus
        for source_node, destination_node in permutations(range(options.nodes), 2):
            for gpu in range(gpus):
                rows.append((source_node * gpus + gpu, destination_node * gpus + gpu, rate))
        latencies += [units.to_latency_s(root["remote_alpha"])] * (len(rows) - len(latencies))
    if not rows and gpus * options.nodes > 1:
        root.fail("no two GPUs are joined", "state links, or node_betas_list")
    # An empty list has no columns.
    link_ends = np.asarray([row[:2] for row in rows], np.int64).reshape(-1, 2)
    rates = np.asarray([row[2] for row in rows], np.float64)
    links = Links(link_ends[:, 0], link_ends[:, 1], rates, np.asarray(latencies, np.float64))
    npus = gpus * options.nodes
    return links.topology(root["name"].text(), npus, npus)


def write_topology(topology: Topology, options: TacclTopologyOptions) -> WriteResult:
    """Write the profile of one of `options.nodes` equal nodes, in the format `taccl-topology`.

    The result has one file without a name. The losses are the differences to the network that would
    be read back. Raises `UsageError` for a network that TACCL cannot represent, and `InputError` if
    a pair of NPUs has no path (`build_machine`).
    """
    machine = build_machine(topology, options.nodes)
    content = _format_document(_build_profile(topology.name, machine, options.chunk))
    # The network that would be read back decides the losses, so that none is overlooked.
    back = read(Source.of_bytes(topology.name, content), TacclReadOptions(nodes=options.nodes))
    losses = [
        Loss(feature, "the entire network", _CONSEQUENCES[feature])
        for feature in topology.differences(back)
    ]
    return WriteResult([Artifact("", content)], tuple(losses))


def write_sketch(topology: Topology, options: TacclSketchOptions) -> WriteResult:
    """Write a search hint for the solver TACCL: one file in the format `taccl-sketch`.

    The network is divided into `options.nodes` equal nodes (`nnodes`). In a node with a switch
    (`is_switched`), `intranode_sketch` has one switch of all GPUs, with the strategy
    `options.hyperedges`: `uc-min`, also if empty, or `uc-max`. Other nodes have the strategy
    `none`. Only with several nodes, `internode_sketch` has the receivers in other nodes by GPU,
    and `symmetry_offsets` is [[GPUs of a node, all GPUs]], else []. `input_chunkup` is
    `options.chunks`. The result always has exactly one loss: a sketch contains no network.

    Raises `UsageError` for any other value of `hyperedges`, which is checked first, and for a
    network that TACCL cannot represent, such as one of unequal nodes (`build_machine`).
    Raises `InputError` if a pair of NPUs has no path.
    """
    hyperedges = options.hyperedges or _HYPEREDGES[0]
    if hyperedges not in _HYPEREDGES:
        raise UsageError(f"option hyperedges: {hyperedges!r} is none of {', '.join(_HYPEREDGES)}")
    machine = build_machine(topology, options.nodes)
    gpus = machine.gpus_per_node
    all_gpus: list[JsonValue] = list(range(gpus))
    within: dict[str, JsonValue] = {"strategy": "none"}
    if machine.is_switched:
        within = {
            "strategy": "switch",
            "switches": [all_gpus],
            "switch_hyperedge_strategy": [hyperedges],
        }
    content: dict[str, JsonValue] = {"nnodes": machine.nodes, "intranode_sketch": within}
    offsets: list[JsonValue] = []
    if machine.remote is not None:
        receivers = machine.remote.receivers
        content["internode_sketch"] = {
            "strategy": "relay",
            "internode_conn": {str(gpu): list(targets) for gpu, targets in receivers.items()},
        }
        # Algorithms may be symmetric between nodes.
        offsets = [[gpus, gpus * machine.nodes]]
    content["symmetry_offsets"] = offsets
    content["hyperparameters"] = {"input_chunkup": options.chunks}
    loss = Loss("links", "the entire network", "a sketch guides the search but has no network")
    return WriteResult([Artifact("", _format_document(content))], (loss,))


def _read_units(root: DocumentValue, options: TacclReadOptions, source: Source) -> _Units:
    """Return the chunk size in bytes, and the time units per second, of a file of the solver.

    Both are decided separately. The first source that has a value is used:

    1. the file: `chunk_bytes`, `units_per_second`
    2. the options `chunk` and `unit`
    3. an assumption. Chunk: the size at the end of the name (`NDv2_1KB` is 1024 bytes),
       otherwise 1 MiB. Unit: 10 ns for a chunk of 1 KiB, 100 ns for 32 KiB, otherwise 1 us.

    One warning (`assumed-units`) names all assumed values. Raises `InputError` for invalid
    values of the file.
    """
    chunk, per_s = root.get("chunk_bytes"), root.get("units_per_second")
    assumed = []
    if chunk is not None:
        chunk_bytes = chunk.count(_MAX_CHUNK_BYTES)
    elif options.chunk is not None:
        chunk_bytes = options.chunk
    else:
        named = _NAMED_SIZE.search(root["name"].text())
        chunk_bytes = int(named[1]) << 10 * ("KMG".index(named[2]) + 1) if named else 1 << 20
        assumed.append(f"times of a chunk of {chunk_bytes} bytes")
    if per_s is not None:
        units_per_s: float = per_s.count(_MAX_UNITS_PER_SECOND)
    elif options.unit is not None:
        units_per_s = 1 / options.unit
    else:
        units_per_s = _PUBLISHED_UNITS_PER_S.get(chunk_bytes, 1e6)
        assumed.append(f"{1e9 / units_per_s:g} ns as unit")
    if assumed:
        message = f"the file does not state its units; assumed: {' and '.join(assumed)}"
        cure = "give them as FILE?chunk=1MiB&unit=1us"
        finding = Diagnostic(
            "assumed-units", message, Severity.WARNING, Location(source.name), cure
        )
        source.report(finding)
    return _Units(chunk_bytes, units_per_s)


@dataclass(frozen=True, slots=True)
class _Units:
    """Units of the numbers in a profile: bytes of a chunk, and time units per second."""

    chunk_bytes: int
    per_s: float

    def to_bandwidth(self, beta: DocumentValue) -> float:
        """Convert the time of one chunk to a bandwidth in bytes per second.

        `beta`: the time in the profile's units of time. The rate is the bytes of a chunk
        divided by the time in seconds. Rates of at least 1e6 bytes/s are rounded to an integer.
        Raises `InputError` for a time that is not a positive number, or that gives a rate below
        1 or above 1e18 bytes/s.
        """
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

    def to_latency_s(self, alpha: DocumentValue) -> float:
        """Convert a latency from the profile's units of time to seconds; 0 is permitted.

        Raise `InputError` for a negative value and for one that is not a finite number; a
        number as text is accepted.
        """
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


def _iterate_pairs(
    root: DocumentValue,
    gpus: int,
    units: _Units,
) -> Iterator[_Pair]:
    """Yield the links within a node: from the file's matrices if it has them, else from its times.

    If the file has `links`, the result is that of `_iterate_matrix_pairs`. Otherwise
    `node_betas_list` has the times of one chunk over a link:

    - One time: one link from each GPU to each other GPU, by source, then by destination.
    - Two times and eight GPUs (an NDv2): the first time is for the pairs `_DOUBLE`, which
      NVLink joins twice, the second for the pairs `_SINGLE`. Each pair becomes one link in
      either direction with the bandwidth of its time, in the order of these constants. Other
      pairs have no link.

    Raises `InputError` for any other list of times, and for invalid values.
    """
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


def _iterate_matrix_pairs(root: DocumentValue, gpus: int, units: _Units) -> Iterator[_Pair]:
    """Yield the links of the matrices `links` and `betas`, by source, then by destination.

    Row d, column s of both matrices is for the link from GPU s to GPU d. In `links` it is the
    number of parallel links, 0 to 64; 0 means none, and `betas` is then not read. In `betas` it is
    the time of one chunk in the profile's units. The bandwidth is the bytes of a chunk divided by
    this time, rounded to an integer from 1e6 bytes/s on.

    Raises `InputError` for matrices that are not `gpus` x `gpus`, a link from a GPU to itself, an
    invalid number, and a bandwidth below 1 or above 1e18 bytes/s.
    """
    counts, betas = _read_matrix(root["links"], gpus), _read_matrix(root["betas"], gpus)
    for source, destination in product(range(gpus), repeat=2):
        count = counts[destination][source]
        if count.raw == 0:
            continue
        if source == destination:
            count.fail("a GPU is joined to itself", "state 0 on the diagonal")
        links = count.count(_MAX_PARALLEL_LINKS)
        yield _Pair(source, destination, links, units.to_bandwidth(betas[destination][source]))


def _read_matrix(value: DocumentValue, gpus: int) -> list[list[DocumentValue]]:
    """Return the rows of a matrix as values whose types are not checked.

    Raise `InputError` with the JSON path unless it is a list of `gpus` lists of `gpus`
    values.
    """
    rows = [list(row.items()) for row in value.items()]
    sizes = {len(rows), *(len(row) for row in rows)}
    if sizes != {gpus}:
        value.fail(f"expected {gpus} rows of {gpus} values", "state a value for every two GPUs")
    return rows


def _build_profile(name: str, machine: TacclMachine, chunk_bytes: int) -> dict[str, JsonValue]:
    """Build the JSON object of a machine profile for the solver of TACCL.

    Times are in units of 10^-k seconds, rounded to 15 significant digits. k is 6, or larger until
    the shortest time of a chunk on a link has 100 units (the solver truncates times). A beta is
    the time of `chunk_bytes` on one link, without latency. The members are, in this order:

    1. `name`, `gpus_per_node`, `chunk_bytes`, `units_per_second`
    2. `alpha`: the largest latency between GPUs of a node
    3. for a uniform node (`is_uniform`) of several GPUs: `node_betas_list` [beta] and
       `node_invbws_list` [beta + alpha]
    4. for other nodes: the matrices `links` (number of links), `betas` and `invbws` (beta +
       alpha). Rows are destinations. Pairs without a link have 0.
    5. only with `machine.remote`: `nics_per_node`, `remote_alpha`, `remote_beta`, and
       `remote_invbw` (their sum)
    """
    beta_s = np.zeros(machine.links.shape)
    is_link = machine.links > 0
    beta_s[is_link] = chunk_bytes / machine.bandwidth_bytes_per_s[is_link]
    remote = machine.remote
    times_s = beta_s[is_link].tolist()
    if remote is not None:
        times_s.append(chunk_bytes / remote.bandwidth_bytes_per_s)
    # Power of ten, from 10^6 on, such that the minimum time has at least 100 units.
    min_time_s = min(times_s, default=1.0)
    per_s = 10**6
    while min_time_s * per_s < _MIN_UNITS:
        per_s *= 10
    alpha = float(machine.latency_s.max(initial=0.0)) * per_s
    betas = beta_s * per_s
    invbws = np.where(is_link, betas + alpha, 0.0)
    content: dict[str, JsonValue] = {
        "name": name,
        "gpus_per_node": machine.gpus_per_node,
        # Additional keys of the hub, because the solver's keys do not define the units.
        "chunk_bytes": chunk_bytes,
        "units_per_second": per_s,
        "alpha": _round_number(alpha),
    }
    if machine.is_uniform and machine.gpus_per_node > 1:
        content["node_betas_list"] = [_round_number(float(betas[0, 1]))]
        content["node_invbws_list"] = [_round_number(float(invbws[0, 1]))]
    else:
        # Rows are destinations, as in the solver.
        content["links"] = machine.links.T.tolist()
        content["betas"] = _to_rows(betas.T)
        content["invbws"] = _to_rows(invbws.T)
    if remote is not None:
        beta = chunk_bytes / remote.bandwidth_bytes_per_s * per_s
        alpha = remote.latency_s * per_s
        content["nics_per_node"] = remote.cards
        content["remote_alpha"] = _round_number(alpha)
        content["remote_beta"] = _round_number(beta)
        content["remote_invbw"] = _round_number(alpha + beta)
    return content


def _to_rows(matrix: Float64Array) -> list[JsonValue]:
    """Rows of a matrix with shortened numbers."""
    return [[_round_number(value) for value in row] for row in matrix.tolist()]


def _round_number(value: float) -> float:
    """Number with 15 significant digits: further digits are rounding errors of quotients."""
    return float(f"{value:.15g}")


def _format_document(content: dict[str, JsonValue]) -> bytes:
    r"""Return a JSON object as UTF-8 with one line per key, in order, and a final newline.

    A list that contains a list is a matrix: each of its elements is on its own line. Any other
    value is on the line of its key. Characters of values outside of ASCII become `\u` escapes.
    Keys are written without escapes. The braces are on lines of their own.
    """
    rows = []
    for key, value in content.items():
        text = json.dumps(value)
        if isinstance(value, list) and any(isinstance(row, list) for row in value):
            text = "[\n  " + ",\n  ".join(json.dumps(row) for row in value) + "\n ]"
        rows.append(f' "{key}": {text}')
    return ("{\n" + ",\n".join(rows) + "\n}\n").encode("utf-8")
