"""Write algorithms as traces of collective profile v1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from hub_core.chakra import LARGEST, encode_metadata
from hub_core.columns import BoolArray
from hub_core.model import Algorithm, Buffer, Loss, StepKind, StepTable, UsageError, parse_ranks
from hub_core.plugin_api import Artifact, WriteResult
from hub_core.trace_profile.algorithms.encode_nodes import Plan, encode_nodes
from hub_core.trace_profile.algorithms.lowering import lower
from hub_core.trace_profile.algorithms.profile import VERSION, default_bytes, metadata_entries
from hub_core.trace_profile.formats import ChakraWriteOptions

_LARGEST_TRIPLE = (1 << 31) - 1
# Ranks are encoded together until they have this many nodes: fewer would cost more calls than work.
_GROUP_NODES = 4096
_FLATTENED = "they cannot be told from data dependencies any more"
_ROUNDED = "duration_micros is rounded: readers of the attribute duration_ns alone see exact times"
_LEFT_OUT = "a buffer side or a peer that the step does not use is not written"


def write(algorithm: Algorithm, options: ChakraWriteOptions) -> WriteResult:
    """Write one trace a rank, encoded when its artifact's content is asked for.

    Raises `UsageError` for the symbolic dialect of an algorithm whose sizes are bytes or whose
    unit_count exceeds int32, and for ranks that the algorithm has not.
    """
    plan = _plan(algorithm, options)
    files = _Files(plan)
    ranks = _chosen_ranks(options.ranks, algorithm.num_ranks)
    artifacts = (Artifact(f".{rank}.et", partial(files.content, rank)) for rank in ranks)
    durations = algorithm.steps.duration_ns
    is_rounded = np.any((durations >= 0) & (durations % 1000 != 0))
    return WriteResult(artifacts, _losses(plan), notes=(_ROUNDED,) if is_rounded else ())


def _plan(algorithm: Algorithm, options: ChakraWriteOptions) -> Plan:
    """What the options ask for; refuses what cannot be written."""
    stated = algorithm.collective_bytes if options.size is None else options.size
    has_triple = _has_triple(algorithm)
    if options.dialect == "symbolic" and not has_triple:
        wrong = "but this algorithm's sizes are bytes or exceed 2^31 - 1 chunks"
        message = f"the symbolic dialect states sizes in chunks, {wrong}"
        raise UsageError(message, cure="choose the dialect absolute or both")
    bound = stated if stated is not None else default_bytes(algorithm)
    largest = int(algorithm.steps.count.max(initial=0))
    # In Python's integers: the product may not fit 64 bits.
    if largest * bound // algorithm.collective.unit_count > LARGEST:
        message = f"a step of {largest} units comes to more than 2^62 bytes"
        raise UsageError(message, cure="choose a smaller size")
    return Plan(
        algorithm,
        lower(algorithm, bound),
        options.dialect,
        is_flat=options.flatten,
        has_triple=has_triple,
        bound_bytes=bound,
        is_stated=stated is not None,
    )


def _chosen_ranks(text: str | None, num_ranks: int) -> Sequence[int]:
    """The ranks of a text such as 0,17,4000-4010; all where there is none."""
    if text is None:
        return range(num_ranks)
    ranks = sorted(parse_ranks(text))
    # Names no rank twice, and at least one.
    if ranks[-1] >= num_ranks:
        message = f"rank {ranks[-1]} is not in 0..{num_ranks - 1}"
        raise UsageError(message, cure="name ranks of the algorithm", code="rank-range")
    return ranks


def _has_triple(algorithm: Algorithm) -> bool:
    """Whether chunk counts mean something: not in a timing-only trace, where a unit is a byte."""
    steps = algorithm.steps
    units = algorithm.collective.unit_count
    # The reader of plain traces makes one unit of every byte.
    if algorithm.collective_bytes == units and not algorithm.has_contents:
        return False
    sends, receives = steps.sends, steps.receives
    numbers = (steps.src_offset[sends], steps.dst_offset[receives], steps.count[sends | receives])
    return max(units, *(int(column.max(initial=0)) for column in numbers)) <= _LARGEST_TRIPLE


def _losses(plan: Plan) -> list[Loss]:
    """What readers of the files cannot see, counted."""
    steps = plan.algorithm.steps
    control = len(steps.control_indices) if plan.is_flat else 0
    stray = np.count_nonzero(_has_stray_values(steps))
    counted = (
        ("control dependencies", control, "dependencies", _FLATTENED),
        ("values on unused sides", stray, "steps", _LEFT_OUT),
    )
    return [Loss(what, f"{count} {unit}", lost) for what, count, unit, lost in counted if count]


def _has_stray_values(steps: StepTable) -> BoolArray:
    """Rows that state what their kind does not use; the model asks for (UNKNOWN, 0) and peer -1."""
    has_source = (steps.src_buffer != Buffer.UNKNOWN) | (steps.src_offset != 0)
    has_target = (steps.dst_buffer != Buffer.UNKNOWN) | (steps.dst_offset != 0)
    is_local = ~(steps.sends | steps.receives)
    stray: BoolArray = is_local & (steps.peer != -1)
    stray |= steps.sends & has_target
    stray |= steps.is_kind(StepKind.RECV) & has_source
    return stray


class _Files:
    """The files of a plan: small ranks are encoded together, and only one group is kept."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # Ascending, so that a group is a range of ranks.
        self._group_of_rank = plan.nodes.rank_indptr[:-1] // _GROUP_NODES
        # The group that was encoded last.
        self._ranks = range(0)
        self._records: list[bytes] = []

    def content(self, rank: int) -> bytes:
        """The file of one rank."""
        if rank not in self._ranks:
            group = int(self._group_of_rank[rank])
            first, after = np.searchsorted(self._group_of_rank, [group, group + 1]).tolist()
            self._ranks = range(first, after)
            self._records = encode_nodes(self._plan, self._ranks)
        plan = self._plan
        # A default size would claim bytes where the file states chunks only.
        has_size = plan.dialect != "symbolic" or plan.is_stated
        size = plan.bound_bytes if has_size else None
        entries = metadata_entries(plan.algorithm, rank, size, plan.is_stated)
        return encode_metadata(VERSION, entries) + self._records[rank - self._ranks.start]
