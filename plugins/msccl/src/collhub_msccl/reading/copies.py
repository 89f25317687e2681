"""`<copy>` elements of TACCL's writer: local copies that are done before all else of a rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import Int64Array

from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.element_tables import ScannedXml
from collhub_msccl.thread_block_program import ThreadBlockProgram
from hub_core.model import COLUMN_DEFAULTS, COLUMN_DTYPES, Buffer, Collective, StepKind, StepTable


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """Unit `source` of INPUT goes to unit `destination` of OUTPUT; int64 columns, with lines."""

    rank: Int64Array
    source: Int64Array
    destination: Int64Array
    line: Int64Array


def copies_of(document: ScannedXml, program: ThreadBlockProgram, findings: FileFindings) -> Copies:
    """The copies of a file. Raises `InputError` for offsets outside the declared buffers."""
    ids = [document.texts[code] for code in document.gpus.column("id")]
    rows = []
    for gpu, stated, line in document.copies:
        of_rank = int(ids[gpu] or 0)
        sizes = int(program.input_chunks[of_rank]), int(program.output_chunks[of_rank])
        offsets = [_offset(stated.get(name, "")) for name in ("i_off", "o_off")]
        if not all(0 <= at < size for at, size in zip(offsets, sizes, strict=True)):
            message = f"<copy> from {stated.get('i_off')} to {stated.get('o_off')} lies outside"
            findings.error("copy-range", f"{message} the buffers of {sizes} chunks", line)
        rows.append((of_rank, *offsets, line))
    findings.raise_errors()
    return Copies(*np.asarray(rows, np.int64).reshape(-1, 4).T)


def _offset(text: str) -> int:
    """A number of a few digits, -1 for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else -1


def with_copies(
    steps: StepTable, copies: Copies, collective: Collective, program: ThreadBlockProgram
) -> StepTable:
    """The steps, and before the first ones of every rank its copies, each in a lane of its own.

    A call in place needs none where both ends are one place.
    """
    if collective.in_place and not collective.out_of_place:
        layout = collective.memory_layout(True, program.scratch_chunks)
        read = layout.base[copies.rank, Buffer.INPUT] + copies.source
        written = layout.base[copies.rank, Buffer.OUTPUT] + copies.destination
        moves = np.flatnonzero(read != written)
        copies = Copies(
            copies.rank[moves], copies.source[moves], copies.destination[moves], copies.line[moves]
        )
    number = len(copies.rank)
    added = {
        "rank": copies.rank,
        "kind": np.full(number, StepKind.COPY),
        "src_buffer": np.full(number, Buffer.INPUT),
        "src_offset": copies.source,
        "dst_buffer": np.full(number, Buffer.OUTPUT),
        "dst_offset": copies.destination,
        "count": np.ones(number, np.int64),
        "lane": int(steps.lane.max(initial=-1)) + 1 + np.arange(number),
        "source_line": copies.line,
    }
    columns = {}
    for name in COLUMN_DTYPES:
        column = added.get(name, np.full(number, COLUMN_DEFAULTS.get(name, 0)))
        columns[name] = np.concatenate([getattr(steps, name), column])
    # Copies are done before all else, so that what reads OUTPUT finds them done.
    control = _before_all_else(steps, copies)
    stated = steps.control_edges
    edges = tuple(np.concatenate(pair) for pair in zip(stated, control, strict=True))
    return StepTable.from_columns(steps.num_ranks, columns, steps.data_edges, (edges[0], edges[1]))


def _before_all_else(steps: StepTable, copies: Copies) -> tuple[Int64Array, Int64Array]:
    """Each copy before all steps of its rank that wait for no other one."""
    waits = np.zeros(len(steps), np.bool_)
    for _, child in (steps.data_edges, steps.control_edges):
        waits[child] = True
    # What waits for another step waits for the copies through it.
    first = np.flatnonzero(~waits)
    is_of = steps.rank[first][None, :] == copies.rank[:, None]
    copy, place = np.nonzero(is_of)
    return len(steps) + copy, first[place]
