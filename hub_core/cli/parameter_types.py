"""Types of arguments and options: accepted spellings, and completion in shells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from hub_core.model.diagnostics import UsageError, closest
from hub_core.model.kinds import STANDARD_KINDS, UNEVEN_KINDS, standard_kind, uneven_kind
from hub_core.model.quantities import parse_time

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hub_core.plugin_api.offers import Offer
    from hub_core.plugin_api.options import Option

    _Choice = click.Choice[str]
else:
    # Generic only since click 8.2.
    _Choice = click.Choice


class _FileName(click.types.StringParamType):
    """Text such as a path or `-`, accepted unchanged; the command that opens it reports errors."""

    name = "file"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell complete file names: return one item of type `file` with the typed text."""
        # Imported here: the program completes far less often than it runs.
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


class _CollectiveName(_Choice):
    """The value of a `CollectiveKind`, from any usual spelling; uneven ones only if listed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the model's spelling of a collective that is given in any usual spelling.

        For example, `AllReduce` becomes `all-reduce`. A value that is not a text is converted
        by click. Raise `click.BadParameter` for an unknown name, with the closest name, or with
        all names if none is similar. Also raise it for an uneven collective (one with a table
        of counts) that the command does not accept.
        """
        kind = (standard_kind(value) or uneven_kind(value)) if isinstance(value, str) else None
        known = list(map(str, self.choices))
        if kind is not None and str(kind) not in known:
            self.fail(f"{kind} has a table of counts, which this command has no option for")
        if kind is None and isinstance(value, str):
            meant = closest(value.lower(), known) or f"use one of {', '.join(known)}"
            self.fail(f"{value!r} is no collective; {meant}")
        return super().convert(value if kind is None else str(kind), param, ctx)


class _Duration(click.types.StringParamType):
    """Seconds above 0: a number, or a time with a unit such as 1.5s or 500ms."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a time in seconds as a float; a number without a unit means seconds.

        Raise `click.BadParameter` for a text that is not a time, and for a time that is 0 or at
        least 1e9 s.
        """
        text = str(value)
        try:
            # Times without a unit are refused elsewhere; here the option names the unit.
            seconds = parse_time(text if text[-1:].isalpha() else f"{text}s")
        except UsageError:
            seconds = 0.0
        if seconds <= 0:
            self.fail(f"{text!r:.60} is not a time above 0, for example 60 or 1.5s", param, ctx)
        return seconds


class OfferName(click.types.StringParamType):
    """The name of an offer of some kinds, or several names separated by commas; not checked.

    Shells complete the last name. `-O` of the same command completes the options of these offers.
    """

    name = "offer"

    def __init__(self, *kinds: type[Offer]) -> None:
        self.kinds = kinds

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the last of the comma-separated names of offers of the plugins of this run.

        Candidates are the names of all offers of the kinds of this parameter that begin with the
        last part, in alphabetical order and without repetition; each has the text before that part
        in front.
        """
        from click.shell_completion import CompletionItem

        head, last = _split_last_item(incomplete, ",")
        names = {offer.name for kind in self.kinds for offer in ctx.obj.registry().all(kind)}
        return [CompletionItem(head + name) for name in sorted(names) if name.startswith(last)]


class _TopologyText(_FileName):
    """A topology text such as `ring:8`, or a file. Shells complete names, keys and files."""

    name = "topology"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete a topology text; every completion contains the text before the completed part.

        The part after the last `+` (joins planes) or `*` (joins dimensions) is completed. Case
        counts. Without `?` in this part, the candidates are, in this order and without repetition:

        1. an item of type `file` (the shell completes files), only if the text has no `+` and `*`
        2. examples such as `ring:8`, sorted by the name of their builder, if the example or this
           name begins with the part
        3. sorted names of builders that begin with the part and can be built without arguments

        After `?`, the text after the last `&` is completed: keys such as `bandwidth=` and
        `reduce=true`, or after `network=` the installed examples of fat-tree, leaf-spine, dragonfly
        and switch.
        """
        from click.shell_completion import CompletionItem

        from hub_core.plugin_api.formats import TopologyBuilder

        builders = {
            builder.name: builder.offer for builder in ctx.obj.registry().all(TopologyBuilder)
        }
        # `+` joins planes, `*` joins dimensions.
        head, text = _split_last_item(incomplete, "+*")
        shape, mark, query = text.partition("?")
        if not mark:
            texts = [
                head + offer.example
                for name, offer in sorted(builders.items())
                if offer.example.startswith(text) or name.startswith(text)
            ]
            texts += [
                head + name
                for name in sorted(builders)
                if name.startswith(text) and _is_complete_topology(name, ctx)
            ]
            names = [CompletionItem(value) for value in dict.fromkeys(texts)]
            # Files come first, because bash drops the entries before them and falls back to files.
            return [*([] if head else super().shell_complete(ctx, param, incomplete)), *names]
        done, item = _split_last_item(query, "&")
        values = (
            [f"network={builders[name].example}" for name in _NETWORKS if name in builders]
            if item.startswith("network=")
            else _QUERY
        )
        start = f"{head}{shape}?{done}"
        return [CompletionItem(start + value) for value in values if value.startswith(item)]


