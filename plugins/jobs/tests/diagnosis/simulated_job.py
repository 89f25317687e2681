"""Simulate jobs that hang. The truth comes from the injected fault, not from a diagnosis.

Every rank executes a program of calls. A call starts on the device when the earlier calls of its
stream are complete, and completes when all its ranks have started it and agree on it. The state
without further progress is written as the dumps of a Flight Recorder.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dump_variants import Change, write_dumps

START_NS = 1_700_000_000_000_000_000
CALL_NS = 10**6

Shapes = list[list[int]]
Key = tuple[object, ...]


@dataclass(frozen=True)
class Call:
    """One action of a rank: a collective, a send, a receive, a batch of messages, or a stop.

    `peer`: the other rank of a message. `parts`: the messages of a batch. `eager`: a send that
    completes without its receive.
    """

    operation: str
    group: str = "0"
    sent: tuple[tuple[int, ...], ...] = ((1024,),)
    received: tuple[tuple[int, ...], ...] = ((1024,),)
    dtype: str = "BFloat16"
    peer: int = -1
    parts: tuple[Call, ...] = ()
    eager: bool = False

    @property
    def is_p2p(self) -> bool:
        return self.peer >= 0 or self.operation == "batch"


STOP = Call("stop")
"""The host of the rank executes no further action, for example because it waits for data."""


def send(peer: int, size: int = 64, group: str = "0", *, eager: bool = False) -> Call:
    return Call("send", group, ((size,),), ((),), peer=peer, eager=eager)


def receive(peer: int, size: int = 64, group: str = "0") -> Call:
    return Call("recv", group, ((),), ((size,),), peer=peer)


def batch(*parts: Call) -> Call:
    return Call("batch", parts[0].group, parts=parts)


@dataclass
class Issued:
    """A call that a rank issued, with its state on the device."""

    rank: int
    call: Call
    stream: str
    meetings: list[Key]
    number: int
    state: str = "scheduled"


@dataclass
class SimulatedJob:
    """Programs by rank, and faults of devices and of the network.

    `launch`: "blocking" (the host waits for every call), "streams" (one stream per group and pair)
    or "one-stream" (the host runs ahead; calls of a rank start in their order). `broken_devices`:
    (rank, position of its call) that never starts. `broken_network`: (group, number) of collectives
    that all ranks start and that never complete.
    """

    groups: Mapping[str, tuple[str, tuple[int, ...]]]
    programs: Sequence[Sequence[Call]]
    launch: str = "one-stream"
    backend: str = "nccl"
    broken_devices: frozenset[tuple[int, int]] = frozenset()
    broken_network: frozenset[tuple[str, int]] = frozenset()
    issued: list[list[Issued]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.issued = [[] for _ in self.programs]
        self.met: dict[Key, dict[int, Issued]] = defaultdict(dict)
        self._counts: dict[tuple[object, ...], int] = defaultdict(int)
        while sum(map(self._issue, range(self.size))) + sum(map(self._advance, range(self.size))):
            pass

    @property
    def size(self) -> int:
        return len(self.programs)

    def _issue(self, rank: int) -> bool:
        """Issue the next call of a rank unless its host waits; return whether it did."""
        issued, program = self.issued[rank], self.programs[rank]
        is_blocked = self.launch == "blocking" and issued and issued[-1].state != "completed"
        if is_blocked or len(issued) == len(program) or program[len(issued)] is STOP:
            return False
        call = program[len(issued)]
        kind = "p2p" if call.is_p2p else "collective"
        self._counts[rank, call.group, kind] += 1
        number = self._counts[rank, call.group, kind]
        meetings: list[Key] = [(call.group, number)]
        if call.is_p2p:
            meetings = []
            for part in call.parts or (call,):
                ends = (rank, part.peer) if part.operation == "send" else (part.peer, rank)
                self._counts[rank, call.group, *ends] += 1
                meetings.append((call.group, *ends, self._counts[rank, call.group, *ends]))
        pair = f"{min(rank, call.peer)}:{max(rank, call.peer)}" if call.peer >= 0 else ""
        one = Issued(rank, call, call.group + pair, meetings, number)
        issued.append(one)
        for meeting in meetings:
            self.met[meeting][rank] = one
        return True

    def _advance(self, rank: int) -> bool:
        """Start and complete calls of a rank; return whether one changed its state."""
        has_changed = False
        blocked: set[str] = set()
        for position, one in enumerate(self.issued[rank]):
            stream = one.stream if self.launch == "streams" else ""
            if one.state == "completed" or stream in blocked:
                continue
            if one.state == "scheduled" and (rank, position) not in self.broken_devices:
                one.state = "started"
                has_changed = True
            if one.state == "started" and self._is_complete(one):
                one.state = "completed"
                has_changed = True
                continue
            blocked.add(stream)
        return has_changed

    def _is_complete(self, one: Issued) -> bool:
        if not one.call.is_p2p:
            ranks = self.groups[one.call.group][1]
            ends = [self.met[one.meetings[0]].get(rank) for rank in ranks]
            return (
                all(end is not None and end.state != "scheduled" for end in ends)
                and one.meetings[0] not in self.broken_network
                and agree([end.call for end in ends if end is not None], ranks)
            )
        for part, meeting in zip(one.call.parts or (one.call,), one.meetings, strict=True):
            other = self.met[meeting].get(part.peer)
            if part.eager:
                continue
            if other is None or other.state == "scheduled":
                return False
            number = other.meetings.index(meeting)
            end = (other.call.parts or (other.call,))[number]
            if {part.sent, part.received} != {end.sent, end.received} or part.dtype != end.dtype:
                return False
        return True

    def partner_calls(self, one: Issued) -> list[Call]:
        """Calls of other ranks that meet a call."""
        return [
            part
            for meeting in one.meetings
            for rank, other in self.met[meeting].items()
            if rank != one.rank
            for part in other.call.parts or (other.call,)
        ]

    def partners(self, one: Issued) -> set[int]:
        """Ranks that an incomplete call waits for: they have not issued or not started it."""
        if not one.call.is_p2p:
            peers: Sequence[int] = self.groups[one.call.group][1]
            pairs = [(rank, one.meetings[0]) for rank in peers]
        else:
            pairs = [
                (part.peer, meeting)
                for part, meeting in zip(one.call.parts or (one.call,), one.meetings, strict=True)
            ]
        return {
            rank
            for rank, meeting in pairs
            if rank not in self.met[meeting] or self.met[meeting][rank].state == "scheduled"
        } - {one.rank}

    def hanging(self, rank: int) -> list[Issued]:
        """Incomplete calls of a rank in issue order."""
        return [one for one in self.issued[rank] if one.state != "completed"]

    def stuck_ranks(self) -> set[int]:
        return {rank for rank in range(self.size) if self.hanging(rank)}

    def waits(self) -> dict[int, set[int]]:
        """Ranks that each rank waits for, directly or through other ranks."""
        direct = {
            rank: set().union(*(self.partners(one) for one in self.hanging(rank)))
            for rank in range(self.size)
        }
        reached = {rank: set(ranks) for rank, ranks in direct.items()}
        for _ in range(self.size):
            for ranks in reached.values():
                ranks |= set().union(*(reached[one] for one in ranks))
        return reached

    def dump(self, rank: int) -> dict[str, Any]:
        """The values of the dump of a rank, in the format version 2.10."""
        entries: list[dict[str, Any]] = []
        status: dict[str, dict[str, int]] = {}
        names = list(self.groups)
        for position, one in enumerate(self.issued[rank]):
            entries += self._entries(rank, position, one, len(entries))
        for number, name in enumerate(names):
            if rank not in self.groups[name][1]:
                continue
            of_group = [
                one for one in self.issued[rank] if one.call.group == name and not one.call.is_p2p
            ]
            lists = {
                "enqueued": of_group,
                "started": [one for one in of_group if one.state != "scheduled"],
                "completed": [one for one in of_group if one.state == "completed"],
            }
            status[str(number)] = {
                f"last_{key}_collective": max((one.number for one in ones), default=-1)
                for key, ones in lists.items()
            }
        config = {
            name: {"name": name, "desc": description, "ranks": str(list(ranks))}
            for name, (description, ranks) in self.groups.items()
            if rank in ranks
        }
        return {
            "version": "2.10",
            "comm_lib_version": "2.27.5",
            "pg_config": config,
            "pg_status": status,
            "entries": entries,
        }

    def _entries(self, rank: int, position: int, one: Issued, first: int) -> list[dict[str, Any]]:
        counts = dict.fromkeys(("collective", "p2p"), 0)
        for earlier in self.issued[rank][: position + 1]:
            if earlier.call.group == one.call.group:
                counts["p2p" if earlier.call.is_p2p else "collective"] += 1
        created = START_NS + position * CALL_NS + rank * 1000
        ranks = self.groups[one.call.group][1]
        calls = list(one.call.parts or (one.call,))
        if one.call.parts:
            calls.append(Call("coalesced", one.call.group, (), ()))
        entries = []
        for index, call in enumerate(calls):
            operation = call.operation
            if call.peer >= 0:
                arrow = "->" if operation == "send" else "<-"
                operation += f" {ranks.index(rank)}{arrow}{ranks.index(call.peer)}"
            # The last entry of a batch has the state of the batch.
            state = one.state if index == len(calls) - 1 else "scheduled"
            is_done = state == "completed"
            entries.append(
                {
                    "record_id": first + index,
                    "pg_id": list(self.groups).index(one.call.group),
                    "process_group": (one.call.group, self.groups[one.call.group][0]),
                    "collective_seq_id": counts["collective"],
                    "p2p_seq_id": counts["p2p"],
                    "op_id": first + index + 1,
                    "profiling_name": f"{self.backend}:{operation}",
                    "time_created_ns": created,
                    "time_discovered_started_ns": None if state == "scheduled" else created + 5000,
                    "time_discovered_completed_ns": created + 90000 if is_done else None,
                    "input_sizes": [list(shape) for shape in call.sent],
                    "input_dtypes": [call.dtype] * len(call.sent),
                    "output_sizes": [list(shape) for shape in call.received],
                    "output_dtypes": [call.dtype] * len(call.received),
                    "state": state,
                    "retired": is_done,
                    "timeout_ms": 600000,
                    "is_p2p": one.call.is_p2p,
                    "frames": [{"name": "step", "filename": "train.py", "line": position}],
                }
            )
        return entries

    def write(
        self,
        folder: Path,
        without: Sequence[int] = (),
        change: Change | None = None,
        as_json: bool = False,
    ) -> None:
        """Write the dumps of all ranks but some, each after `change(rank, dump)`."""
        dumps = {rank: self.dump(rank) for rank in range(self.size) if rank not in without}
        write_dumps(folder, dumps, change, as_json=as_json)


def agree(calls: Sequence[Call], ranks: Sequence[int]) -> bool:
    """Whether the calls of a collective have one operation, one type and compatible sizes."""
    if len({call.operation for call in calls}) > 1 or len({call.dtype for call in calls}) > 1:
        return False
    if calls[0].operation == "all_to_all":
        return all(
            calls[a].sent[b] == calls[b].received[a]
            for a in range(len(ranks))
            for b in range(len(ranks))
        )
    if calls[0].operation == "all_to_all_single":
        sent = sum(math.prod(shape) for call in calls for shape in call.sent)
        return sent == sum(math.prod(shape) for call in calls for shape in call.received)
    return len({(call.sent, call.received) for call in calls}) == 1
