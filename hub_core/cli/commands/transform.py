"""`collhub transform`: apply passes to a model, one after another, and report the changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import (
    OutputRequest,
    from_option,
    number_option,
    offer_option,
    output_options,
    size_option,
    source_argument,
    timeout_option,
)
from hub_core.cli.assignments import Assignments, assign, give_symbol_sizes, topology_option
from hub_core.cli.command_context import Session
from hub_core.cli.commands.pass_arguments import (
    PassCommand,
    PassStep,
    SearchWorkers,
    is_search,
    pass_steps,
    shared_pairs,
    show_moves,
)
from hub_core.cli.parameter_types import FILE, OfferName
from hub_core.cli.reports.report_objects import cut_fields
from hub_core.cli.session_outputs import ChosenOutput, choose_path, written_paths
from hub_core.model.diagnostics import UsageError
from hub_core.plugin_api import AlgorithmPass, Engine

if TYPE_CHECKING:
    from hub_core.cli.reports.algorithm_records import MeasuredRun, TransformReport
    from hub_core.model import Algorithm, Workload
    from hub_core.pipeline.inputs import OpenedAlgorithm
    from hub_core.pipeline.outputs import Written
    from hub_core.plugin_api import SearchBudget, SearchCut


@click.command(cls=PassCommand)
@source_argument
@click.option(
    "--pass",
    "passes",
    metavar="NAME",
    multiple=True,
    type=OfferName(AlgorithmPass),
    help="A pass; repeated, they run in this order. `collhub formats` lists them.",
)
@click.option("--list", "is_listing", is_flag=True, help="List possible passes, then end.")
@click.option(
    "--search",
    "is_searching",
    is_flag=True,
    help="Search for the best sequence of passes on --topology for --size.",
)
@topology_option("Network of --search, as ring:8 or a file.", "topology")
@size_option("Sizes of symbols of IN, as B=8,S=1024.", "size", "SIZES")
@number_option("--jobs", "N", "Tasks of --search at once (default: one a core); same result.")
@offer_option("--engine", Engine, "What runs them at once (default: processes, if there).")
@timeout_option
@click.option(
    "--run",
    "is_running",
    is_flag=True,
    help="Run the written program and the original on this host, and report the measured gain.",
)
@click.option(
    "-o",
    "--output",
    "out",
    metavar="OUT",
    type=FILE,
    help="File, trace-set prefix, folder, folder/ to write into, or - for stdout.",
)
@from_option
@output_options
@click.pass_context
def transform(
    context: click.Context,
    source: str,
    passes: tuple[str, ...],
    is_listing: bool,
    is_searching: bool,
    topology: str | None,
    size: str | None,
    jobs: int | None,
    engine: str | None,
    budget: SearchBudget,
    is_running: bool,
    out: str | None,
    source_format: str | None,
    output: OutputRequest,
) -> None:
    """Transform the algorithm or workload in IN by passes and write the result.

    Passes run in the order of the command line, --search last. One of --pass, --list and
    --search is needed. IN and the result are verified, as --verify defines. --list prints the
    possible applications of all passes to the result so far, and writes no file. OUT is
    needed without --list and --search, and with --run.

    -O after a --pass sets an option of that pass, if it declares it. Any other -O sets it in
    the reader, passes and writer that declare it; reader.KEY, writer.KEY, PASS.KEY name one.
    """
    session: Session = context.obj
    if not (passes or is_listing or is_searching):
        raise click.UsageError("Missing option '--pass', '--list' or '--search'.", context)
    if out is None and (is_running or not (is_listing or is_searching)):
        raise click.UsageError("Missing option '-o' / '--output'.", context)
    opened = session.open_input(source, source_format)
    steps = pass_steps(context)
    if is_searching:
        steps.append(_find_search(session, opened, topology, size))
    target = _choose_target(session, opened, out, output)
    workers = SearchWorkers(engine, jobs)
    if not any(is_search(session, step.name) for step in steps):
        if engine or jobs:
            raise click.UsageError("--jobs and --engine are for --search.", context)
        if budget.timeout_s is not None:
            raise click.UsageError("--timeout is for --search.", context)
    plan = _plan_options(session, opened, target, steps, output, size, workers)
    original = model = session.read_verified(opened, plan.reader)
    model, changes = _run_steps(session, model, steps, plan, workers, budget)
    if is_listing:
        show_moves(session, model, opened.name, output.as_json)
        return
    session.admit(model, f"{opened.name} after {', '.join(step.name for step in steps)}")
    # Changes are printed before the writing, which refused losses prevent.
    if not output.as_json:
        for name, change in changes:
            session.say(f"{name}: {change}")
        for name, line in cut_fields(budget.cuts).items():
            session.say(f"{name}: {line}")
    written = None
    if target is not None:
        written = session.write_output(model, target, plan.writer, output, work="transformation")
    measured = None
    if target is not None and is_running:
        measured = _measure_gain(session, original, model, target, plan.writer)
    if output.as_json:
        cuts = budget.cuts
        session.print_report(
            _create_report(opened, target, changes, steps, written, cuts, measured)
        )
    elif written is not None:
        session.say_written(written)


def _measure_gain(
    session: Session,
    before: Algorithm | Workload,
    after: Algorithm | Workload,
    target: ChosenOutput,
    options: Assignments,
) -> MeasuredRun:
    """Run the original and the transformed workload, print the measured gain, and return it.

    Both are run in the format of `target`, with its writer's `options`. The result has the method,
    both times of one step in whole ns, and the largest difference of an output relative to its
    largest value. The printed ratio is the time before by the time after, which counts as at least
    1 ns.

    Raises `UsageError` if one of both is an algorithm (only workloads can be run), and if files of
    the format cannot be run; other `HubError`s if a run fails or the writer refuses an option.
    """
    from hub_core.cli.reports.algorithm_records import MeasuredRun
    from hub_core.model import Workload, format_time
    from hub_core.pipeline.outputs import measure_gain

    if not isinstance(before, Workload) or not isinstance(after, Workload):
        message = "--run runs programs, this is an algorithm"
        raise UsageError(message, cure="execute algorithms with collhub run")
    name = str(target.format_name)
    with session.progress("running both programs"):
        gain = measure_gain(before, after, name, options=options, registry=session.registry())
    measured = MeasuredRun(
        method=gain.method,
        before_ns=round(gain.before_s * 1e9),
        after_ns=round(gain.after_s * 1e9),
        max_relative_error=gain.max_relative_error,
    )
    ratio = measured.before_ns / max(measured.after_ns, 1)
    session.say(
        f"measured: {format_time(measured.after_ns)}, {ratio:.2f} times as fast as before"
        f" ({format_time(measured.before_ns)}); {gain.method}; outputs differ by at most"
        f" {gain.max_relative_error:.1e} of their largest value"
    )
    return measured


def _create_report(
    opened: OpenedAlgorithm,
    target: ChosenOutput | None,
    changes: Sequence[tuple[str, str]],
    steps: Sequence[PassStep],
    written: Written | None,
    cuts: Sequence[SearchCut],
    measured: MeasuredRun | None,
) -> TransformReport:
    """Create the JSON report of a transformation, without printing it.

    - name and format of the source, and format of the `target`, None without a target
    - `passes`: names of all `steps` in order; `changes`: (pass, change) in order of application
    - `is_partial`: True if `cuts` (limits that ended a search early) is not empty; `cut` lists them
    - artifacts (paths) and losses of what was `written`; empty if it is None
    - `measured` as it is, None without a run
    """
    from hub_core.cli.reports.algorithm_records import PassChange, TransformReport
    from hub_core.reports import list_cuts, list_losses

    return TransformReport(
        source=opened.name,
        source_format=opened.format_name,
        target_format=target.format_name if target else None,
        passes=[step.name for step in steps],
        changes=[PassChange(pass_name=name, change=change) for name, change in changes],
        is_partial=bool(cuts),
        cut=list_cuts(cuts),
        artifacts=written_paths(written.paths) if written else (),
        losses=list_losses(written.losses) if written else (),
        measured=measured,
    )


@dataclass(frozen=True, slots=True)
class _TransformPlan:
    """Options of all components. `passes`: of the passes in their order; `shared`: by component."""

    passes: Sequence[Assignments]
    shared: Mapping[str, Assignments]

    @property
    def reader(self) -> Assignments:
        """Options of the reader."""
        return self.shared["reader"]

    @property
    def writer(self) -> Assignments:
        """Options of the writer."""
        return self.shared["writer"]


def _plan_options(
    session: Session,
    opened: OpenedAlgorithm,
    target: ChosenOutput | None,
    steps: Sequence[PassStep],
    output: OutputRequest,
    size: str | None,
    workers: SearchWorkers,
) -> _TransformPlan:
    """Assign every `-O` to those of reader, passes, writer and engine that declare it.

    A pair that follows a pass belongs to this pass if its key is an option of the pass, also as
    `PASS.KEY`. Every other pair is shared. It sets the option of all components that declare it, or
    of one if the key is `COMPONENT.KEY`. For a pass, its own pairs replace shared ones. Without a
    `target`, the writer declares no options. The engine of the workers takes part only if a pass
    searches.

    `--size` sets the option `sizes` of the reader, if the reader has one and no `-O` sets it. If
    the reader has none, the size is for the passes that search.

    The result has `passes`, the options of each pass in the order of `steps`, and `shared`, the
    shared ones by component. Raises `UsageError` in these cases; other `HubError`s for an unknown
    pass or engine:

    - No component declares an option, or the named one does not.
    - Two shared pairs have equal keys (`click.UsageError`).
    - The size has `=` (`B=8`), and the reader has no option `sizes`.
    - The size is for passes, and none of them searches.
    """
    declared = [session.options_of(AlgorithmPass, step.name) for step in steps]
    taken = [step.own(options) for step, options in zip(steps, declared, strict=True)]
    sides = {"reader": opened.options, "writer": target.options if target else ()}
    sides |= {step.side: options for step, options in zip(steps, declared, strict=True)}
    if any(is_search(session, step.name) for step in steps):
        sides |= workers.sides(session)
    shared = assign(shared_pairs(output.assignments, steps, taken), sides)
    is_searching = any(is_search(session, step.name) for step in steps)
    if give_symbol_sizes(size, opened.options, shared["reader"]) and not is_searching:
        message = f"--size {size:.60}: passes of an algorithm take no size"
        raise UsageError(message, cure="leave it out")
    # A key without the name of a component is for all passes that declare it.
    options_by_pass = []
    for step, options, pairs in zip(steps, declared, taken, strict=True):
        bare = assign(pairs, {step.side: options})[step.side]
        options_by_pass.append({**shared[step.side], **bare})
    return _TransformPlan(options_by_pass, shared)


def _find_search(
    session: Session, opened: OpenedAlgorithm, topology: str | None, size: str | None
) -> PassStep:
    """Return the only installed pass that searches for models of the kind of IN, for `--search`.

    The options of the step are `topology` and, if `size` is not None, `sizes`. Raises
    `click.UsageError` without `topology`, and unless exactly one such pass is installed.
    """
    from hub_core.plugin_api import Subject

    subject = Subject.WORKLOAD if opened.holds_workload else Subject.ALGORITHM
    offers = [provided.offer for provided in session.registry().all(AlgorithmPass)]
    searches = [search for search in offers if search.searches and search.subject is subject]
    if topology is None:
        raise click.UsageError("Missing option '--topology' of --search.")
    if len(searches) != 1:
        names = ", ".join(search.name for search in searches) or "none"
        message = f"{len(searches)} installed passes search for one {subject}: {names}"
        raise click.UsageError(f"{message}; name one with --pass.")
    pairs = {"topology": topology}
    if size is not None:
        pairs["sizes"] = size
    return PassStep(searches[0].name, pairs)


def _choose_target(
    session: Session, opened: OpenedAlgorithm, out: str | None, output: OutputRequest
) -> ChosenOutput | None:
    """Return path and writer of the result; None without an output (`out` is None).

    The writer is selected by `--to`, else by the suffix of the path. It is a writer of workloads if
    the input is a workload. With a final `/` in `out`, the result gets the name of the input in
    this folder, unless the format itself is a folder. Nothing is written.

    Raise `UsageError` if no writer or several writers fit the suffix, if standard output cannot be
    used, and if the output would replace the input without `--force` (`output-is-input`). Raise
    `HubError` if no writer or several writers have the name in `--to`.
    """
    if out is None:
        return None
    target = session.output_target(out, output, is_workload=opened.holds_workload)
    return choose_path(target, opened, force=output.force)


def _run_steps(
    session: Session,
    model: Algorithm | Workload,
    steps: Sequence[PassStep],
    plan: _TransformPlan,
    workers: SearchWorkers,
    budget: SearchBudget,
) -> tuple[Algorithm | Workload, list[tuple[str, str]]]:
    """Run all passes in order on a model; return the result and the changes as (pass, change).

    Each pass gets the result of the previous one and its options in `plan`; without passes, the
    model is returned. Progress is shown. A pass that searches also gets the budget, which records
    the limits that ended the search, and the workers, which are stopped at its end, also after an
    error. A pass may have any number of changes (texts). Raises `HubError` if a pass or the engine
    of the workers fails.
    """
    # Imported here: the help of the command needs no numpy.
    from hub_core.pipeline.calls import transform as apply_pass

    changes: list[tuple[str, str]] = []
    for step, options in zip(steps, plan.passes, strict=True):
        name, registry, title = step.name, session.registry(), f"running the pass {step.name}"
        if is_search(session, name):
            bar = session.progress_bar(title)
            with workers.started(session, plan.shared) as executor, bar as show:
                given = executor, show, budget
                model, report = apply_pass(model, name, *given, options=options, registry=registry)
        else:
            with session.progress(title):
                model, report = apply_pass(model, name, options=options, registry=registry)
        changes += [(name, change) for change in report.changes]
    return model, changes
