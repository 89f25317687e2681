"""`collhub tune`: the best algorithm by collective and size, as files that a runtime loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collhub_tuning.asked_alike import algorithms_option, named_algorithms, roots_of
from collhub_tuning.comparing import (
    Compare,
    OptionsBySide,
    comparison_options,
    comparisons,
    options_by_side,
    side_of,
)
from hub_core import (
    FILE,
    TOPOLOGY,
    CommandContext,
    complete_offers,
    force_flag,
    json_flag,
    number_option,
    option_pairs,
    parse_sizes,
)
from hub_core.model import STANDARD_KINDS, ExitCode, UsageError, standard_kind
from hub_core.plugin_api import SelectionWriter

if TYPE_CHECKING:
    from collhub_tuning.tuning_question import TunedCollective
    from collhub_tuning.tuning_report import TuningOutcome, WrittenFormat
    from hub_core import Registry

_KINDS = tuple(str(kind) for kind in STANDARD_KINDS)
_DEFAULT_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")
_MOST_TOLERANCE = 100.0


def _complete_kinds(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    return [kind for kind in _KINDS if kind.startswith(begun)]


def _share(context: click.Context, parameter: click.Parameter, text: str) -> float:
    """`2%` as 0.02."""
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not text.endswith("%") or not 0 <= percent <= _MOST_TOLERANCE:
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
    "--topology",
    "topology_text",
    metavar="T",
    type=TOPOLOGY,
    help="For example dgx-a100:2, a file.",
)
@click.option(
    "--size",
    "sizes_text",
    metavar="A..B",
    help="Sizes of the full buffer, such as 1KiB..1GiB, each twice the one before.",
)
@click.option(
    "--mode",
    type=click.Choice(["in-place", "out-of-place", "both"]),
    default="both",
    show_default=True,
    help="Calls that the algorithms must serve.",
)
@algorithms_option
@number_option("--root", "R", "Root of rooted collectives (default: 0).", least=0)
@click.option(
    "--tolerance",
    metavar="PERCENT",
    default="2%",
    show_default=True,
    callback=_share,
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
    "--check", "checked", metavar="FOLDER", type=FILE, help="Check a folder that was written."
)
@option_pairs
@force_flag
@json_flag
@click.pass_obj
def tune(context: CommandContext, /, as_json: bool, checked: str | None, **asked: Any) -> int:
    """Choose the best algorithm for every collective and size, in the form that runtimes load.

    Compares as `collhub compare` does, cuts the sizes into few windows, and writes a folder with
    a report and the files of every format: exit 1 where no algorithm fits. With --check it proves
    that every size is served, and by whom: exit 1 where one is not, or twice.
    """
    if checked is not None:
        return _check(context, checked, asked, as_json)
    return _tune(context, asked, as_json)


def _tune(context: CommandContext, asked: dict[str, Any], as_json: bool) -> int:
    # Imported here: the help of the command needs no numpy.
    from collhub_tuning import tuning_report as report
    from collhub_tuning.tuned_folder import put

    for name, flag in (("topology_text", "--topology"), ("sizes_text", "--size")):
        if asked[name] is None:
            raise UsageError(f"{flag} is missing", cure="see 'collhub tune --help'")
    formats = _formats(context, asked)
    options = _options(context, asked, formats)
    if asked["out"] is not None:
        context.selection_folders().admit(asked["out"], force=asked["force"])
    outcome = _outcome(context, asked, formats, options)
    paths: Sequence[Path] = ()
    if asked["out"] is not None and outcome.has_windows:
        paths = put(context, asked["out"], outcome, force=asked["force"])
    if as_json:
        context.print_json(report.tuning_document(outcome))
    else:
        context.print_table(report.HEADER, report.tuning_rows(outcome), report.RIGHT)
    for line in report.tuning_notes(outcome):
        context.say(line)
    for one in outcome.tuned:
        context.report(one.outcome.defects())
    if paths:
        page = Path(asked["out"]) / report.PAGE_FILE
        context.say(f"wrote {asked['out']}: {len(paths)} files; {page} says how they are loaded")
    return ExitCode.DONE if outcome.has_windows else ExitCode.INVALID


def _check(context: CommandContext, folder: str, asked: dict[str, Any], as_json: bool) -> int:
    from collhub_tuning.tuned_folder import checked_folder, checked_rows
    from collhub_tuning.tuning_check_report import check_document

    given = [name for name in ("topology_text", "sizes_text", "out", "formats") if asked[name]]
    if given or asked["kinds"] or asked["names"]:
        cure = "give --check FOLDER alone"
        raise UsageError("--check looks at what is there, and tunes nothing", cure=cure)
    found = checked_folder(context, folder)
    if as_json:
        context.print_json(check_document(folder, found))
    else:
        header = ("format", "collective", "calls", "sizes", "served by")
        context.print_table(header, checked_rows(found))
    context.report(one for form in found for one in form.findings)
    return ExitCode.DONE if all(form.ok for form in found) else ExitCode.INVALID


def _outcome(
    context: CommandContext,
    asked: dict[str, Any],
    formats: Sequence[str],
    options: OptionsBySide,
) -> TuningOutcome:
    """Compare every collective, and make the files of every format, on nothing but memory."""
    from collhub_tuning.tuned_folder import written_format
    from collhub_tuning.tuning_question import selection_of
    from collhub_tuning.tuning_report import TuningOutcome

    tuned = _tuned(context, asked, options)
    written: list[WrittenFormat] = []
    if any(one.windows for one in tuned):
        selection = selection_of(tuned, context.registry())
        written = [
            written_format(context, selection, one, options[side_of(one)]) for one in formats
        ]
    return TuningOutcome(tuned, asked["mode"], asked["tolerance"], written)


def _tuned(
    context: CommandContext, asked: dict[str, Any], options: OptionsBySide
) -> list[TunedCollective]:
    """The comparison of every collective."""
    from collhub_tuning.questions import ComparisonQuestion
    from collhub_tuning.tuning_question import TunedCollective

    registry = context.registry()
    sizes = parse_sizes(asked["sizes_text"])
    kinds = _kinds(asked["kinds"], registry)
    topology = context.read_topology(asked["topology_text"])
    roots = roots_of(kinds, asked["root"], topology)
    algorithms = named_algorithms(asked["names"], registry)

    def tuned(compare: Compare, kind: str, mode: str) -> TunedCollective:
        place = (asked["topology_text"], topology.num_npus)
        question = ComparisonQuestion(kind, roots[kind], *place, sizes, asked["backend"], mode)
        return TunedCollective(compare(question, topology), algorithms, asked["tolerance"])

    with comparisons(context, asked, algorithms, options) as compare:
        by_mode = partial(tuned, compare)
        return [one for kind in roots for one in _in_modes(kind, asked["mode"], by_mode)]


def _in_modes(
    kind: str, mode: str, tuned: Callable[[str, str], TunedCollective]
) -> list[TunedCollective]:
    """A collective as it is asked for; each mode by itself where nothing serves both."""
    whole = tuned(kind, mode)
    if whole.windows or mode != "both":
        return [whole]
    apart = [tuned(kind, one) for one in ("in-place", "out-of-place")]
    return apart if any(one.windows for one in apart) else [whole]


def _kinds(names: Sequence[str], registry: Registry) -> list[str]:
    """The collectives that are asked for, each once. Raises `UsageError` with the closest match."""
    kinds = []
    for name in names or _DEFAULT_KINDS:
        kind = standard_kind(name)
        if kind is None:
            known = f"known: {', '.join(_KINDS)}"
            raise registry.unknown_name(f"there is no collective {name!r}", name, _KINDS, known)
        kinds.append(str(kind))
    return list(dict.fromkeys(kinds))


def _formats(context: CommandContext, asked: dict[str, Any]) -> list[str]:
    """The formats that are to be written, each once; none without a folder."""
    if asked["out"] is None:
        if asked["formats"]:
            raise UsageError("--to is for files", cure="give -o FOLDER")
        return []
    if asked["formats"] is None:
        return [provided.name for provided in context.registry().all(SelectionWriter)]
    return list(dict.fromkeys(name.strip() for name in asked["formats"].split(",")))


def _options(
    context: CommandContext, asked: dict[str, Any], formats: Sequence[str]
) -> OptionsBySide:
    """Options of the formats and the engine. Raises `HubError`."""
    # Options of all formats that are written at once.
    declared = {side_of(one): context.options_of(SelectionWriter, one) for one in formats}
    return options_by_side(context, asked, declared)
