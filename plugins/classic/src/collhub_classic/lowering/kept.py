"""Steps that were made are kept for the next size: few plans depend on it beyond their chunks."""

from __future__ import annotations

from collections import OrderedDict

from collhub_columns import Int64Array

from collhub_classic.lowering.places import BlockPlaces
from collhub_classic.lowering.steps import steps_of
from collhub_classic.message_plan import MessagePlan
from hub_core.model import StepTable

# Orders of ranks and numbers of chunks of one algorithm; larger plans would take memory.
_MOST_KEPT, _MOST_BLOCKS = 8, 1 << 18
_Lowered = tuple[StepTable, Int64Array]
_kept: OrderedDict[tuple[object, ...], _Lowered] = OrderedDict()


def kept_steps(plan: MessagePlan, places: BlockPlaces, *, is_synchronous: bool) -> _Lowered:
    """`steps_of`, from memory where the same steps were made in this process before."""
    if len(plan.blocks) > _MOST_BLOCKS:
        return steps_of(plan, places, is_synchronous=is_synchronous)
    key = (*_content(plan), places, is_synchronous)
    found = _kept.get(key)
    if found is None:
        found = steps_of(plan, places, is_synchronous=is_synchronous)
        # Shared from now on, as steps are.
        found[1].flags.writeable = False
        _kept[key] = found
    _kept.move_to_end(key)
    while len(_kept) > _MOST_KEPT:
        _kept.popitem(last=False)
    return found


def _content(plan: MessagePlan) -> tuple[object, ...]:
    columns = (
        *(plan.round, plan.source, plan.destination, plan.channel),
        *(plan.reduces, plan.indptr, plan.blocks),
    )
    return plan.num_ranks, plan.num_blocks, *(column.tobytes() for column in columns)
