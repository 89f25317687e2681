"""Spanning tree of about least depth: shortest paths from the middle of a network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from collhub_packing import CapacityGraph, SpanningTree, Strength, all_reduce_trees, strength
from collhub_packing.pipelining import Pipeline, Pipelining, best_chunks

from collhub_tacos.candidates import Nodes, SynthesisCandidate
from collhub_tacos.networks.distances import ShortestPaths
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.symmetry import is_duplex
from collhub_tacos.seed_search import Progress
from collhub_tacos.setting import Setting
from hub_core.columns import Int64Array
from hub_core.model import InputError, JsonValue
from hub_core.network import Occupancy, Topology
from hub_core.schedules import Transfers, algorithm_of
from hub_core.verification import verify

_LANDMARKS = 16


def central_tree(network: LinkNetwork, times: LinkTimes, members: Int64Array) -> SpanningTree:
    """Shortest paths by `times.arrival` from the node whose farthest member is nearest.

    Links are the arcs of the tree. The middle is found by distances to at most 16 members, each as
    far as can be from those before: exact on lines, meshes and trees, where these are ends and
    corners. For networks of NPUs with duplex links, in which all members are connected.
    """
    nodes = network.num_nodes
    paths = ShortestPaths(nodes, network.source, network.destination, times.arrival)
    distance = _distances_of_landmarks(paths, members)
    farthest, total = distance.max(axis=0), distance.sum(axis=0)
    # Of several middles the one that is nearest to all landmarks.
    root = int(np.lexsort((total, farthest))[0])
    from_root = paths.lengths(np.asarray([root]))[0]
    return _tree_of_paths(network, times.arrival, from_root, root)


def _distances_of_landmarks(paths: ShortestPaths, members: Int64Array) -> Int64Array:
    """Distances int64[landmarks, nodes] from members that are far from one another."""
    distance = paths.lengths(members[:1])
    while len(distance) < min(_LANDMARKS, len(members)):
        nearest = distance[:, members].min(axis=0)
        farthest = members[[int(np.argmax(nearest))]]
        distance = np.concatenate([distance, paths.lengths(farthest)])
    return distance


def _tree_of_paths(
    network: LinkNetwork, weight: Int64Array, distance: Int64Array, root: int
) -> SpanningTree:
    """SpanningTree of shortest paths; of several last links to a node the first one is taken."""
    source, destination = network.source, network.destination
    # Links that lie on a shortest path.
    is_tight = distance[source] + weight == distance[destination]
    tight = np.flatnonzero(is_tight)
    nodes, first = np.unique(destination[tight], return_index=True)
    arc = np.full(network.num_nodes, -1, np.int64)
    parent = np.full(network.num_nodes, -1, np.int64)
    arc[nodes] = tight[first]
    parent[nodes] = source[tight[first]]
    parent[root] = arc[root] = -1
    return SpanningTree(root, 1, parent, arc)


# Messages of the largest schedule that is tried, and of one that compares packings.
_MOST_MESSAGES = 1 << 19
_TRIAL_MESSAGES = 1 << 15
# Simulators count nanoseconds: below twenty, rounding would show.
_LEAST_S = 20e-9
_MOST_SEEDS = 8
_NODES_FOR_ALL_SEEDS = 256
# Above, packing trees takes minutes.
_MOST_NODES = 1024
# Links that take equal times for one size and bandwidth do for all.
_ANY_SIZE = 1 << 20


def unsuitability(network: LinkNetwork) -> str | None:
    """Why links cannot carry trees both ways at one rate, None where they can."""
    if network.num_nodes > network.num_npus:
        return "the network has switches"
    if not is_duplex(network, network.link_times(_ANY_SIZE, Occupancy.SERIALIZATION)):
        return "the network has links that are one-way or differ by direction"
    return None


def is_promising(setting: Setting) -> bool:
    """Whether trees can carry more than a reduce-scatter and then an all-gather; not so on tori.

    By what the weakest NPU can take. False as well where the data has less than a byte per chunk,
    or where packing trees takes minutes.
    """
    graph = CapacityGraph.of(setting.network.topology)
    npus = graph.num_compute
    if npus > _MOST_NODES:
        return False
    rate = strength(graph).value
    ingress = np.bincount(graph.destination, graph.capacity, graph.num_nodes)
    weakest = int(ingress.min())
    # 2 (n - 1) / n of the data enter every NPU in two phases.
    is_faster = 2 * (npus - 1) * rate > npus * weakest
    return is_faster and setting.collective_bytes >= rate.numerator


def fused(setting: Setting, progress: Progress) -> SynthesisCandidate:
    """All-reduce at the rate of the network's strength.

    The fastest over random packings and then over chunk counts. `setting.pieces` chunks per rank,
    where stated, are met as nearly as the weights of the trees allow. Raises `InputError` for a
    network with an `unsuitability` or without connection, and for sizes below a byte per chunk.
    """
    return _fastest("fused", setting, _packings(setting, progress))


def latency(setting: Setting, progress: Progress) -> SynthesisCandidate:
    """All-reduce up and down one tree of about least depth: the fastest over chunk counts.

    Raises as `fused`.
    """
    return _fastest("latency", setting, _central(setting, progress))


@dataclass(frozen=True, slots=True, eq=False)
class _PipelinedTrees:
    """Trees, the schedules that can be made on them, and what is to be said of them."""

    trees: Sequence[SpanningTree]
    pipelining: Pipelining
    details: Mapping[str, JsonValue]

    @classmethod
    def of(
        cls, trees: Sequence[SpanningTree], setting: Setting, details: Mapping[str, JsonValue]
    ) -> _PipelinedTrees:
        pipelining = Pipelining.of(
            setting.network.topology,
            trees,
            setting.collective,
            setting.collective_bytes,
            setting.occupancy,
            setting.members,
        )
        depth = max(tree.depth for tree in trees)
        return cls(trees, pipelining, {**details, "trees": len(trees), "depth": depth})

    @property
    def weight(self) -> int:
        """Chunks of the whole, where a tree of weight 1 has one."""
        return sum(tree.weight for tree in self.trees)

    @property
    def num_arcs(self) -> int:
        """Arcs of all trees, each as often as the weight of its tree."""
        arcs = 0
        for tree in self.trees:
            arcs += tree.weight * int(np.count_nonzero(tree.parent >= 0))
        return arcs

    def schedule(self, repeats: int) -> Pipeline:
        """With `repeats` chunks for every unit of weight."""
        return self.pipelining.schedule([repeats * tree.weight for tree in self.trees])

    def most_repeats(self, messages: int) -> int:
        """How often so many messages, and the least size of one, allow to repeat; at least once."""
        smallest = _smallest_chunk(self.pipelining.topology)
        # A chunk goes up and down every arc of its tree.
        by_messages = messages // (2 * self.num_arcs)
        by_size = self.pipelining.collective_bytes // (self.weight * smallest)
        return max(1, min(by_messages, by_size))

    def stated_repeats(self, setting: Setting) -> int | None:
        """Repeats for about the stated number of chunks per rank, None where none is stated."""
        if setting.pieces is None:
            return None
        # The weights of the trees decide which numbers there are: the nearest one.
        chunks = setting.pieces * setting.collective.num_ranks
        return max(1, round(chunks / self.weight))


def _smallest_chunk(topology: Topology) -> int:
    """Bytes of a chunk that takes a link for its latency, or as long as simulators resolve well.

    Smaller ones would gain little, and with more than two on their way on a link simulators do not
    keep their order.
    """
    shortest = np.maximum(topology.latency_s, _LEAST_S)
    chunk_bytes = topology.bandwidth_bytes_per_s * shortest
    return math.ceil(float(chunk_bytes.max()))


@dataclass(frozen=True, slots=True, eq=False)
class _MadePipeline:
    """Schedule that was made on some trees, with `repeats` chunks for every unit of weight."""

    packing: _PipelinedTrees
    repeats: int
    pipeline: Pipeline

    def candidate(self, form: str, setting: Setting, *, is_interrupted: bool) -> SynthesisCandidate:
        """What is offered for synthesis."""
        return SynthesisCandidate(
            form=form,
            pieces=self.repeats * self.packing.weight,
            collective=self.pipeline.collective,
            chunks=self.pipeline.chunks,
            num_transfers=len(self.pipeline.transfers),
            time_ps=self.pipeline.time_ps,
            transfers=self._transfers,
            replay=lambda progress: self._verify(setting),
            details=self.packing.details,
            is_interrupted=is_interrupted,
        )

    def _transfers(self, nodes: Nodes) -> Transfers:
        """Transfers that touch one of the NPUs `nodes`, or all of them for None."""
        transfers = self.pipeline.transfers
        return transfers if nodes is None else transfers.touching(nodes)

    def _verify(self, setting: Setting) -> bool:
        """True; raises `InputError` where the whole is not right."""
        algorithm = algorithm_of(
            self.pipeline.collective,
            self.pipeline.chunks,
            self.pipeline.transfers,
            npus=setting.members.tolist(),
            num_npus=setting.network.num_npus,
        )
        report = verify(algorithm)
        if not report.ok:
            raise InputError(f"invalid schedule: {report.diagnostics[0]}", code="invalid-schedule")
        return True


class _FastestPipeline:
    """Schedules that were made; the fastest is kept."""

    def __init__(self) -> None:
        self.best: _MadePipeline | None = None

    def time_ps(self, packing: _PipelinedTrees, repeats: int) -> int:
        """Make one more."""
        made = _MadePipeline(packing, repeats, packing.schedule(repeats))
        # Of equal ones the first, which is the same on every run.
        if self.best is None or made.pipeline.time_ps < self.best.pipeline.time_ps:
            self.best = made
        return made.pipeline.time_ps


def _fastest(
    form: str, setting: Setting, packings: Iterator[_PipelinedTrees]
) -> SynthesisCandidate:
    """Try all packings with few chunks, the best one with more.

    Ctrl-C ends the search where there is a result.
    """
    if reason := unsuitability(setting.network):
        raise InputError(
            f"no all-reduce on trees: {reason}",
            cure="choose the method two-phase",
            code="not-duplex",
        )
    search = _FastestPipeline()
    try:
        found = _best_packing(search, setting, packings)
        if setting.pieces is None:
            found = _with_best_count(search, found)
    except KeyboardInterrupt:
        if search.best is None:
            raise
        return search.best.candidate(form, setting, is_interrupted=True)
    return found.candidate(form, setting, is_interrupted=False)


def _best_packing(
    search: _FastestPipeline, setting: Setting, packings: Iterator[_PipelinedTrees]
) -> _MadePipeline:
    for packing in packings:
        stated = packing.stated_repeats(setting)
        search.time_ps(packing, stated or packing.most_repeats(_TRIAL_MESSAGES))
    assert search.best is not None
    return search.best


def _with_best_count(search: _FastestPipeline, found: _MadePipeline) -> _MadePipeline:
    """The same trees with the number of chunks that is fastest."""
    packing = found.packing
    count = best_chunks(
        lambda repeats: search.time_ps(packing, repeats), packing.most_repeats(_MOST_MESSAGES)
    )
    if count == found.repeats:
        return found
    return _MadePipeline(packing, count, packing.schedule(count))


def _packings(setting: Setting, progress: Progress) -> Iterator[_PipelinedTrees]:
    """Trees of the network's strength, seed by seed."""
    # Packings of one strength differ in depth, and so in how fast the pipeline fills.
    graph = CapacityGraph.of(setting.network.topology)
    seeds = setting.seeds or _default_seeds(graph.num_nodes)
    for place in range(seeds):
        progress(place / (seeds + 1), "packing trees")
        seed = setting.seed + place
        found, trees = all_reduce_trees(graph, seeds=1, first_seed=seed)
        details = {"seed": seed, **_rate(found, graph)}
        yield _PipelinedTrees.of(trees, setting, details)
    progress(seeds / (seeds + 1), "choosing the number of chunks")


def _default_seeds(nodes: int) -> int:
    """How many packings are worth their time."""
    worth = _MOST_SEEDS * _NODES_FOR_ALL_SEEDS // nodes
    return max(1, min(_MOST_SEEDS, worth))


def _central(setting: Setting, progress: Progress) -> Iterator[_PipelinedTrees]:
    progress(0.0, "choosing the number of chunks")
    times = setting.network.link_times(setting.collective_bytes, setting.occupancy)
    tree = central_tree(setting.network, times, setting.members)
    yield _PipelinedTrees.of([tree], setting, {})


def _rate(found: Strength, graph: CapacityGraph) -> dict[str, JsonValue]:
    """Strength, and the partition of the NPUs that no trees can beat."""
    # The finest partition is said in words: it would list every NPU.
    is_finest = len(found.blocks) == graph.num_nodes
    blocks: JsonValue = "every NPU alone" if is_finest else [list(block) for block in found.blocks]
    return {
        "strength": str(found.value),
        "rate_bytes_per_s": float(found.value * graph.unit),
        "partition": blocks,
    }
