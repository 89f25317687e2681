"""Write algorithms as Chakra execution traces, collective profile v1, and node tables as plain traces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from hub_core.chakra.encode_nodes import Plan, encode_plain, encode_profile
from hub_core.chakra.formats import WriteOptions
from hub_core.chakra.metadata import encode_metadata
from hub_core.chakra.nodes import NodeTable, lower
from hub_core.chakra.profile import LARGEST, VERSION, default_bytes, metadata_entries
from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import UsageError
from hub_core.model.kinds import Buffer, StepKind
from hub_core.model.losses import Loss
from hub_core.model.rank_lists import parse_ranks
from hub_core.model.steps import StepTable
from hub_core.plugin_api.artifacts import Artifact, WriteResult

Mask = npt.NDArray[np.bool_]

_LARGEST_TRIPLE = (1 << 31) - 1
_GROUP_NODES = 4096


def write(algorithm: Algorithm, options: WriteOptions) -> WriteResult:
    """Write one trace a rank, encoded when its artifact's content is asked for.

    Options: see `formats.CHAKRA_WRITER`. Raises `UsageError` for the symbolic dialect of an algorithm whose sizes
    are bytes or whose unit_count exceeds int32, and for ranks that the algorithm has not.
    """
    dialect = options.dialect
    stated = algorithm.collective_bytes if options.size is None else options.size
    if dialect == "symbolic" and not _has_triple(algorithm):
        raise UsageError(
            "the symbolic dialect states sizes in chunks, but this algorithm's sizes are bytes or exceed 2^31 - 1 chunks",
            cure="choose the dialect absolute or both",
        )
    bound = stated if stated is not None else default_bytes(algorithm)
    _check_bytes(algorithm, bound)
    plan = Plan(
        algorithm,
        lower(algorithm, bound),
        dialect,
        is_flat=options.flatten,
        has_triple=_has_triple(algorithm),
        bound_bytes=bound,
        is_stated=stated is not None,
    )
    files = _Files(plan)
    ranks = _chosen_ranks(options.ranks, algorithm.num_ranks)
    artifacts = (Artifact(f".{rank}.et", partial(files.content, rank)) for rank in ranks)
    return WriteResult(artifacts, _losses(plan))


def _chosen_ranks(text: str | None, num_ranks: int) -> Sequence[int]:
    if text is None:
        return range(num_ranks)
    ranks = sorted(parse_ranks(text))
    if ranks[-1] >= num_ranks:
        raise UsageError(
            f"rank {ranks[-1]} is not in 0..{num_ranks - 1}",
            cure="name ranks of the algorithm",
            code="rank-range",
        )
    return ranks


def write_nodes(nodes: NodeTable, *, version: str = VERSION) -> list[bytes]:
    """Write a table of nodes as plain traces, one a rank, with its own ids, order and tags and no profile.

    Durations are rounded to microseconds, the only unit that a plain trace has.
    """
    start = encode_metadata(version, ())
    return [start + records for records in encode_plain(nodes, range(nodes.num_ranks))]


def _check_bytes(algorithm: Algorithm, size: int) -> None:
    largest = int(algorithm.steps.count.max(initial=0))
    if largest * size // algorithm.collective.unit_count > LARGEST:
        raise UsageError(
            f"a step of {largest} units comes to more than 2^62 bytes", cure="choose a smaller size"
        )


def _has_triple(algorithm: Algorithm) -> bool:
    """Whether chunk counts mean something: not where one unit is one byte of a timing-only trace."""
    steps = algorithm.steps
    is_bytes = (
        not algorithm.has_contents and algorithm.collective_bytes == algorithm.collective.unit_count
    )
    numbers = (
        steps.src_offset[steps.sends],
        steps.dst_offset[steps.receives],
        steps.count[steps.sends | steps.receives],
    )
    largest = max(
        algorithm.collective.unit_count, *(int(column.max(initial=0)) for column in numbers)
    )
    return not is_bytes and largest <= _LARGEST_TRIPLE


def _losses(plan: Plan) -> list[Loss]:
    steps = plan.algorithm.steps
    losses = []
    if plan.is_flat and len(steps.control_indices):
        consequence = "they cannot be told from data dependencies any more"
        losses.append(
            Loss("control dependencies", f"{len(steps.control_indices)} dependencies", consequence)
        )
    uneven = int(np.count_nonzero((steps.duration_ns >= 0) & (steps.duration_ns % 1000 != 0)))
    if uneven:
        consequence = "duration_micros is rounded; only readers of the attribute duration_ns see the exact time"
        losses.append(Loss("durations below a microsecond", f"{uneven} steps", consequence))
    stray = int(np.count_nonzero(_has_stray_values(steps)))
    if stray:
        consequence = "a buffer side or a peer that the step does not use is not written"
        losses.append(Loss("values on unused sides", f"{stray} steps", consequence))
    return losses


def _has_stray_values(steps: StepTable) -> Mask:
    """Rows that state what their kind does not use; the model asks for (UNKNOWN, 0) and peer -1 there."""
    has_source = (steps.src_buffer != Buffer.UNKNOWN) | (steps.src_offset != 0)
    has_target = (steps.dst_buffer != Buffer.UNKNOWN) | (steps.dst_offset != 0)
    is_local = ~(steps.sends | steps.receives)
    stray: Mask = (
        (is_local & (steps.peer != -1))
        | (steps.sends & has_target)
        | (steps.is_kind(StepKind.RECV) & has_source)
    )
    return stray


class _Files:
    """The files of a plan, some ranks at a time: small ranks are encoded together, and only one group is kept."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        groups = plan.nodes.rank_indptr[:-1] // _GROUP_NODES
        self._first = np.flatnonzero(np.diff(groups, prepend=-1))
        self._ranks = range(0)
        self._records: list[bytes] = []

    def content(self, rank: int) -> bytes:
        """The file of one rank."""
        if rank not in self._ranks:
            group = int(np.searchsorted(self._first, rank, side="right"))
            bounds = [*self._first.tolist(), self._plan.algorithm.num_ranks]
            self._ranks = range(bounds[group - 1], bounds[group])
            self._records = encode_profile(self._plan, self._ranks)
        return self._metadata(rank) + self._records[rank - self._ranks.start]

    def _metadata(self, rank: int) -> bytes:
        plan, steps = self._plan, self._plan.algorithm.steps
        count = int(steps.rank_indptr[rank + 1] - steps.rank_indptr[rank])
        size = plan.bound_bytes if plan.dialect != "symbolic" or plan.is_stated else None
        return encode_metadata(
            VERSION, metadata_entries(plan.algorithm, rank, count, size, plan.is_stated)
        )
