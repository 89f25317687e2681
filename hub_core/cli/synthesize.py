"""`collhub synthesize`: make an algorithm.

An algorithm for a collective on a topology, verified, timed and written.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from hub_core.cli.loss_objects import loss_objects
from hub_core.cli.output import print_diagnostic, print_fields, print_json, progress, progress_bar
from hub_core.cli.session import Session, Target, check_stdout
from hub_core.model import (
    ExitCode,
    UsageError,
    format_bytes,
    format_ranks,
    format_time,
    parse_ranks,
    parse_size,
)
from hub_core.model.diagnostics import diagnostic_object
from hub_core.plugin_api import (
    Assignments,
    assign,
    force_flag,
    json_flag,
    option_pairs,
    strict_flag,
    to_option,
)

if TYPE_CHECKING:
    from hub_core.model import Collective, JsonValue
    from hub_core.network import Topology
    from hub_core.pipeline.outputs import Written
    from hub_core.plugin_api import Option, SynthesisResult
    from hub_core.verification import VerifyReport


_KINDS = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all-to-all",
)
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_WHOLE = ("all-reduce", "broadcast", "reduce")


@dataclass(frozen=True, slots=True)
class _Request:
    """What the command line asks for.

    `npus`: the NPUs that take part; with `relays`, others may forward.
    """

    collective: str
    topology_text: str
    size: int
    root: int | None
    reduce_op: str
    npus: tuple[int, ...] | None
    relays: bool
    wanted: tuple[int, ...] | None
    occupancy: str
    backend: str


@dataclass(frozen=True, slots=True)
class _Made:
    """An algorithm with everything that is known about it.

    `report`: None where it was not verified.
    """

    result: SynthesisResult
    topology: Topology
    wall_s: float
    cpu_s: float
    report: VerifyReport | None
    written: Written | None


def _ranks(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    return None if text is None else parse_ranks(text)


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--collective",
    "kind",
    type=click.Choice(_KINDS),
    required=True,
    help="What the algorithm does.",
)
@click.option(
    "--topology",
    "topology_text",
    metavar="T",
    required=True,
    help="For example mesh:8x8, dgx1v, a file.",
)
@click.option(
    "--size",
    "size_text",
    metavar="S",
    required=True,
    help="Size of the full buffer, for example 1MiB.",
)
@click.option(
    "--root",
    type=click.IntRange(0),
    metavar="R",
    help="NPU of the root of a rooted collective (default: the first).",
)
@click.option(
    "--reduce-op",
    type=click.Choice(("sum", "prod", "min", "max", "avg")),
    default="sum",
    show_default=True,
)
@click.option(
    "--ranks",
    callback=_ranks,
    metavar="LIST",
    help="The NPUs that take part, as 0,2,4-7 (default: all).",
)
@click.option("--relays", is_flag=True, help="With --ranks: let the other NPUs forward.")
@click.option(
    "--write-ranks",
    callback=_ranks,
    metavar="LIST",
    help="Make and write the steps of these ranks alone.",
)
@click.option(
    "--occupancy",
    type=click.Choice(("serialization", "alpha-beta")),
    default="serialization",
    show_default=True,
    help="How long a message keeps a link busy: size/bandwidth, or latency + size/bandwidth.",
)
@click.option(
    "--backend",
    metavar="SIMULATOR",
    default="analytical",
    show_default=True,
    help="The judge, where it is installed.",
)
@click.option(
    "-o",
    "--output",
    "out",
    metavar="OUT",
    help="File, trace-set prefix, folder, or - for stdout (default: none).",
)
@click.option(
    "--verify/--no-verify",
    "is_verified",
    default=True,
    show_default=True,
    help="Verify the algorithm.",
)
@to_option
@option_pairs
@strict_flag
@force_flag
@json_flag
@click.pass_obj
def synthesize(
    session: Session,
    name: str,
    kind: str,
    topology_text: str,
    size_text: str,
    root: int | None,
    reduce_op: str,
    ranks: tuple[int, ...] | None,
    relays: bool,
    write_ranks: tuple[int, ...] | None,
    occupancy: str,
    backend: str,
    out: str | None,
    is_verified: bool,
    target_format: str | None,
    assignments: Assignments,
    strict: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Make an algorithm with the synthesizer NAME (`collhub formats` lists them).

    Ranks are the NPUs of the topology; with --ranks, rank i is the i-th NPU of the list, unless
    --relays lets all NPUs take part. Ctrl-C ends the search with the best found so far. Exit 0, or
    1 where verification fails.
    """
    request = _Request(
        kind,
        topology_text,
        parse_size(size_text),
        root,
        reduce_op,
        ranks,
        relays,
        write_ranks,
        occupancy,
        backend,
    )
    _check(request, out, target_format, as_json)
    target = None if out is None else session.output_target(out, target_format, as_json=as_json)
    given = assign(assignments, _sides(session, name, target))
    made = _made(session, name, request, given["synthesizer"])
    report = _verified(made.result) if is_verified else None
    if report is not None and not report.ok:
        for found in report.diagnostics:
            print_diagnostic(found)
        return ExitCode.INVALID
    written = None
    if target is not None:
        options = _with_ranks(given["writer"], target, write_ranks)
        algorithm = made.result.algorithm
        written = session.write_output(algorithm, target, options, strict=strict, force=force)
    _print(
        _Made(made.result, made.topology, made.wall_s, made.cpu_s, report, written),
        name,
        request,
        as_json,
        out == "-",
    )
    if written is not None and not as_json:
        session.say_written(written)
    return ExitCode.DONE


