"""Check plugins: the requirement on `collhub` before the import; API and offers afterwards."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from hub_core.installed import Distribution, canonical_name
from hub_core.plugin_api import Format, Layout, Option, OptionType, declared_options
from hub_core.plugin_api.offers import API_VERSION, OFFER_KINDS, Offer, kind_of
from hub_core.registry.bind_options import convert_value
from hub_core.version import __version__

if TYPE_CHECKING:
    from packaging.requirements import Requirement

API_CONSTANT = "COLLHUB_PLUGIN_API"

CORE_DISTRIBUTION = "collhub"

_REQUIREMENT_NAME = re.compile(r"\s*([A-Za-z0-9][\w.-]*)")

# `collhub>=0.1,<0.2`: nearly all requirements have this form, which needs no library.
_PLAIN_VERSION = re.compile(r"\d+(\.\d+)*\Z")

_PLAIN_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)\s*\Z")

_OFFER_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")

_NAME_RULE = "(lower-case letters, digits, '.', '_', '-')"

_SUFFIX = re.compile(r"\.\w")

_OPTION_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")


def check_requirement(distribution: Distribution) -> str | None:
    """Return why the distribution's requirements exclude this version of the core, or None.

    Every `Requires-Dist` on the distribution `collhub`, in any spelling of its name, counts; the
    first unmet one is the reason. None if there is no such requirement. Only metadata are read;
    nothing of the plugin is imported.
    """
    for line in distribution.requires:
        name = _REQUIREMENT_NAME.match(line)
        if name is None or canonical_name(name[1]) != CORE_DISTRIBUTION:
            continue
        specifier = _find_unmet_specifier(line[name.end() :].strip(), line)
        if specifier:
            this = f"{CORE_DISTRIBUTION} {__version__}"
            return f"needs {CORE_DISTRIBUTION}{specifier}, this is {this}"
    return None


def check_api_version(plugin: object) -> str | None:
    """Return why the API version of an imported plugin is incompatible, or None.

    The plugin declares it as COLLHUB_PLUGIN_API, a tuple of two integers. A missing or other value
    is incompatible. The major number must be equal to that of the core, and the minor number must
    not be larger.
    """
    declared = getattr(plugin, API_CONSTANT, None)
    ours = f"this core has API {API_VERSION[0]}.{API_VERSION[1]}"
    if declared is None:
        return f"states no {API_CONSTANT}; {ours}, write {API_CONSTANT} = {API_VERSION}"
    is_pair = isinstance(declared, tuple) and len(declared) == 2
    if not is_pair or not all(type(part) is int for part in declared):
        return f"{API_CONSTANT} is {declared!r:.60}, expected a pair of whole numbers; {ours}"
    major, minor = declared
    if major != API_VERSION[0] or minor > API_VERSION[1]:
        return f"needs plugin API {major}.{minor}; {ours}"
    return None


def reference_of(offer: Offer) -> str:
    """Return the text `module:function` that names the main function of an offer.

    The main function is the one that the hub calls to use the offer, such as the function
    that reads files for a reader. It is not imported here.
    """
    reference: str = getattr(offer, kind_of(offer).reference)
    return reference


def options_of(offer: Offer) -> tuple[Option, ...]:
    """Return the declared options of an offer, in the order of its record of options.

    () for kinds of offers without options, and for an offer that declares none.
    """
    record = getattr(offer, "options", None)
    return () if record is None else declared_options(record)


def find_offer_defect(hook: str, returned: object) -> str | None:
    """Return why the result of a hook is not a list of valid offers, or None.

    A tuple is accepted like a list. The defects are, in this order, and only the first one is
    returned: no list; an item that is not exactly of a type of this hook, or is not a valid offer;
    two offers of one kind with the same name. An empty list has no defect.
    """
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


def _find_unmet_specifier(text: str, line: str) -> str:
    """Return the version specifier of a requirement that this core does not satisfy, otherwise "".

    `line`: the full requirement, such as `collhub>=0.1,<0.2; marker`. `text`: the part after the
    name. A requirement that consists only of comparisons with numbers is compared here, if the
    version of the core has only numbers; missing numbers count as 0. If one comparison fails, all
    are returned, sorted and without spaces. Any other requirement is evaluated by `packaging`, with
    pre-releases allowed. The result is "" for a requirement that is invalid or whose marker
    excludes this environment.
    """
    clauses = [_PLAIN_CLAUSE.match(part) for part in text.split(",")]
    if not text or (all(clauses) and _PLAIN_VERSION.match(__version__)):
        pairs = [(match[1], match[2]) for match in clauses if match]
        if all(_compare_versions(operator, version) for operator, version in pairs):
            return ""
        return ",".join(sorted(operator + version for operator, version in pairs))
    requirement = _parse_requirement(line)
    if requirement is None or requirement.specifier.contains(__version__, prereleases=True):
        return ""
    return str(requirement.specifier)


def _compare_versions(operator: str, version: str) -> bool:
    ours, theirs = _parse_numbers(__version__), _parse_numbers(version)
    width = max(len(ours), len(theirs))
    our_version = ours + (0,) * (width - len(ours))
    their_version = theirs + (0,) * (width - len(theirs))
    return {
        ">=": our_version >= their_version,
        "<=": our_version <= their_version,
        "==": our_version == their_version,
        "!=": our_version != their_version,
        "<": our_version < their_version,
        ">": our_version > their_version,
    }[operator]


def _parse_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _parse_requirement(line: str) -> Requirement | None:
    """Parse a requirement of a distribution, as in its metadata (`numpy>=1.26; marker`).

    None if it is invalid, or if its marker excludes this environment or applies to an extra only.
    """
    # Imported here: most requirements need no parser.
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return None
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        return requirement
    return None


def _check_offer(offer: Offer) -> str | None:
    described = getattr(offer, "format", None)
    if described is not None:
        if reason := _check_format(described):
            return reason
    elif not _is_text(offer.name, _OFFER_NAME):
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
    if not _is_text(value.name, _OFFER_NAME):
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
