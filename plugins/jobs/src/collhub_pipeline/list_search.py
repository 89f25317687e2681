"""Search of schedules with one placement of stages: list schedules, improved by local search.

A list schedule follows a table of keys, a limit of activations per stage (`ahead`) and a patience;
`list_kernel` builds one in some ten microseconds to milliseconds. The search tries a grid of them,
changes the limits of the best one step by step, then the starts of its passes, and finally moves
single passes of this order and of known schedules (`order_kernel`).
All random numbers have a fixed seed and the number of schedules is a fixed function of the shape,
so that the result is equal on every host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from math import lcm

import numpy as np

from collhub_pipeline.passes import Pass, PipelinePass
from collhub_pipeline.plugin import SEARCHED
from collhub_pipeline.shapes import PipelineShape, order_backward_units
from collhub_pipeline.timing import Schedule
from hub_core import UsageError
from hub_core.columns import Int64Array
from hub_core.plugin_api import SearchBudget

_KINDS = (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT)
_UNLIMITED = 1 << 50
# Passes that the list schedules of one search have together, and limits of their number per phase.
_WORK = 1_500_000
_FEWEST, _MOST = 60, 1000
# The same for moves of single passes, of which one is much cheaper.
_WORK_OF_MOVES, _MOST_MOVES, _PASSES_PER_WORK = 25_000_000, 30_000, 16
_CLASS = 1 << 44
_STAGE = 1 << 24


@dataclass(frozen=True, slots=True)
class Policy:
    """Order of urgency. Signs: 1 prefers earlier stages, -1 later ones, 0 older micro-batches.

    `is_forward_first`: forward passes precede input gradients; weight gradients are always last.
    `patience`: see `build_list_schedule`.
    """

    forward_sign: int
    backward_sign: int
    is_forward_first: bool
    patience: int


_POLICIES = tuple(
    Policy(*values) for values in product((1, -1, 0), (1, -1), (False, True), (0, 8, 16))
)


@dataclass(slots=True)
class ListSearch:
    """Integer columns of a shape with one placement, and the list schedules of these."""

    shape: PipelineShape
    device_of: tuple[int, ...]
    recomputed: frozenset[int] = frozenset()
    durations: Int64Array = field(init=False)
    transfer: int = field(init=False)
    kept: Int64Array = field(init=False)
    restored: Int64Array = field(init=False)
    limits: Int64Array = field(init=False)
    tick: Fraction = field(init=False)
    budget: SearchBudget = field(default_factory=SearchBudget)

    def __post_init__(self) -> None:
        shape, stages = self.shape, len(self.device_of)
        times = shape.stage_times(stages, self.recomputed)
        table = [
            [[times.at(kind, stage, at) for at in range(shape.slices)] for stage in range(stages)]
            for kind in _KINDS
        ]
        flat = [Fraction(time) for rows in table for row in rows for time in row]
        denominator = lcm(*(time.denominator for time in [*flat, Fraction(times.transfer)]))
        total = sum(flat) * denominator * shape.micros + times.transfer * denominator * shape.units
        if total >= 1 << 55:
            message = "the times of the passes have no common unit that the search can count in"
            raise UsageError(message, cure="round the times to whole ns", code="option-value")
        self.tick = Fraction(1, denominator)
        columns = [int(time * denominator) for time in flat]
        self.durations = np.array(columns, np.int64).reshape(3, stages, shape.slices)
        self.transfer = int(times.transfer * denominator)
        sizes = [size / shape.slices for size in shape.stage_sizes(stages)]
        limits = [Fraction(limit) for limit in shape.limits or ()]
        kept = [
            size * (shape.kept if stage in self.recomputed else 1)
            for stage, size in enumerate(sizes)
        ]
        unit = lcm(*(value.denominator for value in [*sizes, *kept]))
        self.kept = np.array([int(value * unit) for value in kept], np.int64)
        whole = np.array([int(value * unit) for value in sizes], np.int64)
        self.restored = whole - self.kept
        # Rounding down: sums of sizes are multiples of 1 / unit.
        rows = [int(limit * unit) for limit in limits] or [_UNLIMITED] * shape.devices
        self.limits = np.array(rows, np.int64)

    def run(
        self, keys: Int64Array, ahead: Int64Array, patience: int, guard: int
    ) -> tuple[Int64Array, Int64Array, Int64Array, int]:
        """Build one list schedule of the shape with the kernel `build_list_schedule`.

        The parameters are described there: `keys` [3, stages, units], the priority of each
        pass, the lowest first; `ahead` [stages], the maximum number of activations of a stage;
        `patience`, how long a device waits for a lower key, in sixteenths of a pass; `guard`,
        how memory limits are observed (0: not at all, 1: may block, 2: banker's algorithm). All
        other inputs are those of this object.

        Returns (passes, starts, devices, value), the columns in the order in which the passes
        are started. A pass is numbered kind * stages * units + stage * units + unit. Starts and
        value are in ticks. The value is the makespan, or for a steady shape the longest time
        from the first start to the last end of a device. If no further pass can start, it is
        -1, and the columns have only the passes so far.

        First adds one step per pass (`keys.size`) to the budget; its limits are not checked.
        """
        # Imported here: numba takes a second.
        from collhub_pipeline.list_kernel import build_list_schedule

        self.budget.count(keys.size)
        return build_list_schedule(
            np.array(self.device_of, np.int64),
            self.durations,
            self.transfer,
            self.shape.times.is_blocking,
            np.array(order_backward_units(self.shape.micros, self.shape.slices), np.int64),
            self.kept,
            self.restored,
            self.limits,
            ahead,
            keys,
            patience,
            guard,
            self.shape.is_steady,
        )

    def build_keys(self, policy: Policy) -> Int64Array:
        """Return the keys of a policy: int64[3, stages, units]; passes with low keys are preferred.

        The first axis is forward pass, input gradient, weight gradient. The policy defines
        whether all forward passes or all input gradients come first. Weight gradients are
        always last. Within a kind the order is:

        - Forward passes: by stage, ascending for `forward_sign` 1, descending for -1, then by
          unit. For 0 only by unit; stages have equal keys.
        - Input gradients: the same by `backward_sign`, with the units in backward order.
        - Weight gradients: by unit in backward order, then by ascending stage.

        In the backward order micro-batches ascend, and the slices of each descend. `patience`
        is ignored.
        """
        shape, stages = self.shape, len(self.device_of)
        stage = np.arange(stages, dtype=np.int64)[:, None]
        unit = np.arange(shape.units, dtype=np.int64)[None, :]
        # Position of each unit in the backward order.
        back = np.argsort(order_backward_units(shape.micros, shape.slices))[None, :]
        keys = np.empty((3, stages, shape.units), np.int64)
        older = 1 if policy.forward_sign else _STAGE * 4
        keys[0] = policy.forward_sign * stage * _STAGE + unit * older
        keys[1] = policy.backward_sign * stage * _STAGE + back
        keys[2] = 2 * _CLASS + back * _STAGE + stage
        keys[1 if policy.is_forward_first else 0] += _CLASS
        return keys

    def schedule_from(
        self, passes: Int64Array, places: Int64Array, name: str = SEARCHED
    ) -> Schedule:
        """Create a schedule from passes in order of their starts.

        `passes`: int64, numbers kind * stages * units + stage * units + unit. The kind is 0 for
        forward, 1 for input gradient and 2 for weight gradient. A unit is a token slice of a
        microbatch (`shape.units` of them). `places`: the device that executes each pass. Each
        device gets its passes in the given order; a device without passes has an empty order.

        The placement of stages, the number of slices and the recomputed stages are those of this
        search. All passes have direction 0. Of the arguments, only equal lengths are checked
        (`ValueError`).
        """
        stages, units = len(self.device_of), self.shape.units
        orders: list[list[PipelinePass]] = [[] for _ in range(self.shape.devices)]
        for pass_, place in zip(passes.tolist(), places.tolist(), strict=True):
            kind, rest = divmod(pass_, stages * units)
            orders[place].append(PipelinePass(_KINDS[kind], 0, *divmod(rest, units)))
        return Schedule(
            name,
            (self.device_of,),
            tuple(tuple(order) for order in orders),
            slices=self.shape.slices,
            recomputed=self.recomputed,
        )

    def search(self, seeds: Sequence[Schedule], target: Fraction) -> list[Schedule]:
        """Search schedules with the placement of this search; return all results, also bad ones.

        `seeds`: schedules with this placement that fit the memory. Results, in this order:

        1. the best list schedule, if one fits the memory
        2. its improvement by moves of single passes (`_improve`)
        3. the improvement of each schedule in `seeds`, in their order

        The search stops after the first improvement with a value of at most `target` (ns,
        rounded down to a tick), and after the improvement during which a limit of the budget
        was reached. So at least one schedule is improved. Empty without a list schedule and
        seeds.
        """
        goal = int(target / self.tick)
        found = self._search_lists(seeds, goal)
        results = [] if found is None else [found]
        for schedule in [*results, *seeds]:
            improved, value = self._improve(schedule, goal)
            results.append(improved)
            if value <= goal or self.budget.reason:
                break
        return results

    def _search_lists(self, seeds: Sequence[Schedule], goal: int) -> Schedule | None:
        """Return the best list schedule of a fixed series of trials; None if no trial fits.

        A list schedule starts, on a free device, the ready pass with the lowest key. The best one
        has the lowest time in ticks; of equal times, the last. The random seed is fixed. Trials,
        with N = 1.5 million / number of passes, but at least 60 and at most 1000:

        1. each policy (rule for keys), without limits of activations
        2. limits per stage from a fixed grid, each with every policy; at most N trials
        3. N random changes of the best limits; keys of the best trial or of a random policy. A
           random stage is changed by -1, 0 or 1, one to three times. Then the limits are clipped to
           one microbatch and all units, and lowered until they fit the memory (`_reduce`).
        4. only with `seeds`: the start times of the first one as keys, six trials
        5. the start times of the best schedule, changed at random, as keys; N trials

        Kinds 1 and 4 are always complete. The others stop when the best time is at most `goal`
        ticks or the budget is used up. Every trial adds its work to the budget.
        """
        count = max(_FEWEST, min(_MOST, _WORK // (3 * len(self.device_of) * self.shape.units)))
        state = _BestListSchedule(self)
        tables = [self.build_keys(policy) for policy in _POLICIES]
        unlimited = np.full(len(self.device_of), _UNLIMITED, np.int64)
        grid = list(self._generate_limits())
        # The policies alone with the banker's algorithm: one of them always fits.
        for policy, keys in zip(_POLICIES, tables, strict=True):
            state.offer(keys, unlimited, policy.patience, 2)
        for at, (ahead, (policy, keys)) in enumerate(
            product(grid, zip(_POLICIES, tables, strict=True))
        ):
            if state.value <= goal or at >= count or self.budget.reason:
                break
            state.offer(keys, ahead, policy.patience, 0 if self._is_within(ahead) else 1)
        random = np.random.default_rng(0)
        for _ in range(count):
            if state.value <= goal or self.budget.reason:
                break
            policy_at = int(random.integers(len(tables)))
            is_changed = random.random() < 0.2 or state.keys is None
            keys = tables[policy_at] if is_changed or state.keys is None else state.keys
            patience = _POLICIES[policy_at].patience if is_changed else state.patience
            changed = np.minimum(state.ahead, self.shape.units)
            for _ in range(int(random.integers(1, 4))):
                stage = int(random.integers(len(changed)))
                changed[stage] += int(random.integers(-1, 2))
            ahead = self._reduce(np.clip(changed, self.shape.slices, self.shape.units))
            state.offer(keys, ahead, patience, 0 if self._is_within(ahead) else 1 + state.turn % 2)
        for schedule in seeds[:1]:
            keys = self._build_start_keys(schedule)
            for patience, guard in product((0, 8, 16), (1, 2)):
                state.offer(keys, unlimited, patience, guard)
        self._change_starts(state, random, count, goal)
        return None if state.result is None else self.schedule_from(*state.result)

    def _change_starts(
        self, state: _BestListSchedule, random: np.random.Generator, count: int, goal: int
    ) -> None:
        """Build list schedules whose keys are the start times of the best one with random changes.

        There are at most `count` trials. They change each pass with a probability of 2 %,
        10 % and 50 % in turn. A change is at most 4 mean durations of a pass, earlier or
        later. A schedule that is not worse replaces the best one in `state`, and the next
        trials change its start times.

        The trials end early in three cases: `state` has a value of at most `goal` (in ticks), a
        limit of the budget is reached, or `state` has no schedule.
        """
        unlimited = np.full(len(self.device_of), _UNLIMITED, np.int64)
        step = max(1, int(self.durations.mean()))
        for at in range(count):
            if state.value <= goal or state.starts is None or self.budget.reason:
                break
            starts = state.starts
            is_moved = random.random(starts.shape) < (0.02, 0.1, 0.5)[at % 3]
            noise = random.integers(-4 * step, 4 * step + 1, size=starts.shape)
            keys = starts + np.where(is_moved, noise, 0)
            state.offer(keys, unlimited, (0, 8, 16)[at // 3 % 3], 1 + at % 2)

    def _build_start_keys(self, schedule: Schedule) -> Int64Array:
        """Return the starts of a schedule in ticks as a table of keys: int64[3, stages, units].

        The first index is the kind of pass: forward, input gradient, weight gradient (`_KINDS`).
        Both gradients of a full backward pass get its start. The schedule must have the placement
        and all passes of this search.
        """
        keys = np.empty((3, len(self.device_of), self.shape.units), np.int64)
        starts = self.shape.timed(schedule).starts
        for order, line in zip(schedule.orders, starts, strict=True):
            for (kind, _, stage, unit), start in zip(order, line, strict=True):
                time = int(start / self.tick)
                if kind is Pass.BACKWARD:
                    keys[1:, stage, unit] = time
                else:
                    keys[_KINDS.index(kind), stage, unit] = time
        return keys

    def _improve(self, schedule: Schedule, goal: int) -> tuple[Schedule, int]:
        """Improve a schedule by random moves of single passes; return the best one and its value.

        The value in ticks is the makespan, or for a steady shape the longest span of a device. If
        the given schedule exceeds the memory of a device or deadlocks, the value is -1. The result
        has separate passes for input and weight gradients, also where `schedule` has full backward
        passes. So it may differ without an improvement. Its name is `SEARCHED`. `schedule` is not
        changed.

        Let P be 3 x stages x units. The number of moves is 25 million / P, rounded down, but at
        least 60 and at most 30 000. Moves x P / 16, rounded down, is added to the budget before
        the search. The search ends early if the value is at most `goal` (ticks). Limits of the
        budget do not end it. The random numbers are always the same.
        """
        # Imported here: numba takes a second.
        from collhub_pipeline.order_kernel import improve_orders

        stages, units = len(self.device_of), self.shape.units
        passes = 3 * stages * units
        moves = max(_FEWEST, min(_MOST_MOVES, _WORK_OF_MOVES // passes))
        self.budget.count(moves * passes // _PASSES_PER_WORK)
        parts = {Pass.BACKWARD: (1, 2), **{kind: (at,) for at, kind in enumerate(_KINDS)}}
        rows = [
            [
                (part * stages + stage) * units + unit
                for kind, _, stage, unit in order
                for part in parts[kind]
            ]
            for order in schedule.orders
        ]
        table = np.full((len(rows), max(map(len, rows))), -1, np.int64)
        for row, line in zip(rows, table, strict=True):
            line[: len(row)] = row
        orders, value = improve_orders(
            table,
            np.array(self.device_of, np.int64),
            self.durations,
            self.transfer,
            self.shape.times.is_blocking,
            units,
            self.kept,
            self.restored,
            self.limits,
            self.shape.is_steady,
            max(1, int(self.durations.mean()) // 2),
            moves,
            goal,
        )
        places = np.repeat(np.arange(len(rows)), orders.shape[1])
        flat = orders.ravel()
        return self.schedule_from(flat[flat >= 0], places[flat >= 0]), value

    def _generate_limits(self) -> Iterator[Int64Array]:
        """Yield eleven tables of limits: how many activations each stage may store, int64[stages].

        Activations are counted by units (token slices of microbatches). A limit is a multiple, from
        0.2 to 3, of the minimum lifetime of an activation divided by the work of the busiest device
        per microbatch. It is rounded up, and increased by the number of slices - 1. The lifetime is
        the time of the forward passes and input gradients from this stage to the last one, and of
        its weight gradient. A limit is at least one microbatch and at most all; `_reduce` then
        lowers it to fit the memory. Tables may be equal.
        """
        total = self.durations.sum(axis=2)
        lifetime = np.cumsum((total[0] + total[1])[::-1])[::-1] + total[2]
        work = max(
            int(total[:, np.array(self.device_of) == device].sum())
            for device in range(self.shape.devices)
        )
        for tenths in (2, 4, 6, 8, 10, 12, 14, 17, 20, 25, 30):
            ahead = -(-lifetime * tenths // (10 * work)) + self.shape.slices - 1
            yield self._reduce(np.clip(ahead, self.shape.slices, self.shape.units))

    def _reduce(self, ahead: Int64Array) -> Int64Array:
        """Return limits of activations that are lowered until each device fits its memory.

        `ahead`: limit by stage, in units (token slices of microbatches); it is not changed. As
        long as a device exceeds its memory, the highest limit of its stages is lowered by 1,
        the first one of equal ones. No limit becomes smaller than one microbatch, so a device
        may remain above its memory. The result is int64.
        """
        ahead = ahead.astype(np.int64)
        sizes = self.kept + self.restored
        places = np.array(self.device_of)
        for device, limit in enumerate(self.limits.tolist()):
            stages = np.flatnonzero(places == device)
            while (ahead[stages] * sizes[stages]).sum() > limit:
                largest = stages[np.argmax(ahead[stages])]
                if ahead[largest] <= self.shape.slices:
                    break
                ahead[largest] -= 1
        return ahead

    def _is_within(self, ahead: Int64Array) -> bool:
        """Return whether the limits per stage guarantee the memory limits of all devices.

        `ahead`: maximum number of stored activations by stage. For each device, the sum over
        its stages of `ahead` times the size of an activation, kept and restored parts together,
        must not exceed its limit.
        """
        sums = np.zeros(self.shape.devices, np.int64)
        np.add.at(sums, np.array(self.device_of), ahead * (self.kept + self.restored))
        return bool((sums <= self.limits).all())


@dataclass(slots=True)
class _BestListSchedule:
    """Best list schedule so far, with the settings that led to it."""

    search: ListSearch
    value: int = 1 << 60
    keys: Int64Array | None = None
    ahead: Int64Array = field(init=False)
    patience: int = 0
    starts: Int64Array | None = None
    result: tuple[Int64Array, Int64Array] | None = None
    turn: int = 0

    def __post_init__(self) -> None:
        self.ahead = np.full(len(self.search.device_of), self.search.shape.units, np.int64)

    def offer(self, keys: Int64Array, ahead: Int64Array, patience: int, guard: int) -> None:
        """Build a list schedule with these keys, and keep it unless it is worse than the best one.

        Lower values are better, and an equal value replaces the best one. A schedule that does not
        fit (value -1) is dropped. A kept one replaces value, result, keys, `ahead`, `patience` and
        start times. Every call counts one turn and adds steps to the budget, also if it keeps none.

        `ahead`: limits of activations by stage; `patience`, `guard`: see `build_list_schedule`.
        """
        self.turn += 1
        passes, starts, places, value = self.search.run(keys, ahead, patience, guard)
        if not 0 <= value <= self.value:
            return
        self.value, self.result = value, (passes, places)
        self.keys, self.ahead, self.patience = keys, ahead, patience
        table = np.empty(keys.size, np.int64)
        table[passes] = starts
        self.starts = table.reshape(keys.shape)


def build_by_readiness(name: str, shape: PipelineShape, device_of: tuple[int, ...]) -> Schedule:
    """Build a schedule in which each device starts the pass that can start first.

    If several passes can start at this time, the first of these rules decides:

    1. A backward pass precedes a forward pass.
    2. A later stage precedes an earlier one.
    3. A lower micro-batch precedes a higher one.

    Stage s of S stages (from 0) stores at most S - s activations, as in 1F1B. Backward passes
    are not divided. `device_of`: device of each stage. `shape` has the durations; it must
    have no token slices. Its memory limit, recomputation and steady objective are ignored.
    """
    plain = replace(shape, memory=None, recompute="none", is_steady=False)
    search = ListSearch(plain, device_of)
    # The gradient leaves after the whole backward pass; weight gradients follow at once.
    search.durations[1] += search.durations[2]
    search.durations[2] = 0
    keys = search.build_keys(Policy(-1, -1, is_forward_first=False, patience=0))
    keys[2] -= 4 * _CLASS
    ahead = np.arange(len(device_of), 0, -1, dtype=np.int64)
    passes, _, places, _ = search.run(keys, ahead, 0, 0)
    schedule = search.schedule_from(passes, places, name)
    orders = []
    for order in schedule.orders:
        joined: list[PipelinePass] = []
        for operation in order:
            # A weight gradient directly after its input gradient is one backward pass with it.
            gradient = operation._replace(kind=Pass.INPUT_GRADIENT)
            if operation.kind is Pass.WEIGHT_GRADIENT and joined[-1:] == [gradient]:
                joined[-1] = operation._replace(kind=Pass.BACKWARD)
            else:
                joined.append(operation)
        orders.append(tuple(joined))
    return replace(schedule, orders=tuple(orders))
