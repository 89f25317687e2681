"""Shapes of nested collectives: the levels of the ranks, their order, and the parts of the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, product
from math import prod

import numpy as np

from collhub_classic.orders import find_equal_groups
from hub_core.model import CollectiveKind, UsageError, parse_whole
from hub_core.network import DimensionKind, Topology

# Larger levels are divided: messages per rank are the sum of the sizes, latencies their number.
_MAX_LEVEL = 32
# Ranges of the second level that the closest level forwards separately: the last one is not
# overlapped. Fewer ranks have room for the messages of more ranges.
_MAX_RANGES, _MAX_RANGES_OF_FEW = 16, 32
# Steps of several parts, which use the links of all dimensions of a torus at the same time.
MAX_STEPS_OF_PARTS = 8_200_000
MIN_UNIT_BYTES = 64
# From so many ranks on, ranges of levels are forwarded, and broadcasts may have
# `MAX_STEPS_OF_PARTS` steps.
MANY_RANKS = 4096
# From so many ranks on, forwarded ranges are an alternative, which is slow for small sizes.
_MIN_FORWARDING_RANKS = 512
# A shape for small sizes is simulated only if its estimated gain is above 10 %.
_SMALL_GAIN = 0.9


@dataclass(frozen=True, slots=True)
class NestedShape:
    """Levels of the ranks and the parts of the data.

    `sizes`: ranks of each level, the first level varies fastest with the rank. `is_ring`: whether
    the ranks of a level form a ring. `parts`: (order of the levels in the all-gather, direction of
    the longer half of its rings) of every part of the data; a reduce-scatter uses the reversed
    order. `chunks`: chunks of every part, which overlap. `is_moved`: an all-gather first moves the
    units to the ranks that start with them in an all-reduce, whose messages are ranges; a
    reduce-scatter moves the results from these ranks at the end. `is_forwarded`: in the level that
    is gathered last, the ranges of the level before it are separate messages, so that a range moves
    on while others arrive, over other links; only for one part whose messages are ranges, and at
    least two levels. `one_shot_levels`: in so many levels, from the one that is gathered first on,
    the ranks of an all-reduce send their complete partial sums to each other, once instead of a
    reduction and a gathering; only for levels without rings, with one part that is not forwarded.
    """

    sizes: tuple[int, ...]
    is_ring: tuple[bool, ...]
    parts: tuple[tuple[tuple[int, ...], int], ...]
    chunks: int = 1
    is_moved: bool = False
    is_forwarded: bool = False
    one_shot_levels: int = 0

    @classmethod
    def direct(cls, sizes: Sequence[int], chunks: int = 1) -> NestedShape:
        """Return a shape in which all pairs of ranks exchange directly within every level.

        `sizes`: ranks of each level, the closest first; levels of one rank are left out. There is
        one part of `chunks` chunks, without rings. The last level is gathered first: its links are
        often the slowest, and then only a rank's own data pass over them.
        """
        used = tuple(size for size in sizes if size > 1)
        order = tuple(reversed(range(len(used))))
        return cls(used, (False,) * len(used), ((order, 1),), chunks)

    @property
    def units_per_rank(self) -> int:
        """Chunks of all parts."""
        return len(self.parts) * self.chunks

    def count_units(self) -> int:
        """Return the number of units of all ranks, in an all-reduce those of the vector."""
        return prod(self.unit_sizes) * self.units_per_rank

    @property
    def unit_sizes(self) -> tuple[int, ...]:
        """Return the number of ranges into which each level divides the data: its number of ranks.

        One exception: the first `one_shot_levels` levels of the order do not divide the data and
        have 1, because their ranks send complete partial sums.
        """
        once = self.list_one_shot_levels()
        return tuple(1 if level in once else size for level, size in enumerate(self.sizes))

    def list_one_shot_levels(self) -> tuple[int, ...]:
        """Return the levels in which complete partial sums are exchanged, in this order."""
        return self.parts[0][0][: self.one_shot_levels]

    def count_steps(self, kind: CollectiveKind) -> int:
        """Return the number of send and receive steps of all ranks in a collective of this shape.

        It is 2 * ranks * `units_per_rank` * M, where M is the number of messages of a rank per
        unit. Let N be the sum of (size - 1) over all levels. If `is_forwarded`, (b - 1) * (l - 1)
        is added to N: l is the size of the level that is gathered last, b that of the level before
        it. The first rule that applies gives M:

        1. For an all-reduce: 2 * N, minus (s - 1) for each of the `one_shot_levels` of size s.
        2. With `is_moved`: 1 + N.
        3. ranks - 1, if there are several units per rank, or the levels of the first part are not
           gathered in the order 0, 1, 2 and so on. Every unit is then a separate message.
        4. Otherwise N.
        """
        nested = sum(size - 1 for size in self.sizes)
        if self.is_forwarded:
            before, last = (self.sizes[level] for level in self.parts[0][0][-2:])
            nested += (before - 1) * (last - 1)
        if kind is CollectiveKind.ALL_REDUCE:
            messages = 2 * nested
            messages -= sum(self.sizes[level] - 1 for level in self.list_one_shot_levels())
        elif self.is_moved:
            messages = 1 + nested
        elif self.units_per_rank > 1 or self.parts[0][0] != tuple(range(len(self.sizes))):
            messages = prod(self.sizes) - 1
        else:
            messages = nested
        return 2 * prod(self.sizes) * messages * self.units_per_rank


def find_grid(topology: Topology) -> tuple[list[int], list[bool]]:
    """Return (sizes, whether each is a ring) of the dimensions above 1 of a torus or mesh.

    The fastest varying dimension is first; one of 2 NPUs counts as a ring. Empty lists if the
    network has nodes that are no NPUs (switches), or a dimension of more than 2 NPUs that is
    neither a ring nor a line; also if it has no dimension above 1.
    """
    dimensions = [dimension for dimension in topology.dimensions if dimension.size > 1]
    is_ring = [each.kind is DimensionKind.RING or each.size == 2 for each in dimensions]
    is_grid = topology.num_nodes == topology.num_npus and all(
        ring or each.kind is DimensionKind.LINE
        for each, ring in zip(dimensions, is_ring, strict=True)
    )
    return ([each.size for each in dimensions], is_ring) if is_grid else ([], [])


def find_rings(topology: Topology) -> list[int]:
    """Return the sizes of the dimensions of a torus, the fastest varying first, else [].

    Dimensions of one NPU are left out, and a dimension of two NPUs counts as a ring. The result
    is [] if any dimension is not a ring, and for networks that have no grid (`find_grid`).
    """
    sizes, is_ring = find_grid(topology)
    return sizes if all(is_ring) else []


def choose_shape(topology: Topology, kind: CollectiveKind, text: str, size: int) -> NestedShape:
    """Choose the levels, their order, and the parts of the data for a collective of all NPUs.

    `text`: option `sizes`, `UsageError` (`option-range`) if invalid; `size`: total bytes. Each part
    of the data is gathered level by level, in an order of its own. `is_moved`: before that, each
    unit is sent to the rank where it starts in an all-reduce, so that later messages are ranges of
    units.

    If the levels are not the rings of a torus, there is one part, which gathers the last level
    first. It is moved if it would have more than `MAX_STEPS_OF_PARTS` steps otherwise. Levels
    beyond the first are divided again, the second one into at most 16 ranks that forward data while
    other data arrive (`is_forwarded`), if all of these hold: the collective is an all-reduce or the
    part is moved; there are 4096 or more ranks; the groups of the first level have links of their
    own to other groups (`find_forwarding_group`); a division has at most `MAX_STEPS_OF_PARTS`
    steps.

    On a torus of d dimensions, the result is the first of these with at most `MAX_STEPS_OF_PARTS`
    steps and at least `MIN_UNIT_BYTES` per unit, otherwise the last:
    1. 2 d parts (from every dimension on, both directions), then d parts (one direction)
    2. except for an all-reduce: the same two with `is_moved`
    3. one part from dimension 0 on
    """
    rings = find_rings(topology)
    levels = choose_levels(topology, text)
    if not rings or levels != rings:
        shape = NestedShape.direct(levels)
        shape = replace(shape, is_moved=shape.count_steps(kind) > MAX_STEPS_OF_PARTS)
        # Units that are not moved are single messages, which overlap without ranges.
        has_ranges = kind is CollectiveKind.ALL_REDUCE or shape.is_moved
        # Groups that are divided have several levels, whose chunks overlap.
        if has_ranges and find_forwarding_group(topology, text, MANY_RANKS) == levels[0] > 1:
            return _choose_forwarded(shape, kind, _MAX_RANGES)
        return shape
    count = len(rings)
    orders = [tuple((first + axis) % count for axis in range(count)) for first in range(count)]
    is_ring = tuple(length > 2 for length in rings)
    both_directions = [(order, sign) for sign in (1, -1) for order in orders]
    one_direction = both_directions[:count]
    choices = [(both_directions, False), (one_direction, False)]
    if kind is not CollectiveKind.ALL_REDUCE:
        choices += [(both_directions, True), (one_direction, True)]
    choices.append((both_directions[:1], False))
    shapes = [
        NestedShape(tuple(rings), is_ring, tuple(parts), is_moved=is_moved)
        for parts, is_moved in choices
    ]
    for shape in shapes:
        units = topology.num_npus * shape.units_per_rank
        if shape.count_steps(kind) <= MAX_STEPS_OF_PARTS and size >= units * MIN_UNIT_BYTES:
            return shape
    return shapes[-1]


def list_shapes(
    topology: Topology, kind: CollectiveKind, text: str, size: int
) -> list[NestedShape]:
    """List the shapes to compare for a collective of all NPUs, one to four, in this order.

    1. The shape of `choose_shape`. For other kinds than an all-reduce it is the only one.
    2. The shapes of `choose_small_shapes`. They replace shape 1 if that has more units than `size`
       bytes.
    3. Shape 1 with a second level that forwards its parts (`_choose_forwarded`), if that is
       possible. Not if shape 1 forwards already, or if its first level is not that of
       `find_forwarding_group`.

    Shapes 2 and 3 exist only if `text`, the option `sizes`, is `auto`, and shape 3 only for at
    least `_MIN_FORWARDING_RANKS` (512) ranks.
    """
    shape = choose_shape(topology, kind, text, size)
    if kind is not CollectiveKind.ALL_REDUCE:
        return [shape]
    shapes = [shape]
    if small := [each for each, _ in choose_small_shapes(topology, text, size)]:
        shapes = [*shapes, *small] if size >= shape.count_units() else small
    group = find_forwarding_group(topology, text, _MIN_FORWARDING_RANKS)
    if shape.is_forwarded or group == 1 or group != shape.sizes[0]:
        return shapes
    forwarded = _choose_forwarded(shape, kind, _MAX_RANGES_OF_FEW)
    return [*shapes, forwarded] if forwarded.is_forwarded else shapes


def choose_small_shapes(
    topology: Topology, text: str, size: int
) -> list[tuple[NestedShape, float]]:
    """Choose up to two shapes for a small all-reduce by estimated times: (shape, time in s).

    The candidates join neighbouring levels of the network in every way that leaves two or more
    levels. Each level is in two phases (reduce-scatter, then all-gather) or in one shot (every rank
    sends all of its data to the others). The levels in one shot are the outermost ones, or, if some
    levels are in two phases, the closest ones; they follow the reduce-scatters of all others. A
    candidate has at most 8.2 million steps, and at most `size` units. The network's levels without
    a join, all in two phases, are the reference and no candidate.

    Times are those of `_estimate_s`; a level has the latency and bandwidth of the route from NPU 0
    to the last of the ranks with which it exchanges in this level. At equal times a shape that
    joins closer levels comes first, then fewer levels in one shot, then outermost ones.

    The first shape is the fastest one of those without levels in one shot or with only the
    outermost one, the second shape the fastest of all others. Shapes are chosen only if their time
    is below 0.9 times that of the reference. From 512 ranks on, whose simulations take long, the
    second shape must also be below 0.9 times the first one. If the reference has more units than
    `size`, the first shape is always chosen.

    Returns no shapes on a torus, if `text` is not `auto`, or without candidates. Raises
    `InputError` (`disconnected`) without such a route. At least two NPUs are required.
    """
    kind = CollectiveKind.ALL_REDUCE
    if text != "auto" or find_rings(topology):
        return []
    levels = choose_levels(topology, text)
    # Joined levels from a start up to an end: their ranks are at multiples of the ranks before.
    joins = list(combinations_with_replacement(range(len(levels)), 2))
    last = [prod(levels[: end + 1]) - prod(levels[:start]) for start, end in joins]
    routes = topology.routes(np.zeros(len(last), np.int64), np.asarray(last, np.int64))
    links_of = dict(zip(joins, np.split(routes.links, routes.indptr[1:-1]), strict=True))
    costs = {
        join: (
            float(topology.latency_ns[links].sum()) / 1e9,
            1 / float(topology.bandwidth_bytes_per_s[links].min()),
        )
        for join, links in links_of.items()
    }
    plain = NestedShape.direct(levels)
    plain_s = float("inf")
    # By whether the shape is one of the others.
    choices: dict[bool, list[tuple[float, int, NestedShape]]] = {False: [], True: []}
    for boundaries in product((False, True), repeat=len(levels) - 1):
        ends = [level for level, is_end in enumerate((*boundaries, True)) if is_end]
        starts = [0, *(end + 1 for end in ends[:-1])]
        sizes = [prod(levels[start : end + 1]) for start, end in zip(starts, ends, strict=True)]
        cost_of = [costs[join] for join in zip(starts, ends, strict=True)]
        for shape in _list_one_shot_shapes(sizes):
            time_s = _estimate_s(shape, size, cost_of)
            if shape == plain:
                plain_s = time_s
            elif (
                len(sizes) > 1
                and shape.count_steps(kind) <= MAX_STEPS_OF_PARTS
                and shape.count_units() <= size
            ):
                same = choices[shape.list_one_shot_levels() not in ((), (len(sizes) - 1,))]
                same.append((time_s, len(same), shape))
    chosen: list[tuple[NestedShape, float]] = []
    limit_s = _SMALL_GAIN * plain_s
    for is_other, same in choices.items():
        if not same:
            continue
        time_s, _, shape = min(same)
        is_needed = not is_other and size < plain.count_units()
        if time_s < limit_s or is_needed:
            chosen.append((shape, time_s))
            if topology.num_npus >= _MIN_FORWARDING_RANKS:
                limit_s = min(limit_s, _SMALL_GAIN * time_s)
    return chosen


def _estimate_s(shape: NestedShape, size: int, cost_of: Sequence[tuple[float, float]]) -> float:
    """Estimate the time (s) of an all-reduce of `size` bytes, of one part without rings.

    `cost_of`: latency (s) and time per byte (s) of each level. A level of s ranks with the latency
    a takes 2 (a + (s - 1) t) in two phases, and a + (s - 1) t in one shot. t is the time of a
    message, at least 1 ns. A message has `size` bytes divided by the sizes of the levels in two
    phases that are reduced up to this one, in the reversed order of the part.
    """
    total_s, message_bytes = 0.0, float(size)
    once = shape.list_one_shot_levels()
    for level in reversed(shape.parts[0][0]):
        count, (alpha_s, beta_s_per_byte) = shape.sizes[level], cost_of[level]
        message_bytes /= 1 if level in once else count
        message_s = max(message_bytes * beta_s_per_byte, 1e-9)
        total_s += (1 if level in once else 2) * (alpha_s + (count - 1) * message_s)
    return total_s


def _list_one_shot_shapes(sizes: Sequence[int]) -> Iterator[NestedShape]:
    """Yield the shapes of an all-reduce with the levels `sizes`, of which some are in one shot.

    There are 2 n for n levels: first none in one shot, then 1, 2, ..., n levels. If some are left
    in two phases, the outermost ones are followed by the same number of closest ones.
    """
    shape = NestedShape.direct(sizes)
    yield shape
    closest_first = ((tuple(range(len(sizes))), 1),)
    for count in range(1, len(sizes) + 1):
        yield replace(shape, one_shot_levels=count)
        if count < len(sizes):
            yield replace(shape, one_shot_levels=count, parts=closest_first)


def find_forwarding_group(topology: Topology, sizes_text: str, min_ranks: int) -> int:
    """Return the size of groups whose ranks have links of their own to other groups, else 1.

    The groups are the closest level of the network (`_find_levels`), which are consecutive
    NPUs from 0. The result is 1 unless all of these hold:

    - The network has at least `min_ranks` NPUs, is no torus (`find_rings`), and has several
      levels.
    - The option `sizes` (`sizes_text`) is `auto`.
    - The routes from NPU 0 to NPU 1, and to the first NPU of the next group, share no link, as
      on rails. Only these two routes are tested.
    """
    if topology.num_npus < min_ranks or sizes_text != "auto" or find_rings(topology):
        return 1
    inside, *outside = _find_levels(topology)
    if not outside or inside == 1:
        return 1
    routes = topology.routes(np.zeros(2, np.int64), np.asarray([1, inside]))
    near, far = np.split(routes.links, routes.indptr[1:2])
    return 1 if np.intersect1d(near, far).size else inside


def _choose_forwarded(shape: NestedShape, kind: CollectiveKind, max_ranges: int) -> NestedShape:
    """Return a shape whose second level forwards its parts while other parts arrive.

    The closest level keeps its size. The second level gets r ranks. The r tried are the
    divisors, from `max_ranges` down to 2, of the product of all other sizes. The quotient is
    divided into outer levels by `_divide_level`.

    The first r counts for which the shape has at most `MAX_STEPS_OF_PARTS` steps for `kind`.
    The result has `is_forwarded` True and the old `is_moved`. If no r fits, `shape` is
    returned unchanged.
    """
    inside, outside = shape.sizes[0], prod(shape.sizes[1:])
    for ranges in range(min(max_ranges, outside), 1, -1):
        if outside % ranges:
            continue
        levels = [inside, ranges, *_divide_level(outside // ranges)]
        forwarded = replace(NestedShape.direct(levels), is_moved=shape.is_moved, is_forwarded=True)
        if forwarded.count_steps(kind) <= MAX_STEPS_OF_PARTS:
            return forwarded
    return shape


def choose_levels(topology: Topology, text: str) -> list[int]:
    """Return the sizes of the levels of ranks, the closest first.

    Their product is the number of NPUs. With a `text` such as `8x8x16` they are its numbers
    in this order, without 1s ([1] if all are 1). With `auto` the first of these that
    applies:

    1. The dimensions of a torus above 1, the fastest varying first, not divided.
    2. The nested groups of NPUs by distance in links from NPU 0, if there are several
       levels (`_find_distance_levels`).
    3. [NPUs per group, groups] if the topology has several equal groups of consecutive
       NPUs.
    4. A single level of all NPUs; [] for a network of one NPU.

    Levels of rules 2 to 4 above `_MAX_LEVEL` (32) are divided into factors
    (`_divide_level`). Raises `UsageError` (`option-range`) if the product of the numbers in
    `text` is not the number of NPUs, also for other text.
    """
    ranks = topology.num_npus
    if text != "auto":
        # Text that is no number counts as 0, which is no factor of the ranks.
        sizes = [parse_whole(part, 10**7 - 1) or 0 for part in text.split("x")]
        if prod(sizes) != ranks:
            raise UsageError(
                f"option sizes: {text[:60]} is not {ranks} ranks",
                cure=f"name sizes whose product is the number of ranks, {ranks}",
                code="option-range",
            )
        return [size for size in sizes if size > 1] or [1]
    rings = find_rings(topology)
    return rings or [part for level in _find_levels(topology) for part in _divide_level(level)]


def _find_levels(topology: Topology) -> list[int]:
    """Return the sizes of the levels of a network that is no torus, the closest first.

    They are the nested groups by distance from NPU 0 (`_find_distance_levels`). If this is a
    single level, and the topology has several named groups of equal size whose NPUs are
    numbered consecutively, they are [NPUs per group, groups]. Large levels are not divided into
    factors. The result is [] for a network of one NPU.
    """
    levels = _find_distance_levels(topology)
    groups = find_equal_groups(topology, range(topology.num_npus))
    is_numbered = np.array_equal(groups.ravel(), np.arange(topology.num_npus))
    if len(levels) == 1 and len(groups) > 1 and is_numbered:
        return [groups.shape[1], len(groups)]
    return levels


def _find_distance_levels(topology: Topology) -> list[int]:
    """Return the sizes of the nested groups of NPUs by distance from NPU 0, the closest first.

    The distance is the number of links. The group of a distance has all NPUs up to this
    distance. It must consist of the NPUs 0 to k - 1, and k must be a multiple of the size
    of the next smaller group. The result has the quotients of consecutive sizes, from 1 on,
    without 1s: groups of 4 and 8 NPUs give [4, 2].

    If a group breaks a rule, or an NPU is not reached, the result is one level of all NPUs.
    It is [] for a network of one NPU.
    """
    (hops,) = topology.arcs().hops(np.zeros(1, np.int64))
    distance = hops[: topology.num_npus]
    levels, inside = [], 1
    for limit in np.unique(distance[1:]).tolist():
        members = np.flatnonzero(distance <= limit)
        # Groups must have consecutive numbers, and divide the next larger group.
        if len(members) % inside or members[-1] != len(members) - 1:
            return [topology.num_npus]
        levels.append(len(members) // inside)
        inside = len(members)
    if inside != topology.num_npus:
        return [topology.num_npus]
    return [level for level in levels if level > 1]


def _divide_level(size: int) -> list[int]:
    """Divide a size into factors of at most `_MAX_LEVEL` (32), except for larger primes.

    A size up to `_MAX_LEVEL`, or a prime, is returned as [size]. Any other size is split into
    its largest divisor up to its square root and the quotient, in this order, and both are
    divided further: 128 gives [8, 16]. The product of the factors is `size`.
    """
    if size <= _MAX_LEVEL:
        return [size]
    factor = max(each for each in range(1, int(size**0.5) + 1) if size % each == 0)
    if factor == 1:
        return [size]
    return [*_divide_level(factor), *_divide_level(size // factor)]
