"""Find plugins through entry points and load them one at a time.

One broken plugin never stops the others.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, partial
from types import FunctionType, ModuleType, SimpleNamespace

import pluggy

from hub_core.installed import Distribution, EntryPoint, canonical_name, installed_distributions
from hub_core.model.diagnostics import PluginError, UsageError, closest
from hub_core.plugin_api import hooks as hookspecs
from hub_core.plugin_api.hooks import ENTRY_POINT_GROUP, PROJECT
from hub_core.plugin_api.offers import HOOKS, Offer
from hub_core.registry.border import attempt
from hub_core.registry.compatibility import (
    CORE_DISTRIBUTION,
    api_incompatibility,
    requirement_incompatibility,
)
from hub_core.registry.descriptions import offers_defect
from hub_core.registry.plugins import (
    CORE_NAME,
    Plugin,
    PluginState,
    PluginStatus,
    Registry,
    RegistrySettings,
)
from hub_core.version import __version__

DISABLING_VARIABLE = "COLLHUB_DISABLE_PLUGINS"
Admission = Callable[[Plugin], str | None]
"""Told of a plugin right before it is imported; a reason that it returns keeps the plugin out."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An entry point that is not loaded yet."""

    plugin: Plugin
    entry_point: EntryPoint | None
    distribution: Distribution


def discover(
    *,
    use_plugins: bool = True,
    disabled: Collection[str] = (),
    environment: Mapping[str, str] | None = None,
    admission: Admission = lambda plugin: None,
) -> Registry:
    """Load the core's formats and every installed plugin.

    Whatever a plugin does becomes its status.

    `disabled`: plugin or distribution names, to which the comma-separated names in
    `COLLHUB_DISABLE_PLUGINS` are added (`environment`, by default the process's). Raises
    `UsageError` for a name in `disabled` that no plugin has; a name in the variable may lack one.
    A `KeyboardInterrupt` names the plugin that was being imported.
    """
    candidates = _sorted_candidates()
    _check_names(disabled, candidates)
    variable = (os.environ if environment is None else environment).get(DISABLING_VARIABLE, "")
    switches = {name: f"by --disable-plugin {name}" for name in disabled}
    switches |= {
        name.strip(): f"by {DISABLING_VARIABLE}" for name in variable.split(",") if name.strip()
    }
    return _registry_of(candidates, use_plugins, switches, admission)


_of_the_run: ContextVar[Registry | None] = ContextVar("registry of the run", default=None)


@contextmanager
def running_with(registry: Registry | None) -> Iterator[None]:
    """Make `registry`, unless it is None, the one that `run_registry` returns in the body."""
    token = _of_the_run.set(registry or _of_the_run.get())
    try:
        yield
    finally:
        _of_the_run.reset(token)


def run_registry() -> Registry:
    """The registry of the run whose offer is being called.

    Plugins use it where no request carries it: so the settings of the run (disabled plugins,
    plugins that are not admitted) hold for all that they call. Outside of any call: what
    `discover()` returns.
    """
    return _of_the_run.get() or discover()


@cache
def registry_from(settings: RegistrySettings) -> Registry:
    """The registry of this process for the settings of a run; built once for equal settings.

    Names of plugins that are not installed here are ignored.
    """
    refused = dict(settings.refused)
    return _registry_of(
        _sorted_candidates(),
        settings.use_plugins,
        dict(settings.disabled),
        lambda plugin: refused.get(plugin.name),
    )


def _sorted_candidates() -> list[_Candidate]:
    return sorted(_candidates(), key=lambda c: (c.plugin.name, c.plugin.distribution))


