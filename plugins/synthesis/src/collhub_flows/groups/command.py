"""`collhub groups`: algorithms for process groups that run at the same time, and its report."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from hub_core import (
    FILE,
    Assignments,
    CommandContext,
    OutputRequest,
    UsageError,
    assign,
    backend_option,
    check_stdout,
    collective_option,
    cut_fields,
    occupancy_option,
    output_options,
    reduce_op_option,
    size_option,
    timeout_option,
    topology_option,
)
from hub_core.model import format_bytes, format_ranks, format_time
from hub_core.plugin_api import OptionType, SearchBudget, declared_options, option

if TYPE_CHECKING:
    from collhub_flows.groups.groups_record import GroupItem, GroupsReport
    from collhub_flows.groups.planning import GroupChoices, GroupPlan
    from hub_core.model import Algorithm, JsonValue

# Modules that need numpy are imported inside functions, so that the help is fast.

# Maximum number of steps of a joint algorithm that is verified; larger ones take too long.
_MAX_VERIFIED = 100_000
_OWN_FORMAT = "json"


MANIFEST_SCHEMA = "collhub/groups-1"


HEADER = ("group", "npus", "collective", "size", "alone", "maker")


@dataclass(frozen=True, slots=True)
class GroupsCommandOptions:
    """Options of `collhub groups` as `-O key=value`."""

    work: int = option(
        OptionType.INT,
        400_000,
        "limit of the counted work, in steps as simulated, that NAME does for groups alone",
        minimum=0,
    )


@click.command()
@click.argument("name", metavar="[NAME]", default="auto")
@click.option("--groups", "groups_text", metavar="LISTS", help="NPUs, as 0-7,8-15 or '0,5;1,4'.")
@click.option(
    "--group",
    "single",
    metavar="NPUS[:COLLECTIVE[:SIZE[:START[:COUNTS]]]]",
    multiple=True,
    help="One group, as 0-7:all-gather:1MiB, 0-7:all-gather:1MiB:20us or"
    " 0-7:all-to-all-v:1MiB::zipf:1.2; repeatable.",
)
@collective_option("Of groups that name none.", has_counts=True)
@topology_option("For example torus:8x8, a file.", required=True)
@size_option("Full buffer of groups that name none.")
@reduce_op_option(("sum", "prod", "min", "max"))
@occupancy_option
@backend_option("The simulator that measures candidates.")
@timeout_option
@click.option("-o", "--output", "out", metavar="OUT", type=FILE, help="Folder (default: none).")
@output_options
@click.pass_obj
def groups(
    context: CommandContext, out: str | None, output: OutputRequest, **wish: Unpack[_PlanOptions]
) -> None:
    """Make algorithms for process groups that run at the same time, as one schedule.

    OUT, if given, becomes a folder with one algorithm per group, `joint` with all of them as
    one, and `groups.json`, which lists them. The plan is printed in any case. Each group is
    also synthesized separately by NAME (default: auto). These algorithms are candidates too,
    so the plan is never slower than running the groups one by one.
    """
    from collhub_flows.groups.planning import plan_groups
    from collhub_flows.groups.shares import CommonWish, parse_groups
    from hub_core.model import ReduceOp

    if out is not None and output.target_format is None:
        output = replace(output, target_format=_OWN_FORMAT)
    reduce_op = ReduceOp(wish["reduce_op"])
    common = CommonWish(wish["kind"], wish["size_text"], reduce_op, wish["counts"])
    wishes = parse_groups(wish["groups_text"], wish["single"], common)
    choices, writer = _parse_choices(context, wish, out, output)
    topology = context.read_topology(wish["topology_text"])
    wall, cpu = time.perf_counter(), time.process_time()
    with context.progress_bar("groups") as show:
        plan = plan_groups(wishes, topology, choices, show)
    taken = time.perf_counter() - wall, time.process_time() - cpu
    # Verify all algorithms and return the number of correct ones; an incorrect one is an error.
    algorithms: list[tuple[str, Algorithm]] = [
        (f"the algorithm of group {number}", algorithm)
        for number, algorithm in enumerate(plan.algorithms)
    ]
    # The joint algorithm has the same steps in a stricter order. It cannot be verified if it is too
    # large or has no expected contents.
    joint = plan.joint
    is_small = joint is not None and len(joint.steps) <= _MAX_VERIFIED
    if joint is not None and is_small and joint.collective.postcondition() is not None:
        algorithms.append(("the joint algorithm", joint))
    reports = [context.admit(algorithm, name) for name, algorithm in algorithms]
    verified = sum(report is not None and report.ok for report in reports)
    paths = [] if out is None else _write_files(context, plan, topology.name, out, output, writer)
    report = GroupsPlanReport(plan, topology.name, str(choices.occupancy), *taken, verified)
    if output.as_json:
        context.print_report(report.create_report(paths))
        return
    context.print_fields(report.fields())
    context.print_table(HEADER, report.rows(), right=("size", "alone"))
    if paths:
        context.say(f"wrote {paths[0]} and {len(paths) - 1} more")


@dataclass(frozen=True, slots=True)
class GroupsPlanReport:
    """A plan with the time of its synthesis; `verified`: number of verified algorithms."""

    plan: GroupPlan
    topology: str
    occupancy: str
    wall_s: float
    cpu_s: float
    verified: int

    def fields(self) -> dict[str, str]:
        """Return the lines of the text output, value by name, in their order.

        - `groups`: the number of groups, and of NPUs; an NPU in several groups counts once.
        - `topology`: the topology and the occupancy.
        - `method`: the method of the plan.
        - `time`: the time of the plan, also in ns.
        - `one by one`: the time of all groups one after the other, and its ratio to `time`.
        - `not tried`: number and list of groups that were not synthesized separately, and the
          reason of the first one. Omitted if there are none.
        - `cut`: searches that a limit cut off. Omitted if there are none.
        - `bounds`: every lower bound by name, and the ratio of `time` to the largest one.
        - `synthesis`: wall time and CPU time in s.
        - `verification`: the number of algorithms that were verified as correct.
        """
        plan = self.plan
        ranks = {npu for wish in plan.wishes for npu in wish.npus}
        bounds = ", ".join(f"{name} {format_time(ns)}" for name, ns in plan.bounds_ns.items())
        one_by_one_ns = plan.one_by_one.ns
        alone = format_time(one_by_one_ns)
        not_tried: dict[str, str] = {}
        if plan.not_tried:
            numbers = format_ranks(tuple(plan.not_tried))
            # A single limit stops the search, so all reasons are equal.
            reason = next(iter(plan.not_tried.values()))
            text = f"{len(plan.not_tried)} groups alone ({numbers}), so the plan is partial"
            not_tried["not tried"] = f"{text}: {reason}"
        return {
            "groups": f"{len(plan.wishes)} groups on {len(ranks)} NPUs",
            "topology": f"{self.topology}, {self.occupancy}",
            "method": plan.method,
            "time": f"{format_time(plan.time.ns)} ({plan.time.ns} ns)",
            "one by one": f"{alone} ({one_by_one_ns} ns), {plan.ratio:.3f} times as long",
            **not_tried,
            **cut_fields(plan.cuts),
            "bounds": f"{bounds}; time is {plan.ratio_to_bound:.3f} times the largest",
            "synthesis": f"{self.wall_s:.2f} s, {self.cpu_s:.2f} s of CPU",
            "verification": f"{self.verified} algorithms correct",
        }

    def rows(self) -> list[tuple[str, ...]]:
        """Return one row of texts per group, in their order, with the columns of `HEADER`.

        The texts are, in this order: the number of the group from 0; its NPUs as ranges, such as
        `0-7`; the collective; the size with a unit; the time of its separate algorithm without the
        other groups, with a unit; the name of the producer of this separate algorithm.
        """
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

    def create_report(self, paths: Sequence[str]) -> GroupsReport:
        """Create the JSON report of the plan, which the option `--json` prints.

        The report has the groups, the method, the simulated time of all groups, the sum of their
        times one by one, the lower bounds, and the ratios to both. It also has the wall time and
        CPU time of the synthesis and the number of verified algorithms. Fields ending in `_ns` are
        nanoseconds, in `_s` seconds. `paths`: the files that were written.

        The report is partial if a synthesizer was not tried on a group, or if a search was cut off
        by its budget. The lists `not_tried` and `cut` then have the reasons. Nothing is written.
        """
        from collhub_flows.groups.groups_record import GroupsReport, UntriedGroup
        from hub_core.reports import list_cuts

        plan = self.plan
        return GroupsReport(
            topology=self.topology,
            occupancy=self.occupancy,
            groups=_list_groups(plan),
            method=plan.method,
            time_ns=plan.time.ns,
            one_by_one_ns=plan.one_by_one.ns,
            ratio=plan.ratio,
            bounds_ns=plan.bounds_ns,
            bound_ns=plan.bound_ns,
            ratio_to_bound=plan.ratio_to_bound,
            synthesis_s=self.wall_s,
            synthesis_cpu_s=self.cpu_s,
            verified=self.verified,
            is_partial=bool(plan.not_tried or plan.cuts),
            not_tried=[
                UntriedGroup(name=f"group {number}", reason=reason)
                for number, reason in plan.not_tried.items()
            ],
            cut=list_cuts(plan.cuts),
            artifacts=paths,
        )


def manifest(plan: GroupPlan, topology: str, files: Sequence[str], joint: str | None) -> JsonValue:
    """Return the object in `groups.json`: the plan and the files of its algorithms.

    The keys are `schema` (`collhub/groups-1`), `topology`, `method`, `time_ns` (simulated time
    of the plan), `joint`, `joint_bytes` and `groups`. `joint` is the argument unchanged, which
    is null for None. `joint_bytes` is the number of bytes of the collective `plan.joint`, or
    null if the plan has no joint algorithm.

    `groups` has one object per group, in the order of the plan. Its keys are the fields of
    `GroupItem` (`npus`, `collective`, `size` in bytes, `counts`, `start_ns`, `alone_ns`,
    `alone_maker`) and `file`, the entry of `files` at the same position. Raises `ValueError` if
    the number of files is not that of the groups.
    """
    from hub_core.reports import to_json

    groups: list[JsonValue] = []
    for group, file in zip(_list_groups(plan), files, strict=True):
        groups.append({**to_json(group), "file": file})
    return {
        "schema": MANIFEST_SCHEMA,
        "topology": topology,
        "method": plan.method,
        "time_ns": plan.time.ns,
        "joint": joint,
        "joint_bytes": None if plan.joint is None else plan.joint.collective_bytes,
        "groups": groups,
    }


class _PlanOptions(TypedDict):
    """Command line options that define the plan."""

    name: str
    kind: str | None
    counts: str | None
    topology_text: str
    size_text: str | None
    groups_text: str | None
    single: tuple[str, ...]
    reduce_op: str
    occupancy: str
    backend: str
    budget: SearchBudget


def _parse_choices(
    context: CommandContext, wish: _PlanOptions, out: str | None, output: OutputRequest
) -> tuple[GroupChoices, Assignments]:
    """Convert the options of the command to (choices of the plan, options of the writer).

    `-O` options are those of the groups (`work`) and, with `out`, those of the writer that
    `output` selects. The options of the writer are texts by name; they are empty without `out`.
    The work limit is `-O work=N` (up to 18 digits), by default 400 000 (`MAX_WORK`). The other
    fields of the choices are the options `name`, `occupancy`, `backend` and `budget` in `wish`,
    and the registry of `context`.

    Raises for the first that applies:

    1. `UsageError` for `--to` without `out`.
    2. `UsageError` for the output `-`, since the output is a folder.
    3. The errors of `context.output_target`, such as a format in `--to` that no writer has.
    4. `UsageError` (`unknown-option`) for an option that neither the groups nor the writer
       declare.
    5. `UsageError` if `work` is no number.
    6. `HubError` for an unknown synthesizer.
    """
    from collhub_flows.groups.planning import MAX_WORK, GroupChoices
    from hub_core.network import Occupancy
    from hub_core.plugin_api import Synthesizer

    sides = {"groups": declared_options(GroupsCommandOptions)}
    if out is None and output.target_format is not None:
        raise UsageError("--to has no meaning without -o", cure="give the output: -o OUT")
    if out is not None:
        if out == "-":
            raise UsageError("groups are written into a folder", cure="name one: -o OUT")
        check_stdout(out, output.as_json)
        sides["writer"] = context.output_target(_build_path(out, "joint", output), output).options
    options = assign(output.assignments, sides)
    work_text = options["groups"].get("work", str(MAX_WORK))
    if not work_text.isdecimal() or len(work_text) > 18:
        message = f"-O work={work_text}: expected a number of steps"
        raise UsageError(message, cure="give 0 or more")
    # An unknown synthesizer is reported, with the closest name, before the synthesis.
    context.options_of(Synthesizer, wish["name"])
    choices = GroupChoices(
        wish["name"],
        Occupancy(wish["occupancy"]),
        wish["backend"],
        int(work_text),
        wish["budget"],
        context.registry(),
    )
    return choices, options.get("writer", {})


def _write_files(
    context: CommandContext,
    plan: GroupPlan,
    topology: str,
    out: str,
    output: OutputRequest,
    options: Assignments,
) -> list[str]:
    """Write the algorithm of each group, a joint one, and `groups.json`; return all paths.

    The files are in the folder `out`: `group_0`, `group_1` and so on in the order of the groups,
    then `joint` if `plan.joint` is not None, then `groups.json`. The suffix of algorithms is
    `.json` for the format `json`; other formats have none. Their format and the options of the
    writer are those of `output`. `groups.json` is the object of `manifest`, with `topology` (its
    text) and the names of the other files without the folder.

    The paths include the folder and are in the order of writing. A format that writes several files
    per algorithm gives several paths. Losses of the writer are printed; with `--strict` they raise
    `LossyError`. Errors of `context.output_target` and `context.write_output` pass through. Files
    that were written before an error remain, without `groups.json`.
    """

    named = [(f"group_{number}", each) for number, each in enumerate(plan.algorithms)]
    if plan.joint is not None:
        named.append(("joint", plan.joint))
    # Full paths are reported to the user; the list in the folder has names within it.
    paths: list[str] = []
    places = []
    for name, algorithm in named:
        file = _build_path(out, name, output)
        target = context.output_target(file, output)
        written = context.write_output(algorithm, target, options, output, work="synthesis")
        paths += [str(file) for file in written.paths]
        places.append(Path(file).name)
    # The joint algorithm is the last one.
    files = places[: len(plan.algorithms)]
    joint = None if plan.joint is None else places[-1]
    document = manifest(plan, topology, files, joint)
    content = json.dumps(document, indent=1).encode() + b"\n"
    listed = context.write_file(str(Path(out) / "groups.json"), content)
    return [*paths, *(str(file) for file in listed.paths)]


def _build_path(out: str, name: str, output: OutputRequest) -> str:
    """Return the path of an algorithm's file in the folder `out`.

    Its name is `name`, with the suffix `.json` for the hub's JSON format, else without suffix.
    """
    suffix = ".json" if output.target_format == _OWN_FORMAT else ""
    return str(Path(out) / f"{name}{suffix}")


def _list_groups(plan: GroupPlan) -> list[GroupItem]:
    from collhub_flows.groups.groups_record import GroupItem

    return [
        GroupItem(
            npus=wish.npus,
            collective=str(wish.kind),
            size=wish.size,
            counts=wish.counts_text,
            start_ns=wish.start_ns,
            alone_ns=plan.alone[number].ns,
            alone_maker=plan.alone_makers[number],
        )
        for number, wish in enumerate(plan.wishes)
    ]
