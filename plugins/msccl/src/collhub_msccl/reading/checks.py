"""Check what the runtimes take for granted: peers, ids, connections, dependencies, limits.

A runtime tests little of this and then hangs, or reads the wrong memory. Limits that all runtimes
share are warnings here: whether one of them loads a file is asked in `runtimes.load_check`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from collhub_columns import BoolArray, Int64Array, run_mask, run_starts

from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.header import AlgoHeader
from collhub_msccl.thread_block_program import (
    RECEIVING,
    SENDING,
    StepType,
    ThreadBlockProgram,
)

# MSCCL_MAX_COUNT is 72 in all three runtimes, and a count must be less.
_MOST_COUNT = 71
# `depid` is stored in 8 signed bits.
_MOST_DEPENDENCY_BLOCK = 127


class _Direction(NamedTuple):
    """One end of connections, and the words for it. `peer`: int64 per thread block, -1 for none."""

    name: str
    preposition: str
    attribute: str
    peer: Int64Array
    types: tuple[StepType, ...]


def _sending(program: ThreadBlockProgram) -> _Direction:
    """The sending ends of the connections of all thread blocks."""
    return _Direction("sending", "to", "send", program.send, SENDING)


def _receiving(program: ThreadBlockProgram) -> _Direction:
    """The receiving ends of the connections of all thread blocks."""
    return _Direction("receiving", "from", "recv", program.recv, RECEIVING)


def check_program(
    program: ThreadBlockProgram,
    header: AlgoHeader,
    findings: FileFindings,
) -> None:
    """Record every defect of thread blocks and steps in `findings`; nothing is raised."""
    _check_block_ids(program, findings)
    _check_peers("send", program.send, program, findings)
    _check_peers("recv", program.recv, program, findings)
    _check_channels(program, findings)
    for direction in (_sending(program), _receiving(program)):
        _check_connections(direction, program, findings)
    _check_counts(program, findings)
    _check_dependencies(program, findings)
    _warn_of_step_limits(program, findings)
    _warn_of_channels(program, header, findings)


def _check_block_ids(program: ThreadBlockProgram, findings: FileFindings) -> None:
    """Ids of a rank's thread blocks are 0, 1, 2, ...: the runtimes use them as indices."""
    rank, ids, line = program.block_rank, program.block_id, program.block_line
    # Thread blocks are sorted by id, so dense ids count up from the first of the rank.
    expected = np.arange(len(ids)) - program.block_indptr[rank]
    is_repeated = ~run_mask(rank, ids)
    findings.errors_at(
        "duplicate-thread-block",
        is_repeated,
        line,
        lambda row: f"a second thread block has id {ids[row]}",
        rank=rank,
    )
    # A repeated id shifts all later ones, so gaps of such a rank say nothing.
    repeats_in_rank = np.bincount(rank[is_repeated], minlength=program.num_ranks)
    is_gap = (ids != expected) & (repeats_in_rank == 0)[rank]

    def message(row: int) -> str:
        """The message for a thread block: its id, and the one expected in its place."""
        found = f"{ids[row]} stands where {expected[row]} is expected"
        return f"thread block ids must be 0, 1, 2, ...: {found}"

    is_first = _first_of_rank(is_gap, rank)
    findings.errors_at("thread-block-gap", is_first, line, message, rank=rank)


def _first_of_rank(mask: BoolArray, rank: Int64Array) -> BoolArray:
    """The first row of each rank in `mask`: one missing id shifts all later ones."""
    rows = np.flatnonzero(mask)
    result = np.zeros(len(mask), np.bool_)
    # Thread blocks are sorted by rank.
    result[rows[run_starts(rank[rows])]] = True
    return result


def _check_peers(
    name: str,
    peer: Int64Array,
    program: ThreadBlockProgram,
    findings: FileFindings,
) -> None:
    """`send` and `recv` name another rank or -1; two of the runtimes test no upper bound."""
    rank, ids, line = program.block_rank, program.block_id, program.block_line
    num_ranks = program.num_ranks

    def message(row: int) -> str:
        expected = f"neither -1 nor a rank of 0..{num_ranks - 1}"
        return f"thread block {ids[row]}: {name} {peer[row]} is {expected}"

    # All parsers refuse a peer below -1.
    is_outside = (peer < -1) | (peer >= num_ranks)
    findings.errors_at("peer-range", is_outside, line, message, rank=rank)
    findings.errors_at(
        "self-peer",
        peer == rank,
        line,
        lambda row: f"thread block {ids[row]}: {name} {peer[row]} is the own rank",
        rank=rank,
    )


def _check_channels(program: ThreadBlockProgram, findings: FileFindings) -> None:
    """Record channels below 0; how many there may be depends on the runtime."""
    ids, channel = program.block_id, program.channel
    findings.errors_at(
        "channel-range",
        channel < 0,
        program.block_line,
        lambda row: f"thread block {ids[row]}: chan {channel[row]} is negative",
        rank=program.block_rank,
    )


