"""Write the folder of an algorithm that ASTRA-sim runs without changes.

Inputs on which ASTRA-sim aborts are refused; differences of a run by ASTRA-sim are losses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collhub_astra_sim.folders.folder import (
    COLLECTIVE_KEYS,
    AstraFolder,
    FolderProgram,
    WorldPlacement,
    choose_placement,
)
from collhub_astra_sim.networks.network_yaml import AstraNetwork, find_astra_network, make_full_mesh
from collhub_astra_sim.options import (
    CONGESTION_AWARE,
    PUBLIC_RELEASE,
    SYMBOLIC_BRANCH,
    AstraFolderOptions,
)
from collhub_astra_sim.simulating.simulated_network import check_size
from hub_core import NodeTable, NodeType, chakra_bytes, chakra_nodes, chakra_traces, parse_topology
from hub_core.columns import BoolArray, Int64Array, group_of_entry
from hub_core.model import (
    Algorithm,
    CollectiveKind,
    InputError,
    Location,
    Loss,
    UsageError,
    format_bytes,
    placed,
)
from hub_core.network import Topology, link_times_ns
from hub_core.plugin_api import WriteResult

_DEFAULT_BANDWIDTH_BYTES_PER_S = 50.0 * (1 << 30)
_DEFAULT_LATENCY_S = 500e-9
# ASTRA-sim adds 10^9 to its internal tags and takes all other tags modulo this number.
_TAG_LIMIT = 500_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class NamedAlgorithm:
    """An algorithm for a folder.

    `name`: the prefix of its traces. `collective_bytes`: the size for which they are written.
    """

    name: str
    algorithm: Algorithm
    collective_bytes: int


def write(algorithm: Algorithm, options: AstraFolderOptions) -> WriteResult:
    """Write an algorithm as a folder for ASTRA-sim (format `astra-sim`).

    Returns the artifacts and the losses, which are the differences of a run by ASTRA-sim. A
    collective that ASTRA-sim does not have is written as an all-reduce, with a loss.

    The size is that of the options, otherwise that of the algorithm. Without both, it is the
    default of `chakra_bytes`; the result then has a note, and `restated` has `collective_bytes`.
    The network is that of `options.topology`, otherwise a full mesh with 50 GiB/s and 500 ns.

    Raises the errors of `parse_topology` for an invalid topology, and `UsageError` or `InputError`
    for an algorithm, a size or a topology that ASTRA-sim cannot run.
    """
    topology = parse_topology(options.topology) if options.topology else None
    folder = build_folder(algorithm, topology, options)
    if options.size is not None or algorithm.collective_bytes is not None:
        return WriteResult(folder.artifacts(), folder.losses)
    # A folder has one size, which is easy to overlook: report the default if none was given.
    size = format_bytes(folder.programs[0].collective_bytes)
    note = f"is written for {size}, because no size was given; -O size=... sets one"
    return WriteResult(folder.artifacts(), folder.losses, ("collective_bytes",), (note,))


def build_folder(
    algorithm: Algorithm, topology: Topology | None, options: AstraFolderOptions
) -> AstraFolder:
    """Return the folder for one algorithm on a topology.

    The size is the option `size`, otherwise that of the algorithm, otherwise the default of
    `chakra_bytes`. The prefix of the traces is the option `name`, otherwise the kind of the
    collective. Without a topology (None), the NPUs are fully connected by links of 50 GiB/s
    and 500 ns. Raise the errors of `build_folder_of_several`.
    """
    size = options.size or algorithm.collective_bytes or chakra_bytes(algorithm)
    name = options.name or str(algorithm.collective.kind)
    return build_folder_of_several([NamedAlgorithm(name, algorithm, size)], topology, options)


def build_folder_of_several(
    named: Sequence[NamedAlgorithm], topology: Topology | None, options: AstraFolderOptions
) -> AstraFolder:
    """Return the folder for several algorithms, which ASTRA-sim runs one after the other.

    `named`: at least one algorithm, all with the same number of ranks (not checked); programs keep
    this order. NPUs (`choose_placement`) and network (`_find_network`) are those of the first
    algorithm. The options `name` and `size` are ignored, because each entry has its own.

    Losses are in the order of the algorithms, each with those of traces, network and
    `collect_losses`. Equal ones are listed once. Messages below 1 ns at the start count only for
    the first algorithm.

    Raises the errors of `write` for the first algorithm that has one. Then raises `UsageError`:

    - if only a part of the NPUs has ranks and two algorithms run as the same collective, since the
      second would never run. Collectives unknown to ASTRA-sim run as all-reduce.
    - if two algorithms need networks with different dimensions
    """
    placement = choose_placement(named[0].algorithm, topology, options)
    programs: list[FolderProgram] = []
    networks = []
    losses: list[Loss] = []
    for entry in named:
        check_size(entry.algorithm, entry.collective_bytes)
        nodes = chakra_nodes(entry.algorithm, entry.collective_bytes)
        _check_messages(nodes, entry.algorithm)
        network = _find_network(topology, placement, nodes, options.network == CONGESTION_AWARE)
        program = _build_program(entry, placement, options)
        folder_losses = collect_losses(
            entry.algorithm, nodes, network, options, is_first=not programs
        )
        losses += [*program.traces.losses, *network.losses, *folder_losses]
        programs.append(program)
        networks.append(network)
    # Of two algorithms of one collective in a group, the second would never run.
    kinds = [program.run_as for program in programs]
    doubled = [kind for kind in kinds if kinds.count(kind) > 1]
    if doubled and placement.is_part:
        reason = f"the first algorithm of {doubled[0]} for all subsequent ones"
        raise UsageError(
            f"inside a group ASTRA-sim uses {reason}",
            cure="write a folder for each, or run them on all NPUs",
        )
    # Some algorithms may require a network while others fit any.
    if len({network.dimensions for network in networks}) > 1:
        message = "the algorithms need different networks of ASTRA-sim"
        raise UsageError(message, cure="write a folder for each")
    return AstraFolder(
        tuple(programs),
        placement,
        networks[0],
        options.network == CONGESTION_AWARE,
        tuple(dict.fromkeys(losses)),
    )


def _build_program(
    entry: NamedAlgorithm, placement: WorldPlacement, options: AstraFolderOptions
) -> FolderProgram:
    """Return the part of a folder for one algorithm: name, sizes, collective and traces.

    The traces are those of `chakra_traces` for the algorithm placed on the NPUs of `placement`,
    with the size of `entry` (bytes) in place of the option `size`. A collective that ASTRA-sim
    does not have is run as an all-reduce (`run_as`).

    `comm_size` is the size; for an all-gather, except in the dialect `symbolic`, it is the part
    of one rank, rounded down, at least 1.

    Raises `UsageError` unless the name is 1 to 100 letters, digits, '.', '_' and '-', the first
    a letter or digit. Errors of `chakra_traces` pass through.
    """
    kind = entry.algorithm.collective.kind
    size = entry.collective_bytes
    name = entry.name
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"option name: {name[:80]!r} is not letters, digits, '.', '_' and '-'",
            cure="write for example ring",
        )
    comm_size = size
    # An all-gather counts the input of one rank. But the only reader of symbolic sizes, a branch of
    # ASTRA-sim, divides this number by the units of the entire output, so it gets the total.
    if kind is CollectiveKind.ALL_GATHER and options.dialect != "symbolic":
        # With 0 bytes the ranks of an all-gather never finish.
        comm_size = max(1, size // entry.algorithm.num_ranks)
    return FolderProgram(
        name,
        size,
        kind if kind in COLLECTIVE_KEYS else CollectiveKind.ALL_REDUCE,
        comm_size,
        chakra_traces(placed(entry.algorithm, placement.members), replace(options, size=size)),
    )


def _check_messages(nodes: NodeTable, algorithm: Algorithm) -> None:
    """Raise `InputError` for the first message on which ASTRA-sim aborts; otherwise do nothing.

    `nodes`: trace nodes of the algorithm. Three defects are checked, each for all nodes before
    the next one:

    - a SEND or RECV of 0 bytes or less
    - a SEND or RECV whose peer is its own rank
    - a node with a tag of at least `_TAG_LIMIT` (500 million), which occurs if two ranks
      exchange too many messages

    The error has the location of the step of the first such node, in the order of `nodes`.
    """
    is_message = (nodes.type == NodeType.COMM_SEND) | (nodes.type == NodeType.COMM_RECV)
    is_to_self = nodes.peer == group_of_entry(nodes.rank_indptr)
    defects: tuple[tuple[BoolArray, str, str], ...] = (
        (is_message & (nodes.size <= 0), "a message of 0 bytes", "remove the step"),
        (is_message & is_to_self, "a message to its own rank", "copy instead"),
        (
            nodes.tag >= _TAG_LIMIT,
            f"more than {_TAG_LIMIT} messages between two ranks",
            "use fewer steps",
        ),
    )
    for is_wrong, defect, cure in defects:
        if is_wrong.any():
            first = int(np.argmax(is_wrong))
            location = locate_step(algorithm, int(nodes.step[first]))
            raise InputError(f"{defect}, on which ASTRA-sim aborts", location=location, cure=cure)


def _find_network(
    topology: Topology | None,
    placement: WorldPlacement,
    nodes: NodeTable,
    is_congestion_aware: bool,
) -> AstraNetwork:
    """Return ASTRA-sim's network on which the messages take the same times as on a topology.

    `nodes`: trace nodes, of which only the SENDs count; their ranks and peers are mapped to the
    NPUs of `placement`. Without a topology the network is a full mesh of all `placement.npus` NPUs
    with 50 GiB/s and 500 ns. With one, `find_astra_network` decides: it returns the dimensions of
    the topology, or a full mesh with a loss if all messages are between neighbours on equal links.
    With `is_congestion_aware` (the backend that simulates contention), it returns at most one
    dimension.

    Raises `UsageError`: `inexpressible-topology` if ASTRA-sim has no such network, and
    `too-few-npus` for a full mesh of fewer than two NPUs.
    """
    if topology is None:
        return make_full_mesh(
            placement.npus,
            _DEFAULT_BANDWIDTH_BYTES_PER_S,
            _DEFAULT_LATENCY_S,
        )
    members = np.asarray(placement.members, np.int64)
    rank = group_of_entry(nodes.rank_indptr)
    is_send = nodes.type == NodeType.COMM_SEND
    sources = members[rank[is_send]]
    destinations = members[nodes.peer[is_send]]
    return find_astra_network(
        topology, sources, destinations, is_congestion_aware=is_congestion_aware
    )


def collect_losses(
    algorithm: Algorithm,
    nodes: NodeTable,
    network: AstraNetwork,
    options: AstraFolderOptions,
    *,
    is_first: bool,
) -> tuple[Loss, ...]:
    """Return the losses that the folder adds to those of its traces, in this order.

    1. A collective kind that is not in `COLLECTIVE_KEYS`: ASTRA-sim has no custom algorithms for
       it. It runs under the name all-reduce, in the same time.
    2. Sizes that the chosen release of ASTRA-sim cannot read. The public release reads sizes in
       bytes (dialect `absolute`), the branch of pull request 343 sizes in chunks (`symbolic`).
    3. If the algorithm starts at time 0 (`is_first`), messages of less than 1 ns at the start.

    Raises `InputError` (`too-long`) if `is_first` and a message at the start takes 2^62 ns or more.
    """
    losses = []
    kind = algorithm.collective.kind
    if kind not in COLLECTIVE_KEYS:
        consequence = (
            "ASTRA-sim has no custom algorithms for it; "
            "it runs under the name all-reduce, with the same times"
        )
        losses.append(Loss(f"collective {kind}", "system.json, workload traces", consequence))

    unread = {PUBLIC_RELEASE: "symbolic", SYMBOLIC_BRANCH: "absolute"}[options.simulator]
    if options.dialect == unread == "symbolic":
        consequence = (
            "the public ASTRA-sim does not read them and aborts; "
            f"write -O dialect=both, or choose its reader, -O simulator={SYMBOLIC_BRANCH}"
        )
        losses.append(Loss("sizes only in chunks (dialect=symbolic)", "traces", consequence))
    elif options.dialect == unread:
        consequence = (
            "the branch of pull request 343 does not read them and aborts; write -O dialect=both"
        )
        losses.append(Loss("sizes only in bytes (dialect=absolute)", "traces", consequence))

    is_congestion_aware = options.network == CONGESTION_AWARE
    if is_first:
        instant = _check_instant_messages(algorithm, nodes, network, is_congestion_aware)
        losses += [] if instant is None else [instant]
    return tuple(losses)


def locate_step(algorithm: Algorithm, step: int) -> Location:
    """Return the location of a step in the file from which the algorithm was read.

    The file is None if the algorithm has none, likewise the line of the step.
    """
    return algorithm.steps.location(step, algorithm.provenance.source_name or None)


def _check_instant_messages(
    algorithm: Algorithm, nodes: NodeTable, network: AstraNetwork, is_congestion_aware: bool
) -> Loss | None:
    """Return the loss of messages that cause an event at time 0, on which ASTRA-sim aborts.

    These are SENDs without data and control dependencies whose first event comes after less than 1
    ns on at least one dimension of the network. The first event is the release of the link if the
    backend is congestion-aware, else the arrival. Latencies are rounded to 1e-6 ns, as in the
    network file. The loss contains the number of such messages and the step of the first one; None
    without any. Raises `InputError` (`too-long`) if such a SEND, which waits for nothing, takes
    2^62 ns or more on a dimension.
    """
    # Data and control dependencies both delay a node.
    waits = np.diff(nodes.data_indptr) + np.diff(nodes.control_indptr)
    is_send = nodes.type == NodeType.COMM_SEND
    sends = np.flatnonzero(is_send & (waits == 0))
    # The earliest event that a message of each size may cause.
    sizes = nodes.size[sends]
    dimensions = network.dimensions
    bandwidth = np.asarray([dimension.bandwidth_bytes_per_s for dimension in dimensions])
    # Rounded to the number of digits in the network YAML.
    latency_ns = np.asarray([round(dimension.latency_s * 1e9, 6) for dimension in dimensions])
    busy, arrival = link_times_ns(bandwidth[None, :], latency_ns[None, :], sizes[:, None])
    # With congestion a link becomes free before the message arrives; without, the arrival is the
    # first event.
    first_event = busy if is_congestion_aware else arrival
    shortest_ns: Int64Array = first_event.min(axis=1)
    instant = sends[shortest_ns == 0]
    if not len(instant):
        return None
    first = locate_step(algorithm, int(nodes.step[instant[0]]))
    return Loss(
        f"{len(instant)} messages that are sent at the start and take less than 1 ns",
        f"first {first}",
        "ASTRA-sim aborts (exit status 134); use a larger size",
    )
