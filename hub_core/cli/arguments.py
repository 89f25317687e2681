"""Arguments and options that commands share, including commands of plugins, as click decorators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hub_core.cli.assignments import Assignments, parse_pairs
from hub_core.cli.parameter_types import (
    ASSIGNMENT,
    COLLECTIVE,
    COUNTED_COLLECTIVE,
    DURATION,
    FILE,
    OfferName,
)
from hub_core.model.diagnostics import UsageError
from hub_core.model.kinds import COUNTS_HELP
from hub_core.plugin_api.formats import FormatReader, FormatWriter
from hub_core.plugin_api.offers import Offer
from hub_core.plugin_api.options import MAX_INTEGER
from hub_core.plugin_api.runs import Simulator
from hub_core.plugin_api.synthesis import SearchBudget

if TYPE_CHECKING:
    from hub_core.registry.plugins import Registry

Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """Values of `output_options`: how a command writes its algorithm and its report.

    `target_format`: None to choose the format by suffix. `strict`: refuse losses. `force`: existing
    output may be overwritten. `as_json`: print a JSON report on standard output.
    """

    target_format: str | None
    assignments: Assignments
    strict: bool
    force: bool
    as_json: bool


def output_options(function: Function) -> Function:
    """Add the options of a command that verifies and writes a model; it gets them as `output`.

    The options are, in the order of the help: `--to`, `-O`, `--verify`, `--strict`, `--force` and
    `--json`. `--to`, `-O`, `--strict`, `--force` and `--json` reach the function together, as one
    keyword argument `output` of type `OutputRequest`; `--verify` and all other arguments are passed
    on unchanged.
    """

    @wraps(function)
    def call_with_request(
        *arguments: Any,
        target_format: str | None,
        assignments: Assignments,
        strict: bool,
        force: bool,
        as_json: bool,
        **named: Any,
    ) -> object:
        output = OutputRequest(target_format, assignments, strict, force, as_json)
        return function(*arguments, output=output, **named)

    decorated: Any = call_with_request
    # Help lists options in reverse order of the decorators.
    for decorate in (json_flag, force_flag, strict_flag, verify_option, option_pairs, _to_option):
        decorated = decorate(decorated)
    result: Function = decorated
    return result


def input_options(function: Function) -> Function:
    """Add `--from`, `-O`, `--verify` and `--json`, the options of a command that verifies IN.

    The command gets `source_format`, `assignments` and `as_json`; the policy of `--verify` is
    stored in the session.
    """
    for decorate in (json_flag, verify_option, option_pairs, from_option):
        function = decorate(function)
    return function


def size_option(
    help_text: str, name: str = "size_text", metavar: str = "S"
) -> Callable[[Function], Function]:
    """Add `--size S`; the command gets the unparsed text as `name`, None without the option."""
    return click.option("--size", name, metavar=metavar, help=help_text)


def collective_option(
    help_text: str, name: str = "kind", has_counts: bool = False
) -> Callable[[Function], Function]:
    """Return a decorator that adds `--collective` with the given help text.

    The value is the name of a collective in any usual spelling, such as `allreduce`; the
    command gets the hub's name in the parameter `name`, None without the option. With
    `has_counts`, uneven collectives (whose parts differ in size) are accepted too, and
    `--counts` is added; the command gets its unparsed text as `counts`, None without the
    option. click refuses unknown names, and uneven collectives without `has_counts`.
    """
    named = click.option(
        "--collective", name, type=COUNTED_COLLECTIVE if has_counts else COLLECTIVE, help=help_text
    )
    if not has_counts:
        return named
    counts_help = f"Units of each part of an uneven collective: {COUNTS_HELP}."
    counts = click.option("--counts", metavar="TABLE", help=counts_help)
    return lambda function: named(counts(function))


def collective_rules_option(help_text: str, name: str = "rules") -> Callable[[Function], Function]:
    """Add `--collective RULE` of commands on jobs, repeatable; the command gets a tuple of texts.

    A rule is `KIND[@SIZE][/GROUP]=ALGORITHM`; see `apply_rules`.
    """
    return click.option("--collective", name, metavar="RULE", multiple=True, help=help_text)


def backend_option(help_text: str, kind: type[Offer] = Simulator) -> Callable[[Function], Function]:
    """Add `--backend NAME`, the simulator of a command, by default `analytical`."""
    return offer_option("--backend", kind, help_text, "analytical")


def root_option(help_text: str) -> Callable[[Function], Function]:
    """Add `--root R`, the root of a rooted collective; None without the option."""
    return number_option("--root", "R", help_text, least=0)


def reduce_op_option(
    operators: Sequence[str] = ("sum", "prod", "min", "max", "avg"),
) -> Callable[[Function], Function]:
    """Add `--reduce-op` with these operators, by default the first."""
    return click.option(
        "--reduce-op", type=click.Choice(operators), default=operators[0], show_default=True
    )


def occupancy_option(function: Function) -> Function:
    """Add `--occupancy`, the link model: a value of `Occupancy`, by default `serialization`."""
    return click.option(
        "--occupancy",
        type=click.Choice(("serialization", "alpha-beta")),
        default="serialization",
        show_default=True,
        help="How long a message keeps a link busy: size/bandwidth, or latency + size/bandwidth.",
    )(function)


def offer_option(
    flag: str, kind: type[Offer], help_text: str, default: str | None = None
) -> Callable[[Function], Function]:
    """Add an option whose value is the name of an offer of a kind."""
    return click.option(
        flag,
        metavar="NAME",
        default=default,
        show_default=default is not None,
        type=OfferName(kind),
        help=help_text,
    )


def format_option(
    flag: str, name: str, kind: type[Offer], help_text: str
) -> Callable[[Function], Function]:
    """Add an option whose value is a format of offers of a kind; the command gets it as `name`."""
    return click.option(flag, name, metavar="FORMAT", type=OfferName(kind), help=help_text)


def number_option(
    flag: str, metavar: str, help_text: str, least: int = 1, most: int = MAX_INTEGER
) -> Callable[[Function], Function]:
    """Return a decorator that adds an option with an integer in `least`..`most`, both included.

    `flag`: such as `--runs`, which also names the parameter of the command; `metavar`: the value in
    the help. The command gets None without the option; click refuses other values.
    """
    numbers = click.IntRange(least, most)
    return click.option(flag, type=numbers, metavar=metavar, help=help_text)


def timeout_option(function: Function) -> Function:
    """Add `--timeout SECONDS`, counted from parsing, to a search; it gets the limit as `budget`."""
    return click.option(
        "--timeout",
        "budget",
        metavar="SECONDS",
        type=DURATION,
        callback=lambda context, parameter, seconds: SearchBudget(timeout_s=seconds),
        help="End the search after this time with the best so far, as 60 or 1.5s; what was cut is"
        " reported (default: no limit, the answer never depends on the clock).",
    )(function)


def source_argument(function: Function) -> Function:
    """Add the required argument IN, and arguments for IN if it is a program; return the command.

    IN is a file, a trace-set prefix or `-`; the command gets it as `source`. Words after `--`
    are arguments of a program IN: they are stored in the session, and the command does not get
    them. Further words before `--` must be files that are, together with IN, rank files of one
    job by their names or contents, as a shell lists them for a pattern; otherwise click refuses
    them. `_store_source_arguments` has the rules. Appends an explanation to the docstring of
    `function`, which is the help text.
    """
    arguments = click.argument(
        "source_arguments",
        metavar="[-- ARGUMENT...]",
        nargs=-1,
        expose_value=False,
        callback=_store_source_arguments,
    )
    explain_program_arguments(function)
    return click.argument("source", metavar="IN", type=FILE)(arguments(function))


def explain_program_arguments(function: Function) -> None:
    """Append a paragraph on the arguments of a program IN to the docstring of `function`, its help.

    The docstring is dedented first; a missing one counts as empty.
    """
    text = "If IN is a program, its arguments follow after --, as in `program.py -- 8 2`."
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{text}"


def from_option(function: Function) -> Function:
    """Add `--from FORMAT`; the command gets it as `source_format`, None without the option."""
    help_text = "Format of IN (default: by suffix, then content)."
    return format_option("--from", "source_format", FormatReader, help_text)(function)


def output_option(function: Function) -> Function:
    """Add the required option `-o OUT` (or `--output`); the command gets its text as `out`.

    The text is a path, a trace-set prefix, or `-` for standard output.
    """
    help_text = "File, trace-set prefix, folder, folder/ to write into, or - for stdout."
    return click.option(
        "-o", "--output", "out", metavar="OUT", type=FILE, required=True, help=help_text
    )(function)


def verify_option(function: Function) -> Function:
    """Add `--verify refuse|warn|off`; the context stores the value and applies it to inputs."""
    return click.option(
        "--verify",
        "verify_policy",
        type=click.Choice(["refuse", "warn", "off"]),
        default="refuse",
        show_default=True,
        expose_value=False,
        callback=_store_verify_policy,
        help="What to do with a wrong algorithm: exit 1, go on with warnings, or do not look.",
    )(function)


def strict_flag(function: Function) -> Function:
    """Add `--strict`."""
    return click.option(
        "--strict", is_flag=True, help="Exit 4 and write nothing if the conversion would lose data."
    )(function)


def force_flag(function: Function) -> Function:
    """Add `--force`."""
    return click.option(
        "--force",
        is_flag=True,
        help="Overwrite a folder that is not empty, a set with other ranks, or IN itself.",
    )(function)


def json_flag(function: Function) -> Function:
    """Add `--json`; the command gets it as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")(
        function
    )


