"""Check what hooks return: the right kinds of descriptions, with values that the hub can rely on."""

from __future__ import annotations

import re

from hub_core.plugin_api.contract import (
    AlgorithmPass,
    Executor,
    Format,
    FormatReader,
    FormatWriter,
    HealthCheck,
    Layout,
    LoadCheck,
    Option,
    OptionType,
    Simulator,
    Synthesizer,
    TopologyReader,
    WorkloadPass,
)
from hub_core.registry.bind_options import converted
from hub_core.registry.plugins import KINDS, Offer, name_of

OFFERS_BY_HOOK: dict[str, tuple[type[Offer], ...]] = {
    "collhub_producers": (FormatReader, Synthesizer),
    "collhub_consumers": (FormatWriter, Simulator, Executor, LoadCheck),
    "collhub_topologies": (TopologyReader,),
    "collhub_passes": (AlgorithmPass, WorkloadPass),
    "collhub_health_checks": (HealthCheck,),
}
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
_OPTION_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")
_REFERENCE_FIELDS: dict[type[Offer], str] = {
    FormatReader: "read",
    FormatWriter: "write",
    Synthesizer: "synthesize",
    Simulator: "simulate",
    Executor: "execute",
    LoadCheck: "check",
    TopologyReader: "read",
    AlgorithmPass: "run",
    WorkloadPass: "run",
    HealthCheck: "run",
}


def reference_of(offer: Offer) -> str:
    """The `module:function` behind an offer."""
    reference: str = getattr(offer, _REFERENCE_FIELDS[type(offer)])
    return reference


def offers_defect(hook: str, returned: object) -> str | None:
    """Why the value that a hook returned is not a list of usable descriptions, or None."""
    allowed = OFFERS_BY_HOOK[hook]
    if not isinstance(returned, list | tuple):
        return f"{hook} returned {type(returned).__name__}, expected a list"
    for item in returned:
        if type(item) not in allowed:
            expected = " or ".join(kind.__name__ for kind in allowed)
            return f"{hook} returned a list with {type(item).__name__}, expected {expected}"
        if reason := _offer_defect(item):
            return f"{hook}: {reason}"
    keys = [(type(item), name_of(item)) for item in returned]
    for kind, name in keys:
        if keys.count((kind, name)) > 1:
            return f"{hook} returned two {KINDS[kind]}s named {name!r}"
    return None


def _offer_defect(offer: Offer) -> str | None:
    if isinstance(offer, FormatReader | FormatWriter | TopologyReader):
        if reason := _format_defect(offer.format):
            return reason
    elif not _is_text(offer.name, _NAME):
        return f"{offer.name!r:.60} is not a name (lower-case letters, digits, '.', '_', '-')"
    title = f"{KINDS[type(offer)]} {name_of(offer)}"
    if not _is_text(reference_of(offer), _REFERENCE):
        return f"{title}: {reference_of(offer)!r:.80} is not a reference 'module:function'"
    if (
        isinstance(offer, FormatReader | TopologyReader)
        and offer.samples
        and not _is_text(offer.samples, _REFERENCE)
    ):
        return f"{title}: samples {offer.samples!r:.80} is not a reference 'module:function'"
    if isinstance(offer, HealthCheck):
        return None
    reason = _options_defect(offer.options)
    return f"{title}: {reason}" if reason else None


def _format_defect(given: object) -> str | None:
    if not isinstance(given, Format):
        return f"format is {type(given).__name__}, expected Format"
    if not _is_text(given.name, _NAME):
        return f"format name {given.name!r:.60} is not a name (lower-case letters, digits, '.', '_', '-')"
    if not isinstance(given.suffixes, tuple) or not all(
        isinstance(s, str) and re.match(r"\.\w", s) for s in given.suffixes
    ):
        return f"format {given.name}: suffixes {given.suffixes!r:.80} are not a tuple of endings such as '.xml'"
    if not isinstance(given.layout, Layout):
        return f"format {given.name}: layout {given.layout!r:.60} is not a Layout"
    try:
        re.compile(given.signature + b"")
    except (re.error, TypeError) as error:
        return f"format {given.name}: signature {given.signature!r:.80} is not a regular expression of bytes ({error})"
    return None


def _options_defect(options: object) -> str | None:
    if not isinstance(options, tuple) or not all(isinstance(option, Option) for option in options):
        return f"options {options!r:.80} are not a tuple of Option"
    names = [option.name for option in options]
    if len(set(names)) < len(names):
        return "two options have one name"
    return next(filter(None, map(_option_defect, options)), None)


def _option_defect(option: Option) -> str | None:
    if not _is_text(option.name, _OPTION_NAME):
        return f"option name {option.name!r:.60} is not lower-case letters, digits and '_'"
    if not isinstance(option.type, OptionType):
        return f"option {option.name}: type {option.type!r:.60} is not an OptionType"
    if not isinstance(option.help, str) or not option.help:
        return f"option {option.name} has no help"
    if not isinstance(option.choices, tuple) or not all(
        isinstance(choice, str) for choice in option.choices
    ):
        return f"option {option.name}: choices are not a tuple of texts"
    if not isinstance(option.environment, str):
        return f"option {option.name}: environment is not the name of a variable"
    try:
        if option.default is not None:
            converted(option, option.default)
    except ValueError as error:
        return f"option {option.name}: the default {option.default!r:.60} {error}"
    return None


def _is_text(value: object, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.match(value) is not None
