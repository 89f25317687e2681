"""`collhub demo`: verify shipped examples, write traces, simulate, compare with bounds, draw."""

from __future__ import annotations

import importlib.resources
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import json_flag
from hub_core.cli.command_context import Session
from hub_core.cli.output import print_line, print_table, progress
from hub_core.model import InputError, PluginError

if TYPE_CHECKING:
    from hub_core.cli.reports.timing import TimedRun
    from hub_core.cli.reports.timing_records import DemoReport
    from hub_core.model import Algorithm
    from hub_core.registry.plugins import Registry


SIMULATOR = "analytical"
MACHINE = "dgx1v"
TOPOLOGIES = ("ring:{}", "switch:{}", "fully-connected:{}", MACHINE)
SIZES = (1 << 20, 1 << 28)
PAGE = "demo.html"
"""Name of the page that shows all examples with an all-reduce on `MACHINE` at the first size."""


@dataclass(frozen=True, slots=True)
class _Example:
    """A shipped, verified algorithm; `traces`: prefix of its traces, None if they are not kept."""

    name: str
    algorithm: Algorithm
    traces: Path | None


@dataclass(frozen=True, slots=True)
class _DemoRow:
    """One row of the table."""

    example: _Example
    topology: str
    timing: TimedRun


@click.command()
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Keep the traces and the page in this folder (default: the page in a temporary folder).",
)
@json_flag
@click.pass_obj
def demo(session: Session, output: Path | None, as_json: bool) -> None:
    """Verify three shipped MSCCL algorithms, write their traces, simulate them on topologies.

    The topologies are a ring, a switch, a fully connected network, and a DGX-1V if the number
    of ranks fits. The sizes are 1 MiB and 256 MiB. The result is a table of times with bounds,
    commands to try next, and a page with the all-reduces (not with --json). Traces are kept
    only with --output. An error tells which plugins are missing.
    """
    registry = session.registry()
    _check_plugins(registry)
    with progress("reading, verifying and writing traces"), ExitStack() as stack:
        folder = output
        if folder is None:
            # Traces are always written, because writing is part of the demonstration.
            temporary = tempfile.TemporaryDirectory(prefix="collhub-demo-")
            folder = Path(stack.enter_context(temporary))
        examples = list(_load_examples(registry, folder, are_kept=output is not None))
    with progress("simulating (the first run compiles the simulator)"):
        runs = [run for example in examples for run in _simulate_example(registry, example)]
    if as_json:
        session.print_report(_create_report(examples, runs))
    else:
        _print(examples, runs, list(_suggest_commands(registry, examples, output)))
        page = _write_page(session, registry, examples, output)
        if page is not None:
            print_line()
            print_line(f"Open {page} in a browser: two all-reduces on {MACHINE} on one time axis.")


def _check_plugins(registry: Registry) -> None:
    """Raise `PluginError` if the plugins that the demo needs are not installed.

    It needs a reader of files `.xml` (for MSCCL XML), the simulator `analytical` and the topology
    builder `dgx1v`. The message lists everything that is missing and adds the registry's hint on
    plugins that could not be loaded, if there are any; the remedy is to install all plugins.
    """
    from hub_core.plugin_api import FormatReader, Simulator, TopologyBuilder

    readers = [
        reader for reader in registry.all(FormatReader) if ".xml" in reader.offer.format.suffixes
    ]
    simulators = [simulator for simulator in registry.all(Simulator) if simulator.name == SIMULATOR]
    builders = [builder for builder in registry.all(TopologyBuilder) if builder.name == MACHINE]
    needs = (
        ("reads MSCCL XML", readers),
        (f"simulates ({SIMULATOR})", simulators),
        (f"knows the topology {MACHINE}", builders),
    )
    missing = [need for need, offers in needs if not offers]
    if missing:
        hint = registry.unavailable_hint()
        raise PluginError(
            f"the demo needs a plugin that {' and one that '.join(missing)}"
            + (f"; {hint}" if hint else ""),
            cure="install the plugins: python -m pip install -r requirements.txt",
        )


def _load_examples(registry: Registry, folder: Path, *, are_kept: bool) -> Iterator[_Example]:
    from hub_core.pipeline.inputs import read
    from hub_core.pipeline.outputs import write
    from hub_core.verification import verify

    shipped = importlib.resources.files("hub_core.examples")
    for resource in sorted(shipped.iterdir(), key=lambda entry: entry.name):
        if not resource.name.endswith(".xml"):
            continue
        name = resource.name.removesuffix(".xml")
        with importlib.resources.as_file(resource) as path:
            algorithm = read(path, registry=registry)
        report = verify(algorithm)
        if not report.ok:
            raise InputError(report.diagnostics)
        write(algorithm, folder / name, format="chakra", registry=registry)
        yield _Example(name, algorithm, folder / name if are_kept else None)


def _simulate_example(registry: Registry, example: _Example) -> Iterator[_DemoRow]:
    from hub_core.cli.reports.timing import judge
    from hub_core.pipeline.inputs import read_topology
    from hub_core.pipeline.simulation import simulate

    algorithm = example.algorithm
    for text in TOPOLOGIES:
        topology = read_topology(text.format(algorithm.num_ranks), registry=registry)
        if topology.num_npus != algorithm.num_ranks:
            continue
        results = {
            size: simulate(algorithm, topology, size, backend=SIMULATOR, registry=registry)
            for size in SIZES
        }
        for timing in judge(algorithm, topology, results, backend=SIMULATOR, registry=registry):
            yield _DemoRow(example, topology.name, timing)


