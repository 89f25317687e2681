"""Types of arguments and options: what shells complete, and what spellings are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from hub_core.model.diagnostics import UsageError, closest
from hub_core.model.kinds import STANDARD_KINDS, standard_kind
from hub_core.model.quantities import parse_time

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hub_core.plugin_api.formats import TopologyBuilder
    from hub_core.plugin_api.offers import Offer
    from hub_core.plugin_api.options import Option

    _Choice = click.Choice[str]
else:
    # Generic since click 8.2 alone.
    _Choice = click.Choice


class _FileName(click.types.StringParamType):
    """Text as it is, such as a path or `-`: what opens it says what is wrong with it."""

    name = "file"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell complete the names of files."""
        # Imported here: the program completes far less often than it runs.
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


class _CollectiveName(_Choice):
    """The value of a `CollectiveKind`, from any usual spelling."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value as the model spells it; the error of a choice for an unknown name."""
        kind = standard_kind(value) if isinstance(value, str) else None
        if kind is None and isinstance(value, str):
            known = [str(one) for one in STANDARD_KINDS]
            meant = closest(value.lower(), known) or f"use one of {', '.join(known)}"
            self.fail(f"{value!r} is no collective; {meant}")
        return super().convert(value if kind is None else str(kind), param, ctx)


class _Duration(click.types.StringParamType):
    """Seconds above 0: a number, or a time with a unit such as 1.5s or 500ms."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The time in seconds."""
        text = str(value)
        try:
            # A bare number is refused elsewhere; here the option names the unit.
            seconds = parse_time(text if text[-1:].isalpha() else f"{text}s")
        except UsageError:
            seconds = 0.0
        if seconds <= 0:
            self.fail(f"{text!r:.60} is not a time above 0, for example 60 or 1.5s", param, ctx)
        return seconds


class OfferName(click.types.StringParamType):
    """The name of an offer of some kinds, or names between commas; which ones exist is not checked.

    Shells complete the last name. `-O` of the same command completes the options of these offers.
    """

    name = "offer"

    def __init__(self, *kinds: type[Offer]) -> None:
        self.kinds = kinds

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names of offers, by the plugins that this run admits."""
        from click.shell_completion import CompletionItem

        head, last = _last_of_list(incomplete, ",")
        names = {offer.name for kind in self.kinds for offer in ctx.obj.registry().all(kind)}
        return [CompletionItem(head + name) for name in sorted(names) if name.startswith(last)]


class _TopologyText(_FileName):
    """A topology text such as `ring:8`, or a file: shells complete names, keys and files."""

    name = "topology"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Names with an example of their form; behind `?`, keys and the values of some."""
        from click.shell_completion import CompletionItem

        from hub_core.plugin_api.formats import TopologyBuilder

        builders = {one.name: one.offer for one in ctx.obj.registry().all(TopologyBuilder)}
        # Planes are joined by +, dimensions by *.
        head, text = _last_of_list(incomplete, "+*")
        shape, mark, query = text.partition("?")
        if not mark:
            found = [
                head + offer.example
                for name, offer in sorted(builders.items())
                if offer.example.startswith(text) or name.startswith(text)
            ]
            found += [
                head + name
                for name in sorted(builders)
                if name.startswith(text) and _stands_alone(name, ctx)
            ]
            own = [CompletionItem(value) for value in dict.fromkeys(found)]
            # Files first: bash drops what comes before them, and takes them if nothing else fits.
            return [*([] if head else super().shell_complete(ctx, param, incomplete)), *own]
        done, item = _last_of_list(query, "&")
        values = _network_values(builders) if item.startswith("network=") else _QUERY
        start = f"{head}{shape}?{done}"
        return [CompletionItem(start + value) for value in values if value.startswith(item)]


