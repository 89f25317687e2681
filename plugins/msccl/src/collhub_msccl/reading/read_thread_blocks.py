"""Convert the tables of a scanned file to the columns of its program.

`<copy>` elements, which TACCL's writer emits, are local copies that precede all steps of a rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from collhub_msccl.findings import FileFindings, NumberState
from collhub_msccl.reading.element_tables import ScannedXml
from collhub_msccl.reading.header import AlgoHeader
from collhub_msccl.thread_block_program import BUFFER_NAMES, STEP_TYPE_NAMES, ThreadBlockProgram
from hub_core.columns import (
    Int64Array,
    counted_positions,
    expanded_ranges,
    group_of_entry,
    group_pointer,
    ordinals,
    row_pointer,
)
from hub_core.model import (
    COLUMN_DEFAULTS,
    COLUMN_DTYPES,
    Buffer,
    Collective,
    StepKind,
    StepTable,
    format_count,
    parse_whole,
)

_NUMBER_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "gpu": ("id", "i_chunks", "o_chunks", "s_chunks"),
    "tb": ("id", "send", "recv", "chan"),
    "step": ("s", "srcoff", "dstoff", "cnt", "depid", "deps", "hasdep"),
}
_NUMBER_DEFECTS = (
    (NumberState.NO_NUMBER, "not-a-number", "is not a number"),
    (NumberState.OUT_OF_RANGE, "attribute-range", "is not a number below 2^31"),
)
_MAX_SHOWN_CHARACTERS = 40


def read_thread_blocks(
    document: ScannedXml,
    header: AlgoHeader,
    findings: FileFindings,
) -> ThreadBlockProgram:
    """Return the program of a scanned file, with ranks and thread blocks sorted by id.

    Numbers are read like C's `strtol` with base 0 (`parse_number`). Raises `InputError` with all
    errors that `findings` has, sorted by line: those recorded before this call, and these defects:

    - missing attributes of `<gpu>`, `<tb>` and steps
    - unknown words of `type`, `srcbuf` and `dstbuf`
    - texts that are not numbers, and magnitudes of 2^31 or more
    - ids of `<gpu>` that are not 0 to ngpus - 1, each once
    - a negative `i_chunks`, `o_chunks` or `s_chunks`
    - `hasdep` other than 0 and 1

    Of one defect of one attribute, at most 5 rows give an error; the fifth has the number of
    further rows. A number with further characters (`4x`) gives only a warning. `check_program`
    checks whether the other values are valid for a runtime.
    """
    gpus = _read_numbers("gpu", document, findings)
    blocks = _read_numbers("tb", document, findings)
    steps = _read_numbers("step", document, findings)
    words = {
        "type": _read_words("type", STEP_TYPE_NAMES, document, findings),
        "src_buffer": _read_words("srcbuf", BUFFER_NAMES, document, findings),
        "dst_buffer": _read_words("dstbuf", BUFFER_NAMES, document, findings),
    }
    # The texts are checked; now check the values.
    _check_ranks(gpus["id"], document.gpus.line, header, findings)
    io_chunks = np.minimum(gpus["i_chunks"], gpus["o_chunks"])
    smallest = np.minimum(io_chunks, gpus["s_chunks"])
    findings.add_errors_at(
        "attribute-range",
        smallest < 0,
        document.gpus.line,
        lambda row: f"a size of the <gpu> with id {gpus['id'][row]} is negative",
    )
    # The runtimes' parsers refuse values of `hasdep` other than 0 and 1.
    has_dependents = steps["hasdep"]

    def message(row: int) -> str:
        return f"{document.name('step', row)}: hasdep {has_dependents[row]} is not 0 or 1"

    findings.add_errors_at(
        "attribute-range",
        (has_dependents < 0) | (has_dependents > 1),
        document.steps.line,
        message,
        rank=document.ranks("step"),
    )
    findings.raise_errors()
    return _build_program(document, gpus, blocks, {**steps, **words})


def _read_numbers(
    tag: str,
    document: ScannedXml,
    findings: FileFindings,
) -> dict[str, Int64Array]:
    """Return the numeric columns of a tag's table by attribute, int64, in the order of the file.

    `tag`: `gpu`, `tb` or `step`. The columns are those of `_NUMBER_COLUMNS`. Numbers are read like
    C's `strtol` with base 0: `4x` gives 4, `0x10` gives 16. Text that does not begin with a number,
    a magnitude of 2^31 or more, and a missing attribute give 0.

    Nothing is raised. `findings` gets `missing-attribute` for all attributes of the tag, also those
    without numbers. For the numeric ones it gets the errors and warnings of `_check_numbers`, such
    as `not-a-number`. At most 5 rows per defect and attribute give an error.
    """
    table = document.table(tag)
    values, states = document.texts.numbers
    columns: dict[str, Int64Array] = {}
    for attribute in table.attributes:
        codes = table.column(attribute)
        if document.texts.missing >= 0:
            _check_present(tag, attribute, document, findings)
        if attribute not in _NUMBER_COLUMNS[tag]:
            continue
        # Each distinct text was parsed once; rows look up its value.
        columns[attribute] = values[codes]
        if states[codes].any():
            _check_numbers(tag, attribute, document, findings)
    return columns


def _check_present(
    tag: str,
    attribute: str,
    document: ScannedXml,
    findings: FileFindings,
) -> None:
    """Record errors "missing-attribute" for rows of a tag without an attribute, each at its line.

    Only the first 5 rows get an error; the last of them has the number of the remaining rows. All
    attributes are required, even for `nop`: the runtimes' parsers read them all.
    """
    table = document.table(tag)
    findings.add_errors_at(
        "missing-attribute",
        table.column(attribute) == document.texts.missing,
        table.line,
        lambda row: f"{document.name(tag, row)} has no attribute {attribute!r}",
        rank=document.ranks(tag),
    )


def _check_numbers(
    tag: str,
    attribute: str,
    document: ScannedXml,
    findings: FileFindings,
) -> None:
    """Add findings for values of an attribute that are not numbers below 2^31.

    `tag`: `gpu`, `tb` or `step`. In this order:

    1. Error `not-a-number`: the text does not begin with a number.
    2. Error `attribute-range`: the magnitude is 2^31 or more. Negative numbers above -2^31 are
       valid.
    3. Warning `odd-number`: further characters follow the number. `4x` is read as 4.

    Each error is recorded for at most 5 rows, with line and rank; the text of the fifth gives the
    number of further rows. The warning is reported for the first such row only, with the number of
    further rows. Missing attributes are ignored, because `_check_present` reports them.
    """
    table, texts = document.table(tag), document.texts
    codes = table.column(attribute)
    _, states = texts.numbers
    state = states[codes]
    # `_check_present` has recorded missing attributes.
    state[codes == texts.missing] = NumberState.FINE

    def message(expected: str, row: int) -> str:
        text = (texts[codes[row]] or "")[:_MAX_SHOWN_CHARACTERS]
        return f"{document.name(tag, row)}: {attribute} {text!r} {expected}"

    rank = document.ranks(tag)
    for kind, code, expected in _NUMBER_DEFECTS:
        text_of = partial(message, expected)
        findings.add_errors_at(code, state == kind, table.line, text_of, rank=rank)
    cut = partial(message, "is cut at its first odd character")
    findings.warn_at("odd-number", state == NumberState.CUT, table.line, cut, rank=rank)


def _read_words(
    attribute: str,
    words: Sequence[str],
    document: ScannedXml,
    findings: FileFindings,
) -> Int64Array:
    """Return for every step the index in `words` of an attribute: int64, in the order of the file.

    The comparison is exact, with case and white space. An unknown word gives -1 and adds an error
    to `findings`, with the code `unknown-` plus the name of the attribute, such as
    `unknown-srcbuf`. At most 5 steps give an error; the text of the fifth has the number of further
    steps. A missing attribute gives -1 without an error, because `_check_present` reports it.
    """
    codes = document.steps.column(attribute)
    positions = document.texts.positions_in(words)[codes]
    is_wrong = (positions < 0) & (codes != document.texts.missing)
    if not is_wrong.any():
        return positions

    def message(row: int) -> str:
        text = (document.texts[codes[row]] or "")[:_MAX_SHOWN_CHARACTERS]
        known = ", ".join(words)
        return f"{document.name('step', row)}: {attribute} {text!r} is not one of {known}"

    findings.add_errors_at(
        f"unknown-{attribute}",
        is_wrong,
        document.steps.line,
        message,
        rank=document.ranks("step"),
    )
    return positions


def _check_ranks(
    ids: Int64Array,
    line: Int64Array,
    header: AlgoHeader,
    findings: FileFindings,
) -> None:
    """Record errors unless the ids of `<gpu>` elements are 0 to ngpus - 1, each once.

    `ids`, `line`: id and line of each `<gpu>` in the order of the file. Errors, in this order:

    - `rank-range`: an id outside the range.
    - `duplicate-rank`: an id that an earlier element has, also outside the range.
    - `missing-rank`, at the line of `<algo>`: at least one id of the range is missing. There is one
      such error; its text has the smallest missing id.

    An element can have errors of the first two kinds. Of each of these kinds, at most 5 errors are
    recorded; the text of the fifth has the number of further ones.
    """
    expected = header.num_ranks
    outside = (ids < 0) | (ids >= expected)
    findings.add_errors_at(
        "rank-range",
        outside,
        line,
        lambda row: f"gpu id {ids[row]} is not in 0..{expected - 1} (ngpus {expected})",
    )
    is_repeated = ordinals(ids) > 0
    findings.add_errors_at(
        "duplicate-rank",
        is_repeated,
        line,
        lambda row: f"a second <gpu> has id {ids[row]}",
    )
    # Count only existing ranks: a file may claim an arbitrarily large ngpus.
    present = int(np.count_nonzero(~outside & ~is_repeated))
    if present < expected:
        # Smallest number from 0 on that is not in `ids`, without a table of all ngpus.
        is_present = np.zeros(len(ids) + 1, np.bool_)
        small = ids[(ids >= 0) & (ids < len(ids))]
        is_present[small] = True
        described = format_count(present, "rank has", "ranks have")
        message = (
            f"ngpus is {expected}, but only {described} a <gpu>;"
            f" the first one missing is {int(np.argmin(is_present))}"
        )
        findings.add_error("missing-rank", message, header.line)


def _build_program(
    document: ScannedXml,
    gpus: Mapping[str, Int64Array],
    blocks: Mapping[str, Int64Array],
    steps: Mapping[str, Int64Array],
) -> ThreadBlockProgram:
    """Build the program from columns in the order of the file; nothing is checked.

    `gpus`, `blocks`, `steps`: columns by attribute. Ranks are sorted by id; their ids should be
    0..n-1, each once. Thread blocks are sorted by rank and id; equal ids of thread blocks keep the
    order of the file. Steps keep their order within their thread block.

    In the result, `position` counts the steps of each thread block from 0, `number` is the
    attribute `s`, and `block_indptr` has the first thread block of each rank and the total number
    at the end.
    """
    gpu_count = len(document.gpus)
    rank_of_block = gpus["id"][group_of_entry(document.gpus.first_child)]
    by_rank = np.argsort(gpus["id"])
    # Stable: thread blocks with equal ids (reported later as an error) keep the order of the file.
    by_block = np.lexsort((blocks["id"], rank_of_block))
    block_rank = rank_of_block[by_block]
    first_child = document.thread_blocks.first_child
    lengths = np.diff(first_child)[by_block]
    # The steps of a thread block are contiguous in the scanned table, so its first row suffices.
    row = expanded_ranges(first_child[by_block], lengths)
    block_indptr = group_pointer(block_rank, gpu_count)
    return ThreadBlockProgram(
        input_chunks=gpus["i_chunks"][by_rank],
        output_chunks=gpus["o_chunks"][by_rank],
        scratch_chunks=gpus["s_chunks"][by_rank],
        block_indptr=block_indptr.astype(np.int64),
        block_rank=block_rank,
        block_id=blocks["id"][by_block],
        send=blocks["send"][by_block],
        recv=blocks["recv"][by_block],
        channel=blocks["chan"][by_block],
        block_line=document.thread_blocks.line[by_block],
        block=group_of_entry(row_pointer(lengths)),
        position=counted_positions(lengths),
        number=steps["s"][row],
        type=steps["type"][row],
        src_buffer=steps["src_buffer"][row],
        src_offset=steps["srcoff"][row],
        dst_buffer=steps["dst_buffer"][row],
        dst_offset=steps["dstoff"][row],
        count=steps["cnt"][row],
        depid=steps["depid"][row],
        deps=steps["deps"][row],
        has_dependents=steps["hasdep"][row] != 0,
        line=document.steps.line[row],
    )


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
    """Return the `<copy>` elements of a file in file order: rank, source, destination and line.

    The rank is the id of the `<gpu>` around the element. Source and destination are its attributes
    `i_off` and `o_off`: offsets in INPUT and OUTPUT of the rank, in units. The result is empty if
    there are no such elements.

    An offset must be a decimal number of at most 9 digits, below the `i_chunks` or `o_chunks` of
    the rank. Any other text, or a missing attribute, is an error of the element (`copy-range`).
    Raises `InputError` with all of these, and with errors that `findings` had before.
    """
    numbers, _ = document.texts.numbers
    ranks = numbers[document.gpus.column("id")].tolist()
    rows = []
    for gpu, attributes, line in document.copies:
        rank = ranks[gpu]
        sizes = int(program.input_chunks[rank]), int(program.output_chunks[rank])
        texts = attributes.get("i_off", ""), attributes.get("o_off", "")
        parsed = [parse_whole(text, 10**9 - 1) for text in texts]
        offsets = [-1 if offset is None else offset for offset in parsed]
        if not all(0 <= at < size for at, size in zip(offsets, sizes, strict=True)):
            units = f"from {attributes.get('i_off')} to {attributes.get('o_off')}"
            message = f"<copy> {units} is outside the buffers of {sizes} chunks"
            findings.add_error("copy-range", message, line)
        rows.append((rank, *offsets, line))
    findings.raise_errors()
    return Copies(*np.asarray(rows, np.int64).reshape(-1, 4).T)


def insert_copies(
    steps: StepTable, copies: Copies, collective: Collective, program: ThreadBlockProgram
) -> StepTable:
    """Return the steps with added copies, which precede all other steps of their ranks.

    A copy moves one unit from `source` in INPUT to `destination` in OUTPUT. If the collective is in
    place only, copies from a unit of memory to itself are left out. `program` gives the sizes of
    SCRATCH for this comparison. `line` of a copy becomes its source line.

    - Row order: within each rank, copies follow the rows of `steps`, in their order.
    - Lanes: L + 1, L + 2, ... over all copies, for the highest lane L of `steps`; from 0 on without
      steps.
    - Dependencies: each step of `steps` that has no data or control dependency gets a control
      dependency on every copy of its rank. Later steps wait through their predecessors.

    The arguments are not changed.
    """
    if collective.in_place and not collective.out_of_place:
        layout = collective.memory_layout(True, program.scratch_chunks)
        read = layout.base[copies.rank, Buffer.INPUT] + copies.source
        written = layout.base[copies.rank, Buffer.OUTPUT] + copies.destination
        moves = np.flatnonzero(read != written)
        columns_of_copies = (copies.rank, copies.source, copies.destination, copies.line)
        copies = Copies(*(column[moves] for column in columns_of_copies))
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
    # Copies precede all steps of their rank, so that readers of OUTPUT see their data: edges to the
    # steps that have no predecessor. The remaining steps wait through their predecessors.
    waits = np.zeros(len(steps), np.bool_)
    for _, child in (steps.data_edges, steps.control_edges):
        waits[child] = True
    first = np.flatnonzero(~waits)
    is_of = steps.rank[first][None, :] == copies.rank[:, None]
    copy, index = np.nonzero(is_of)
    control = len(steps) + copy, first[index]
    existing = steps.control_edges
    edges = tuple(np.concatenate(pair) for pair in zip(existing, control, strict=True))
    return StepTable.from_columns(steps.num_ranks, columns, steps.data_edges, (edges[0], edges[1]))
