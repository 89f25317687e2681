"""The claims in a proof of a schedule, with the tasks that follow from its moves.

Every number has its type and its range; a proof with any other value is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

from collhub_shardings import UnitTasks, unit_tasks

from collhub_reshard.proof import (
    ProofFlawError,
    parse_fraction,
    parse_move_object,
    place_on_hosts,
    read_hosts,
    require_integer,
    require_list,
)
from collhub_reshard.scheduling.host_tasks import (
    HostNetwork,
    HostTasks,
    build_host_tasks,
    find_host_network,
)
from hub_core.model import JsonValue
from hub_core.network import Topology

# Hosts have at most seven digits (`read_hosts`).
_HOST = re.compile(r"0|[1-9][0-9]{0,6}")


@dataclass(frozen=True, slots=True)
class ClaimedPiece:
    """A piece of the schedule in the proof.

    `start`, `duration`: seconds, from 0 on; `first`, `last`: fractions of the task, with 0 <= first
    < last <= 1.
    """

    task: int
    sender: int
    start: Fraction
    duration: Fraction
    first: Fraction
    last: Fraction


@dataclass(frozen=True, slots=True)
class ScheduleClaim:
    """A proof with the tasks that follow from its moves.

    `makespan`: the largest end of a piece, in exact seconds; 0 without pieces.
    """

    document: Mapping[str, JsonValue]
    units: UnitTasks
    tasks: HostTasks
    pieces: Sequence[ClaimedPiece]
    makespan: Fraction

    @property
    def is_unsplit(self) -> bool:
        """Whether no task has more than one piece."""
        return len({piece.task for piece in self.pieces}) == len(self.pieces)


def read_claim(document: Mapping[str, JsonValue], topology: Topology | None) -> ScheduleClaim:
    """Return the claims of a proof document of a schedule, with times and rates as exact fractions.

    Members are read and checked in the order moves, hosts, rates, cards, topology, tasks, schedule.
    The tasks are built from the moves and must be those that the proof lists. The makespan is the
    largest end of a piece in seconds, 0 without pieces. Raises `ProofFlawError` for the first flaw:

    - "form": a value has another type or range, or the hosts do not fit the moves.
    - "topology": `topology` is given, and the proof has other rates than its hosts, or more than
      one card per host.
    - "tasks": a task has a work below 1, or the tasks are not those that follow from the moves.

    Raises `KeyError` for a missing member, `TypeError` if a list is missing, and `ValueError` or
    `HubError` for text that does not parse.
    """
    moves = [
        parse_move_object(cast("Mapping[str, JsonValue]", entry))
        for entry in require_list(document["moves"])
    ]
    host_of = read_hosts(document, moves)
    units = unit_tasks([place_on_hosts(move, host_of) for move in moves])
    network = HostNetwork(
        _read_rates(document, "out_rate"),
        _read_rates(document, "in_rate"),
        require_integer(document["cards"], "the number of cards", 1),
    )
    if topology is not None:
        actual = find_host_network(topology, units.host_of)
        # The rate of a host of a topology is that of all its links together.
        if (actual.out_rate, actual.in_rate, 1) != (
            *(network.out_rate, network.in_rate),
            network.cards,
        ):
            raise ProofFlawError(
                "topology", f"the proof is for cards other than those of {topology.name}"
            )
    task_entries = [
        cast("Mapping[str, JsonValue]", entry) for entry in require_list(document["tasks"])
    ]
    work: dict[int, Fraction] = {}
    for task, entry in enumerate(task_entries):
        row = require_integer(entry["unit_task"], "a unit task", 0)
        # How many times the busiest network card carries the bytes of the task.
        work[row] = parse_fraction(entry["work"], f"the work of task {task}")
        if work[row] < 1:
            raise ProofFlawError("tasks", f"task {task} has less work than its bytes")
    tasks = build_host_tasks(units, moves, network, work)
    _check_tasks(task_entries, tasks)
    pieces = list(_read_pieces(document, len(tasks)))
    makespan = max((piece.start + piece.duration for piece in pieces), default=Fraction(0))
    return ScheduleClaim(document, units, tasks, pieces, makespan)


def _read_rates(document: Mapping[str, JsonValue], name: str) -> dict[int, Fraction]:
    """Return the rates in the member `name` of a proof, in bytes per second by host.

    The member must be an object (not checked). Its names are hosts, its values are
    texts such as `3` or `51/64`, without sign, point, exponent or blank. Raise
    `KeyError` if the member is missing. Raise `ProofFlawError` ("form") for:

    - a host that is not 0 to 9999999 in decimal digits without leading zeros
    - a rate that is no such text, has the denominator 0, or is 0
    """
    entries = cast("Mapping[str, JsonValue]", document[name])
    rates = {}
    for host, text in entries.items():
        # `int` would accept " 1", "01" and "1_0", so that two members could name one host.
        if not _HOST.fullmatch(host):
            raise ProofFlawError(
                "form", f"{name} has the host {host!r:.40}, expected a whole number"
            )
        rate = parse_fraction(text, f"{name}.{host}")
        if not rate:
            raise ProofFlawError("form", f"{name}.{host} is 0, expected a rate above 0")
        rates[int(host)] = rate
    return rates


def _check_tasks(task_entries: Sequence[Mapping[str, JsonValue]], tasks: HostTasks) -> None:
    """Raise `ProofFlawError` unless a proof has the tasks that follow from its moves.

    `task_entries`: as in the proof; `tasks`: as they follow from the moves. The checks, in this
    order:

    1. Both have equal numbers of tasks; otherwise the code is `tasks`.
    2. Entry by entry: `unit_task` equals that of the task at this position (`tasks`). Then `bytes`,
       and each host in `senders` and `receivers`, is an integer from 0 on (`form`); 1024.0 and true
       are refused. Then bytes, senders and receivers equal those of the task (`tasks`). Hosts must
       have the same order.

    Raises `KeyError` for a missing member, and `TypeError` if `senders` or `receivers` is no list.
    """
    if len(task_entries) != len(tasks):
        raise ProofFlawError(
            "tasks", f"the proof has {len(task_entries)} tasks, the specs give {len(tasks)}"
        )
    for task, entry in enumerate(task_entries):
        if entry["unit_task"] != tasks.rows[task]:
            raise ProofFlawError(
                "tasks", f"task {task} is not unit task {entry['unit_task']!r:.40}"
            )
        # 1024.0 and true are equal to 1024 and 1, and are no integers.
        size = require_integer(entry["bytes"], f"the bytes of task {task}", 0)
        senders, receivers = (
            tuple(
                require_integer(host, f"a host in {name} of task {task}", 0)
                for host in require_list(entry[name])
            )
            for name in ("senders", "receivers")
        )
        actual = tasks.bytes[task], tasks.senders[task], tasks.receivers[task]
        if (size, senders, receivers) != actual:
            raise ProofFlawError("tasks", f"task {task} differs from the one that the specs give")


def _read_pieces(document: Mapping[str, JsonValue], task_count: int) -> Iterator[ClaimedPiece]:
    """Yield the pieces of the schedule in the proof: task, sender, start and duration in exact
    seconds, and the first and last fraction of the task.

    Raises `ProofFlawError` ("form") for a task that does not exist, a time below 0 or an empty
    part, and `TypeError` or `ValueError` for entries of another form.
    """
    for number, entry in enumerate(require_list(document["schedule"])):
        task, sender, *times = require_list(entry)
        where = f"of piece {number}"
        start, duration, first, last = (parse_fraction(time, f"a value {where}") for time in times)
        if first >= last:
            raise ProofFlawError(
                "form", f"the part {where} is {first} to {last}, expected first < last"
            )
        yield ClaimedPiece(
            require_integer(task, f"the task {where}", 0, task_count - 1),
            require_integer(sender, f"the sender {where}", 0),
            *(start, duration, first, last),
        )
