"""Schedules of a packing: into how many chunks the share of every tree is cut."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from collhub_packing.pipelining import (
    Operations,
    Pipeline,
    Pipelining,
    Stream,
    broadcast,
    paths,
    pruned,
    reduction,
    turned_round,
)

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.placing import PlacedTree
from collhub_blink.packing.task import PackingTask
from hub_core.collectives import CollectiveKind
from hub_core.diagnostics import InputError
from hub_core.topology import Occupancy

_MOST_CHUNKS = 1 << 14
# Where messages meet at switches, the simulator has to time every schedule that counts.
_MOST_MESSAGES, _MOST_MESSAGES_THROUGH_SWITCHES = 1 << 20, 1 << 17
# Twice the chunks are twice the steps of the algorithm: worth a gain of one part in so many, no less.
_WORTHWHILE_PART = 100
_COARSER = 3
# As many messages of one link may be on their way at once, see `hub_core.transfers.Transfers.window`.
_MOST_ON_THE_WAY = 12


@dataclass(frozen=True, slots=True, eq=False)
class Scheduled:
    """A schedule with about `chunks` chunks on the widest tree."""

    chunks: int
    pipeline: Pipeline


def schedule(task: PackingTask, packing: PlacedPacking, near: int = 1) -> Scheduled | None:
    """The schedule with the stated number of chunks, or with the best one; None where the data is too small to share out.

    `near`: a number of chunks that is good for another packing; the search begins at a quarter of it.

    Multiplicative increase as Blink's (Wang et al., MLSys 2020, section 4), judged by the schedule itself, while the time
    falls by a hundredth; then the numbers half way to the neighbours. Ctrl-C ends the search; without a schedule it is
    raised again.
    """
    pipelining = _pipelining(task, packing)
    if task.chunks is not None:
        return Scheduled(
            task.chunks, pipelining.schedule(chunk_counts(packing.weights, task.chunks))
        )
    best: Scheduled | None = None
    try:
        for found in _search(pipelining, packing.weights, max(1, near // 4)):
            if best is None or _is_worthwhile(best, found):
                best = found
    except KeyboardInterrupt:
        if best is None:
            raise
    return best


def coarser(task: PackingTask, packing: PlacedPacking, found: Scheduled) -> Iterator[Scheduled]:
    """A schedule, and those with a half and a quarter of its chunks, unless their number is stated."""
    yield found
    pipelining = _pipelining(task, packing)
    for chunks in (
        [found.chunks >> halvings for halvings in range(1, _COARSER)] if task.chunks is None else ()
    ):
        if chunks and (other := _scheduled(pipelining, packing.weights, chunks)) is not None:
            yield other


def chunk_counts(weights: Sequence[int], chunks: int) -> list[int]:
    """Chunks of every tree when the widest has about `chunks`: all of one size, or powers of two where that is too many."""
    divisor = math.gcd(*weights)
    widest = max(weights)
    if chunks * divisor >= widest:
        times = max(1, round(chunks * divisor / widest))
        return [times * weight // divisor for weight in weights]
    return [1 << max(0, round(math.log2(chunks * weight / widest))) for weight in weights]


def _search(pipelining: Pipelining, weights: Sequence[int], first: int) -> Iterator[Scheduled]:
    """Twice the chunks while that helps, else half as long as that does; then between the best and its neighbours."""
    best: Scheduled | None = None
    for is_upward in (True, False):
        chunks, failures = first if is_upward else first // 2, 0
        while (
            0 < chunks <= _MOST_CHUNKS
            and failures < 2
            and (found := _scheduled(pipelining, weights, chunks)) is not None
        ):
            yield found
            failures += 1
            if best is None or _is_worthwhile(best, found):
                best, failures = found, 0
            chunks = chunks * 2 if is_upward else chunks // 2
        if best is not None and best.chunks > first:
            break
    if best is not None and best.chunks > 1:
        for between in (best.chunks * 3 // 4, best.chunks * 3 // 2):
            if (found := _scheduled(pipelining, weights, between)) is not None:
                yield found


def _is_worthwhile(best: Scheduled, found: Scheduled) -> bool:
    """Whether a schedule is faster, by a hundredth where it has more chunks."""
    gain = best.pipeline.time_ps - found.pipeline.time_ps
    return (
        gain * _WORTHWHILE_PART > best.pipeline.time_ps if found.chunks > best.chunks else gain > 0
    )


def _scheduled(pipelining: Pipelining, weights: Sequence[int], chunks: int) -> Scheduled | None:
    counts = chunk_counts(weights, chunks)
    if chunks > 1 and not _is_sensible(pipelining, counts):
        return None
    try:
        return Scheduled(chunks, pipelining.schedule(counts))
    except InputError:
        return None


def _is_sensible(pipelining: Pipelining, counts: Sequence[int]) -> bool:
    """Whether messages are not too many, and so large that a link need not have more on their way than it may."""
    streams = pipelining.streams
    has_switches = pipelining.topology.num_nodes > pipelining.topology.num_npus
    most = _MOST_MESSAGES_THROUGH_SWITCHES if has_switches else _MOST_MESSAGES
    if sum(counts[stream.tree] * len(stream.operations) for stream in streams) > most:
        return False
    if pipelining.occupancy is Occupancy.ALPHA_BETA:
        return True
    topology = pipelining.topology
    waiting = float((topology.bandwidth_bytes_per_s * topology.latency_s).max(initial=0.0))
    shares = (
        pipelining.collective.num_ranks
        if pipelining.collective.units_per_rank < pipelining.collective.unit_count
        else 1
    )
    smallest = (
        min(stream.part / counts[stream.tree] for stream in streams)
        * pipelining.collective_bytes
        / shares
    )
    return smallest * (_MOST_ON_THE_WAY - 1) >= waiting


def _pipelining(task: PackingTask, packing: PlacedPacking) -> Pipelining:
    """Messages go by `Topology.routes`, one route a pair, as everywhere in the hub; a packing's own may be others."""
    if packing.targets or packing.trees[0].up is not None:
        streams = tuple(
            _path_streams(task, packing) if packing.targets else _directed_streams(packing)
        )
        operations = Operations.joined([stream.operations for stream in streams])
        routes = task.topology.routes(operations.source, operations.destination)
        return Pipelining(
            task.topology,
            task.collective,
            task.collective_bytes,
            task.occupancy,
            streams,
            operations,
            routes,
        )
    return Pipelining.of(
        task.topology,
        [placed.tree for placed in packing.trees],
        task.collective,
        task.collective_bytes,
        task.occupancy,
        list(task.npus),
    )


