"""Decide whether a plugin fits this core: its requirement on `collhub` before import, its API version after."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from hub_core.plugin_api.contract import API_VERSION
from hub_core.registry.metadata import Distribution, installed_version
from hub_core.version import __version__

API_CONSTANT = "COLLHUB_PLUGIN_API"
CORE_DISTRIBUTION = "collhub"


def requirement_incompatibility(distribution: Distribution) -> str | None:
    """Why the `Requires-Dist` on the core excludes this core, or None. Reads metadata only, imports nothing."""
    for requirement in active_requirements(distribution):
        if canonicalize_name(requirement.name) != CORE_DISTRIBUTION:
            continue
        if not requirement.specifier.contains(__version__, prereleases=True):
            return f"needs {CORE_DISTRIBUTION}{requirement.specifier}, this is {CORE_DISTRIBUTION} {__version__}"
    return None


def api_incompatibility(plugin: object) -> str | None:
    """Why the API version that an imported plugin states does not fit, or None.

    The major number must be ours, the minor number at most ours: later minor versions only add.
    """
    stated = getattr(plugin, API_CONSTANT, None)
    ours = f"this core has API {API_VERSION[0]}.{API_VERSION[1]}"
    if stated is None:
        return f"states no {API_CONSTANT}; {ours}, write {API_CONSTANT} = {API_VERSION}"
    if not (
        isinstance(stated, tuple) and len(stated) == 2 and all(type(part) is int for part in stated)
    ):
        return f"{API_CONSTANT} is {stated!r:.60}, expected a pair of whole numbers; {ours}"
    major, minor = stated
    if major != API_VERSION[0] or minor > API_VERSION[1]:
        return f"needs plugin API {major}.{minor}; {ours}"
    return None


def unmet_requirements(distribution: Distribution) -> list[str]:
    """Requirements of a distribution that the running environment does not meet, one line each."""
    found = []
    for requirement in active_requirements(distribution):
        installed = installed_version(requirement.name)
        if installed is None:
            found.append(f"{requirement} (not installed)")
        elif not requirement.specifier.contains(installed, prereleases=True):
            found.append(f"{requirement} (installed: {installed})")
    return found


def active_requirements(distribution: Distribution) -> Iterable[Requirement]:
    """Requirements that apply here, extras left out. A line that no tool can read constrains nothing."""
    for line in distribution.requires or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement
