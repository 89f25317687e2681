"""All-reduces up and down trees: on packed trees at the network's strength, or on one tree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from collhub_packing import CapacityGraph, SpanningTree, all_reduce_trees, strength
from collhub_packing.pipelining import Pipeline, Pipelining, best_chunks

from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.search.candidates import SynthesisCandidate
from collhub_tacos.search.seeds import Progress
from collhub_tacos.search.setting import Setting
from collhub_tacos.symmetry import ShortestPaths, is_duplex
from hub_core.columns import Int64Array
from hub_core.model import InputError, JsonValue
from hub_core.network import Occupancy
from hub_core.schedules import algorithm_of
from hub_core.verification import verify

_LANDMARKS = 16


def build_central_tree(network: LinkNetwork, times: LinkTimes, members: Int64Array) -> SpanningTree:
    """Build the tree of shortest paths from the most central node of a network.

    The length of a link is its time in `times.arrival`. Up to 16 members that are far from
    each other serve as landmarks. The root may be any node. It is chosen by these rules:

    1. the smallest distance to the farthest landmark
    2. of equal nodes, the smallest sum of distances to the landmarks
    3. then the lowest number

    The distance to the farthest member is thereby estimated; the estimate is exact on lines,
    meshes and trees. The weight of the tree is 1. Not checked: there must be no switches, all links
    must exist in both directions, and they must connect all members, at least one.
    """
    nodes = network.num_nodes
    paths = ShortestPaths(nodes, network.source, network.destination, times.arrival)
    # The first member is a landmark, then each time the one farthest from its nearest landmark.
    distance = paths.lengths(members[:1])
    while len(distance) < min(_LANDMARKS, len(members)):
        nearest = distance[:, members].min(axis=0)
        next_landmark = members[[int(np.argmax(nearest))]]
        distance = np.concatenate([distance, paths.lengths(next_landmark)])
    farthest, total = distance.max(axis=0), distance.sum(axis=0)
    # Among equal depths the node that is nearest to all landmarks.
    root = int(np.lexsort((total, farthest))[0])
    from_root = paths.lengths(np.asarray([root]))[0]
    # Of several last links on shortest paths to a node, the first is used.
    source, destination = network.source, network.destination
    is_tight = from_root[source] + times.arrival == from_root[destination]
    tight_links = np.flatnonzero(is_tight)
    children, first = np.unique(destination[tight_links], return_index=True)
    arc = np.full(nodes, -1, np.int64)
    parent = np.full(nodes, -1, np.int64)
    arc[children] = tight_links[first]
    parent[children] = source[tight_links[first]]
    parent[root] = arc[root] = -1
    return SpanningTree(root, 1, parent, arc)


# Maximum number of messages of a schedule, and of a schedule that only compares packings.
_MAX_MESSAGES = 1 << 19
_MAX_TRIAL_MESSAGES = 1 << 15
# Simulators count in nanoseconds: below 20 ns rounding is noticeable.
_MIN_MESSAGE_S = 20e-9
_MAX_SEEDS = 8
_NODES_FOR_ALL_SEEDS = 256
# Above this size packing trees takes minutes.
_MAX_NODES = 1024
# Links with equal times for one size and equal bandwidths have equal times for all sizes.
_ANY_SIZE = 1 << 20


def find_unsuitability(network: LinkNetwork) -> str | None:
    """Return why links cannot carry trees in both directions at the same rate, or None.

    The reasons are switches, and links without an opposite link with the same times of latency and
    transfer (`is_duplex`).
    """
    if network.num_nodes > network.num_npus:
        return "the network has switches"
    if not is_duplex(network, network.link_times(_ANY_SIZE, Occupancy.SERIALIZATION)):
        return "the network has links that are one-way or differ by direction"
    return None


def is_promising(setting: Setting) -> bool:
    """Return whether an all-reduce on packed trees may be faster than one in two phases.

    The phases are a reduce-scatter and an all-gather. The network must have no switches.
    For n NPUs, s is the strength of the network, the rate of trees; b is the smallest
    incoming bandwidth of an NPU, which limits two phases.

    1. The result is False for over `_MAX_NODES` (1024) NPUs, where packing trees takes
       minutes.
    2. `InputError` is raised as by `strength`: `one-node`, `not-duplex` if the two
       directions of a link differ, and for disconnected networks.
    3. The result is True if 2 (n - 1) x s is above n x b, and every chunk has at least one
       byte. On tori both sides are equal, so it is False.
    """
    graph = CapacityGraph.of(setting.network.topology)
    npus = graph.num_compute
    if npus > _MAX_NODES:
        return False
    rate = strength(graph).value
    ingress = np.bincount(graph.destination, graph.capacity, graph.num_nodes)
    min_ingress = int(ingress.min())
    # In two phases 2 (n - 1) / n of the data enter every NPU.
    is_faster = 2 * (npus - 1) * rate > npus * min_ingress
    return is_faster and setting.collective_bytes >= rate.numerator


def build_fused(setting: Setting, progress: Progress) -> SynthesisCandidate:
    """Build an all-reduce at the rate of the network's strength.

    The result is the fastest over random packings and then over chunk counts. The weights of the
    trees limit how closely `setting.pieces`, the requested chunks per rank, can be met. Raises
    `InputError` for a network for which `find_unsuitability` gives a reason, for a disconnected
    network, and for sizes below a byte per chunk.
    """
    return _find_fastest("fused", setting, _generate_packings(setting, progress))


def latency(setting: Setting, progress: Progress) -> SynthesisCandidate:
    """Build an all-reduce up and down one shallow tree: the fastest over chunk counts.

    The tree is that of `build_central_tree`. Raises like `build_fused`.
    """
    return _find_fastest("latency", setting, _generate_central_tree(setting, progress))


@dataclass(frozen=True, slots=True, eq=False)
class _PipelinedTrees:
    """Trees, the builder of schedules on them, and statistics for users."""

    trees: Sequence[SpanningTree]
    pipelining: Pipelining
    details: Mapping[str, JsonValue]

    @classmethod
    def of(
        cls, trees: Sequence[SpanningTree], setting: Setting, details: Mapping[str, JsonValue]
    ) -> _PipelinedTrees:
        """Prepare schedules on trees, with their number and maximum depth (hops) as details.

        The result has a copy of `details`, in which `trees` and `depth` are added or replaced.
        The pipelining gets the units of `setting.units`. Raises `InputError` as `Pipelining.of`:
        `tree-root` without a tree, `tree-does-not-span` if a tree does not reach a member.
        """
        pipelining = Pipelining.of(
            setting.network.topology,
            trees,
            setting.collective,
            setting.collective_bytes,
            setting.occupancy,
            setting.members,
        )
        pipelining = replace(pipelining, units=setting.units)
        depth = max(tree.depth for tree in trees)
        return cls(trees, pipelining, {**details, "trees": len(trees), "depth": depth})

    @property
    def weight(self) -> int:
        """Chunks of the entire vector if a tree of weight 1 has one chunk."""
        return sum(tree.weight for tree in self.trees)

    @property
    def num_arcs(self) -> int:
        """Return the number of arcs of all trees, each multiplied by the weight of its tree."""
        arcs = 0
        for tree in self.trees:
            arcs += tree.weight * int(np.count_nonzero(tree.parent >= 0))
        return arcs

    def schedule(self, repeats: int) -> Pipeline:
        """Build the schedule with `repeats` chunks per unit of weight."""
        return self.pipelining.schedule([repeats * tree.weight for tree in self.trees])

    def max_repeats(self, messages: int) -> int:
        """Return the maximum number of repetitions of all trees, at least 1.

        A repetition sends as many chunks as the sum of the weights of the trees. All repetitions
        together have at most `messages` messages, and every chunk must occupy each link for at
        least the link's latency and at least 20 ns. If even one repetition exceeds these limits,
        the result is 1.
        """
        # The bytes of a chunk that occupies a link for its latency or at least 20 ns.
        shortest = np.maximum(self.pipelining.topology.latency_s, _MIN_MESSAGE_S)
        chunk_bytes = self.pipelining.topology.bandwidth_bytes_per_s * shortest
        smallest = math.ceil(float(chunk_bytes.max()))
        # A chunk crosses every arc of its tree in both directions.
        max_by_messages = messages // (2 * self.num_arcs)
        max_by_size = self.pipelining.collective_bytes // (self.weight * smallest)
        return max(1, min(max_by_messages, max_by_size))

    def requested_repeats(self, setting: Setting) -> int | None:
        """Return how often the trees are repeated for the requested number of chunks, at least 1.

        `setting.pieces` chunks per rank are requested; returns None if it is None. A repetition
        sends as many chunks as the sum of the weights of the trees. The result is `pieces` * ranks
        divided by this sum, rounded.
        """
        if setting.pieces is None:
            return None
        # Only multiples of the total weight are possible.
        chunks = setting.pieces * setting.collective.num_ranks
        return max(1, round(chunks / self.weight))


@dataclass(frozen=True, slots=True, eq=False)
class _PackedSchedule:
    """Schedule on some trees, with `repeats` chunks per unit of weight."""

    packing: _PipelinedTrees
    repeats: int
    pipeline: Pipeline

    def to_candidate(
        self, form: str, setting: Setting, *, is_interrupted: bool
    ) -> SynthesisCandidate:
        """Convert to a candidate of the search, of the given form.

        Its number of pieces is the repetitions of the packing times its weight. Transfers are
        selected, and the schedule is verified, only when the search requests it.
        """
        transfers = self.pipeline.transfers
        return SynthesisCandidate(
            form=form,
            pieces=self.repeats * self.packing.weight,
            collective=self.pipeline.collective,
            chunks=self.pipeline.chunks,
            num_transfers=len(transfers),
            time_ps=self.pipeline.time_ps,
            transfers=lambda nodes: transfers if nodes is None else transfers.touching(nodes),
            replay=lambda progress: self._verify(setting),
            details=self.packing.details,
            is_interrupted=is_interrupted,
        )

    def _verify(self, setting: Setting) -> bool:
        """Verify the entire schedule as an algorithm on the members of `setting`; return True.

        The schedule is valid if the core's verification accepts every mode (in place, out of
        place) that its collective claims. Otherwise `InputError` (`invalid-schedule`) is
        raised, with the first diagnostic of the verification. `InputError`
        (`schedule-acausal`) is raised earlier if a transfer sends a chunk before it arrives.
        """
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
    """Builds schedules and keeps the fastest in `best`, the first of equally fast ones."""

    def __init__(self) -> None:
        self.best: _PackedSchedule | None = None

    def time_ps(self, packing: _PipelinedTrees, repeats: int) -> int:
        """Build the schedule with this number of repetitions, and return its time in ps.

        It is stored as `best` if it is faster than all schedules before.
        """
        schedule = _PackedSchedule(packing, repeats, packing.schedule(repeats))
        if self.best is None or schedule.pipeline.time_ps < self.best.pipeline.time_ps:
            self.best = schedule
        return schedule.pipeline.time_ps


def _find_fastest(
    form: str, setting: Setting, packings: Iterator[_PipelinedTrees]
) -> SynthesisCandidate:
    """Return the fastest all-reduce on trees as a candidate of the form `form`.

    Every packing (set of trees) is tried once with the number of chunks that `setting.pieces`
    requests, or without a request with the largest number for at most 2^15 messages. Of equally
    fast packings, the first one is used. Without a request, this packing is then tried with further
    numbers of chunks, up to 2^19 messages. The result has the smallest tried number whose time is
    within 0.1 % of the minimum.

    On Ctrl-C the fastest schedule so far is returned, marked as interrupted. If there is none,
    `KeyboardInterrupt` is raised.

    Raises `InputError` (`not-duplex`), before any packing is built, for a network with switches or
    without equal links in both directions. Also raises the errors of the packings and of
    `Pipelining.schedule`, such as `size-too-small`. `packings` must not be empty.
    """
    if reason := find_unsuitability(setting.network):
        raise InputError(
            f"no all-reduce on trees: {reason}",
            cure="choose the method two-phase",
            code="not-duplex",
        )
    search = _FastestPipeline()
    try:
        # The fastest schedule over all packings.
        for packing in packings:
            requested = packing.requested_repeats(setting)
            search.time_ps(packing, requested or packing.max_repeats(_MAX_TRIAL_MESSAGES))
        assert search.best is not None
        schedule = search.best
        if setting.pieces is None:
            packing = schedule.packing
            most_repeats = packing.max_repeats(_MAX_MESSAGES)
            count = best_chunks(lambda repeats: search.time_ps(packing, repeats), most_repeats)
            if count != schedule.repeats:
                schedule = _PackedSchedule(packing, count, packing.schedule(count))
    except KeyboardInterrupt:
        if search.best is None:
            raise
        return search.best.to_candidate(form, setting, is_interrupted=True)
    return schedule.to_candidate(form, setting, is_interrupted=False)


def _generate_packings(setting: Setting, progress: Progress) -> Iterator[_PipelinedTrees]:
    """Yield trees packed at the network's strength, one packing per seed, and report progress.

    The seeds are `setting.seed`, `setting.seed` + 1, .... Their number is `setting.seeds`;
    0 means 8 for networks of up to 256 nodes, and 2048 // nodes for larger ones, at least 1.
    Details of a packing are its `seed`, the `strength` (a fraction as text, in units of the
    graph), `rate_bytes_per_s` (the strength in bytes/s) and `partition`: the blocks of nodes that
    limit all trees, or the text `every NPU alone` if there are as many blocks as nodes. Raise
    `InputError` as `all_reduce_trees`, for example for a disconnected network.
    """
    # Packings of equal strength differ in depth, and therefore in the time to fill the pipeline.
    graph = CapacityGraph.of(setting.network.topology)
    affordable = _MAX_SEEDS * _NODES_FOR_ALL_SEEDS // graph.num_nodes
    seeds = setting.seeds or max(1, min(_MAX_SEEDS, affordable))
    for index in range(seeds):
        progress(index / (seeds + 1), "packing trees")
        seed = setting.seed + index
        strength_of_network, trees = all_reduce_trees(graph, seeds=1, first_seed=seed)
        blocks = strength_of_network.blocks
        partition: JsonValue = [list(block) for block in blocks]
        # The finest partition would list every NPU.
        if len(blocks) == graph.num_nodes:
            partition = "every NPU alone"
        details: dict[str, JsonValue] = {
            "seed": seed,
            "strength": str(strength_of_network.value),
            "rate_bytes_per_s": float(strength_of_network.value * graph.unit),
            "partition": partition,
        }
        yield _PipelinedTrees.of(trees, setting, details)
    progress(seeds / (seeds + 1), "choosing the number of chunks")


def _generate_central_tree(setting: Setting, progress: Progress) -> Iterator[_PipelinedTrees]:
    """Yield one tree, with weight 1: that of shortest paths from the network's most central node.

    The node is the one that `build_central_tree` chooses, roughly that with the nearest farthest
    member. The lengths of paths are the arrival times of a message with all bytes of the
    collective. Reports progress 0 before.
    """
    progress(0.0, "choosing the number of chunks")
    times = setting.network.link_times(setting.collective_bytes, setting.occupancy)
    tree = build_central_tree(setting.network, times, setting.members)
    yield _PipelinedTrees.of([tree], setting, {})
