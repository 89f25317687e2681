"""Ranks of the job from the ranks of communicators, by the processes that they have in common.

The largest communicator numbers the job if it includes every process. Otherwise processes are
numbered in the order of their names. A process with several ranks in a communicator drives several
devices, which are numbered in the order of these ranks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collhub_nccl_records import Member

from collhub_pytorch.calls import GroupRecord
from hub_core.model import InputError, Location

MAX_RANKS = 1 << 20
# A process, and the position of a device among the devices that it drives.
Device = tuple[str, int]
_NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True, eq=False)
class JobRanks:
    """Ranks of the job: `rank_of` by member, `group_of` by communicator, `notes` for the user.

    `ranks_of`: ranks of the job by communicator, in the order of its ranks; -1 for members without
    a record.
    """

    world_size: int
    rank_of: Mapping[Member, int]
    group_of: Mapping[str, GroupRecord]
    ranks_of: Mapping[str, tuple[int, ...]]
    notes: tuple[str, ...] = ()


def find_job_ranks(members: Sequence[Member], file: str) -> JobRanks:
    """Number the ranks of the job.

    Raises `InputError` if records of a communicator contradict each other.
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
    return JobRanks(world_size, rank_of, group_of, ranks_of, tuple(notes))


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
        raise InputError(message, location=Location(file), cure=cure, code="communicator")


def _find_devices(
    by_communicator: Mapping[str, Mapping[int, Member]],
) -> dict[tuple[str, int], Device]:
    """Return the device of every rank of every communicator."""
    devices: dict[tuple[str, int], Device] = {}
    for name, ranks in by_communicator.items():
        positions: dict[str, int] = defaultdict(int)
        for rank, member in sorted(ranks.items()):
            devices[name, rank] = (member.process, positions[member.process])
            positions[member.process] += 1
    return devices


def _describe_unknown_members(ranks_of: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Report communicators of which some ranks have no record, so that their process is unknown."""
    names = [name for name, ranks in ranks_of.items() if min(ranks) < 0]
    if not names:
        return []
    listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return [
        f"{len(names)} communicators ({listed:.80}) have ranks without a record: their calls count"
        " as communication without a group"
    ]


def _natural_order(device: Device) -> tuple[list[str], list[int], int]:
    """Order host2 before host10."""
    pieces = _NUMBERS.split(device[0])
    return pieces[::2], [int(piece[:18]) for piece in pieces[1::2]], device[1]
