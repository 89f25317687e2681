"""Write an algorithm as text: a title, the collective, scratch sizes, then one line a step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hub_core import Algorithm, Buffer, CollectiveKind, Loss, StepKind, StepTable, UsageError
from hub_core.plugin_api import Artifact, Options, WriteResult

TITLE = "example 1"
COLUMNS = "rank kind peer channel source target count data control"


def write(algorithm: Algorithm, options: Options) -> WriteResult:
    """Return one artifact. Raises `UsageError` for custom collectives, which the format does not have."""
    if algorithm.collective.kind is CollectiveKind.CUSTOM:
        raise UsageError(
            "the format example has no custom collectives", cure="write json or chakra"
        )
    has_comments = bool(options["comments"])
    return WriteResult(
        (Artifact("", lambda: _text(algorithm, has_comments).encode("ascii")),),
        tuple(_losses(algorithm)),
    )


def _text(algorithm: Algorithm, has_comments: bool) -> str:
    collective = algorithm.collective
    modes = [
        name
        for name, claimed in (("in", collective.in_place), ("out", collective.out_of_place))
        if claimed
    ]
    root = "-" if collective.root is None else collective.root
    lines = [
        TITLE,
        f"{collective.kind} {collective.num_ranks} {collective.unit_count} {root} {','.join(modes)} {collective.reduce_op}",
        " ".join(map(str, algorithm.scratch_units.tolist())),
        *([f"# {COLUMNS}"] if has_comments else []),
        *(_step(algorithm.steps, row) for row in range(len(algorithm.steps))),
    ]
    return "\n".join(lines) + "\n"


def _step(steps: StepTable, row: int) -> str:
    kind = StepKind(steps.kind[row]).name.lower()
    source = f"{Buffer(steps.src_buffer[row]).name.lower()}:{steps.src_offset[row]}"
    target = f"{Buffer(steps.dst_buffer[row]).name.lower()}:{steps.dst_offset[row]}"
    data = steps.data_indices[steps.data_indptr[row] : steps.data_indptr[row + 1]]
    control = steps.control_indices[steps.control_indptr[row] : steps.control_indptr[row + 1]]
    waits = [",".join(map(str, rows.tolist())) or "-" for rows in (data, control)]
    words = [
        steps.rank[row],
        kind,
        steps.peer[row],
        steps.channel[row],
        source,
        target,
        steps.count[row],
        *waits,
    ]
    return " ".join(map(str, words))


def _losses(algorithm: Algorithm) -> Iterator[Loss]:
    for column in ("lane", "duration_ns", "source_line"):
        stated = int(np.count_nonzero(getattr(algorithm.steps, column) != -1))
        if stated:
            yield Loss(column, f"{stated} steps", "not written")
    if algorithm.collective_bytes is not None:
        yield Loss("collective_bytes", "header", "the stated size is not written")
    for name in algorithm.extensions:
        yield Loss("extensions", name, "not written")
