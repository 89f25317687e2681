"""Check that hooks return lists of valid offers of the right kinds."""

from __future__ import annotations

import re
from collections import Counter

from hub_core.plugin_api import Format, Layout, Option, OptionType, declared_options
from hub_core.plugin_api.offers import OFFER_KINDS, Offer, kind_of
from hub_core.registry.bind_options import convert_value

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
_NAME_RULE = "(lower-case letters, digits, '.', '_', '-')"
_SUFFIX = re.compile(r"\.\w")
_OPTION_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")


def reference_of(offer: Offer) -> str:
    """Return the reference `module:function` of an offer."""
    reference: str = getattr(offer, kind_of(offer).reference)
    return reference


def options_of(offer: Offer) -> tuple[Option, ...]:
    """Return the declared options of an offer; empty for kinds without options."""
    record = getattr(offer, "options", None)
    return () if record is None else declared_options(record)


def find_offer_defect(hook: str, returned: object) -> str | None:
    """Return the reason why the result of a hook is not a list of valid offers, or None."""
    allowed = [kind.type for kind in OFFER_KINDS if kind.hook == hook]
    if not isinstance(returned, list | tuple):
        return f"{hook} returned {type(returned).__name__}, expected a list"
    for item in returned:
        if type(item) not in allowed:
            expected = " or ".join(kind.__name__ for kind in allowed)
            return f"{hook} returned a list with {type(item).__name__}, expected {expected}"
        if reason := _check_offer(item):
            return f"{hook}: {reason}"
    counts = Counter((kind_of(item).noun, item.name) for item in returned)
    for (noun, name), count in counts.items():
        if count > 1:
            return f"{hook} returned two {noun}s named {name!r}"
    return None


def _check_offer(offer: Offer) -> str | None:
    described = getattr(offer, "format", None)
    if described is not None:
        if reason := _check_format(described):
            return reason
    elif not _is_text(offer.name, _NAME):
        return f"{offer.name!r:.60} is not a name {_NAME_RULE}"
    title = f"{kind_of(offer).noun} {offer.name}"
    if not _is_text(reference_of(offer), _REFERENCE):
        return f"{title}: {reference_of(offer)!r:.80} is not a reference 'module:function'"
    samples = getattr(offer, "samples", "")
    if samples and not _is_text(samples, _REFERENCE):
        return f"{title}: samples {samples!r:.80} is not a reference 'module:function'"
    try:
        options = options_of(offer)
    except TypeError as error:
        return f"{title}: its options are unusable: {error}"
    reason = next(filter(None, map(_check_option, options)), None)
    return f"{title}: {reason}" if reason else None


def _check_format(value: object) -> str | None:
    if not isinstance(value, Format):
        return f"format is {type(value).__name__}, expected Format"
    if not _is_text(value.name, _NAME):
        return f"format name {value.name!r:.60} is not a name {_NAME_RULE}"
    title, suffixes = f"format {value.name}", value.suffixes
    if not isinstance(suffixes, tuple) or not all(_is_text(suffix, _SUFFIX) for suffix in suffixes):
        return f"{title}: suffixes {suffixes!r:.80} are not a tuple of endings such as '.xml'"
    if not isinstance(value.layout, Layout):
        return f"{title}: layout {value.layout!r:.60} is not a Layout"
    try:
        re.compile(value.signature + b"")
    except (re.error, TypeError) as error:
        wrong = f"is not a regular expression of bytes ({error})"
        return f"{title}: signature {value.signature!r:.80} {wrong}"
    return None


def _check_option(option: Option) -> str | None:
    name, choices = option.name, option.choices
    if not _is_text(name, _OPTION_NAME):
        return f"option name {name!r:.60} is not lower-case letters, digits and '_'"
    if not isinstance(option.type, OptionType):
        return f"option {name}: type {option.type!r:.60} is not an OptionType"
    if not isinstance(option.help, str) or not option.help:
        return f"option {name} has no help"
    if not isinstance(choices, tuple) or not all(isinstance(choice, str) for choice in choices):
        return f"option {name}: choices are not a tuple of texts"
    if not isinstance(option.environment, str):
        return f"option {name}: environment is not the name of a variable"
    try:
        if option.default is not None:
            convert_value(option, option.default)
    except ValueError as error:
        return f"option {name}: the default {option.default!r:.60} {error}"
    return None


def _is_text(value: object, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.match(value) is not None