def _registry_of(
    candidates: Sequence[_Candidate],
    use_plugins: bool,
    switches: Mapping[str, str],
    admission: Admission,
) -> Registry:
    """Load the candidates that are neither disabled (`switches`: reasons by name) nor refused."""
    refused: dict[str, str] = {}

    def admit(plugin: Plugin) -> str | None:
        reason = admission(plugin)
        if reason:
            refused[plugin.name] = reason
        return reason

    occurrences = Counter(candidate.plugin.name for candidate in candidates)
    manager = _manager()
    plugins = [_core(manager)]
    for candidate in candidates:
        reason = _disabled_reason(candidate.plugin, switches) if use_plugins else "by --no-plugins"
        if reason:
            plugins.append(_with_status(candidate.plugin, PluginState.DISABLED, reason))
        elif occurrences[candidate.plugin.name] > 1 or candidate.plugin.name == CORE_NAME:
            reason = _shared_name(candidate, candidates)
            plugins.append(_with_status(candidate.plugin, PluginState.BROKEN, reason))
        else:
            plugins.append(_load(candidate, manager, admit))
    settings = RegistrySettings(use_plugins, tuple(switches.items()), tuple(refused.items()))
    return Registry(tuple(plugins), settings, registry_from)


@cache
def core_alone() -> Registry:
    """The core's own offers, without a look at what is installed; made once."""
    return Registry((_core(_manager()),), RegistrySettings(use_plugins=False), registry_from)


def _core(manager: pluggy.PluginManager) -> Plugin:
    from hub_core.registry import core_plugin as builtin

    unloaded = Plugin(
        CORE_NAME,
        CORE_DISTRIBUTION,
        __version__,
        builtin.__name__,
        PluginStatus(PluginState.LOADED),
    )
    return replace(unloaded, offers=_offers(builtin, CORE_NAME, manager))


def _candidates() -> Iterator[_Candidate]:
    """Entry points of the group; a distribution in several folders counts where Python finds it."""
    seen: set[str] = set()
    for distribution in installed_distributions():
        # Read as text first: a malformed file of an unrelated distribution must not matter.
        if f"[{ENTRY_POINT_GROUP}]" not in _entry_point_text(distribution):
            continue
        name = attempt(partial(_name, distribution)).value or "unknown"
        if canonical_name(name) not in seen:
            seen.add(canonical_name(name))
            yield from _candidates_of(name, distribution)


def _entry_point_text(distribution: Distribution) -> str:
    """The file of entry points, empty where it cannot be read."""
    # Not `attempt`, which takes as long as the reading, for a hundred distributions.
    try:
        return distribution.entry_point_text()
    except (OSError, ValueError):
        return ""


def _name(distribution: Distribution) -> str:
    return distribution.name


def _candidates_of(name: str, distribution: Distribution) -> Iterator[_Candidate]:
    version = attempt(lambda: distribution.version).value or ""
    tried = attempt(lambda: distribution.entry_points(ENTRY_POINT_GROUP))
    if tried.value is None:
        reason = f"its entry points are unreadable: {tried.reason}"
        status = PluginStatus(PluginState.BROKEN, reason)
        yield _Candidate(Plugin(name, name, version, "", status), None, distribution)
    loaded = PluginStatus(PluginState.LOADED)
    for entry_point in tried.value or ():
        plugin = Plugin(entry_point.name, name, version, entry_point.value, loaded)
        yield _Candidate(plugin, entry_point, distribution)


def _check_names(disabled: Collection[str], candidates: Collection[_Candidate]) -> None:
    known = sorted({name for c in candidates for name in (c.plugin.name, c.plugin.distribution)})
    canonical = {canonical_name(name) for name in known}
    for name in disabled:
        if canonical_name(name) not in canonical:
            cure = closest(name, known) or (
                f"installed: {', '.join(known)}" if known else "none is installed"
            )
            raise UsageError(
                f"no plugin {name!r} is installed, so it cannot be disabled",
                cure=cure,
                code="unknown-plugin",
            )


def _disabled_reason(plugin: Plugin, switches: Mapping[str, str]) -> str | None:
    own = {canonical_name(plugin.name), canonical_name(plugin.distribution)}
    return next((how for name, how in switches.items() if canonical_name(name) in own), None)


