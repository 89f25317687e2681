"""The synthesizers of ASTRA-sim's native algorithms, and the plan of its double binary tree.

The root of the tree is the lowest or the highest position and has one child. Below it, a complete
tree contains the remaining positions, numbered from 1 in in-order: odd numbers are leaves, and the
lowest bit of a number is twice the distance to its children. Every message is the entire vector;
sums move up, the result moves down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from collhub_astra_sim.native_messages import (
    INPUT,
    OUTPUT,
    SCRATCH,
    BufferRegion,
    NativePlan,
    NativeTask,
    RankSteps,
    direct,
    halving_doubling,
    ring,
)
from collhub_astra_sim.options import AnalyticalOptions, NativeAlgorithmOptions
from collhub_astra_sim.simulating.analytical import simulate
from hub_core import installed_version
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Algorithm, CollectiveKind, InputError, Provenance, StepTable, UsageError
from hub_core.plugin_api import SimulationRequest, SynthesisRequest, SynthesisResult
from hub_core.schedules import collective_among

_NAME = "collhub-astra-sim"
# A reduction reads two operands and writes one.
_ACCESSES = 3
# Every message is a send, a receive and a delay. More steps need many GB.
_STEPS_OF_MESSAGE, _MAX_STEPS = 3, 20_000_000


def astra_ring(request: SynthesisRequest, options: NativeAlgorithmOptions) -> SynthesisResult:
    """Synthesize ASTRA-sim's algorithm `ring`, in which every rank sends only to the next one."""
    return _synthesize("astra-ring", ring, request, options)


def astra_direct(request: SynthesisRequest, options: NativeAlgorithmOptions) -> SynthesisResult:
    """Synthesize ASTRA-sim's algorithm `direct`: every rank exchanges parts with all others."""
    return _synthesize("astra-direct", direct, request, options)


def astra_halving_doubling(
    request: SynthesisRequest, options: NativeAlgorithmOptions
) -> SynthesisResult:
    """Synthesize ASTRA-sim's `halvingDoubling`: exchanges at distances that are powers of two."""
    return _synthesize("astra-halving-doubling", halving_doubling, request, options)


def astra_double_binary_tree(
    request: SynthesisRequest, options: NativeAlgorithmOptions
) -> SynthesisResult:
    """Synthesize one of the two trees of ASTRA-sim's `doubleBinaryTree`."""
    return _synthesize("astra-double-binary-tree", double_binary_tree, request, options)


def _synthesize(
    name: str,
    plan_of: Callable[[NativeTask], NativePlan],
    request: SynthesisRequest,
    options: NativeAlgorithmOptions,
) -> SynthesisResult:
    """Build one of ASTRA-sim's native algorithms for a request, and determine its time.

    `plan_of` builds the plan; `name` becomes `algorithm` in the statistics. Rank r is on NPU
    `request.npus[r]`; other NPUs have no steps and no SCRATCH. The collective has the plan's
    `unit_count` and may run out of place, and in place if the plan may; these values of the
    request are not used. If `request.npus` is not 0, 1, ... for all NPUs, it is a custom
    collective (`collective_among`), which may lose in place.

    The time is 0 ns if the request needs none, else that of the request's simulator. If that
    returns None, it is the time of ASTRA-sim's model (at least 1). COMPUTE times of reductions
    are in the plan only with the option `memory_bandwidth`.

    First error: `UsageError` for one rank (`one-rank`); `InputError` above `_MAX_STEPS` steps
    (`too-large`) and if `plan_of` refuses the task; `UsageError` for less than one byte per unit
    (`size-too-small`); `InputError` if `collective_among` refuses the collective (`too-large`).
    """
    collective, size = request.collective, request.collective_bytes
    if collective.num_ranks == 1:
        cure = "let at least two ranks take part"
        raise UsageError("one rank has nothing to send", cure=cure, code="one-rank")
    # Counted before the plan is built.
    steps = _count_steps(plan_of, collective.kind, collective.num_ranks)
    if steps > _MAX_STEPS:
        raise InputError(
            f"{steps} steps are too many (limit {_MAX_STEPS})",
            cure="choose fewer ranks, or an algorithm of fewer messages",
            code="too-large",
        )
    total = request.topology.num_npus
    # The size affects only the time of reductions.
    reduced_bytes = 0 if options.memory_bandwidth is None else size
    plan = _build_placed_plan(plan_of, collective.kind, options, reduced_bytes, request.npus, total)
    if size < plan.unit_count:
        message = f"{size} bytes cannot be divided into {plan.unit_count} parts"
        raise UsageError(message, cure="choose a larger size", code="size-too-small")
    definition = replace(
        collective, unit_count=plan.unit_count, in_place=plan.in_place, out_of_place=True
    )
    scratch = np.zeros(total, np.int64)
    scratch[list(request.npus)] = plan.scratch_units
    option_values = {key: str(value) for key, value in asdict(options).items()}
    algorithm = Algorithm(
        collective_among(definition, request.npus, total),
        plan.steps,
        scratch,
        Provenance(_NAME, installed_version(_NAME) or "", request.topology.name, "", option_values),
        size,
    )
    time_ns = request.simulate(algorithm) if request.needs_time else 0
    if time_ns is None:
        simulation = SimulationRequest(algorithm, request.topology, size)
        model_options = AnalyticalOptions(occupancy=str(request.occupancy))
        model_ns = simulate(simulation, model_options).time_ns
        assert model_ns is not None, "messages of ASTRA-sim's algorithms match, so that they end"
        time_ns = max(model_ns, 1)
    return SynthesisResult(algorithm, time_ns, statistics={"algorithm": name})


