"""Compose phases in several dimensions to one verifiable algorithm, and order their streams.

The buffer of a rank is an array with one axis per dimension in which it is currently partitioned,
the highest dimension first. A phase works on the first axis, so that its chunks are contiguous;
local copies with zero duration reorder the axes. Every phase reads the output of the previous
phase, and both are in SCRATCH.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hub_core import Algorithm
from hub_core.columns import Int64Array, positions_in
from hub_core.model import (
    COLUMN_DEFAULTS,
    COLUMN_DTYPES,
    Buffer,
    Collective,
    CollectiveKind,
    StepKind,
    StepTable,
)

# Upper limit: every dimension has at most two phases.
_MAX_PHASES = 64

Columns = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class PhaseSteps:
    """Phase with its algorithm among `npus`, by position, in dimension `level`."""

    kind: CollectiveKind
    level: int
    algorithm: Algorithm
    npus: tuple[int, ...]


@dataclass(slots=True)
class _Steps:
    """Collects the steps of all ranks; `units`: allocated units of SCRATCH per rank."""

    num_ranks: int
    units: int = 0
    rows: int = 0
    columns: list[Columns] = field(default_factory=list)
    edges: list[Int64Array] = field(default_factory=list)
    barrier: Int64Array | None = None

    def take(self, units: int) -> int:
        """Allocate `units` units of SCRATCH, the same on every rank, and return the first one.

        They follow those allocated before; nothing is freed.
        """
        first = self.units
        self.units += units
        return first

    def add(self, rank: Int64Array, columns: Columns, edges: Int64Array) -> None:
        """Add steps that run after all previous steps of their rank, and a barrier after them.

        `rank`: rank of each new step. `columns`: further columns by name. `edges`: dependencies
        among the new steps, numbered from 0, as (parents, children) of shape [2, edges]. Each new
        step waits for the current barrier of its rank, if there is one.

        Then one computation of 0 ns is added per rank, also for ranks without new steps. It
        becomes the new barrier of its rank. It waits for the new steps of its rank, or without new
        steps for the current barrier.
        """
        new = np.arange(len(rank)) + self.rows
        self.columns.append({**columns, "rank": rank})
        self.edges.append(edges + self.rows)
        if self.barrier is not None:
            self.edges.append(np.stack([self.barrier[rank], new]))
        self.rows += len(rank)
        every = np.arange(self.num_ranks)
        barrier = every + self.rows
        self.edges.append(np.stack([new, barrier[rank]]))
        if self.barrier is not None:
            # Without new steps of its rank, only this edge orders the barrier after earlier steps.
            without = np.setdiff1d(every, rank)
            self.edges.append(np.stack([self.barrier[without], barrier[without]]))
        nothing = {"kind": np.full(len(every), StepKind.COMPUTE), "duration_ns": 0 * every}
        self.columns.append({**nothing, "rank": every})
        self.rows += len(every)
        self.barrier = barrier

    def copy(
        self, source: tuple[Buffer, int], target: tuple[Buffer, int], order: Int64Array
    ) -> None:
        """Add steps on every rank that copy unit `order[i]` of the source to unit i of the target.

        `source`, `target`: (buffer, first unit). There is one copy step per unit. The steps run
        after all previous steps of the rank and before all later ones (`add` puts a barrier after
        them). They have no order among themselves, so the two regions must not overlap. With an
        empty `order` only the barrier is added.
        """
        size = len(order)
        unit = np.tile(np.arange(size), self.num_ranks)
        columns = {
            "kind": np.full(len(unit), StepKind.COPY),
            "src_buffer": np.full(len(unit), source[0]),
            "src_offset": source[1] + order[unit],
            "dst_buffer": np.full(len(unit), target[0]),
            "dst_offset": target[1] + unit,
            "count": np.ones(len(unit), np.int64),
            "duration_ns": np.zeros(len(unit), np.int64),
        }
        rank = np.repeat(np.arange(self.num_ranks), size)
        self.add(rank, columns, np.zeros((2, 0), np.int64))

    def table(self) -> StepTable:
        """Build the step table of all parts, in the order in which they were added.

        It has the data dependencies within the parts and those that order the parts, but no control
        dependencies. Columns that a part lacks have their defaults. Raise `InputError` as
        `StepTable.from_columns`, and `ValueError` if no part was added.
        """
        columns: Columns = {}
        for name in COLUMN_DTYPES:
            parts = [
                part[name] if name in part else np.full(len(part["rank"]), COLUMN_DEFAULTS[name])
                for part in self.columns
            ]
            columns[name] = np.concatenate(parts)
        parents, children = np.concatenate(self.edges, axis=1)
        return StepTable.from_columns(self.num_ranks, columns, (parents, children))


def composed(kind: CollectiveKind, phases: Sequence[PhaseSteps]) -> Algorithm:
    """Compose the algorithms of phases to one collective of all ranks on a grid.

    Each phase is a collective within the groups of ranks along one dimension, its `level`.
    The size of a dimension is the number of `npus` of its phase. Ranks are numbered with the
    lowest dimension fastest. Phases run one after the other, each on the output of the
    previous one. Copies without duration are added where a phase needs another order of the
    data, and at the end to OUTPUT.

    The units of the collective are as many as the ranks. Each rank begins with its complete
    input: one unit in an all-gather, otherwise all. The caller ensures that the phases
    perform `kind`. Raises `ValueError` for a reduce-scatter in a dimension in which data are
    already scattered.
    """
    sizes = {phase.level: len(phase.npus) for phase in phases}
    levels = sorted(sizes, reverse=True)
    ranks = int(np.prod(list(sizes.values())))
    steps = _Steps(ranks)
    axes = [] if kind is CollectiveKind.ALL_GATHER else list(levels)
    location = Buffer.INPUT, 0
    for phase_index, phase in enumerate(phases):
        if phase.level in axes and phase.kind is not CollectiveKind.ALL_REDUCE:
            location = _reorder_axes(steps, location, axes, [phase.level], sizes)
            axes = [phase.level, *(level for level in axes if level != phase.level)]
        location = _run(
            steps,
            phase,
            location,
            phase_index,
            _units([inner_level for inner_level in sizes if inner_level < phase.level], sizes),
            _units(axes, sizes),
        )
        if phase.kind is CollectiveKind.REDUCE_SCATTER:
            axes.remove(phase.level)
        elif phase.kind is CollectiveKind.ALL_GATHER:
            axes.insert(0, phase.level)
        location = _reorder_axes(steps, location, axes, sorted(axes, reverse=True), sizes)
        axes.sort(reverse=True)
    steps.copy(location, (Buffer.OUTPUT, 0), np.arange(_units(axes, sizes)))
    collective = Collective(kind, ranks, ranks)
    return Algorithm(collective, steps.table(), np.full(ranks, steps.units, np.int64))


def _units(axes: Sequence[int], sizes: dict[int, int]) -> int:
    return int(np.prod([sizes[level] for level in axes], dtype=np.int64))


def _reorder_axes(
    steps: _Steps,
    location: tuple[Buffer, int],
    axes: Sequence[int],
    first: Sequence[int],
    sizes: dict[int, int],
) -> tuple[Buffer, int]:
    """Reorder the axes of the data so that those in `first` are the slowest; return the location.

    A location is (buffer, first unit). The other axes follow in their order. If the order changes,
    steps are added that copy the data to a new region of the scratch buffer, which is returned;
    otherwise `location`. `axes`: dimensions of the data, slowest first; `sizes`: ranks by
    dimension.
    """
    target_axes = [*first, *(level for level in axes if level not in first)]
    if target_axes == list(axes):
        return location
    numbers = np.arange(_units(axes, sizes)).reshape([sizes[level] for level in axes])
    order = numbers.transpose([list(axes).index(level) for level in target_axes]).ravel()
    target = Buffer.SCRATCH, steps.take(len(order))
    steps.copy(location, target, order)
    return target


def _run(
    steps: _Steps,
    phase: PhaseSteps,
    location: tuple[Buffer, int],
    phase_index: int,
    stride: int,
    units: int,
) -> tuple[Buffer, int]:
    """Add the steps of one phase for all ranks to `steps`; return (SCRATCH, first output unit).

    `location`: buffer and first unit of the phase's input, which has `units` units. The output
    is new SCRATCH of G units, where n is the number of NPUs in `phase.npus`: G is `units` * n
    for an all-gather, `units` // n for a reduce-scatter, otherwise `units`. The scratch of the
    algorithm also becomes new SCRATCH.

    - Rank r executes the steps of the NPU at position (r // `stride`) % n of `phase.npus`. Steps
      of NPUs outside `phase.npus` are omitted, with their dependencies. A peer at position q
      becomes rank r + (q - position of r) * `stride`.
    - Counts and offsets are multiplied by F // (unit count of the algorithm). F is `units` * n
      for an all-gather, otherwise `units`. The first unit of the new buffer is added to offsets.
      An UNKNOWN buffer (the unused side of a step) remains UNKNOWN.
    - Channel c becomes c * 64 + `phase_index`, so that messages of different phases never match.
    - The steps start after all earlier steps of their rank. A barrier follows them.
    """
    algorithm, table = phase.algorithm, phase.algorithm.steps
    positions = len(phase.npus)
    is_gather = phase.kind is CollectiveKind.ALL_GATHER
    full_units = units * positions if is_gather else units
    scale = full_units // algorithm.collective.unit_count
    output_units = units // positions if phase.kind is CollectiveKind.REDUCE_SCATTER else full_units
    output = steps.take(output_units)
    scratch = steps.take(int(algorithm.scratch_units.max(initial=0)) * scale)
    bases = location, (Buffer.SCRATCH, output), (Buffer.SCRATCH, scratch)
    # Copy the steps of each position to every rank at this position.
    position = positions_in(np.asarray(phase.npus), algorithm.num_ranks)
    at = np.arange(steps.num_ranks) // stride % positions
    pairs = np.argwhere(position[table.rank][None, :] == at[:, None])
    rank, row = pairs[:, 0], pairs[:, 1]
    columns: Columns = {name: getattr(table, name)[row] for name in ("kind", "duration_ns", "lane")}
    columns["count"] = table.count[row] * scale
    # An unused side has an UNKNOWN buffer, which remains.
    buffers = np.array([*(buffer for buffer, _ in bases), Buffer.UNKNOWN])
    shift = np.array([*(first for _, first in bases), 0])
    for side in ("src", "dst"):
        buffer = getattr(table, f"{side}_buffer")[row]
        columns[f"{side}_buffer"] = buffers[buffer]
        columns[f"{side}_offset"] = getattr(table, f"{side}_offset")[row] * scale + shift[buffer]
    met = rank + (position[table.peer[row]] - at[rank]) * stride
    columns["peer"] = np.where(table.peer[row] < 0, -1, met)
    # Messages of different phases use different channels.
    columns["channel"] = table.channel[row].astype(np.int64) * _MAX_PHASES + phase_index
    number = np.full((steps.num_ranks, len(table)), -1)
    number[rank, row] = np.arange(len(row))
    parents, children = table.edges()
    edges = np.stack([number[:, parents].ravel(), number[:, children].ravel()])
    steps.add(rank, columns, edges[:, edges.min(axis=0) >= 0])
    return Buffer.SCRATCH, output


class StreamPhase(NamedTuple):
    """Phase of a stream: number of its template, dimension, and estimated time."""

    template: int
    level: int
    time_ns: int


Waits = tuple[tuple[int, int], ...]
"""(earlier, later) phase numbers; phases of the first stream come first."""


def limit_concurrency(count: int, at_once: int) -> Waits:
    """Let at most `at_once` of `count` single-phase streams run concurrently."""
    return tuple((stream, stream + at_once) for stream in range(count - at_once))


def order_streams(streams: Sequence[Sequence[StreamPhase]], at_once: int) -> Waits:
    """Return the dependencies of the phases of concurrent streams as pairs (earlier, later).

    Phase p of stream s has the number s x n + p, with n phases per stream. A phase waits
    for the previous phase of its stream, and for the phase that started `at_once` positions
    before it in the FIFO queue of its dimension, which runs at most `at_once` phases at a
    time. Pairs are ascending, without duplicates.

    All streams must have the same sequence of dimensions; levels and times are those of the
    first stream. If streams traverse dimensions in both directions, the order in a queue
    depends on times, which are estimated. Without streams or phases, the result is empty.
    """
    first = streams[0] if streams else ()
    if not first:
        return ()
    # All streams have equal bytes; only their trees differ.
    levels = tuple(phase.level for phase in first)
    return _waits(levels, tuple(phase.time_ns for phase in first), len(streams), at_once)


@cache
def _waits(levels: tuple[int, ...], times: tuple[int, ...], streams: int, at_once: int) -> Waits:
    # Parents always start before their children: acyclic for any times.
    steps = len(levels)
    pairs = [
        (stream * steps + step, stream * steps + step + 1)
        for stream in range(streams)
        for step in range(steps - 1)
    ]
    for started in _simulate_queues(levels, times, streams, at_once).values():
        pairs += zip(started, started[at_once:], strict=False)
    return tuple(sorted(set(pairs)))


def _simulate_queues(
    levels: Sequence[int], times: Sequence[int], streams: int, at_once: int
) -> dict[int, list[int]]:
    """Simulate the queues of all dimensions, and return the phases of each in their start order.

    The result maps each distinct dimension in `levels` to the numbers of its phases. Stream s has
    the phases s x n to s x n + n - 1, with n = len(levels); phase p runs in dimension `levels[p %
    n]` and takes `times[p % n]` ns. Without streams the lists are empty. `levels` must not be
    empty.

    The rules are those of ASTRA-sim (`proceed_to_next_vnet_baseline`). At time 0 the first phases
    of all streams are queued, in order. A dimension runs at most `at_once` phases at a time, first
    come, first served. Phases that end at the same time are handled in the order of their start.
    When a phase ends, the next phase of its stream is queued in its dimension. Then the dimension
    of the ended phase starts phases from its queue, then the dimension of the queued phase.
    """
    steps = len(levels)
    waiting: dict[int, deque[int]] = {level: deque() for level in levels}
    started: dict[int, list[int]] = {level: [] for level in levels}
    active = dict.fromkeys(levels, 0)
    events: list[tuple[int, int, int]] = []

    def pump(level: int, now: int) -> None:
        while waiting[level] and active[level] < at_once:
            phase = waiting[level].popleft()
            active[level] += 1
            order = sum(map(len, started.values()))
            started[level].append(phase)
            heappush(events, (now + times[phase % steps], order, phase))

    for stream in range(streams):
        waiting[levels[0]].append(stream * steps)
    pump(levels[0], 0)
    while events:
        now, _, phase = heappop(events)
        left, following = levels[phase % steps], phase + 1
        active[left] -= 1
        if following % steps == 0:
            pump(left, now)
            continue
        entered = levels[following % steps]
        # The phase is queued before the dimension that it leaves starts its next phase.
        waiting[entered].append(following)
        pump(left, now)
        pump(entered, now)
    return started
