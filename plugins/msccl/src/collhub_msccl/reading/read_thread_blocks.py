"""Turn the tables of a scanned file into the columns of its program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from collhub_columns import (
    Int64Array,
    counted_positions,
    expanded_ranges,
    group_of_entry,
    ordinals,
    row_pointer,
)

from collhub_msccl.findings import FileFindings
from collhub_msccl.numbers import NumberState
from collhub_msccl.reading.element_tables import ScannedXml
from collhub_msccl.reading.header import AlgoHeader
from collhub_msccl.thread_block_program import (
    BUFFER_NAMES,
    STEP_TYPE_NAMES,
    ThreadBlockProgram,
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
_LONGEST_SHOWN = 40


def read_thread_blocks(
    document: ScannedXml,
    header: AlgoHeader,
    findings: FileFindings,
) -> ThreadBlockProgram:
    """Sort and number the elements of a file.

    Raises `InputError` with everything that cannot be represented. What a runtime would make of the
    values is not looked at: see `check_program`.
    """
    gpus = _numbers("gpu", document, findings)
    blocks = _numbers("tb", document, findings)
    steps = _numbers("step", document, findings)
    words = {
        "type": _words("type", STEP_TYPE_NAMES, document, findings),
        "src_buffer": _words("srcbuf", BUFFER_NAMES, document, findings),
        "dst_buffer": _words("dstbuf", BUFFER_NAMES, document, findings),
    }
    # What stands in the columns has been told where it is wrong; now the values themselves.
    _check_gpus(gpus, document.gpus.line, header, findings)
    _check_flags(steps["hasdep"], document, findings)
    findings.raise_errors()
    return _arranged(document, gpus, blocks, {**steps, **words})


def _numbers(
    tag: str,
    document: ScannedXml,
    findings: FileFindings,
) -> dict[str, Int64Array]:
    """The numeric columns of a table, by attribute; 0 where a text is no number."""
    table = document.table(tag)
    values, states = document.texts.numbers
    columns: dict[str, Int64Array] = {}
    for attribute in table.attributes:
        codes = table.column(attribute)
        if document.texts.missing >= 0:
            _check_present(tag, attribute, document, findings)
        if attribute not in _NUMBER_COLUMNS[tag]:
            continue
        # Each distinct text was parsed once; rows look their value up.
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
    """All attributes are required, those of a `nop` too: the runtimes' parsers look each up."""
    table = document.table(tag)
    findings.errors_at(
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
    """Tell which values of an attribute are no numbers, or are read only in part."""
    table, texts = document.table(tag), document.texts
    codes = table.column(attribute)
    _, states = texts.numbers
    state = states[codes]
    # A missing attribute has been told already.
    state[codes == texts.missing] = NumberState.FINE

    def message(expected: str, row: int) -> str:
        text = (texts[codes[row]] or "")[:_LONGEST_SHOWN]
        return f"{document.name(tag, row)}: {attribute} {text!r} {expected}"

    rank = document.ranks(tag)
    for kind, code, expected in _NUMBER_DEFECTS:
        text_of = partial(message, expected)
        findings.errors_at(code, state == kind, table.line, text_of, rank=rank)
    cut = partial(message, "is cut at its first odd character")
    findings.warn_at("odd-number", state == NumberState.CUT, table.line, cut, rank=rank)


def _words(
    attribute: str,
    words: Sequence[str],
    document: ScannedXml,
    findings: FileFindings,
) -> Int64Array:
    """For every step the position of an attribute in `words`, -1 where it is none of them."""
    codes = document.steps.column(attribute)
    # Likewise one look-up a distinct text, not one a step.
    positions = document.texts.positions_in(words)[codes]
    is_wrong = (positions < 0) & (codes != document.texts.missing)
    if not is_wrong.any():
        return positions

    def message(row: int) -> str:
        found = (document.texts[codes[row]] or "")[:_LONGEST_SHOWN]
        known = ", ".join(words)
        return f"{document.name('step', row)}: {attribute} {found!r} is not one of {known}"

    findings.errors_at(
        f"unknown-{attribute}",
        is_wrong,
        document.steps.line,
        message,
        rank=document.ranks("step"),
    )
    return positions


def _check_gpus(
    gpus: Mapping[str, Int64Array],
    line: Int64Array,
    header: AlgoHeader,
    findings: FileFindings,
) -> None:
    """Every rank of 0..ngpus-1 has one `<gpu>`, with sizes of 0 or more."""
    _check_ranks(gpus["id"], line, header, findings)
    io_chunks = np.minimum(gpus["i_chunks"], gpus["o_chunks"])
    smallest = np.minimum(io_chunks, gpus["s_chunks"])
    findings.errors_at(
        "attribute-range",
        smallest < 0,
        line,
        lambda row: f"a size of the <gpu> with id {gpus['id'][row]} is negative",
    )


def _check_ranks(
    ids: Int64Array,
    line: Int64Array,
    header: AlgoHeader,
    findings: FileFindings,
) -> None:
    """Two `<gpu>` of one id would mix into one program in the runtimes."""
    expected = header.num_ranks
    outside = (ids < 0) | (ids >= expected)
    findings.errors_at(
        "rank-range",
        outside,
        line,
        lambda row: f"gpu id {ids[row]} is not in 0..{expected - 1} (ngpus {expected})",
    )
    is_again = ordinals(ids) > 0
    findings.errors_at(
        "duplicate-rank",
        is_again,
        line,
        lambda row: f"a second <gpu> has the id {ids[row]}",
    )
    # A file may claim any ngpus: only what is there is counted.
    present = int(np.count_nonzero(~outside & ~is_again))
    if present < expected:
        message = (
            f"ngpus is {expected}, but only {present} ranks have a <gpu>;"
            f" the first one missing is {_first_missing(ids)}"
        )
        findings.error("missing-rank", message, header.line)


def _first_missing(ids: Int64Array) -> int:
    """The smallest number from 0 that is not among `ids`; no table of all ngpus is made."""
    is_there = np.zeros(len(ids) + 1, np.bool_)
    small = ids[(ids >= 0) & (ids < len(ids))]
    is_there[small] = True
    return int(np.argmin(is_there))


def _check_flags(
    has_dependents: Int64Array,
    document: ScannedXml,
    findings: FileFindings,
) -> None:
    """`hasdep` is 0 or 1: the parsers refuse everything else."""

    def message(row: int) -> str:
        return f"{document.name('step', row)}: hasdep {has_dependents[row]} is not 0 or 1"

    findings.errors_at(
        "attribute-range",
        (has_dependents < 0) | (has_dependents > 1),
        document.steps.line,
        message,
        rank=document.ranks("step"),
    )


def _arranged(
    document: ScannedXml,
    gpus: Mapping[str, Int64Array],
    blocks: Mapping[str, Int64Array],
    steps: Mapping[str, Int64Array],
) -> ThreadBlockProgram:
    """Sort ranks and thread blocks by id, which the file may give in any order; steps stay."""
    gpu_count = len(document.gpus)
    rank_of_block = gpus["id"][group_of_entry(document.gpus.first_child)]
    by_rank = np.argsort(gpus["id"])
    # Stable: elements of one id, an error told later, keep the order of the file.
    by_block = np.lexsort((blocks["id"], rank_of_block))
    block_rank = rank_of_block[by_block]
    block, position, row = _arranged_steps(document, by_block)
    block_indptr = np.searchsorted(block_rank, np.arange(gpu_count + 1))
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
        block=block,
        position=position,
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


def _arranged_steps(
    document: ScannedXml,
    by_block: Int64Array,
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Thread block, position in it and row of the scanned table of every step, when sorted."""
    first_child = document.thread_blocks.first_child
    lengths = np.diff(first_child)[by_block]
    block = group_of_entry(row_pointer(lengths))
    # Steps of a thread block stand together in the scanned table, so its first row is enough.
    row = expanded_ranges(first_child[by_block], lengths)
    return block, counted_positions(lengths), row
