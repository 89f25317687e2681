"""`collhub groups`: algorithms for process groups that run at the same time."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from hub_core import (
    COLLECTIVE,
    FILE,
    TOPOLOGY,
    Assignments,
    CommandContext,
    OutputRequest,
    UsageError,
    assign,
    check_stdout,
    offer_option,
    output_options,
    timeout_option,
)
from hub_core.plugin_api import OptionType, SearchBudget, Simulator, declared_options, option

# What needs numpy is imported where it is used: the help of a command comes at once.
if TYPE_CHECKING:
    from collhub_flows.groups.planning import GroupChoices, GroupPlan
    from hub_core.model import Algorithm

# Reading back all orders of a larger one takes longer than to find it.
_MOST_VERIFIED = 100_000
_OWN_FORMAT = "json"


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """Options of `collhub groups` as `-O key=value`."""

    work: int = option(
        OptionType.INT,
        400_000,
        "limit of the counted work, in steps as simulated, that NAME does for groups alone",
        minimum=0,
    )


class _Wish(TypedDict):
    """What is to be made."""

    name: str
    kind: str | None
    topology_text: str
    size_text: str | None
    groups_text: str | None
    single: tuple[str, ...]
    reduce_op: str
    occupancy: str
    backend: str
    budget: SearchBudget


@click.command()
@click.argument("name", metavar="[NAME]", default="auto")
@click.option("--groups", "groups_text", metavar="LISTS", help="NPUs, as 0-7,8-15 or '0,5;1,4'.")
@click.option(
    "--group",
    "single",
    metavar="NPUS[:COLLECTIVE[:SIZE]]",
    multiple=True,
    help="One group, as 0-7:all-gather:1MiB; repeatable.",
)
@click.option("--collective", "kind", type=COLLECTIVE, help="Of groups that name none.")
@click.option(
    "--topology",
    "topology_text",
    metavar="T",
    type=TOPOLOGY,
    required=True,
    help="For example torus:8x8, a file.",
)
@click.option("--size", "size_text", metavar="S", help="Full buffer of groups that name none.")
@click.option(
    "--reduce-op",
    type=click.Choice(("sum", "prod", "min", "max")),
    default="sum",
    show_default=True,
)
@click.option(
    "--occupancy",
    type=click.Choice(("serialization", "alpha-beta")),
    default="serialization",
    show_default=True,
    help="How long a message keeps a link busy.",
)
@offer_option("--backend", Simulator, "The simulator that judges.", "analytical")
@timeout_option
@click.option("-o", "--output", "out", metavar="OUT", type=FILE, help="Folder (default: none).")
@output_options
@click.pass_obj
def groups(
    context: CommandContext, out: str | None, output: OutputRequest, **wish: Unpack[_Wish]
) -> None:
    """Make algorithms for process groups that run at the same time, as one schedule.

    OUT becomes a folder with one algorithm a group, `joint` with all of them as one, and
    `groups.json`, which names them. Groups alone are made by the synthesizer NAME too (default:
    auto), and count as candidates: the plan is never behind running them one by one.
    """
    from collhub_flows.groups.planning import plan_groups
    from collhub_flows.groups.report import HEADER, PlanReport
    from collhub_flows.groups.shares import CommonWish, parse_groups
    from hub_core.model import ReduceOp

    if out is not None and output.target_format is None:
        output = replace(output, target_format=_OWN_FORMAT)
    common = CommonWish(wish["kind"], wish["size_text"], ReduceOp(wish["reduce_op"]))
    wishes = parse_groups(wish["groups_text"], wish["single"], common)
    choices, writer = _choices(context, wish, out, output)
    topology = context.read_topology(wish["topology_text"])
    wall, cpu = time.perf_counter(), time.process_time()
    with context.progress_bar("groups") as show:
        plan = plan_groups(wishes, topology, choices, show)
    taken = time.perf_counter() - wall, time.process_time() - cpu
    verified = _admit(context, plan)
    paths = [] if out is None else _written(context, plan, topology.name, out, output, writer)
    report = PlanReport(plan, topology.name, str(choices.occupancy), *taken, verified)
    if output.as_json:
        context.print_json(report.document(paths))
        return
    context.print_fields(report.fields())
    context.print_table(HEADER, report.rows(), right=("size", "alone"))
    if paths:
        context.say(f"wrote {paths[0]} and {len(paths) - 1} more")


def _choices(
    context: CommandContext, wish: _Wish, out: str | None, output: OutputRequest
) -> tuple[GroupChoices, Assignments]:
    """How to plan, and the options of the writer."""
    from collhub_flows.groups.planning import MOST_WORK, GroupChoices
    from hub_core.network import Occupancy
    from hub_core.plugin_api import Synthesizer

    sides = {"groups": declared_options(GroupOptions)}
    if out is None and output.target_format is not None:
        raise UsageError("--to has no meaning without -o", cure="say where to write: -o OUT")
    if out is not None:
        if out == "-":
            raise UsageError("groups are written into a folder", cure="name one: -o OUT")
        check_stdout(out, output.as_json)
        sides["writer"] = context.output_target(_place(out, "joint", output), output).options
    given = assign(output.assignments, sides)
    limits = given["groups"]
    work = _count(limits["work"]) if "work" in limits else MOST_WORK
    # Says what is closest, before anything is made.
    context.options_of(Synthesizer, wish["name"])
    choices = GroupChoices(
        wish["name"],
        Occupancy(wish["occupancy"]),
        wish["backend"],
        work,
        wish["budget"],
        context.registry(),
    )
    return choices, given.get("writer", {})


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise UsageError(f"-O work={text}: expected a number of steps", cure="give 0 or more")
    return int(text)


def _admit(context: CommandContext, plan: GroupPlan) -> int:
    """How many algorithms were found correct; a wrong one ends the command."""
    made: list[tuple[str, Algorithm]] = [
        (f"the algorithm of group {number}", algorithm)
        for number, algorithm in enumerate(plan.algorithms)
    ]
    # The same steps in stricter order, which its simulation has shown to end.
    made += [("the joint algorithm", joint) for joint in _judged(plan.joint)]
    reports = [context.admit(algorithm, name) for name, algorithm in made]
    return sum(report is not None and report.ok for report in reports)


def _judged(joint: Algorithm | None) -> list[Algorithm]:
    """The joint algorithm, where there is one that can be judged in short time."""
    if joint is None or len(joint.steps) > _MOST_VERIFIED:
        return []
    return [] if joint.collective.postcondition() is None else [joint]


def _written(
    context: CommandContext,
    plan: GroupPlan,
    topology: str,
    out: str,
    output: OutputRequest,
    options: Assignments,
) -> list[str]:
    """Paths of all files: one algorithm a group, all as one, and the list of them."""
    from collhub_flows.groups.report import manifest

    named = [(f"group_{number}", each) for number, each in enumerate(plan.algorithms)]
    if plan.joint is not None:
        named.append(("joint", plan.joint))
    # Paths are told to the user, places within the folder stand in its list.
    paths: list[str] = []
    places = []
    for name, algorithm in named:
        place = _place(out, name, output)
        target = context.output_target(place, output)
        written = context.write_output(algorithm, target, options, output, work="synthesis")
        paths += [str(path) for path in written.paths]
        places.append(Path(place).name)
    # The joint algorithm stands last.
    files = places[: len(plan.algorithms)]
    joint = None if plan.joint is None else places[-1]
    document = manifest(plan, topology, files, joint)
    content = json.dumps(document, indent=1).encode() + b"\n"
    listed = context.write_file(str(Path(out) / "groups.json"), content)
    return [*paths, *(str(path) for path in listed.paths)]


def _place(out: str, name: str, output: OutputRequest) -> str:
    """File or prefix of an algorithm; a stated format has suffixes of its own."""
    suffix = ".json" if output.target_format == _OWN_FORMAT else ""
    return str(Path(out) / f"{name}{suffix}")