class _OptionAssignment(click.types.StringParamType):
    """`key=value` of `-O`: shells complete the keys of the offers of a command, and choices."""

    name = "assignment"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Keys with `=`; behind it, choices, true and false, or names of offers in a list."""
        from click.shell_completion import CompletionItem

        options = list(_declared_options(ctx))
        key, equals, value = incomplete.partition("=")
        side, _, name = key.rpartition(".")
        lead = f"{side}." if side else ""
        if not equals:
            helps = {f"{lead}{option.name}=": option.help for option in options}
            return [
                CompletionItem(text, help=helps[text])
                for text in sorted(helps)
                if text.startswith(key)
            ]
        head, last = _last_of_list(value, ",")
        values = dict.fromkeys(
            choice
            for option in options
            if option.name == name.replace("-", "_")
            for choice in _values(ctx, option)
        )
        return [
            CompletionItem(f"{key}={head}{choice}") for choice in values if choice.startswith(last)
        ]


FILE = _FileName()
"""Type of an argument or option that names a file, among other things: shells complete it."""
DURATION = _Duration()
"""Type of an option that is a time in seconds."""
TOPOLOGY = _TopologyText()
"""Type of an argument or option that is a topology text or a file."""
ASSIGNMENT = _OptionAssignment()
"""Type of `-O key=value`."""
COLLECTIVE = _CollectiveName([kind.value for kind in STANDARD_KINDS])
"""Type of an option that names a collective in any usual spelling, as `allreduce`.

The value is that of a `CollectiveKind`.
"""
_QUERY = (
    *("bandwidth=", "latency=", "npus=", "multicast=true", "reduce=true"),
    *("network=", "network-bandwidth=", "network-latency=", "by-rail=true"),
)
_NETWORKS = ("fat-tree", "leaf-spine", "dragonfly", "switch")


def complete_offers(
    *kinds: type[Offer],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Complete the names of offers in a shell: `shell_complete` of an argument or an option."""
    return OfferName(*kinds).shell_complete


def _last_of_list(text: str, separators: str) -> tuple[str, str]:
    """What is before the last item of a list, with its separator, and the item so far."""
    end = 1 + max(text.rfind(separator) for separator in separators)
    return text[:end], text[end:]


def _stands_alone(name: str, ctx: click.Context) -> bool:
    """Whether a name without a size is a topology, as that of a machine."""
    from hub_core.model.diagnostics import HubError
    from hub_core.pipeline.topology_input import parse_topology

    try:
        parse_topology(name, registry=ctx.obj.registry())
    except HubError:
        return False
    return True


def _network_values(builders: Mapping[str, TopologyBuilder]) -> list[str]:
    return [f"network={builders[name].example}" for name in _NETWORKS if name in builders]


def _declared_options(ctx: click.Context) -> Iterator[Option]:
    """Options of the offers that the command line names so far, else of all that may take part."""
    from hub_core.registry.descriptions import options_of

    registry = ctx.obj.registry()
    values = dict(ctx.params)
    # A parser that misses the value of -O leaves arguments without an option where they are.
    arguments = [one for one in ctx.command.params if isinstance(one, click.Argument)]
    values |= {one.name or "": text for one, text in zip(arguments, ctx.args, strict=False)}
    paths = [str(values[name]) for name in ("source", "out") if values.get(name)]
    for parameter in ctx.command.params:
        if not isinstance(parameter.type, OfferName):
            continue
        value = values.get(parameter.name or "") or parameter.get_default(ctx)
        # Not given, and without a default: None, or a mark of click's own.
        given = [value] if isinstance(value, str) else value
        given = given if isinstance(given, list | tuple) else []
        names = {name for text in given for name in str(text).split(",")}
        for kind in parameter.type.kinds:
            for provided in registry.all(kind):
                if names and provided.name not in names:
                    continue
                if names or _may_be_meant(provided.offer, paths):
                    yield from options_of(provided.offer)


def _may_be_meant(offer: object, paths: list[str]) -> bool:
    """Whether an offer that nobody named fits the files that are named: by their suffixes."""
    suffixes = getattr(getattr(offer, "format", None), "suffixes", ())
    if not paths or not suffixes:
        return True
    return any(path.lower().endswith(suffix) for path in paths for suffix in suffixes)


def _values(ctx: click.Context, option: Option) -> list[str]:
    """Values of an option that can be listed."""
    from hub_core.plugin_api.options import OptionType
    from hub_core.plugin_api.synthesis import Synthesizer

    if option.choices:
        return [str(choice) for choice in option.choices if choice is not None]
    if option.type is OptionType.BOOL:
        return ["true", "false"]
    if option.name == "candidates":
        return sorted(offer.name for offer in ctx.obj.registry().all(Synthesizer))
    return []
