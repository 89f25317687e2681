"""Re-check the proof that an algorithm carries, using only its tasks.

The bound is recomputed from the hosts that the proof names: the data that only the senders of a
Hall set can send, or the data that a host must receive. The schedule is checked card by card, and
the messages of the algorithm are compared with it. No code of the search is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import cast

import numpy as np

from collhub_reshard.claims import ScheduleClaim, read_claim
from collhub_reshard.proof import (
    STREAMS_SCHEMA,
    FlawError,
    Interval,
    check_labels,
    find_proof,
    is_covering,
    parse_fraction,
    report_flaw,
    report_valid_proof,
    require_integer,
    require_list,
)
from collhub_reshard.recheck_streams import check_streams
from hub_core.model import Algorithm, Diagnostic, HubError, JsonValue, StepKind
from hub_core.network import Topology
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions


def check_schedule(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check the proof that a resharding algorithm carries; report the first flaw or the verdict.

    Tasks, bound, schedule, status and traffic are recomputed. With a topology in the request, the
    network of the proof is compared with it. Proofs of streams are checked by `check_streams`. The
    report is not applicable if the algorithm has no proof. A malformed proof gives a report with
    the flaw `reshard-form`. The request must have an algorithm.
    """
    assert request.algorithm is not None
    document = find_proof(request.algorithm)
    if document is None:
        return CheckReport(ok=False, is_applicable=False)
    try:
        if document["schema"] == STREAMS_SCHEMA:
            return check_streams(request.algorithm, document, request.topology)
        return _check_host_schedule(request.algorithm, document, request.topology)
    except FlawError as flaw:
        return report_flaw(flaw.diagnostic)
    except (HubError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        diagnostic = Diagnostic("reshard-form", f"the proof is malformed: {error}")
        return report_flaw(diagnostic)


def _check_host_schedule(
    algorithm: Algorithm, document: Mapping[str, JsonValue], topology: Topology | None
) -> CheckReport:
    """Check a proof of a schedule between hosts and return the report of the valid proof.

    The checks are, in this order: kind and status, the claim itself (`read_claim`), the
    schedule, the bound, the makespan and status, and the bytes that the algorithm sends to each
    host. `topology`: compared with the cards of the proof, None for no comparison. Raises
    `FlawError` for the first flaw, and `KeyError`, `TypeError`, `ValueError` or `HubError` for
    a malformed document.
    """
    check_labels(document)
    claim = read_claim(document, topology)
    _check_schedule(claim)
    bound = _check_bound(claim)
    # Whether the bound proves, without a solver, that no schedule is faster.
    is_met = claim.makespan <= _round_up(claim, bound)
    _check_status(claim, bound, is_met)
    _check_traffic(claim, algorithm)
    verdict = _describe_verdict(claim, bound, is_met)
    unproved = _list_unproved(claim, bound, topology is not None)
    claimed = cast("Mapping[str, JsonValue]", document["bound"])
    hosts = ", ".join(map(str, require_list(claimed["hosts"])))
    binding = (
        f"task {claimed['task']}" if claimed["kind"] == "task" else f"{claimed['kind']} {hosts}"
    )
    return report_valid_proof(verdict, claim.makespan, bound, is_met, binding, unproved)


def _check_schedule(claim: ScheduleClaim) -> None:
    """Check that the schedule of a proof is possible and has the stated makespan.

    Raises `FlawError` for the first contradiction. For one piece after the other: `sender` (a
    host sends data that it does not have), `release` (the piece starts too early), `duration` (it
    is faster than the cards). Then for each task `coverage` (parts are missing or sent twice),
    for each host and direction `overlap` (more pieces at once than cards), and `makespan`. A
    receiver uses one card of its host for each piece.
    """
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
    for task, intervals in parts.items():
        if not is_covering(intervals):
            raise FlawError(
                "coverage", f"task {task} is not sent completely, or a part is sent twice"
            )
    for (direction, host), spans in cards.items():
        if _count_concurrent(spans) > tasks.cards:
            message = (
                f"more pieces use the {direction} cards of host {host} at once than it has cards"
            )
            raise FlawError("overlap", message)
    if claim.makespan != parse_fraction(claim.document["makespan_s"], "makespan_s"):
        raise FlawError("makespan", "the makespan is not that of the schedule")


def _count_concurrent(spans: Sequence[Interval]) -> int:
    """Return the largest number of spans (start, end) that overlap at one time; 0 without spans.

    A span that ends does not overlap one that starts at the same time. Each span must end after it
    starts.
    """
    events = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    # Sorted, -1 precedes 1 at the same time.
    running = maximum = 0
    for _, change in events:
        running += change
        maximum = max(maximum, running)
    return maximum


# Kinds of bounds by hosts, see `Bound`; the kinds "task" and "nothing" name no host.
_KINDS_BY_HOSTS = ("receiver", "senders", "exclusive")


def _check_bound(claim: ScheduleClaim) -> Fraction:
    """Recompute the bound from the hosts or the task of the proof, and return it in seconds.

    Raises `FlawError` (`bound`) if the proof claims another bound, its kind is unknown or does not
    hold for these tasks and this schedule, or its hosts and task are not those that its kind needs:
    one host for "receiver", at least one for "senders" and "exclusive", a task for "task". A bound
    needs hosts or a task only of its own kind; the task of other kinds is -1.
    """
    claimed = cast("Mapping[str, JsonValue]", claim.document["bound"])
    kind = claimed["kind"]
    if kind not in ("nothing", "task", *_KINDS_BY_HOSTS):
        raise FlawError("bound", f"{kind!r:.40} is no kind of bound")
    named = [
        require_integer(host, "a host of the bound", 0) for host in require_list(claimed["hosts"])
    ]
    hosts = set(named)
    task = require_integer(claimed["task"], "the task of the bound", -1)
    is_task_known = 0 <= task < len(claim.tasks) if kind == "task" else task == -1
    if len(hosts) != len(named) or not is_task_known:
        raise FlawError("bound", "the bound names a host twice, or a task that it does not use")
    least, most = {"receiver": (1, 1), "task": (0, 0), "nothing": (0, 0)}.get(kind, (1, len(named)))
    if not least <= len(hosts) <= most or not hosts <= claim.tasks.network.out_rate.keys():
        raise FlawError("bound", f"hosts {named!r:.40} prove no bound of the kind {kind}")
    if kind == "task" and not claim.is_unsplit:
        message = "the bound by a task holds only for unsplit tasks, and the schedule splits tasks"
        raise FlawError("bound", message)
    if kind == "exclusive" and claim.tasks.cards > 1:
        message = f"the exclusive bound holds for one card per host, not for {claim.tasks.cards}"
        raise FlawError("bound", message)
    bound = _compute_bound(claim, kind, hosts, task)
    if bound != parse_fraction(claimed["seconds"], "the bound"):
        message = f"the {kind} bound is {bound} s, not {claimed['seconds']} s as claimed"
        raise FlawError("bound", message)
    return bound


def _compute_bound(claim: ScheduleClaim, kind: str, hosts: set[int], task: int) -> Fraction:
    """Compute the lower bound on the time of a schedule that hosts or a task prove, in seconds.

    - "nothing": 0
    - "task": the bytes of `task` at the rate from its fastest sender, plus its release
    - "receiver": all bytes for the one host in `hosts` at the rate of its cards, plus the earliest
      release of its tasks; raises `FlawError` if the host receives no bytes
    - "senders": the bytes of all tasks that only `hosts` can send, at the sum of their rates
    - "exclusive": as "senders", but tasks that every receiving host needs do not count there; their
      bytes at the rate of one card of the slowest receiving host are added

    The work of a strategy does not count, because a chain carries the bytes once.
    """
    tasks, network = claim.tasks, claim.tasks.network
    numbers = range(len(tasks))
    if kind == "nothing":
        return Fraction(0)
    if kind == "task":
        fastest = max(network.rate(host, tasks.receivers[task]) for host in tasks.senders[task])
        release = tasks.release[task] * tasks.tick_s
        return tasks.bytes[task] / fastest + release
    if kind == "receiver":
        (host,) = hosts
        received = [task_row for task_row in numbers if host in tasks.receivers[task_row]]
        if not received:
            raise FlawError("bound", f"host {host} receives nothing")
        load = Fraction(sum(tasks.bytes[task_row] for task_row in received))
        first = min(tasks.release[task_row] for task_row in received) * tasks.tick_s
        return load / (network.in_rate[host] * tasks.cards) + first
    everyone = {host for task_row in numbers for host in tasks.receivers[task_row]}
    shared = [task_row for task_row in numbers if set(tasks.receivers[task_row]) == everyone]
    skipped = set(shared) if kind == "exclusive" else set()
    forced = [
        task_row
        for task_row in numbers
        if set(tasks.senders[task_row]) <= hosts and task_row not in skipped
    ]
    rate = sum((network.out_rate[host] for host in hosts), Fraction(0)) * tasks.cards
    seconds = Fraction(sum(tasks.bytes[task_row] for task_row in forced)) / rate
    slowest = min(network.in_rate[host] for host in everyone)
    return seconds + Fraction(sum(tasks.bytes[task_row] for task_row in skipped)) / slowest


def _check_status(claim: ScheduleClaim, bound: Fraction, is_met: bool) -> None:
    """Raise `FlawError` if makespan, claimed lower bound or status contradict the recomputed bound.

    `bound`: the recomputed one, in seconds. Codes: `bound` if the schedule is faster than it, or if
    the claimed lower bound is not between it and the makespan (inclusive). `optimal` if the
    schedule is claimed optimal by its bound, but does not meet it. `is_met`: whether the makespan
    is at most the bound (`_round_up`).
    """
    makespan = claim.makespan
    # Both were recomputed, so one of the two computations would be wrong.
    if makespan < bound:
        raise FlawError("bound", "the schedule is faster than its bound: one of them is wrong")
    lower = parse_fraction(claim.document["lower_bound_s"], "lower_bound_s")
    if not bound <= lower <= makespan:
        message = f"the lower bound of {lower} s is not between {bound} s and the makespan"
        raise FlawError("bound", message)
    if claim.document["proof"] == "bound" and not is_met:
        raise FlawError("optimal", "claimed optimal by its bound, but the schedule is longer")


def _check_traffic(claim: ScheduleClaim, algorithm: Algorithm) -> None:
    """Check that the algorithm sends every host at least the bytes of its tasks from other hosts.

    For every host that receives a task, the SENDs of other hosts to it must have at least the
    sum of the bytes of its tasks. All SENDs between hosts count, also tokens, so that the check
    may accept too little data. Without a size of the algorithm, units have 0 bytes. Raises
    `FlawError` (`traffic`) for the first host with less.
    """
    steps = algorithm.steps
    host_of = claim.units.host_of
    unit_bytes = (algorithm.collective_bytes or 0) / algorithm.collective.unit_count
    rows = np.flatnonzero(steps.kind == StepKind.SEND)
    destination_host = host_of[steps.peer[rows]]
    crosses = host_of[steps.rank[rows]] != destination_host
    moved = np.bincount(destination_host[crosses], steps.count[rows][crosses] * unit_bytes)
    for host in sorted({host for hosts in claim.tasks.receivers for host in hosts}):
        required = sum(
            claim.tasks.bytes[task]
            for task, receivers in enumerate(claim.tasks.receivers)
            if host in receivers
        )
        if host >= len(moved) or moved[host] < required:
            raise FlawError("traffic", f"host {host} does not get the bytes of its tasks")


def _round_up(claim: ScheduleClaim, bound: Fraction) -> Fraction:
    """Round a bound in seconds up to integer ticks if every makespan is an integer number of ticks.

    That is so if tasks are not split and cards carry the bytes of every task once. Otherwise the
    bound is returned unchanged, because other strategies have other durations and ticks.
    """
    tick_s = claim.tasks.tick_s
    if not claim.is_unsplit or any(work != 1 for work in claim.tasks.work):
        return bound
    return math.ceil(bound / tick_s) * tick_s


def _list_unproved(claim: ScheduleClaim, bound: Fraction, has_topology: bool) -> dict[str, str]:
    """Return the claims that no check proves, as text by the path of their field.

    Always: the names of tensors and the method. The stated lower bound only if it exceeds the
    recomputed `bound`, rounded up; status and proof only if the solver claims them; the cards
    only if no topology was given to compare them with.
    """
    document = claim.document
    unproved = {
        "moves.name": "the names of tensors",
        "method": f"the method {document['method']!r:.40}",
    }
    lower = parse_fraction(document["lower_bound_s"], "lower_bound_s")
    if lower > _round_up(claim, bound):
        unproved["lower_bound_s"] = f"the solver's bound of {float(lower):.6g} s"
    if document["proof"] == "solver":
        unproved["status"] = unproved["proof"] = "that the schedule is optimal, by the solver"
    if not has_topology:
        network = "the network cards, taken from the proof: give --topology"
        unproved |= {
            f"{name}.{host}": network
            for name in ("in_rate", "out_rate")
            for host in cast("Mapping[str, JsonValue]", document[name])
        }
        unproved["cards"] = network
    return unproved


def _describe_verdict(claim: ScheduleClaim, bound: Fraction, is_met: bool) -> str:
    """Describe how far the schedule is proved to be from the fastest one.

    If the bound is met (`is_met`), no schedule is faster. Otherwise it is the largest possible
    excess in percent, which is 0 for a bound of 0, with a remark if a solver's claim of optimality
    is not checked.
    """
    if is_met:
        return "holds: no schedule is faster"
    gap = float(claim.makespan / bound - 1) if bound else 0.0
    longer = f"at most {100 * gap:.3g} % longer than any schedule"
    if claim.document["proof"] == "solver":
        return f"holds: {longer}; the solver's proof of optimality is not checked"
    return f"holds: {longer}"
