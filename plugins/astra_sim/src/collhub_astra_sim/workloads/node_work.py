"""Determine action, duration and slot of every node of a workload on ASTRA-sim."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collhub_astra_sim.workloads.machine_state import (
    COLLECTIVE_NODE,
    COMM_SLOT,
    COMPUTE_SLOT,
    HOST_SLOT,
    MEMORY_NODE,
    NEVER_ENDS,
    NO_SLOT,
    RECV_NODE,
    SEND_NODE,
    SKIPPED,
    TIMER,
)
from collhub_astra_sim.workloads.system import NATIVE_TYPES, MemoryKind, RemoteMemory, System
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import InputError, JobCollective, NodeColumns, NodeKind, Workload

SHORTEST_NS = 1


class NodeWork(NamedTuple):
    """Columns by node, as in `machine_state.NODE`.

    `type`: index of the collective in `NATIVE_TYPES`, -1 for other nodes.
    """

    action: npt.NDArray[np.uint8]
    slot: npt.NDArray[np.uint8]
    work: Int64Array
    streams: Int64Array
    type: npt.NDArray[np.int8]
    is_counted: BoolArray


def compute_node_work(workload: Workload, system: System, memory: RemoteMemory) -> NodeWork:
    """Return action, slot, work, streams, type and `is_counted` of every node, in their order.

    A slot executes one node of a rank at a time: the host slot for nodes on the host, the compute
    slot for other computations, none for other RECV, the communication slot for the rest. The type
    is that of a native collective, else -1. By default the action is a timer of the duration, at
    least 1 ns.

    With `system.is_replay_only` nothing else applies, and all nodes off the host are counted.
    Otherwise only computations off the host are counted, and:

    - Computations off the host get the duration of the roofline, if the system has one.
    - SEND and RECV have their bytes as work; markers are skipped; native collectives have streams.
    - LOAD and STORE have the work latency + bytes // rate of the memory, in ns.

    Raises `InputError`, in this order: a roofline without operations or bytes, a peer that is no
    rank, a message to the own rank, an empty message, no memory for a LOAD or STORE, an all-gather
    with fewer bytes than splits.
    """
    nodes = workload.nodes
    count = len(nodes)
    action = np.full(count, TIMER, np.uint8)
    slot = np.full(count, COMM_SLOT, np.uint8)
    slot[nodes.is_kind(NodeKind.RECV)] = NO_SLOT
    is_compute = nodes.is_kind(NodeKind.COMPUTE)
    slot[is_compute] = COMPUTE_SLOT
    # Regardless of the kind: loads and stores of the host do not occupy the communication slot.
    slot[nodes.on_host] = HOST_SLOT
    work = np.maximum(nodes.duration_ns, SHORTEST_NS)
    streams = np.zeros(count, np.int64)
    kind = get_collective_types(nodes)
    is_counted = is_compute & ~nodes.on_host
    if system.is_replay_only:
        return NodeWork(action, slot, work, streams, kind, ~nodes.on_host)
    _set_computations(nodes, is_counted, system, action, work)
    is_message = nodes.is_kind(NodeKind.SEND, NodeKind.RECV)
    is_no_rank = (nodes.peer < 0) | (nodes.peer >= nodes.num_ranks)
    _refuse(nodes, is_message & is_no_rank, "names a peer that is no rank", "", "peer-range")
    is_to_self = is_message & (nodes.peer == nodes.rank)
    _refuse(nodes, is_to_self, "sends to or receives from its own rank", "", "self-message")
    is_empty = is_message & (nodes.bytes <= 0)
    _refuse(nodes, is_empty, "a message without bytes: ASTRA-sim aborts", "", "empty-message")
    action[nodes.is_kind(NodeKind.SEND)] = SEND_NODE
    action[nodes.is_kind(NodeKind.RECV)] = RECV_NODE
    work[is_message] = nodes.bytes[is_message]
    # Set action and work of transfers to remote memory; raise `InputError` if there is none.
    is_transfer = nodes.is_kind(NodeKind.LOAD, NodeKind.STORE)
    if memory.kind is MemoryKind.NONE:
        message = "a LOAD or STORE node needs a remote memory: ASTRA-sim exits"
        _refuse(nodes, is_transfer, message, "describe the memory in memory.json", "no-memory")
    action[is_transfer] = MEMORY_NODE
    sizes = np.maximum(nodes.bytes[is_transfer], 0)
    work[is_transfer] = memory.latency_ns + sizes // memory.bytes_per_ns
    _set_collectives(nodes, kind, system, action, work, streams)
    action[nodes.is_kind(NodeKind.MARKER)] = SKIPPED
    return NodeWork(action, slot, work, streams, kind, is_counted)


def is_timed_by_duration(workload: Workload, system: System) -> BoolArray:
    """Return which nodes take the duration from the workload in ASTRA-sim: bool[nodes].

    If the system is replay-only, these are all nodes. Otherwise these are the collectives of kind
    broadcast, and the nodes of kind COMPUTE. If the system has a roofline (times from operations
    and bytes), only those COMPUTE nodes count that are on the host.
    """
    nodes = workload.nodes
    if system.is_replay_only:
        return np.ones(len(nodes), np.bool_)
    is_compute = nodes.is_kind(NodeKind.COMPUTE)
    if system.has_roofline:
        is_compute &= nodes.on_host
    is_broadcast = nodes.collective == JobCollective.BROADCAST
    timed: BoolArray = is_compute | (nodes.is_kind(NodeKind.COLLECTIVE) & is_broadcast)
    return timed


def get_collective_types(nodes: NodeColumns) -> npt.NDArray[np.int8]:
    """Return the index in `NATIVE_TYPES` of every node's collective, as int8[nodes].

    -1 for collectives of other kinds, and for all other nodes.
    """
    table = np.full(len(JobCollective), -1, np.int8)
    table[list(NATIVE_TYPES)] = range(len(NATIVE_TYPES))
    # The last entry serves UNKNOWN, whose number is -1.
    kind: npt.NDArray[np.int8] = table[nodes.collective]
    kind[~nodes.is_kind(NodeKind.COLLECTIVE)] = -1
    return kind


def _refuse(nodes: NodeColumns, is_wrong: BoolArray, message: str, cure: str, code: str) -> None:
    """Raise `InputError` at the first node for which `is_wrong` is set; otherwise do nothing."""
    if is_wrong.any():
        location = nodes.location(int(np.argmax(is_wrong)))
        raise InputError(message, location=location, cure=cure, code=code)


def _set_computations(
    nodes: NodeColumns,
    is_device: BoolArray,
    system: System,
    action: npt.NDArray[np.uint8],
    work: Int64Array,
) -> None:
    """Apply the roofline model to computations on devices; change `action` and `work` in place.

    `work` is in ns. `is_device`: mask of the computations. Nothing is changed or checked if the
    system has no roofline or no local memory bandwidth. First, `InputError` (`no-operations`) is
    raised at the first computation whose operations or bytes are missing (negative). Then:

    1. 0 bytes: the action becomes `SKIPPED`, also for 0 operations. `work` is kept.
    2. Otherwise 0 operations: the action becomes `NEVER_ENDS`. `work` is kept.
    3. Otherwise the work is operations / min(memory bandwidth * operations / bytes, peak rate),
       rounded down to ns, so it may be 0. The action is kept.
    """
    if not system.has_roofline or system.local_memory_gb_per_s is None:
        return
    is_unstated = is_device & ((nodes.operations < 0) | (nodes.bytes < 0))
    message = "with roofline-enabled a COMPUTE node needs operations and bytes: ASTRA-sim aborts"
    cure = "specify both, or set roofline-enabled to 0"
    _refuse(nodes, is_unstated, message, cure, "no-operations")
    action[is_device & (nodes.bytes == 0)] = SKIPPED
    action[is_device & (nodes.operations == 0) & (nodes.bytes > 0)] = NEVER_ENDS
    rows = np.flatnonzero(is_device & (nodes.operations > 0) & (nodes.bytes > 0))
    operations = nodes.operations[rows].astype(np.float64)
    memory_bound = system.local_memory_gb_per_s * 1e9 * (operations / nodes.bytes[rows])
    speed = np.minimum(memory_bound, system.peak_tflops * 1e12)
    work[rows] = (operations / speed * 1e9).astype(np.int64)


def _set_collectives(
    nodes: NodeColumns,
    kind: npt.NDArray[np.int8],
    system: System,
    action: npt.NDArray[np.uint8],
    work: Int64Array,
    streams: Int64Array,
) -> None:
    """Set action, work (bytes of a stream) and number of streams of collectives, in place.

    `kind`: native type by node, -1 for none. The first rule that applies to a collective:

    1. On the host: the action is `NEVER_ENDS`.
    2. A broadcast without a native type is not changed.
    3. Any other collective without a native type: the action is `NEVER_ENDS`.
    4. Otherwise the action is `COLLECTIVE_NODE`; work and streams are set.

    In case 4 the total is the bytes of the collective, 0 if unknown. The work is total / splits,
    rounded down. If the work is below the number of ranks of the job, and the collective is no
    all-gather, the work is the number of ranks, and the total is work * splits. The number of
    streams is total / work, rounded up. Work and streams are not changed for an all-gather whose
    work is 0.

    Raises `InputError` (`h7`) for the first all-gather of more than 0 bytes whose work is 0. All
    actions have been set by then, but no work or streams. Other nodes are not changed.
    """
    is_collective = nodes.is_kind(NodeKind.COLLECTIVE)
    # All other kinds throw, and the rank hangs; a broadcast is a timer.
    is_known = (kind >= 0) | (nodes.collective == JobCollective.BROADCAST)
    action[is_collective & ~is_known] = NEVER_ENDS
    action[is_collective & nodes.on_host] = NEVER_ENDS
    is_native = (kind >= 0) & ~nodes.on_host
    action[is_native] = COLLECTIVE_NODE
    size = np.maximum(nodes.bytes, 0)
    chunk = size // system.splits
    is_gather = nodes.collective == JobCollective.ALL_GATHER
    # At least one byte per rank of the system, also in smaller groups.
    is_raised = ~is_gather & (chunk < nodes.num_ranks)
    chunk = np.where(is_raised, nodes.num_ranks, chunk)
    size = np.where(is_raised, system.splits * chunk, size)
    message = "an all-gather of fewer bytes than splits: ASTRA-sim never stops"
    is_endless = is_native & is_gather & (chunk == 0) & (size > 0)
    _refuse(nodes, is_endless, message, "use fewer preferred-dataset-splits", "h7")
    rows = np.flatnonzero(is_native & (chunk > 0))
    work[rows] = chunk[rows]
    # The remainder becomes one more chunk of full size.
    streams[rows] = -(-size[rows] // chunk[rows])
