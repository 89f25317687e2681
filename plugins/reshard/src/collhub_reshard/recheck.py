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
    Interval,
    ProofFlawError,
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

    - No proof: a report that is not ok and not applicable.
    - A flaw: a report that is not ok, with verdict `wrong` and one diagnostic, `reshard-` and the
      code of the flaw, such as `reshard-bound`. A malformed proof, such as one without a member,
      has `reshard-form`.
    - Otherwise the report that is ok, with the percentage by which the schedule may be longer than
      the best one, and the claims that were not proved.

    Tasks, bound, schedule, status and traffic are recomputed. With a topology in the request, the
    network of the proof is compared with it. Proofs of streams are checked by `check_streams`.
    Raises `AssertionError` for a request without algorithm. `options` has no effect.
    """
    assert request.algorithm is not None
    document = find_proof(request.algorithm)
    if document is None:
        return CheckReport(ok=False, is_applicable=False)
    try:
        if document["schema"] == STREAMS_SCHEMA:
            return check_streams(request.algorithm, document, request.topology)
        return _check_host_schedule(request.algorithm, document, request.topology)
    except ProofFlawError as flaw:
        return report_flaw(flaw.diagnostic)
    except (HubError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        diagnostic = Diagnostic("reshard-form", f"the proof is malformed: {error}")
        return report_flaw(diagnostic)


def _check_host_schedule(
    algorithm: Algorithm, document: Mapping[str, JsonValue], topology: Topology | None
) -> CheckReport:
    """Check a proof of a schedule between hosts and return the report of the valid proof.

    The checks, in this order, with the codes of their `ProofFlawError`:

    1. kind and status: `form`. Values, cards (if `topology` is given) and tasks: `form`,
       `topology`, `tasks`.
    2. schedule: `_check_schedule`. Claimed bound equal to the recomputed one: `bound`.
    3. bound <= `lower_bound_s` (`form` if it is no fraction) <= makespan: `bound`. `proof` "bound"
       needs a makespan of at most the bound, rounded up to ticks: `optimal`.
    4. bytes that the algorithm sends to each host: `traffic`

    The report has the times in s and the findings of `_list_unproved`. If the makespan is above the
    bound, rounded up to ticks, the verdict has the excess over the bound in percent, and names a
    proof of a solver as unchecked. Other malformed values raise `LookupError`, `TypeError`,
    `ValueError` or `HubError`.
    """
    check_labels(document)
    claim = read_claim(document, topology)
    _check_schedule(claim)
    bound = _check_bound(claim)
    # Whether the bound proves, without a solver, that no schedule is faster.
    is_met = claim.makespan <= _round_up(claim, bound)
    # Both were recomputed, so one of the two computations would be wrong.
    if claim.makespan < bound:
        raise ProofFlawError("bound", "the schedule is faster than its bound: one of them is wrong")
    lower = parse_fraction(document["lower_bound_s"], "lower_bound_s")
    if not bound <= lower <= claim.makespan:
        message = f"the lower bound of {lower} s is not between {bound} s and the makespan"
        raise ProofFlawError("bound", message)
    if document["proof"] == "bound" and not is_met:
        raise ProofFlawError("optimal", "claimed optimal by its bound, but the schedule is longer")
    _check_traffic(claim, algorithm)
    verdict = "holds: no schedule is faster"
    if not is_met:
        gap = float(claim.makespan / bound - 1) if bound else 0.0
        verdict = f"holds: at most {100 * gap:.3g} % longer than any schedule"
        if document["proof"] == "solver":
            verdict += "; the solver's proof of optimality is not checked"
    unproved = _list_unproved(claim, bound, topology is not None)
    claimed = cast("Mapping[str, JsonValue]", document["bound"])
    hosts = ", ".join(map(str, require_list(claimed["hosts"])))
    binding = (
        f"task {claimed['task']}" if claimed["kind"] == "task" else f"{claimed['kind']} {hosts}"
    )
    return report_valid_proof(verdict, claim.makespan, bound, is_met, binding, unproved)


def _check_schedule(claim: ScheduleClaim) -> None:
    """Check that the schedule of a proof is possible and has the stated makespan.

    Raises `ProofFlawError` for the first contradiction. Each piece, in the order of the proof:

    - `sender`: the sender is no sender of the task (host that has the data at the start).
    - `release`: the piece starts before the release of its task.
    - `duration`: it takes less than bytes times work at the rate of one card. This is the lowest of
      the sender's rate out and all receivers' rates in.

    Then the entire schedule:

    - `coverage`: the pieces of a task leave a gap in 0..1 or overlap, or there are none.
    - `overlap`: more pieces use a host's cards in one direction at once than it has cards. A piece
      uses one card of its sender and of each receiver. Touching pieces do not overlap.
    - `makespan`: `makespan_s` is not the largest end of a piece (0 without pieces).

    Raises `ProofFlawError` (`form`) if `makespan_s` is no fraction as text, and `KeyError` if it is
    missing or a host has no rate.
    """
    tasks = claim.tasks
    parts: dict[int, list[Interval]] = {task: [] for task in range(len(tasks))}
    cards: dict[tuple[str, int], list[Interval]] = {}
    for piece in claim.pieces:
        if piece.sender not in tasks.senders[piece.task]:
            message = f"host {piece.sender} sends task {piece.task}, which it does not have"
            raise ProofFlawError("sender", message)
        receivers = tasks.receivers[piece.task]
        share = (piece.last - piece.first) * tasks.bytes[piece.task] * tasks.work[piece.task]
        if piece.start < tasks.release[piece.task] * tasks.tick_s:
            raise ProofFlawError("release", f"task {piece.task} starts before it is released")
        if piece.duration < share / tasks.network.rate(piece.sender, receivers):
            raise ProofFlawError("duration", f"task {piece.task} is faster than the cards")
        parts[piece.task].append((piece.first, piece.last))
        span = (piece.start, piece.start + piece.duration)
        cards.setdefault(("out", piece.sender), []).append(span)
        for host in receivers:
            cards.setdefault(("in", host), []).append(span)
    for task, intervals in parts.items():
        if not is_covering(intervals):
            raise ProofFlawError(
                "coverage", f"task {task} is not sent completely, or a part is sent twice"
            )
    for (direction, host), spans in cards.items():
        if _count_concurrent(spans) > tasks.cards:
            message = (
                f"more pieces use the {direction} cards of host {host} at once than it has cards"
            )
            raise ProofFlawError("overlap", message)
    if claim.makespan != parse_fraction(claim.document["makespan_s"], "makespan_s"):
        raise ProofFlawError("makespan", "the makespan is not that of the schedule")


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
    """Recompute the bound that a proof claims, and return it in exact seconds.

    `bound` of the document has `kind` (nothing, task, receiver, senders or exclusive), `hosts`,
    `task` and `seconds`. `_compute_bound` defines the kinds. The first of these defects raises
    `ProofFlawError` (`bound`):

    1. The kind is unknown.
    2. A host is listed twice, or `task` is no task. With another kind than "task" it must be -1.
    3. A host has no rate out, or the number of hosts is wrong: 1 for "receiver", at least 1 for
       "senders" and "exclusive", otherwise 0.
    4. "task" although the schedule splits a task, or "exclusive" although hosts have several cards.
    5. The host of "receiver" receives no task, or `seconds` differs from the result.

    A wrong type of `hosts` (integers of at least 0), `task` (an integer of at least -1) or
    `seconds` (a fraction) raises `ProofFlawError` (`form`). A missing member raises `KeyError`, a
    `bound` that is no object `TypeError`, and a bound by senders without tasks `ValueError`.
    """
    claimed = cast("Mapping[str, JsonValue]", claim.document["bound"])
    kind = claimed["kind"]
    if kind not in ("nothing", "task", *_KINDS_BY_HOSTS):
        raise ProofFlawError("bound", f"{kind!r:.40} is no kind of bound")
    named = [
        require_integer(host, "a host of the bound", 0) for host in require_list(claimed["hosts"])
    ]
    hosts = set(named)
    task = require_integer(claimed["task"], "the task of the bound", -1)
    is_task_known = 0 <= task < len(claim.tasks) if kind == "task" else task == -1
    if len(hosts) != len(named) or not is_task_known:
        raise ProofFlawError(
            "bound", "the bound names a host twice, or a task that it does not use"
        )
    least, most = {"receiver": (1, 1), "task": (0, 0), "nothing": (0, 0)}.get(kind, (1, len(named)))
    if not least <= len(hosts) <= most or not hosts <= claim.tasks.network.out_rate.keys():
        raise ProofFlawError("bound", f"hosts {named!r:.40} prove no bound of the kind {kind}")
    if kind == "task" and not claim.is_unsplit:
        message = "the bound by a task holds only for unsplit tasks, and the schedule splits tasks"
        raise ProofFlawError("bound", message)
    if kind == "exclusive" and claim.tasks.cards > 1:
        message = f"the exclusive bound holds for one card per host, not for {claim.tasks.cards}"
        raise ProofFlawError("bound", message)
    bound = _compute_bound(claim, kind, hosts, task)
    if bound != parse_fraction(claimed["seconds"], "the bound"):
        message = f"the {kind} bound is {bound} s, not {claimed['seconds']} s as claimed"
        raise ProofFlawError("bound", message)
    return bound


def _compute_bound(claim: ScheduleClaim, kind: str, hosts: set[int], task: int) -> Fraction:
    """Return the lower bound on the time of a schedule, proved by hosts or a task, in seconds.

    - "nothing": 0
    - "task": bytes of `task` / the highest rate from one of its senders, plus its release
    - "receiver": bytes of all tasks that the host receives / (rate in of its card * number of its
      cards), plus their earliest release. `hosts` must have exactly one host, otherwise
      `ValueError` is raised. Raises `ProofFlawError` (`bound`) if the host receives no task.
    - "senders", and any unknown kind: bytes of all tasks whose senders are all in `hosts` / (sum
      of the rates out of `hosts` * cards of a host). Releases do not count.
    - "exclusive": a task is shared if its receivers are all hosts that receive any task. The bound
      is that of "senders" without shared tasks, plus the bytes of all shared tasks / the lowest
      rate in of a card of a receiving host.

    The factor `work` of tasks (how many times a card carries their bytes) does not count in any
    kind. "senders" and "exclusive" raise `ZeroDivisionError` without hosts, and `ValueError` with
    hosts if there are no tasks.
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
            raise ProofFlawError("bound", f"host {host} receives nothing")
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


