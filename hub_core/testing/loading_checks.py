"""Conformance rules for loading a plugin, its descriptions and its requirements."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement

from hub_core.installed import Distribution, canonical_name, find_distribution, installed_version
from hub_core.plugin_api.options import resolve
from hub_core.registry.bind_options import reason_of
from hub_core.registry.compatibility import CORE_DISTRIBUTION, reference_of
from hub_core.testing import probe
from hub_core.testing.checked_plugin import CheckedPlugin, Skip, title

# Modules that take longer to import than all plugins together.
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
        "highspy",
        "sympy",
        "torch",
        "yaml",
    }
)


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
    """Describe the requirements of a distribution that this environment does not meet.

    There is one text per requirement; [] if all are met. Lines that cannot be parsed come
    first, then missing packages and wrong versions in the order of the metadata.
    Requirements of extras and those whose marker is false here are ignored. Pre-releases
    count as installed versions.
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


def loads_quietly(subject: CheckedPlugin) -> Iterator[str]:
    """The plugin loads without an error and without output."""
    if subject.plugin.status.reason:
        yield subject.plugin.status.reason


def offers_something(subject: CheckedPlugin) -> Iterator[str]:
    """At least one hook returns an offer, and every offer has a description and a unique name.

    Yields one text per problem, in this order:

    1. The plugin has no offers.
    2. An offer has no description, or only blanks. For a reader or writer, the description of its
       format counts. Offers are checked in the order of the plugin.
    3. Two offers of the same kind, of this or another plugin, have the same name. The text is that
       of `registry.clashes` if it contains the name of this plugin.
    """
    if not subject.plugin.offers:
        yield "no hook returns an offer; are the functions marked with @hookimpl?"
    for offer in subject.plugin.offers:
        # The description of a reader or writer is that of its format.
        described: object = getattr(offer, "format", offer)
        description = str(getattr(described, "description", ""))
        if not description.strip():
            yield f"{title(offer)} has no description"
    # A clash of names is reported for both plugins.
    plugin_name = f"{subject.plugin}"
    for clash in subject.registry.clashes():
        if plugin_name in clash:
            yield clash


def imports_lightly(subject: CheckedPlugin) -> Iterator[str]:
    """Loading the plugin in a new process imports no heavy module, such as numpy or yaml.

    The heavy modules are those of `HEAVY_MODULES`; each takes longer to import than all
    plugins together. Yields one text that lists all heavy modules imported.
    """
    imported = probe.imported_modules(subject.plugin.name)
    heavy = sorted(imported & HEAVY_MODULES)
    if heavy:
        cure = "import it in the function that needs it"
        yield f"loading the plugin imports {', '.join(heavy)}; {cure}"


def replaces_nothing(subject: CheckedPlugin) -> Iterator[str]:
    """Loading the plugin replaces or removes no function or class of Python or of the core.

    The plugin is loaded in a new process. Only modules that are loaded before the plugin
    are compared. Yields one text that lists all names replaced.
    """
    replaced = probe.replaced_names(subject.plugin.name)
    if replaced:
        cure = "wrap it where it is called"
        yield f"loading the plugin replaces {', '.join(replaced)}; {cure}"


def references_resolve(subject: CheckedPlugin) -> Iterator[str]:
    """Every `module:function` can be imported and called."""
    for offer in subject.plugin.offers:
        optional = (getattr(offer, field, "") for field in ("samples", "moves", "lines"))
        for reference in filter(None, (reference_of(offer), *optional)):
            try:
                function = resolve(reference)
            # BaseException: an import may also call sys.exit().
            except BaseException as error:
                yield f"{title(offer)}: {reference}: {reason_of(error)}"
                continue
            if not callable(function):
                kind = type(function).__name__
                yield f"{title(offer)}: {reference} is {kind}, not a function"


def requirements_are_met(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """The distribution requires `collhub`, and all its requirements are installed.

    For the core itself, only a `Skip` is yielded. Otherwise there is one text if the
    requirement on `collhub` is missing. One text follows per requirement that cannot be
    parsed, that is not installed or that has a wrong version. Requirements of extras,
    and those whose marker is false here, do not count. Raises `ModuleNotFoundError` if
    the distribution is not installed.
    """
    if subject.plugin.is_core:
        yield Skip("the core does not require itself")
        return
    distribution = find_distribution(subject.plugin.distribution)
    requirements = find_active_requirements(distribution)
    # Without it, an incompatible core is noticed only when the plugin fails.
    if CORE_DISTRIBUTION not in {canonical_name(requirement.name) for requirement in requirements}:
        requirement = f"a requirement on {CORE_DISTRIBUTION} with its versions (Requires-Dist)"
        yield f"{subject.plugin.distribution} lacks {requirement}"
    for requirement in find_unmet_requirements(distribution):
        yield f"requirement not met: {requirement}"