def _check(request: _Request, out: str | None, target_format: str | None, as_json: bool) -> None:
    if request.root is not None and request.collective not in _ROOTED:
        raise UsageError(
            f"--root has no meaning for {request.collective}",
            cure=f"it belongs to {', '.join(_ROOTED)}",
        )
    if request.relays and request.npus is None:
        raise UsageError(
            "--relays has no meaning where all NPUs take part",
            cure="name those that take part with --ranks",
        )
    if target_format is not None and out is None:
        raise UsageError("--to has no meaning without -o", cure="say where to write: -o OUT")
    if out is not None:
        check_stdout(out, as_json)


def _sides(session: Session, name: str, target: Target | None) -> dict[str, tuple[Option, ...]]:
    """The options of everybody who may be meant by -O."""
    # Imported here: the help of a command needs no plugins.
    from hub_core.plugin_api import Synthesizer

    sides = {"synthesizer": session.options_of(Synthesizer, name)}
    return sides if target is None else {**sides, "writer": target.options}


def _with_ranks(
    options: Assignments, target: Target, wanted: tuple[int, ...] | None
) -> Assignments:
    """The options of the writer, which must hold some ranks alone where only these are made."""
    if wanted is None:
        return options
    if "ranks" not in (option.name for option in target.options):
        message = f"the format {target.format_name} cannot hold some ranks alone"
        raise UsageError(message, cure="write Chakra traces: --to chakra")
    return {**options, "ranks": format_ranks(wanted)}


def _made(session: Session, name: str, request: _Request, options: Assignments) -> _Made:
    # Imported here: the help of a command needs no numpy.
    from hub_core.network.links import Occupancy
    from hub_core.pipeline.synthesis import synthesize as run_synthesizer

    topology = session.read_topology(request.topology_text)
    npus = request.npus or tuple(range(topology.num_npus))
    collective = _collective(request, topology, npus)
    network = topology if request.relays or request.npus is None else topology.subset(npus)
    wall, cpu = time.perf_counter(), time.process_time()
    with progress_bar(f"synthesizing {request.collective}") as show:
        result = run_synthesizer(
            collective,
            network,
            request.size,
            name=name,
            options=options,
            npus=npus if request.relays else None,
            occupancy=Occupancy(request.occupancy),
            wanted=request.wanted,
            backend=request.backend,
            progress=show,
            registry=session.registry(),
        )
    return _Made(result, network, time.perf_counter() - wall, time.process_time() - cpu, None, None)


