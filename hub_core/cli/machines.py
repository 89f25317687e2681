"""The option `--machine` of all commands that time algorithms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from hub_core.model.diagnostics import UsageError

Function = TypeVar("Function", bound=Callable[..., object])


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


def _read_profile(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> str | None:
    """Return the name of a profile as it is, and the content of a file."""
    if text is None or not Path(text).is_file():
        return text
    try:
        return Path(text).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        message = f"--machine {text}: {reason}"
        raise UsageError(message, cure="name a file of 'collhub calibrate'") from None
