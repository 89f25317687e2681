"""Number the messages of traces, and refuse nodes that cannot be simulated.

Sends and receives that may be matched share a key: ASTRA-sim matches the n-th receive posted with
the n-th send issued of one key (tag modulo 5e8, source, destination, size), in the order of
simulated time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from collhub_astra_sim.simulating.set_order import BUCKET_COUNTS
from collhub_astra_sim.simulating.simulated_network import LONGEST_NS
from hub_core import NodeTable, NodeType
from hub_core.columns import BoolArray, Int64Array, IntArray, row_pointer
from hub_core.model import InputError, Location
from hub_core.network import Topology

# ASTRA-sim reserves the upper part of its tag space.
TAG_MODULUS = 500_000_000
_LARGEST_CODE = (1 << 63) - 1
# Maximum size of a lookup table of codes, in entries per code.
_ROOM = 4


def compute_message_keys(
    nodes: NodeTable, rank: Int64Array, size_class: IntArray
) -> tuple[npt.NDArray[np.int32], Int64Array]:
    """Number the messages that ASTRA-sim may match; return keys by node, and slots by key.

    Messages with the same sender, receiver, size class (index of the size) and tag (modulo
    `TAG_MODULUS`) have the same key, int32; local nodes have -1. A slot matches one SEND with one
    RECV; a key has as many slots as SENDs or RECVs, whichever are more. Key k has slots
    `pointer[k]` up to `pointer[k + 1]` - 1, where `pointer` is the second result, int64. `rank`,
    `size_class`: by node.
    """
    is_send_node = nodes.type == NodeType.COMM_SEND
    rows = np.flatnonzero(is_send_node | (nodes.type == NodeType.COMM_RECV))
    is_send = is_send_node[rows]
    rank_of_end, peer = rank[rows], nodes.peer[rows]
    # Both ends of a message use the same pair: from the sender to the receiver.
    source = np.where(is_send, rank_of_end, peer)
    destination = np.where(is_send, peer, rank_of_end)
    pair = compute_pair_codes(source, destination, nodes.num_ranks)
    tag = nodes.tag[rows] % TAG_MODULUS
    codes = _compute_joint_codes((pair, tag, size_class[rows]))
    key = np.full(len(nodes), -1, np.int32)
    key[rows] = codes
    # A key has as many slots as SENDs or RECVs, whichever number is larger.
    keys = int(codes.max(initial=-1)) + 1
    sends = np.bincount(codes[is_send], minlength=keys)
    receives = np.bincount(codes[~is_send], minlength=keys)
    return key, row_pointer(np.maximum(sends, receives))


def compute_pair_codes(source: IntArray, destination: IntArray, num_ranks: int) -> Int64Array:
    """Return source * num_ranks + destination for every pair of ranks, as int64.

    The codes ascend by source, then by destination.
    """
    return source.astype(np.int64) * num_ranks + destination


def _compute_joint_codes(columns: Sequence[IntArray]) -> Int64Array:
    """Number the distinct combinations of non-negative columns from 0, in lexicographic order.

    The first column is the most significant. The result is int64[rows]; equal rows have equal
    numbers. At least one column is needed.
    """
    codes = np.zeros(len(columns[0]), np.int64)
    span, is_dense = 1, True
    for column in columns:
        width = int(column.max(initial=0)) + 1
        if width == 1:
            # A column of zeros, such as the classes of equal sizes, distinguishes no rows.
            continue
        # Renumber intermediate codes only if the combination would exceed 64 bits.
        if span * width > _LARGEST_CODE:
            codes, span = compute_dense_codes(codes, span)
        codes = codes * width + column
        span *= width
        # Renumbering is inexpensive for small ranges and keeps the next step inexpensive.
        is_dense = span <= _ROOM * len(codes)
        if is_dense:
            codes, span = compute_dense_codes(codes, span)
    return codes if is_dense else compute_dense_codes(codes, span)[0]


def compute_dense_codes(codes: Int64Array, span: int) -> tuple[Int64Array, int]:
    """Renumber codes from 0 without gaps, in ascending order; also return the number of new codes.

    All codes must be at least 0 and below `span`. Cost: linear if the span is not much larger than
    the number of codes, else that of a sort.
    """
    if span > _ROOM * len(codes):
        distinct, dense = np.unique(codes, return_inverse=True)
        return dense.astype(np.int64), len(distinct)
    is_present = np.zeros(span, np.bool_)
    is_present[codes] = True
    number = np.cumsum(is_present) - 1
    return number[codes], int(number[-1]) + 1 if span else 0


Locate = Callable[[int], Location]
"""Returns the location of a node (by its row) for messages."""


def check_nodes(nodes: NodeTable, rank: Int64Array, topology: Topology, locate: Locate) -> None:
    """Raise `InputError` for the first defect of traces that the kernel cannot simulate.

    `rank`: rank of every node. Checks in this order, with the code of the error:

    1. `topology-too-small`: the topology has fewer NPUs than there are ranks
    2. `too-large`: a rank has more nodes than the largest of `BUCKET_COUNTS`
    3. messages: `peer-range` (peer is no rank), then `self-message` (peer is the rank of the
       node), then `negative-size`; each is checked for all messages
    4. `dangling`: a data, then a control dependency on a node that is missing or of another rank

    Only errors of messages have a location: `locate(row)` of the first invalid message.
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
    is_message = (nodes.type == NodeType.COMM_SEND) | (nodes.type == NodeType.COMM_RECV)
    is_no_rank = (nodes.peer < 0) | (nodes.peer >= nodes.num_ranks)
    defects: tuple[tuple[BoolArray, str, str], ...] = (
        (is_no_rank, "names a peer that is not a rank", "peer-range"),
        (nodes.peer == rank, "sends to or receives from its own rank", "self-message"),
        (nodes.size < 0, "has a negative size", "negative-size"),
    )
    for is_defective, defect, code in defects:
        is_wrong = is_message & is_defective
        if is_wrong.any():
            first = int(np.argmax(is_wrong))
            raise InputError(f"a message {defect}", location=locate(first), code=code)
    _check_parents(rank, nodes.data_indptr, nodes.data_indices)
    _check_parents(rank, nodes.control_indptr, nodes.control_indices)


