"""Check the compatibility of plugins:

the requirement on `collhub` before the import, the API after.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hub_core.installed import Distribution, canonical_name
from hub_core.plugin_api.offers import API_VERSION
from hub_core.version import __version__

if TYPE_CHECKING:
    from packaging.requirements import Requirement

API_CONSTANT = "COLLHUB_PLUGIN_API"
CORE_DISTRIBUTION = "collhub"

_NAME = re.compile(r"\s*([A-Za-z0-9][\w.-]*)")
# `collhub>=0.1,<0.2`: nearly all requirements have this form, which needs no library.
_PLAIN_VERSION = re.compile(r"\d+(\.\d+)*\Z")
_PLAIN_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)\s*\Z")


def check_requirement(distribution: Distribution) -> str | None:
    """Return the reason why `Requires-Dist` excludes this version of the core, or None.

    Only metadata is read; nothing of the plugin is imported.
    """
    for line in distribution.requires:
        name = _NAME.match(line)
        if name is None or canonical_name(name[1]) != CORE_DISTRIBUTION:
            continue
        specifier = _find_unmet_specifier(line[name.end() :].strip(), line)
        if specifier:
            this = f"{CORE_DISTRIBUTION} {__version__}"
            return f"needs {CORE_DISTRIBUTION}{specifier}, this is {this}"
    return None


def check_api_version(plugin: object) -> str | None:
    """Return the reason why the API version of an imported plugin is incompatible, or None.

    The major number must equal that of the core, and the minor number must not be larger: minor
    versions only add to the API.
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


def _find_unmet_specifier(text: str, line: str) -> str:
    """Return the version specifier of a requirement that this core does not satisfy, or ''."""
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
    """Parse a requirement; None if it is invalid or its marker excludes this environment."""
    # Imported here: most requirements need no parser.
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return None
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        return requirement
    return None
