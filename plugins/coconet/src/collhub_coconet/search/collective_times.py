"""Times of collectives by formula, and the best choice of algorithm, protocol and chunk count.

Alpha-beta model: a step takes a latency (alpha) plus its bytes divided by the bandwidth. Sources:
Thakur et al., "Optimization of Collective Communication Operations in MPICH" (2005) for ring and
halving/doubling; Sanders et al., "Two-tree algorithms" (2009) for pipelined binary trees with k
chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2
from typing import Protocol as TypingProtocol

from collhub_coconet.lowering.algorithms import count_buffer_bytes
from collhub_coconet.program.operations import UNEVEN_COLLECTIVES, Binding, Kind, Operation
from collhub_coconet.program.program import Program, find_axis_positions, reduces_scalar
from collhub_coconet.program.uneven_rows import compute_byte_counts
from hub_core import Topology
from hub_core.model import InputError, UnitCounts
from hub_core.network import DimensionKind


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one rank: arithmetic, memory, link to its group, and kernel launches.

    `operations_per_s`: rate of contractions (matrix products, convolutions).
    `memory_bytes_per_s`: rate of the rank's memory. `link_bytes_per_s`: bandwidth to a neighbour in
    one direction. `latency_s`: of a message to a neighbour. `launch_s`: time to launch a kernel.
    `is_any_to_any`: any two ranks communicate at that bandwidth and latency, as through a switch.
    """

    operations_per_s: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    latency_s: float
    launch_s: float
    is_any_to_any: bool = True


def is_any_to_any(topology: Topology) -> bool:
    """Return whether the topology is declared as one switch or one fully connected dimension.

    Only such networks have the same bandwidth and latency between any two NPUs. False for
    several dimensions, and for a topology without declared dimensions, whatever its links.
    """
    kinds = [dimension.kind for dimension in topology.dimensions]
    return kinds in ([DimensionKind.SWITCH], [DimensionKind.FULLY_CONNECTED])


def find_slowest_link(topology: Topology) -> tuple[float, float]:
    """Return (bandwidth in bytes/s, latency in s) of the NPU whose fastest link is slowest.

    The fastest outgoing link of an NPU is the one with the highest bandwidth (of equal ones, the
    highest latency). Among the NPUs, the lowest bandwidth counts, of equal ones the lowest latency.
    NPUs without links are ignored. The latency of a link to a switch counts twice, for the link
    from the switch to the receiver. Raises `InputError` if no NPU has a link.
    """
    fastest_by_npu: dict[int, tuple[float, float]] = {}
    for link in topology.links():
        hops = 2 if link.destination >= topology.num_npus else 1
        rates = link.bandwidth_bytes_per_s, hops * link.latency_s
        is_from_npu = link.source < topology.num_npus
        if is_from_npu and rates > fastest_by_npu.get(link.source, (0.0, 0.0)):
            fastest_by_npu[link.source] = rates
    if not fastest_by_npu:
        raise InputError("the network has no links", cure="name one such as ring:8")
    return min(fastest_by_npu.values())


CHUNK_COUNTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Protocol:
    """Protocol of NCCL: `step_s` is added to the latency of a step.

    `data_share`: fraction of the transmitted bytes that are data; the remainder are flags.
    """

    name: str
    step_s: float
    data_share: float


# Data shares: of 8 bytes LL sends 4 bytes of data, of 128 bytes LL128 sends 120. Latencies: those
# of rings over NVLink in NCCL's src/graph/tuning.cc.
PROTOCOLS = (
    Protocol("Simple", 3.4e-6, 1.0),
    Protocol("LL128", 1.9e-6, 120 / 128),
    Protocol("LL", 0.6e-6, 4 / 8),
)


@dataclass(frozen=True, slots=True, order=True)
class Means:
    """Algorithm, protocol and chunk count by which a communication, stage or chain is run."""

    algorithm: str
    protocol: str
    chunks: int = 1

    def __str__(self) -> str:
        chunks = f", {self.chunks} chunks" if self.chunks > 1 else ""
        return f"{self.algorithm} {self.protocol}{chunks}"


@dataclass(frozen=True, slots=True)
class Demand:
    """Collective of a program: kind, bytes of its full buffer, ranks of the job, and root.

    Equal demands have equal algorithms and times. A Send has the bytes of its message. Of several
    subgroups of a mesh, `members` are those of the first. `root` is an index in `members`.
    `counts`: bytes of the parts of an uneven collective.
    """

    kind: Kind
    size_bytes: int
    members: tuple[int, ...]
    root: int | None = None
    counts: UnitCounts | None = None

    def __str__(self) -> str:
        return f"{self.kind} of {self.size_bytes} bytes"


