"""Steps that were made are kept for the next size: few plans depend on it beyond their chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from collhub_columns import Int64Array

from collhub_classic.lowering.places import BlockPlaces
from collhub_classic.lowering.steps import steps_of
from collhub_classic.message_plan import MessagePlan
from hub_core.model import StepTable

# Larger plans would take memory.
_MOST_BLOCKS = 1 << 18


@dataclass(frozen=True, slots=True)
class _Content:
    """A plan that is the same as another one of the same numbers."""

    plan: MessagePlan = field(compare=False)
    numbers: tuple[object, ...]

    @classmethod
    def of(cls, plan: MessagePlan) -> _Content:
        columns = (
            *(plan.round, plan.source, plan.destination, plan.channel),
            *(plan.reduces, plan.indptr, plan.blocks),
        )
        content = (column.tobytes() for column in columns)
        return cls(plan, (plan.num_ranks, plan.num_blocks, *content))


def kept_steps(
    plan: MessagePlan, places: BlockPlaces, *, is_synchronous: bool
) -> tuple[StepTable, Int64Array]:
    """`steps_of`, from memory where the same steps were made in this process before."""
    if len(plan.blocks) > _MOST_BLOCKS:
        return steps_of(plan, places, is_synchronous=is_synchronous)
    return _steps(_Content.of(plan), places, is_synchronous)


# Orders of ranks and numbers of chunks of one algorithm.
@lru_cache(maxsize=8)
def _steps(
    content: _Content, places: BlockPlaces, is_synchronous: bool
) -> tuple[StepTable, Int64Array]:
    steps, scratch_units = steps_of(content.plan, places, is_synchronous=is_synchronous)
    # Shared from now on, as steps are.
    scratch_units.flags.writeable = False
    return steps, scratch_units
