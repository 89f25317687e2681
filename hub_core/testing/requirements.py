"""What a distribution requires (`Requires-Dist`), and what of it is not met."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement

from hub_core.installed import Distribution, installed_version


def active_requirements(distribution: Distribution) -> Iterator[Requirement]:
    """Requirements that apply here, extras left out; a line that no tool can read is none."""
    for line in distribution.requires:
        requirement = _requirement(line)
        if requirement is None:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def unmet_requirements(distribution: Distribution) -> list[str]:
    """Requirements that the environment does not meet, one line each.

    A line that no tool can read is one of them.
    """
    unreadable = [line for line in distribution.requires if _requirement(line) is None]
    found = [f"{line!r:.80} (no tool can read it)" for line in unreadable]
    for requirement in active_requirements(distribution):
        installed = installed_version(requirement.name)
        if installed is None:
            found.append(f"{requirement} (not installed)")
        elif not requirement.specifier.contains(installed, prereleases=True):
            found.append(f"{requirement} (installed: {installed})")
    return found


def _requirement(line: str) -> Requirement | None:
    try:
        return Requirement(line)
    except InvalidRequirement:
        return None
