"""Build the rings, trees and NVLS that NCCL runs on a machine, as algorithms of the hub.

Within a node a channel is a ring or a chain over the GPUs in the order of their ranks. Between
nodes channel c enters and leaves every node at GPU c, so that all network cards are used; trees
join the nodes by NCCL's double binary tree (src/graph/connect.cc and trees.cc).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import numpy as np
from collhub_machine_profiles.nccl_baseline import communicator_of_topology
from collhub_machine_profiles.nccl_choice import launch_of
from collhub_machine_profiles.nccl_constants import parse_version
from collhub_nccl_records import TreeNode

from collhub_nccl.explain.calls import CallRequest, explain_call
from collhub_nccl.graphs.channel_algorithms import nvls_algorithm, ring_algorithm, tree_algorithm
from collhub_nccl.options import NcclSynthesisOptions
from hub_core import installed_version
from hub_core.model import Algorithm, CollectiveKind, InputError, JsonValue, Provenance, UsageError
from hub_core.network import Topology
from hub_core.plugin_api import SynthesisRequest, SynthesisResult
from hub_core.schedules import find_second_tree_parents, find_tree_parents

_DISTRIBUTION = "collhub-nccl"
# More chunks make files larger and change simulated times by little.
_MAX_CHUNKS = 16
_MAX_MESSAGES = 1 << 20
_MODELLED = frozenset({"ring", "tree"})
_NVLS = "nvls"
_NVLS_KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
)


@dataclass(frozen=True, slots=True)
class _AlgorithmPlan:
    """Algorithm, channels and chunks to build, and facts of NCCL's choice for the report."""

    algorithm: str
    channels: int
    chunks: int
    facts: dict[str, JsonValue]


def synthesize(request: SynthesisRequest, options: NcclSynthesisOptions) -> SynthesisResult:
    """Build NCCL's ring, tree or NVLS algorithm for a collective on a topology.

    The collective must be one that the plugin offers. On a machine with a known GPU, algorithm,
    channels and chunks are those that NCCL uses for the size, unless options give them. `auto`
    builds the cheapest of ring, tree and, if possible, NVLS. This may be another algorithm than
    NCCL's choice, which the statistics name. On other machines, `auto` builds rings
    (`_choose_plan`). Nodes are the groups of the topology.

    The time in ns is that of the simulator, or an estimate if there is none (None or 0). The result
    has no bounds. The statistics are the algorithm (`graph`), channels, chunks and facts of NCCL's
    choice. With the name of the topology, they are also in the algorithm's `extensions`.

    Raises `UsageError`, in this order:

    1. There are fewer than 2 ranks.
    2. The option is `tree`, and the collective is not an all-reduce.
    3. The option is `nvls`, and NVLS is not possible. It needs an all-reduce, all-gather or
       reduce-scatter on one node whose switches multicast and add up.
    4. The version is unknown, or, on a known GPU, NCCL may not use the algorithm for the call.
    5. The size has fewer bytes than units.

    Raises `InputError` (`too-large`) for more than 2^20 messages with one chunk.
    """
    kind = request.collective.kind
    if request.collective.num_ranks < 2:
        raise UsageError("one rank has nothing to send", cure="let two ranks take part")
    if options.algorithm == "tree" and kind is not CollectiveKind.ALL_REDUCE:
        raise UsageError(f"NCCL runs no {kind} over trees", cure="use algorithm=ring")
    nodes = _group_ranks_by_node(request.topology, request.npus)
    if options.algorithm == _NVLS and not _has_nvls(request, nodes):
        message = f"{kind} over {request.topology.name} cannot use NVLS, which takes one node"
        message += " whose switches multicast and add up"
        raise UsageError(message, cure="use algorithm=ring, or a topology such as dgx-h100")
    plan = _limit_messages(_choose_plan(request, options, nodes), request)
    algorithm = _build_algorithm(request, options, plan, nodes)
    time_ns = request.simulate(algorithm) or _estimate_ns(request, plan)
    statistics: dict[str, JsonValue] = {
        "graph": plan.algorithm,
        "channels": plan.channels,
        "chunks": plan.chunks,
        **plan.facts,
    }
    record: dict[str, JsonValue] = {**statistics, "topology": request.topology.name}
    algorithm = replace(algorithm, extensions={_DISTRIBUTION: record})
    return SynthesisResult(algorithm, time_ns, {}, statistics)


