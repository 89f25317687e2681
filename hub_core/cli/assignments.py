"""Values of `-O key=value`, `--size` and `--topology`: parse them, assign options to components."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

import click

from hub_core.cli.parameter_types import TOPOLOGY
from hub_core.model.diagnostics import UsageError, closest
from hub_core.model.quantities import parse_size
from hub_core.plugin_api.options import Option, OptionType

Assignments = Mapping[str, str]
"""The `-O` options of one command line: `key` or `component.key` to the text of the value."""

# Names of a time limit for which users look among the -O options.
_TIME_LIMITS = ("timeout", "time_limit")


def parse_pairs(
    context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]
) -> Assignments:
    """Parse the values of `-O`, the callback of the option; return the values by key.

    The value is the text after the first `=`, and may be empty; the order of the command line is
    kept. Keys are compared as written. Raises `click.BadParameter` for a text without `=` or
    without a key, and for a repeated key.
    """
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


def assign(
    assignments: Assignments, declared: Mapping[str, Sequence[Option]]
) -> dict[str, dict[str, str]]:
    """Give each option of the command line (`-O`) to the components that declare it.

    Components are the parts of a command that take options, such as `reader`, `writer` or a pass.
    `declared`: options by component. Returns texts by component and name of the option, with an
    empty dict for a component without values. The forms of a key, in which `-` means `_`:

    - `key` is passed to every component that declares it.
    - `component.key` is passed only to that component, where it takes precedence over `key`.
    - `name.key` and `component.name.key`, for an option `name` of pairs (several values by key),
      are passed to all components that declare `name`, or only to that one. The name in the result
      is the text `name.key`, in which `-` is not changed. Of both forms of a key, the later one in
      `assignments` counts.

    Of two keys of one form that differ only in `-` and `_`, the last one counts. Raises
    `UsageError` (`unknown-option`), with the closest option, for a key that no component declares
    or that the named component does not declare.
    """
    values_by_component: dict[str, dict[str, str]] = {component: {} for component in declared}
    for key, value in sorted(assignments.items(), key=lambda item: "." in item[0]):
        if pairs := _find_pairs(key, declared):
            for component, name in pairs.items():
                values_by_component[component][name] = value
            continue
        prefix, _, name = key.replace("-", "_").rpartition(".")
        components = [
            component
            for component, options in declared.items()
            if prefix in ("", component) and name in _names(options)
        ]
        if not components:
            raise UsageError(
                f"there is no option {key!r} here",
                cure=_suggest_option(name, declared),
                code="unknown-option",
            )
        for component in components:
            values_by_component[component][name] = value
    return values_by_component


def _find_pairs(key: str, declared: Mapping[str, Sequence[Option]]) -> dict[str, str]:
    """Find the components for a key `name.key` of an option of pairs, which has values by key.

    Returns, by component that declares such an option `name`, the key without a component. If the
    key begins with the name of a component, as in `reader.bandwidth.nvlink`, only that component
    counts; otherwise all do. `-` in `name` means `_`; the rest of the key is unchanged. Empty
    for any other key.
    """
    prefix, _, rest = key.partition(".")
    is_qualified = prefix in declared
    pair = rest if is_qualified else key
    name, point, _ = pair.partition(".")
    pairs_by_component = {}
    for component, options in declared.items():
        names = [option.name for option in options if option.type is OptionType.PAIRS]
        is_meant = not is_qualified or component == prefix
        if point and name.replace("-", "_") in names and is_meant:
            pairs_by_component[component] = pair
    return pairs_by_component


def _names(options: Sequence[Option]) -> list[str]:
    return [option.name for option in options]


def _suggest_option(name: str, declared: Mapping[str, Sequence[Option]]) -> str:
    """Return the cure for an option that is refused: its correct spelling, or the known options.

    `name`: the part of the key after its last `.`, with `_` for `-`. `declared`: options by
    component. The first rule that applies:

    - A component declares `name`: `COMPONENT.NAME` with the first such component.
    - `name` is `timeout` or `time_limit`: the option `--timeout`.
    - No component declares any option: a text that reports this.
    - An option with a similar name is declared: the most similar name (`closest`).
    - Otherwise the names of all declared options, in alphabetical order.
    """
    for component, options in declared.items():
        if name in _names(options):
            return f"did you mean '{component}.{name}'?"
    if name in _TIME_LIMITS:
        return "a time limit of a search is the option --timeout SECONDS of its command"
    known = sorted({known for options in declared.values() for known in _names(options)})
    if not known:
        return f"no option is declared by the {' or the '.join(declared)}"
    return closest(name, known) or f"use one of {', '.join(known)}"


def give_symbol_sizes(
    size_text: str | None, options: Sequence[Option], values: dict[str, str]
) -> str | None:
    """Pass the text of `--size` to a reader that declares the option `sizes`.

    Such a reader reads programs with symbols, and `--size B=8,S=1024` gives their sizes.
    `options`: the options that the reader declares. `values`: the values of its options.

    If the reader declares `sizes`, every text is for the reader: the text is added to `values`
    as `sizes`, unless `values` has `sizes` already, and None is returned. Otherwise the text is
    returned unchanged, as the size of the collective; a text with `=` raises `UsageError`. None
    is returned for None.
    """
    if size_text is None:
        return None
    if any(option.name == "sizes" for option in options):
        values.setdefault("sizes", size_text)
        return None
    if "=" in size_text:
        message = f"--size {size_text:.60}: IN has no symbols, to which this would give sizes"
        raise UsageError(message, cure="give the size of the collective, such as 1MiB")
    return size_text


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parse a size or a range of sizes, in bytes, in ascending order.

    `1MiB` is one size; `1MiB..1GiB` are the sizes from the first up to the last, each twice the
    previous one. The last one belongs to the range only if doubling reaches it exactly. Raises
    `UsageError` for a text that is no size, and for a range without one of its ends or whose end
    is below its start.
    """
    first, dots, last = text.partition("..")
    if dots and not (first and last):
        missing_end = "first" if last else "last"
        message = f"the range of sizes {text[:64]!r} has no {missing_end} size"
        raise UsageError(message, cure="write for example 1MiB..1GiB")
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
    (repeatable) add `without=` and `degrade=` to the text, which the command gets as the argument
    `name`. Without `--topology`, the argument is None, and the two other options raise
    `UsageError`. With `multiple`, only `--topology` is added, and the argument is a tuple of texts.
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
                # Imported here: the help of a command needs no numpy.
                from hub_core.network.failures import LinkChanges

                if named[name] is None:
                    flag = "--without-link" if failed_links else "--degrade"
                    message = f"{flag} changes the network of --topology"
                    raise UsageError(message, cure="add --topology T")
                named[name] = LinkChanges(failed_links, slow_links).append_to(named[name])
            return function(*arguments, **named)

        without_link = click.option(
            "--without-link",
            "failed_links",
            metavar="A-B",
            multiple=True,
            help="Remove this link from T, both directions; A->B: one; A-B,C-D: several"
            " (repeatable).",
        )
        degrade = click.option(
            "--degrade",
            "slow_links",
            metavar="A-B=F",
            multiple=True,
            help="Reduce this link of T to the fraction F of its bandwidth, as 3-4=0.5"
            " (repeatable).",
        )
        decorated: Any = call_with_changes
        result: Function = topology(without_link(degrade(decorated)))
        return result

    return decorate
