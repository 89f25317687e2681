"""`collhub reshard`: move tensors in minimum time, as an algorithm with its proof."""

from __future__ import annotations

from collections.abc import Sequence
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
    check_stdout,
    draw_algorithm_page,
    force_flag,
    format_option,
    json_flag,
    number_option,
    option_pairs,
    strict_flag,
    timeout_option,
    topology_option,
    verify_option,
    view_option,
)
from hub_core.model import HubError, InputError, parse_bandwidth, parse_time
from hub_core.plugin_api import FormatWriter, SearchBudget, declared_options

# Modules that need numpy are imported where they are used, so that the help appears quickly.
if TYPE_CHECKING:
    from collhub_shardings import Move

    from collhub_reshard.planning import ReshardPlan
    from hub_core.model import Algorithm
    from hub_core.network import Topology


class _ProblemOptions(TypedDict):
    """Options of the command that describe the tensors and the network."""

    tensors: tuple[str, ...]
    state_dict: str | None
    source: str | None
    destination: str | None
    topology: str | None
    host_bandwidth: str | None
    latency: str
    cards: int | None


@click.command()
@click.option(
    "--tensor",
    "tensors",
    metavar="SHAPE:DTYPE",
    multiple=True,
    help="For example 1024x1024x512:float32; repeatable.",
)
@click.option("--tensors", "state_dict", metavar="FILE", type=FILE, help="JSON list of tensors.")
@click.option("--from", "source", metavar="SIDE", help="For example 'mesh(2,4): S0 R R'.")
@click.option("--to", "destination", metavar="SIDE", help="For example 'mesh(3,4): S0 R R'.")
@topology_option("Network; device r of the meshes is its NPU r.", "topology")
@click.option(
    "--host-bandwidth", metavar="B", help="Instead of a topology: card of every host, 1.25GiB/s."
)
@click.option(
    "--latency",
    metavar="TIME",
    default="0ns",
    show_default=True,
    help="Between hosts, with --host-bandwidth.",
)
@number_option("--cards", "N", "Cards per host with --host-bandwidth (default: 1).", most=1024)
@click.option("-o", "--output", "out", metavar="OUT", type=FILE, help="File or prefix to write.")
@click.option(
    "--network", "network_out", metavar="FILE", type=FILE, help="Also write the network as JSON."
)
@view_option
@timeout_option
@format_option("--format", "target_format", FormatWriter, "Format of OUT (default: by suffix).")
@option_pairs
@verify_option
@strict_flag
@force_flag
@json_flag
@click.pass_obj
def reshard(
    context: CommandContext,
    out: str | None,
    network_out: str | None,
    view_out: str | None,
    target_format: str | None,
    assignments: Assignments,
    strict: bool,
    force: bool,
    as_json: bool,
    budget: SearchBudget,
    **problem: Unpack[_ProblemOptions],
) -> None:
    """Move sharded tensors between device meshes in minimum time.

    A side is a mesh and a spec: `mesh(2,4): S0 R S1`, `mesh(x=2,y=4): ('x', None, 'y')` or
    `mesh(2,4): Shard(0), Replicate()`. Devices of the destination follow those of the source;
    `mesh(2,4)@0-7` names the devices, so that meshes can share them. Every `--tensor` moves between
    the same sides `--from` and `--to`; entries of the list of `--tensors` can have other sides. The
    network is required: a topology or `--host-bandwidth`. The algorithm is verified, carries its
    proof (`verify --certificate`), and is written to OUT if that is given.
    """
    from collhub_reshard.command_options import ReshardOptions, parse_choices
    from collhub_reshard.command_report import build_text_fields, create_report
    from collhub_reshard.scheduling.best import could_use_solver, report_missing_solver

    output = OutputRequest(target_format, assignments, strict, force, as_json)
    target = None
    if out is not None:
        check_stdout(out, as_json)
        target = context.output_target(out, output)
    elif target_format is not None:
        raise UsageError("--format has no meaning without -o", cure="specify the output: -o OUT")
    sides = {"reshard": declared_options(ReshardOptions)}
    if target is not None:
        sides["writer"] = target.options
    values = assign(assignments, sides)
    choices, host_size = parse_choices(values["reshard"], budget)
    moves = _read_moves(problem, host_size)
    with context.progress("scheduling"):
        plan = _plan(context, moves, problem, choices)
    effort = plan.choices.effort
    if plan.streams is None and could_use_solver(plan.tasks, plan.schedule, effort):
        context.report([report_missing_solver()])
    lowered = plan.lower()
    context.admit(lowered.algorithm, "the resharding")
    written = None
    if target is not None:
        written = context.write_output(
            lowered.algorithm, target, values.get("writer", {}), output, work="resharding"
        )
    if network_out is not None:
        context.say_written(context.write_topology(plan.topology, network_out), "network: ")
    if view_out is not None:
        size = lowered.algorithm.collective_bytes or lowered.algorithm.collective.unit_count
        draw_algorithm_page(context, lowered.algorithm, "resharding", plan.topology, size, view_out)
    if as_json:
        paths = [] if written is None else [str(path) for path in written.paths]
        context.print_report(create_report(plan, lowered, paths))
        return
    # Standard output (`-`) has the algorithm.
    if out != "-":
        context.print_fields(build_text_fields(plan, lowered))
    if written is not None:
        context.say_written(written)


