"""The thread blocks and steps of a file as sorted, checked numpy columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial

import numpy as np
import numpy.typing as npt

from collhub_msccl.findings import Findings
from collhub_msccl.header import Header
from collhub_msccl.numbers import NumberState
from collhub_msccl.scan import Document

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class StepType(IntEnum):
    """The step types of MSCCL-IR, in the order of `STEP_TYPE_NAMES`."""

    SEND = 0
    RECV = 1
    RECV_COPY_SEND = 2
    RECV_REDUCE_COPY = 3
    RECV_REDUCE_SEND = 4
    RECV_REDUCE_COPY_SEND = 5
    COPY = 6
    REDUCE = 7
    NOP = 8


STEP_TYPE_NAMES = ("s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop")
_BUFFER_NAMES = ("i", "o", "s")  # in the order of `hub_core.model.Buffer`
SENDING = (
    StepType.SEND,
    StepType.RECV_COPY_SEND,
    StepType.RECV_REDUCE_SEND,
    StepType.RECV_REDUCE_COPY_SEND,
)
RECEIVING = (StepType.RECV, *SENDING[1:], StepType.RECV_REDUCE_COPY)
_NUMBER_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "gpu": ("id", "i_chunks", "o_chunks", "s_chunks"),
    "tb": ("id", "send", "recv", "chan"),
    "step": ("s", "srcoff", "dstoff", "cnt", "depid", "deps", "hasdep"),
}


_NUMBER_DEFECTS = (
    (NumberState.NO_NUMBER, "not-a-number", "is not a number"),
    (NumberState.OUT_OF_RANGE, "attribute-range", "is not a number below 2^31"),
)


@dataclass(frozen=True, slots=True)
class Program:
    """All ranks' programs. Thread blocks are sorted by (rank, id), steps by (rank, thread block, document order).

    Per rank, int64: `input_chunks`, `output_chunks`, `scratch_chunks` as declared, `block_indptr` [ranks + 1]. Per
    thread block, int64: `block_rank`, `block_id`, `send`, `recv`, `channel`, `block_line`. Per step, int64: `block` (row
    of its thread block), `position` (document position in it), `number` (the attribute `s`), `type` (`StepType`),
    `src_buffer`, `src_offset`, `dst_buffer`, `dst_offset`, `count`, `depid` (below 0: none), `deps`, `line`; bool:
    `has_dependents`, the flag `hasdep`.
    """

    input_chunks: Int64Array
    output_chunks: Int64Array
    scratch_chunks: Int64Array
    block_indptr: Int64Array
    block_rank: Int64Array
    block_id: Int64Array
    send: Int64Array
    recv: Int64Array
    channel: Int64Array
    block_line: Int64Array
    block: Int64Array
    position: Int64Array
    number: Int64Array
    type: Int64Array
    src_buffer: Int64Array
    src_offset: Int64Array
    dst_buffer: Int64Array
    dst_offset: Int64Array
    count: Int64Array
    depid: Int64Array
    deps: Int64Array
    has_dependents: BoolArray
    line: Int64Array

    def __len__(self) -> int:
        return len(self.block)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.scratch_chunks)

    @property
    def rank(self) -> Int64Array:
        """Rank of every step."""
        return self.block_rank[self.block]

    def is_type(self, *types: StepType) -> BoolArray:
        """Mask of the steps of one of these types."""
        wanted = np.zeros(len(StepType), np.bool_)
        wanted[list(types)] = True
        return wanted[self.type]

    def name(self, step: int) -> str:
        """How messages call a step."""
        return f"thread block {self.block_id[self.block[step]]}, step {self.position[step]}"

    def with_counts(self, count: Int64Array) -> Program:
        """The same program with other counts."""
        return replace(self, count=count)


def read_program(document: Document, header: Header, findings: Findings) -> Program:
    """Turn the tables into a program. Raises `InputError` with everything that cannot be represented."""
    gpus, blocks, steps = (_numbers(tag, document, findings) for tag in ("gpu", "tb", "step"))
    words = {
        "type": _words("type", STEP_TYPE_NAMES, document, findings),
        "src_buffer": _words("srcbuf", _BUFFER_NAMES, document, findings),
        "dst_buffer": _words("dstbuf", _BUFFER_NAMES, document, findings),
    }
    _check_gpus(gpus, document.gpus.line, header, findings)
    _check_flags(steps["hasdep"], document, findings)
    findings.raise_errors()
    return _arranged(document, gpus, blocks, {**steps, **words})


def _numbers(tag: str, document: Document, findings: Findings) -> dict[str, Int64Array]:
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


def _check_present(tag: str, attribute: str, document: Document, findings: Findings) -> None:
    findings.errors_at(
        "missing-attribute",
        document.table(tag).column(attribute) == document.texts.missing,
        document.table(tag).line,
        lambda row: f"{document.name(tag, row)} has no attribute {attribute!r}",
        rank=document.ranks(tag),
    )


def _check_numbers(tag: str, attribute: str, document: Document, findings: Findings) -> None:
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
    attribute: str, words: Sequence[str], document: Document, findings: Findings
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
    gpus: Mapping[str, Int64Array], line: Int64Array, header: Header, findings: Findings
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


def _check_flags(has_dependents: Int64Array, document: Document, findings: Findings) -> None:
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
    document: Document,
    gpus: Mapping[str, Int64Array],
    blocks: Mapping[str, Int64Array],
    steps: Mapping[str, Int64Array],
) -> Program:
    gpu_of_block = np.repeat(np.arange(len(document.gpus)), np.diff(document.gpus.first_child))
    block_rank = gpus["id"][gpu_of_block]
    block_order = np.lexsort((blocks["id"], block_rank))
    lengths = np.diff(document.thread_blocks.first_child)[block_order]
    first_step = np.cumsum(lengths) - lengths
    block = np.repeat(np.arange(len(block_order), dtype=np.int64), lengths)
    position = np.arange(len(block), dtype=np.int64) - first_step[block]
    row = document.thread_blocks.first_child[block_order][block] + position
    by_rank = np.argsort(gpus["id"])
    return Program(
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