class _OptionAssignment(click.types.StringParamType):
    """`key=value` of `-O`. Shells complete the keys of the offers of a command, and choices."""

    name = "assignment"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete an assignment `KEY=VALUE` of an option of the offers on the command line.

        The options are those of `_find_declared_options`. Each candidate is an entire assignment
        that begins with `incomplete`.

        Without `=`, the candidates are the keys of all options, followed by `=`, with their help.
        They are in alphabetical order without repetition. Text up to the last `.`, such as
        `reader.`, is kept and not checked: `reader.x` completes like `x`.

        After `=`, only the part after the last `,` is completed. The candidates are the values
        (`_list_values`) of all options with this key, without repetition, in the order of the
        options. The key is the text after the last `.`, with `_` for `-`. The result is [] if no
        option has the key or none has values that can be listed.
        """
        from click.shell_completion import CompletionItem

        options = list(_find_declared_options(ctx))
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
        head, last = _split_last_item(value, ",")
        values = dict.fromkeys(
            choice
            for option in options
            if option.name == name.replace("-", "_")
            for choice in _list_values(ctx, option)
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
COUNTED_COLLECTIVE = _CollectiveName([kind.value for kind in (*STANDARD_KINDS, *UNEVEN_KINDS)])
"""Type of an option that also accepts uneven collectives, which need `--counts`."""
_QUERY = (
    *("bandwidth=", "latency=", "npus=", "multicast=true", "reduce=true"),
    *("network=", "network-bandwidth=", "network-latency=", "by-rail=true"),
)
_NETWORKS = ("fat-tree", "leaf-spine", "dragonfly", "switch")


def complete_offers(
    *kinds: type[Offer],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a completion of names of offers, for `shell_complete` of an argument or an option."""
    return OfferName(*kinds).shell_complete


def _split_last_item(text: str, separators: str) -> tuple[str, str]:
    """Split a list before its last item: return (text up to the last separator, last item).

    `separators`: characters, each of which separates; the first text ends with the separator.
    Without any in the text, the result is ("", text); after a separator at the end, the last item
    is "".
    """
    end = 1 + max(text.rfind(separator) for separator in separators)
    return text[:end], text[end:]


def _is_complete_topology(name: str, ctx: click.Context) -> bool:
    """Return whether a name is a complete topology without arguments, such as a machine.

    The topology is built for this test. The result is False if this raises a `HubError`.
    """
    from hub_core.model.diagnostics import HubError
    from hub_core.pipeline.inputs import parse_topology

    try:
        parse_topology(name, registry=ctx.obj.registry())
    except HubError:
        return False
    return True


def _find_declared_options(ctx: click.Context) -> Iterator[Option]:
    """Yield the options of the offers that the parameters of the command name.

    Only parameters of type `OfferName` count, in the order of the command. The value of such a
    parameter is the value on the command line, else its default. It may name several offers,
    separated by commas; names of unknown offers are ignored. Without a value and a default, it
    stands for all offers of its kinds that fit the files `source` and `out` (`_fits_files`).

    For each kind of the parameter, the offers follow in the order of the registry, and their
    options in declared order. An option that several offers declare is yielded for each of them.
    """
    from hub_core.registry.compatibility import options_of

    registry = ctx.obj.registry()
    values = dict(ctx.params)
    # If the value of -O is missing, the parser leaves arguments after it in `ctx.args`.
    arguments = [
        argument for argument in ctx.command.params if isinstance(argument, click.Argument)
    ]
    values |= {
        argument.name or "": text for argument, text in zip(arguments, ctx.args, strict=False)
    }
    paths = [str(values[name]) for name in ("source", "out") if values.get(name)]
    for parameter in ctx.command.params:
        if not isinstance(parameter.type, OfferName):
            continue
        value = values.get(parameter.name or "") or parameter.get_default(ctx)
        # Without a value and a default, this is None or a sentinel of click.
        texts = [value] if isinstance(value, str) else value
        texts = texts if isinstance(texts, list | tuple) else []
        names = {name for text in texts for name in str(text).split(",")}
        for kind in parameter.type.kinds:
            for provided in registry.all(kind):
                if names and provided.name not in names:
                    continue
                if names or _fits_files(provided.offer, paths):
                    yield from options_of(provided.offer)


def _fits_files(offer: object, paths: list[str]) -> bool:
    """Return whether an offer has a suffix that matches a file on the command line.

    One matching file is sufficient; the case of file names is ignored. True if `paths` is empty,
    and for an offer without a format or suffixes.
    """
    suffixes = getattr(getattr(offer, "format", None), "suffixes", ())
    if not paths or not suffixes:
        return True
    return any(path.lower().endswith(suffix) for path in paths for suffix in suffixes)


def _list_values(ctx: click.Context, option: Option) -> list[str]:
    """Return the values of an option that can be enumerated, as texts.

    These are its choices without None, in their order; `true` and `false` for an option of type
    BOOL; for an option named `candidates`, the installed synthesizers in alphabetical order. Empty
    for all other options.
    """
    from hub_core.plugin_api.options import OptionType
    from hub_core.plugin_api.synthesis import Synthesizer

    if option.choices:
        return [str(choice) for choice in option.choices if choice is not None]
    if option.type is OptionType.BOOL:
        return ["true", "false"]
    if option.name == "candidates":
        return sorted(offer.name for offer in ctx.obj.registry().all(Synthesizer))
    return []
