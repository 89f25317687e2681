"""Refuse traces that cannot be simulated, with the location of the first invalid node."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collhub_astra_sim.simulating.set_order import BUCKET_COUNTS
from collhub_astra_sim.simulating.simulated_network import LONGEST_NS
from hub_core import NodeTable, NodeType
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import InputError, Location
from hub_core.network import Topology

Locate = Callable[[int], Location]
"""Returns the location of a node (by its row) for messages."""


def check_nodes(nodes: NodeTable, rank: Int64Array, topology: Topology, locate: Locate) -> None:
    """Raise `InputError` for traces that the kernel cannot simulate; `rank`: by node.

    Checks the number of NPUs, the size of ranks, messages and dependencies. Only invalid messages
    are reported with the location of their node.
    """
    if topology.num_npus < nodes.num_ranks:
        raise InputError(
            f"topology {topology.name} has {topology.num_npus} NPUs, "
            f"the algorithm has {nodes.num_ranks} ranks",
            cure="choose a topology with at least one NPU per rank",
            code="topology-too-small",
        )
    # The emulated hash sets have no larger bucket count.
    if int(np.diff(nodes.rank_indptr).max(initial=0)) > BUCKET_COUNTS[-1]:
        raise InputError(f"a rank has more than {BUCKET_COUNTS[-1]} nodes", code="too-large")
    _check_messages(nodes, rank, locate)
    _check_parents(rank, nodes.data_indptr, nodes.data_indices)
    _check_parents(rank, nodes.control_indptr, nodes.control_indices)


def _check_messages(nodes: NodeTable, rank: Int64Array, locate: Locate) -> None:
    """Raise `InputError` for a message with an invalid peer or a negative size."""
    is_message = (nodes.type == NodeType.COMM_SEND) | (nodes.type == NodeType.COMM_RECV)
    peer = nodes.peer
    is_no_rank = (peer < 0) | (peer >= nodes.num_ranks)
    defects: tuple[tuple[BoolArray, str, str], ...] = (
        (is_no_rank, "names a peer that is not a rank", "peer-range"),
        (peer == rank, "sends to or receives from its own rank", "self-message"),
        (nodes.size < 0, "has a negative size", "negative-size"),
    )
    for is_defective, defect, code in defects:
        is_wrong = is_message & is_defective
        if is_wrong.any():
            first = int(np.argmax(is_wrong))
            raise InputError(f"a message {defect}", location=locate(first), code=code)


def _check_parents(rank: Int64Array, indptr: Int64Array, parents: Int64Array) -> None:
    """Refuse dependencies on missing nodes or on nodes of another rank.

    Raises `InputError`. `parents` are rows of the entire table, `indptr` their row pointer by node.
    """
    parent_counts = np.diff(indptr)
    child_rank = np.repeat(rank, parent_counts)
    is_present = (parents >= 0) & (parents < len(rank))
    # Only existing nodes have a rank to compare.
    if not is_present.all() or np.any(rank[parents] != child_rank):
        message = "a dependency names a node that its rank does not have"
        raise InputError(message, code="dangling")


def check_longest_time(hops: Int64Array, slowest_ns: Int64Array, duration_ns: Int64Array) -> None:
    """Raise `InputError` if times could overflow; the upper bound is a fully serial execution.

    `hops` and `slowest_ns` (time on the slowest link) by message; `duration_ns` by node.
    """
    on_links = float(np.sum(hops * slowest_ns.astype(np.float64)))
    on_ranks = float(np.sum(duration_ns, dtype=np.float64))
    if on_links + on_ranks >= LONGEST_NS:
        raise InputError(
            "the simulated time may exceed 146 years",
            cure="check sizes, bandwidths and durations",
            code="too-long",
        )
