"""Schedules of collectives that run on weighted trees, chunk after chunk, without a barrier between their phases.

List scheduling: a link that is idle takes, of the messages whose data is at its start, one of the earliest chunk, and of
these the one that most others follow. The progress of trees is compared by the part of their data that lies before a
chunk, so that trees with unequal numbers of chunks end together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from collhub_packing.pipelining.operations import (
    Operations,
    PrunedTree,
    broadcast,
    paths,
    pruned,
    reduce_and_broadcast,
    reduction,
    turned_round,
)
from collhub_packing.trees import SpanningTree
from hub_core.algorithm import message_bytes
from hub_core.collectives import Collective, CollectiveKind
from hub_core.diagnostics import InputError
from hub_core.topology import Occupancy, Routes, Topology
from hub_core.transfers import Chunks, Transfers

if TYPE_CHECKING:
    from collhub_packing.pipelining.kernel import PipelinePlan


Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

Paths = Sequence[Mapping[int, Sequence[int]]]
"""Per tree, for some of its nodes, the rows of the topology's links that lead there from the parent."""

_PICOSECONDS = 1e12
_EVENTS_PER_CALL = 1 << 21
_MOST_ON_THE_WAY = 12


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A part of the data that is cut in chunks, all sent alike: `part` of share `share` (as in `Chunks.cut`) from `begin` on.

    `begin` and `part` are fractions of the share, `tree` is the number of the tree that carries it.
    """

    tree: int
    share: int
    begin: Fraction
    part: Fraction
    operations: Operations


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """A schedule: `transfers`, times in picoseconds, of `chunks` of `collective`, ready for `hub_core.transfers.algorithm_of`.

    The collective has the least number of units in which all chunks are whole. Chunks are numbered tree by tree, in a
    scatter or gather rank by rank within a tree, and then in the order of the data.
    """

    collective: Collective
    chunks: Chunks
    transfers: Transfers
    time_ps: int


@dataclass(frozen=True, slots=True, eq=False)
class Pipelining:
    """A collective on trees, prepared for schedules with different numbers of chunks."""

    topology: Topology
    collective: Collective
    collective_bytes: int
    occupancy: Occupancy
    streams: tuple[Stream, ...]
    operations: Operations
    routes: Routes

    @classmethod
    def of(
        cls,
        topology: Topology,
        trees: Sequence[SpanningTree],
        collective: Collective,
        collective_bytes: int,
        occupancy: Occupancy,
        members: Sequence[int] | Int64Array,
        paths: Paths | None = None,
    ) -> Pipelining:
        """Prepare `collective`, whose rank r runs on NPU `members[r]`, on weighted out-trees; its units are chosen later.

        All-gather and reduce-scatter split the share of a rank by the weights of the trees that are rooted at its NPU, all
        others every share by the weights of all trees. Reductions run against the trees. `paths` states routes through
        switches, and for the way up their opposites are taken; all other messages go by `Topology.routes`, as in
        simulators. Other NPUs relay where a tree needs them. Raises `InputError` for an all-to-all, for a tree that does not
        reach a member, for a tree with another root than the collective's, and for a rank that no tree is rooted at.
        """
        streams = tuple(_streams(trees, collective, np.asarray(members, np.int64)))
        operations = Operations.joined([stream.operations for stream in streams])
        routes = topology.routes(operations.source, operations.destination)
        if paths is not None:
            routes = _along(paths, trees, streams, topology, routes)
        return cls(topology, collective, collective_bytes, occupancy, streams, operations, routes)

    def schedule(self, chunk_counts: Sequence[int]) -> Pipeline:
        """Schedule with `chunk_counts[t]` equal chunks on tree t, in a scatter or gather so many for every rank.

        Cost: a heap operation per message and link. Raises `InputError` for chunks of less than one byte.
        """
        counts = [chunk_counts[stream.tree] for stream in self.streams]
        collective, chunks, units = self._cut(counts)
        sizes = message_bytes(self.collective_bytes, collective.unit_count, units)
        program = self._program(counts, sizes)
        start, finish = _run(program)
        transfers = self._transfers(program, start, finish)
        return Pipeline(collective, chunks, transfers, int(finish.max(initial=0)))

    def _cut(self, counts: Sequence[int]) -> tuple[Collective, Chunks, Int64Array]:
        """The collective in whole units, its chunks, and per stream the units of a chunk."""
        parts = [stream.part / count for stream, count in zip(self.streams, counts, strict=True)]
        share_units = math.lcm(*(part.denominator for part in parts))
        shares = self.collective.num_ranks if self.collective.kind in _SPLIT_BY_RANK else 1
        if any(part * self.collective_bytes < shares for part in parts):
            cure = "choose a larger size, or fewer chunks"
            raise InputError(
                f"{self.collective_bytes} bytes are too few for {sum(counts)} chunks",
                cure=cure,
                code="size-too-small",
            )
        collective = replace(self.collective, unit_count=shares * share_units)
        whole = Chunks.cut(collective, [share_units])
        units = np.asarray([int(part * share_units) for part in parts], np.int64)
        begin = np.asarray([int(stream.begin * share_units) for stream in self.streams], np.int64)
        stream, position = _repeated(np.asarray(counts, np.int64))
        share = np.asarray([stream.share for stream in self.streams], np.int64)[stream]
        within = begin[stream] + position * units[stream]
        offsets = (whole.input_offset[share] + within, whole.output_offset[share] + within)
        return (
            collective,
            Chunks(whole.origin[share], *offsets, units[stream], whole.target[share]),
            units,
        )

    def _program(self, counts: Sequence[int], sizes: Int64Array) -> PipelinePlan:
        # Importing numba takes a second.
        from collhub_packing.pipelining.kernel import PipelinePlan

        operations = self.operations
        width = np.asarray([len(stream.operations) for stream in self.streams], np.int64)
        repeats = np.asarray(counts, np.int64)
        stream, position = _repeated(repeats)
        # Quotients of integers below 2^26 are equal as doubles only where they are equal.
        _, turn = np.unique(position / repeats[stream], return_inverse=True)
        order = np.argsort(operations.before, kind="stable")
        distinct, size_class = np.unique(sizes, return_inverse=True)
        serialization = np.rint(
            distinct[:, None] * _PICOSECONDS / self.topology.bandwidth_bytes_per_s
        ).astype(np.int64)
        arrival = np.rint(self.topology.latency_s * _PICOSECONDS).astype(np.int64) + serialization
        return PipelinePlan(
            _starts(width),
            _starts(width * repeats),
            _starts(repeats),
            turn.ravel().astype(np.int64) * (int(operations.remaining.max(initial=0)) + 1),
            operations.remaining,
            np.bincount(operations.after, minlength=len(operations)).astype(np.int64),
            _starts(np.bincount(operations.before, minlength=len(operations))),
            operations.after[order],
            self.routes.indptr,
            self.routes.links,
            size_class.ravel().astype(np.int64),
            arrival if self.occupancy is Occupancy.ALPHA_BETA else serialization,
            arrival,
        )

    def _transfers(self, program: PipelinePlan, start: Int64Array, finish: Int64Array) -> Transfers:
        stream, message = _repeated(np.diff(program.stream_message))
        chunk, position = np.divmod(message, np.diff(program.stream_operation)[stream])
        operation = program.stream_operation[stream] + position
        link = self.routes.links[self.routes.indptr[operation]]
        return Transfers(
            program.stream_chunk[stream] + chunk,
            self.operations.source[operation],
            self.operations.destination[operation],
            link,
            start,
            finish,
            self.operations.reduces[operation],
            _window(link, start, finish, program.needs[operation] == 0),
        )


_SPLIT_BY_RANK = frozenset(
    {
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.SCATTER,
        CollectiveKind.GATHER,
    }
)
_ROOTED_AT_RANKS = frozenset({CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER})
_FORMS: Mapping[CollectiveKind, Callable[[PrunedTree, Int64Array], list[Operations]]] = {
    CollectiveKind.ALL_REDUCE: lambda tree, members: [reduce_and_broadcast(tree)],
    CollectiveKind.BROADCAST: lambda tree, members: [broadcast(tree)],
    CollectiveKind.ALL_GATHER: lambda tree, members: [broadcast(tree)],
    CollectiveKind.REDUCE: lambda tree, members: [reduction(tree)],
    CollectiveKind.REDUCE_SCATTER: lambda tree, members: [reduction(tree)],
    CollectiveKind.SCATTER: paths,
    CollectiveKind.GATHER: lambda tree, members: [
        turned_round(path) for path in paths(tree, members)
    ],
}


def _streams(
    trees: Sequence[SpanningTree], collective: Collective, members: Int64Array
) -> Iterator[Stream]:
    if collective.kind not in _FORMS:
        raise InputError(
            f"{collective.kind} does not run on spanning trees", code="trees-unsuitable"
        )
    rank_of = {int(npu): rank for rank, npu in enumerate(members)}
    is_rooted_at_ranks = collective.kind in _ROOTED_AT_RANKS
    groups = [rank_of.get(tree.root, -1) if is_rooted_at_ranks else 0 for tree in trees]
    _check_roots(trees, groups, collective, members)
    weight: dict[int, int] = {}
    for tree, group in zip(trees, groups, strict=True):
        weight[group] = weight.get(group, 0) + tree.weight
    begin = dict.fromkeys(weight, Fraction(0))
    for number, (tree, group) in enumerate(zip(trees, groups, strict=True)):
        part = Fraction(tree.weight, weight[group])
        for share, operations in enumerate(_FORMS[collective.kind](pruned(tree, members), members)):
            yield Stream(number, group + share, begin[group], part, operations)
        begin[group] += part


def _check_roots(
    trees: Sequence[SpanningTree],
    groups: Sequence[int],
    collective: Collective,
    members: Int64Array,
) -> None:
    lost = set(range(collective.num_ranks if collective.kind in _ROOTED_AT_RANKS else 1)) - set(
        groups
    )
    if lost or -1 in groups:
        what = (
            f"no tree is rooted at rank {min(lost)}"
            if lost
            else "a tree is rooted at an NPU that is no member"
        )
        raise InputError(f"{collective.kind} on {len(trees)} trees: {what}", code="tree-root")
    if collective.root is not None and any(tree.root != members[collective.root] for tree in trees):
        raise InputError(
            f"{collective.kind}: a tree is not rooted at NPU {int(members[collective.root])}",
            code="tree-root",
        )


def _along(
    stated: Paths,
    trees: Sequence[SpanningTree],
    streams: Sequence[Stream],
    topology: Topology,
    routes: Routes,
) -> Routes:
    """Routes of all operations of all streams, the stated ones in place of the given ones."""
    rows = [
        routes.links[first:last]
        for first, last in zip(routes.indptr[:-1], routes.indptr[1:], strict=True)
    ]
    link_between = {
        (int(u), int(v)): row
        for row, (u, v) in enumerate(zip(topology.source, topology.destination, strict=True))
    }
    operation = 0
    for stream in streams:
        parent, named = trees[stream.tree].parent, stated[stream.tree]
        for source, destination in zip(
            stream.operations.source.tolist(), stream.operations.destination.tolist(), strict=True
        ):
            is_down = parent[destination] == source
            links = list(named.get(destination if is_down else source, ()))
            if not is_down:
                links = [
                    link_between[int(topology.destination[row]), int(topology.source[row])]
                    for row in reversed(links)
                ]
            if links:
                rows[operation] = np.asarray(links, np.int64)
            operation += 1
    return Routes(_starts(np.asarray([len(row) for row in rows], np.int64)), np.concatenate(rows))


def _run(program: PipelinePlan) -> tuple[Int64Array, Int64Array]:
    """Start and finish of every message."""
    # Importing numba takes a second.
    from collhub_packing.pipelining.kernel import advance, begin, state_of

    state = state_of(program)
    begin(program, state)
    # Between two calls, each of about a second at most, Ctrl-C is heard.
    while advance(_EVENTS_PER_CALL, program, state):
        pass
    return state.start, state.finish


def _window(
    link: Int64Array, start: Int64Array, finish: Int64Array, is_ready: BoolArray
) -> Int64Array:
    """Per message, how many messages of its first link are on their way at once at most, itself included.

    The first messages of a link, where they are ready from the beginning, all wait for the very first one: what a trace
    lets begin at one instant, simulators and runtimes begin in any order.
    """
    if not len(link):
        return link
    order = np.lexsort((start, link))
    link, start, is_ready = link[order], start[order], is_ready[order]
    span = int(finish.max()) + 1
    ended = np.maximum.accumulate(link * span + finish[order])
    before = np.searchsorted(ended, link * span + start, side="right")
    position = np.arange(len(link))
    turn = position - np.searchsorted(link, link)
    most = np.zeros(int(link[-1]) + 1, np.int64)
    np.maximum.at(most, link, position - before + 1)
    limit = np.minimum(most, _MOST_ON_THE_WAY)[link]
    window = np.empty(len(link), np.int64)
    window[order] = np.where(is_ready & (turn > 0), np.minimum(limit, turn), limit)
    return window


def _repeated(counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """(group, position in it) of every element of groups of these sizes."""
    group = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    return group, np.arange(len(group), dtype=np.int64) - np.repeat(
        np.cumsum(counts) - counts, counts
    )


def _starts(counts: Int64Array) -> Int64Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
