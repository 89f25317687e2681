"""The options of a run on real data, declared once for `collhub run` and scripts of clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from hub_core.model import parse_size
from hub_core.plugin_api import Option, OptionType, choice, declared_options, option, optional

Function = TypeVar("Function", bound=Callable[..., object])

_DATA_HELP = (
    "exact: whole numbers, compared bitwise; random: compared within the bound on rounding errors."
)
_METAVARS = {"size": "S", "dtype": "TYPE", "op": "OP"}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run; `size` in bytes, `timeout` in seconds."""

    size: int | None = optional(
        "Size of the full buffer, 1MiB, rounded down to whole elements in every chunk "
        "(default: the size of IN).",
        OptionType.SIZE,
    )
    # Names are checked later, by errors that list them: `element_type` and `RunSetup`.
    dtype: str = option(
        OptionType.TEXT, "float32", "float16, bfloat16, float32, float64, int32 or int64."
    )
    op: str | None = optional("sum, prod, min, max or avg (default: that of the collective).")
    in_place: bool = option(
        OptionType.BOOL,
        False,
        "Let INPUT and OUTPUT share memory (default if IN works only in place).",
    )
    pad: bool = option(
        OptionType.BOOL,
        False,
        "Pad the buffer to whole elements in every chunk instead of rounding S down.",
    )
    data: str = choice(("exact", "random"), _DATA_HELP)
    repeats: int = option(OptionType.INT, 5, "Number of timed runs.", minimum=1, maximum=10000)
    warmups: int = option(
        OptionType.INT, 1, "Untimed runs before the timed ones.", minimum=0, maximum=10000
    )
    timeout: float = option(
        OptionType.FLOAT, 60.0, "Time limit of all runs, in seconds.", minimum=0.1
    )


def run_options(function: Function) -> Function:
    """Add one click option per field of `RunOptions` to the function of a command.

    The function receives the values as keywords; `run_options_of` converts them to a record. Use it
    as a decorator below `click.command`. The flag is `--` and the name with `-` instead of `_`.

    - BOOL: a flag without a value, False if it is absent. A declared default has no effect.
    - Any other type: an option with one value, and the declared default (also None) if it is
      absent. The help shows a default other than None, and for `size`, `dtype` and `op` a short
      name of the value (`_METAVARS`).

    Click checks values of INT, FLOAT and options with choices (`_get_click_type`).
    """
    for declared in reversed(declared_options(RunOptions)):
        flag = f"--{declared.name.replace('_', '-')}"
        if declared.type is OptionType.BOOL:
            add_option = click.option(flag, declared.name, is_flag=True, help=declared.help)
        else:
            add_option = click.option(
                flag,
                declared.name,
                type=_get_click_type(declared),
                metavar=_METAVARS.get(declared.name),
                default=declared.default,
                show_default=declared.default is not None,
                help=declared.help,
            )
        function = add_option(function)
    return function


def run_options_of(values: Mapping[str, Any]) -> RunOptions:
    """Convert the keyword values of a command with `run_options` to a `RunOptions` record.

    `values` has exactly one entry per field. The size is parsed from text such as `1M` to bytes;
    None remains None. Raises `UsageError` for an invalid size; other values are not checked.
    """
    # The only value that click passes as text.
    size = values["size"]
    size_bytes = None if size is None else parse_size(size)
    return RunOptions(**{**values, "size": size_bytes})


def _get_click_type(declared: Option) -> click.ParamType[Any]:
    """Return the click type of an option's value: choice, integer or float range, or text.

    An option with declared choices is a choice, whatever its type. Ranges include the
    declared minimum and maximum; a limit that is not declared is open. Limits of integers
    lose their fraction. All types other than INT and FLOAT, such as SIZE, are texts. They
    are parsed later, so that their errors are reported like all errors.
    """
    if declared.choices:
        return click.Choice(list(declared.choices))
    if declared.type is OptionType.INT:
        return click.IntRange(_as_integer(declared.minimum), _as_integer(declared.maximum))
    if declared.type is OptionType.FLOAT:
        return click.FloatRange(declared.minimum, declared.maximum)
    # A SIZE is parsed later, where its error is reported like all errors.
    return click.STRING


def _as_integer(bound: float | None) -> int | None:
    """Convert a bound to an integer for click."""
    return None if bound is None else int(bound)
