"""The option `--topology` and the options that change its links, as click decorators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import click

from hub_core.cli.parameter_types import TOPOLOGY
from hub_core.model.diagnostics import UsageError

Function = TypeVar("Function", bound=Callable[..., object])


def topology_option(
    help_text: str,
    name: str = "topology_text",
    *,
    required: bool = False,
    multiple: bool = False,
) -> Callable[[Function], Function]:
    """Add `--topology T`, and the options that change its links; the command gets one text.

    `--topology` is a text such as `ring:8` or a file. `--without-link A-B` and `--degrade A-B=F`
    (repeatable) add `without=` and `degrade=` to the text, which the command gets as `name`; None
    without `--topology`, in which case these options are refused. With `multiple`, the command gets
    a tuple of texts, and declares options for links itself.
    """
    topology = click.option(
        "--topology",
        name,
        metavar="T",
        type=TOPOLOGY,
        required=required,
        multiple=multiple,
        help=help_text,
    )
    if multiple:
        return topology

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call_with_changes(
            *arguments: Any,
            failed_links: tuple[str, ...] = (),
            slow_links: tuple[str, ...] = (),
            **named: Any,
        ) -> object:
            if failed_links or slow_links:
                named[name] = _add_link_changes(named[name], failed_links, slow_links)
            return function(*arguments, **named)

        decorated: Any = call_with_changes
        result: Function = topology(_without_link_option(_degrade_option(decorated)))
        return result

    return decorate


def _without_link_option(function: Function) -> Function:
    return click.option(
        "--without-link",
        "failed_links",
        metavar="A-B",
        multiple=True,
        help="Remove this link from T, both directions; A->B: one; A-B,C-D: several (repeatable).",
    )(function)


def _degrade_option(function: Function) -> Function:
    return click.option(
        "--degrade",
        "slow_links",
        metavar="A-B=F",
        multiple=True,
        help="Reduce this link of T to the fraction F of its bandwidth, as 3-4=0.5 (repeatable).",
    )(function)


def _add_link_changes(
    text: str | None, failed_links: Sequence[str], slow_links: Sequence[str]
) -> str:
    """Return the topology text with the failed and the slow links of the command line.

    Raises `UsageError` without a text.
    """
    # Imported here: the help of a command needs no numpy.
    from hub_core.network.failures import LinkChanges

    if text is None:
        flag = "--without-link" if failed_links else "--degrade"
        raise UsageError(f"{flag} changes the network of --topology", cure="add --topology T")
    return LinkChanges(tuple(failed_links), tuple(slow_links)).append_to(text)