def _shared_name(candidate: _Candidate, candidates: Collection[_Candidate]) -> str:
    if candidate.plugin.name == CORE_NAME:
        return f"the name {CORE_NAME!r} is the core's own"
    owners = [c.plugin.distribution for c in candidates if c.plugin.name == candidate.plugin.name]
    return f"{' and '.join(owners)} both bring a plugin of this name; uninstall one"


def _load(candidate: _Candidate, manager: pluggy.PluginManager, admission: Admission) -> Plugin:
    """Import a plugin that the core's version suits and that is admitted."""
    plugin, entry_point = candidate.plugin, candidate.entry_point
    if entry_point is None:
        return plugin
    if reason := attempt(lambda: requirement_incompatibility(candidate.distribution)).value:
        return _with_status(plugin, PluginState.INCOMPATIBLE, reason)
    if reason := admission(plugin):
        return _with_status(plugin, PluginState.BROKEN, reason)
    try:
        return _imported(plugin, entry_point, manager)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"{plugin} was being imported") from stop
    except MemoryError:
        # Commands that need less may go on without the plugin.
        reason = f"importing {entry_point.value}: not enough memory"
        return _with_status(plugin, PluginState.BROKEN, reason)


def _imported(plugin: Plugin, entry_point: EntryPoint, manager: pluggy.PluginManager) -> Plugin:
    """Import a plugin, and ask it what it offers."""
    threads = set(threading.enumerate())
    imported = attempt(entry_point.load)
    if imported.reason is not None:
        return _with_status(
            plugin, PluginState.BROKEN, f"importing {entry_point.value}: {imported.reason}"
        )
    if reason := attempt(lambda: api_incompatibility(imported.value)).value:
        return _with_status(plugin, PluginState.INCOMPATIBLE, reason)
    asked = attempt(lambda: _offers(imported.value, plugin.name, manager))
    if asked.value is None:
        return _with_status(plugin, PluginState.BROKEN, asked.reason or "")
    printed = (imported.printed + asked.printed).strip()
    oddities = [f"prints while it loads: {printed!r:.60}"] if printed else []
    for thread in set(threading.enumerate()) - threads:
        # The interpreter ends only after these.
        oddities += [] if thread.daemon else [f"leaves the thread {thread.name!r:.60} behind"]
    status = PluginStatus(PluginState.LOADED, "; ".join(sorted(oddities)))
    return replace(plugin, offers=asked.value, status=status)


def _manager() -> pluggy.PluginManager:
    """A plugin manager that knows the hooks, and no plugin."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def _offers(module: object, name: str, manager: pluggy.PluginManager) -> tuple[Offer, ...]:
    """Call every hook of one plugin, the only one that the manager has meanwhile.

    Raises `PluginError` for values that are no usable descriptions, and whatever the hooks raise.
    """
    manager.register(_functions(module), name)
    try:
        manager.check_pending()
        return tuple(_asked(module, manager))
    finally:
        # What one plugin does wrong must not be told of the next.
        manager.unregister(name=name)


def _functions(module: object) -> object:
    """The functions of a module, the only attributes that can be hooks.

    pluggy looks at every attribute of what it is given, which takes longer than to call the hooks.
    """
    if not isinstance(module, ModuleType):
        return module
    return SimpleNamespace(
        **{name: value for name, value in vars(module).items() if isinstance(value, FunctionType)}
    )


def _asked(module: object, manager: pluggy.PluginManager) -> Iterator[Offer]:
    """What the hooks of the registered plugin return, hook by hook."""
    for hook in HOOKS:
        caller = getattr(manager.hook, hook)
        if hasattr(module, hook) and not caller.get_hookimpls():
            raise PluginError(f"{hook} is not marked with @hookimpl")
        for implementation in caller.get_hookimpls():
            returned = implementation.function()
            if reason := offers_defect(hook, returned):
                raise PluginError(reason)
            yield from returned


def _with_status(plugin: Plugin, state: PluginState, reason: str) -> Plugin:
    return replace(plugin, status=PluginStatus(state, reason))