def option_pairs(function: Function) -> Function:
    """Add `-O key=value`, repeatable; the command gets `Assignments` as `assignments`."""
    return click.option(
        "-O",
        "assignments",
        metavar="KEY=VALUE",
        type=ASSIGNMENT,
        multiple=True,
        callback=parse_pairs,
        help="Option of a reader, writer, simulator or executor"
        " (repeatable; `collhub formats --json` lists them).",
    )(function)


def check_stdout(out: str, as_json: bool) -> None:
    """Raise `UsageError` if both the JSON report and the output are for standard output."""
    if as_json and out == "-":
        raise UsageError("--json and the output both use standard output", cure="give -o a path")


def are_ranks_of_one(files: Sequence[str], registry: Registry) -> bool:
    """Return whether the files are exactly the files of one set of rank files.

    The suffixes are those of the formats that the installed readers of algorithms know. The folder
    is listed. If a format of single files has the same suffix, the head of the first file decides,
    and `InputError` is raised if it cannot be read (`are_one_set`).
    """
    # Imported here: a single file does not need the readers.
    from hub_core.pipeline.sources import are_one_set

    formats = [provided.offer.format for provided in registry.all(FormatReader)]
    return are_one_set(files, formats)


def machine_option(function: Function) -> Function:
    """`--machine P|none`: the profile whose times are simulated.

    The command gets the name, or the content of a file, as `machine`; None if it is not given.
    """
    return click.option(
        "--machine",
        metavar="P|none",
        callback=_read_profile,
        help="Time on a measured machine: a known profile, as h100, or a file of 'collhub"
        " calibrate'; none: on nominal links, as ASTRA-sim does.",
    )(function)