def find_demand(program: Program, binding: Binding, operation: Operation) -> Demand | None:
    """Describe the communication of an operation; None if it does not communicate.

    The first rule that applies:

    1. Neither a communication nor a reduction of slices to a scalar: None.
    2. Send: the bytes of the result on one rank, and the ranks of group 0.
    3. Only one rank takes part along the axes of the operation: None.
    4. A member of a bucket (collectives performed as one) that is not its first: None.
    5. Uneven collective (kind ends with V): the counts of all members of its bucket in bytes, and
       their sum.
    6. A reduction of slices to a scalar: an AllReduce with the bytes of the scalar.
    7. Other collectives: the bytes of the full buffers of all members of the bucket (otherwise
       of the operation), at least one byte per rank. Only broadcast and reduce have a root, an
       index in `members`.

    The full buffer is that of `count_buffer_bytes`. In rules 3 to 7 `members` are the ranks of
    the job in the first subgroup along the axes, within the group of the result. Raises
    `InputError` for counts that are negative or missing, sum to 0, or exceed 2^62 bytes.
    """
    tensor = program.types[operation.name]
    is_scalar = reduces_scalar(program, operation)
    if not is_scalar and not operation.is_communication:
        return None
    if operation.kind is Kind.SEND:
        return Demand(Kind.SEND, binding.bytes_of_rank(tensor), tuple(binding.ranks_of(0)))
    ranks = binding.ranks_of(tensor.group)
    subgroups = binding.subgroups(find_axis_positions(program, operation))
    members = tuple(ranks[position] for position in subgroups[0])
    if len(members) == 1:
        return None
    bucket = program.buckets.get(operation.name, (operation,))
    if operation is not bucket[0]:
        return None
    if operation.kind in UNEVEN_COLLECTIVES:
        counts = compute_byte_counts(program, binding, *bucket)
        return Demand(operation.kind, counts.total, members, None, counts)
    size = sum(count_buffer_bytes(program, binding, member) for member in bucket)
    if is_scalar:
        return Demand(Kind.ALL_REDUCE, size, members)
    root = operation.root if operation.kind in (Kind.BROADCAST, Kind.REDUCE) else None
    # Algorithms cut a tensor into one part per rank, of at least one byte.
    return Demand(operation.kind, max(size, len(members)), members, root)


_EVEN_KINDS = {
    Kind.ALL_TO_ALL_V: Kind.ALL_TO_ALL,
    Kind.ALL_GATHER_V: Kind.ALL_GATHER,
    Kind.REDUCE_SCATTER_V: Kind.REDUCE_SCATTER,
}


class CollectiveTimes(TypingProtocol):
    """Times of single collectives."""

    def find_fastest(self, demand: Demand) -> tuple[float, Means]:
        """Return the seconds of a collective alone, and its fastest means."""
        ...


@dataclass(frozen=True, slots=True)
class FormulaTimes:
    """Times of collectives by formula, for the algorithms with a formula."""

    rates: Rates

    def find_fastest(self, demand: Demand) -> tuple[float, Means]:
        """Return the time of a communication by formula in s, and the means that has this time.

        A means is an algorithm, a protocol and a number of chunks: 1, 2, 4 ... 64 for a tree, else
        1. Of equal times the first by name of algorithm, name of protocol and chunks is returned.
        Halving/doubling is excluded if `rates.is_any_to_any` is False. An uneven kind has the
        formulas of its even kind. With n ranks, the formula takes these bytes:

        - counts per pair of ranks: n times the largest sum that one rank sends, or that one rank
          receives; data to itself included
        - counts per rank: n times the largest count
        - all-to-all without counts: n times `demand.size_bytes`
        - otherwise: `demand.size_bytes`
        Raises `KeyError` for a kind without formulas.
        """
        size, num_ranks = demand.size_bytes, len(demand.members)
        if demand.counts is not None:
            table = demand.counts.table
            if demand.counts.is_per_pair:
                largest = max(table.sum(axis=0).max(), table.sum(axis=1).max())
            else:
                largest = table.max()
            size, even = int(largest) * num_ranks, _EVEN_KINDS[demand.kind]
            return find_fastest_means(even, size, num_ranks, self.rates)
        if demand.kind is Kind.ALL_TO_ALL:
            # The formula takes the complete tensor; the buffer is that of a rank.
            size *= num_ranks
        return find_fastest_means(demand.kind, size, num_ranks, self.rates)


