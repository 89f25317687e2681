"""Report of the command `reshard`: one record with a JSON and a text form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from collhub_reshard.algorithm import Lowered
from collhub_reshard.planning import ReshardPlan
from hub_core import cut_fields
from hub_core.model import format_bytes, format_count
from hub_core.reports import Artifacts, Cuts, IsPartial, Meta, Record, Report, list_cuts

_BINDINGS = ("receiver", "senders", "exclusive", "task", "links", "nothing")


class BindingLink(Record, frozen=True, kw_only=True):
    """Link of a topology with its weight in the proof of the bound."""

    source: str = msgspec.field(name="from")
    destination: str = msgspec.field(name="to")
    weight: int


class BindingLoad(Record, frozen=True, kw_only=True):
    """Hosts, task or links whose load proves the bound."""

    kind: Annotated[str, Meta(extra_json_schema={"enum": [*_BINDINGS]})]
    hosts: Sequence[int]
    task: int
    links: Sequence[BindingLink]


class LayoutItem(Record, frozen=True, kw_only=True):
    """Layout of the buffers and its cost in copies or padding."""

    kind: Annotated[str, Meta(extra_json_schema={"enum": ["packed", "rows"]})]
    unit_bytes: int
    copies: int
    copied_bytes: int
    padding_bytes: int


class ReshardReport(Report, tag="collhub/report-reshard-1", frozen=True, kw_only=True):
    """Report of `collhub reshard --json`."""

    tensors: int
    unit_tasks: Annotated[
        int, Meta(description="Boxes in which a source tile and a destination tile intersect.")
    ]
    tasks_between_hosts: int
    bytes: Annotated[int, Meta(description="Bytes of all tensors, each counted once.")]
    makespan_s: Annotated[float, Meta(description="Makespan of the schedule, without latency.")]
    optimum_s: Annotated[
        float | None, Meta(description="The makespan if it is proved to be minimal; else null.")
    ]
    bound_s: Annotated[
        float, Meta(description="Lower bound of all schedules with these strategies.")
    ]
    binding: BindingLoad
    predicted_s: Annotated[
        float, Meta(description="Time with latency and chunks that are stored and forwarded.")
    ]
    simulated_s: Annotated[
        float | None,
        Meta(
            description="Time of streams on a topology by the default simulator; null if not "
            "simulated."
        ),
    ]
    gap: Annotated[
        float, Meta(description="Distance of the makespan from the bound, as a part of it.")
    ]
    status: Annotated[str, Meta(extra_json_schema={"enum": ["optimal", "feasible"]})]
    proof: Annotated[str, Meta(extra_json_schema={"enum": ["bound", "solver", "none"]})]
    method: str
    strategies: Annotated[Mapping[str, int], Meta(description="Number of unit tasks by strategy.")]
    chunks: int
    late_tasks: Annotated[Sequence[int], Meta(description="Tasks that end after their due times.")]
    layout: LayoutItem
    tokens: Annotated[
        int, Meta(description="Messages of one unit that only pass on the turn to send.")
    ]
    collective_bytes: int | None
    is_partial: IsPartial
    cut: Cuts
    artifacts: Artifacts


def create_report(plan: ReshardPlan, lowered: Lowered, paths: Sequence[str]) -> ReshardReport:
    """Return the record that `collhub reshard --json` prints, from a plan and its algorithm.

    Fields whose rule is not in their description:

    - `optimum_s`: the makespan if the status is `optimal`, otherwise None.
    - `strategies`: number of unit tasks between hosts by strategy, sorted by name. A plan of
      streams counts all of them as `streams`. Empty if no data cross between hosts.
    - `chunks`: the largest number of chunks of a unit task, 0 without tasks.
    - `late_tasks`: ascending.
    - `binding.links`: by link number; empty for a bound that does not use links.
    - `layout.copies`, `layout.copied_bytes`, `tokens`, `collective_bytes`: of the algorithm
      (`lowered`).
    - `is_partial`: whether a limit cut parts of the search, which `cut` lists.
    - `artifacts`: `paths`, the files that were written.
    """
    outcome, tasks, layout = plan.outcome, plan.tasks, lowered.layout
    topology = plan.topology
    links = [
        BindingLink(
            source=topology.node_name(int(topology.source[link])),
            destination=topology.node_name(int(topology.destination[link])),
            weight=weight,
        )
        for link, weight in sorted(outcome.weights.items())
    ]
    cuts = plan.choices.effort.budget.cuts
    return ReshardReport(
        tensors=len(plan.moves),
        unit_tasks=len(plan.units),
        tasks_between_hosts=len(tasks),
        bytes=sum(move.tensor.num_bytes for move in plan.moves),
        makespan_s=plan.makespan_s,
        optimum_s=plan.makespan_s if outcome.status == "optimal" else None,
        bound_s=plan.bound_s,
        binding=BindingLoad(
            kind=outcome.kind,
            hosts=tuple(outcome.hosts),
            task=outcome.task,
            links=links,
        ),
        predicted_s=plan.predicted_s,
        simulated_s=plan.simulated_s,
        gap=outcome.gap,
        status=outcome.status,
        proof=outcome.proof,
        method=outcome.method,
        strategies=dict(sorted(_count_strategies(plan).items())),
        chunks=max(plan.chunks.values(), default=0),
        late_tasks=tuple(plan.schedule.late_tasks(tasks)),
        layout=LayoutItem(
            kind=layout.kind,
            unit_bytes=layout.unit_bytes,
            copies=lowered.copies,
            copied_bytes=lowered.copied_bytes,
            padding_bytes=layout.padding_bytes,
        ),
        tokens=lowered.tokens,
        collective_bytes=lowered.algorithm.collective_bytes,
        is_partial=bool(cuts),
        cut=list_cuts(cuts),
        artifacts=paths,
    )


def build_text_fields(plan: ReshardPlan, lowered: Lowered) -> dict[str, str]:
    """Return the text output of `collhub reshard` as texts by field name, in the order of output.

    Times are in seconds with six significant digits. These fields always exist:

    - `resharding`: tensors with their bytes, unit tasks, and unit tasks between hosts
    - `strategies`: number of unit tasks by strategy, sorted by name, or that no bytes cross
    - `time`: the makespan without latency
    - `bound`: the lower bound, and the data that prove it (`_describe_binding`)
    - `status`: optimal with its proof or the maximum excess over it in percent, and the method
    - `predicted`: the time with latency, and the largest number of chunks of a unit task
    - `layout`: the kind of the layout, and its copies with their total bytes, or its padding
    - `algorithm`: ranks, steps and the size in bytes

    Then follow, if they apply: `simulated` for a plan with a simulated time; `cut` with the parts
    of the search that a limit cut; `late` with the number of tasks that finish after their due
    times.
    """
    algorithm, outcome = lowered.algorithm, plan.outcome
    status = f"at most {100 * outcome.gap:.3g} % above the optimum"
    if outcome.status == "optimal":
        status = f"optimal, proved by the {outcome.proof}"
    layout, copies = lowered.layout, "no copies"
    if lowered.copies:
        copied = format_bytes(lowered.copied_bytes)
        copies = f"{lowered.copies} copies of {copied} before and after the messages"
    elif layout.padding_bytes:
        copies += f", {format_bytes(layout.padding_bytes)} of padding"
    moved = sum(move.tensor.num_bytes for move in plan.moves)
    fields = {
        "resharding": f"{format_count(len(plan.moves), 'tensor')} of {format_bytes(moved)}, "
        f"{format_count(len(plan.units), 'unit task')}, {len(plan.tasks)} between hosts",
        "strategies": ", ".join(
            f"{count} {name}" for name, count in sorted(_count_strategies(plan).items())
        )
        or "none: no bytes cross between hosts",
        "time": f"{plan.makespan_s:.6g} s",
        "bound": f"{plan.bound_s:.6g} s, {_describe_binding(plan)}",
        "status": f"{status}; found by {outcome.method}",
        "predicted": f"{plan.predicted_s:.6g} s with latency and "
        f"{max(plan.chunks.values(), default=0)} chunks",
        "layout": f"{layout.kind}, {copies}",
        "algorithm": f"{algorithm.num_ranks} ranks, {len(algorithm.steps)} steps, "
        f"size {algorithm.collective_bytes}B",
    }
    if plan.simulated_s is not None:
        fields["simulated"] = f"{plan.simulated_s:.6g} s"
    late = plan.schedule.late_tasks(plan.tasks)
    fields |= cut_fields(plan.choices.effort.budget.cuts)
    if late:
        fields["late"] = f"{len(late)} tasks finish after their due times"
    return fields


def _count_strategies(plan: ReshardPlan) -> Counter[str]:
    """Count the boxes that cross between hosts (unit tasks) by the name of their strategy.

    In a plan of streams, all of them count as `streams`. The counter is empty if there are none.
    """
    if plan.streams is not None:
        return Counter({"streams": len(plan.chunks)} if plan.chunks else {})
    return Counter(strategy.value for strategy in plan.strategies.values())


def _describe_binding(plan: ReshardPlan) -> str:
    """Return a phrase for the data that prove the lower bound, by the kind of `plan.outcome`.

    - `links`: the data that a link must carry, such as `link 0 -> 8`; with N links, `N links such
      as` the link of the largest weight, of equal ones that of the smallest number
    - `receiver`: the data that one host must receive
    - `senders`: the data that only the hosts of the outcome can send
    - `exclusive`: the data for all hosts, then the data that only these hosts can send
    - `task`: a unit task that is not split, by its number
    - `nothing`: no data cross between hosts

    Hosts are listed by number. Raises `KeyError` for another kind, and `ValueError` for
    `links` without weights.
    """
    bound = plan.outcome
    if bound.kind == "links":
        topology, weights = plan.topology, bound.weights
        first = min(weights, key=lambda link: (-weights[link], link))
        source, destination = int(topology.source[first]), int(topology.destination[first])
        subject = "link" if len(weights) == 1 else f"{len(weights)} links such as"
        name = f"{topology.node_name(source)} -> {topology.node_name(destination)}"
        return f"the data that {subject} {name} must carry"
    hosts = ", ".join(map(str, bound.hosts))
    texts = {
        "receiver": f"the data that host {hosts} must receive",
        "senders": f"the data that only hosts {hosts} can send",
        "exclusive": f"the data for all hosts, then the data that only hosts {hosts} can send",
        "task": f"the unsplit unit task {bound.task}",
        "nothing": "no data cross between hosts",
    }
    return texts[bound.kind]