def _to_option(function: Function) -> Function:
    help_text = "Format of OUT (default: by suffix; none: Chakra traces)."
    return format_option("--to", "target_format", FormatWriter, help_text)(function)


def _store_source_arguments(
    context: click.Context, parameter: click.Parameter, arguments: tuple[str, ...]
) -> None:
    """Store the arguments after IN in the session: rank files before `--`, program arguments after.

    The last `session.separated_arguments` words are the program arguments; they become
    `session.source_arguments`. The words before them are files, which together with IN must be
    the ranks of one job. The first rule that applies decides:

    - No files, or the names of IN and the files are those of all files of one set:
      `session.rank_files` is unchanged. The set is found by the name of IN.
    - They are some files of a set, or the contents show that all are rank files: they become
      `session.rank_files`, IN first.
    - Otherwise: `click.UsageError`, which names the first file after IN.
    """
    session = context.obj
    more = arguments[: len(arguments) - session.separated_arguments]
    files = (context.params["source"], *more)
    if more and not session.join_ranks(files):
        raise click.UsageError(
            f"Got unexpected extra argument ({more[0]}); several files are all ranks of one"
            " job, and arguments for a program follow after --",
            context,
        )
    session.source_arguments = arguments[len(more) :]


def _store_verify_policy(context: click.Context, parameter: click.Parameter, policy: str) -> None:
    """Store the value of `--verify` in the session, which applies it when it reads inputs."""
    context.obj.verify_policy = policy


def _read_profile(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> str | None:
    """Return the content of a file of a profile; any other text, the name of a profile, unchanged.

    `text` is the value of `--machine`; None, if the option is not given, is returned as well. A
    text counts as a file if a regular file has that path. Raises `UsageError` for a file that
    cannot be read as UTF-8 text.
    """
    if text is None or not Path(text).is_file():
        return text
    try:
        return Path(text).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        message = f"--machine {text}: {reason}"
        raise UsageError(message, cure="name a file of 'collhub calibrate'") from None