def _check_parents(rank: Int64Array, indptr: Int64Array, parents: Int64Array) -> None:
    """Raise `InputError` (`dangling`) for a dependency on a missing node or another rank.

    `rank`: rank of each node, by row. `parents[indptr[i]:indptr[i + 1]]`: rows of the nodes
    on which node i depends. A row is missing if it is negative or not below the number of
    nodes. The error names neither the node nor a location. Without dependencies, no error
    is raised.
    """
    parent_counts = np.diff(indptr)
    child_rank = np.repeat(rank, parent_counts)
    is_present = (parents >= 0) & (parents < len(rank))
    # Only existing nodes have a rank to compare.
    if not is_present.all() or np.any(rank[parents] != child_rank):
        message = "a dependency names a node that its rank does not have"
        raise InputError(message, code="dangling")


def check_longest_time(hops: Int64Array, slowest_ns: Int64Array, duration_ns: Int64Array) -> None:
    """Raise `InputError` (`too-long`) if simulated times could overflow 64-bit integers.

    The upper bound of the simulated time (ns) is the sum of two parts:

    - all durations of nodes, `duration_ns`: int64[nodes];
    - for every message, `hops` (links of its route) times `slowest_ns` (its time on the
      slowest link): both int64[messages].

    The error is raised if the bound is at least `LONGEST_NS` (2^62 ns, 146 years). Empty
    arrays add 0. The bound is computed with floats, so it cannot overflow itself.
    """
    on_links = float(np.sum(hops * slowest_ns.astype(np.float64)))
    on_ranks = float(np.sum(duration_ns, dtype=np.float64))
    if on_links + on_ranks >= LONGEST_NS:
        raise InputError(
            "the simulated time may exceed 146 years",
            cure="check sizes, bandwidths and durations",
            code="too-long",
        )
