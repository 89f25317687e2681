"""Write an algorithm as text: a title, the collective, scratch sizes, then one line a step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collhub_example.options import WriteOptions
from hub_core import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    Loss,
    StepKind,
    StepTable,
    UsageError,
)
from hub_core.plugin_api import Artifact, WriteResult

TITLE = "example 1"
COLUMNS = "rank kind peer channel source target count data control"


def write(algorithm: Algorithm, options: WriteOptions) -> WriteResult:
    """Return one artifact. Raises `UsageError` for custom collectives, which the format lacks."""
    if algorithm.collective.kind is CollectiveKind.CUSTOM:
        message = "the format example has no custom collectives"
        raise UsageError(message, cure="write json or chakra")
    artifact = Artifact("", lambda: _text(algorithm, options.comments).encode("ascii"))
    return WriteResult((artifact,), tuple(_losses(algorithm)))


def _text(algorithm: Algorithm, has_comments: bool) -> str:
    lines = [TITLE, _collective(algorithm.collective)]
    lines.append(" ".join(map(str, algorithm.scratch_units.tolist())))
    if has_comments:
        lines.append(f"# {COLUMNS}")
    lines += [_step(algorithm.steps, row) for row in range(len(algorithm.steps))]
    return "\n".join(lines) + "\n"


def _collective(collective: Collective) -> str:
    claims = {"in": collective.in_place, "out": collective.out_of_place}
    modes = ",".join(name for name, is_claimed in claims.items() if is_claimed)
    root = "-" if collective.root is None else str(collective.root)
    sizes = f"{collective.num_ranks} {collective.unit_count}"
    return f"{collective.kind} {sizes} {root} {modes} {collective.reduce_op}"


def _step(steps: StepTable, row: int) -> str:
    kind = StepKind(steps.kind[row]).name.lower()
    source = f"{Buffer(steps.src_buffer[row]).name.lower()}:{steps.src_offset[row]}"
    target = f"{Buffer(steps.dst_buffer[row]).name.lower()}:{steps.dst_offset[row]}"
    data = steps.data_indices[steps.data_indptr[row] : steps.data_indptr[row + 1]]
    control = steps.control_indices[steps.control_indptr[row] : steps.control_indptr[row + 1]]
    waits = [",".join(map(str, rows.tolist())) or "-" for rows in (data, control)]
    head = f"{steps.rank[row]} {kind} {steps.peer[row]} {steps.channel[row]}"
    return f"{head} {source} {target} {steps.count[row]} {' '.join(waits)}"


def _losses(algorithm: Algorithm) -> Iterator[Loss]:
    for column in ("lane", "duration_ns", "source_line"):
        stated = int(np.count_nonzero(getattr(algorithm.steps, column) != -1))
        if stated:
            yield Loss(column, f"{stated} steps", "not written")
    if algorithm.collective_bytes is not None:
        yield Loss("collective_bytes", "header", "the stated size is not written")
    for name in algorithm.extensions:
        yield Loss("extensions", name, "not written")
