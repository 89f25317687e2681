"""What a plan promises, whichever way it was made: its time, its bound, and who proves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from collhub_reshard.fabric.streams import StreamPlan
from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import HostSchedule


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


def outcome_of_schedule(tasks: HostTasks, schedule: HostSchedule) -> Outcome:
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


def outcome_of_streams(plan: StreamPlan) -> Outcome:
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
