"""The proof that an algorithm carries: its tasks, its schedule, its bound, in exact numbers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from collhub_shardings import Move, UnitTasks

from collhub_reshard.fabric.streams import StreamPlan
from collhub_reshard.outcome import outcome_of_streams
from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import HostSchedule
from hub_core.model import Algorithm, JsonValue

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


def schedule_document(
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
        "moves": [_move_object(move) for move in moves],
        "host_of": units.host_of.tolist(),
        "cards": network.cards,
        "out_rate": {str(host): str(network.out_rate[host]) for host in hosts},
        "in_rate": {str(host): str(network.in_rate[host]) for host in hosts},
        "tasks": [_task_object(tasks, task) for task in range(len(tasks))],
        "schedule": [
            [
                piece.task,
                piece.sender,
                _seconds(tasks, piece.start),
                _seconds(tasks, piece.duration),
                str(piece.first),
                str(piece.last),
            ]
            for piece in schedule.pieces
        ],
        "makespan_s": _seconds(tasks, schedule.makespan),
        "bound": {
            "kind": bound.kind,
            "seconds": _seconds(tasks, bound.ticks),
            "hosts": list(bound.hosts),
            "task": bound.task,
        },
        "lower_bound_s": _seconds(tasks, schedule.lower_bound_ticks),
        "status": schedule.status,
        "proof": schedule.proof,
        "method": schedule.method,
    }


def stream_document(
    moves: Sequence[Move], units: UnitTasks, plan: StreamPlan
) -> dict[str, JsonValue]:
    """Moves as text, the links, the streams over them and the weights that bound their time."""
    topology = plan.fabric.topology
    columns = (topology.source, topology.destination, topology.bandwidth_bytes_per_s)
    outcome = outcome_of_streams(plan)
    return {
        "schema": STREAMS_SCHEMA,
        "moves": [_move_object(move) for move in moves],
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


def _seconds(tasks: HostTasks, ticks: int | Fraction) -> str:
    # A text keeps the fraction.
    return str(ticks * tasks.tick_s)


def _move_object(move: Move) -> dict[str, JsonValue]:
    return {
        "name": move.name,
        "tensor": str(move.tensor),
        "from": str(move.source),
        "to": str(move.destination),
        "release_s": move.release_s,
        "due_s": move.due_s,
    }


def _task_object(tasks: HostTasks, task: int) -> dict[str, JsonValue]:
    """A task, and of which unit task it is."""
    return {
        "unit_task": tasks.rows[task],
        "bytes": tasks.bytes[task],
        "senders": list(tasks.senders[task]),
        "receivers": list(tasks.receivers[task]),
        "work": str(tasks.work[task]),
    }
