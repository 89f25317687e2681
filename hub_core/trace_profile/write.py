"""Write algorithms as traces of collective profile v1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from hub_core.chakra import LARGEST, encode_metadata
from hub_core.model import Algorithm, Buffer, Loss, StepKind, UsageError, parse_ranks
from hub_core.plugin_api import Artifact, WriteResult
from hub_core.trace_profile.encode_nodes import EncodingPlan, encode_nodes
from hub_core.trace_profile.formats import ChakraWriteOptions, TraceOptions
from hub_core.trace_profile.lowering import chakra_nodes
from hub_core.trace_profile.metadata import VERSION, chakra_bytes, metadata_entries

_MAX_TRIPLE = (1 << 31) - 1
# Ranks are encoded together up to this number of nodes: smaller groups would mainly cost calls.
_GROUP_NODES = 4096
_FLATTENED = "readers cannot distinguish them from data dependencies"
_ROUNDED = "duration_micros is rounded: only the attribute duration_ns contains exact times"
_LEFT_OUT = "a buffer side or a peer that the step does not use is not written"


def write(algorithm: Algorithm, options: ChakraWriteOptions) -> WriteResult:
    """Write one trace `.RANK.et` per requested rank, in ascending order.

    A trace is encoded only when the content of its artifact is read; the artifacts can be
    iterated once. The result lists the losses, and has a note if some duration is not an
    integer number of microseconds. Raise `UsageError`, in this order:

    - for the symbolic dialect, which has sizes only in chunks, if these are meaningless or
      exceed 2^31 - 1
    - if a step has more than 2^62 bytes
    - for an invalid list of ranks, and ranks that the algorithm does not have

    Raise `InputError` as `chakra_nodes` for the nodes of a foreign trace that do not fit the steps
    (`invalid-extension`), and for too many bytes (`size-range`), before the list is examined.
    """
    plan = _create_plan(algorithm, options)
    files = _Files(plan)
    ranks: Sequence[int] = range(algorithm.num_ranks)
    if options.ranks is not None:
        ranks = sorted(parse_ranks(options.ranks))
        if ranks[-1] >= algorithm.num_ranks:
            message = f"rank {ranks[-1]} is not in 0..{algorithm.num_ranks - 1}"
            raise UsageError(message, cure="name ranks of the algorithm", code="rank-range")
    artifacts = (Artifact(f".{rank}.et", partial(files.content, rank)) for rank in ranks)
    durations = algorithm.steps.duration_ns
    is_rounded = np.any((durations >= 0) & (durations % 1000 != 0))
    return WriteResult(artifacts, _collect_losses(plan), notes=(_ROUNDED,) if is_rounded else ())


def chakra_traces(algorithm: Algorithm, options: TraceOptions) -> WriteResult:
    """Return one trace per rank, named `.<rank>.et`, encoded when its content is read.

    Raises `UsageError` if the options do not fit the algorithm or a step has more than 2^62 bytes,
    and `InputError` as `chakra_nodes` (`invalid-extension`, `size-range`).
    """
    return write(algorithm, ChakraWriteOptions(options.size, options.dialect, options.flatten))


def _create_plan(algorithm: Algorithm, options: ChakraWriteOptions) -> EncodingPlan:
    """Return the plan of the files for these options: the nodes, with sizes in bytes.

    The size of the collective is the first of these that is given:

    1. the size in the options
    2. the size in the algorithm
    3. a default: 1 MiB per unit, or 1 byte per unit for more than 2^20 units. Only then the
       plan has `is_stated` False.

    Raises `UsageError` in the first of these cases:

    - The dialect is `symbolic`, which has sizes in chunks (units), and the units of the collective,
      the count of a message, or the source offset of a send or destination offset of a receive
      exceeds 2^31 - 1. The same error is raised if the algorithm gives only times and has one unit
      per byte, because it then has no chunks.
    - A step has more than 2^62 bytes: its units * size / units of the collective, rounded
      down.

    Then raises `InputError` as `chakra_nodes`.
    """
    steps, units = algorithm.steps, algorithm.collective.unit_count
    given_bytes = algorithm.collective_bytes if options.size is None else options.size
    # The reader of plain traces uses one unit per byte.
    has_chunks = algorithm.has_contents or algorithm.collective_bytes != units
    sends, receives = steps.sends, steps.receives
    numbers = (steps.src_offset[sends], steps.dst_offset[receives], steps.count[sends | receives])
    most_chunks = max(units, *(int(column.max(initial=0)) for column in numbers))
    has_triple = has_chunks and most_chunks <= _MAX_TRIPLE
    if options.dialect == "symbolic" and not has_triple:
        wrong = "but this algorithm's sizes are bytes or exceed 2^31 - 1 chunks"
        message = f"the symbolic dialect states sizes in chunks, {wrong}"
        raise UsageError(message, cure="choose the dialect absolute or both")
    bound = given_bytes if given_bytes is not None else chakra_bytes(algorithm)
    largest = int(steps.count.max(initial=0))
    # Python integers, because the product may exceed 64 bits.
    if largest * bound // units > LARGEST:
        message = f"a step of {largest} units has more than 2^62 bytes"
        raise UsageError(message, cure="choose a smaller size")
    return EncodingPlan(
        algorithm,
        chakra_nodes(algorithm, bound),
        options.dialect,
        is_flat=options.flatten,
        has_triple=has_triple,
        bound_bytes=bound,
        is_stated=given_bytes is not None,
    )


def _collect_losses(plan: EncodingPlan) -> list[Loss]:
    """Return the losses of the written files, with the number of cases of each.

    There are at most two losses, in this order; a loss with no case is left out. The first counts
    the control dependencies of a flat plan, which are written as data dependencies. The second
    counts the steps with values that their kind does not use, which are not written: a local step
    with a peer, a step that sends with a destination, and a RECV with a source.
    """
    steps = plan.algorithm.steps
    control = len(steps.control_indices) if plan.is_flat else 0
    # An unused operand must be (UNKNOWN, 0).
    has_source = (steps.src_buffer != Buffer.UNKNOWN) | (steps.src_offset != 0)
    has_target = (steps.dst_buffer != Buffer.UNKNOWN) | (steps.dst_offset != 0)
    is_local = ~(steps.sends | steps.receives)
    is_stray = is_local & (steps.peer != -1)
    is_stray |= steps.sends & has_target
    is_stray |= steps.is_kind(StepKind.RECV) & has_source
    counted = (
        ("control dependencies", control, "dependencies", _FLATTENED),
        ("values on unused sides", np.count_nonzero(is_stray), "steps", _LEFT_OUT),
    )
    return [
        Loss(feature, f"{count} {unit}", text) for feature, count, unit, text in counted if count
    ]


class _Files:
    """Files of a plan. Small ranks are encoded together; only the last group is kept."""

    def __init__(self, plan: EncodingPlan) -> None:
        self._plan = plan
        # Ascending, so that a group is a range of ranks.
        self._group_of_rank = plan.nodes.rank_indptr[:-1] // _GROUP_NODES
        # The group that was encoded last.
        self._ranks = range(0)
        self._records: list[bytes] = []

    def content(self, rank: int) -> bytes:
        """Return the content of the file of one rank: metadata, then its nodes.

        The metadata contain the size of the collective in bytes. Exception: in the symbolic
        dialect, a default size (not given by the user or the algorithm) is left out.

        Consecutive ranks are encoded together as a group. Only the group of the last call is
        cached, so ranks should be requested in ascending order.
        """
        if rank not in self._ranks:
            group = int(self._group_of_rank[rank])
            first, after = np.searchsorted(self._group_of_rank, [group, group + 1]).tolist()
            self._ranks = range(first, after)
            self._records = encode_nodes(self._plan, self._ranks)
        plan = self._plan
        # With a default size, the file would contain bytes although only chunks are known.
        has_size = plan.dialect != "symbolic" or plan.is_stated
        size = plan.bound_bytes if has_size else None
        entries = metadata_entries(plan.algorithm, rank, size, plan.is_stated)
        return encode_metadata(VERSION, entries) + self._records[rank - self._ranks.start]
