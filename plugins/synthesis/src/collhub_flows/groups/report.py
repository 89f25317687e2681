"""The report of a plan of groups, as JSON and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collhub_flows.groups.planning import GroupPlan
from hub_core import cut_fields, cut_objects
from hub_core.model import JsonValue, format_bytes, format_ranks, format_time

REPORT_SCHEMA = "collhub/report-groups-1"
MANIFEST_SCHEMA = "collhub/groups-1"
HEADER = ("group", "npus", "collective", "size", "alone", "maker")


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A plan with the time of its synthesis; `verified`: number of verified algorithms."""

    plan: GroupPlan
    topology: str
    occupancy: str
    wall_s: float
    cpu_s: float
    verified: int

    def fields(self) -> dict[str, str]:
        """Return name and value of every line."""
        plan = self.plan
        ranks = {npu for wish in plan.wishes for npu in wish.npus}
        bounds = ", ".join(f"{name} {format_time(ns)}" for name, ns in plan.bounds_ns.items())
        one_by_one_ns = plan.one_by_one.ns
        alone = format_time(one_by_one_ns)
        return {
            "groups": f"{len(plan.wishes)} groups on {len(ranks)} NPUs",
            "topology": f"{self.topology}, {self.occupancy}",
            "method": plan.method,
            "time": f"{format_time(plan.time.ns)} ({plan.time.ns} ns)",
            "one by one": f"{alone} ({one_by_one_ns} ns), {plan.ratio:.3f} times as long",
            **_not_tried(plan),
            **cut_fields(plan.cuts),
            "bounds": f"{bounds}; time is {plan.ratio_to_bound:.3f} times the largest",
            "synthesis": f"{self.wall_s:.2f} s, {self.cpu_s:.2f} s of CPU",
            "verification": f"{self.verified} algorithms correct",
        }

    def rows(self) -> list[tuple[str, ...]]:
        """Return one row per group, with the columns of `HEADER`."""
        plan = self.plan
        return [
            (
                str(number),
                format_ranks(wish.npus),
                str(wish.kind),
                format_bytes(wish.size),
                format_time(plan.alone[number].ns),
                plan.alone_makers[number],
            )
            for number, wish in enumerate(plan.wishes)
        ]

    def document(self, paths: Sequence[str]) -> dict[str, JsonValue]:
        """Return the report for `--json`."""
        plan = self.plan
        return {
            "schema": REPORT_SCHEMA,
            "topology": self.topology,
            "occupancy": self.occupancy,
            "groups": _groups(plan),
            "method": plan.method,
            "time_ns": plan.time.ns,
            "one_by_one_ns": plan.one_by_one.ns,
            "ratio": plan.ratio,
            "bounds_ns": dict(plan.bounds_ns),
            "bound_ns": plan.bound_ns,
            "ratio_to_bound": plan.ratio_to_bound,
            "synthesis_s": self.wall_s,
            "synthesis_cpu_s": self.cpu_s,
            "verified": self.verified,
            "is_partial": bool(plan.not_tried or plan.cuts),
            "not_tried": [
                {"name": f"group {number}", "reason": reason}
                for number, reason in plan.not_tried.items()
            ],
            "cut": cut_objects(plan.cuts),
            "artifacts": list(paths),
        }


def _not_tried(plan: GroupPlan) -> dict[str, str]:
    """Return a line about groups for which the named synthesizer did not run, if any."""
    if not plan.not_tried:
        return {}
    numbers = format_ranks(tuple(plan.not_tried))
    # A single limit stops the search, so all reasons are equal.
    reason = next(iter(plan.not_tried.values()))
    count = len(plan.not_tried)
    return {"not tried": f"{count} groups alone ({numbers}), so the plan is partial: {reason}"}


def manifest(plan: GroupPlan, topology: str, files: Sequence[str], joint: str | None) -> JsonValue:
    """Return the contents of a folder of groups: the files of the groups and of the joint one."""
    groups = _groups(plan)
    for group, file in zip(groups, files, strict=True):
        assert isinstance(group, dict)
        group["file"] = file
    return {
        "schema": MANIFEST_SCHEMA,
        "topology": topology,
        "method": plan.method,
        "time_ns": plan.time.ns,
        "joint": joint,
        "joint_bytes": None if plan.joint is None else plan.joint.collective_bytes,
        "groups": groups,
    }


def _groups(plan: GroupPlan) -> list[JsonValue]:
    groups: list[JsonValue] = []
    for number, wish in enumerate(plan.wishes):
        groups.append(
            {
                "npus": list(wish.npus),
                "collective": str(wish.kind),
                "size": wish.size,
                "alone_ns": plan.alone[number].ns,
                "alone_maker": plan.alone_makers[number],
            }
        )
    return groups
