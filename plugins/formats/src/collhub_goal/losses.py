"""Properties that GOAL cannot express, determined by reading the written schedule back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from collhub_goal.options import GoalWriteOptions
from collhub_goal.read import build_algorithm
from collhub_goal.schedule import GoalSchedule
from collhub_goal.tags import MAX_RESOURCES, assign_tags, number_cpus, number_nics
from hub_core.columns import BoolArray
from hub_core.model import Algorithm, Loss, StepKind, StepTable

# Feature, consequence, and the fields of an algorithm of which at least one changes.
_FIELD_LOSSES: Sequence[tuple[str, str, frozenset[str]]] = (
    (
        "steps: buffers, offsets and kinds of local work",
        "GOAL contains only sizes and times; "
        "the file can be read back and simulated, but not verified or run",
        frozenset(
            {
                "kind",
                "src_buffer",
                "src_offset",
                "dst_buffer",
                "dst_offset",
                "count",
                "rank",
                "rank_indptr",
            }
        ),
    ),
    (
        "collective: kind, root, contract, unit count, in place, out of place, reduce op",
        "a schedule does not define its result; it is read back as custom, one unit per byte",
        frozenset({"root", "contract", "unit_count", "in_place", "out_of_place", "reduce_op"}),
    ),
    ("scratch units", "there are no buffers", frozenset({"scratch_units"})),
    (
        "collective bytes",
        "the size is not written; it is read back as the most bytes that a rank moves",
        frozenset({"collective_bytes"}),
    ),
    ("extensions", "GOAL cannot contain them", frozenset({"extensions"})),
)

_RENUMBERED = (
    f"LogGOPSim distinguishes {MAX_RESOURCES} {{0}}s, so those of each rank are renumbered, "
    f"and if a rank has more {{1}} than that, some share a {{0}}"
)


def find_losses(
    algorithm: Algorithm, schedule: GoalSchedule, options: GoalWriteOptions
) -> Iterator[Loss]:
    """Yield the losses of writing an algorithm as this schedule.

    The algorithm is compared with the one read back, so no loss can be overlooked.
    """
    read_back = build_algorithm(schedule, None, algorithm.provenance)
    changed = set(algorithm.differences(read_back))
    for feature, consequence, parts in _FIELD_LOSSES:
        if changed & parts:
            yield Loss(feature, "the entire schedule", consequence)
    yield from _find_step_losses(algorithm.steps, options)


def _find_step_losses(steps: StepTable, options: GoalWriteOptions) -> Iterator[Loss]:
    """Yield losses of properties of steps that their lines represent differently or not at all."""
    renumbered = np.count_nonzero(assign_tags(steps) != steps.channel)
    if renumbered:
        yield Loss(
            "channel",
            f"{renumbered} steps",
            "every message gets a unique tag, which is read back as its channel",
        )
    controls = len(steps.control_indices)
    if controls:
        yield Loss(
            "control dependencies",
            f"{controls} dependencies",
            "every dependency is written as requires, and read back as data",
        )
    yield from _find_resource_losses(steps, options)
    untimed = np.count_nonzero(_has_untimed_work(steps))
    if untimed:
        yield Loss(
            "duration",
            f"{untimed} steps",
            "the time of local work without a duration is computed from its bytes, "
            "or 1 ns if no bandwidth is given",
        )


def _find_resource_losses(steps: StepTable, options: GoalWriteOptions) -> Iterator[Loss]:
    """Yield losses of lanes and channels that cpus and nics do not represent exactly."""
    has_lane = steps.lane >= 0
    lanes = np.count_nonzero(has_lane)
    if lanes and options.cpu != "lane":
        yield Loss("lane", f"{lanes} steps", "not written because of the option cpu")
    elif renumbered := np.count_nonzero(has_lane & (number_cpus(steps, options) != steps.lane)):
        yield Loss("lane", f"{renumbered} steps", _RENUMBERED.format("cpu", "lanes"))
    is_message = steps.sends | steps.receives
    is_moved = is_message & (number_nics(steps, options) != steps.channel)
    if options.nic == "channel" and is_moved.any():
        where = f"{np.count_nonzero(is_moved)} messages"
        yield Loss("nic", where, _RENUMBERED.format("nic", "channels"))


def _has_untimed_work(steps: StepTable) -> BoolArray:
    """Whether a step does local work without a duration; bool by step."""
    # A reducing receive is both a message and local work.
    is_only_message = steps.sends | steps.is_kind(StepKind.RECV)
    has_no_time: BoolArray = steps.duration_ns < 0
    return ~is_only_message & has_no_time
