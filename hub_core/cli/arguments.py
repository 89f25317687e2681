"""Arguments that several commands share, the commands of plugins too, as click decorators.

And which reader, writer or simulator an `-O key=value` is meant for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hub_core.cli.parameter_types import ASSIGNMENT, DURATION, FILE, OfferName
from hub_core.model.diagnostics import UsageError, closest
from hub_core.model.quantities import parse_size
from hub_core.plugin_api.formats import FormatReader, FormatWriter
from hub_core.plugin_api.offers import Offer
from hub_core.plugin_api.options import MAX_INTEGER, Option, OptionType
from hub_core.plugin_api.search_budget import SearchBudget

if TYPE_CHECKING:
    from hub_core.registry.plugins import Registry

Function = TypeVar("Function", bound=Callable[..., object])
Assignments = Mapping[str, str]
"""The `-O` options of one command line: `key` or `side.key` to the value's text."""

# Names that -O does not know, for which users look.
_TIME_LIMITS = ("timeout", "time_limit")


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """How a command is to write its algorithm, as `output_options` parse it.

    `target_format`: None for the one of the suffix. `strict`: losses are refused. `force`: what is
    there may be overwritten. `as_json`: a report on standard output.
    """

    target_format: str | None
    assignments: Assignments
    strict: bool
    force: bool
    as_json: bool


def output_options(function: Function) -> Function:
    """Options of a command that judges algorithms and writes one; it gets them as `output`.

    `--to`, `-O`, `--verify`, `--strict`, `--force` and `--json`.
    """

    @wraps(function)
    def gathering(
        *arguments: Any,
        target_format: str | None,
        assignments: Assignments,
        strict: bool,
        force: bool,
        as_json: bool,
        **others: Any,
    ) -> object:
        output = OutputRequest(target_format, assignments, strict, force, as_json)
        return function(*arguments, output=output, **others)

    decorated: Any = gathering
    # The last decorator stands first in the help.
    for decorate in (json_flag, force_flag, strict_flag, verify_option, option_pairs, _to_option):
        decorated = decorate(decorated)
    result: Function = decorated
    return result


def offer_option(
    flag: str, kind: type[Offer], help_text: str, default: str | None = None
) -> Callable[[Function], Function]:
    """An option that names an offer."""
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
    """An option that names a format of such offers; the command gets it as `name`."""
    return click.option(flag, name, metavar="FORMAT", type=OfferName(kind), help=help_text)


def number_option(
    flag: str, metavar: str, help_text: str, least: int = 1, most: int = MAX_INTEGER
) -> Callable[[Function], Function]:
    """An option that is a whole number in a range, None if it is not given."""
    numbers = click.IntRange(least, most)
    return click.option(flag, type=numbers, metavar=metavar, help=help_text)


def timeout_option(function: Function) -> Function:
    """`--timeout SECONDS` of a command that searches; it gets the limit as `budget`."""
    return click.option(
        "--timeout",
        "budget",
        metavar="SECONDS",
        type=DURATION,
        callback=_started,
        help="End the search after this time with the best so far, as 60 or 1.5s; what was cut is"
        " reported (default: no limit, the answer never depends on the clock).",
    )(function)


def _started(
    context: click.Context, parameter: click.Parameter, seconds: float | None
) -> SearchBudget:
    """The budget of a command, whose time begins now."""
    return SearchBudget(timeout_s=seconds)


def source_argument(function: Function) -> Function:
    """The file, trace-set prefix or `-` that a command reads, and arguments for a program.

    All files of one set of ranks, as a shell lists them, are that set.
    """
    arguments = click.argument(
        "source_arguments",
        metavar="[-- ARGUMENT...]",
        nargs=-1,
        expose_value=False,
        callback=_kept_for_reader,
    )
    explain_program_arguments(function)
    return click.argument("source", metavar="IN", type=FILE)(arguments(function))


def explain_program_arguments(function: Function) -> None:
    """Add to the help of a command how to pass arguments to a program that IN names."""
    text = "If IN is a program, its arguments follow after --, as in `program.py -- 8 2`."
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{text}"


