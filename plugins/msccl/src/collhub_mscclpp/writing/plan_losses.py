"""What a plan cannot say of an algorithm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collhub_mscclpp.writing.draft import Draft
from collhub_mscclpp.writing.plan_text import UNSTATED_IN_PLACE, chunk_counts
from collhub_mscclpp.writing.work import NAMES
from hub_core.columns import Int64Array
from hub_core.model import CollectiveKind, CustomContract, Loss


def losses_of(draft: Draft) -> Iterator[Loss]:
    """The losses of a draft, in a fixed order."""
    algorithm = draft.work.algorithm
    collective = algorithm.collective
    serves_both = collective.in_place and collective.out_of_place
    if serves_both:
        where = "calls in place"
        reason = "a plan states one mode; it runs rightly in both"
        if not draft.serves_in_place():
            reason = "right out of place only: ports miss parts of buffers, packets unequal scratch"
        yield Loss("in_place", where, reason)
    if collective.kind not in NAMES:
        yield from _of_contract(draft)
    elif draft.work.unit * draft.options.tbg > 1:
        # The reader counts chunks, or the parts that thread block groups make of them.
        units = f"{draft.work.unit} units are a chunk"
        yield Loss("unit_count", units, "units of what is read back are chunks, or parts of them")
    if algorithm.collective_bytes is not None and draft.options.max_size is None:
        where = f"{algorithm.collective_bytes} bytes"
        yield Loss("collective_bytes", where, "a plan serves sizes; see -O min_size, max_size")


def _of_contract(draft: Draft) -> Iterator[Loss]:
    """What a collective that plans have no name for must do, unless it is read back anyway."""
    collective = draft.work.algorithm.collective
    where = f"{collective.kind} is written as custom"
    if collective.kind is not CollectiveKind.CUSTOM:
        yield Loss("kind", where, "only who names the plan uses it")
    if not collective.out_of_place and collective.kind in UNSTATED_IN_PLACE:
        yield Loss("in_place", where, "which part of a buffer is the other one is not in the plan")
    # A plan has no member for it.
    if collective.root is not None:
        yield Loss("root", f"rank {collective.root}", "the steps tell it alone")
    given, made = (chunk_counts(draft)[:, :2] * draft.options.tbg).T
    if not _is_stated_by_sizes(collective.contract, given, made):
        said = "what it must do is not in the plan; chunk counts are at least 1"
        yield Loss("contract", where, said)
    if collective.unit_count != max(int(given.max()), int(made.max())):
        yield Loss("unit_count", where, "the largest buffer of a rank is read back")


def _is_stated_by_sizes(
    contract: CustomContract | None, given: Int64Array, made: Int64Array
) -> bool:
    """Whether buffers of these sizes, all with data and for any result, are the whole contract."""
    if contract is None or contract.expected is not None or not bool(np.all(contract.defined)):
        return False
    is_given = np.array_equal(contract.input_units, given)
    return is_given and np.array_equal(contract.output_units, made)
