"""Recorded calls of all files as columns, and the ranks of the job that have issued them.

Ranks of the job follow from the ranks of communicators, by the processes that they have in common.
The largest communicator numbers the job if it includes every process. Otherwise processes are
numbered in the order of their names. A process with several ranks in a communicator drives several
devices, which are numbered in the order of these ranks.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collhub_nccl_records import CallRecord, Member, name_without_id

from collhub_pytorch.calls import GroupRecord, kind_of
from collhub_pytorch.rank_nodes import NONE
from hub_core.model import InputError, Location

MAX_RANKS = 1 << 20
# A process, and the position of a device among the devices that it drives.
Device = tuple[str, int]
_NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True, eq=False)
class JobRanks:
    """Ranks of the job: `rank_of` by member, `group_of` by communicator, `notes` for the user.

    `ranks_of`: ranks of the job by communicator, in the order of its ranks; -1 for members without
    a record. `ranks_per_node`: None if the records do not tell, see `find_ranks_per_node`.
    """

    world_size: int
    rank_of: Mapping[Member, int]
    group_of: Mapping[str, GroupRecord]
    ranks_of: Mapping[str, tuple[int, ...]]
    notes: tuple[str, ...] = ()
    ranks_per_node: int | None = None


def find_job_ranks(members: Sequence[Member], file: str) -> JobRanks:
    """Number the ranks of the job by its largest communicator, or by host and process.

    The size of a communicator is its recorded one, or the highest rank plus 1 if larger. The
    largest has the greatest size, then the most recorded ranks, then the last name. If it
    includes all devices (positions in processes), it gives the ranks and the size of the job.
    Otherwise devices are numbered by process (host2 before host10) and position, with a note.
    Further notes: a process with several devices, whose order is assumed equal everywhere;
    ranks without a record, which are -1 in `ranks_of`.

    Raises `ValueError` without members. Raises `InputError` (`communicator`) for a member
    without communicator, with a rank below 0 or not below the number of ranks, with over 2^20
    ranks, with another number than the first member, or whose rank is in two processes.
    """
    by_communicator: dict[str, dict[int, Member]] = defaultdict(dict)
    for member in members:
        _check_member(member, by_communicator[member.communicator], file)
        by_communicator[member.communicator].setdefault(member.rank, member)
    size_of = {
        name: max([max(ranks) + 1, *(member.rank_count for member in ranks.values())])
        for name, ranks in by_communicator.items()
    }
    device_of = _find_devices(by_communicator)
    devices = sorted(set(device_of.values()), key=_natural_order)
    world = max(size_of, key=lambda name: (size_of[name], len(by_communicator[name]), name))
    numbered = {device_of[world, rank]: rank for rank in by_communicator[world]}
    notes: list[str] = []
    world_size = size_of[world]
    if set(devices) - set(numbered):
        # No communicator includes all devices: their names order them.
        numbered = {device: rank for rank, device in enumerate(devices)}
        world_size, world = len(devices), ""
        notes.append(
            f"no communicator includes all {world_size} ranks: they are numbered by host and"
            " process"
        )
    if any(position for _, position in devices):
        notes.append("processes with several devices: their ranks have one order everywhere")
    rank_at = {member_key: numbered[device] for member_key, device in device_of.items()}
    ranks_of = {
        name: tuple(
            rank if name == world else rank_at.get((name, rank), -1) for rank in range(size)
        )
        for name, size in size_of.items()
    }
    rank_of = {member: rank_at[member.communicator, member.rank] for member in members}
    notes += _describe_unknown_members(ranks_of)
    names = {member.communicator: member.name for member in rank_of}
    group_of = {
        name: GroupRecord(names[name] or name, None if name == world else ranks)
        for name, ranks in ranks_of.items()
    }
    ranks_per_node = find_ranks_per_node(rank_of, world_size, world)
    return JobRanks(world_size, rank_of, group_of, ranks_of, tuple(notes), ranks_per_node)


def find_ranks_per_node(rank_of: Mapping[Member, int], world_size: int, world: str) -> int | None:
    """Return the number of ranks on each node, `world_size` / node count; None if it is unknown.

    The node count is the one that the members of communicator `world` recorded. Node i has the next
    `world_size` / node count consecutive ranks. None in these cases:

    - No member of `rank_of` belongs to `world`. An empty name means that no communicator has all
      ranks.
    - The node count is not recorded (0), differs between members, or does not divide `world_size`.
    - The members on a node have several hosts, or two nodes have the same host. The host is the
      name of the process up to its last `:`.

    Ranks without a member are not checked.
    """
    members = {rank: member for member, rank in rank_of.items() if member.communicator == world}
    counts = {member.node_count for member in members.values()}
    if len(counts) != 1 or (node_count := counts.pop()) < 1 or world_size % node_count:
        return None
    ranks_per_node = world_size // node_count
    hosts: dict[int, set[str]] = defaultdict(set)
    for rank, member in members.items():
        hosts[rank // ranks_per_node].add(member.process.rpartition(":")[0])
    is_one_each = all(len(names) == 1 for names in hosts.values())
    is_distinct = len(set().union(*hosts.values())) == len(hosts)
    return ranks_per_node if is_one_each and is_distinct else None


def _check_member(member: Member, known: Mapping[int, Member], file: str) -> None:
    label = f"communicator {member.communicator or '(without id)'!r:.40}"
    message = ""
    if not member.communicator or member.rank < 0:
        message = f"{label}: a record has no id or no rank of its communicator"
    elif member.rank >= (member.rank_count or MAX_RANKS):
        message = f"{label}: rank {member.rank} is not below its {member.rank_count} ranks"
    elif member.rank_count > MAX_RANKS:
        message = f"{label}: {member.rank_count} ranks; at most {MAX_RANKS} are read"
    for known_member in list(known.values())[:1]:
        if known_member.rank_count != member.rank_count:
            counts = f"{known_member.rank_count} ranks and {member.rank_count} ranks"
            message = f"{label} has {counts}"
    other_process = known.get(member.rank, member).process
    if other_process != member.process:
        pair = f"{other_process!r:.60} and {member.process!r:.60}"
        message = f"{label}: rank {member.rank} is in process {pair}"
    if message:
        cure = "name files of one run"
        if member.communicator == name_without_id(member.rank_count):
            cure += ", with one communicator of this size: lines of old releases lack the commId"
        raise InputError(message, location=Location(file), cure=cure, code="communicator")


def _find_devices(
    by_communicator: Mapping[str, Mapping[int, Member]],
) -> dict[tuple[str, int], Device]:
    """Return the device of every (communicator, rank): its process, and its position there.

    The position numbers the ranks of the communicator in this process in ascending order, from 0.
    """
    devices: dict[tuple[str, int], Device] = {}
    for name, ranks in by_communicator.items():
        positions: dict[str, int] = defaultdict(int)
        for rank, member in sorted(ranks.items()):
            devices[name, rank] = (member.process, positions[member.process])
            positions[member.process] += 1
    return devices


def _describe_unknown_members(ranks_of: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return a note on communicators of which some ranks have no record; [] without any.

    `ranks_of`: ranks of the job by communicator, negative for a rank without a record. It names the
    first three communicators and their number.
    """
    names = [name for name, ranks in ranks_of.items() if min(ranks) < 0]
    if not names:
        return []
    listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return [
        f"{len(names)} communicators ({listed:.80}) have ranks without a record: their calls count"
        " as communication without a group"
    ]


