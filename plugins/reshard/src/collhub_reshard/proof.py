"""The proof that an algorithm carries: building its document, and reading the claims in it.

Tasks, schedule and bound are exact numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import cast

import numpy as np
from collhub_shardings import Move, UnitTasks, parse_side, parse_tensor

from collhub_reshard.fabric_streams import StreamPlan
from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import HostSchedule
from hub_core import is_finite_number
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, Diagnostic, JsonValue
from hub_core.plugin_api import CheckReport


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """Times of a plan and their proof.

    Times in seconds, without latency and store-and-forward. `status`, `proof`, `method`: as in
    `HostSchedule`. `kind`, `hosts`, `task`: as in `Bound`, or the kind `links` for a bound by
    `weights` of links (by row of the topology). `gap`: excess over the bound, as a fraction of it.
    """

    makespan_s: float
    bound_s: float
    status: str
    proof: str
    method: str
    gap: float
    kind: str
    hosts: tuple[int, ...] = ()
    task: int = -1
    weights: Mapping[int, int] = field(default_factory=dict)


def summarize_schedule(tasks: HostTasks, schedule: HostSchedule) -> PlanOutcome:
    """Return the outcome of a schedule: its makespan, bound and gap, and the proof of the bound.

    `makespan_s` (0 without pieces) and `bound_s` are ticks converted to float seconds. `bound_s`,
    `kind`, `hosts` and `task` are those of `schedule.bound`; `weights` has its default. Status,
    proof, method and gap are those of the schedule. The gap refers to `schedule.lower_bound_ticks`,
    the best known bound, which may be higher than `bound_s`, as it can come from the solver. It is
    the makespan divided by this bound, minus 1, or 0.0 for a bound of 0.
    """
    bound = schedule.bound
    return PlanOutcome(
        tasks.seconds(schedule.makespan),
        tasks.seconds(bound.ticks),
        schedule.status,
        schedule.proof,
        schedule.method,
        schedule.gap,
        bound.kind,
        bound.hosts,
        bound.task,
    )


def summarize_streams(plan: StreamPlan) -> PlanOutcome:
    """Return the outcome of a plan of streams, with makespan and lower bound in seconds.

    - status: `optimal` with proof `bound` if makespan and bound are exactly equal, otherwise
      `feasible` with proof `none`
    - method: `streams`
    - gap: makespan / bound - 1; 0.0 if the bound is 0
    - kind of bound: `links`, or `nothing` for a plan without deliveries
    - weights: those of the links in the proof of the bound
    """
    is_optimal = plan.is_optimal
    return PlanOutcome(
        float(plan.makespan_s),
        float(plan.bound.time_s),
        "optimal" if is_optimal else "feasible",
        "bound" if is_optimal else "none",
        "streams",
        plan.gap,
        "links" if plan.deliveries else "nothing",
        weights=plan.bound.weights,
    )


PROOF_SCHEMA = "collhub-reshard/proof-1"
STREAMS_SCHEMA = "collhub-reshard/streams-1"
_KEY = "reshard"


def find_proof(algorithm: Algorithm) -> dict[str, JsonValue] | None:
    """Return the proof document of an algorithm, the extension `reshard`, or None if it has none.

    The extension counts only if it is an object whose `schema` is one of the two of this
    plugin (`PROOF_SCHEMA`, `STREAMS_SCHEMA`), because another producer may use the same
    name. The document is not copied, and not checked further.
    """
    document = algorithm.extensions.get(_KEY)
    # Another producer may use the same name for its extension.
    if isinstance(document, dict) and document.get("schema") in (PROOF_SCHEMA, STREAMS_SCHEMA):
        return document
    return None


def build_schedule_document(
    moves: Sequence[Move], units: UnitTasks, tasks: HostTasks, schedule: HostSchedule
) -> dict[str, JsonValue]:
    """Build the JSON object that proves a schedule of network cards, which an algorithm carries.

    Its keys:

    - `schema` (`PROOF_SCHEMA`), `moves`: one object per move (`_convert_move`), in their order
    - `host_of`: host of every device; `cards`: number of network cards of a host
    - `out_rate`, `in_rate`: rate of one card by host (ascending), in bytes/s
    - `tasks`: one object per task between hosts, in order; `work`: how often a card carries it
    - `schedule`: one list per piece, in the order of the schedule: task, sender, start,
      duration, first and last fraction of the task's bytes (from 0 to 1)
    - `makespan_s`: end of the last piece
    - `bound`: `kind`, `seconds`, `hosts` and `task` of `schedule.bound`
    - `lower_bound_s`: the best known bound, which includes the solver's
    - `status`, `proof`, `method`: those of the schedule

    All times are in seconds. Times, rates and fractions are exact fractions as text, such as
    `3/2`; times in `moves` are numbers instead. Tasks, senders and hosts are numbers.
    """
    network = tasks.network
    hosts = sorted(network.out_rate)
    bound = schedule.bound
    return {
        "schema": PROOF_SCHEMA,
        "moves": [_convert_move(move) for move in moves],
        "host_of": units.host_of.tolist(),
        "cards": network.cards,
        "out_rate": {str(host): str(network.out_rate[host]) for host in hosts},
        "in_rate": {str(host): str(network.in_rate[host]) for host in hosts},
        "tasks": [
            {
                "unit_task": tasks.rows[task],
                "bytes": tasks.bytes[task],
                "senders": list(tasks.senders[task]),
                "receivers": list(tasks.receivers[task]),
                "work": str(tasks.work[task]),
            }
            for task in range(len(tasks))
        ],
        "schedule": [
            [
                piece.task,
                piece.sender,
                _format_seconds(tasks, piece.start),
                _format_seconds(tasks, piece.duration),
                str(piece.first),
                str(piece.last),
            ]
            for piece in schedule.pieces
        ],
        "makespan_s": _format_seconds(tasks, schedule.makespan),
        "bound": {
            "kind": bound.kind,
            "seconds": _format_seconds(tasks, bound.ticks),
            "hosts": list(bound.hosts),
            "task": bound.task,
        },
        "lower_bound_s": _format_seconds(tasks, schedule.lower_bound_ticks),
        "status": schedule.status,
        "proof": schedule.proof,
        "method": schedule.method,
    }


def build_stream_document(
    moves: Sequence[Move], units: UnitTasks, plan: StreamPlan
) -> dict[str, JsonValue]:
    """Return the JSON document that proves a plan of streams; an algorithm has it as an extension.

    Exact numbers are fractions as text, such as `3/2`. The keys are:

    - `schema`: `STREAMS_SCHEMA`. `moves`: one object per move, in order (`_convert_move`).
    - `host_of`: host of every device, -1 if no move uses it. `npus`, `nodes`: their numbers.
    - `links`: the columns source, destination and bandwidth (bytes/s), with one entry per link.
    - `streams`: [delivery, edges, begin, end] of each stream of the plan. Begin and end are exact
      fractions of the delivery. `makespan_s`: exact.
    - `bound`: `kind` (`links`, or `nothing` without deliveries), exact `seconds`, and `weights` as
      [link, weight], ascending by link.
    - `status`, `proof`: `optimal`, `bound` if the makespan equals the bound, otherwise `feasible`,
      `none`. `method`: `streams`.
    """
    topology = plan.fabric.topology
    columns = (topology.source, topology.destination, topology.bandwidth_bytes_per_s)
    outcome = summarize_streams(plan)
    return {
        "schema": STREAMS_SCHEMA,
        "moves": [_convert_move(move) for move in moves],
        "host_of": units.host_of.tolist(),
        "npus": topology.num_npus,
        "nodes": topology.num_nodes,
        "links": [column.tolist() for column in columns],
        "streams": [
            [
                stream.delivery,
                [list(edge) for edge in stream.edges],
                str(stream.part[0]),
                str(stream.part[1]),
            ]
            for stream in plan.streams
        ],
        "makespan_s": str(plan.makespan_s),
        "bound": {
            "kind": outcome.kind,
            "seconds": str(plan.bound.time_s),
            "weights": [[link, weight] for link, weight in sorted(plan.bound.weights.items())],
        },
        "status": outcome.status,
        "proof": outcome.proof,
        "method": outcome.method,
    }


def _format_seconds(tasks: HostTasks, ticks: int | Fraction) -> str:
    """Return ticks as an exact fraction of seconds, as text such as `3/2`."""
    return str(ticks * tasks.tick_s)


def _convert_move(move: Move) -> dict[str, JsonValue]:
    """Return a move as a JSON object with the keys name, tensor, from, to, release_s and due_s
    (None without a due time).
    """
    return {
        "name": move.name,
        "tensor": str(move.tensor),
        "from": str(move.source),
        "to": str(move.destination),
        "release_s": move.release_s,
        "due_s": move.due_s,
    }


Interval = tuple[Fraction, Fraction]


class ProofFlawError(Exception):
    """A flaw of a proof; `diagnostic` has its code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        # The prefix distinguishes these codes from those of the packing check.
        self.diagnostic = Diagnostic(f"reshard-{code}", message)