def _collective(request: _Request, topology: Topology, npus: tuple[int, ...]) -> Collective:
    from hub_core.model import Collective
    from hub_core.model.kinds import CollectiveKind, ReduceOp

    root = request.root if request.root is not None else npus[0]
    if root not in npus:
        cure = f"name one of {format_ranks(npus)[:200]}"
        raise UsageError(
            f"the root, NPU {root}, does not take part on {topology.name}",
            cure=cure,
            code="root-outside",
        )
    return Collective(
        CollectiveKind(request.collective),
        len(npus),
        1 if request.collective in _WHOLE else len(npus),
        root=npus.index(root) if request.collective in _ROOTED else None,
        in_place=True,
        reduce_op=ReduceOp(request.reduce_op),
    )


def _verified(result: SynthesisResult) -> VerifyReport | None:
    """The verdict on the algorithm; None for one of which only some ranks are at hand."""
    if result.is_partial:
        return None
    from hub_core.verification import verify

    with progress("verifying"):
        return verify(result.algorithm)


def _print(made: _Made, name: str, request: _Request, as_json: bool, is_stdout_taken: bool) -> None:
    if as_json:
        print_json(_object(made, name, request))
        return
    if not is_stdout_taken:
        print_fields(_fields(made, name, request))


def _fields(made: _Made, name: str, request: _Request) -> dict[str, str]:
    result, topology = made.result, made.topology
    algorithm = result.algorithm
    ratio = result.ratio_to_bound
    bounds = ", ".join(f"{bound} {format_time(value)}" for bound, value in result.bounds_ns.items())
    verdict = (
        "not asked for"
        if made.report is None
        else "correct"
        if made.report.method != "none"
        else "contents unknown"
    )
    if result.is_partial:
        verdict = (
            "replayed by the synthesizer as a whole"
            if result.is_replayed
            else "not possible for some ranks alone"
        )
    part = f" of {len(set(request.wanted or ()))} ranks" if result.is_partial else ""
    what = f"{request.collective} by {name}"
    network = f"{topology.num_npus} NPUs, {topology.num_links} links, {request.occupancy}"
    return {
        "algorithm": f"{what}, {algorithm.num_ranks} ranks, {len(algorithm.steps)} steps{part}",
        "topology": f"{topology.name}: {network}",
        "size": format_bytes(request.size),
        **{key: _text(value) for key, value in result.statistics.items()},
        "time": f"{format_time(result.time_ns)} ({result.time_ns} ns)",
        "bandwidth": f"{request.size / max(result.time_ns, 1):.2f} GB/s",
        "bounds": (
            f"{bounds}; time is {ratio:.3f} times the largest" if ratio is not None else bounds
        )
        or "none known",
        "synthesis": f"{made.wall_s:.2f} s, {made.cpu_s:.2f} s of CPU",
        "verification": verdict,
    }


def _text(value: JsonValue) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _object(made: _Made, name: str, request: _Request) -> dict[str, JsonValue]:
    result, report, written = made.result, made.report, made.written
    return {
        "schema": "collhub/report-synthesize-1",
        "synthesizer": name,
        "collective": request.collective,
        "collective_bytes": request.size,
        "num_ranks": result.algorithm.num_ranks,
        "topology": made.topology.name,
        "occupancy": request.occupancy,
        "time_ns": result.time_ns,
        "bounds_ns": dict(result.bounds_ns),
        "bound_ns": result.bound_ns,
        "ratio_to_bound": result.ratio_to_bound,
        "algorithm_bandwidth_bytes_per_s": request.size / max(result.time_ns, 1) * 1e9,
        "synthesis_s": made.wall_s,
        "synthesis_cpu_s": made.cpu_s,
        "statistics": dict(result.statistics),
        "is_partial": result.is_partial,
        "is_replayed": result.is_replayed,
        "is_verified": report is not None and report.ok,
        "diagnostics": [
            diagnostic_object(found) for found in (report.diagnostics if report is not None else ())
        ],
        "artifacts": [str(path) for path in written.paths] if written is not None else [],
        "losses": loss_objects(written.losses) if written is not None else [],
    }