def _count_steps(
    plan_of: Callable[[NativeTask], NativePlan], kind: CollectiveKind, ranks: int
) -> int:
    """Count the steps of an algorithm on `ranks` ranks in total; 0 if it has few steps.

    With n ranks, the count is as follows. It decides whether the algorithm is too large.

    - `ring` and `direct`: 3 n times the messages of a rank. These are n - 1; in an
      all-reduce 2 (n - 1); and in an all-to-all on a ring n (n - 1) / 2, as data are
      passed on.
    - `halving_doubling`, except for an all-reduce: n * n, its copies. Its other steps are
      few and are not counted.
    - `halving_doubling` for an all-reduce, and all other algorithms: 0.
    """
    if plan_of is halving_doubling and kind is not CollectiveKind.ALL_REDUCE:
        return ranks * ranks
    if plan_of not in (ring, direct):
        return 0
    messages = ranks - 1
    if kind is CollectiveKind.ALL_REDUCE:
        messages *= 2
    elif kind is CollectiveKind.ALL_TO_ALL and plan_of is ring:
        messages = ranks * messages // 2
    return _STEPS_OF_MESSAGE * ranks * messages


class _PlacedPlan(NamedTuple):
    """A `NativePlan` with ranks placed on NPUs, and its steps as a table."""

    steps: StepTable
    unit_count: int
    scratch_units: int
    in_place: bool


# A comparison requests the same plan for every size.
@lru_cache(maxsize=4)
def _build_placed_plan(
    plan_of: Callable[[NativeTask], NativePlan],
    kind: CollectiveKind,
    options: NativeAlgorithmOptions,
    size: int,
    npus: tuple[int, ...],
    total: int,
) -> _PlacedPlan:
    """Return the plan of a collective with rank r on NPU `npus[r]` of `total` NPUs.

    `plan_of` gets `kind`, the number of ranks, `size` (bytes of the full buffer), and from
    `options`: delay, width, `small_group`, and whether `root` is "lowest". It also gets a function
    that returns the duration of a reduction in ns: `_ACCESSES` * the bytes / the bandwidth
    of the memory, where the quotient is rounded down to ns first. Without a bandwidth it is 0.

    The errors of `plan_of` are raised. The last four results are cached by all arguments and
    shared, so callers must not modify them.
    """

    def reduce_ns(size: int) -> int:
        bandwidth = options.memory_bandwidth
        return 0 if bandwidth is None else _ACCESSES * int(size / bandwidth * 1e9)

    plan = plan_of(
        NativeTask(
            kind,
            len(npus),
            size,
            options.delay_ns,
            reduce_ns,
            options.width,
            options.small_group,
            options.root == "lowest",
        )
    )
    table = plan.steps.table(npus, total)
    return _PlacedPlan(table, plan.unit_count, plan.scratch_units, plan.in_place)


class _Tree(NamedTuple):
    """By rank: whether it is a leaf or the root, its parent, and its children.

    The root has only the first child.
    """

    is_leaf: BoolArray
    is_root: BoolArray
    parent: Int64Array
    children: tuple[Int64Array, Int64Array]