def report_flaw(diagnostic: Diagnostic) -> CheckReport:
    """Return the check report of a flawed proof: not ok, with this diagnostic, verdict `wrong`.

    Its facts are `is_optimal` false, and `rate` and `bound` `None`.
    """
    facts: dict[str, JsonValue] = {"is_optimal": False, "rate": None, "bound": None}
    return CheckReport(False, "wrong", (diagnostic,), facts=facts)


def require_list(value: JsonValue) -> list[JsonValue]:
    """Return the value unchanged if it is a list; raise `TypeError` otherwise.

    The entries are not checked.
    """
    if not isinstance(value, list):
        raise TypeError("a list is missing")
    return value


# Of hosts; far more than devices, so that tables by host stay small.
_MAX_HOST = 1 << 20
_FRACTION = re.compile(r"[0-9]{1,4000}(?:/[0-9]{1,4000})?")


def require_integer(value: JsonValue, name: str, minimum: int, maximum: int = (1 << 63) - 1) -> int:
    """Return the value if it is an integer within both limits.

    Raises `ProofFlawError` (`form`) with `name` for any other value, also for a boolean.
    """
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or not minimum <= cast("int", value) <= maximum:
        limits = f"from {minimum} on" if maximum == (1 << 63) - 1 else f"{minimum} to {maximum}"
        raise ProofFlawError("form", f"{name} is {value!r:.40}, expected a whole number {limits}")
    return cast("int", value)