def _read_moves(problem: _ProblemOptions, host_size: int | None) -> list[Move]:
    """Return the moves of `--tensor` in their order, then those of the file of `--tensors`.

    A `--tensor` moves from `--from` to `--to`, without release and due time, and is named
    `tensor 0` and so on. Entries of the file use these sides if they lack one. `host_size`:
    devices per host; None for the length of the last axis of each mesh. The errors, in this
    order:

    1. `UsageError` for the first `--tensor` that lacks a side, or with an invalid text
    2. `InputError` for a file that cannot be read (`not-readable`) or is no valid list of at
       least one tensor (`invalid-state-dict`)
    3. `UsageError` without `--tensor` and `--tensors`
    """
    from collhub_shardings import parse_move

    from collhub_reshard.command_options import TensorSides, parse_state_dict

    source, destination = problem["source"], problem["destination"]
    moves: list[Move] = []
    for text in problem["tensors"]:
        if source is None or destination is None:
            raise UsageError("--tensor needs --from and --to", cure="give both sides")
        name = f"tensor {len(moves)}"
        try:
            moves.append(parse_move(text, source, destination, name=name, host_size=host_size))
        except InputError as error:
            # The texts are of the command line, not of a file.
            raise UsageError(error.diagnostics) from None
    if problem["state_dict"] is not None:
        file = problem["state_dict"]
        try:
            content = Path(file).read_bytes()
        except OSError as error:
            raise InputError(f"{file}: {error.strerror}", code="not-readable") from None
        moves += parse_state_dict(content, file, TensorSides(source, destination), host_size)
    if not moves:
        raise UsageError("nothing to move", cure="give --tensor or --tensors")
    return moves


def _plan(
    context: CommandContext, moves: Sequence[Move], problem: _ProblemOptions, choices: object
) -> ReshardPlan:
    """Return the plan of `plan_reshard` for the network that the options of the command describe.

    - With `--topology`: that topology. `--cards` and a valid `--latency` have no effect.
    - With `--host-bandwidth`: equal hosts with `--cards` cards (default 1) of this bandwidth each,
      and `--latency` between hosts (default 0 ns).

    If the plan has streams over a topology and `choices` gives no number of chunks, several numbers
    are simulated (default simulator), and the fastest is used. If a simulation fails (`HubError`)
    or never ends, the predicted time is compared instead. A given number is simulated once; other
    plans are not.
    Raises `AssertionError` if `choices` is no `ReshardChoices`; `UsageError` for both or neither of
    topology and bandwidth or an invalid bandwidth or latency; `HubError` for a bad topology;
    `InputError` for moves or a strategy that do not fit the network; `ValueError` without moves.
    """
    from collhub_reshard.planning import ReshardChoices, plan_reshard
    from hub_core import simulate

    def simulate_s(algorithm: Algorithm, network: Topology) -> float | None:
        """Return the simulated time in s; None if it cannot be simulated or never ends."""
        # An algorithm without a size is simulated with 1 byte.
        size = algorithm.collective_bytes or 1
        try:
            result = simulate(algorithm, network, size, registry=context.registry())
        except HubError:
            return None
        return None if result.time_ns is None else result.time_ns / 1e9

    assert isinstance(choices, ReshardChoices)
    topology, bandwidth = problem["topology"], problem["host_bandwidth"]
    if (topology is None) == (bandwidth is None):
        message = "one of --topology and --host-bandwidth is needed"
        raise UsageError(message, cure="for example --host-bandwidth 1.25GiB/s")
    return plan_reshard(
        moves,
        topology=None if topology is None else context.read_topology(topology),
        host_bandwidth=None if bandwidth is None else parse_bandwidth(bandwidth),
        latency_s=parse_time(problem["latency"]),
        cards=problem["cards"] or 1,
        choices=choices,
        simulate=simulate_s,
    )
