"""Inputs and report of the command `reshard`: tensors from JSON, options of `-O`, results."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import click
from collhub_shardings import Move, parse_move

from collhub_reshard.lowering.algorithm import Lowered
from collhub_reshard.planning import ReshardChoices, ReshardPlan
from collhub_reshard.reshard_record import Binding, BindingLink, LayoutItem, ReshardReport
from collhub_reshard.scheduling.best import Effort
from collhub_reshard.strategies import Strategy
from hub_core import Assignments, cut_fields
from hub_core.model import InputError, Location, format_bytes
from hub_core.plugin_api import BOOL_WORDS, OptionType, SearchBudget, option, optional
from hub_core.reports import list_cuts


def create_report(plan: ReshardPlan, lowered: Lowered, paths: Sequence[str]) -> ReshardReport:
    """Create the report of `collhub reshard --json`.

    `optimum_s` is the makespan if the status is "optimal", else None. Strategies are counted by
    name and sorted by it; `chunks` is the largest number of chunks of a unit task, 0 if there are
    none. `is_partial` tells that a budget cut parts of the search, which `cut` lists. `paths`: the
    files that were written.
    """
    outcome, tasks, layout = plan.outcome, plan.tasks, lowered.layout
    cuts = plan.choices.effort.budget.cuts
    return ReshardReport(
        tensors=len(plan.moves),
        unit_tasks=len(plan.units),
        tasks_between_hosts=len(tasks),
        bytes=sum(move.tensor.num_bytes for move in plan.moves),
        makespan_s=plan.makespan_s,
        optimum_s=plan.makespan_s if outcome.status == "optimal" else None,
        bound_s=plan.bound_s,
        binding=Binding(
            kind=outcome.kind,
            hosts=tuple(outcome.hosts),
            task=outcome.task,
            links=_list_binding_links(plan),
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
    """Build the lines of the text output, as texts by name in the order of output.

    Always: resharding, strategies, time, bound, status, predicted, layout, algorithm. Then
    "simulated" if a simulated time exists, the fields of a budget that was cut, and "late" with the
    number of tasks that finish after their due times, if there are any. Times are in seconds with
    six significant digits.
    """
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
    """Describe the data and the hosts or links whose load proves the bound.

    Returns a phrase by the kind of the bound: links, receiver, senders, exclusive, task or nothing.
    """
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


def _list_binding_links(plan: ReshardPlan) -> list[BindingLink]:
    """Return the links whose weights prove the bound, in the order of the topology.

    Their ends are the names of nodes.
    """
    topology = plan.topology
    links = []
    for link, weight in sorted(plan.outcome.weights.items()):
        ends = topology.source[link], topology.destination[link]
        source, destination = (topology.node_name(int(end)) for end in ends)
        links.append(BindingLink(source=source, destination=destination, weight=weight))
    return links


def _describe_links(plan: ReshardPlan) -> str:
    """Describe the binding links by the one with the largest weight, and their number."""
    topology, weights = plan.topology, plan.outcome.weights
    first = min(weights, key=lambda link: (-weights[link], link))
    source, destination = int(topology.source[first]), int(topology.destination[first])
    name = f"{topology.node_name(source)} -> {topology.node_name(destination)}"
    return f"link {name}" if len(weights) == 1 else f"{len(weights)} links such as {name}"


def _describe_status(plan: ReshardPlan) -> str:
    """Describe the proof of optimality or the maximum gap, and the method of the schedule."""
    schedule = plan.outcome
    if schedule.status == "optimal":
        return f"optimal, proved by the {schedule.proof}; found by {schedule.method}"
    return f"at most {100 * schedule.gap:.3g} % above the optimum; found by {schedule.method}"


def _describe_layout(lowered: Lowered) -> str:
    """Describe the layout of the buffers and its cost in copies or padding.

    Padding is stated only without copies, and if there is any.
    """
    layout = lowered.layout
    if lowered.copies:
        copied = format_bytes(lowered.copied_bytes)
        return f"{layout.kind}, {lowered.copies} copies of {copied} before and after the messages"
    padding = f", {format_bytes(layout.padding_bytes)} of padding" if layout.padding_bytes else ""
    return f"{layout.kind}, no copies{padding}"


_MEMBERS = {"name", "tensor", "from", "to", "release_s", "due_s", "count"}
_CURE = 'write [{"tensor": "4096x4096:bfloat16", "from": "mesh(2,4): S0 R", "to": "..."}]'


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides of the tensors that specify none themselves."""

    source: str | None = None
    destination: str | None = None


def parse_state_dict(
    content: bytes, file: str, sides: Sides, host_size: int | None = None
) -> list[Move]:
    """Parse moves from a JSON list of objects with `tensor`, `from`, `to`.

    Optional members: `name`, `release_s`, `due_s`, `count` of equal tensors. `from` and `to`
    default to `sides`. Raises `InputError` with the number of the entry.
    """
    try:
        listed = json.loads(content)
    except ValueError as error:
        raise _make_error(file, f"is no JSON: {error}") from None
    if not isinstance(listed, list) or not listed:
        raise _make_error(file, "is no list of tensors")
    moves: list[Move] = []
    for number, entry in enumerate(listed):
        if not isinstance(entry, dict):
            raise _make_error(file, f"entry {number} is no object")
        moves += _parse_entry(entry, number, file, sides, host_size)
    return moves


