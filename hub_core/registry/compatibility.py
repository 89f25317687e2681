"""Decide whether a plugin fits.

Its requirement on `collhub` before import, its API version after.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hub_core.installed import Distribution, canonical_name
from hub_core.plugin_api.hooks import API_VERSION
from hub_core.version import __version__

if TYPE_CHECKING:
    from packaging.requirements import Requirement

API_CONSTANT = "COLLHUB_PLUGIN_API"
CORE_DISTRIBUTION = "collhub"

_NAME = re.compile(r"\s*([A-Za-z0-9][\w.-]*)")
# `collhub>=0.1,<0.2`: nearly every requirement looks like this and needs no library to be judged.
_PLAIN_VERSION = re.compile(r"\d+(\.\d+)*\Z")
_PLAIN_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)\s*\Z")


def requirement_incompatibility(distribution: Distribution) -> str | None:
    """Why the `Requires-Dist` on the core excludes this core, or None.

    Reads metadata only, imports nothing of the plugin.
    """
    for line in distribution.requires:
        name = _NAME.match(line)
        if name is None or canonical_name(name[1]) != CORE_DISTRIBUTION:
            continue
        specifier = _unmet_specifier(line[name.end() :].strip(), line)
        if specifier:
            this = f"{CORE_DISTRIBUTION} {__version__}"
            return f"needs {CORE_DISTRIBUTION}{specifier}, this is {this}"
    return None


def api_incompatibility(plugin: object) -> str | None:
    """Why the API version that an imported plugin states does not fit, or None.

    The major number must be ours, the minor number at most ours: later minor versions only add.
    """
    stated = getattr(plugin, API_CONSTANT, None)
    ours = f"this core has API {API_VERSION[0]}.{API_VERSION[1]}"
    if stated is None:
        return f"states no {API_CONSTANT}; {ours}, write {API_CONSTANT} = {API_VERSION}"
    is_pair = isinstance(stated, tuple) and len(stated) == 2
    if not is_pair or not all(type(part) is int for part in stated):
        return f"{API_CONSTANT} is {stated!r:.60}, expected a pair of whole numbers; {ours}"
    major, minor = stated
    if major != API_VERSION[0] or minor > API_VERSION[1]:
        return f"needs plugin API {major}.{minor}; {ours}"
    return None


def _unmet_specifier(text: str, line: str) -> str:
    """The version specifier of a requirement on the core that this core does not meet, or ''."""
    clauses = [_PLAIN_CLAUSE.match(part) for part in text.split(",")]
    if not text or (all(clauses) and _PLAIN_VERSION.match(__version__)):
        pairs = [(match[1], match[2]) for match in clauses if match]
        if all(_holds(operator, version) for operator, version in pairs):
            return ""
        return ",".join(sorted(operator + version for operator, version in pairs))
    requirement = _parsed(line)
    if requirement is None or requirement.specifier.contains(__version__, prereleases=True):
        return ""
    return str(requirement.specifier)


def _holds(operator: str, version: str) -> bool:
    ours, theirs = _numbers(__version__), _numbers(version)
    width = max(len(ours), len(theirs))
    one = ours + (0,) * (width - len(ours))
    other = theirs + (0,) * (width - len(theirs))
    return {
        ">=": one >= other,
        "<=": one <= other,
        "==": one == other,
        "!=": one != other,
        "<": one < other,
        ">": one > other,
    }[operator]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _parsed(line: str) -> Requirement | None:
    """A requirement that applies here, or None."""
    # Imported here: most starts of the program meet plain requirements only.
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return None
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        return requirement
    return None
