"""What GOAL has no words for, found by comparing an algorithm with what would be read back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from collhub_columns import BoolArray

from collhub_goal.options import GoalWriteOptions
from collhub_goal.read import algorithm_of
from collhub_goal.resources import MOST_RESOURCES, cpus_of, nics_of
from collhub_goal.schedule import GoalSchedule
from collhub_goal.tags import tags_of
from hub_core.model import Algorithm, Loss, StepKind, StepTable

# Feature, consequence, and the parts of an algorithm of which one is read back different.
_OF_MODEL: Sequence[tuple[str, str, frozenset[str]]] = (
    (
        "steps: buffers, offsets and kinds of local work",
        "GOAL carries sizes and times only; "
        "what is read back can be simulated, not verified or run",
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
        "a schedule does not say what it computes; it is read back as custom, one unit a byte",
        frozenset({"root", "contract", "unit_count", "in_place", "out_of_place", "reduce_op"}),
    ),
    ("scratch units", "there are no buffers", frozenset({"scratch_units"})),
    (
        "collective bytes",
        "the size is not written; it is read back as the most bytes that a rank moves",
        frozenset({"collective_bytes"}),
    ),
    ("extensions", "there is no place for them", frozenset({"extensions"})),
)

_RENUMBERED = (
    f"LogGOPSim tells {MOST_RESOURCES} {{0}}s apart, so those of each rank are numbered anew, "
    f"and where a rank has more {{1}} than that, some share a {{0}}"
)


def losses_of(
    algorithm: Algorithm, schedule: GoalSchedule, options: GoalWriteOptions
) -> Iterator[Loss]:
    """Losses of writing an algorithm as this schedule.

    What is read back is compared, so that no loss depends on somebody having thought of it.
    """
    read_back = algorithm_of(schedule, None, algorithm.provenance)
    changed = set(algorithm.differences(read_back))
    for feature, consequence, parts in _OF_MODEL:
        if changed & parts:
            yield Loss(feature, "the whole schedule", consequence)
    yield from _losses_of_steps(algorithm.steps, options)


def _losses_of_steps(steps: StepTable, options: GoalWriteOptions) -> Iterator[Loss]:
    """What a step states and its line does not, or not in the same way."""
    renumbered = np.count_nonzero(tags_of(steps) != steps.channel)
    if renumbered:
        yield Loss(
            "channel",
            f"{renumbered} steps",
            "a message gets a tag of its own, which is read back as its channel",
        )
    controls = len(steps.control_indices)
    if controls:
        yield Loss(
            "control dependencies",
            f"{controls} dependencies",
            "every dependency is written as requires, and read back as data",
        )
    yield from _losses_of_resources(steps, options)
    untimed = np.count_nonzero(_has_untimed_work(steps))
    if untimed:
        yield Loss(
            "duration",
            f"{untimed} steps",
            "local work without a stated time takes that of its bytes, "
            "or 1 ns where no bandwidth is given",
        )


def _losses_of_resources(steps: StepTable, options: GoalWriteOptions) -> Iterator[Loss]:
    """Lanes and channels that are not told apart by the cpus and nics of the schedule."""
    has_lane = steps.lane >= 0
    lanes = np.count_nonzero(has_lane)
    if lanes and options.cpu != "lane":
        yield Loss("lane", f"{lanes} steps", "not written, as the option cpu asks")
    elif renumbered := np.count_nonzero(has_lane & (cpus_of(steps, options) != steps.lane)):
        yield Loss("lane", f"{renumbered} steps", _RENUMBERED.format("cpu", "lanes"))
    is_message = steps.sends | steps.receives
    is_moved = is_message & (nics_of(steps, options) != steps.channel)
    if options.nic == "channel" and is_moved.any():
        where = f"{np.count_nonzero(is_moved)} messages"
        yield Loss("nic", where, _RENUMBERED.format("nic", "channels"))


def _has_untimed_work(steps: StepTable) -> BoolArray:
    """Whether a step works on its own rank, and nothing states how long: bool, by step."""
    # A reducing receive is both a message and local work.
    is_only_message = steps.sends | steps.is_kind(StepKind.RECV)
    has_no_time: BoolArray = steps.duration_ns < 0
    return ~is_only_message & has_no_time
