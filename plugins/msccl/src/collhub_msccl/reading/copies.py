"""`<copy>` elements of TACCL's writer: local copies that precede all steps of a rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.element_tables import ScannedXml
from collhub_msccl.thread_block_program import ThreadBlockProgram
from hub_core.columns import Int64Array
from hub_core.model import COLUMN_DEFAULTS, COLUMN_DTYPES, Buffer, Collective, StepKind, StepTable


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """Copies of one unit of INPUT (`source`) to a unit of OUTPUT (`destination`); int64 columns.

    `line`: line in the file.
    """

    rank: Int64Array
    source: Int64Array
    destination: Int64Array
    line: Int64Array


def read_copies(
    document: ScannedXml, program: ThreadBlockProgram, findings: FileFindings
) -> Copies:
    """Read the copies of a file. Raises `InputError` for offsets outside the declared buffers."""
    ids = [document.texts[code] for code in document.gpus.column("id")]
    rows = []
    for gpu, attributes, line in document.copies:
        rank = int(ids[gpu] or 0)
        sizes = int(program.input_chunks[rank]), int(program.output_chunks[rank])
        offsets = [_parse_offset(attributes.get(name, "")) for name in ("i_off", "o_off")]
        if not all(0 <= at < size for at, size in zip(offsets, sizes, strict=True)):
            units = f"from {attributes.get('i_off')} to {attributes.get('o_off')}"
            message = f"<copy> {units} is outside the buffers of {sizes} chunks"
            findings.add_error("copy-range", message, line)
        rows.append((rank, *offsets, line))
    findings.raise_errors()
    return Copies(*np.asarray(rows, np.int64).reshape(-1, 4).T)


def _parse_offset(text: str) -> int:
    """Parse a number of at most 9 digits; -1 for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else -1


def insert_copies(
    steps: StepTable, copies: Copies, collective: Collective, program: ThreadBlockProgram
) -> StepTable:
    """Steps with every rank's copies before its first steps, each copy in a separate lane.

    In place, copies within the shared buffer from a unit to itself are dropped. `copies` is not
    changed.
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
    # Copies precede all steps, so that readers of OUTPUT see their data.
    control = _find_first_step_edges(steps, copies)
    existing = steps.control_edges
    edges = tuple(np.concatenate(pair) for pair in zip(existing, control, strict=True))
    return StepTable.from_columns(steps.num_ranks, columns, steps.data_edges, (edges[0], edges[1]))


def _find_first_step_edges(steps: StepTable, copies: Copies) -> tuple[Int64Array, Int64Array]:
    """Edges (copy row, step) from each copy to all steps of its rank that have no predecessor."""
    waits = np.zeros(len(steps), np.bool_)
    for _, child in (steps.data_edges, steps.control_edges):
        waits[child] = True
    # The remaining steps wait for the copies through their predecessors.
    first = np.flatnonzero(~waits)
    is_of = steps.rank[first][None, :] == copies.rank[:, None]
    copy, index = np.nonzero(is_of)
    return len(steps) + copy, first[index]