def _parse_entry(
    entry: Mapping[str, object], number: int, file: str, sides: Sides, host_size: int | None
) -> list[Move]:
    """Parse one entry of the list: `count` equal moves (default 1, at most 10 000).

    Sides that the entry lacks are those of `sides`, the name is "tensor" and the entry's number by
    default, the release 0, and no due time.

    Raises `InputError` with the file's name for unknown members (the first in alphabetical order),
    missing sides or tensor, negative times, and invalid counts, tensors or sides.
    """
    unknown = sorted(entry.keys() - _MEMBERS)
    if unknown:
        raise _make_error(file, f"entry {number}: there is no member {unknown[0]!r}")
    tensor, source = entry.get("tensor"), entry.get("from", sides.source)
    destination = entry.get("to", sides.destination)
    if not all(isinstance(text, str) for text in (tensor, source, destination)):
        raise _make_error(file, f"entry {number} has no tensor, from or to")
    release, due = entry.get("release_s", 0.0), entry.get("due_s")
    times = [time for time in (release, due) if time is not None]
    if not all(isinstance(time, int | float) and time >= 0 for time in times):
        raise _make_error(file, f"entry {number}: release_s and due_s are seconds from 0 on")
    count = entry.get("count", 1)
    if not isinstance(count, int) or not 1 <= count <= 10_000:
        raise _make_error(file, f"entry {number}: count is not in 1..10000")
    name = str(entry.get("name", f"tensor {number}"))
    try:
        move = parse_move(
            str(tensor),
            str(source),
            str(destination),
            name=name,
            host_size=host_size,
            release_s=float(str(release)),
            due_s=None if due is None else float(str(due)),
        )
    except InputError as error:
        raise _make_error(file, f"entry {number}: {error}") from None
    return [move] * count


def _make_error(file: str, message: str) -> InputError:
    """Return the `InputError` of an invalid list of tensors in a file."""
    return InputError(message, location=Location(file), cure=_CURE, code="invalid-state-dict")


T = TypeVar("T")

AUTO = "auto"
_STRATEGIES = (AUTO, *(strategy.value for strategy in Strategy))
_LAYOUTS = ("packed", "rows")
_MAX_EFFORT = 1000.0


@dataclass(frozen=True, slots=True)
class ReshardOptions:
    """Options of a resharding as `-O key=value`."""

    strategy: str = option(
        OptionType.TEXT, AUTO, "how boxes reach their receivers", choices=_STRATEGIES
    )
    layout: str = option(
        OptionType.TEXT,
        "packed",
        "packed: buffers contain the boxes in sequence; rows: row-major tiles, which needs copies",
        choices=_LAYOUTS,
    )
    split: bool = option(OptionType.BOOL, False, "tasks may be split over senders and in time")
    effort: float = option(
        OptionType.FLOAT,
        1.0,
        "limit of the search's counted work, relative to the default; 0: heuristics only",
        minimum=0,
        maximum=_MAX_EFFORT,
    )
    chunks: int | None = optional("chunks of a box (default: the closed form)", OptionType.INT)
    host_size: int | None = optional(
        "devices of a host (default: the last axis of a mesh)", OptionType.INT
    )


def parse_choices(
    assignments: Assignments, budget: SearchBudget
) -> tuple[ReshardChoices, int | None]:
    """Return (choices, devices per host). Raises click's errors, which name the option.

    Without values: strategy None (chosen per box), as for "auto", chunks None (the planner
    chooses), layout "packed", split None, the default work, and devices per host None. Limits:
    65536 chunks and devices, an effort from 0 to 1000.
    """
    # Parsed here, because a command has no option record that the program fills in. The errors
    # have the form of those of other options.
    strategy = _parse_choice(assignments, "strategy", _STRATEGIES)
    choices = ReshardChoices(
        None if strategy in (None, AUTO) else Strategy(strategy),
        _parse_positive_integer(assignments, "chunks", 1 << 16),
        _parse_choice(assignments, "layout", _LAYOUTS) or "packed",
        Effort(
            _parse_boolean(assignments, "split"),
            _parse_number(assignments, "effort", 0.0, _MAX_EFFORT, Effort().work),
            budget,
        ),
    )
    return choices, _parse_positive_integer(assignments, "host_size", 1 << 16)


def _parse_choice(assignments: Assignments, name: str, known: tuple[str, ...]) -> str | None:
    """Return one of the `known` words, None if the option is not given.

    Raises `click.UsageError` for any other word.
    """
    text = assignments.get(name)
    if text is None:
        return None
    if text not in known:
        raise click.UsageError(f"-O {name}={text}: expected one of {', '.join(known)}")
    return text


def _parse_positive_integer(assignments: Assignments, name: str, maximum: int) -> int | None:
    """Return an integer from 1 to `maximum`, None if the option is not given.

    Raises `click.UsageError` for any other text.
    """
    text = assignments.get(name)
    if text is None:
        return None
    # `isdecimal` also refuses signs and underscores.
    if not text.isdecimal() or not 1 <= int(text) <= maximum:
        raise click.UsageError(f"-O {name}={text}: expected a whole number from 1 to {maximum}")
    return int(text)


def _parse_boolean(assignments: Assignments, name: str) -> bool:
    """Return the value of a boolean option, False if it is not given.

    Raises `click.UsageError` for a word other than those of `BOOL_WORDS`.
    """
    value = BOOL_WORDS.get(assignments.get(name, "false").lower())
    if value is None:
        raise click.UsageError(f"-O {name}={assignments[name]}: expected true or false")
    return value


def _parse_number(
    assignments: Assignments, name: str, low: float, high: float, default: T
) -> float | T:
    """Return a number from `low` to `high`, or `default` if the option is not given.

    Both limits are allowed. Raises `click.UsageError` for any other text, also for NaN.
    """
    text = assignments.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        message = f"-O {name}={text}: expected a number from {low:g} to {high:g}"
        raise click.UsageError(message)
    return number
