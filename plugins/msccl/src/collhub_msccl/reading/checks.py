"""Check the assumptions of the runtimes: peers, ids, connections, dependencies, limits.

A runtime tests few of them; otherwise it hangs or reads the wrong memory. Limits that all runtimes
share cause warnings here; `runtimes.load_check` decides whether a particular runtime loads a file.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.header import AlgoHeader
from collhub_msccl.thread_block_program import (
    RECEIVING,
    SENDING,
    StepType,
    ThreadBlockProgram,
)
from hub_core.columns import Int64Array, run_mask, run_starts

# MSCCL_MAX_COUNT is 72 in all three runtimes, and a count must be less.
_MAX_COUNT = 71
# `depid` is stored in 8 signed bits.
_MAX_DEPENDENCY_BLOCK = 127


class _MessageSide(NamedTuple):
    """The sending or the receiving side of all thread blocks, with its words for messages.

    `peer`: int64 per thread block, -1 for none; `types`: step types that use the connection.
    """

    name: str
    preposition: str
    attribute: str
    peer: Int64Array
    types: tuple[StepType, ...]


def check_program(
    program: ThreadBlockProgram,
    header: AlgoHeader,
    findings: FileFindings,
) -> None:
    """Record the defects of thread blocks and steps in `findings`, without raising an error.

    The errors are, in this order:

    - ids of thread blocks; peers of sends, then of receives
    - `channel-range`: a negative channel
    - connections of sends, then of receives: a message step without a peer, or a connection that
      several thread blocks use
    - `count-range`: a count below 1 in a step that is no nop
    - dependencies of steps

    Warnings follow: steps that the runtimes refuse or misinterpret, then `channel-count` (a channel
    not below the `nchannels` of the header). Each check records its first 5 errors, or its first
    warning. The text of the last one gives the number of further defects.
    """
    _check_block_ids(program, findings)
    _check_peers("send", program.send, program, findings)
    _check_peers("recv", program.recv, program, findings)
    # The maximum channel depends on the runtime.
    ids, channel = program.block_id, program.channel
    findings.add_errors_at(
        "channel-range",
        channel < 0,
        program.block_line,
        lambda row: f"thread block {ids[row]}: chan {channel[row]} is negative",
        rank=program.block_rank,
    )
    for direction in (
        _MessageSide("sending", "to", "send", program.send, SENDING),
        _MessageSide("receiving", "from", "recv", program.recv, RECEIVING),
    ):
        _check_connections(direction, program, findings)
    # The count of a nop is ignored: it moves no data.
    is_empty = (program.count < 1) & ~program.is_type(StepType.NOP)

    def message(step: int) -> str:
        return f"{program.name(step)}: cnt {program.count[step]} moves no data, expected 1 or more"

    findings.add_errors_at("count-range", is_empty, program.line, message, rank=program.rank)
    _check_dependencies(program, findings)
    _warn_of_step_limits(program, findings)
    # The runtimes open connections only for channels 0..nchannels-1, unchecked.
    findings.warn_at(
        "channel-count",
        channel >= header.channel_count,
        program.block_line,
        lambda row: f"chan {channel[row]} needs nchannels of {channel[row] + 1} or more",
        rank=program.block_rank,
    )


def _check_block_ids(program: ThreadBlockProgram, findings: FileFindings) -> None:
    """Record errors for repeated and missing ids of the thread blocks of each rank.

    The ids of a rank must be 0, 1, 2, and so on, because the runtimes use them as indices.
    Their order in the file has no effect: blocks of `program` are sorted by rank and id.

    - `duplicate-thread-block`: each block with the same rank and id as the block before it.
    - `thread-block-gap`: in a rank without a repeated id, the lowest id that differs from
      its position. Higher ids of this rank are not recorded.

    For all ranks together, at most 5 errors of each code are recorded. The fifth one counts
    the rest.
    """
    rank, ids, line = program.block_rank, program.block_id, program.block_line
    # Thread blocks are sorted by id, so dense ids count up from the first of the rank.
    expected = np.arange(len(ids)) - program.block_indptr[rank]
    is_repeated = ~run_mask(rank, ids)
    findings.add_errors_at(
        "duplicate-thread-block",
        is_repeated,
        line,
        lambda row: f"a second thread block has id {ids[row]}",
        rank=rank,
    )
    # A repeated id shifts all later ids, so gaps in such a rank are meaningless.
    repeats_in_rank = np.bincount(rank[is_repeated], minlength=program.num_ranks)
    is_gap = (ids != expected) & (repeats_in_rank == 0)[rank]

    def message(row: int) -> str:
        return f"thread block ids must be 0, 1, 2, ...: found {ids[row]}, expected {expected[row]}"

    # Only the first gap of each rank: one missing id shifts all later ids.
    rows = np.flatnonzero(is_gap)
    is_first = np.zeros(len(is_gap), np.bool_)
    # Thread blocks are sorted by rank.
    is_first[rows[run_starts(rank[rows])]] = True
    findings.add_errors_at("thread-block-gap", is_first, line, message, rank=rank)


def _check_peers(
    name: str,
    peer: Int64Array,
    program: ThreadBlockProgram,
    findings: FileFindings,
) -> None:
    """Record errors for peers that are neither -1 (none) nor another rank.

    `name`: the attribute, `send` or `recv`. `peer`: its value for each thread block. A value below
    -1 or not below the number of ranks is a `peer-range`. The block's own rank is a `self-peer`. Of
    either code at most 5 errors are recorded, at the lines of the first blocks; the fifth counts
    the others.
    """
    rank, ids, line = program.block_rank, program.block_id, program.block_line
    num_ranks = program.num_ranks

    def message(row: int) -> str:
        expected = f"neither -1 nor a rank of 0..{num_ranks - 1}"
        return f"thread block {ids[row]}: {name} {peer[row]} is {expected}"

    # All parsers refuse a peer below -1.
    is_outside = (peer < -1) | (peer >= num_ranks)
    findings.add_errors_at("peer-range", is_outside, line, message, rank=rank)
    findings.add_errors_at(
        "self-peer",
        peer == rank,
        line,
        lambda row: f"thread block {ids[row]}: {name} {peer[row]} is its own rank",
        rank=rank,
    )


def _check_connections(
    direction: _MessageSide,
    program: ThreadBlockProgram,
    findings: FileFindings,
) -> None:
    """Record errors for message steps without a peer, and for connections with several users.

    A message step (a step of `direction.types`) whose thread block has a negative peer is a
    `no-peer`, at the line of the step.

    A connection is (rank, peer, channel) in one direction. If several thread blocks of a rank use
    one, its FIFO would be corrupted, so every user after the first, in the order of thread blocks,
    is a `shared-connection`, at the line of the block. A thread block that declares a peer but has
    no message step in this direction is not a user. Of either code at most 5 errors are recorded;
    the fifth counts the others.
    """
    peer = direction.peer
    is_message = program.is_type(*direction.types)
    is_lonely = is_message & (peer[program.block] < 0)

    def describe_missing_peer(step: int) -> str:
        attribute = f"{direction.attribute} {peer[program.block[step]]}"
        return (
            f"{program.name(step)}: a {direction.name} step, but its thread block has {attribute}"
        )

    findings.add_errors_at(
        "no-peer", is_lonely, program.line, describe_missing_peer, rank=program.rank
    )
    # A thread block that declares a peer but never uses it is harmless.
    uses = np.bincount(program.block[is_message], minlength=len(peer))
    users = np.flatnonzero((uses > 0) & (peer >= 0))
    rank, channel = program.block_rank, program.channel
    order = np.lexsort((users, channel[users], peer[users], rank[users]))
    users = users[order]
    # Sorted by connection, so a second owner directly follows the first.
    is_second = ~run_mask(rank[users], peer[users], channel[users])
    shared = np.zeros(len(rank), np.bool_)
    shared[users[is_second]] = True

    def describe_shared_connection(block: int) -> str:
        usage = f"{direction.name} {direction.preposition} rank {peer[block]}"
        return (
            f"thread block {program.block_id[block]} is the second one that is {usage}"
            f" on channel {channel[block]}"
        )

    findings.add_errors_at(
        "shared-connection",
        shared,
        program.block_line,
        describe_shared_connection,
        rank=program.block_rank,
        cure="use another channel on both ends",
    )


def _check_dependencies(program: ThreadBlockProgram, findings: FileFindings) -> None:
    """Record a `dangling-dependency` for each dependency on a step that cannot exist.

    The errors are a `depid` that is not below the number of thread blocks of the rank, then a
    negative `deps`; a step can have both. Of either kind at most 5 errors are recorded, at the
    first such steps; the fifth counts the others. A step with a negative `depid` has no dependency
    and is not checked. Whether the thread block has a step `deps` is not checked here.
    """
    rank, line = program.rank, program.line
    is_waiting = program.depid >= 0
    blocks_of_rank = np.diff(program.block_indptr)[rank]

    def no_block(step: int) -> str:
        has = f"the rank has {blocks_of_rank[step]} thread blocks"
        return f"{program.name(step)}: depid {program.depid[step]}, but {has}"

    def no_step(step: int) -> str:
        wait = f"depid {program.depid[step]} with deps {program.deps[step]}"
        return f"{program.name(step)}: {wait}, expected a step number"

    code = "dangling-dependency"
    is_beyond = is_waiting & (program.depid >= blocks_of_rank)
    findings.add_errors_at(code, is_beyond, line, no_block, rank=rank)
    is_negative = is_waiting & (program.deps < 0)
    findings.add_errors_at(code, is_negative, line, no_step, rank=rank)


def _warn_of_step_limits(program: ThreadBlockProgram, findings: FileFindings) -> None:
    """Add warnings to `findings` for attributes of steps that the runtimes refuse or misinterpret.

    Each code gives at most one warning, located at the first step (in the order of the table)
    that meets its condition. The message also gives the number of further such steps.

    - `count-limit`: the step is no nop and `cnt` is above 71.
    - `step-number`: `s` is not the position of the step in its thread block, counted from 0.
    - `nop-without-dependency`: the step is a nop and `depid` is negative.
    - `dependency-limit`: `depid` is above 127.
    """
    is_nop = program.is_type(StepType.NOP)
    rules = (
        (
            "count-limit",
            ~is_nop & (program.count > _MAX_COUNT),
            f"a cnt above {_MAX_COUNT} is refused by the runtimes",
        ),
        (
            "step-number",
            program.number != program.position,
            "s is not the position in the document, which is what counts",
        ),
        (
            # The runtimes' counter advances with the waits of a step, so it falls below the
            # position here.
            "nop-without-dependency",
            is_nop & (program.depid < 0),
            "a nop without dependency, so the runtimes miscount later steps",
        ),
        (
            "dependency-limit",
            program.depid > _MAX_DEPENDENCY_BLOCK,
            f"a depid above {_MAX_DEPENDENCY_BLOCK} is corrupted by the runtimes",
        ),
    )
    for code, mask, text in rules:
        message = partial(_describe_step, program, text)
        findings.warn_at(code, mask, program.line, message, rank=program.rank)


def _describe_step(
    program: ThreadBlockProgram,
    text: str,
    step: int,
) -> str:
    """Message that begins with the step's name."""
    return f"{program.name(step)}: {text}"