def _natural_order(device: Device) -> tuple[list[str], list[int], int]:
    """Return a sort key of a device in which numbers within names are compared as numbers.

    For example, host2 precedes host10. The texts between numbers are compared first, then the
    numbers (of each only the first 18 digits), then the device number.
    """
    pieces = _NUMBERS.split(device[0])
    return pieces[::2], [int(piece[:18]) for piece in pieces[1::2]], device[1]


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
        """Append a record of a call as a row of the columns.

        Records with equal member (rank of a communicator), operation, bytes, dtype and root
        have one number in the column `kind`; the first of them is stored in `kinds`. Times in
        us are rounded to ns. A time that is negative or at least 1e15 us counts as missing, -1.
        """
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
    """Group the records of all ranks by call; return {call: {rank: row}}.

    A call is (communicator, operation or "", sequence number). The first case that applies:

    - The record is a message or an unknown operation: ("", "", row), a call of one rank.
    - Some rank of the communicator has recorded one number for two operations (messages included):
      the key has the operation, because numbers count per operation.
    - Otherwise the operation in the key is "", because the numbers count all operations.

    Records without a number get 0, 1, ... by rank and communicator in the order of rows, even if
    these equal recorded numbers. Of several records of a rank for a call, the first counts. Calls,
    and ranks in a call, are in the order of their first record. `notes` gets, unless 0, the number
    of repeated records, then that of lost collectives: the gaps between the lowest and the highest
    number of each communicator, per operation if the key has it (3, 4 and 7 have 2 gaps).
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
    return rows_of_call