def require_number(value: JsonValue, name: str, expected: str) -> float:
    """Return the value as a float if it is a finite number from 0 on.

    Raises `ProofFlawError` (`form`) with `name` and `expected` for any other value, also for a
    boolean and for an integer beyond the range of floats.
    """
    if not is_finite_number(value) or value < 0:
        raise ProofFlawError("form", f"{name} is {value!r:.40}, expected {expected}")
    return float(value)


def parse_fraction(value: JsonValue, name: str) -> Fraction:
    """Parse an exact number of at least 0, which is text such as `3` or `51/64`.

    A text has digits, then optionally `/` and digits; each number has at most 4000 digits.
    Raises `ProofFlawError` (`form`) with `name` for any other text, also with a sign, point,
    exponent or blank, for a denominator of 0, and for a JSON number.
    """
    # A text with an exponent could stand for a number of any length.
    if (
        not isinstance(value, str)
        or not _FRACTION.fullmatch(value)
        or not int(value.partition("/")[2] or "1")
    ):
        raise ProofFlawError(
            "form", f"{name} is {value!r:.40}, expected a fraction from 0 on as text"
        )
    return Fraction(value)


def read_hosts(document: Mapping[str, JsonValue], moves: Sequence[Move]) -> Int64Array:
    """Return the host of every device in a proof: int64[devices].

    `document["host_of"]` lists the hosts by device. It must have as many entries as the highest
    device of the moves + 1. An entry is an integer from -1 to 2^20 - 1, where -1 is "no host".
    Devices of the moves need a host; other devices keep their entry, usually -1.

    Raises `ProofFlawError` (`form`) if one of these rules is broken, and without moves. Raises
    `KeyError` without `host_of`, and `TypeError` if it is no list.
    """
    hosts = [
        require_integer(host, f"the host of device {device}", -1, _MAX_HOST - 1)
        for device, host in enumerate(require_list(document["host_of"]))
    ]
    sides = [side for move in moves for side in (move.source, move.destination)]
    used = {device for side in sides for device in side.mesh.devices}
    if not used or len(hosts) != max(used) + 1:
        raise ProofFlawError("form", "the list of hosts does not match the devices of the moves")
    for device in sorted(used):
        if hosts[device] < 0:
            raise ProofFlawError("form", f"device {device} of the moves has no host")
    return np.asarray(hosts, np.int64)


