"""An order in which one thread can run a program for all ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_execution.levelling.program import LevelledProgram, RecordKind
from collhub_execution.rendezvous.simulation import simulate_rendezvous
from hub_core.columns import Int64Array, ordinals, run_starts
from hub_core.model import Algorithm

_SignedArray = npt.NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True)
class RunOrder:
    """RECV, COPY and REDUCE records in an order in which they can run.

    `records[batches[k]:batches[k + 1]]` are of one kind and independent of each other.
    """

    records: Int64Array
    batches: Int64Array


def run_order(algorithm: Algorithm, program: LevelledProgram) -> RunOrder:
    """Return an order of all records.

    Raises `InputError` with the position of every rank if there is none.

    For a well levelled program the order is level by level, by the proof in `LevelledProgram`, with
    the k-th local records of all ranks together; any other program is simulated message by message.
    """
    if not is_well_levelled(program):
        records = simulate_rendezvous(algorithm, program)
        return RunOrder(records, np.arange(len(records) + 1))
    # A SEND moves no data: the RECV reads the sender's memory.
    moves = np.flatnonzero(program.kind != RecordKind.SEND)
    level = program.level[moves]
    is_local = program.is_local[moves]
    ordinal = _local_ordinals(program)[moves]
    is_reduction = program.kind[moves] == RecordKind.REDUCE
    order = np.lexsort((is_reduction, ordinal, is_local, level))
    keys = (level[order], is_local[order], ordinal[order], is_reduction[order])
    batches = np.append(run_starts(*keys), len(order))
    return RunOrder(moves[order], batches)


def _local_ordinals(program: LevelledProgram) -> Int64Array:
    """Return the number of preceding local records in the same rank and level; 0 for messages."""
    ordinal = np.zeros(len(program), np.int64)
    local = np.flatnonzero(program.is_local)
    # Records are sorted by rank, then level: one number for both preserves the order.
    groups = program.rank[local] * program.num_levels + program.level[local]
    ordinal[local] = ordinals(groups)
    return ordinal


def is_well_levelled(program: LevelledProgram) -> bool:
    """Return whether levels and order of the program are as required by `LevelledProgram`.

    Every message has one level and two ends that agree, and the records of every rank are sorted.
    """
    send, receive = program.message_ends()
    if not np.array_equal(program.message[send], program.message[receive]):
        return False
    is_numbered_once = len(np.unique(program.message[send])) == len(send)
    return is_numbered_once and _ends_agree(program, send, receive) and _is_in_order(program)


def _ends_agree(program: LevelledProgram, send: Int64Array, receive: Int64Array) -> bool:
    """Return whether both ends of every message have matching peers, levels and sizes."""
    rank = program.rank
    pairs: list[tuple[_SignedArray, _SignedArray]] = [
        (program.level[send], program.level[receive]),
        (program.count[send], program.count[receive]),
        (program.peer[send], rank[receive]),
        (rank[send], program.peer[receive]),
    ]
    return all(np.array_equal(at_send, at_receive) for at_send, at_receive in pairs)


def _is_in_order(program: LevelledProgram) -> bool:
    """Return whether records are sorted by rank, level, messages before local ones, message."""
    position = np.arange(len(program))
    # Local records of a level may have any order, but follow its messages.
    number = np.where(program.is_local, position, program.message)
    order = np.lexsort((number, program.is_local, program.level, program.rank))
    return np.array_equal(order, position)