def from_option(function: Function) -> Function:
    """`--from FORMAT`."""
    help_text = "Format of IN (default: by suffix, then content)."
    return format_option("--from", "source_format", FormatReader, help_text)(function)


def input_options(function: Function) -> Function:
    """`--from`, `-O`, `--verify` and `--json`, of a command that judges what it reads."""
    # The last decorator stands first in the help.
    for decorate in (json_flag, verify_option, option_pairs, from_option):
        function = decorate(function)
    return function


def output_option(function: Function) -> Function:
    """`-o OUT`."""
    help_text = "File, trace-set prefix, folder, folder/ to write into, or - for stdout."
    return click.option(
        "-o", "--output", "out", metavar="OUT", type=FILE, required=True, help=help_text
    )(function)


def _to_option(function: Function) -> Function:
    """`--to FORMAT`."""
    help_text = "Format of OUT (default: by suffix; none: Chakra traces)."
    return format_option("--to", "target_format", FormatWriter, help_text)(function)


def verify_option(function: Function) -> Function:
    """`--verify refuse|warn|off`: what becomes of a wrong algorithm; kept by the context."""
    return click.option(
        "--verify",
        "verify_policy",
        type=click.Choice(["refuse", "warn", "off"]),
        default="refuse",
        show_default=True,
        expose_value=False,
        callback=_kept_for_inputs,
        help="What to do with a wrong algorithm: exit 1, go on with warnings, or do not look.",
    )(function)


def strict_flag(function: Function) -> Function:
    """`--strict`."""
    return click.option(
        "--strict", is_flag=True, help="Write nothing and exit 4 where something would be lost."
    )(function)


def force_flag(function: Function) -> Function:
    """`--force`."""
    return click.option(
        "--force",
        is_flag=True,
        help="Overwrite a folder that is not empty, a set with other ranks, or IN itself.",
    )(function)


def json_flag(function: Function) -> Function:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")(
        function
    )


def option_pairs(function: Function) -> Function:
    """`-O key=value`, repeatable."""
    return click.option(
        "-O",
        "assignments",
        metavar="KEY=VALUE",
        type=ASSIGNMENT,
        multiple=True,
        callback=_parsed_pairs,
        help="Option of a reader, writer, simulator or executor"
        " (repeatable; `collhub formats --json` lists them).",
    )(function)


def check_stdout(out: str, as_json: bool) -> None:
    """Raise `UsageError` where the report and the output both want standard output."""
    if as_json and out == "-":
        raise UsageError("--json and the output both want standard output", cure="give -o a path")


def assign(
    assignments: Assignments, declared: Mapping[str, Sequence[Option]]
) -> dict[str, dict[str, str]]:
    """Give every option to the sides that declare it, of `reader`, `writer` and so on.

    A bare key goes to every side that declares it, `side.key` to that side alone and before a bare
    one; `name.key` of an option of pairs to every side that declares `name`. Raises `UsageError`
    naming the closest option for a key that no side declares.
    """
    given: dict[str, dict[str, str]] = {side: {} for side in declared}
    for key, value in sorted(assignments.items(), key=lambda item: "." in item[0]):
        if pairs := _pairs_by_side(key, declared):
            for side, name in pairs.items():
                given[side][name] = value
            continue
        wanted, _, name = key.replace("-", "_").rpartition(".")
        sides = [
            side for side in declared if wanted in ("", side) and name in _names(declared[side])
        ]
        if not sides:
            raise UsageError(
                f"there is no option {key!r} here",
                cure=_closest(name, declared),
                code="unknown-option",
            )
        for side in sides:
            given[side][name] = value
    return given


def _kept_for_reader(
    context: click.Context, parameter: click.Parameter, arguments: tuple[str, ...]
) -> None:
    # What stands behind -- is for a program.
    session = context.obj
    more = arguments[: len(arguments) - session.separated_arguments]
    files = (context.params["source"], *more)
    if more and not are_ranks_of_one(files, session.registry()):
        if not _are_rank_files(files, session.registry()):
            raise click.UsageError(
                f"Got unexpected extra argument ({more[0]}); several files are all ranks of one"
                " job, and arguments for a program stand after --",
                context,
            )
        session.rank_files = files
    session.source_arguments = arguments[len(more) :]


