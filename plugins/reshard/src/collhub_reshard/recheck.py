"""Re-check the proof that an algorithm carries, from its tasks alone.

The bound is computed again from the hosts that are named: what a Hall set alone can send, what a
host must receive. The schedule is checked card by card, and the messages of the algorithm are held
against it. Nothing of the search is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

import numpy as np
from collhub_shardings import UnitTasks, unit_tasks

from collhub_reshard.proof import (
    STREAMS_SCHEMA,
    FlawError,
    Interval,
    check_labels,
    find_proof,
    is_covering,
    parse_move_object,
    place_on_hosts,
    report_flaw,
    report_valid_proof,
    require_list,
)
from collhub_reshard.recheck_streams import check_streams
from collhub_reshard.scheduling.host_tasks import (
    HostNetwork,
    HostTasks,
    build_host_tasks,
    find_host_network,
)
from hub_core.model import Algorithm, Diagnostic, HubError, JsonValue, StepKind
from hub_core.network import Topology
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions


@dataclass(frozen=True, slots=True)
class _ClaimedPiece:
    """A piece of the stated schedule, in seconds."""

    task: int
    sender: int
    start: Fraction
    duration: Fraction
    first: Fraction
    last: Fraction


@dataclass(frozen=True, slots=True)
class _Claim:
    """A proof with its tasks as they follow from its moves."""

    document: Mapping[str, JsonValue]
    units: UnitTasks
    tasks: HostTasks
    pieces: Sequence[_ClaimedPiece]


def check_schedule(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Recompute tasks, bound and schedule; compare the network with a topology that is named."""
    assert request.algorithm is not None
    document = find_proof(request.algorithm)
    if document is None:
        return CheckReport(ok=False, is_applicable=False)
    try:
        if document["schema"] == STREAMS_SCHEMA:
            return check_streams(request.algorithm, document, request.topology)
        check_labels(document)
        claim = _read_claim(document, request.topology)
        _check_schedule(claim)
        bound = _check_bound(claim)
        _check_status(claim, bound)
        _check_traffic(claim, request.algorithm)
    except FlawError as flaw:
        return report_flaw(flaw.diagnostic)
    except (HubError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        found = Diagnostic("reshard-form", f"the proof has not its form: {error}")
        return report_flaw(found)
    makespan = _compute_makespan(claim)
    verdict = _describe_verdict(claim, makespan, bound)
    unproved = _list_unproved(claim, bound, request.topology is not None)
    is_met = _is_met(claim, makespan, bound)
    return report_valid_proof(verdict, makespan, bound, is_met, _describe_binding(claim), unproved)


def _read_claim(document: Mapping[str, JsonValue], topology: Topology | None) -> _Claim:
    """Tasks from the stated moves, which must be the tasks that are stated."""
    moves = [
        parse_move_object(cast("Mapping[str, JsonValue]", entry))
        for entry in require_list(document["moves"])
    ]
    stated_hosts = np.asarray(document["host_of"], np.int64)
    sides = [side for move in moves for side in (move.source, move.destination)]
    if len(stated_hosts) != max(max(side.mesh.devices) for side in sides) + 1:
        raise FlawError("form", "the hosts are not those of the devices of the moves")
    units = unit_tasks([place_on_hosts(move, stated_hosts) for move in moves])
    network = _network(document)
    if topology is not None:
        real = find_host_network(topology, units.host_of)
        if (real.out_rate, real.in_rate) != (network.out_rate, network.in_rate):
            raise FlawError("topology", f"it is for other cards than those of {topology.name}")
    stated = [cast("Mapping[str, JsonValue]", entry) for entry in require_list(document["tasks"])]
    work = {cast("int", one["unit_task"]): Fraction(str(one["work"])) for one in stated}
    tasks = build_host_tasks(units, moves, network, work)
    _check_tasks(stated, tasks)
    return _Claim(document, units, tasks, list(_pieces(document)))


def _network(document: Mapping[str, JsonValue]) -> HostNetwork:
    rates = []
    for name in ("out_rate", "in_rate"):
        stated = cast("Mapping[str, str]", document[name])
        rates.append({int(host): Fraction(rate) for host, rate in stated.items()})
    return HostNetwork(rates[0], rates[1], int(cast("int", document["cards"])))


def _check_tasks(stated: Sequence[Mapping[str, JsonValue]], tasks: HostTasks) -> None:
    if len(stated) != len(tasks):
        raise FlawError("tasks", f"{len(stated)} tasks are stated, the specs give {len(tasks)}")
    for task, entry in enumerate(stated):
        if entry["unit_task"] != tasks.rows[task]:
            raise FlawError("tasks", f"task {task} is not unit task {entry['unit_task']!r:.40}")
        given = entry["bytes"], entry["senders"], entry["receivers"]
        if tasks.work[task] < 1:
            raise FlawError("tasks", f"task {task} is said to be less work than its bytes")
        real = tasks.bytes[task], list(tasks.senders[task]), list(tasks.receivers[task])
        if given != real:
            raise FlawError("tasks", f"task {task} is not the one that the specs give")


def _pieces(document: Mapping[str, JsonValue]) -> Iterator[_ClaimedPiece]:
    for entry in require_list(document["schedule"]):
        task, sender, *times = cast("list[str]", entry)
        start, duration, first, last = map(Fraction, times)
        yield _ClaimedPiece(int(task), int(sender), start, duration, first, last)


def _compute_makespan(claim: _Claim) -> Fraction:
    """When the last piece ends, in seconds."""
    # Stated times are checked against this one.
    return max((piece.start + piece.duration for piece in claim.pieces), default=Fraction(0))


def _check_schedule(claim: _Claim) -> None:
    """Every byte is sent once by a host that has it, and no card is asked for twice at a time."""
    tasks = claim.tasks
    parts: dict[int, list[Interval]] = {task: [] for task in range(len(tasks))}
    cards: dict[tuple[str, int], list[Interval]] = {}
    for piece in claim.pieces:
        if piece.sender not in tasks.senders[piece.task]:
            message = f"host {piece.sender} sends task {piece.task}, which it does not have"
            raise FlawError("sender", message)
        receivers = tasks.receivers[piece.task]
        share = (piece.last - piece.first) * tasks.bytes[piece.task] * tasks.work[piece.task]
        if piece.start < tasks.release[piece.task] * tasks.tick_s:
            raise FlawError("release", f"task {piece.task} starts before it is released")
        if piece.duration < share / tasks.network.rate(piece.sender, receivers):
            raise FlawError("duration", f"task {piece.task} is faster than the cards")
        parts[piece.task].append((piece.first, piece.last))
        span = (piece.start, piece.start + piece.duration)
        cards.setdefault(("out", piece.sender), []).append(span)
        for host in receivers:
            cards.setdefault(("in", host), []).append(span)
    for task, found in parts.items():
        if not is_covering(found):
            raise FlawError("coverage", f"task {task} is not sent as a whole")
    for (way, host), spans in cards.items():
        if _count_concurrent(spans) > tasks.cards:
            message = f"the cards {way} of host {host} do too much at once"
            raise FlawError("overlap", message)
    if _compute_makespan(claim) != Fraction(str(claim.document["makespan_s"])):
        raise FlawError("makespan", "the makespan is not that of the schedule")


def _count_concurrent(spans: Sequence[Interval]) -> int:
    # What ends makes room for what starts at the same time.
    """The largest number of spans that share a time."""
    events = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    # Sorted, -1 stands before 1 at one time.
    running = most = 0
    for _, change in events:
        running += change
        most = max(most, running)
    return most


def _check_bound(claim: _Claim) -> Fraction:
    """The bound that the named hosts or task prove; it must be the one that is stated."""
    stated = cast("Mapping[str, JsonValue]", claim.document["bound"])
    kind = str(stated["kind"])
    hosts = {int(cast("int", host)) for host in require_list(stated["hosts"])}
    task = int(cast("int", stated["task"]))
    is_task_named = kind == "task" and 0 <= task < len(claim.tasks)
    if len(hosts) != len(require_list(stated["hosts"])) or (task != -1 and not is_task_named):
        raise FlawError("bound", "the bound names a host twice, or a task that it does not use")
    proved = _compute_bound(claim, kind, hosts, task)
    if proved != Fraction(str(stated["seconds"])):
        message = f"the {kind} bound is {proved} s, not {stated['seconds']} s as claimed"
        raise FlawError("bound", message)
    return proved


def _compute_bound(claim: _Claim, kind: str, hosts: set[int], task: int) -> Fraction:
    tasks, network = claim.tasks, claim.tasks.network
    numbers = range(len(tasks))
    if kind == "nothing":
        return Fraction(0)
    if kind == "task":
        fastest = max(network.rate(host, tasks.receivers[task]) for host in tasks.senders[task])
        release = tasks.release[task] * tasks.tick_s
        return tasks.bytes[task] * tasks.work[task] / fastest + release
    if kind == "receiver":
        (host,) = hosts
        mine = [one for one in numbers if host in tasks.receivers[one]]
        load = Fraction(sum(tasks.bytes[one] for one in mine))
        first = min(tasks.release[one] for one in mine) * tasks.tick_s
        return load / (network.in_rate[host] * tasks.cards) + first
    everyone = {host for one in numbers for host in tasks.receivers[one]}
    whole = [one for one in numbers if set(tasks.receivers[one]) == everyone]
    skipped = set(whole) if kind == "exclusive" else set()
    forced = [one for one in numbers if set(tasks.senders[one]) <= hosts and one not in skipped]
    rate = sum((network.out_rate[host] for host in hosts), Fraction(0)) * tasks.cards
    time = Fraction(sum(tasks.bytes[one] for one in forced)) / rate
    slowest = min(network.in_rate[host] for host in everyone)
    return time + Fraction(sum(tasks.bytes[one] for one in skipped)) / slowest


def _check_status(claim: _Claim, bound: Fraction) -> None:
    """What is called optimal by its bound must meet it; nothing is below it."""
    makespan = _compute_makespan(claim)
    # Both were recomputed: one of the two computations would be wrong.
    if makespan < bound:
        raise FlawError("bound", "the schedule is faster than its bound: one of them is wrong")
    lower = Fraction(str(claim.document["lower_bound_s"]))
    if not bound <= lower <= makespan:
        message = f"the lower bound of {lower} s is not between {bound} s and the makespan"
        raise FlawError("bound", message)
    is_by_bound = claim.document["proof"] == "bound"
    # Solvers and heuristics claim no more than they say.
    if is_by_bound and not _is_met(claim, makespan, bound):
        raise FlawError("optimal", "called optimal by its bound, but it is longer")


def _check_traffic(claim: _Claim, algorithm: Algorithm) -> None:
    """Hosts that receive a task get at least its bytes from other hosts, tokens left aside."""
    steps = algorithm.steps
    host_of = claim.units.host_of
    unit_bytes = (algorithm.collective_bytes or 0) / algorithm.collective.unit_count
    rows = np.flatnonzero(steps.kind == StepKind.SEND)
    end = host_of[steps.peer[rows]]
    crosses = host_of[steps.rank[rows]] != end
    moved = np.bincount(end[crosses], steps.count[rows][crosses] * unit_bytes)
    for host in sorted({one for hosts in claim.tasks.receivers for one in hosts}):
        numbers = range(len(claim.tasks))
        due = sum(claim.tasks.bytes[one] for one in numbers if host in claim.tasks.receivers[one])
        if host >= len(moved) or moved[host] < due:
            raise FlawError("traffic", f"host {host} does not get the bytes of its tasks")


def _is_met(claim: _Claim, makespan: Fraction, bound: Fraction) -> bool:
    """Whether the bound alone proves that nothing is faster, without a solver."""
    # Whole tasks end at whole ticks only, of which a bound may fall short.
    are_whole = len({piece.task for piece in claim.pieces}) == len(claim.pieces)
    slack = claim.tasks.tick_s if are_whole else 0
    return makespan == bound or makespan - bound < slack


def _list_unproved(claim: _Claim, bound: Fraction, has_topology: bool) -> dict[str, str]:
    """Claims that no check proves, in words by the path of their field."""
    document = claim.document
    unproved = {
        "moves.name": "the names of tensors",
        "method": f"the method {document['method']!r:.40}",
    }
    lower = Fraction(str(document["lower_bound_s"]))
    if lower >= bound + claim.tasks.tick_s:
        unproved["lower_bound_s"] = f"the solver's bound of {float(lower):.6g} s"
    if document["proof"] == "solver":
        unproved["status"] = unproved["proof"] = "that the schedule is optimal, by the solver"
    if not has_topology:
        network = "the network cards, which are taken as stated: give --topology"
        unproved |= {
            f"{name}.{host}": network
            for name in ("in_rate", "out_rate")
            for host in cast("Mapping[str, JsonValue]", document[name])
        }
        unproved["cards"] = network
    return unproved


def _describe_verdict(
    claim: _Claim,
    makespan: Fraction,
    bound: Fraction,
) -> str:
    if _is_met(claim, makespan, bound):
        return "holds: no schedule is faster"
    gap = float(makespan / bound - 1) if bound else 0.0
    longer = f"at most {100 * gap:.3g} % longer than any schedule"
    if claim.document["proof"] == "solver":
        return f"holds: {longer}; the solver found no faster one, which is not checked again"
    return f"holds: {longer}"


def _describe_binding(claim: _Claim) -> str:
    stated = cast("Mapping[str, JsonValue]", claim.document["bound"])
    hosts = ", ".join(map(str, require_list(stated["hosts"])))
    return f"task {stated['task']}" if stated["kind"] == "task" else f"{stated['kind']} {hosts}"
