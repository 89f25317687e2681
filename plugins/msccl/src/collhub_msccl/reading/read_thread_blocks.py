"""Turn the tables of a scanned file into the columns of its program; what cannot be represented is an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from collhub_msccl.findings import FileFindings
from collhub_msccl.numbers import NumberState
from collhub_msccl.reading.header import AlgoHeader
from collhub_msccl.reading.scan import ScannedXml
from collhub_msccl.thread_block_program import (
    BUFFER_NAMES,
    STEP_TYPE_NAMES,
    Int64Array,
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


def read_thread_blocks(
    document: ScannedXml, header: AlgoHeader, findings: FileFindings
) -> ThreadBlockProgram:
    """Turn the tables into a program. Raises `InputError` with everything that cannot be represented."""
    gpus, blocks, steps = (_numbers(tag, document, findings) for tag in ("gpu", "tb", "step"))
    words = {
        "type": _words("type", STEP_TYPE_NAMES, document, findings),
        "src_buffer": _words("srcbuf", BUFFER_NAMES, document, findings),
        "dst_buffer": _words("dstbuf", BUFFER_NAMES, document, findings),
    }
    _check_gpus(gpus, document.gpus.line, header, findings)
    _check_flags(steps["hasdep"], document, findings)
    findings.raise_errors()
    return _arranged(document, gpus, blocks, {**steps, **words})


def _numbers(tag: str, document: ScannedXml, findings: FileFindings) -> dict[str, Int64Array]:
    table, texts = document.table(tag), document.texts
    values, states = texts.numbers
    columns: dict[str, Int64Array] = {}
    for attribute in table.attributes:
        codes = table.column(attribute)
        if texts.missing >= 0:
            _check_present(tag, attribute, document, findings)
        if attribute in _NUMBER_COLUMNS[tag]:
            columns[attribute] = values[codes]
            if states[codes].any():
                _check_numbers(tag, attribute, document, findings)
    return columns


def _check_present(tag: str, attribute: str, document: ScannedXml, findings: FileFindings) -> None:
    findings.errors_at(
        "missing-attribute",
        document.table(tag).column(attribute) == document.texts.missing,
        document.table(tag).line,
        lambda row: f"{document.name(tag, row)} has no attribute {attribute!r}",
        rank=document.ranks(tag),
    )


def _check_numbers(tag: str, attribute: str, document: ScannedXml, findings: FileFindings) -> None:
    table, texts = document.table(tag), document.texts
    codes = table.column(attribute)
    state = texts.numbers[1][codes]
    state[codes == texts.missing] = NumberState.FINE

    def message(expected: str, row: int) -> str:
        return (
            f"{document.name(tag, row)}: {attribute} {(texts[codes[row]] or '')[:40]!r} {expected}"
        )

    for kind, code, expected in _NUMBER_DEFECTS:
        findings.errors_at(
            code, state == kind, table.line, partial(message, expected), rank=document.ranks(tag)
        )
    cut = partial(message, "is cut at its first odd character")
    findings.warn_at(
        "odd-number", state == NumberState.CUT, table.line, cut, rank=document.ranks(tag)
    )


def _words(
    attribute: str, words: Sequence[str], document: ScannedXml, findings: FileFindings
) -> Int64Array:
    codes = document.steps.column(attribute)
    positions = document.texts.positions_in(words)[codes]

    def message(row: int) -> str:
        found = (document.texts[codes[row]] or "")[:40]
        return (
            f"{document.name('step', row)}: {attribute} {found!r} is not one of {', '.join(words)}"
        )

    is_wrong = (positions < 0) & (codes != document.texts.missing)
    if is_wrong.any():
        findings.errors_at(
            f"unknown-{attribute}",
            is_wrong,
            document.steps.line,
            message,
            rank=document.ranks("step"),
        )
    return positions


def _check_gpus(
    gpus: Mapping[str, Int64Array], line: Int64Array, header: AlgoHeader, findings: FileFindings
) -> None:
    ids, expected = gpus["id"], header.num_ranks
    outside = (ids < 0) | (ids >= expected)
    findings.errors_at(
        "rank-range",
        outside,
        line,
        lambda row: f"gpu id {ids[row]} is not in 0..{expected - 1} (ngpus {expected})",
    )
    _, first = np.unique(ids, return_index=True)
    again = np.ones(len(ids), np.bool_)
    again[first] = False
    findings.errors_at(
        "duplicate-rank", again, line, lambda row: f"a second <gpu> has the id {ids[row]}"
    )
    present = len(first) - int(np.count_nonzero(outside[first]))
    if present < expected:
        message = f"ngpus is {expected}, but only {present} ranks have a <gpu>; the first one missing is {_first_missing(ids)}"
        findings.error("missing-rank", message, header.line)
    smallest = np.minimum(np.minimum(gpus["i_chunks"], gpus["o_chunks"]), gpus["s_chunks"])
    findings.errors_at(
        "attribute-range",
        smallest < 0,
        line,
        lambda row: f"a size of the <gpu> with id {ids[row]} is negative",
    )


def _check_flags(has_dependents: Int64Array, document: ScannedXml, findings: FileFindings) -> None:
    findings.errors_at(
        "attribute-range",
        (has_dependents < 0) | (has_dependents > 1),
        document.steps.line,
        lambda row: f"{document.name('step', row)}: hasdep {has_dependents[row]} is not 0 or 1",
        rank=document.ranks("step"),
    )


def _first_missing(ids: Int64Array) -> int:
    is_there = np.zeros(len(ids) + 1, np.bool_)
    is_there[ids[(ids >= 0) & (ids < len(ids))]] = True
    return int(np.argmin(is_there))


def _arranged(
    document: ScannedXml,
    gpus: Mapping[str, Int64Array],
    blocks: Mapping[str, Int64Array],
    steps: Mapping[str, Int64Array],
) -> ThreadBlockProgram:
    gpu_of_block = np.repeat(np.arange(len(document.gpus)), np.diff(document.gpus.first_child))
    block_rank = gpus["id"][gpu_of_block]
    block_order = np.lexsort((blocks["id"], block_rank))
    lengths = np.diff(document.thread_blocks.first_child)[block_order]
    first_step = np.cumsum(lengths) - lengths
    block = np.repeat(np.arange(len(block_order), dtype=np.int64), lengths)
    position = np.arange(len(block), dtype=np.int64) - first_step[block]
    row = document.thread_blocks.first_child[block_order][block] + position
    by_rank = np.argsort(gpus["id"])
    return ThreadBlockProgram(
        input_chunks=gpus["i_chunks"][by_rank],
        output_chunks=gpus["o_chunks"][by_rank],
        scratch_chunks=gpus["s_chunks"][by_rank],
        block_indptr=np.searchsorted(
            block_rank[block_order], np.arange(len(document.gpus) + 1)
        ).astype(np.int64),
        block_rank=block_rank[block_order],
        block_id=blocks["id"][block_order],
        send=blocks["send"][block_order],
        recv=blocks["recv"][block_order],
        channel=blocks["chan"][block_order],
        block_line=document.thread_blocks.line[block_order],
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