def _check_traffic(claim: ScheduleClaim, algorithm: Algorithm) -> None:
    """Check that SENDs of other hosts bring every host at least the bytes of its tasks.

    Only hosts that receive a task are checked, in ascending order. The bytes of a host are those of
    all SENDs from ranks on other hosts to ranks on it. They must be at least the sum of the bytes
    of the tasks that it receives. All SENDs between hosts count, also tokens, so that the check may
    accept too little data. A unit has `collective_bytes` / the number of units (not rounded), or 0
    bytes if the algorithm has no size. Raises `ProofFlawError` (`traffic`) for the first host with
    less, and for one that receives a task but is above all hosts that get a SEND. `IndexError` or
    `ValueError` pass through for a rank that the proof assigns to no host.
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
            raise ProofFlawError("traffic", f"host {host} does not get the bytes of its tasks")


def _round_up(claim: ScheduleClaim, bound: Fraction) -> Fraction:
    """Round a bound in seconds up to a multiple of the tick of the claimed tasks.

    The durations of all tasks are integer multiples of the tick, so every makespan is one
    too if no task is split and each task has work 1 (cards carry its bytes once). Otherwise
    return the bound unchanged: makespans can then have other fractions.
    """
    tick_s = claim.tasks.tick_s
    if not claim.is_unsplit or any(work != 1 for work in claim.tasks.work):
        return bound
    return math.ceil(bound / tick_s) * tick_s


def _list_unproved(claim: ScheduleClaim, bound: Fraction, has_topology: bool) -> dict[str, str]:
    """Return the claims that no check proves: by the path of their field, a text for the report.

    - `moves.name` and `method`: always
    - `lower_bound_s`: if the stated lower bound exceeds `bound` (recomputed, in seconds), which
      `_round_up` first rounds up to ticks where all makespans are ticks
    - `status` and `proof`: if the proof is by the `solver`
    - `in_rate.HOST` and `out_rate.HOST` for every host, and `cards`: without a topology

    Raises `KeyError` for a missing member, and `ProofFlawError` (`form`) for a lower bound that is
    no fraction as text.
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