def _write_page(
    session: Session, registry: Registry, examples: Sequence[_Example], folder: Path | None
) -> Path | None:
    """Write an interactive page with simulations of the all-reduces among `examples`.

    They run on `MACHINE` ("dgx1v") with the first of `SIZES` (1 MiB), by the analytical simulator.
    Without an all-reduce the page has no simulation. The file is `PAGE` ("demo.html") in `folder`,
    and replaces an existing one. If `folder` is None, it is in a new temporary folder, which is
    kept, because a browser opens it after the command has ended.

    Returns the path. Returns None, without a simulation, if no installed plugin writes pages.
    """
    from hub_core.pipeline.inputs import read_topology
    from hub_core.pipeline.simulation import simulate
    from hub_core.plugin_api import InteractivePage, ReportWriter, RunTimeline, Shown

    if not any(writer.offer.shows is Shown.PAGE for writer in registry.all(ReportWriter)):
        return None
    topology = read_topology(MACHINE, registry=registry)
    timelines = []
    for example in examples:
        if example.algorithm.collective.kind == "all-reduce":
            result = simulate(
                example.algorithm,
                topology,
                SIZES[0],
                backend=SIMULATOR,
                registry=registry,
                wants_transfers=True,
            )
            timelines.append(
                RunTimeline(
                    example.name,
                    example.algorithm,
                    SIZES[0],
                    result.step_start_ns,
                    result.step_end_ns,
                    topology,
                    result,
                )
            )
    page = (folder or Path(tempfile.mkdtemp(prefix="collhub-demo-"))) / PAGE
    page.unlink(missing_ok=True)
    session.draw_report(InteractivePage("collhub demo", tuple(timelines)), str(page))
    return page


def _print(
    examples: Sequence[_Example], runs: Sequence[_DemoRow], commands: Sequence[Sequence[str]]
) -> None:
    """Print the verdicts, the table of times with bounds, and commands to try next.

    One line per example gives its collective, ranks and steps and the word "verified"; the caller
    must have verified it. The table has one row per run (algorithm, topology, `TIMING_COLUMNS`) and
    a line that explains bound and ratio. Each command is printed after `collhub`, quoted for a
    shell.
    """
    for example in examples:
        collective = example.algorithm.collective
        size = f"{collective.num_ranks} ranks, {len(example.algorithm.steps)} steps"
        print_line(f"{example.name}: {collective.kind}, {size}: verified")
    print_line()
    # Imported here: the help of the command needs no numpy.
    from hub_core.cli.reports.timing import TIMING_COLUMNS, format_timing

    rows = [(run.example.name, run.topology, *format_timing(run.timing)) for run in runs]
    print_table(("algorithm", "topology", *TIMING_COLUMNS), rows, right=TIMING_COLUMNS)
    print_line()
    print_line("bound: no algorithm is faster on that topology; ratio: time by bound.")
    print_line()
    print_line("Try next:")
    for command in commands:
        print_line(f"  {shlex.join(('collhub', *command))}")


def _suggest_commands(
    registry: Registry, examples: Sequence[_Example], folder: Path | None
) -> Iterator[tuple[str, ...]]:
    """Yield arguments of commands to try next; `examples` must not be empty.

    With a folder: `inspect` of the first example, `simulate` of the last one on a ring of 25 GB/s
    with one NPU per rank for 64 KiB to 64 MiB, and `convert` of the first one to JSON in the
    folder. Without a folder: `compare`, `tune` and `profile` with example arguments for the user's
    network and files, each only if it is an installed command.
    """
    from hub_core.plugin_api import Command

    first, last = examples[0], examples[-1]
    if folder is not None:
        network = f"ring:{last.algorithm.num_ranks}?bandwidth=25GB/s"
        yield "inspect", str(first.traces)
        yield "simulate", str(last.traces), "--topology", network, "--size", "64KiB..64MiB"
        yield "convert", str(first.traces), "-o", str(folder / f"{first.name}.json")
        return
    question = ("--collective", "all-reduce", "--topology", "dgx-h100:4", "--size", "1MiB..1GiB")
    commands = (
        ("compare", *question),
        ("tune", *question, "-o", "tuned"),
        ("profile", "YOUR_JOB.0.pt.trace.json.gz"),
    )
    installed = {provided.name for provided in registry.all(Command)}
    yield from (command for command in commands if command[0] in installed)


def _create_report(examples: Sequence[_Example], runs: Sequence[_DemoRow]) -> DemoReport:
    from hub_core.cli.reports.timing_records import DemoAlgorithm, DemoReport, DemoRun

    return DemoReport(
        algorithms=[
            DemoAlgorithm(
                name=example.name,
                collective=str(example.algorithm.collective.kind),
                num_ranks=example.algorithm.num_ranks,
                ok=True,
                traces=None if example.traces is None else str(example.traces),
            )
            for example in examples
        ],
        runs=[
            DemoRun(
                algorithm=run.example.name,
                topology=run.topology,
                collective_bytes=run.timing.collective_bytes,
                time_ns=run.timing.time_ns,
                bandwidth_bytes_per_s=run.timing.bandwidth_bytes_per_s,
                bound_ns=run.timing.bound_ns,
                ratio_to_bound=run.timing.ratio_to_bound,
            )
            for run in runs
        ],
    )