def node_rings(nodes: Sequence[Sequence[int]], channels: int) -> list[tuple[int, ...]]:
    """Return the ring of each channel: all ranks of one node, then those of the next node.

    With several nodes, the ring of channel c begins at GPU c (modulo the GPUs of a node) in every
    node, and ends at the GPU before it. With one node, all rings are equal and begin at GPU 0.
    """
    rings = []
    for channel in range(channels):
        ring: list[int] = []
        for ranks in nodes:
            first = channel % len(ranks) if len(nodes) > 1 else 0
            ring += [*ranks[first:], *ranks[:first]]
        rings.append(tuple(ring))
    return rings


def node_trees(nodes: Sequence[Sequence[int]], channels: int) -> list[Mapping[int, TreeNode]]:
    """Return NCCL's balanced tree of each channel: parent and children by rank, ascending by rank.

    `nodes`: ranks (one per GPU) of each node, at least one. The root has parent -1. The children of
    a rank are first those in its node, then those in other nodes by ascending node. Below, H is
    half of `channels`, rounded up, and c is the channel.

    - Within a node, the GPUs form a chain in cyclic order: each is the parent of the next. The
      first GPU is number (c mod H) mod (GPUs of the node), with a single node number 0.
    - Between nodes, channels below H use NCCL's first binary tree, the other channels its second
      one. The first GPU of the child node gets a parent in the parent node: the second GPU of the
      chain if there is one and the child node has the lower number, otherwise the first.
    - Numbers in the second tree: node k of n counts as n - 1 - k if n is even, as (k - 1) mod n if
      n is odd.
    """
    count, half = len(nodes), max(1, -(-channels // 2))
    # Parents of the nodes, and the number of each node within the tree.
    second = [count - 1 - node if count % 2 == 0 else (node - 1) % count for node in range(count)]
    both = (
        (find_tree_parents(count).tolist(), list(range(count))),
        (find_second_tree_parents(count).tolist(), second),
    )
    trees: list[Mapping[int, TreeNode]] = []
    for channel in range(channels):
        parents, numbers = both[0 if channel < half else 1]
        chains = []
        for ranks in nodes:
            first = channel % half % len(ranks) if count > 1 else 0
            chains.append([*ranks[first:], *ranks[:first]])
        parent_of = {chain[0]: -1 for chain in chains}
        children: dict[int, list[int]] = {rank: [] for chain in chains for rank in chain}
        for chain in chains:
            for above, below in pairwise(chain):
                parent_of[below] = above
                children[above].append(below)
        for node, parent in enumerate(parents):
            if parent >= 0:
                is_lower = numbers[node] < numbers[parent]
                receiver = chains[parent][1 if is_lower and len(chains[parent]) > 1 else 0]
                parent_of[chains[node][0]] = receiver
                children[receiver].append(chains[node][0])
        trees.append(
            {rank: TreeNode(parent_of[rank], tuple(children[rank])) for rank in sorted(children)}
        )
    return trees


def _group_ranks_by_node(topology: Topology, npus: Sequence[int]) -> list[list[int]]:
    """Return the ranks of every node, ascending; nodes are in the order of their lowest rank.

    `npus`: NPU of each rank. Nodes are the groups of the topology that have ranks. An NPU
    in several groups belongs to the last one, and all NPUs without a group form one node.
    If two nodes have different numbers of ranks, the result is one node with all ranks,
    because such nodes have no rings with one GPU per channel.
    """
    group_of = {
        npu: number for number, members in enumerate(topology.groups.values()) for npu in members
    }
    nodes: dict[int, list[int]] = {}
    for rank, npu in enumerate(npus):
        nodes.setdefault(group_of.get(npu, -1), []).append(rank)
    if len({len(ranks) for ranks in nodes.values()}) > 1:
        # Nodes of different sizes have no rings with one GPU per channel.
        return [list(range(len(npus)))]
    return list(nodes.values())


def _choose_plan(
    request: SynthesisRequest, options: NcclSynthesisOptions, nodes: Sequence[Sequence[int]]
) -> _AlgorithmPlan:
    """Choose algorithm, channels and chunks: from the options, otherwise as NCCL does.

    On a machine without a known GPU, or without data of its channels, the defaults are ring, 1
    channel and 1 chunk. Options other than `auto` and 0 replace them, and there are no facts.
    Otherwise:

    1. The algorithm is that of the options. For `auto`, ring, tree and, if `_has_nvls`, NVLS are
       allowed. The allowed algorithm and protocol with the lowest time in NCCL's model is taken;
       its last resorts come after all others.
    2. The default number of channels n and the bytes per chunk are those with which NCCL runs it
       (`launch_of`).
    3. The default number of chunks is 1 for NVLS. Otherwise it is D / (bytes per chunk), rounded
       up, from 1 to 16. D is size / n, for a ring of a collective without root also / ranks.
    4. The options `channels` and `chunks`, if not 0, replace these defaults. The option `channels`
       has no effect on D.

    Facts are `nccl_version`, `nccl_choice` and `nccl_channels` (NCCL's choice among all algorithms,
    if it has one), and `protocol`. Raises `UsageError` for an unknown version in the options. On a
    known GPU, it raises it too for a collective that NCCL's model lacks, and if NCCL may not use
    any allowed algorithm.
    """
    communicator = communicator_of_topology(
        request.topology,
        version="" if options.version is None else parse_version(options.version),
        ranks=len(request.npus),
        nodes=len(nodes),
    )
    kind, size = str(request.collective.kind), request.collective_bytes
    if communicator is None:
        algorithm = "ring" if options.algorithm == "auto" else options.algorithm
        return _AlgorithmPlan(algorithm, options.channels or 1, options.chunks or 1, {})
    call = explain_call(CallRequest(communicator, kind, size))
    facts: dict[str, JsonValue] = {"nccl_version": communicator.version}
    if call.choice is not None:
        facts["nccl_choice"] = f"{call.choice.algorithm} {call.choice.protocol}"
        facts["nccl_channels"] = call.choice.channels
    allowed = {options.algorithm}
    if options.algorithm == "auto":
        allowed = {*_MODELLED, *([_NVLS] if _has_nvls(request, nodes) else [])}
    # The alternatives ascend by NCCL's time; those without a time NCCL may not use.
    usable = [
        row.alternative
        for row in call.alternatives
        if row.time_us is not None and row.alternative.algorithm in allowed
    ]
    if not usable:
        names = " or ".join(sorted(allowed))
        raise UsageError(f"NCCL may not use {names} for this call", cure="use algorithm=auto")
    choice = launch_of(communicator, kind, usable[0], size)
    facts["protocol"] = choice.protocol
    data_per_channel = size / choice.channels
    if choice.algorithm == "ring" and not request.collective.kind.traits.is_rooted:
        data_per_channel /= communicator.ranks
    chunks = max(1, min(_MAX_CHUNKS, int(-(-data_per_channel // choice.chunk_bytes))))
    if choice.algorithm == _NVLS:
        # Times of machines divide the messages of NVLS into NCCL's chunks themselves.
        chunks = 1
    return _AlgorithmPlan(
        choice.algorithm, options.channels or choice.channels, options.chunks or chunks, facts
    )


def _has_nvls(request: SynthesisRequest, nodes: Sequence[Sequence[int]]) -> bool:
    """Return whether NVLS can run: all ranks are on one node, and NVLS has the collective.

    The topology must also have switches that multicast and switches that reduce. Switches
    of which only measured times are known count as both. `nodes`: the ranks of each node.
    """
    switched = request.topology.with_measured_switches()
    has_switches = bool(switched.multicast) and bool(switched.reduction)
    return has_switches and len(nodes) == 1 and request.collective.kind in _NVLS_KINDS


def _limit_messages(plan: _AlgorithmPlan, request: SynthesisRequest) -> _AlgorithmPlan:
    """Return the plan with fewer chunks if needed, at least 1; nothing else is changed.

    P is the number of ranks for NVLS and for rings of collectives without root, otherwise 1. There
    are channels x P units, and 2 x channels x ranks x P messages with one chunk. The number of
    chunks becomes the lowest of three numbers: that of the plan, 2^20 // messages, and bytes //
    units.

    Raises `UsageError` if there are fewer bytes than units, and after that `InputError`
    (`too-large`) for more than 2^20 messages with one chunk.
    """
    ranks = request.collective.num_ranks
    is_ring = plan.algorithm != "tree"
    is_rooted = request.collective.kind.traits.is_rooted
    units = plan.channels * (ranks if is_ring and not is_rooted else 1)
    messages = plan.channels * 2 * ranks * (ranks if is_ring and not is_rooted else 1)
    if request.collective_bytes < units:
        message = f"{request.collective_bytes} bytes cannot be cut in {units} parts"
        raise UsageError(message, cure="choose a larger size, or -O channels=1")
    if messages > _MAX_MESSAGES:
        message = f"{plan.channels} channels over {ranks} ranks need {messages} messages"
        raise InputError(message, cure="choose fewer channels: -O channels=1", code="too-large")
    chunks = min(plan.chunks, _MAX_MESSAGES // messages, request.collective_bytes // units)
    return replace(plan, chunks=max(1, chunks))


def _build_algorithm(
    request: SynthesisRequest,
    options: NcclSynthesisOptions,
    plan: _AlgorithmPlan,
    nodes: Sequence[Sequence[int]],
) -> Algorithm:
    texts = {name: str(value) for name, value in asdict(options).items()}
    version = installed_version(_DISTRIBUTION) or ""
    provenance = Provenance(_DISTRIBUTION, version, request.topology.name, "", texts)
    npus, total = request.npus, request.topology.num_npus
    if plan.algorithm == "tree":
        return tree_algorithm(
            node_trees(nodes, plan.channels),
            provenance,
            chunks=plan.chunks,
            npus=npus,
            num_npus=total,
            collective_bytes=request.collective_bytes,
        )
    if plan.algorithm == _NVLS:
        return nvls_algorithm(
            request.collective.kind,
            len(npus),
            plan.channels,
            provenance,
            chunks=plan.chunks,
            npus=npus,
            num_npus=total,
            collective_bytes=request.collective_bytes,
        )
    return ring_algorithm(
        request.collective.kind,
        node_rings(nodes, plan.channels),
        request.collective.root,
        provenance,
        chunks=plan.chunks,
        npus=npus,
        num_npus=total,
        collective_bytes=request.collective_bytes,
    )


def _estimate_ns(request: SynthesisRequest, plan: _AlgorithmPlan) -> int:
    """Return an estimated time in ns, rounded, for when there is no simulator.

    A plan has a number of rounds, each of which takes the largest latency of the topology
    plus its bytes divided by the smallest bandwidth:

    - ring: ranks - 1 rounds of size / ranks bytes
    - tree: log2(ranks) rounds, rounded up and at least 1, of the full size
    - NVLS: one round of size * (ranks - 1) / ranks bytes

    Size means the bytes of the full buffer. An all-reduce has twice as many rounds.
    Channels and chunks do not matter.
    """
    topology = request.topology
    ranks, size = request.collective.num_ranks, request.collective_bytes
    latency_ns = float(np.max(topology.latency_s)) * 1e9
    rate = float(np.min(topology.bandwidth_bytes_per_s))
    steps = ranks - 1 if plan.algorithm == "ring" else max(1, (ranks - 1).bit_length())
    part = size / ranks if plan.algorithm == "ring" else float(size)
    if plan.algorithm == _NVLS:
        steps, part = 1, size * (ranks - 1) / ranks
    if request.collective.kind is CollectiveKind.ALL_REDUCE:
        steps *= 2
    return round(steps * (latency_ns + part / rate * 1e9))
