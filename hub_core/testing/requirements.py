"""Find the active and the unmet requirements (`Requires-Dist`) of a distribution."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement

from hub_core.installed import Distribution, installed_version


def find_active_requirements(distribution: Distribution) -> Iterator[Requirement]:
    """Yield the requirements whose markers hold in this environment.

    Requirements of extras and lines that cannot be parsed are omitted.
    """
    for line in distribution.requires:
        requirement = _parse_requirement(line)
        if requirement is None:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def find_unmet_requirements(distribution: Distribution) -> list[str]:
    """Describe the requirements that this environment does not meet, one text each.

    Lines that cannot be parsed come first; then missing packages and wrong versions in order.
    """
    unreadable = [line for line in distribution.requires if _parse_requirement(line) is None]
    unmet = [f"{line!r:.80} (no tool can read it)" for line in unreadable]
    for requirement in find_active_requirements(distribution):
        installed = installed_version(requirement.name)
        if installed is None:
            unmet.append(f"{requirement} (not installed)")
        elif not requirement.specifier.contains(installed, prereleases=True):
            unmet.append(f"{requirement} (installed: {installed})")
    return unmet


def _parse_requirement(line: str) -> Requirement | None:
    """Parse a requirement; None if it is invalid."""
    try:
        return Requirement(line)
    except InvalidRequirement:
        return None
