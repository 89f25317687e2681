"""Schedules by name, and the search for the fastest schedule.

The search keeps the memory limits. Candidates cover all placements up to the maximum number of
chunks per device: one chunk, loops and waves (a V shape is the wave of two chunks), and with
`recompute=auto` also recomputation in no stage, in all stages, and in those of devices whose memory
is too small otherwise. For each placement, all named schedules are candidates, so the result is
never worse than one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from collhub_pipeline.list_search import ListSearch
from collhub_pipeline.named_schedules import NAMED, build_named, in_turns, with_delays
from collhub_pipeline.orders_of_chunks import place_in_loops, place_in_waves
from collhub_pipeline.passes import Time
from collhub_pipeline.plugin import SEARCHED
from collhub_pipeline.shapes import Bounds, PipelineShape, format_limits, format_memory
from collhub_pipeline.timing import Schedule
from hub_core import UsageError
from hub_core.plugin_api import BudgetReached, SearchBudget

# Named schedules of a placement from which the search of its orders starts.
_SEEDS = 3


def schedule_of(name: str, shape: PipelineShape, budget: SearchBudget | None = None) -> Schedule:
    """Build the schedule with a name; `search` searches the fastest one within `budget`.

    `budget` None is a search without a limit; other names ignore it. Raises `UsageError` if the
    schedule does not fit the shape, and (`memory`) if it needs more memory than the shape has;
    `KeyError` for an unknown name. `search` has the errors of `fastest`, such as `BudgetReached` if
    no schedule was found within the budget.
    """
    if name == SEARCHED:
        return fastest(shape, budget)
    schedule = build_named(name, shape)
    if not shape.fits(schedule):
        peak = format_memory(max(shape.peaks(schedule)))
        message = f"{name} holds {peak} micro-batches, the memory is for {format_limits(shape)}"
        raise UsageError(message, cure="choose search, or a larger -O memory", code="memory")
    return schedule


@dataclass(slots=True)
class _Best:
    """Best schedule so far: the smallest objective, then the smallest peak, then the first one."""

    shape: PipelineShape
    budget: SearchBudget
    key: tuple[Time, Time] | None = None
    schedule: Schedule | None = None
    count: int = 0
    named: list[Schedule] = field(default_factory=list)

    def offer(self, schedule: Schedule) -> bool:
        """Compare a schedule with the best one so far; return whether the budget is used up.

        A schedule that fits the memory becomes the best one if its objective is lower, or equal
        with a lower peak of memory. Each offered schedule is counted, and its passes count in the
        budget.
        """
        self.count += 1
        if self.shape.fits(schedule):
            key = self.shape.measure(schedule), max(self.shape.peaks(schedule))
            if self.key is None or key < self.key:
                self.key, self.schedule = key, schedule
        self.budget.count(sum(len(order) for order in schedule.orders))
        return bool(self.budget.reason)


def fastest(shape: PipelineShape, budget: SearchBudget | None = None) -> Schedule:
    """Search the schedule with the minimum objective that fits the memory.

    The objective is the makespan of one step, or the time per step of many steps
    (`shape.is_steady`). Among equal ones the minimum peak of memory decides, then the first
    schedule.

    1. All named schedules such as 1F1B, and variants of 1F1B, are tried.
    2. The placements (with their sets of recomputed stages) that can fit the memory are searched
       one after the other, by ascending number of chunks; each search also improves the 3 best
       named schedules of its space. A placement is left out if its lower bound is not below the
       best objective so far. The search ends at the lower bound of all fitting placements.

    `budget` (None: no limit) counts the passes of all candidates. At its limit the search ends in
    either step, the cut is recorded in it, and the best schedule so far is returned.
    `BudgetReached` is raised if there is none yet. Raises `UsageError` (`memory`) if no placement,
    or no schedule that was searched, fits the memory.
    """
    budget = budget or SearchBudget()
    best = _Best(shape, budget)
    spaces = list(generate_spaces(shape))
    allowed = [space for space in spaces if space.fits(shape)]
    if not allowed:
        raise _refuse_memory(shape, spaces)
    bound = min(space.compute_bounds(shape).value for space in allowed)
    is_cut = False
    for schedule in _generate_named(shape):
        is_cut = best.offer(schedule)
        if is_cut:
            break
        if shape.fits(schedule) and schedule.name != SEARCHED:
            best.named.append(schedule)
    for space in allowed:
        if is_cut or (best.key is not None and best.key[0] <= bound):
            break
        if best.key is not None and space.compute_bounds(shape).value >= best.key[0]:
            # No order with this placement is faster.
            continue
        # Named schedules with this placement and recomputation are improved, too.
        seeds = [
            schedule
            for schedule in best.named
            if schedule.device_of == (space.device_of,) and schedule.recomputed == space.recomputed
        ]
        seeds = sorted(seeds, key=shape.measure)[:_SEEDS]
        search = ListSearch(shape, space.device_of, space.recomputed, budget)
        for schedule in search.search(seeds, Fraction(bound)):
            best.offer(schedule)
        is_cut = bool(budget.reason)
    if is_cut:
        budget.cut("search of schedules", f"those after the first {best.count}")
    if best.schedule is not None:
        return best.schedule
    if is_cut:
        raise BudgetReached
    raise _refuse_memory(shape, spaces)


@dataclass(frozen=True, slots=True)
class Space:
    """Placement of stages on devices, and the stages that recompute their forward passes."""

    device_of: tuple[int, ...]
    recomputed: frozenset[int]

    def fits(self, shape: PipelineShape) -> bool:
        """Return whether this placement's minimum memory is within the limits of all devices.

        The minimum is that of one microbatch (`PipelineShape.minimum_memories`), with the
        placement's recomputed stages. True without limits. Raises `UsageError` for a wrong number
        of limits.
        """
        minimum = shape.minimum_memories(self.device_of, self.recomputed)
        limits = shape.limits
        return limits is None or all(
            least <= limit for least, limit in zip(minimum, limits, strict=True)
        )

    def compute_bounds(self, shape: PipelineShape) -> Bounds:
        """Return the lower bounds of the objective."""
        return shape.compute_bounds(self.device_of, self.recomputed)


def generate_spaces(shape: PipelineShape) -> Iterator[Space]:
    """Yield the distinct placements to search, each with a set of recomputed stages.

    The numbers of chunks per device are the divisors of `shape.chunks` (default 2), ascending. Each
    number gives two placements of stages on devices: in loops (`place_in_loops`), then in waves
    (`place_in_waves`). Each placement is combined with the sets of recomputed stages of
    `_generate_recomputed`, in their order. A space that was yielded before is left out.
    """
    seen: set[Space] = set()
    for chunks in _list_chunks(shape):
        for place in (place_in_loops, place_in_waves):
            device_of = place(shape.devices, chunks)
            for recomputed in _generate_recomputed(shape, device_of):
                space = Space(device_of, recomputed)
                if space not in seen:
                    seen.add(space)
                    yield space


def _list_chunks(shape: PipelineShape) -> list[int]:
    """Return the numbers of chunks per device to search: the divisors of `shape.chunks`, ascending.

    The default of `shape.chunks` is 2.
    """
    most = 2 if shape.chunks is None else shape.chunks
    return [chunks for chunks in range(1, most + 1) if most % chunks == 0]


def compute_search_bound(shape: PipelineShape) -> Time:
    """Return a lower bound of the objective for all placements and orders of a search.

    It is the smallest bound of all placements that fit the memory, in the time unit of the
    shape. Raises `ValueError` if none fits, and `UsageError` for a wrong number of limits.
    """
    spaces = [space for space in generate_spaces(shape) if space.fits(shape)]
    return min(space.compute_bounds(shape).value for space in spaces)


def _generate_recomputed(
    shape: PipelineShape, device_of: tuple[int, ...]
) -> Iterator[frozenset[int]]:
    """Yield the sets of stages that recompute their activations, according to `shape.recompute`.

    `none` gives the empty set, `all` all stages. `auto` gives the empty set, then, if there is
    a memory limit, the stages of devices that cannot hold the warm-up of 1F1B, then all stages.
    Sets may repeat. A device d holds the warm-up if its stages' memory per microbatch, times
    (devices - d), is at most its limit.
    """
    everything = frozenset(range(len(device_of)))
    if shape.recompute != "all":
        yield frozenset()
    if shape.recompute == "auto" and shape.limits is not None:
        # Devices that cannot hold the warm-up of 1F1B with their present memory.
        sizes = shape.stage_sizes(len(device_of))
        short = frozenset(
            stage
            for stage, device in enumerate(device_of)
            if sum(
                size * (shape.devices - device)
                for size, place in zip(sizes, device_of, strict=True)
                if place == device
            )
            > shape.limits[device]
        )
        yield short
    if shape.recompute != "none":
        yield everything


def _generate_named(shape: PipelineShape) -> Iterator[Schedule]:
    """Yield the named schedules that the shape permits, then variants between 1F1B and eager 1F1B.

    Named schedules come by recomputation (of the shape; for `auto` it is `none`, then `all`), then
    by number of chunks per device (`_list_chunks`), then in the order of `NAMED`. One that does not
    support the numbers of chunks, microbatches or slices is left out. Warm-ups and delayed weight
    gradients of the shape are ignored. Memory limits are not checked.

    Variants have one chunk per device and recompute nothing. There are none with several token
    slices or the recomputation `all`. For each `extra` from 0 to min(microbatches, n), the warm-up
    of stage i of n is n - i + min(`extra`, n - i - 1), at most the number of microbatches. It has
    eight variants, in this order: full backward passes, then input gradients with at most f x i
    pending weight gradients in stage i, rounded down, for f = 0, 0.5, 1, ... 3 (`with_delays`).
    """
    plain = replace(shape, warmups=(), delayed=False)
    modes = ("none", "all") if shape.recompute == "auto" else (shape.recompute,)
    for mode in modes:
        for chunks in _list_chunks(shape):
            for name in NAMED:
                try:
                    yield build_named(name, replace(plain, chunks=chunks, recompute=mode))
                except UsageError:
                    # The schedule has other numbers of chunks, micro-batches or slices.
                    continue
    if shape.slices > 1 or shape.recompute == "all":
        return
    devices, micros = shape.devices, shape.micros
    for extra in range(min(micros, devices) + 1):
        warmups = [
            min(micros, devices - stage + min(extra, devices - stage - 1))
            for stage in range(devices)
        ]
        yield in_turns(SEARCHED, warmups, micros, delayed=False)
        for tenths in range(0, 31, 5):
            delays = [tenths * stage // 10 for stage in range(devices)]
            yield with_delays(SEARCHED, warmups, delays, micros)


def _refuse_memory(shape: PipelineShape, spaces: list[Space]) -> UsageError:
    """Create (not raise) the `UsageError` (`memory`) for a memory limit that no placement fits.

    For each of `spaces`, i.e. placements, the excess of a device is its minimum memory minus its
    limit, both in microbatches. The device with the largest excess is considered, of equal ones
    the lowest. The error names the device of the space whose excess is smallest, of equal ones
    the first space, with its limit and its minimum. Without limits all limits count as 0.

    The remedy is a limit of this minimum; if the shape does not recompute (`none`), it also
    mentions recomputation. `spaces` must not be empty.
    """
    limits = shape.limits or (0,) * shape.devices
    gaps = []
    for space in spaces:
        minimum = shape.minimum_memories(space.device_of, space.recomputed)
        gap, device = max(
            (least - limit, -device)
            for device, (least, limit) in enumerate(zip(minimum, limits, strict=True))
        )
        gaps.append((gap, -device, minimum[-device]))
    _, device, least = min(gaps, key=lambda entry: entry[0])
    message = (
        f"no schedule holds at most {format_memory(limits[device])} micro-batches on device "
        f"{device}: the possible minimum is {format_memory(least)}"
    )
    cure = f"allow at least -O memory={format_memory(least)}"
    if shape.recompute == "none":
        cure += ", or recompute activations: -O recompute=auto"
    return UsageError(message, cure=cure, code="memory")
