"""Collectives of thousands of ranks, level by level, with few messages and without lists of blocks.

An all-gather gathers along one level of the network after another, a reduce-scatter reduces in the
opposite order, and an all-reduce does both (Thakur, Rabenseifner, Gropp 2005, for levels of equal
size). Levels are groups with exchanges of all pairs, or the rings of a torus, whose dimensions are
used at the same time by different parts of the data. Every rank sends (n-1)/n of the vector per
phase, and for one part only the sum of the level sizes messages instead of n. Broadcasts and
reduces use several trees at once. An all-to-all on a torus moves the data along one dimension after
another (`torus_exchange`), on a line or a long ring in two phases (`line_exchange`). The steps are
built as columns, so that ten thousand ranks take seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from math import ceil, floor, isqrt

import numpy as np

from collhub_classic.line_exchange import (
    build_line_exchange,
    estimate_line_exchange_s,
    is_in_two_phases,
)
from collhub_classic.message_plan import compute_mean_link
from collhub_classic.nested_broadcast import (
    RootedTrees,
    build_broadcast_steps,
    build_group_grains,
    build_reduce_steps,
    choose_grains,
    choose_group_messages,
    find_binary_trees,
    find_group_trees,
    find_group_turns,
    find_turns,
    move_root,
)
from collhub_classic.nested_shapes import (
    MANY_RANKS,
    MAX_STEPS_OF_PARTS,
    MIN_UNIT_BYTES,
    NestedShape,
    choose_levels,
    choose_shape,
    choose_small_shapes,
    find_forwarding_group,
    find_grid,
    find_rings,
    list_shapes,
)
from collhub_classic.nested_steps import build_nested_steps
from collhub_classic.plugin import NestedOptions
from collhub_classic.torus_exchange import build_torus_exchange, estimate_torus_exchange_s
from collhub_classic.torus_trees import find_grid_trees
from hub_core import installed_version
from hub_core.columns import Int64Array
from hub_core.model import (
    Algorithm,
    Collective,
    CollectiveKind,
    InputError,
    JsonValue,
    Provenance,
    StepTable,
    UsageError,
)
from hub_core.network import lower_bound_ns
from hub_core.plugin_api import SynthesisRequest, SynthesisResult

_NAME = "collhub-classic"
# Chunks of the vector overlap: a switch forwards a chunk while it receives the next one.
_MAX_CHUNKS, _MAX_STEPS = 16, 4_200_000
# Above, a simulation takes many seconds, and only the largest number of chunks is tried.
_MAX_TRIED_STEPS = 1_000_000
# From so many ranks on, broadcasts and reduces on tori and meshes have messages of several sizes,
# for which runtimes have too few operations, and those on groups have trees for each rank of a
# group.
_FEW_RANKS = 512
# In larger groups, the chain in the group of the root is too slow for small sizes.
_MAX_GROUP = 32
# Chunks of a broadcast or reduce on a large torus or mesh per hop: the first chunk takes 3 % of the
# time.
_MAX_CHUNKS_PER_HOP = 32
# Steps of a broadcast or reduce of thousands of ranks on a torus or mesh, or on groups: small
# messages shorten the time until the first data have reached all ranks.
_MAX_STEPS_OF_TREES = 16_400_000
# Chunks of equal messages on a tree: more of them are hardly faster.
_MAX_TREE_CHUNKS = 256
# Chunks on the way between groups, in addition to those of the latency: each link stores a message
# before it is forwarded.
_STORED_CHUNKS = 2
# In a reduce on two binary trees, more chunks on the way would meet at the parent.
_STORED_CHUNKS_OF_REDUCE = 2.0
# Chunks of a tree of groups that are on the way per level of a reduce, in addition to half of the
# latency (a chunk of one tree passes a link in every second time of a chunk): two links and a
# message of the other tree take three of these times. On two binary trees, whose paths differ in
# length, such waits make some reduces slower.
_CHUNKS_PER_LEVEL = 2
# Chunks of each tree of many ranks, if trees are not disjoint: a chunk passes several links per
# rank.
_MAX_MANY_CHUNKS = 512


def synthesize(request: SynthesisRequest, options: NestedOptions) -> SynthesisResult:
    """Synthesize a collective of all NPUs that works on one level of the network after another.

    The candidates form series, with more chunks from one candidate to the next:

    - all-gather, reduce-scatter, all-reduce: one series for each shape of `list_shapes`
    - broadcast, reduce: one series on trees; all-to-all: one candidate, only on tori and lines

    A series ends with the first candidate that is not faster than the one before. The fastest of
    all is returned, the first of equal ones. Its time in ns is simulated, or estimated if the
    simulated one is None or 0. The only bound is `ports and distances`, if there is one. Ctrl-C
    ends the search with the best candidate so far; without any, `KeyboardInterrupt` is raised.

    Raises `InputError` for another collective (`collective-unsupported`), then for ranks that are
    not all NPUs in order (`subset-unsupported`), and for an all-to-all on another network
    (`not-a-torus`) or of too many ranks (`too-large`). Raises `UsageError` for one rank
    (`one-rank`), an option that does not fit (`option-range`), and units below one byte
    (`size-too-small`). An all-to-all also raises the error of the request's unit limits.
    """
    ranks, kind = request.collective.num_ranks, request.collective.kind
    if kind not in NESTED_KINDS:
        names = ", ".join(map(str, NESTED_KINDS))
        raise InputError(
            f"nested does not support {kind}",
            cure=f"it supports {names}",
            code="collective-unsupported",
        )
    if request.npus != tuple(range(request.topology.num_npus)):
        raise InputError("nested needs every NPU as a rank", code="subset-unsupported")
    if ranks == 1:
        raise UsageError(
            "one rank has nothing to send", cure="let at least two ranks take part", code="one-rank"
        )
    best: tuple[int, Algorithm, dict[str, JsonValue]] | None = None
    trees = _find_trees(request, options)
    if kind is CollectiveKind.ALL_TO_ALL:
        series = [iter([_build_exchange(request, options)])]
    elif trees is None:
        size = request.collective_bytes
        shapes = list_shapes(request.topology, kind, options.sizes, size)
        series = [_generate_nested(request, options, shape) for shape in shapes]
    else:
        series = [_generate_on_trees(request, options, trees)]
    try:
        for candidates in series:
            least_ns: int | None = None
            for collective, steps, scratch_units, statistics in candidates:
                algorithm = Algorithm(
                    collective,
                    steps,
                    np.full(ranks, scratch_units),
                    Provenance(
                        _NAME,
                        installed_version("collhub-synthesis") or "",
                        request.topology.name,
                        "",
                        {name: str(value) for name, value in asdict(options).items()},
                    ),
                    request.collective_bytes,
                )
                time_ns = request.simulate(algorithm) or _estimate_ns(request, options, trees)
                if least_ns is not None and time_ns >= least_ns:
                    break
                least_ns = time_ns
                if best is None or time_ns < best[0]:
                    best = time_ns, algorithm, statistics
    except KeyboardInterrupt:
        # The best candidate so far is the result.
        if best is None:
            raise
    assert best is not None
    bound = lower_bound_ns(request.collective, request.topology, request.collective_bytes)
    bounds = {} if bound is None else {"ports and distances": floor(bound)}
    return SynthesisResult(best[1], best[0], bounds, best[2])


NESTED_KINDS = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
    CollectiveKind.ALL_TO_ALL,
)
_Candidate = tuple[Collective, StepTable, int, dict[str, JsonValue]]


def _generate_nested(
    request: SynthesisRequest, options: NestedOptions, shape: NestedShape
) -> Iterator[_Candidate]:
    """Yield candidates of an all-gather, reduce-scatter or all-reduce, one per number of chunks.

    The option `chunks`, if not 0, is the only number, without a limit. Otherwise the numbers are 1,
    2, 4 ..., ascending, as far as they are at most (1 is always allowed):

    - 16, or 1 from 512 ranks on if the shape has one-shot levels (`list_one_shot_levels`)
    - 4.2e6 steps, or 8.2e6 if `is_forwarded`, divided by the steps of the shape
    - bytes // (units of the shape x 64), so that units have about 64 bytes or more

    If the shape has more than 1e6 steps, only the largest number is used.

    A candidate is (collective, steps, SCRATCH units of a rank, statistics). The collective allows
    calls in place and out of place. SCRATCH has all units once per one-shot level, once less if all
    levels are one-shot. Without one-shot levels it has all units for a reduce-scatter, else none.
    The statistics are `sizes`, `parts`, `moved`, `chunks`, `rounds` and `cost`. `forwarded` (True)
    and `one shot` (sizes of these levels, as `2x4`) are added if they apply. Raises `UsageError`
    (`size-too-small`) at a candidate with more units than bytes.
    """
    ranks, kind = request.collective.num_ranks, request.collective.kind
    phases = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    once = shape.list_one_shot_levels()
    chunk_counts = [options.chunks or 1]
    if not options.chunks:
        max_steps = MAX_STEPS_OF_PARTS if shape.is_forwarded else _MAX_STEPS
        most = min(
            _MAX_CHUNKS,
            max_steps // shape.count_steps(kind),
            request.collective_bytes // (shape.count_units() * MIN_UNIT_BYTES),
            1 if once and ranks >= _FEW_RANKS else _MAX_CHUNKS,
        )
        chunk_counts = [1 << power for power in range(max(1, most.bit_length()))]
        if shape.count_steps(kind) > _MAX_TRIED_STEPS:
            chunk_counts = chunk_counts[-1:]
    for chunks in chunk_counts:
        candidate = replace(shape, chunks=chunks)
        units = candidate.count_units()
        _check_size(request, units, ", or fewer chunks" if chunks > 1 else "")
        collective = replace(request.collective, unit_count=units, in_place=True, out_of_place=True)
        vectors = int(kind is CollectiveKind.REDUCE_SCATTER)
        if once:
            # Exchanges read sums from SCRATCH; if no level is reduced, the first one reads INPUT.
            vectors = len(once) - (len(once) == len(shape.sizes))
        rounds, ports = _compute_cost(candidate)
        rounds *= phases
        sent = f"{phases * (ranks - 1)}/{ranks * ports}"
        if once:
            divided, sizes = units // chunks, [shape.sizes[level] for level in once]
            rounds -= len(once)
            sent = f"{2 * (divided - 1) + sum(sizes) - len(sizes)}/{divided}"
        statistics: dict[str, JsonValue] = {
            "sizes": "x".join(map(str, shape.sizes)),
            "parts": len(shape.parts),
            "moved": shape.is_moved,
            "chunks": chunks,
            "rounds": rounds,
            "cost": f"{rounds} alpha + {sent} m beta, {'one port' if ports == 1 else 'many ports'}",
        }
        if shape.is_forwarded:
            statistics["forwarded"] = True
        if once:
            statistics["one shot"] = "x".join(str(shape.sizes[level]) for level in sorted(once))
        yield collective, build_nested_steps(candidate, kind), vectors * units, statistics


def _check_size(request: SynthesisRequest, units: int, further_cure: str = "") -> None:
    """Raise `UsageError` (`size-too-small`) if the full buffer has fewer bytes than units.

    `further_cure` is appended to the cure, a larger size.
    """
    if request.collective_bytes < units:
        raise UsageError(
            f"{request.collective_bytes} bytes cannot be cut in {units} parts",
            cure=f"choose a larger size{further_cure}",
            code="size-too-small",
        )


def _build_exchange(request: SynthesisRequest, options: NestedOptions) -> _Candidate:
    """Build the all-to-all on a torus or line, as (collective, steps, SCRATCH units, statistics).

    On a line, and on a single ring that is too large for `build_torus_exchange`, data move in two
    phases (`build_line_exchange`). Otherwise they move dimension by dimension. The collective is
    for calls out of place only; it has ranks x (units of a pair) units.

    The statistics are the sizes of the dimensions, such as `4x8`, and the rounds of messages: the
    sum of k // 2 for a ring and k - 1 for a line of k ranks. Raises, in this order:

    1. the errors of `_find_exchange_grid`
    2. `InputError` (`too-large`) if buffers and messages have too many units
    3. `UsageError` (`size-too-small`) if there are fewer bytes than units
    4. the error of `request.units` if that does not allow the number of units
    """
    sizes, is_ring = _find_exchange_grid(request, options)
    if is_in_two_phases(sizes, is_ring):
        exchange = build_line_exchange(sizes[0], is_ring=is_ring[0])
    else:
        exchange = build_torus_exchange(sizes)
    units = request.collective.num_ranks * exchange.units_per_pair
    _check_size(request, units)
    if request.units is not None and not request.units.allows(units):
        raise request.units.build_error(units)
    collective = replace(request.collective, unit_count=units, in_place=False, out_of_place=True)
    statistics: dict[str, JsonValue] = {
        "sizes": "x".join(map(str, sizes)),
        "rounds": sum(
            size // 2 if ring else size - 1 for size, ring in zip(sizes, is_ring, strict=True)
        ),
    }
    return collective, exchange.steps, exchange.scratch_units, statistics


def _find_exchange_grid(
    request: SynthesisRequest, options: NestedOptions
) -> tuple[list[int], list[bool]]:
    """Return the dimensions for an all-to-all: (sizes, whether each is a ring).

    The network must be a torus, whose dimensions are all rings, or a single line, without switches.
    The first dimension varies fastest. Dimensions of one NPU are left out; those of two NPUs count
    as rings. Raises, in this order:

    1. `InputError` (`not-a-torus`) for other networks: a mesh of several lines, a network with
       switches, or one without a dimension above 1.
    2. `UsageError` (`option-range`) if the product of the option `sizes` is not the number of NPUs.
    3. `UsageError` (`option-range`) if the option `sizes`, unless `auto`, differs from the result.
       Sizes of 1 in the option are ignored. Also if the option `chunks` is above 1.
    """
    sizes, is_ring = find_grid(request.topology)
    if not sizes or (len(sizes) > 1 and not all(is_ring)):
        raise InputError(
            f"nested has an all-to-all only for tori and lines, not for {request.topology.name}",
            cure="use pairwise",
            code="not-a-torus",
        )
    levels = sizes if options.sizes == "auto" else choose_levels(request.topology, options.sizes)
    if levels != sizes or options.chunks > 1:
        raise UsageError(
            f"option {'chunks' if options.chunks > 1 else 'sizes'}: the all-to-all of nested uses "
            f"the dimensions {'x'.join(map(str, sizes))} and one chunk",
            cure="leave out the option",
            code="option-range",
        )
    return sizes, is_ring


def _generate_on_trees(
    request: SynthesisRequest, options: NestedOptions, trees: RootedTrees
) -> Iterator[_Candidate]:
    """Yield the candidates of a broadcast or reduce on trees, which differ in the chunks.

    `_choose_tree_chunks` gives the numbers of chunks per tree and per message, in this order. A
    candidate is (collective, steps, SCRATCH units of a rank, statistics). The collective has trees
    x chunks units, and is for calls in place and out of place. SCRATCH has as many units for a
    reduce, none for a broadcast. The steps limit the chunks on the way to those that a link sends
    in a message's latency: 2 more for a grouped broadcast, at least 2 for a reduce on trees that
    share links, rounded down (and 2 per level) for a grouped reduce.

    The statistics are `trees`, `depth` and `chunks` (per tree). If all messages have one chunk,
    `cost` follows, with depth - 1 + chunks rounds. Otherwise `chunks per message` follows, from 1
    to the largest number. Raises `UsageError` (`size-too-small`) at the first candidate that has
    more units than bytes.
    """
    parents, count = trees.parents, len(trees.parents)
    is_reduce = request.collective.kind is CollectiveKind.REDUCE
    for chunks, grains in _choose_tree_chunks(request, options, trees):
        units = count * chunks
        _check_size(request, units, ", or fewer chunks")
        collective = replace(request.collective, unit_count=units, in_place=True, out_of_place=True)
        statistics: dict[str, JsonValue] = {"trees": count, "depth": trees.depth, "chunks": chunks}
        if grains is None:
            rounds = trees.depth - 1 + chunks
            statistics["cost"] = f"{rounds} alpha + {rounds}/{units} m beta, many ports"
        else:
            statistics["chunks per message"] = f"1..{int(grains.max())}"
        latency_chunks = _count_latency_chunks(request, trees, chunks)
        is_grouped, chunks_per_level = trees.group_size > 1, 0
        if is_reduce and is_grouped:
            # The messages of other trees fill the links during a part of a chunk.
            latency_chunks, chunks_per_level = floor(latency_chunks), _CHUNKS_PER_LEVEL
        elif is_reduce and not trees.is_disjoint:
            latency_chunks = max(latency_chunks, _STORED_CHUNKS_OF_REDUCE)
        elif is_grouped:
            latency_chunks += _STORED_CHUNKS
        if is_reduce:
            steps = build_reduce_steps(
                parents, chunks, grains, latency_chunks, chunks_per_level=chunks_per_level
            )
        else:
            steps = build_broadcast_steps(
                parents, chunks, grains, latency_chunks, trees.turns, trees.group_size
            )
        yield collective, steps, units if is_reduce else 0, statistics


def _count_latency_chunks(request: SynthesisRequest, trees: RootedTrees, chunks: int) -> float:
    """Return how many chunks of a tree a link can send within the latency of a message.

    The result is a fraction from 0 to `chunks`, the number of chunks of a tree. Each tree
    carries an equal share of the collective's bytes. Latency and time per byte are those of
    `_find_link`. The result is `chunks` if the time per byte or the size is 0.
    """
    alpha_s, beta_s_per_byte = _find_link(request, trees)
    tree_s = request.collective_bytes * beta_s_per_byte / len(trees.parents)
    return chunks * min(1.0, alpha_s / tree_s) if tree_s else float(chunks)


def _choose_tree_chunks(
    request: SynthesisRequest, options: NestedOptions, trees: RootedTrees
) -> list[tuple[int, Int64Array | None]]:
    """Return the candidates to try: (chunks per tree, chunks of each message; None for one each).

    E is the number of chunks with the smallest modelled time: at least 1, at most 256, at least 64
    bytes per chunk, at most 4.2 million steps (8.2 million from 4096 ranks on). E is large if it
    gives more than 1 million steps. The first rule that applies:

    1. Option `chunks` is not 0: only (`chunks`, None).
    2. The request has a target: only (E, None).
    3. Trees over groups: the results of `choose_group_messages` with two limits of chunks, E
       (without the limit of steps) and 512. If E is large, only with 512. Equal results occur once.
    4. Fewer than 512 ranks: only (E, None).
    5. Otherwise (E, None), omitted if E is large, then (M, messages). If the trees share links, M
       is 512, limited like E, with None. If they are disjoint, M is 32 per hop of depth, limited by
       bytes, with the messages of `choose_grains`. If M <= E or `choose_grains` gives None: only
       (E, None).
    """
    if options.chunks:
        return [(options.chunks, None)]
    count, ranks = trees.parents.shape
    alpha_s, beta_s_per_byte = _find_link(request, trees)
    busy_s = trees.depth * request.collective_bytes * beta_s_per_byte / count
    best = isqrt(int(busy_s / alpha_s)) if alpha_s > 0 else _MAX_TREE_CHUNKS
    max_steps = _MAX_STEPS if ranks < MANY_RANKS else MAX_STEPS_OF_PARTS
    most = min(_MAX_TREE_CHUNKS, max_steps // (2 * count * ranks))
    most_chunks = request.collective_bytes // MIN_UNIT_BYTES // count
    equal = max(1, min(best, most, most_chunks))
    is_large = 2 * count * ranks * equal > _MAX_TRIED_STEPS
    if request.target is not None:
        return [(equal, None)]
    if trees.group_size > 1:
        limits = [min(best, most_chunks), min(_MAX_MANY_CHUNKS, most_chunks)]
        max_steps = _MAX_STEPS if ranks < MANY_RANKS else _MAX_STEPS_OF_TREES
        pairs = [
            choose_group_messages(trees.group_size, ranks, trees.depth, limit, max_steps // 2)
            for limit in (limits[-1:] if is_large else limits)
        ]
        return [
            (chunks, build_group_grains(trees.group_size, ranks, grain))
            for chunks, grain in dict.fromkeys(pairs)
        ]
    if ranks < _FEW_RANKS:
        return [(equal, None)]
    if not trees.is_disjoint:
        many = min(_MAX_MANY_CHUNKS, max_steps // (2 * count * ranks), most_chunks)
        if many <= equal:
            return [(equal, None)]
        return [(many, None)] if is_large else [(equal, None), (many, None)]
    many = min(_MAX_CHUNKS_PER_HOP * trees.depth, most_chunks)
    if many <= equal:
        return [(equal, None)]
    max_steps = _MAX_STEPS if ranks < MANY_RANKS else _MAX_STEPS_OF_TREES
    latency_chunks = _count_latency_chunks(request, trees, many)
    grains = choose_grains(trees.parents, many, latency_chunks, max_steps // 2)
    if grains is None:
        return [(equal, None)]
    return [(many, grains)] if is_large else [(equal, None), (many, grains)]


def estimate(request: SynthesisRequest, options: NestedOptions) -> int:
    """Estimate the time of the nested collective in ns, rounded up, at least 1.

    It is the cost in the statistics for one chunk. On trees it is the depth times the
    latency plus the time of the data of one tree. Latency and time per byte are those of a torus's
    slowest dimension, else the means of the routes from the first rank. For an all-to-all it is
    `estimate_torus_exchange_s`. Raises `UsageError` as `synthesize` does for the options, and
    `InputError` (`not-a-torus`) for an all-to-all on other networks.
    """
    return _estimate_ns(request, options, _find_trees(request, options))


def _estimate_ns(
    request: SynthesisRequest, options: NestedOptions, trees: RootedTrees | None
) -> int:
    """Return an estimated time of the complete collective in ns, rounded up, at least 1.

    m: size in bytes; n: ranks; alpha (s), beta (s per byte): those of `_find_link`. The first rule
    that applies:

    1. all-to-all: `estimate_torus_exchange_s` if all dimensions are rings, otherwise
       `estimate_line_exchange_s`
    2. `trees` given: depth x alpha + m beta / (number of trees)
    3. all-reduce with shapes of `choose_small_shapes`: the least of their times
    4. otherwise rounds x alpha + (n - 1) / n x m beta / ports, twice that for an all-reduce. Rounds
       and ports are those of `_compute_cost` for the shape of `choose_shape`.

    Chunks matter only for errors. Those of `_find_exchange_grid` (1) and `choose_shape` (4) pass.
    """
    ranks, kind = request.collective.num_ranks, request.collective.kind
    size = request.collective_bytes
    if kind is CollectiveKind.ALL_TO_ALL:
        sizes, is_ring = _find_exchange_grid(request, options)
        if all(is_ring):
            time_s = estimate_torus_exchange_s(request.topology, sizes, size)
        else:
            time_s = estimate_line_exchange_s(request.topology, size)
        return max(1, ceil(time_s * 1e9))
    alpha_s, beta_s_per_byte = _find_link(request, trees)
    if trees is not None:
        total_s = trees.depth * alpha_s + size / len(trees.parents) * beta_s_per_byte
        return max(1, ceil(total_s * 1e9))
    if kind is CollectiveKind.ALL_REDUCE:
        small = choose_small_shapes(request.topology, options.sizes, size)
        if small:
            return max(1, ceil(min(time_s for _, time_s in small) * 1e9))
    phases = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    rounds, ports = _compute_cost(choose_shape(request.topology, kind, options.sizes, size))
    sent_bytes = (ranks - 1) / ranks * size / ports
    return max(1, ceil(phases * (rounds * alpha_s + sent_bytes * beta_s_per_byte) * 1e9))


def _compute_cost(shape: NestedShape) -> tuple[int, int]:
    """Return (latencies of one phase, links that every rank uses at the same time) of a shape.

    A level that is a ring of k ranks has k // 2 latencies, any other level 1. If units are first
    moved to other ranks (`is_moved`), k // 2 for each level of k ranks are added. The links are the
    number of different orders in which parts use the levels, twice that if a level is a ring.
    """
    rounds = [
        size // 2 if is_ring else 1
        for size, is_ring in zip(shape.sizes, shape.is_ring, strict=True)
    ]
    # Units are moved along shortest paths, whose lengths are those of the rings.
    moves = sum(size // 2 for size in shape.sizes) if shape.is_moved else 0
    has_rings = any(shape.is_ring)
    orders = len({order for order, _ in shape.parts})
    return sum(rounds) + moves, orders * (2 if has_rings else 1)


def _find_link(request: SynthesisRequest, trees: RootedTrees | None) -> tuple[float, float]:
    """Return (latency in s, time per byte in s) of a link, for estimates of levels or trees.

    On a torus (`find_rings`), and for disjoint trees, these are the largest latency of a
    dimension and the reciprocal of the smallest bandwidth of a dimension. Otherwise they are
    the means of `compute_mean_link`. `trees`: None if the collective uses levels.
    """
    topology = request.topology
    if find_rings(topology) or (trees is not None and trees.is_disjoint):
        slowest = min(dimension.bandwidth_bytes_per_s for dimension in topology.dimensions)
        return max(dimension.latency_s for dimension in topology.dimensions), 1 / slowest
    return compute_mean_link(topology, request.npus)


def _find_trees(request: SynthesisRequest, options: NestedOptions) -> RootedTrees | None:
    """Return the trees of a broadcast or reduce from its root; None for other collectives.

    s is the size of groups with separate links to other groups (`find_forwarding_group`). It is 1
    if there are none, on a torus, below 512 ranks, and if `sizes` is not `auto`. First rule:

    1. Torus or mesh, and `sizes` is `auto` or names the dimensions above 1: disjoint grid trees.
    2. s is 1: two binary trees over all ranks, built for rank 0 and moved to the root by level.
    3. s is at most 32: group trees, two per member of a group.
    4. 4 * s * ranks is above 4 200 000: the binary trees of rule 2.
    5. Otherwise group trees or binary trees, by lower estimated time; group trees if equal.

    A root of None is rank 0. Raises `UsageError` (`option-range`) if `sizes` is not `auto` and
    its product is not the number of NPUs, before any rule.
    """
    if request.collective.kind not in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE):
        return None
    topology, root = request.topology, request.collective.root or 0
    levels = choose_levels(topology, options.sizes)
    sizes, is_ring = find_grid(topology)
    if sizes and (options.sizes == "auto" or levels == sizes):
        return RootedTrees(find_grid_trees(sizes, is_ring, root), is_disjoint=True)
    ranks = topology.num_npus
    parents = move_root(find_binary_trees(ranks, 0), levels, root)
    binary = RootedTrees(parents, turns=find_turns(parents))
    size = find_forwarding_group(topology, options.sizes, _FEW_RANKS)
    if size == 1 or (size > _MAX_GROUP and 4 * size * ranks > _MAX_STEPS):
        return binary
    turns = find_group_turns(size, ranks, root)
    grouped = RootedTrees(find_group_trees(size, ranks, root), group_size=size, turns=turns)
    if size <= _MAX_GROUP:
        return grouped
    return min(grouped, binary, key=lambda trees: _estimate_ns(request, options, trees))