def parse_move_object(entry: Mapping[str, JsonValue]) -> Move:
    """Return the move of an object in a proof, as `_convert_move` writes it.

    The keys are name, tensor, from, to, `release_s` and `due_s`; others are ignored. The devices of
    the result are on default hosts: the hosts of the proof are assigned later (`place_on_hosts`).
    Times are seconds; only `due_s` may be null, which becomes None.

    Raises `KeyError` for a missing key, and `InputError` or `ValueError` for a tensor or side that
    does not parse. Raises `ProofFlawError` (`form`) for a time that is no finite number from 0 on.
    """
    tensor = parse_tensor(str(entry["tensor"]))
    rank = len(tensor.shape)
    sides = [parse_side(str(entry[end]), rank) for end in ("from", "to")]
    release, due = entry["release_s"], entry["due_s"]
    expected = "seconds from 0 on"
    return Move(
        tensor,
        sides[0],
        sides[1],
        str(entry["name"]),
        require_number(release, "release_s", expected),
        None if due is None else require_number(due, "due_s", expected),
    )


def place_on_hosts(move: Move, host_of: Int64Array) -> Move:
    """Return a copy of a move in which the devices of both meshes are on the hosts of a proof.

    `host_of`: host of every device, int64[devices].
    """
    sides = []
    for side in (move.source, move.destination):
        hosts = tuple(host_of[list(side.mesh.devices)].tolist())
        sides.append(replace(side, mesh=replace(side.mesh, hosts=hosts)))
    return replace(move, source=sides[0], destination=sides[1])


def is_covering(parts: Sequence[Interval]) -> bool:
    """Return whether the parts (first, last), in any order, fill 0..1 without gap or overlap.

    False without parts, and with an empty part or one that ends before it begins.
    """
    position = Fraction(0)
    for first, last in sorted(parts):
        if first != position or last <= first:
            return False
        position = last
    return position == 1


def check_labels(document: Mapping[str, JsonValue]) -> None:
    """Check that the kind of proof is known, and that the status agrees with it.

    The kinds are `bound`, `solver` and `none`. The status must be `feasible` for `none`, and
    `optimal` otherwise. Raises `ProofFlawError` (`form`) if not, and `KeyError` if one of the two
    is missing.
    """
    status, proof = document["status"], document["proof"]
    if proof not in ("bound", "solver", "none"):
        raise ProofFlawError("form", f"{proof!r:.40} is no kind of proof")
    if status != ("feasible" if proof == "none" else "optimal"):
        raise ProofFlawError(
            "form", f"the status {status!r:.40} does not follow from the proof {proof!r}"
        )


def report_valid_proof(
    verdict: str,
    makespan: Fraction,
    bound: Fraction,
    is_optimal: bool,
    binding: str,
    unproved: Mapping[str, str],
) -> CheckReport:
    """Return the check report of a valid proof: ok, with the given verdict and without findings.

    `makespan` and `bound` are exact seconds. `is_optimal`: the bound proves, without a solver, that
    no schedule is faster; it is only copied. `unproved`: claims that were not checked, as text by
    the path of their field.

    - Facts: `is_optimal`; `rate` and `bound`, always None; `makespan_s` and `bound_s`, exact
      fractions as text; `gap`, makespan / bound - 1 as a float, 0.0 for a bound of 0; `not_proved`,
      the sorted paths.
    - Details, all text: `makespan` and `bound` in seconds with 6 digits, followed by the exact
      number in parentheses; after the bound, `binding` (text that names the proof); `not proved`,
      the distinct texts of `unproved` in their order, separated by `; `, or empty.
    """
    facts: dict[str, JsonValue] = {
        "is_optimal": is_optimal,
        # A resharding has times instead.
        "rate": None,
        "bound": None,
        "makespan_s": str(makespan),
        "bound_s": str(bound),
        "gap": float(makespan / bound - 1) if bound else 0.0,
        "not_proved": [*sorted(unproved)],
    }
    details = {
        "makespan": f"{float(makespan):.6g} s ({makespan})",
        "bound": f"{float(bound):.6g} s ({bound}), {binding}",
        "not proved": "; ".join(dict.fromkeys(unproved.values())),
    }
    return CheckReport(True, verdict, facts=facts, details=details)
