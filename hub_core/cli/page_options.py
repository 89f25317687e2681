"""Pages of runs: `--view`, the options for the part to show, and drawing of created objects."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hub_core.cli.parameter_types import FILE, OfferName
from hub_core.model.diagnostics import UsageError
from hub_core.model.quantities import format_bytes, parse_ranks, parse_time
from hub_core.plugin_api.formats import FormatReader
from hub_core.plugin_api.outputs import InteractivePage, JobTimeline, RunExcerpt, RunTimeline
from hub_core.plugin_api.runs import WorkloadRequest

if TYPE_CHECKING:
    from hub_core.cli.command_context import CommandContext
    from hub_core.model import Algorithm, Workload
    from hub_core.network import Topology

Function = TypeVar("Function", bound=Callable[..., object])


def view_option(function: Function) -> Function:
    """Add `--view FILE`, a page of the result; the command gets the path as `view_out`, or None.

    An existing file is refused before any work.
    """
    return click.option(
        "--view",
        "view_out",
        metavar="FILE",
        type=FILE,
        callback=lambda context, parameter, out: refuse_existing(out, parameter.opts[0]),
        help="Also write an interactive page of the result, such as run.html.",
    )(function)


def refuse_existing(out: str | None, option: str) -> str | None:
    """Return the path of an output file that must not exist; `-` and None are returned unchanged.

    Raises `UsageError` (`output-exists`), which names the option, if a file or folder with this
    name exists.
    """
    if out not in (None, "-") and Path(str(out)).exists():
        message = f"{option} {out} exists already"
        raise UsageError(message, cure="name another file, or remove it", code="output-exists")
    return out


def excerpt_options(function: Function) -> Function:
    """Add `--ranks`, `--from` and `--to`, which select the part of a run to show.

    `--from` may be given twice: a text that begins with a digit is the start of a time window, any
    other text the format of IN. The function gets `source_format` (None without it) and `excerpt`,
    a `RunExcerpt` with ranks, start and stop in ns, each None if not given. The command raises
    `UsageError` if `--from` gives two times or two formats, and for ranks or times that cannot be
    parsed.
    """

    @wraps(function)
    def call_with_excerpt(
        *arguments: Any, starts: tuple[str, ...], ranks: str | None, stop: str | None, **named: Any
    ) -> object:
        times = [text for text in starts if text[:1].isdigit()]
        formats = [text for text in starts if text not in times]
        for kind, texts in (("time", times), ("format", formats)):
            if len(texts) > 1:
                raise UsageError(f"--from states two {kind}s: {texts[0]}, {texts[1]}")
        excerpt = RunExcerpt(
            None if ranks is None else parse_ranks(ranks),
            parse_time(times[0]) * 1e9 if times else None,
            None if stop is None else parse_time(stop) * 1e9,
        )
        return function(
            *arguments, source_format=formats[0] if formats else None, excerpt=excerpt, **named
        )

    decorated: Any = call_with_excerpt
    # Help lists options in reverse order of the decorators.
    for decorate in _EXCERPT_OPTIONS:
        decorated = decorate(decorated)
    result: Function = decorated
    return result


_EXCERPT_OPTIONS = (
    click.option(
        "--to",
        "stop",
        metavar="TIME",
        help="Show only what runs before this time of the run, such as 20us.",
    ),
    click.option(
        "--ranks", metavar="RANKS", help="Show only these ranks, such as 0-7,16 (default: all)."
    ),
    click.option(
        "--from",
        "starts",
        metavar="FORMAT|TIME",
        type=OfferName(FormatReader),
        multiple=True,
        help="Format of IN (default: by suffix, then content). A time, such as 10us: show only what"
        " runs after it (repeatable: one of each).",
    ),
)


_SIMULATOR = "analytical"


def draw_job_page(
    context: CommandContext, workload: Workload, name: str, topology: Topology | None, out: str
) -> None:
    """Simulate a job on nominal links, write its page to `out`, and print where it is.

    The simulator is `analytical` with its default options. Without a topology, all NPUs are at one
    switch (`switch:N`). The page states the name of the topology. `name`: title of the page. Raises
    `HubError` if the job cannot be simulated, no plugin writes pages, or `out` cannot be written.
    """
    if topology is None:
        topology = context.read_topology(f"switch:{workload.num_ranks}")
    request = WorkloadRequest(workload, topology, wants_transfers=True)
    times = context.simulate_workload(request, _SIMULATOR, {})
    timeline = JobTimeline(
        name,
        workload,
        times.step_start_ns,
        times.step_end_ns,
        topology,
        times,
        timing=f"simulated on {topology.name}, nominal links",
    )
    context.say_written(context.draw_report(InteractivePage(name, (timeline,)), out))


def draw_algorithm_page(
    context: CommandContext,
    algorithm: Algorithm,
    name: str,
    topology: Topology,
    collective_bytes: int,
    out: str,
) -> None:
    """Simulate an algorithm on nominal links, write its page to `out`, and print `wrote OUT` on
    stderr.

    The default simulator is used. On a terminal, stderr shows the progress of the simulation. The
    page has the timeline of all transfers and the name of the topology. `name`: title of the page.
    `collective_bytes`: size of the full buffer. Nothing is printed if `out` is standard output.

    Raises `HubError` if the simulation fails, no plugin writes pages, or `out` cannot be written.
    """
    # Imported here: the help of a command needs no numpy.
    from hub_core.pipeline.simulation import simulate

    with context.progress(f"simulating {format_bytes(collective_bytes)}"):
        result = simulate(
            algorithm,
            topology,
            collective_bytes,
            registry=context.registry(),
            wants_transfers=True,
        )
    timeline = RunTimeline(
        name,
        algorithm,
        collective_bytes,
        result.step_start_ns,
        result.step_end_ns,
        topology,
        result,
        timing=f"simulated on {topology.name}, nominal links",
    )
    context.say_written(context.draw_report(InteractivePage(name, (timeline,)), out))
