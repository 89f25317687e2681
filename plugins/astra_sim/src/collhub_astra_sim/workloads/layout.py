"""Build the initial state (machine) of a job."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from collhub_kernels.event_queue import (
    BUCKET,
    ENTRY,
    EVENT,
    HEAP,
    RECENT_TIMES,
    STORE,
    Records,
)

from collhub_astra_sim.simulating.simulated_network import route_links
from collhub_astra_sim.workloads.choices import (
    Choices,
    NamedAlgorithms,
    choose_algorithms,
    get_dimension_sizes,
)
from collhub_astra_sim.workloads.collective_plans import build_custom_tables
from collhub_astra_sim.workloads.machine_state import (
    BATCH,
    COLLECTIVE_NODE,
    DELAY,
    LINE,
    LINK,
    MESSAGE,
    MOST_PHASES,
    NO_CHOICE,
    NODE,
    PROGRESS,
    RANK,
    SEND_NODE,
    SLOTS,
    STORES,
    STREAM,
    TRANSFER,
    TRANSFERS,
    TYPES,
    MachineState,
)
from collhub_astra_sim.workloads.native import count_messages_to_send
from collhub_astra_sim.workloads.node_work import NodeWork, compute_node_work
from collhub_astra_sim.workloads.streams import TURNS
from collhub_astra_sim.workloads.system import MemoryKind, RemoteMemory, System
from hub_core import NodeTable
from hub_core.columns import (
    Int64Array,
    counted_positions,
    csr,
    distinct,
    first_positions,
    group_pointer,
    inverse,
)
from hub_core.model import NodeColumns, NodeKind, UsageError, Workload
from hub_core.network import Topology

_UNMET_LINES = 1 << 16
_BATCH_PLACES = 1 << 14
_GIGA = 1e9


class PreparedJob:
    """Preparation of a job for the compiled simulator.

    Computes the work of each node (`compute_node_work`) and chooses the algorithm of each
    collective (`choose_algorithms`). `build_machine` then returns the `MachineState`: the arrays on
    which the simulator runs, with a record per node, queues, events, and the routes of messages on
    links. Its nodes are numbered by rank, then identity: `order[i]` is the row of node i in the
    workload. Raises `UsageError` (`topology-size`) if the network has another number of NPUs than
    the job has ranks.
    """

    def __init__(
        self,
        workload: Workload,
        topology: Topology,
        system: System,
        memory: RemoteMemory,
        algorithms: Mapping[str, NodeTable],
        per_node: Mapping[int, str],
        named: NamedAlgorithms | None = None,
    ) -> None:
        if workload.num_ranks != topology.num_npus:
            message = (
                f"topology {topology.name} has {topology.num_npus} NPUs, "
                f"the workload has {workload.num_ranks} ranks"
            )
            cure = "choose a topology with one NPU for every rank"
            raise UsageError(message, cure=cure, code="topology-size")
        self.workload, self.topology, self.system = workload, topology, system
        self.memory = memory
        self.order = np.lexsort((workload.nodes.identity, workload.nodes.rank))
        self.work = compute_node_work(workload, system, memory)
        sizes = tuple(dimension.size for dimension in topology.dimensions)
        self.dimensions = get_dimension_sizes(sizes, workload.num_ranks)
        running = np.flatnonzero(self.work.action == COLLECTIVE_NODE)
        kind = self.work.type.astype(np.int64)
        self.choices = choose_algorithms(
            workload, system, kind, running, self.dimensions, algorithms, per_node, named
        )

    def build_machine(
        self,
        *,
        queues: int,
        has_rendezvous: bool,
        is_shared: bool,
        has_slots: bool,
        max_transfers: int = 0,
    ) -> MachineState:
        """Return the machine: all records and tables of a simulated job before its start.

        `queues`: queues of streams (parts of collectives) per network dimension, at least 1; each
        runs at most ceil(active chunks of the system / `queues`) streams at a time.
        `has_rendezvous`: messages wait for their receivers. `is_shared`: messages contend for
        links; without it, each pair of ranks has a private link. `has_slots`: a rank runs at most
        one node per slot (resource of the rank) at a time. `max_transfers`: number of transmissions
        for which there is space; 0 for none.

        There is space for 2 m streams, and for 4 m messages, batches, delays and events; m is the
        result of `_compute_margin`. `expand_pools` doubles spaces that turn out too small.
        This object is not changed. Raises `InputError` for a custom algorithm that cannot be
        simulated (`build_world`), then if two ranks that may communicate have no path.
        """
        workload, system, chosen = self.workload, self.system, self.choices
        ranks, levels = workload.num_ranks, len(self.dimensions)
        node = _build_node_records(workload.nodes, self.order, self.work, chosen)
        tables = build_custom_tables(chosen.algorithms)
        queue, progress = _place_nodes(node, queues * levels, tables.most_nodes, ranks, has_slots)
        link, pair_first, pair_peer, path_first, path_link = self._build_routes(is_shared)
        margin = self._compute_margin(node, tables.most_nodes, has_slots)
        child = _set_children(workload.nodes, self.order, node)
        heap, entry = _build_heaps(node, ranks)
        line_of, memory_lines = _build_memory_queues(self.memory, ranks)
        max_free = int(np.bincount(node["rank"], minlength=1).max(initial=1)) + tables.most_nodes
        chunks = system.active_chunks
        return MachineState(
            node=node,
            rank=_create_records(RANK, ranks, finish=-1),
            child=child,
            member=chosen.members.copy(),
            member_choice=np.full(len(chosen.members) * TYPES, NO_CHOICE, np.int64),
            group_rank=chosen.group_rank,
            plan=chosen.plan,
            phase=chosen.phase,
            stream=np.zeros(2 * margin, STREAM),
            stream_queue=np.zeros((2 * margin, MOST_PHASES), np.int32),
            queue=queue,
            turn=np.zeros(ranks * levels * TURNS, np.int32),
            message=np.zeros(4 * margin, MESSAGE),
            unmet=_create_records(LINE, _UNMET_LINES, first=-1, last=-1),
            link=link,
            transfer=np.empty(max_transfers, TRANSFER),
            pair_first=pair_first,
            pair_peer=pair_peer,
            path_first=path_first,
            path_link=path_link,
            batch=np.zeros(4 * margin, BATCH),
            batch_of=np.full(_BATCH_PLACES, -1, np.int64),
            delay=np.zeros(4 * margin, DELAY),
            custom=tables.custom,
            custom_rank=tables.custom_rank,
            custom_first=tables.custom_first,
            custom_root=tables.custom_root,
            custom_child=tables.custom_child,
            progress=progress,
            memory=memory_lines,
            memory_of=line_of,
            heap=heap,
            entry=np.concatenate([entry, np.zeros(4 * margin, ENTRY)]),
            bucket=np.zeros(4 * margin, BUCKET),
            event=np.zeros(4 * margin, EVENT),
            recent=np.full(RECENT_TIMES, -1, np.int64),
            store=_create_records(STORE, STORES, returned=-1),
            counter=np.zeros(TRANSFERS + 1, np.int64),
            identity=tables.identity,
            element=tables.element,
            before=tables.before,
            freed=np.zeros(max_free, np.int64),
            codes=np.zeros(2, np.int64),
            endpoint_ns=system.endpoint_ns,
            reduce_bytes_per_s=float((system.local_memory_gb_per_s or 0.0) * _GIGA),
            levels=levels,
            margin=margin,
            most_active=-(-chunks // queues),
            queues_per_level=queues,
            is_shared=is_shared,
            has_rendezvous=has_rendezvous,
            has_slots=has_slots,
        )

    def estimate_events(self, machine: MachineState) -> int:
        """Estimate the number of events of a run: nodes + records + messages x (1 + 2 hops).

        - nodes: all nodes of the job
        - records: entries of `machine.progress`, the only estimate for custom algorithms
        - messages: for each node with a native algorithm the messages of all its phases, times
          its streams (parts); plus 1 per SEND node
        - hops: mean number of links of the routes of `machine`, rounded up; 0 without routes
        """
        phase, plan = machine.phase, machine.plan
        triples = zip(
            *(phase[name].tolist() for name in ("algorithm", "type", "size")), strict=True
        )
        of_phase = np.array([0, *(count_messages_to_send(*triple) for triple in triples)]).cumsum()
        of_plan = of_phase[plan["first"] + plan["count"]] - of_phase[plan["first"]]
        choice = machine.node["choice"]
        native = np.flatnonzero(choice >= 0)
        messages = int((of_plan[choice[native]] * machine.node["streams"][native]).sum())
        messages += int(np.count_nonzero(machine.node["action"] == SEND_NODE))
        nodes = len(machine.node) + len(machine.progress)
        routes = max(len(machine.path_first) - 1, 1)
        # Events of a message: its packet is ready, its delivery over each link, and each link's
        # release.
        return nodes + messages * (1 + 2 * -(-len(machine.path_link) // routes))

    def _compute_margin(self, node: Records, custom_nodes: int, has_slots: bool) -> int:
        """Return an upper bound for the messages, delays or streams that one event creates.

        An event creates objects of one rank only. The bound is 64 + 2 * (nodes + streams +
        `custom_nodes`) + 4 * active * (width + 4), where:

        - nodes: the highest number of nodes of any rank
        - streams: parts of a node's collective. With `has_slots` (a rank runs one collective at a
          time) it is the highest number of any node, otherwise the highest sum of any rank. Nodes
          without a choice of algorithms (`NO_CHOICE`) count 0.
        - `custom_nodes`: nodes of a custom algorithm on a rank
        - active: the streams. With `has_slots` it is at most 2 * `system.active_chunks` * (number
          of dimensions) + 2.
        - width: ranks of the largest phase, at least 1
        """
        widths = self.choices.phase["size"].max(initial=1) + 4
        streams = node["streams"] * (node["choice"] != NO_CHOICE)
        ranks = self.workload.num_ranks
        max_streams = int(streams.max(initial=0))
        if not has_slots:
            max_streams = int(np.bincount(node["rank"], streams, ranks).max(initial=0))
        nodes = int(np.bincount(node["rank"], minlength=ranks).max(initial=0))
        active = min(max_streams, 2 * self.system.active_chunks * len(self.dimensions) + 2)
        if not has_slots:
            active = max_streams
        return 64 + 2 * (nodes + max_streams + custom_nodes) + 4 * active * int(widths)

    def _build_routes(
        self, is_shared: bool
    ) -> tuple[Records, Int64Array, Int64Array, Int64Array, Int64Array]:
        """Return the links and the routes of all ordered pairs of ranks that may communicate.

        The pairs are those of the collectives, and for every SEND and RECV the rank and its peer
        in both directions. If the system only replays times, SEND and RECV add no pairs. Each pair
        has one route; routes are sorted by source, then destination. The tuple has:

        1. link records, with the bandwidth in bytes/ns and the latency in ns; `first`, `last` are
           -1
        2. first route of each source rank, with one more entry for the end
        3. destination of each route
        4. first hop of each route, with one more entry for the end
        5. link of each hop

        With `is_shared` the links are those of the topology. Otherwise route i has one hop, its
        private link i, with the values of `find_private_links`. Raises `InputError` for a pair
        without a path.
        """
        nodes, ranks = self.workload.nodes, self.workload.num_ranks
        rows = np.flatnonzero(nodes.is_kind(NodeKind.SEND, NodeKind.RECV))
        if self.system.is_replay_only:
            rows = rows[:0]
        rank, peer = nodes.rank[rows].astype(np.int64), nodes.peer[rows].astype(np.int64)
        pairs = [self.choices.pairs, rank * ranks + peer, peer * ranks + rank]
        codes = distinct(np.concatenate(pairs))
        source, destination = np.divmod(codes, ranks)
        routes, bandwidth, latency_ns = route_links(self.topology, source, destination, is_shared)
        link = _create_records(LINK, len(bandwidth), first=-1, last=-1)
        link["bytes_per_ns"], link["latency_ns"] = bandwidth / _GIGA, latency_ns
        first = group_pointer(source, ranks)
        return link, first, destination, routes.indptr, routes.links


def _create_records(dtype: np.dtype[np.void], count: int, **values: int) -> Records:
    """Create `count` records with these values in every one, 0 elsewhere.

    Raises `ValueError` for a name that is no field.
    """
    records = np.zeros(count, dtype)
    for name, value in values.items():
        records[name] = value
    return records


def _build_node_records(
    nodes: NodeColumns, order: Int64Array, work: NodeWork, chosen: Choices
) -> Records:
    """Return the records of all nodes, in the order of `order`, without their children.

    `order`: rows of the job in ascending order of node IDs. Rank, peer and tag of a record are
    those of `nodes`. `work` gives action, slot, duration and other properties by row, `chosen` the
    algorithm of collectives. Start and end times are -1, and all other fields 0.
    """
    node = _create_records(NODE, len(nodes), start=-1, end=-1)
    for name in ("rank", "peer", "tag"):
        node[name] = getattr(nodes, name)[order]
    for name in ("action", "slot", "work", "streams", "type", "is_counted"):
        node[name] = getattr(work, name)[order]
    node["choice"], node["member"] = chosen.choice[order], chosen.member[order]
    return node


def _place_nodes(
    node: Records, lines: int, most_nodes: int, ranks: int, has_slots: bool
) -> tuple[Records, Records]:
    """Create queues of streams and records of custom algorithms, and assign them to nodes.

    Returns (queues, records). The fields `queue` and `instance` (first queue and first record) of
    every node are written in place. `lines`: number of queues that a rank needs; `most_nodes`:
    nodes of the largest custom algorithm on a rank. With `has_slots` all nodes of a rank share the
    queues, and its custom algorithms share the records, as they run one at a time. Otherwise each
    collective has its own queues, and each custom one its own records. The queues are empty.
    """
    custom_rows = np.flatnonzero(node["choice"] < NO_CHOICE)
    if has_slots:
        owners = node["rank"].astype(np.int64)
        regions = owners
    else:
        # Nodes that are no collectives have 0, which is not used.
        owners = np.zeros(len(node), np.int64)
        regions = np.zeros(len(node), np.int64)
        collective_rows = np.flatnonzero(node["action"] == COLLECTIVE_NODE)
        owners[collective_rows] = np.arange(len(collective_rows))
        regions[custom_rows] = np.arange(len(custom_rows))
    node["queue"] = owners * lines
    node["instance"] = regions * most_nodes
    queue = np.zeros(max(int(owners.max(initial=0)) + 1, 1) * lines, LINE)
    queue["first"] = -1
    return queue, np.zeros((ranks if has_slots else len(custom_rows)) * most_nodes, PROGRESS)


def _set_children(nodes: NodeColumns, order: Int64Array, node: Records) -> Int64Array:
    """Write the children of all nodes; return the array of children to which the records refer.

    `order`: rows of the job by position; nodes are numbered by position. Sets first child, number
    of children and number of parents (`unmet`) in `node`. Data and control dependencies count
    equally, two between the same nodes once. The children of a node ascend.
    """
    count = len(nodes)
    position = inverse(order)
    parent, child = nodes.edges()
    codes = distinct(position[parent] * max(count, 1) + position[child])
    parents, children = np.divmod(codes, max(count, 1))
    first, children = csr(parents, children, count)
    node["first_child"], node["children"] = first[:-1], np.diff(first)
    node["unmet"] = np.bincount(children, minlength=count)
    return children


def _build_heaps(node: Records, ranks: int) -> tuple[Records, Records]:
    """Return the heaps of the machine and their entry table, with the nodes that may start at once.

    - Heap 0 is the event queue. It is empty. Its entries begin at index len(`node`) of the table,
      i.e. after the returned entries, where the caller appends them.
    - Heap 1 + rank * `SLOTS` + slot has space for all nodes of this rank and slot. It contains
      those with `unmet` 0, that is without parents, by ascending row of `node`. The row is both key
      (`time`) and content (`item`). Unused entries are zero.

    The table has one entry per node.
    """
    code = node["rank"].astype(np.int64) * SLOTS + node["slot"]
    room = np.bincount(code, minlength=ranks * SLOTS)
    heap = np.zeros(1 + ranks * SLOTS, HEAP)
    heap["first"][1:] = first_positions(room)
    heap["first"][0] = len(node)
    roots = np.flatnonzero(node["unmet"] == 0)
    roots = roots[np.argsort(code[roots], kind="stable")]
    sizes = np.bincount(code[roots], minlength=ranks * SLOTS)
    heap["size"][1:] = sizes
    # Ascending rows already form a heap.
    offset = counted_positions(sizes)
    entry = np.zeros(len(node), ENTRY)
    places = heap["first"][1:][code[roots]] + offset
    entry["time"][places] = roots
    entry["item"][places] = roots
    return heap, entry


def _build_memory_queues(memory: RemoteMemory, ranks: int) -> tuple[Int64Array, Records]:
    """Return the queue of every rank for remote memory (-1 without one), and the empty queues.

    `PER_NODE` memory has one queue per `npus_per_node` consecutive ranks, a `POOL` one for all
    ranks. Other kinds have none; then there is one unused queue.
    """
    line_of: npt.NDArray[np.int64] = np.full(ranks, -1, np.int64)
    if memory.kind is MemoryKind.PER_NODE:
        line_of = np.arange(ranks) // memory.npus_per_node
    elif memory.kind is MemoryKind.POOL:
        line_of = np.zeros(ranks, np.int64)
    return line_of, _create_records(
        LINE, max(int(line_of.max(initial=0)) + 1, 1), first=-1, last=-1
    )


def expand_pools(machine: MachineState) -> MachineState:
    """Return a copy of the machine in which all pools of records have twice the size.

    Contents are kept, and new records are 0. Arrays that are no pools are shared with the original.
    """
    fields = ("stream", "stream_queue", "message", "batch", "delay", "bucket", "event", "entry")
    larger = {}
    for name in fields:
        old = getattr(machine, name)
        new = np.zeros((2 * len(old), *old.shape[1:]), old.dtype)
        new[: len(old)] = old
        larger[name] = new
    return machine._replace(**larger)  # type: ignore[arg-type]
