"""`collhub compare`: find the best algorithm of a topology by size, or for an entire job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collhub_tuning.command_options import (
    READERS,
    algorithms_option,
    assign_options,
    choose_comparison_timing,
    comparison_options,
    open_comparisons,
    print_baseline,
    select_algorithms,
    select_roots,
)
from hub_core import (
    FILE,
    CommandContext,
    collective_option,
    cut_fields,
    json_flag,
    option_pairs,
    parse_sizes,
    root_option,
    size_option,
    topology_option,
    view_option,
)
from hub_core.model import CollectiveKind, ExitCode, UsageError
from hub_core.plugin_api import IDEAL, InteractivePage, ReportDocument

if TYPE_CHECKING:
    from collhub_tuning.comparison_report import ComparisonOutcome
    from collhub_tuning.seed_bands import CandidateAlgorithms
    from collhub_tuning.variations import Variation, VariedOutcome
    from hub_core.network import Topology


@click.command()
@click.argument("job", metavar="[JOB]", type=FILE, required=False)
@collective_option("Required without a JOB.", has_counts=True)
@topology_option(
    "For example mesh:8x8, dgx1v, a file; with a JOB repeatable (default: the network of the JOB).",
    "topology_texts",
    multiple=True,
)
@click.option(
    "--baseline",
    metavar="NAME",
    help="Of a JOB: the --with that the others are compared with, on the first network (default:"
    " the first).",
)
@size_option(
    "Size of the full buffer, or a range such as 1KiB..1GiB, each twice the one before.",
    "sizes_text",
)
@algorithms_option
@root_option("Root of a rooted collective (default: 0).")
@click.option(
    "--vary",
    "ranges",
    metavar="WHAT=RANGE",
    multiple=True,
    help="Also on networks with other constants: bandwidth=10GB/s..100GB/s of the fastest link, "
    "latency=100ns..10us of the slowest, each twice the one before; others in proportion "
    "(repeatable).",
)
@click.option(
    "--without-link",
    "failures",
    metavar="A-B",
    multiple=True,
    help="Also on the network without this link, both directions; A->B: one; A-B,C-D: at once "
    "(repeatable).",
)
@click.option(
    "--degrade",
    "slow_links",
    metavar="A-B=F",
    multiple=True,
    help="Also on the network whose link has this fraction of its bandwidth, as 3-4=0.5; several"
    " links at once as with --without-link (repeatable).",
)
@click.option(
    "--seeds",
    metavar="LIST",
    help="Compare for every seed, such as 0..9 or 1,5,7, and report medians, minima and maxima: the"
    " seed of --counts zipf or experts, or {seed} in the name of the JOB or of the counts.",
)
@comparison_options
@click.option("--csv", "csv_out", metavar="FILE", help="Also write all measurements as CSV.")
@click.option(
    "--picture",
    "picture_out",
    metavar="FILE",
    help="Also draw bandwidth over size, as .svg, or as .html with all numbers.",
)
@view_option
@option_pairs
@json_flag
@click.pass_obj
def compare(
    context: CommandContext,
    /,
    as_json: bool,
    csv_out: str | None,
    picture_out: str | None,
    view_out: str | None,
    **arguments: Any,
) -> int:
    """Compare algorithms for a collective on a topology, or for the workload in JOB.

    Every algorithm is synthesized or read, verified, and timed by the simulator. One that
    fails is reported and left out. Results are kept in the user's cache folder: a repeated
    comparison reads them, and an interrupted one continues. A picture or view is drawn only
    if an algorithm has a time. Exit code 1 if no algorithm has a time.

    With a JOB, the entire job is simulated with every --with on every --topology. A --with is
    native (default), a synthesizer or file for all collectives, or rules such as
    'all-reduce=tacos;all-gather@>1MiB=ring'. --csv and --picture are refused.

    With --seeds, the comparison runs once per seed; median, minimum and maximum of the times
    are printed. --csv, --picture and --view are refused; without a JOB also --vary,
    --without-link, --degrade and --measured.
    """
    if arguments["seeds"] is not None:
        outputs = {"--csv": csv_out, "--picture": picture_out, "--view": view_out}
        return _compare_seeds(context, arguments, outputs, as_json)
    if arguments["job"] is not None:
        return _compare_job(
            context,
            arguments,
            {"--csv": csv_out, "--picture": picture_out},
            view_out,
            as_json,
        )
    _require_collective(arguments)
    from collhub_tuning import baseline
    from collhub_tuning import comparison_report as report
    from collhub_tuning import variations as sensitivity
    from collhub_tuning.comparison_report import check_picture, create_picture_request

    if picture_out is not None:
        check_picture(picture_out, context.registry())
    outcome, varied = _run_comparisons(context, arguments)
    if csv_out is not None:
        context.write_file(csv_out, report.comparison_csv(outcome))
    if as_json:
        variations = sensitivity.list_variations(outcome, varied)
        robustness = sensitivity.list_robustness(outcome, varied)
        context.print_report(report.create_comparison_report(outcome, variations, robustness))
    elif csv_out != "-":
        rows = report.comparison_rows(outcome)
        header, right = report.comparison_header(outcome)
        context.print_table(header, rows, right)
        baseline_rows = baseline.baseline_rows(outcome)
        print_baseline(context, baseline.HEADER, baseline_rows, baseline.RIGHT, outcome)
        if varied:
            _print_sensitivity(context, outcome, varied)
    context.say(outcome.timing.note)
    if runtimes := outcome.question.runtime_names:
        context.say(f"algorithms for {runtimes}")
    notes = [*report.list_message_notes(outcome), *report.comparison_failures(outcome)]
    for variation in varied:
        lines = report.comparison_failures(variation.outcome)
        notes += [f"{variation.name}: {line}" for line in lines if line not in notes]
    for line in notes:
        context.say(line)
    for name, line in cut_fields(outcome.cuts).items():
        context.say(f"{name}: {line}")
    for each in (outcome, *(variation.outcome for variation in varied)):
        context.report(each.defects())
    has_winner = any(variation.time_ns is not None for variation in outcome.measurements)
    if picture_out is not None and has_winner:
        written = context.draw_report(create_picture_request(outcome), picture_out)
        context.say_written(written)
    if view_out is not None and has_winner:
        from hub_core.reports import to_json

        document = to_json(report.create_comparison_report(outcome))
        title = f"{outcome.question.collective.kind} on {arguments['topology_text']}"
        page = InteractivePage(title, (ReportDocument(title, document),))
        context.say_written(context.draw_report(page, view_out))
    return ExitCode.DONE if has_winner else ExitCode.INVALID


def _require_collective(arguments: dict[str, Any]) -> None:
    """Check the options of a comparison of a collective, and store its topology.

    `arguments["topology_text"]` is set to the only topology. Raises `click.UsageError` if
    collective, topology or sizes are missing, and the hub's `UsageError` for several topologies or
    for `--baseline`, which are only for jobs.
    """
    needed = {"--collective": "kind", "--topology": "topology_texts", "--size": "sizes_text"}
    for option, name in needed.items():
        if arguments[name] in (None, ()):
            raise click.UsageError(f"Missing option '{option}' (or a JOB).")
    if len(arguments["topology_texts"]) > 1:
        cure = "compare on one network, or with --vary, or name a JOB"
        raise UsageError("several networks are for jobs", cure=cure)
    if arguments["baseline"] is not None:
        raise UsageError("--baseline is for jobs", cure="leave it out")
    (arguments["topology_text"],) = arguments["topology_texts"]


# Arguments that create variations of the network, in the order of `create_variations`.
_VARYING = ("ranges", "failures", "slow_links")
_NOT_OF_JOBS = {
    "--collective": "kind", "--size": "sizes_text", "--root": "root", "--scheduler": "scheduler",
    "--jobs": "jobs", "--counts": "counts", "--for": "runtime",
}  # fmt: skip


def _compare_job(
    context: CommandContext,
    arguments: dict[str, Any],
    outputs: dict[str, str | None],
    view_out: str | None,
    as_json: bool,
) -> int:
    """Compare candidates for the job `arguments["job"]` on networks, and print the result.

    The networks are those of `--topology` with their variations, otherwise the one that the
    job declares. The output is, in this order:

    1. JSON with `as_json`, otherwise a table
    2. a note about the timing, then one line per failure
    3. a page, written to `view_out`, if that is given and a candidate has a time

    Returns `ExitCode.INVALID` if no candidate has a time, otherwise `DONE`. Raises
    `UsageError` for an option that is only for collectives (such as `--measured`, a
    machine, or a value in `outputs`), and for variations without a network. Raises
    `HubError` for a job or a network that cannot be read.
    """
    from collhub_tuning import job_comparison as report
    from hub_core import TimingSource

    networks = _create_networks_of_job(context, arguments, outputs)
    comparison = report.compare_job(
        context, arguments["job"], networks, arguments["names"], arguments["baseline"], arguments
    )
    if as_json:
        context.print_report(report.create_job_report(comparison))
    else:
        rows = report.comparison_rows(comparison)
        context.print_table(report.HEADER, rows, report.RIGHT)
    context.say(TimingSource().note)
    for line in report.comparison_failures(comparison):
        context.say(line)
    if view_out is not None and comparison.fastest is not None:
        subjects = report.create_page_subjects(context, comparison)
        page = InteractivePage(Path(comparison.source).name, subjects)
        context.say_written(context.draw_report(page, view_out))
    return ExitCode.DONE if comparison.fastest is not None else ExitCode.INVALID


def _create_networks_of_job(
    context: CommandContext, arguments: dict[str, Any], outputs: dict[str, str | None]
) -> list[Topology]:
    """Return all networks of `--topology`, then the variations of the first, the second, ...

    A variation is named `NETWORK VARIATION`; those of one network are in the order of
    `create_variations`. The list is empty without `--topology`.

    Raises `UsageError` for the first option that is given but has no meaning for a job. These are
    the options in `_NOT_OF_JOBS`, then `outputs` (value by option, None if not given),
    `--measured`, `--timeout`, and `--machine` with another value than `none`. Raises it also for
    variations without a network or with invalid values, and `HubError` for a network that cannot be
    read.
    """
    used_options = {option: arguments[name] for option, name in _NOT_OF_JOBS.items()} | outputs
    used_options["--measured"] = arguments["measured_files"] or None
    used_options["--timeout"] = arguments["budget"].timeout_s
    if arguments["machine"] not in (None, "none"):
        used_options["--machine"] = arguments["machine"]
    if unused := [option for option, value in used_options.items() if value is not None]:
        cure = "leave it out, or give algorithms in files by --with instead of a JOB"
        raise UsageError(f"{unused[0]} has no meaning for a job", cure=cure)
    networks = [context.read_topology(text) for text in arguments["topology_texts"]]
    for network in tuple(networks):
        varied = _create_variations(network, arguments)
        networks += [
            replace(variation.topology, name=f"{network.name} {variation.name}")
            for variation in varied
        ]
    if not networks and any(arguments[name] for name in _VARYING):
        message = "--vary, --without-link and --degrade need --topology"
        raise UsageError(message, cure="name the network")
    return networks


def _compare_seeds(
    context: CommandContext,
    arguments: dict[str, Any],
    outputs: dict[str, str | None],
    as_json: bool,
) -> int:
    """Compare for each seed of `--seeds`; print median, minimum and maximum time by candidate.

    A candidate is an algorithm on a network; for a collective, also of a size. `as_json`
    prints JSON with all candidates. Otherwise a table is printed, without candidates that
    have no time for any seed. Then one line is printed for each distinct failure. It lists
    the seeds of the failure, unless it occurred for all seeds.

    Returns `ExitCode.DONE` if a candidate has a time, otherwise `INVALID`. Raises
    `UsageError` in the first of these cases:

    - An output in `outputs` is requested, or for a collective `--vary`, `--without-link`,
      `--degrade` or `--measured`. The alphabetically first such option is named.
    - The seeds are invalid.
    - An option has no meaning for the job or collective; or its text does not depend on the
      seed.

    Any `HubError` for one seed stops the comparison before anything is printed.
    """
    from collhub_tuning import seed_bands as bands

    job, varying = arguments["job"], {"--vary": "ranges", "--without-link": "failures"}
    refused = {option: value for option, value in outputs.items() if value is not None}
    if job is None:
        varying |= {"--degrade": "slow_links", "--measured": "measured_files"}
        refused |= {option: arguments[name] for option, name in varying.items() if arguments[name]}
    if refused:
        raise UsageError(f"{min(refused)} has no meaning with --seeds", cure="leave it out")
    seeds = bands.parse_seeds(arguments["seeds"])
    run = _run_seed_of_collective if job is None else _run_seed_of_job
    times, seeds_of_failure = bands.SeedTimes(), dict[str, list[int]]()
    for seed in seeds:
        by_candidate, lines = run(context, dict(arguments), seed)
        times.by_seed.append(by_candidate)
        for line in lines:
            seeds_of_failure.setdefault(line, []).append(seed)
    results = times.list_bands()
    if as_json:
        source = job or f"{arguments['kind']} --counts {arguments['counts']}"
        context.print_report(
            bands.CompareSeedsReport(
                source=source, seeds=seeds, backend=arguments["backend"], results=results
            )
        )
    else:
        # Lines below state why the remaining candidates have no time.
        timed = [band for band in results if band.median_ns is not None]
        context.print_table(bands.HEADER, bands.band_rows(timed, len(seeds)), bands.RIGHT)
    for line, failed in seeds_of_failure.items():
        listed = f"seed{'s' if len(failed) > 1 else ''} {', '.join(map(str, failed))}: "
        context.say(line if len(failed) == len(seeds) else listed + line)
    has_time = any(band.median_ns is not None for band in results)
    return ExitCode.DONE if has_time else ExitCode.INVALID


def _run_seed_of_job(
    context: CommandContext, arguments: dict[str, Any], seed: int
) -> tuple[Mapping[CandidateAlgorithms, int | None], list[str]]:
    """Compare the job for one seed, which replaces every `{seed}` in the job's text.

    Returns the time in ns by candidate (algorithms, network, size None), None for one that failed,
    and one line per failure. They are ordered by network, then candidate. Raises `UsageError` for
    options that are only for collectives, and `UsageError` (`seeds`) if the job's text has no
    `{seed}`. Raises `HubError` if the job or a network cannot be read. `arguments` is not changed.
    """
    from collhub_tuning import job_comparison as report
    from collhub_tuning.seed_bands import CandidateAlgorithms, seeded_text

    networks = _create_networks_of_job(context, arguments, {})
    source = seeded_text("JOB", arguments["job"], seed)
    comparison = report.compare_job(
        context, source, networks, arguments["names"], arguments["baseline"], arguments
    )
    times = {
        CandidateAlgorithms(each.algorithms, each.topology, None): each.time_ns
        for each in comparison.measurements
    }
    return times, report.comparison_failures(comparison)


def _run_seed_of_collective(
    context: CommandContext, arguments: dict[str, Any], seed: int
) -> tuple[Mapping[CandidateAlgorithms, int | None], list[str]]:
    """Compare the collective with the counts of one seed.

    Returns the time in ns by candidate (algorithm, topology, size), None after a failure;
    and one line per failure (`comparison_failures`). Changes `arguments`: `counts` is
    replaced by the text for this seed (`seeded_text`), and `topology_text` is set. Raises
    `UsageError` (`seeds`) for counts that do not depend on a seed, and the errors of
    `_require_collective` and `_run_comparisons`.
    """
    from collhub_tuning import comparison_report as report
    from collhub_tuning.seed_bands import CandidateAlgorithms, seeded_text

    _require_collective(arguments)
    arguments["counts"] = seeded_text("--counts", arguments["counts"], seed)
    outcome, _ = _run_comparisons(context, arguments)
    times = {
        CandidateAlgorithms(each.algorithm, outcome.topology.name, each.size): each.time_ns
        for each in outcome.measurements
    }
    return times, report.comparison_failures(outcome)


def _create_variations(topology: Topology, arguments: dict[str, Any]) -> list[Variation]:
    """Create the changed networks that `--vary`, `--without-link` and `--degrade` request.

    `arguments`: the command's arguments. The values of these three options are at the keys
    `ranges`, `failures` and `slow_links`, which must exist.

    The result has one network for every value of a range, then for every failure, then for
    every set of slow links. Each is a separate change of `topology`, which is not in the
    result. Of networks with equal names only the last one remains, at the position of the
    first. Without these options the result is []. Raises `UsageError` for invalid options.
    """
    from collhub_tuning.variations import create_variations

    return create_variations(topology, *(arguments[name] for name in _VARYING))


def _print_sensitivity(
    context: CommandContext, outcome: ComparisonOutcome, varied: Sequence[VariedOutcome]
) -> None:
    """Print the winner of each size on every network, then how robust the winners are.

    `varied`: outcomes on variations of the base network, in the order of their columns. The
    output is:

    1. An empty line.
    2. A table with one row per size: the size, the winner on the base network, and the winner
       on each variation. A winner is `none` if no algorithm has a time.
    3. An empty line.
    4. One line per size: in how many variations the base winner wins, and its largest
       slowdown there. Sizes without a base winner have no line.
    """
    from collhub_tuning import variations as sensitivity

    context.print_line("")
    rows = sensitivity.sensitivity_rows(outcome, varied)
    context.print_table(sensitivity.sensitivity_header(varied), rows, ("size",))
    context.print_line("")
    for line in sensitivity.sensitivity_lines(outcome, varied):
        context.print_line(line)


def _run_comparisons(
    context: CommandContext, arguments: dict[str, Any]
) -> tuple[ComparisonOutcome, list[VariedOutcome]]:
    """Compare the algorithms on the given network, then on every variation of it.

    Returns the outcome on the given network, and the outcomes on the variations in the order of
    `_create_variations` ([] without variations). Measured times (`--measured`) are used only for
    the given network. `cuts` of the first outcome, the parts of a search that a limit ended,
    contains its own parts, then those of all variations in order; repeated ones are kept.

    `arguments`: values of the command's options, with the network as text in `topology_text`. All
    variations are created before the first comparison, so that invalid options raise `UsageError`
    early. Other `HubError`s pass through, for example for an invalid topology, size or measured
    file.
    """
    # Imported here: the help of the command needs no numpy.
    from collhub_tuning.measured_curves import read_measured_files
    from collhub_tuning.questions import ComparisonQuestion
    from collhub_tuning.variations import VariedOutcome
    from hub_core import resolve_counts, time_on_runtime

    registry = context.registry()
    sizes = parse_sizes(arguments["sizes_text"])
    topology = context.read_topology(arguments["topology_text"])
    kind = arguments["kind"]
    runtime = arguments["runtime"] or IDEAL
    timing = choose_comparison_timing(context, arguments, topology)
    timing = time_on_runtime(timing, runtime, registry)
    counts = resolve_counts(arguments["counts"], CollectiveKind(kind), topology.num_npus)
    question = ComparisonQuestion(
        kind,
        select_roots([kind], arguments["root"], topology)[kind],
        arguments["topology_text"],
        topology.num_npus,
        sizes,
        timing.backend,
        simulator_options=tuple(sorted(timing.options.items())),
        counts=() if counts is None else tuple(counts.table.ravel().tolist()),
        runtime=runtime,
    )
    algorithms = select_algorithms(arguments["names"], registry)
    options = assign_options(context, arguments, {})
    measured = read_measured_files(
        context,
        arguments["measured_files"],
        topology,
        timing,
        [question.kind],
        sizes,
        [algorithm.name for algorithm in algorithms],
        options[READERS],
    )
    # All variations are created before the first measurement, so that errors are reported early.
    networks = _create_variations(topology, arguments)
    with open_comparisons(context, arguments, algorithms, options, timing) as compare:
        curves = None
        if measured is not None:
            curves = measured.curves(kind, question.mode).with_algorithms
        base = compare(question, topology, curves)
        varied = [
            VariedOutcome(network.name, compare(question, network.topology, None))
            for network in networks
        ]
    cuts = [cut for network in varied for cut in network.outcome.cuts]
    if cuts:
        base = replace(base, cuts=(*base.cuts, *cuts))
    return base, varied
