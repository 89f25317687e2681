"""Cache of steps for the next size: few plans depend on the size beyond their number of chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from collhub_classic.lowering.places import BlockPlaces
from collhub_classic.lowering.steps import build_steps
from collhub_classic.message_plan import MessagePlan
from hub_core.columns import Int64Array
from hub_core.model import StepTable

# Larger plans are not cached, to save memory.
_MAX_CACHED_BLOCKS = 1 << 18


@dataclass(frozen=True, slots=True)
class _PlanKey:
    """Cache key of a plan: equal for plans with equal numbers of ranks, blocks and messages'
    columns.
    """

    plan: MessagePlan = field(compare=False)
    content: tuple[object, ...]

    @classmethod
    def of(cls, plan: MessagePlan) -> _PlanKey:
        """Build the key from all columns of the plan."""
        columns = (
            *(plan.round, plan.source, plan.destination, plan.channel),
            *(plan.reduces, plan.indptr, plan.blocks),
        )
        content = (column.tobytes() for column in columns)
        return cls(plan, (plan.num_ranks, plan.num_blocks, *content))


def build_steps_cached(
    plan: MessagePlan, places: BlockPlaces, *, is_synchronous: bool
) -> tuple[StepTable, Int64Array]:
    """Return `build_steps`, from the cache if this process has built the same steps before.

    The arrays of cached results are read-only.
    """
    if len(plan.blocks) > _MAX_CACHED_BLOCKS:
        return build_steps(plan, places, is_synchronous=is_synchronous)
    return _build_cached_steps(_PlanKey.of(plan), places, is_synchronous)


# Enough for the rank orders and numbers of chunks of one algorithm.
@lru_cache(maxsize=8)
def _build_cached_steps(
    content: _PlanKey, places: BlockPlaces, is_synchronous: bool
) -> tuple[StepTable, Int64Array]:
    """Build the steps; the result is cached."""
    steps, scratch_units = build_steps(content.plan, places, is_synchronous=is_synchronous)
    # Read-only, because the cached array is shared.
    scratch_units.flags.writeable = False
    return steps, scratch_units
