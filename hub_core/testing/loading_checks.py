"""Checks on how a plugin loads and describes itself."""

from __future__ import annotations

from collections.abc import Iterator

from hub_core.installed import canonical_name, find_distribution
from hub_core.plugin_api.references import Reference, resolve
from hub_core.registry.border import reason_of
from hub_core.registry.compatibility import CORE_DISTRIBUTION
from hub_core.registry.descriptions import reference_of
from hub_core.testing import probe
from hub_core.testing.checked_plugin import CheckedPlugin, Skip, title
from hub_core.testing.requirements import active_requirements, unmet_requirements

# What takes longer to import than all plugins together.
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


def loads_quietly(subject: CheckedPlugin) -> Iterator[str]:
    """The plugin loads and prints nothing meanwhile."""
    if subject.plugin.status.reason:
        yield subject.plugin.status.reason


def offers_something(subject: CheckedPlugin) -> Iterator[str]:
    """At least one hook returns an offer, each with a description and a name of its own."""
    if not subject.plugin.offers:
        yield "no hook returns anything; are the functions marked with @hookimpl?"
    for offer in subject.plugin.offers:
        # Readers and writers are described by their format.
        described: object = getattr(offer, "format", offer)
        description = str(getattr(described, "description", ""))
        if not description.strip():
            yield f"{title(offer)} has no description"
    own_name = f"{subject.plugin}"
    # Two plugins with one name are both at fault: each of them is told.
    for clash in subject.registry.clashes():
        if own_name in clash:
            yield clash


def imports_lightly(subject: CheckedPlugin) -> Iterator[str]:
    """Loading the plugin, in a fresh process, imports no heavy module: listings must stay fast."""
    imported = probe.imported_modules(subject.plugin.name)
    heavy = sorted(imported & HEAVY_MODULES)
    if heavy:
        cure = "import it in the function that needs it"
        yield f"loading the plugin imports {', '.join(heavy)}; {cure}"


def replaces_nothing(subject: CheckedPlugin) -> Iterator[str]:
    """Loading the plugin, in a fresh process, replaces no function of Python or of the core."""
    replaced = probe.replaced_names(subject.plugin.name)
    if replaced:
        cure = "wrap it where it is called"
        yield f"loading the plugin replaces {', '.join(replaced)}; {cure}"


def references_resolve(subject: CheckedPlugin) -> Iterator[str]:
    """Every `module:function` can be imported and called."""
    for offer in subject.plugin.offers:
        others = (getattr(offer, field, "") for field in ("samples", "moves", "lines"))
        stated = (reference_of(offer), *others)
        # Samples, lists of moves and lines may be left out.
        for reference in filter(None, stated):
            problem = _reference_problem(reference)
            if problem:
                yield f"{title(offer)}: {reference}{problem}"


def _reference_problem(reference: Reference) -> str:
    """What is wrong with a reference, as what follows it in a message; empty for nothing."""
    try:
        function = resolve(reference)
    # An import may do anything, and exit as well.
    except BaseException as error:
        return f": {reason_of(error)}"
    if callable(function):
        return ""
    return f" is {type(function).__name__}, not a function"


def requirements_are_met(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """The distribution requires `collhub`, and all that it requires is installed."""
    if subject.plugin.is_core:
        yield Skip("the core requires no core")
        return
    own = find_distribution(subject.plugin.distribution)
    required = {canonical_name(requirement.name) for requirement in active_requirements(own)}
    # Without it, a plugin made for another core is found out only when it breaks.
    if CORE_DISTRIBUTION not in required:
        stated = f"which versions of {CORE_DISTRIBUTION} it works with (Requires-Dist)"
        yield f"{subject.plugin.distribution} does not state {stated}"
    for requirement in unmet_requirements(own):
        yield f"requirement not met: {requirement}"