def _path_streams(task: PackingTask, packing: PlacedPacking) -> Iterator[Stream]:
    """Every rank's share, cut in parts by the weights of its paths; the root's own goes nowhere."""
    is_inward = task.collective.kind is CollectiveKind.GATHER
    root = task.npus[task.root]
    for rank, npu in enumerate(task.npus):
        chosen = [tree for tree, target in enumerate(packing.targets) if target == npu] or [0]
        total = sum(packing.weights[tree] for tree in chosen)
        begin = Fraction(0)
        for tree in chosen:
            (operations,) = paths(
                pruned(packing.trees[tree].tree, np.asarray([npu])), np.asarray([npu])
            )
            part = Fraction(packing.weights[tree], total)
            yield Stream(
                tree,
                rank,
                begin,
                part,
                turned_round(operations) if is_inward and npu != root else operations,
            )
            begin += part


def _directed_streams(packing: PlacedPacking) -> Iterator[Stream]:
    """Every tree's part of the data: up one way, and as soon as a chunk is whole, down the other."""
    total = sum(packing.weights)
    begin = Fraction(0)
    for number, placed in enumerate(packing.trees):
        assert placed.up is not None
        part = Fraction(placed.weight, total)
        yield Stream(number, 0, begin, part, _there_and_back(placed, placed.up))
        begin += part


def _there_and_back(placed: PlacedTree, upward: PlacedTree) -> Operations:
    npus = np.flatnonzero(placed.tree.depths() >= 0)
    up, down = (
        reduction(pruned(upward.tree, np.flatnonzero(upward.tree.depths() >= 0))),
        broadcast(pruned(placed.tree, npus)),
    )
    up = replace(up, remaining=up.remaining + int(down.remaining.max(initial=0)))
    both = Operations.joined([up, down])
    arriving = np.flatnonzero(up.destination == placed.tree.root)
    leaving = len(up) + np.flatnonzero(down.source == placed.tree.root)
    before, after = np.repeat(arriving, len(leaving)), np.tile(leaving, len(arriving))
    return replace(
        both,
        before=np.concatenate([both.before, before]),
        after=np.concatenate([both.after, after]),
    )
