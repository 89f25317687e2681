"""Records of all files as columns, and the calls that several ranks have recorded together."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from collhub_nccl_records import CallRecord, Member

from collhub_pytorch.calls import kind_of
from collhub_pytorch.nccl.ranks import JobRanks
from collhub_pytorch.rank_nodes import NONE

# Communicator, operation (if sequence numbers are per operation), sequence number. Messages have
# no communicator, and the number of their record.
CallKey = tuple[str, str, int]


@dataclass(slots=True)
class RecordedCalls:
    """Records of all files as columns; `kinds`: distinct calls (member, operation, bytes, ...).

    One row per record: `kind`: index of `kinds`; `sequence`, `line`; `duration_ns`, `start_ns`: -1
    without a time.
    """

    kinds: list[CallRecord] = field(default_factory=list)
    kind: array[int] = field(default_factory=lambda: array("q"))
    sequence: array[int] = field(default_factory=lambda: array("q"))
    duration_ns: array[int] = field(default_factory=lambda: array("q"))
    start_ns: array[int] = field(default_factory=lambda: array("q"))
    _number: dict[tuple[object, ...], int] = field(default_factory=dict)

    def add(self, record: CallRecord) -> None:
        """Append a record."""
        key = (record.member, record.operation, record.bytes, record.dtype, record.root)
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self.kinds)
            self.kinds.append(record)
        self.kind.append(number)
        self.sequence.append(record.sequence)
        self.duration_ns.append(_to_ns(record.duration_us))
        self.start_ns.append(_to_ns(record.start_us))

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def members(self) -> list[Member]:
        """Members of communicators, in the order of their first record."""
        return list(dict.fromkeys(kind.member for kind in self.kinds))


def _to_ns(time_us: float) -> int:
    return round(time_us * 1000) if 0 <= time_us < 1e15 else NONE


def match_records(
    calls: RecordedCalls, job: JobRanks, notes: list[str]
) -> dict[CallKey, dict[int, int]]:
    """Return the records (row by rank) of every call, in the order of the first record.

    Sequence numbers are common to all operations of a communicator, unless a rank has one
    number twice, with different operations. Equal records are dropped. `notes`: findings are
    appended.
    """
    rank_of_kind = [job.rank_of[record.member] for record in calls.kinds]
    operation_of: dict[tuple[int, str, int], str] = {}
    by_operation: set[str] = set()
    for kind, sequence in zip(calls.kind, calls.sequence, strict=True):
        record = calls.kinds[kind]
        call_key = (rank_of_kind[kind], record.member.communicator, sequence)
        if (
            sequence >= 0
            and operation_of.setdefault(call_key, record.operation) != record.operation
        ):
            by_operation.add(record.member.communicator)
    rows_of_call: dict[CallKey, dict[int, int]] = {}
    counters: dict[tuple[int, str], int] = defaultdict(int)
    repeated = 0
    for row, (kind, sequence) in enumerate(zip(calls.kind, calls.sequence, strict=True)):
        record, rank = calls.kinds[kind], rank_of_kind[kind]
        communicator = record.member.communicator
        if record.is_message or kind_of(record.operation) is None:
            rows_of_call["", "", row] = {rank: row}
            continue
        if sequence < 0:
            sequence = counters[rank, communicator]
            counters[rank, communicator] += 1
        word = record.operation if communicator in by_operation else ""
        rows = rows_of_call.setdefault((communicator, word, sequence), {})
        repeated += rank in rows
        rows.setdefault(rank, row)
    if repeated:
        notes.append(f"{repeated} records occur twice and are read once")
    _note_lost_numbers(rows_of_call, notes)
    return rows_of_call


def _note_lost_numbers(rows_of_call: Mapping[CallKey, object], notes: list[str]) -> None:
    """Report sequence numbers between the first and the last one that no rank has recorded."""
    bounds: dict[tuple[str, str], tuple[int, int, int]] = {}
    for communicator, word, sequence in rows_of_call:
        if communicator:
            series = (communicator, word)
            first, last, count = bounds.get(series, (sequence, sequence, 0))
            bounds[series] = min(first, sequence), max(last, sequence), count + 1
    lost = sum(last - first + 1 - count for first, last, count in bounds.values())
    if lost:
        notes.append(
            f"{lost} collectives have no record on any rank (gaps in the sequence numbers):"
            " small ones are not recorded, and records may be lost"
        )