def double_binary_tree(task: NativeTask) -> NativePlan:
    """Build the plan of an all-reduce on one of ASTRA-sim's two trees, with entire vectors.

    The root is rank 0 with `task.is_lowest`, otherwise the last rank. It has one child.
    Every other rank is a leaf or has two children. INPUT and OUTPUT have one unit, SCRATCH
    two.

    1. A leaf sends its INPUT after `task.delay_ns`.
    2. Other ranks copy INPUT to OUTPUT and receive child i in unit i of SCRATCH. Each
       receive is followed by a long wait: `task.delay_ns` plus the time to reduce
       `task.size` bytes. After all waits, child 0 and then child 1 are added to OUTPUT.
    3. Inner ranks send the sum to their parent. The root sends its sum to its child.
    4. Going down, each rank receives the result in OUTPUT. A leaf then waits for
       `task.delay_ns`. An inner rank forwards the result to child 0 and child 1 after a
       long wait.

    `task.kind` is not checked. Raises `InputError` (`no-implementation`) unless the number
    of ranks is a power of two.
    """
    ranks = task.num_ranks
    if ranks & (ranks - 1):
        message = f"ASTRA-sim crashes on doubleBinaryTree of {ranks} ranks"
        raise InputError(message, cure="use ring or direct", code="no-implementation")
    steps, tree = RankSteps(ranks), _build_tree(ranks, is_lowest=task.is_lowest)
    is_inner = ~tree.is_leaf & ~tree.is_root
    reduced_ns = task.delay_ns + task.reduce_ns(task.size)
    sums = [steps.copy(BufferRegion(INPUT, 0), BufferRegion(OUTPUT, 0), [], ~tree.is_leaf)]
    waited = []
    for slot, child in enumerate(tree.children):
        on = ~tree.is_leaf if slot == 0 else is_inner
        arrived = steps.receive(child, BufferRegion(SCRATCH, slot), [], on)
        waited.append(steps.wait(reduced_ns, [arrived], on))
    for slot in range(2):
        on = ~tree.is_leaf if slot == 0 else is_inner
        parts = [*sums, *waited] if slot == 0 else sums
        sums = [
            steps.reduce(BufferRegion(SCRATCH, slot), BufferRegion(OUTPUT, 0), parts, on),
            *sums[:1],
        ]
    start = steps.wait(task.delay_ns, [], tree.is_leaf)
    steps.send(tree.parent, BufferRegion(INPUT, 0), [start], tree.is_leaf)
    steps.send(tree.parent, BufferRegion(OUTPUT, 0), sums, is_inner)
    below = [start, *sums]
    arrived = steps.receive(tree.parent, BufferRegion(OUTPUT, 0), below, ~tree.is_root)
    steps.wait(task.delay_ns, [arrived], tree.is_leaf)
    ready = steps.wait(reduced_ns, [arrived], is_inner)
    steps.send(tree.children[0], BufferRegion(OUTPUT, 0), sums, tree.is_root)
    for child in tree.children:
        steps.send(child, BufferRegion(OUTPUT, 0), [ready], is_inner)
    return NativePlan(steps, 1, 2)


def _build_tree(ranks: int, *, is_lowest: bool) -> _Tree:
    """Return parent, children and kind (leaf, root) of every rank in the tree of an all-reduce.

    `ranks`: a power of two, not checked. The number of a node is its rank, or without `is_lowest`
    its rank plus 1. Let b be the lowest bit of a number that is set:

    - Root: the number 0, without `is_lowest` the number `ranks`. It has one child, number ranks /
      2. Its parent and its second child have no meaning.
    - Leaves: odd numbers, except the root. Their children have no meaning.
    - Other nodes: the children number - b / 2 and number + b / 2, in this order.

    The result has ranks, not numbers, by rank. With 8 ranks and `is_lowest`, rank 0 has child 4,
    rank 4 has children 2 and 6, and rank 2 has children 1 and 3.
    """
    me = np.arange(ranks)
    number = me if is_lowest else me + 1
    is_root = number % ranks == 0
    bit = number & -number
    half = np.where(is_root, 0, bit >> 1)
    children = np.where(is_root, ranks >> 1, number - half), number + half

    def find_ranks(numbers: Int64Array) -> Int64Array:
        """Return the ranks of numbers in the tree."""
        return numbers % ranks if is_lowest else (numbers - 1) % ranks

    parent = find_ranks((number & ~bit) | (2 * bit))
    first, second = (find_ranks(child) for child in children)
    return _Tree((number % 2 == 1) & ~is_root, is_root, parent, (first, second))
