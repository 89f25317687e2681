"""The proof that an algorithm carries: building its document, and reading the claims in it.

Tasks, schedule and bound are exact numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from collhub_shardings import Move, UnitTasks, parse_side, parse_tensor

from collhub_reshard.fabric.streams import StreamPlan
from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import HostSchedule
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, Diagnostic, JsonValue
from hub_core.plugin_api import CheckReport


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times in seconds without latency and store-and-forward.

    `status`, `proof`, `method`: as those of `HostSchedule`. `kind`, `hosts`, `task`: as those of
    `Bound`, with the kind `links` for a bound by `weights` of links, by row.
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


def summarize_schedule(tasks: HostTasks, schedule: HostSchedule) -> Outcome:
    """The outcome of a schedule of hosts' cards."""
    bound = schedule.bound
    return Outcome(
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


def summarize_streams(plan: StreamPlan) -> Outcome:
    """The outcome of streams: optimal where the fullest link takes exactly the bound."""
    is_optimal = plan.is_optimal
    return Outcome(
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
    """The proof that an algorithm carries, None where it was made by somebody else."""
    found = algorithm.extensions.get(_KEY)
    # Extensions of one name may be anybody's.
    if isinstance(found, dict) and found.get("schema") in (PROOF_SCHEMA, STREAMS_SCHEMA):
        return found
    return None


def build_schedule_document(
    moves: Sequence[Move], units: UnitTasks, tasks: HostTasks, schedule: HostSchedule
) -> dict[str, JsonValue]:
    """Moves as text, hosts, the tasks between them, their schedule and the binding hosts.

    Times are fractions of seconds as text.
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
        "tasks": [_convert_task(tasks, task) for task in range(len(tasks))],
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
    """Moves as text, the links, the streams over them and the weights that bound their time."""
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
    # A text keeps the fraction.
    return str(ticks * tasks.tick_s)


def _convert_move(move: Move) -> dict[str, JsonValue]:
    return {
        "name": move.name,
        "tensor": str(move.tensor),
        "from": str(move.source),
        "to": str(move.destination),
        "release_s": move.release_s,
        "due_s": move.due_s,
    }


def _convert_task(tasks: HostTasks, task: int) -> dict[str, JsonValue]:
    """A task, and of which unit task it is."""
    return {
        "unit_task": tasks.rows[task],
        "bytes": tasks.bytes[task],
        "senders": list(tasks.senders[task]),
        "receivers": list(tasks.receivers[task]),
        "work": str(tasks.work[task]),
    }


Interval = tuple[Fraction, Fraction]


class FlawError(Exception):
    """What is wrong with a proof: a code and a message, as a diagnostic."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        # Codes of the packing check are others.
        self.diagnostic = Diagnostic(f"reshard-{code}", message)


def report_flaw(found: Diagnostic) -> CheckReport:
    facts: dict[str, JsonValue] = {"is_optimal": False, "rate": None, "bound": None}
    return CheckReport(False, "wrong", (found,), facts=facts)


def require_list(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, list):
        raise TypeError("a list is missing")
    return value


def parse_move_object(entry: Mapping[str, JsonValue]) -> Move:
    """A move as it is stated, on hosts of its own choice."""
    tensor = parse_tensor(str(entry["tensor"]))
    rank = len(tensor.shape)
    sides = [parse_side(str(entry[end]), rank) for end in ("from", "to")]
    due = entry["due_s"]
    return Move(
        tensor,
        sides[0],
        sides[1],
        str(entry["name"]),
        float(str(entry["release_s"])),
        None if due is None else float(str(due)),
    )


def place_on_hosts(move: Move, host_of: Int64Array) -> Move:
    """The move with its devices on the stated hosts."""
    sides = []
    for side in (move.source, move.destination):
        hosts = tuple(host_of[list(side.mesh.devices)].tolist())
        sides.append(replace(side, mesh=replace(side.mesh, hosts=hosts)))
    return replace(move, source=sides[0], destination=sides[1])


def is_covering(parts: Sequence[Interval]) -> bool:
    """Whether parts fill 0..1 without gap or overlap."""
    at = Fraction(0)
    for first, last in sorted(parts):
        if first != at:
            return False
        at = last
    return at == 1


def check_labels(document: Mapping[str, JsonValue]) -> None:
    """Refuse a status or kind of proof that is unknown or contradicts the other one."""
    status, proof = document["status"], document["proof"]
    if proof not in ("bound", "solver", "none"):
        raise FlawError("form", f"{proof!r:.40} is no kind of proof")
    if status != ("feasible" if proof == "none" else "optimal"):
        raise FlawError(
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
    """The report on a proof that holds; `is_optimal`: by the bound alone, without a solver.

    `unproved`: claims that no check proves, in words by the path of their field.
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
