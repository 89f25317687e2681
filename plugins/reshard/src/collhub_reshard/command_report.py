"""The report on a planned resharding, as JSON and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from collhub_reshard.lowering.algorithm import Lowered
from collhub_reshard.planning import ReshardPlan
from hub_core import cut_fields, cut_objects
from hub_core.model import JsonValue, format_bytes

REPORT_SCHEMA = "collhub/report-reshard-1"


def build_report(plan: ReshardPlan, lowered: Lowered, paths: Sequence[str]) -> dict[str, JsonValue]:
    """Build the report of `collhub reshard --json`; `optimum_s` is null if no optimum is proved."""
    outcome, tasks = plan.outcome, plan.tasks
    is_optimal = outcome.status == "optimal"
    cuts = plan.choices.effort.budget.cuts
    return {
        "schema": REPORT_SCHEMA,
        "tensors": len(plan.moves),
        "unit_tasks": len(plan.units),
        "tasks_between_hosts": len(tasks),
        "bytes": sum(move.tensor.num_bytes for move in plan.moves),
        "makespan_s": plan.makespan_s,
        "optimum_s": plan.makespan_s if is_optimal else None,
        "bound_s": plan.bound_s,
        "binding": {
            "kind": outcome.kind,
            "hosts": list(outcome.hosts),
            "task": outcome.task,
            "links": _list_binding_links(plan),
        },
        "predicted_s": plan.predicted_s,
        "simulated_s": plan.simulated_s,
        "gap": outcome.gap,
        "status": outcome.status,
        "proof": outcome.proof,
        "method": outcome.method,
        "strategies": dict(sorted(_count_strategies(plan).items())),
        "chunks": max(plan.chunks.values(), default=0),
        "late_tasks": list(plan.schedule.late_tasks(tasks)),
        "layout": {
            "kind": lowered.layout.kind,
            "unit_bytes": lowered.layout.unit_bytes,
            "copies": lowered.copies,
            "copied_bytes": lowered.copied_bytes,
            "padding_bytes": lowered.layout.padding_bytes,
        },
        "tokens": lowered.tokens,
        "collective_bytes": lowered.algorithm.collective_bytes,
        "is_partial": bool(cuts),
        "cut": cut_objects(cuts),
        "artifacts": list(paths),
    }


def build_text_fields(plan: ReshardPlan, lowered: Lowered) -> dict[str, str]:
    """Build the lines of the text output, by name."""
    algorithm = lowered.algorithm
    moved = sum(move.tensor.num_bytes for move in plan.moves)
    fields = {
        "resharding": f"{_format_count(len(plan.moves), 'tensor')} of {format_bytes(moved)}, "
        f"{_format_count(len(plan.units), 'unit task')}, {len(plan.tasks)} between hosts",
        "strategies": ", ".join(
            f"{count} {name}" for name, count in sorted(_count_strategies(plan).items())
        )
        or "none: no bytes cross between hosts",
        "time": f"{plan.makespan_s:.6g} s",
        "bound": f"{plan.bound_s:.6g} s, {_describe_binding(plan)}",
        "status": _describe_status(plan),
        "predicted": f"{plan.predicted_s:.6g} s with latency and "
        f"{max(plan.chunks.values(), default=0)} chunks",
        "layout": _describe_layout(lowered),
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


def _format_count(count: int, name: str) -> str:
    """Return `1 tensor` or `2 tensors`."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def _count_strategies(plan: ReshardPlan) -> Counter[str]:
    """Count the unit tasks by strategy; `streams` on a topology."""
    if plan.streams is not None:
        return Counter({"streams": len(plan.chunks)} if plan.chunks else {})
    return Counter(strategy.value for strategy in plan.strategies.values())


def _describe_binding(plan: ReshardPlan) -> str:
    """Describe the data and the hosts or links whose load proves the bound."""
    bound = plan.outcome
    if bound.kind == "links":
        return f"the data that {_describe_links(plan)} must carry"
    hosts = ", ".join(map(str, bound.hosts))
    texts = {
        "receiver": f"the data that host {hosts} must receive",
        "senders": f"the data that only hosts {hosts} can send",
        "exclusive": f"the data for all hosts, then the data that only hosts {hosts} can send",
        "task": f"the unsplit unit task {bound.task}",
        "nothing": "no data cross between hosts",
    }
    return texts[bound.kind]


def _list_binding_links(plan: ReshardPlan) -> list[JsonValue]:
    """List the links whose weights prove the bound, by the names of their ends."""
    topology = plan.topology
    links: list[JsonValue] = []
    for link, weight in sorted(plan.outcome.weights.items()):
        ends = topology.source[link], topology.destination[link]
        source, destination = (topology.node_name(int(end)) for end in ends)
        links.append({"from": source, "to": destination, "weight": weight})
    return links


def _describe_links(plan: ReshardPlan) -> str:
    """Describe the binding links: the one with the largest weight, and their number."""
    topology, weights = plan.topology, plan.outcome.weights
    first = min(weights, key=lambda link: (-weights[link], link))
    source, destination = int(topology.source[first]), int(topology.destination[first])
    name = f"{topology.node_name(source)} -> {topology.node_name(destination)}"
    return f"link {name}" if len(weights) == 1 else f"{len(weights)} links such as {name}"


def _describe_status(plan: ReshardPlan) -> str:
    """Describe whether the schedule is proved optimal, and the method that found it."""
    schedule = plan.outcome
    if schedule.status == "optimal":
        return f"optimal, proved by the {schedule.proof}; found by {schedule.method}"
    return f"at most {100 * schedule.gap:.3g} % above the optimum; found by {schedule.method}"


def _describe_layout(lowered: Lowered) -> str:
    """Describe the layout of the buffers and its cost in copies or padding."""
    layout = lowered.layout
    if lowered.copies:
        copied = format_bytes(lowered.copied_bytes)
        return f"{layout.kind}, {lowered.copies} copies of {copied} before and after the messages"
    padding = f", {format_bytes(layout.padding_bytes)} of padding" if layout.padding_bytes else ""
    return f"{layout.kind}, no copies{padding}"