def are_ranks_of_one(files: Sequence[str], registry: Registry) -> bool:
    """Whether the files are all those of one set of ranks."""
    # Imported here: one file alone asks for no reader.
    from hub_core.pipeline.sources import are_one_set

    formats = [provided.offer.format for provided in registry.all(FormatReader)]
    return are_one_set(files, formats)


def _are_rank_files(files: Sequence[str], registry: Registry) -> bool:
    """Whether the contents of the files, not their names, tell that they are of one job."""
    from hub_core.pipeline.sources import are_rank_files

    formats = [provided.offer.format for provided in registry.all(FormatReader)]
    return are_rank_files(files, formats)


def _kept_for_inputs(context: click.Context, parameter: click.Parameter, policy: str) -> None:
    """Keep the value of `--verify` in the context, where the reading of inputs looks it up."""
    context.obj.verify_policy = policy


def _pairs_by_side(key: str, declared: Mapping[str, Sequence[Option]]) -> dict[str, str]:
    """`name.key` by the sides that declare an option of pairs `name`; none for another key."""
    wanted, _, rest = key.partition(".")
    # `reader.bandwidth.nvlink` goes to the reader alone.
    is_qualified = wanted in declared
    pair = rest if is_qualified else key
    name, point, _ = pair.partition(".")
    found = {}
    for side, options in declared.items():
        pairs = [option.name for option in options if option.type is OptionType.PAIRS]
        if point and name.replace("-", "_") in pairs and (side == wanted or not is_qualified):
            found[side] = pair
    return found


def _names(options: Sequence[Option]) -> list[str]:
    """The names that -O knows them by."""
    # Without the dashes of other options.
    return [option.name for option in options]


def _closest(name: str, declared: Mapping[str, Sequence[Option]]) -> str:
    for side, options in declared.items():
        if name in _names(options):
            return f"did you mean '{side}.{name}'?"
    if name in _TIME_LIMITS:
        return "a time limit of a search is the option --timeout SECONDS of its command"
    known = sorted({known for options in declared.values() for known in _names(options)})
    if not known:
        return f"no option is declared by the {' or the '.join(declared)}"
    return closest(name, known) or f"use one of {', '.join(known)}"


def _parsed_pairs(
    context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]
) -> Assignments:
    parsed: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(
                f"{pair!r} is not KEY=VALUE, for example -O root=0", context, parameter
            )
        if key in parsed:
            raise click.BadParameter(f"{key!r} is given twice", context, parameter)
        parsed[key] = value
    return parsed


def give_symbol_sizes(
    size_text: str | None, options: Sequence[Option], given: dict[str, str]
) -> str | None:
    """Give `--size B=8,S=1024` to a reader of programs with symbols, as its option `sizes`.

    `options`: those that the reader declares; `given`: its values so far, of which `sizes` takes
    precedence. Returns the text if it is a size in bytes, else None. Raises `UsageError` for sizes
    of symbols where the reader knows no symbols.
    """
    if size_text is None:
        return None
    if any(option.name == "sizes" for option in options):
        given.setdefault("sizes", size_text)
        return None
    if "=" in size_text:
        message = f"--size {size_text:.60}: IN has no symbols, to which this would give sizes"
        raise UsageError(message, cure="give the size of the collective, such as 1MiB")
    return size_text


def parse_sizes(text: str) -> tuple[int, ...]:
    """`1MiB`: that size.

    `1MiB..1GiB`: from the first to the last, each twice the one before. Raises `UsageError`.
    """
    first, dots, last = text.partition("..")
    sizes = [parse_size(first)]
    if not dots:
        return tuple(sizes)
    end = parse_size(last)
    if end < sizes[0]:
        raise UsageError(
            f"the range of sizes {text!r} ends below its start", cure="write for example 1MiB..1GiB"
        )
    while sizes[-1] * 2 <= end:
        sizes.append(sizes[-1] * 2)
    return tuple(sizes)