def _check_connections(
    direction: _Direction,
    program: ThreadBlockProgram,
    findings: FileFindings,
) -> None:
    """A connection belongs to one thread block at each end; two owners corrupt its FIFO."""
    peer = direction.peer
    is_message = program.is_type(*direction.types)
    is_lonely = is_message & (peer[program.block] < 0)
    findings.errors_at(
        "no-peer",
        is_lonely,
        program.line,
        partial(_without_peer, direction, program),
        rank=program.rank,
    )
    findings.errors_at(
        "shared-connection",
        _second_owners(program, is_message, peer),
        program.block_line,
        partial(_shared, direction, program),
        rank=program.block_rank,
        cure="use another channel on both ends",
    )


def _without_peer(
    direction: _Direction,
    program: ThreadBlockProgram,
    step: int,
) -> str:
    """Message for a step of a thread block without peer."""
    peer = direction.peer[program.block[step]]
    what = f"a {direction.name} step, but its thread block has {direction.attribute} {peer}"
    return f"{program.name(step)}: {what}"


def _shared(
    direction: _Direction,
    program: ThreadBlockProgram,
    block: int,
) -> str:
    """Message for a thread block whose connection has an owner already."""
    what = f"{direction.name} {direction.preposition} rank {direction.peer[block]}"
    return (
        f"thread block {program.block_id[block]} is the second one that is {what}"
        f" on channel {program.channel[block]}"
    )


def _second_owners(
    program: ThreadBlockProgram,
    is_message: BoolArray,
    peer: Int64Array,
) -> BoolArray:
    """Thread blocks that use a connection (rank, peer, channel) of one before them in the rank."""
    # Thread blocks that name a peer and never use it do no harm.
    uses = np.bincount(program.block[is_message], minlength=len(peer))
    users = np.flatnonzero((uses > 0) & (peer >= 0))
    rank, channel = program.block_rank, program.channel
    order = np.lexsort((users, channel[users], peer[users], rank[users]))
    users = users[order]
    # Sorted by connection, so a second owner stands right behind the first.
    is_second = ~run_mask(rank[users], peer[users], channel[users])
    shared = np.zeros(len(rank), np.bool_)
    shared[users[is_second]] = True
    return shared


def _check_counts(program: ThreadBlockProgram, findings: FileFindings) -> None:
    """Accepted by the parsers, a count of 0 moves nothing, and one runtime then reads below 0."""
    # A nop moves nothing by its nature; its count is not looked at.
    is_empty = (program.count < 1) & ~program.is_type(StepType.NOP)

    def message(step: int) -> str:
        found = f"cnt {program.count[step]} moves nothing"
        return f"{program.name(step)}: {found}, expected 1 or more"

    findings.errors_at("count-range", is_empty, program.line, message, rank=program.rank)


def _check_dependencies(program: ThreadBlockProgram, findings: FileFindings) -> None:
    """Waits name a thread block of the rank and a position; a depid below 0 is no wait at all."""
    rank, line = program.rank, program.line
    is_waiting = program.depid >= 0
    blocks_of_rank = np.diff(program.block_indptr)[rank]

    def no_block(step: int) -> str:
        found = f"depid {program.depid[step]}"
        has = f"the rank has {blocks_of_rank[step]} thread blocks"
        return f"{program.name(step)}: {found}, but {has}"

    def no_step(step: int) -> str:
        found = f"depid {program.depid[step]} with deps {program.deps[step]}"
        return f"{program.name(step)}: {found}, expected a step number"

    # Both say that the wait has no target.
    code = "dangling-dependency"
    is_beyond = is_waiting & (program.depid >= blocks_of_rank)
    findings.errors_at(code, is_beyond, line, no_block, rank=rank)
    is_negative = is_waiting & (program.deps < 0)
    findings.errors_at(code, is_negative, line, no_step, rank=rank)


def _warn_of_step_limits(program: ThreadBlockProgram, findings: FileFindings) -> None:
    """Warn of what has a meaning, but not for the runtimes."""
    is_nop = program.is_type(StepType.NOP)
    rules = (
        (
            "count-limit",
            ~is_nop & (program.count > _MOST_COUNT),
            f"a cnt above {_MOST_COUNT} is refused by the runtimes",
        ),
        (
            "step-number",
            program.number != program.position,
            "s is not the position in the document, which is what counts",
        ),
        (
            # Their counter advances by the waits of a step, so it stays behind the position here.
            "nop-without-dependency",
            is_nop & (program.depid < 0),
            "a nop without dependency, so the runtimes miscount later steps",
        ),
        (
            "dependency-limit",
            program.depid > _MOST_DEPENDENCY_BLOCK,
            f"a depid above {_MOST_DEPENDENCY_BLOCK} is corrupted by the runtimes",
        ),
    )
    for code, mask, text in rules:
        message = partial(_about, program, text)
        findings.warn_at(code, mask, program.line, message, rank=program.rank)


def _about(
    program: ThreadBlockProgram,
    text: str,
    step: int,
) -> str:
    """A message that begins with the step's name."""
    return f"{program.name(step)}: {text}"


def _warn_of_channels(
    program: ThreadBlockProgram,
    header: AlgoHeader,
    findings: FileFindings,
) -> None:
    """The runtimes open connections for the channels 0..nchannels-1 only, unchecked."""
    channel = program.channel
    findings.warn_at(
        "channel-count",
        channel >= header.channel_count,
        program.block_line,
        lambda row: f"chan {channel[row]} needs nchannels of {channel[row] + 1} or more",
        rank=program.block_rank,
    )
