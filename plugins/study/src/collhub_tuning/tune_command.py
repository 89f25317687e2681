"""`collhub tune`: write the best algorithm by collective and size as files for runtimes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from collhub_tuning.command_options import (
    READERS,
    Compare,
    OptionsBySide,
    algorithms_option,
    assign_options,
    choose_comparison_timing,
    comparison_options,
    get_side,
    open_comparisons,
    print_baseline,
    select_algorithms,
    select_roots,
)
from hub_core import (
    FILE,
    CommandContext,
    complete_offers,
    force_flag,
    json_flag,
    option_pairs,
    parse_sizes,
    root_option,
    size_option,
    topology_option,
    view_option,
)
from hub_core.model import (
    STANDARD_KINDS,
    UNEVEN_KINDS,
    CollectiveKind,
    ExitCode,
    UsageError,
    standard_kind,
    uneven_kind,
)
from hub_core.plugin_api import (
    IDEAL,
    InteractivePage,
    PageSubject,
    ReportDocument,
    SelectionWriter,
    TextFiles,
)

if TYPE_CHECKING:
    from collhub_tuning.tuned_collectives import TunedCollective
    from collhub_tuning.tuning_report import TuningOutcome, WrittenFormat
    from hub_core import Registry

_KINDS = tuple(str(kind) for kind in (*STANDARD_KINDS, *UNEVEN_KINDS))
_DEFAULT_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")
_MAX_TOLERANCE_PERCENT = 100.0


def _complete_kinds(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    return [kind for kind in _KINDS if kind.startswith(begun)]


def _parse_percent(context: click.Context, parameter: click.Parameter, text: str) -> float:
    """Parse a percentage such as `2%` as a fraction such as 0.02 (callback of an option).

    The text is a number of 0 to 100, both inclusive, with the sign % as its last
    character. Blanks before the number or before the sign are ignored. Raises
    `click.BadParameter` for any other text, also for `nan`.
    """
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not text.endswith("%") or not 0 <= percent <= _MAX_TOLERANCE_PERCENT:
        raise click.BadParameter(f"{text!r} is not 0% to 100%, for example 2%", context, parameter)
    return percent / 100


@click.command()
@click.option(
    "--collective",
    "kinds",
    metavar="KIND",
    multiple=True,
    shell_complete=_complete_kinds,
    help=f"A collective (repeatable; default: {', '.join(_DEFAULT_KINDS)}).",
)
@click.option(
    "--counts",
    metavar="TABLE",
    help="Units of each part of uneven collectives: a file, uniform, zipf:1.2 or experts:64.",
)
@topology_option("For example dgx-a100:2, a file.")
@size_option(
    "Sizes of the full buffer, such as 1KiB..1GiB, each twice the one before.", "sizes_text", "A..B"
)
@click.option(
    "--mode",
    type=click.Choice(["in-place", "out-of-place", "both"]),
    default="both",
    show_default=True,
    help="Calls that the algorithms must serve.",
)
@algorithms_option
@root_option("Root of rooted collectives (default: 0).")
@click.option(
    "--tolerance",
    metavar="PERCENT",
    default="2%",
    show_default=True,
    callback=_parse_percent,
    help="A faster algorithm is passed over up to this: windows are fewer.",
)
@comparison_options
@click.option(
    "-o", "--output", "out", metavar="FOLDER", type=FILE, help="Folder for the files and a report."
)
@click.option(
    "--to",
    "formats",
    metavar="FORMAT,...",
    shell_complete=complete_offers(SelectionWriter),
    help="Formats of the files (default: all that are installed).",
)
@click.option(
    "--check",
    "checked",
    metavar="PATH",
    type=FILE,
    help="Check a folder that was written, or tuner files of any producer (PATH FILE...).",
)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=FILE)
@view_option
@option_pairs
@force_flag
@json_flag
@click.pass_obj
def tune(context: CommandContext, /, as_json: bool, checked: str | None, **arguments: Any) -> int:
    """Choose the best algorithm for every collective and size, in the form that runtimes load.

    Compares as `collhub compare` does, cuts the sizes into few windows, and writes a folder with
    a report and the files of every format: exit 1 where no algorithm fits. With --check FOLDER it
    proves that every size is served, and by whom: exit 1 where one is not, or twice. With --check
    FILE... it reports lines of tuner files that the runtime never reaches, skips or misreads:
    exit 0 without a fault, 1 with faults, 2 for a file that cannot be read.
    """
    if checked is not None:
        return _check(context, checked, arguments, as_json)
    if arguments["files"]:
        raise UsageError("files without --check", cure="give --check FILE...")
    return _tune(context, arguments, as_json)


def _tune(context: CommandContext, arguments: dict[str, Any], as_json: bool) -> int:
    # Imported here, because the help of the command does not need numpy.
    from collhub_tuning import tuning_report as report
    from collhub_tuning.baseline import TUNED_HEADER, tuned_baseline_rows
    from collhub_tuning.measurement_plan import plan_lines
    from collhub_tuning.tuned_folder import write_folder
    from collhub_tuning.tuning_report import RUNTIME_DEFAULT

    for name, flag in (("topology_text", "--topology"), ("sizes_text", "--size")):
        if arguments[name] is None:
            raise UsageError(f"{flag} is missing", cure="see 'collhub tune --help'")
    formats = _parse_formats(context, arguments)
    declared = {get_side(one): context.options_of(SelectionWriter, one) for one in formats}
    options = assign_options(context, arguments, declared)
    if arguments["out"] is not None:
        context.selection_folders().admit(arguments["out"], force=arguments["force"])
    outcome = _create_outcome(context, arguments, formats, options)
    paths: Sequence[Path] = ()
    if arguments["out"] is not None and outcome.has_windows:
        paths = write_folder(context, arguments["out"], outcome, force=arguments["force"])
    if as_json:
        context.print_report(report.create_tuning_report(outcome))
    else:
        context.print_table(report.HEADER, report.create_tuning_rows(outcome), report.RIGHT)
        # A row is a window of sizes in which NCCL's time is known at some size.
        baseline_rows = tuned_baseline_rows(outcome.tuned)
        print_baseline(context, TUNED_HEADER, baseline_rows, ("gain",), outcome.tuned[0].outcome)
    context.say(outcome.tuned[0].outcome.timing.note)
    for line in report.create_tuning_notes(outcome):
        context.say(line)
    for line in plan_lines(outcome.plan):
        context.say(line)
    for collective in outcome.tuned:
        context.report(collective.outcome.defects())
    if arguments["out"] is not None and not outcome.has_windows and outcome.has_answer:
        context.say(f"wrote no files: every size keeps {RUNTIME_DEFAULT}")
    if paths:
        page = Path(arguments["out"]) / report.PAGE_FILE
        context.say(
            f"wrote {arguments['out']}: {len(paths)} files; {page} says how they are loaded"
        )
    if arguments["view_out"] is not None and outcome.has_answer:
        _write_page(context, outcome, paths, arguments["view_out"])
    return ExitCode.DONE if outcome.has_answer else ExitCode.INVALID


def _write_page(
    context: CommandContext, outcome: TuningOutcome, paths: Sequence[Path], out: str
) -> None:
    """Write an interactive page with the comparison of every collective and the text of files.

    `out`: path of the page. `paths`: the files; bytes that are not UTF-8 are replaced. The
    comparisons are in the order of `outcome.tuned`, the files last; without `paths` the page has
    no files. A title is collective and topology, and also the mode if the collective was tuned
    more than once. The name of the written page is printed on stderr. Raises `OSError` if a file
    cannot be read, and `HubError` of `draw_report` if no writer fits `out` or the page cannot be
    written.
    """
    from collhub_tuning.comparison_report import create_comparison_report
    from hub_core.reports import to_json

    subjects: list[PageSubject] = []
    for compared in (collective.outcome for collective in outcome.tuned):
        question = compared.question
        title = f"{question.collective.kind} on {question.topology}"
        if sum(one.outcome.question.kind == question.kind for one in outcome.tuned) > 1:
            title += f", {question.mode}"
        subjects.append(ReportDocument(title, to_json(create_comparison_report(compared))))
    if paths:
        files = tuple((path.name, path.read_text("utf-8", "replace")) for path in paths)
        subjects.append(TextFiles("files", files))
    page = InteractivePage("tuned algorithms", tuple(subjects))
    context.say_written(context.draw_report(page, out))


def _check(context: CommandContext, path: str, arguments: dict[str, Any], as_json: bool) -> int:
    """Check a tuned folder, or tuner files if the path is not a folder, and print the result.

    For files, `path` is the first, and the files of the command line follow. They are checked by
    `_check_files`. For a folder, the formats of its report are printed as JSON or as a table, then
    their findings on stderr. Returns `ExitCode.DONE`, or `INVALID` if a format of a folder has an
    error (a warning is allowed), or if a file has an error or a warning.

    Raises `UsageError` first for every other option on the command line, except `--json` and, for
    files, `--to` and further files; then the errors of reading. These are `InputError` for a
    folder with a missing or invalid report, and `UsageError` for a file that cannot be read.
    """
    from collhub_tuning.tuned_folder import (
        check_folder,
        create_check_report,
        create_check_rows,
    )

    is_folder = Path(path).is_dir()
    allowed = {"checked", "as_json"} if is_folder else {"checked", "as_json", "formats", "files"}
    command_line = click.get_current_context()
    for parameter in command_line.command.params:
        source = command_line.get_parameter_source(parameter.name or "")
        # Click 8.1 calls an argument without a value a part of the command line too.
        is_given = command_line.params.get(parameter.name or "") != ()
        if source is ParameterSource.COMMANDLINE and is_given and parameter.name not in allowed:
            name = parameter.opts[0] if isinstance(parameter, click.Option) else "FILE"
            cure = "give --check FOLDER alone, or --check FILE... with at most --to FORMAT"
            raise UsageError(f"{name} has no meaning with --check", cure=cure)
    if not is_folder:
        return _check_files(context, (path, *arguments["files"]), arguments["formats"], as_json)
    checked_formats = check_folder(context, path)
    if as_json:
        context.print_report(create_check_report(path, checked_formats))
    else:
        header = ("format", "collective", "calls", "sizes", "served by")
        context.print_table(header, create_check_rows(checked_formats))
    context.report(one for form in checked_formats for one in form.findings)
    return ExitCode.DONE if all(form.ok for form in checked_formats) else ExitCode.INVALID


def _check_files(
    context: CommandContext, files: Sequence[str], format: str | None, as_json: bool
) -> int:
    """Check tuner files in the order given, and print the result.

    `format`: format of all files; None chooses it for each file by its suffix and content. With
    `as_json` a report in JSON is printed. Otherwise a table is printed, then one line for each
    file that runtimes read, with the names of the runtimes. The findings of all files follow on
    stderr in both cases. Returns `ExitCode.DONE` if no file has an error or a warning, otherwise
    `INVALID`. Raises `UsageError`, before anything is printed, for the first file that cannot be
    read: missing, too large, of no or several known formats, or with measurements.
    """
    from collhub_tuning.served_calls import (
        FILES_HEADER,
        check_files,
        create_file_rows,
        create_files_report,
    )

    checked = check_files(context, files, format)
    if as_json:
        context.print_report(create_files_report(checked))
    else:
        context.print_table(FILES_HEADER, create_file_rows(checked))
        for one in checked:
            if one.runtimes:
                context.print_line(f"{one.file} is read by {'; '.join(one.runtimes)}")
    context.report(finding for one in checked for finding in one.findings)
    return ExitCode.DONE if all(one.ok for one in checked) else ExitCode.INVALID


def _create_outcome(
    context: CommandContext,
    arguments: dict[str, Any],
    formats: Sequence[str],
    options: OptionsBySide,
) -> TuningOutcome:
    """Compare every collective, and create the files of every format in memory.

    No files are written, but a comparison may print a note. The result has the comparisons, one
    `WrittenFormat` per format, in order, and a plan of measurements. There are no `WrittenFormat`s
    if no collective has a window (range of sizes for which one algorithm is selected).

    The plan lists the measurements for sizes that are not decided, except for uneven collectives.
    They run other algorithms than NCCL's as MSCCL programs if `msccl` is among the formats,
    otherwise as programs for NCCL.

    Raises the errors of `_run_comparisons`, the `HubError` of the writer of a format, and
    `InputError` if the created files cannot be read back.
    """
    from collhub_tuning.measurement_plan import plan_measurements
    from collhub_tuning.tuned_collectives import create_selection
    from collhub_tuning.tuned_folder import create_format
    from collhub_tuning.tuning_report import TuningOutcome

    tuned = _run_comparisons(context, arguments, formats, options)
    written: list[WrittenFormat] = []
    if any(form.windows for form in tuned):
        selection = create_selection(tuned, context.registry())
        written = [
            create_format(context, selection, form, options[get_side(form)]) for form in formats
        ]
    plan = plan_measurements(tuned, has_msccl="msccl" in formats)
    return TuningOutcome(tuned, arguments["mode"], arguments["tolerance"], written, plan)


def _run_comparisons(
    context: CommandContext,
    arguments: dict[str, Any],
    formats: Sequence[str],
    options: OptionsBySide,
) -> list[TunedCollective]:
    """Compare the algorithms for every collective and mode; return the results in this order.

    Each collective of the options is compared once, in their order, for the mode of `--mode`. If no
    algorithm has a time for the mode `both`, the collective is also compared in place, then out of
    place. The two results replace the first if either has a window of sizes.

    Algorithms are built for the runtimes of `--for`. Without `--for` they are those of the formats
    that can express the collective. If then no algorithm has a time because a runtime does not
    serve a size, the reason is printed and the comparison is repeated without runtimes.

    Invalid arguments raise `UsageError` or `InputError` before the first comparison, for example
    limits in `--for`.
    """
    from collhub_tuning.comparison_report import find_unserved_reason
    from collhub_tuning.measured_curves import read_measured_files
    from collhub_tuning.questions import ComparisonQuestion
    from collhub_tuning.tuned_collectives import TunedCollective
    from hub_core import choose_runtimes, find_runtimes, resolve_counts, time_on_runtime

    registry = context.registry()
    if any(one.query for one in find_runtimes(arguments["runtime"] or IDEAL, registry)):
        message = "limits in --for have no meaning for the files of tune"
        raise UsageError(message, cure="name the runtimes alone; synthesize and compare use limits")
    sizes = parse_sizes(arguments["sizes_text"])
    kinds = _parse_kinds(arguments["kinds"], registry)
    topology = context.read_topology(arguments["topology_text"])
    _check_counts(kinds, arguments["counts"])
    tables = {
        kind: resolve_counts(
            arguments["counts"] if CollectiveKind(kind).traits.is_uneven else None,
            CollectiveKind(kind),
            topology.num_npus,
        )
        for kind in kinds
    }
    roots = select_roots(kinds, arguments["root"], topology)
    algorithms = select_algorithms(arguments["names"], registry)
    chosen = {form: options[get_side(form)] for form in formats}
    runtimes = {
        kind: arguments["runtime"] or choose_runtimes(chosen, CollectiveKind(kind), registry)
        for kind in kinds
    }
    timing = choose_comparison_timing(context, arguments, topology)
    timing = time_on_runtime(timing, ",".join(runtimes.values()), registry)
    measured = read_measured_files(
        context,
        arguments["measured_files"],
        topology,
        timing,
        kinds,
        sizes,
        [algorithm.name for algorithm in algorithms],
        options[READERS],
    )

    def tuned(compare: Compare, kind: str, mode: str) -> TunedCollective:
        counts = tables[kind]
        question = ComparisonQuestion(
            kind,
            roots[kind],
            arguments["topology_text"],
            topology.num_npus,
            sizes,
            timing.backend,
            mode,
            tuple(sorted(timing.options.items())),
            counts=() if counts is None else tuple(counts.table.ravel().tolist()),
            runtime=runtimes[kind],
        )
        curves = None if measured is None else measured.curves(kind, mode)
        outcome = compare(question, topology, curves)
        tuned = TunedCollective(outcome, algorithms, arguments["tolerance"])
        reason = find_unserved_reason(outcome)
        if tuned.has_times or arguments["runtime"] or reason is None:
            return tuned
        # Files without programs serve all sizes, and folders of plans have a second program for
        # the sizes that the chunks of the first one do not divide.
        context.say(f"{kind}: {reason}; chosen without the limits of runtimes")
        outcome = compare(replace(question, runtime=IDEAL), topology, curves)
        return TunedCollective(outcome, algorithms, arguments["tolerance"])

    with open_comparisons(context, arguments, algorithms, options, timing) as compare:
        by_mode = partial(tuned, compare)
        return [one for kind in roots for one in _tune_modes(kind, arguments["mode"], by_mode)]


def _tune_modes(
    kind: str, mode: str, tuned: Callable[[str, str], TunedCollective]
) -> list[TunedCollective]:
    """Tune a collective by calling `tuned(kind, mode)`; return one or two results.

    If the mode is `both` and the result has no times, in place and out of place are tuned
    separately. These two results, in place first, are returned if either has windows. In all
    other cases the result for `mode` is returned.
    """
    combined = tuned(kind, mode)
    if combined.has_times or mode != "both":
        return [combined]
    separate = [tuned(kind, single_mode) for single_mode in ("in-place", "out-of-place")]
    return separate if any(collective.windows for collective in separate) else [combined]


def _parse_kinds(names: Sequence[str], registry: Registry) -> list[str]:
    """Return the requested collectives by their standard names, each once, in order.

    A name may have any usual spelling (`standard_kind`, `uneven_kind`). Without names,
    the result is `_DEFAULT_KINDS`. Raises `UsageError` (`unknown-name`) for an unknown
    name, with the closest match or the known names as the cure; `PluginError` instead if
    a plugin that is not loaded may provide it (`unknown_name`).
    """
    kinds = []
    for name in names or _DEFAULT_KINDS:
        kind = standard_kind(name) or uneven_kind(name)
        if kind is None:
            known = f"known: {', '.join(_KINDS)}"
            raise registry.unknown_name(f"there is no collective {name!r}", name, _KINDS, known)
        kinds.append(str(kind))
    return list(dict.fromkeys(kinds))


def _check_counts(kinds: Sequence[str], counts: str | None) -> None:
    """Raise `UsageError` for counts that none of the collectives has."""
    if counts is not None and not any(CollectiveKind(kind).traits.is_uneven for kind in kinds):
        cure = f"name one of {', '.join(UNEVEN_KINDS)} with --collective"
        raise UsageError(f"--counts has no meaning for {', '.join(kinds)}", cure=cure)


def _parse_formats(context: CommandContext, arguments: dict[str, Any]) -> list[str]:
    """Return the names of the formats to write, each once, in the given order.

    - Without an output folder (`arguments["out"]` is None): []. A `--to` with any text
      (`arguments["formats"]`) then raises `UsageError`.
    - With a folder, without `--to`: all installed formats of selections, in the order of
      the registry.
    - With both: the parts of `--to` between commas, without blanks around them. Empty
      parts are kept. Names are not checked.
    """
    if arguments["out"] is None:
        if arguments["formats"]:
            raise UsageError("--to is for files", cure="give -o FOLDER")
        return []
    if arguments["formats"] is None:
        return [provided.name for provided in context.registry().all(SelectionWriter)]
    return list(dict.fromkeys(name.strip() for name in arguments["formats"].split(",")))