@dataclass(frozen=True, slots=True)
class _CollectiveCall:
    """Parameters of a formula for one collective.

    `size`: bytes of the complete tensor; of a Send, bytes of the message. `alpha`: seconds of
    latency per step. `beta`: seconds per byte.
    """

    ranks: int
    size: int
    alpha: float
    beta: float

    @property
    def transfer_s(self) -> float:
        """Seconds to send (ranks - 1) / ranks of the tensor: all blocks except the rank's block.

        No algorithm for a reduce-scatter or all-gather sends fewer bytes per rank.
        """
        return (self.ranks - 1) / self.ranks * self.size * self.beta

    @property
    def depth(self) -> int:
        """Rounds of a binary tree, and of halving and doubling: log2(ranks), rounded up."""
        return ceil(log2(self.ranks))

    def compute_pipeline_s(self, rounds: int, chunks: int) -> float:
        """Return seconds until the last of `chunks` equal chunks has passed all pipelined rounds.

        A chunk needs alpha (s) plus its bytes times beta (s/byte) per round.
        """
        return (rounds + chunks - 1) * (self.alpha + self.size * self.beta / chunks)


def _compute_ring_s(call: _CollectiveCall, passes: int) -> float:
    """Seconds of `passes` passes around a ring; a pass has (ranks - 1) steps."""
    return passes * ((call.ranks - 1) * call.alpha + call.transfer_s)


def _compute_halving_s(call: _CollectiveCall, passes: int) -> float:
    """Seconds of `passes` passes of recursive halving or doubling; a pass has `depth` steps."""
    return passes * (call.depth * call.alpha + call.transfer_s)


Formula = Callable[[_CollectiveCall, int], float]
"""Seconds of a collective by its parameters and its chunk count.

Only formulas of the algorithm `tree` use the chunk count.
"""

_FORMULAS: dict[Kind, dict[str, Formula]] = {
    Kind.ALL_REDUCE: {
        "ring": lambda call, _: _compute_ring_s(call, 2),
        "halving-doubling": lambda call, _: _compute_halving_s(call, 2),
        "tree": lambda call, chunks: 2 * call.compute_pipeline_s(call.depth, chunks),
    },
    Kind.REDUCE_SCATTER: {
        "ring": lambda call, _: _compute_ring_s(call, 1),
        "halving-doubling": lambda call, _: _compute_halving_s(call, 1),
    },
    Kind.ALL_GATHER: {
        "ring": lambda call, _: _compute_ring_s(call, 1),
        "halving-doubling": lambda call, _: _compute_halving_s(call, 1),
    },
    Kind.ALL_TO_ALL: {"direct": lambda call, _: _compute_ring_s(call, 1) / call.ranks + call.alpha},
    Kind.BROADCAST: {"tree": lambda call, chunks: call.compute_pipeline_s(call.depth, chunks)},
    Kind.REDUCE: {"tree": lambda call, chunks: call.compute_pipeline_s(call.depth, chunks)},
    Kind.SEND: {"direct": lambda call, _: call.alpha + call.size * call.beta},
}


@lru_cache(maxsize=1 << 14)
def find_fastest_means(kind: Kind, size: int, ranks: int, rates: Rates) -> tuple[float, Means]:
    """Find the fastest means for a collective by formula; return its seconds and these means.

    `size`: bytes of the complete tensor; of a Send, bytes of the message. All algorithms of the
    kind, protocols and, for trees, chunk counts (1, 2, 4, ... 64) are compared. Halving/doubling
    needs links between distant ranks, and is left out if `rates` has none. If times are equal, the
    means that are first in the order of their fields are returned. Results are cached.
    """
    candidates: list[tuple[float, Means]] = []
    for protocol in PROTOCOLS:
        alpha = rates.latency_s + protocol.step_s
        beta = 1 / (rates.link_bytes_per_s * protocol.data_share)
        call = _CollectiveCall(ranks, size, alpha, beta)
        for algorithm, formula in _FORMULAS[kind].items():
            if algorithm == "halving-doubling" and not rates.is_any_to_any:
                continue
            for chunks in CHUNK_COUNTS if algorithm == "tree" else (1,):
                means = Means(algorithm, protocol.name, chunks)
                candidates.append((formula(call, chunks), means))
    return min(candidates)
