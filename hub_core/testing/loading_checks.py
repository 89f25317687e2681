"""Checks on how a plugin loads and describes itself."""

from __future__ import annotations

from collections.abc import Iterator

from hub_core.installed import canonical_name, find_distribution
from hub_core.plugin_api.references import resolve
from hub_core.registry.border import reason_of
from hub_core.registry.compatibility import (
    CORE_DISTRIBUTION,
    active_requirements,
    unmet_requirements,
)
from hub_core.registry.descriptions import reference_of
from hub_core.testing import probe
from hub_core.testing.subject import Skip, Subject, title

HEAVY_MODULES = frozenset(
    {
        "google.protobuf",
        "jsonschema",
        "matplotlib",
        "networkx",
        "numba",
        "numpy",
        "ortools",
        "pandas",
        "scipy",
        "sympy",
        "torch",
        "yaml",
    }
)


def loads_quietly(subject: Subject) -> Iterator[str]:
    """The plugin loads and prints nothing meanwhile."""
    if subject.plugin.status.reason:
        yield subject.plugin.status.reason


def offers_something(subject: Subject) -> Iterator[str]:
    """At least one hook returns an offer, each with a description and a name of its own."""
    if not subject.plugin.offers:
        yield "no hook returns anything; are the functions marked with @hookimpl?"
    for offer in subject.plugin.offers:
        described: object = getattr(offer, "format", offer)
        if not str(getattr(described, "description", "")).strip():
            yield f"{title(offer)} has no description"
    yield from (clash for clash in subject.registry.clashes() if f"{subject.plugin}" in clash)


def imports_lightly(subject: Subject) -> Iterator[str]:
    """Loading the plugin, in a fresh process, imports no heavy module: listings must stay fast."""
    heavy = sorted(probe.imported_modules(subject.plugin.name) & HEAVY_MODULES)
    if heavy:
        cure = "import it in the function that needs it"
        yield f"loading the plugin imports {', '.join(heavy)}; {cure}"


def references_resolve(subject: Subject) -> Iterator[str]:
    """Every `module:function` can be imported and called."""
    for offer in subject.plugin.offers:
        for reference in filter(None, (reference_of(offer), getattr(offer, "samples", ""))):
            try:
                function = resolve(reference)
            except BaseException as error:  # An import may do anything.
                yield f"{title(offer)}: {reference}: {reason_of(error)}"
                continue
            if not callable(function):
                yield f"{title(offer)}: {reference} is {type(function).__name__}, not a function"


def requirements_are_met(subject: Subject) -> Iterator[str | Skip]:
    """The distribution requires `collhub`, and all that it requires is installed."""
    if subject.plugin.is_core:
        yield Skip("the core requires no core")
        return
    own = find_distribution(subject.plugin.distribution)
    if not any(
        canonical_name(requirement.name) == CORE_DISTRIBUTION
        for requirement in active_requirements(own)
    ):
        stated = f"which versions of {CORE_DISTRIBUTION} it works with (Requires-Dist)"
        yield f"{subject.plugin.distribution} does not state {stated}"
    yield from (f"requirement not met: {requirement}" for requirement in unmet_requirements(own))
