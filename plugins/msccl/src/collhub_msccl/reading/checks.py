"""Check what the runtimes take for granted: peers, thread block ids, connections, dependencies, limits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.header import AlgoHeader
from collhub_msccl.thread_block_program import RECEIVING, SENDING, StepType, ThreadBlockProgram

_MOST_COUNT = 71
_MOST_DEPENDENCY_BLOCK = 127


def check_program(program: ThreadBlockProgram, header: AlgoHeader, findings: FileFindings) -> None:
    """Record every defect of thread blocks and steps in `findings`; nothing is raised."""
    _check_blocks(program, findings)
    _check_connections(program, program.send, SENDING, "sending", findings)
    _check_connections(program, program.recv, RECEIVING, "receiving", findings)
    _check_steps(program, findings)
    _check_dependencies(program, findings)
    _warn_of_limits(program, header, findings)


def _check_blocks(program: ThreadBlockProgram, findings: FileFindings) -> None:
    rank, ids, line = program.block_rank, program.block_id, program.block_line
    expected = np.arange(len(ids)) - program.block_indptr[rank]
    repeated = np.concatenate([[False], (ids[1:] == ids[:-1]) & (rank[1:] == rank[:-1])])[
        : len(ids)
    ]
    wrong = (ids != expected) & ~repeated
    # One missing id shifts all later ones: only the first of a rank is told.
    first_wrong = np.zeros(len(ids), np.bool_)
    first_wrong[np.flatnonzero(wrong)[np.unique(rank[wrong], return_index=True)[1]]] = True
    findings.errors_at(
        "duplicate-thread-block",
        repeated,
        line,
        lambda row: f"a second thread block has id {ids[row]}",
        rank=rank,
    )
    findings.errors_at(
        "thread-block-gap",
        first_wrong & ~_has_any(repeated, rank, program.num_ranks)[rank],
        line,
        lambda row: (
            f"thread block ids must be 0, 1, 2, ...: {ids[row]} stands where {expected[row]} is expected"
        ),
        rank=rank,
    )
    for name, peer in (("send", program.send), ("recv", program.recv)):
        _check_peers(name, peer, program, findings)
    findings.errors_at(
        "channel-range",
        program.channel < 0,
        line,
        lambda row: f"thread block {ids[row]}: chan {program.channel[row]} is negative",
        rank=rank,
    )


def _check_peers(
    name: str, peer: npt.NDArray[np.int64], program: ThreadBlockProgram, findings: FileFindings
) -> None:
    rank, ids, line, n = program.block_rank, program.block_id, program.block_line, program.num_ranks
    outside = (peer < -1) | (peer >= n)
    findings.errors_at(
        "peer-range",
        outside,
        line,
        lambda row: (
            f"thread block {ids[row]}: {name} {peer[row]} is neither -1 nor a rank of 0..{n - 1}"
        ),
        rank=rank,
    )
    findings.errors_at(
        "self-peer",
        peer == rank,
        line,
        lambda row: f"thread block {ids[row]}: {name} {peer[row]} is the own rank",
        rank=rank,
    )


def _check_connections(
    program: ThreadBlockProgram,
    peer: npt.NDArray[np.int64],
    types: tuple[StepType, ...],
    what: str,
    findings: FileFindings,
) -> None:
    """Each (rank, peer, channel) belongs to one thread block per direction; two owners corrupt the runtimes' FIFO."""
    is_message = program.is_type(*types)
    users = np.unique(program.block[is_message])
    without = is_message & (peer[program.block] < 0)
    name = "send" if what == "sending" else "recv"
    findings.errors_at(
        "no-peer",
        without,
        program.line,
        lambda row: (
            f"{program.name(row)}: a {what} step, but its thread block has {name} {peer[program.block[row]]}"
        ),
        rank=program.rank,
    )
    users = users[peer[users] >= 0]
    users = users[
        np.lexsort((users, program.channel[users], peer[users], program.block_rank[users]))
    ]
    key = np.stack([program.block_rank[users], peer[users], program.channel[users]])
    shared = np.zeros(len(program.block_id), np.bool_)
    shared[users[1:][np.all(key[:, 1:] == key[:, :-1], axis=0)]] = True
    direction = "to" if what == "sending" else "from"
    findings.errors_at(
        "shared-connection",
        shared,
        program.block_line,
        lambda row: (
            f"thread block {program.block_id[row]} is the second one that is {what} {direction} rank {peer[row]}"
            f" on channel {program.channel[row]}"
        ),
        rank=program.block_rank,
        cure="use another channel on both ends",
    )


def _check_steps(program: ThreadBlockProgram, findings: FileFindings) -> None:
    findings.errors_at(
        "count-range",
        (program.count < 1) & ~program.is_type(StepType.NOP),
        program.line,
        lambda row: (
            f"{program.name(row)}: cnt {program.count[row]} moves nothing, expected 1 or more"
        ),
        rank=program.rank,
    )


def _check_dependencies(program: ThreadBlockProgram, findings: FileFindings) -> None:
    waits = program.depid >= 0
    blocks_of_rank = np.diff(program.block_indptr)[program.rank]
    dangling = waits & (program.depid >= blocks_of_rank)
    findings.errors_at(
        "dangling-dependency",
        dangling,
        program.line,
        lambda row: (
            f"{program.name(row)}: depid {program.depid[row]}, but the rank has {blocks_of_rank[row]} thread blocks"
        ),
        rank=program.rank,
    )
    findings.errors_at(
        "dangling-dependency",
        waits & (program.deps < 0),
        program.line,
        lambda row: (
            f"{program.name(row)}: depid {program.depid[row]} with deps {program.deps[row]}, expected a step number"
        ),
        rank=program.rank,
    )


def _warn_of_limits(
    program: ThreadBlockProgram, header: AlgoHeader, findings: FileFindings
) -> None:
    is_nop, rank, line = program.is_type(StepType.NOP), program.rank, program.line
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
    for code, mask, message in rules:
        findings.warn_at(
            code,
            mask,
            line,
            lambda row, message=message: f"{program.name(row)}: {message}",
            rank=rank,
        )  # type: ignore[misc]
    too_high = program.channel >= header.channel_count
    findings.warn_at(
        "channel-count",
        too_high,
        program.block_line,
        lambda row: (
            f"chan {program.channel[row]} needs nchannels of {program.channel[row] + 1} or more"
        ),
        rank=program.block_rank,
    )


def _has_any(
    mask: npt.NDArray[np.bool_], rank: npt.NDArray[np.int64], num_ranks: int
) -> npt.NDArray[np.bool_]:
    found = np.zeros(num_ranks, np.bool_)
    found[rank[mask]] = True
    return found
