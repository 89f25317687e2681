"""Find plugins through entry points and load them one at a time.

A broken plugin never prevents the loading of the others.
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
from hub_core.plugin_api import offers as hookspecs
from hub_core.plugin_api.offers import ENTRY_POINT_GROUP, HOOKS, PROJECT, Offer
from hub_core.registry.bind_options import attempt
from hub_core.registry.compatibility import (
    CORE_DISTRIBUTION,
    check_api_version,
    check_requirement,
    find_offer_defect,
)
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
"""Called with a plugin right before its import; returns None, or the reason to skip the plugin."""


@dataclass(frozen=True, slots=True)
class _UnloadedPlugin:
    """An entry point that is not loaded yet, with its plugin and its distribution."""

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
    """Load the core's offers and every installed plugin; return the registry.

    It has the core, then all plugins by name and distribution. A plugin that fails raises no
    error; the failure is its status. The first rule that applies excludes a plugin from
    import:

    - DISABLED: `use_plugins` is False, or its name or distribution is in `disabled` or in
      `COLLHUB_DISABLE_PLUGINS` (separated by commas) of `environment`, None for `os.environ`.
    - BROKEN: another plugin or the core has its name.
    - BROKEN: `admission`, called right before an import, returns a reason.

    Raises `UsageError` (`unknown-plugin`) for a name in `disabled` that is not installed;
    unknown names in the variable are ignored. Ctrl-C raises `KeyboardInterrupt` with the
    plugin.
    """
    candidates = _sort_candidates()
    known = sorted({name for c in candidates for name in (c.plugin.name, c.plugin.distribution)})
    canonical = {canonical_name(name) for name in known}
    for name in disabled:
        if canonical_name(name) not in canonical:
            installed = f"installed: {', '.join(known)}" if known else "none is installed"
            message = f"no plugin {name!r} is installed, so it cannot be disabled"
            cure = closest(name, known) or installed
            raise UsageError(message, cure=cure, code="unknown-plugin")
    variable = (os.environ if environment is None else environment).get(DISABLING_VARIABLE, "")
    switches = {name: f"by --disable-plugin {name}" for name in disabled}
    switches |= {
        name.strip(): f"by {DISABLING_VARIABLE}" for name in variable.split(",") if name.strip()
    }
    return _load_all(candidates, use_plugins, switches, admission)


_of_the_run: ContextVar[Registry | None] = ContextVar("registry of the run", default=None)


@contextmanager
def running_with(registry: Registry | None) -> Iterator[None]:
    """Let `run_registry` return `registry` within the body; None keeps the current one.

    The former one applies again afterwards, also after an exception. Other threads are not
    affected.
    """
    token = _of_the_run.set(registry or _of_the_run.get())
    try:
        yield
    finally:
        _of_the_run.reset(token)


def run_registry() -> Registry:
    """Return the registry of the run whose offer is being called.

    Plugins use it if they have no request, so that the settings of the run (disabled plugins,
    refused plugins) also apply to the offers that they call. Outside of a call: the result of
    `discover()`.
    """
    return _of_the_run.get() or discover()


@cache
def registry_from(settings: RegistrySettings) -> Registry:
    """Return the registry of this process for the settings of a run, built once per settings.

    It is meant for worker processes, which use the plugins of the run. The plugins
    installed in this process are discovered again. Plugins that the settings refuse or
    disable are not imported and have the same reasons as in the run. Names in the settings
    that are not installed are ignored.
    """
    refused = dict(settings.refused)
    return _load_all(
        _sort_candidates(),
        settings.use_plugins,
        dict(settings.disabled),
        lambda plugin: refused.get(plugin.name),
    )


def _sort_candidates() -> list[_UnloadedPlugin]:
    return sorted(_find_candidates(), key=lambda c: (c.plugin.name, c.plugin.distribution))


def _load_all(
    candidates: Sequence[_UnloadedPlugin],
    use_plugins: bool,
    switches: Mapping[str, str],
    admission: Admission,
) -> Registry:
    """Return the registry of the core and of all candidates; load those that are not excluded.

    The core is first, then come the candidates in the given order. The status of a candidate is
    that of the first rule that applies:

    1. DISABLED, if `use_plugins` is False, or if `switches` has the name of the plugin or of its
       distribution. `switches`: reason by name, in any spelling; names that no candidate has are
       ignored.
    2. BROKEN, if another candidate has the same name, even a disabled one, or if it is the core's
       name.
    3. The status of `_load`, which imports the plugin if `admission` returns no reason against it.

    The settings of the registry have `use_plugins`, `switches`, and the reasons of `admission` by
    name. Raises only the errors of `admission`, `KeyboardInterrupt`, and those of the core itself.
    """
    refused: dict[str, str] = {}

    def admit(plugin: Plugin) -> str | None:
        reason = admission(plugin)
        if reason:
            refused[plugin.name] = reason
        return reason

    occurrences = Counter(candidate.plugin.name for candidate in candidates)
    manager = _create_manager()
    plugins = [_load_core(manager)]
    for candidate in candidates:
        plugin = candidate.plugin
        names = {canonical_name(plugin.name), canonical_name(plugin.distribution)}
        reasons = [how for name, how in switches.items() if canonical_name(name) in names]
        reason = next(iter(reasons), None) if use_plugins else "by --no-plugins"
        if reason:
            plugins.append(_set_status(plugin, PluginState.DISABLED, reason))
        elif occurrences[plugin.name] > 1 or plugin.name == CORE_NAME:
            reason = _explain_shared_name(candidate, candidates)
            plugins.append(_set_status(plugin, PluginState.BROKEN, reason))
        else:
            plugins.append(_load(candidate, manager, admit))
    settings = RegistrySettings(use_plugins, tuple(switches.items()), tuple(refused.items()))
    return Registry(tuple(plugins), settings, registry_from)


@cache
def load_core_only() -> Registry:
    """Return a registry with only the core's offers, without discovery; created once."""
    return Registry(
        (_load_core(_create_manager()),), RegistrySettings(use_plugins=False), registry_from
    )


def _load_core(manager: pluggy.PluginManager) -> Plugin:
    from hub_core.registry import core_plugin as builtin

    unloaded = Plugin(
        CORE_NAME,
        CORE_DISTRIBUTION,
        __version__,
        builtin.__name__,
        PluginStatus(PluginState.LOADED),
    )
    return replace(unloaded, offers=_collect_offers(builtin, CORE_NAME, manager))


def _find_candidates() -> Iterator[_UnloadedPlugin]:
    """Yield the entry points of the hub's group, distribution by distribution in path order.

    A distribution without this group, or whose file of entry points cannot be read, is
    skipped. Of several installed copies that have the group, only the first one on
    `sys.path` counts; names are compared in canonical form, and distributions without a
    readable name have the common name `unknown`. If the entries of a distribution are
    malformed, one broken candidate with the reason is yielded instead of them.
    """
    seen: set[str] = set()
    for distribution in installed_distributions():
        # Read as text first, so that a malformed file of an unrelated distribution has no effect;
        # without `attempt`, which would double the time for a hundred distributions.
        try:
            text = distribution.entry_point_text()
        except (OSError, ValueError):
            continue
        if f"[{ENTRY_POINT_GROUP}]" not in text:
            continue
        name = attempt(partial(getattr, distribution, "name")).value or "unknown"
        if canonical_name(name) not in seen:
            seen.add(canonical_name(name))
            yield from _list_entry_points(name, distribution)


def _list_entry_points(name: str, distribution: Distribution) -> Iterator[_UnloadedPlugin]:
    version = attempt(lambda: distribution.version).value or ""
    tried = attempt(lambda: distribution.entry_points(ENTRY_POINT_GROUP))
    if tried.value is None:
        reason = f"its entry points are unreadable: {tried.reason}"
        status = PluginStatus(PluginState.BROKEN, reason)
        yield _UnloadedPlugin(Plugin(name, name, version, "", status), None, distribution)
    loaded = PluginStatus(PluginState.LOADED)
    for entry_point in tried.value or ():
        plugin = Plugin(entry_point.name, name, version, entry_point.value, loaded)
        yield _UnloadedPlugin(plugin, entry_point, distribution)


def _explain_shared_name(
    candidate: _UnloadedPlugin, candidates: Collection[_UnloadedPlugin]
) -> str:
    if candidate.plugin.name == CORE_NAME:
        return f"the name {CORE_NAME!r} is the core's own"
    owners = [c.plugin.distribution for c in candidates if c.plugin.name == candidate.plugin.name]
    return f"{' and '.join(owners)} both bring a plugin of this name; uninstall one"


def _load(
    candidate: _UnloadedPlugin, manager: pluggy.PluginManager, admission: Admission
) -> Plugin:
    """Return a plugin with the status of its import, and with its offers if it is LOADED.

    The first case that applies:

    1. The candidate has no entry point: the plugin is returned unchanged (it is BROKEN already).
    2. Its requirement on the core is not met: INCOMPATIBLE. Unreadable requirements count as met.
    3. `admission` returns a reason: BROKEN with this reason, without an import.
    4. The import runs out of memory: BROKEN.
    5. Otherwise the result of `_import_plugin`: BROKEN, INCOMPATIBLE or LOADED.

    Ctrl-C during the import raises `KeyboardInterrupt` that names the plugin. Errors of `admission`
    propagate; all other errors become a status.
    """
    plugin, entry_point = candidate.plugin, candidate.entry_point
    if entry_point is None:
        return plugin
    if reason := attempt(lambda: check_requirement(candidate.distribution)).value:
        return _set_status(plugin, PluginState.INCOMPATIBLE, reason)
    if reason := admission(plugin):
        return _set_status(plugin, PluginState.BROKEN, reason)
    try:
        return _import_plugin(plugin, entry_point, manager)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"{plugin} was being imported") from stop
    except MemoryError:
        # Commands that need less memory may continue without the plugin.
        reason = f"importing {entry_point.value}: not enough memory"
        return _set_status(plugin, PluginState.BROKEN, reason)


def _import_plugin(
    plugin: Plugin, entry_point: EntryPoint, manager: pluggy.PluginManager
) -> Plugin:
    """Return a plugin with its offers after importing it, or with the reason why that failed.

    The first status that applies, all but the last without offers:

    1. BROKEN with the reason, if the import raises an exception or exits.
    2. INCOMPATIBLE, if the API version of the plugin does not suit the core.
    3. BROKEN, if a hook fails, lacks `@hookimpl`, has an unknown name, or returns invalid offers.
    4. LOADED. The text of the status lists the output of import and hooks, and the non-daemon
       threads that they started and that still run. It is "" if there are none.

    Output is captured. `manager` is unchanged afterwards. Raises `KeyboardInterrupt` and
    `MemoryError`.
    """
    threads = set(threading.enumerate())
    imported = attempt(entry_point.load)
    if imported.reason is not None:
        return _set_status(
            plugin, PluginState.BROKEN, f"importing {entry_point.value}: {imported.reason}"
        )
    if reason := attempt(lambda: check_api_version(imported.value)).value:
        return _set_status(plugin, PluginState.INCOMPATIBLE, reason)
    collected = attempt(lambda: _collect_offers(imported.value, plugin.name, manager))
    if collected.value is None:
        return _set_status(plugin, PluginState.BROKEN, collected.reason or "")
    printed = (imported.printed + collected.printed).strip()
    oddities = [f"prints while it loads: {printed!r:.60}"] if printed else []
    for thread in set(threading.enumerate()) - threads:
        # The interpreter waits for non-daemon threads when it exits.
        oddities += [] if thread.daemon else [f"leaves the thread {thread.name!r:.60} behind"]
    status = PluginStatus(PluginState.LOADED, "; ".join(sorted(oddities)))
    return replace(plugin, offers=collected.value, status=status)


def _create_manager() -> pluggy.PluginManager:
    """Create a plugin manager of pluggy that knows the hooks of the hub, without plugins."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def _collect_offers(module: object, name: str, manager: pluggy.PluginManager) -> tuple[Offer, ...]:
    """Call every hook of one plugin, and return its offers in the order of `HOOKS`.

    Offers of one hook are in the order in which it returns them; a hook that the plugin does not
    define is skipped. The plugin is registered with `manager` only during the call, also if it
    fails; `manager` must have no other plugin. Raise `PluginError` for invalid offers and for hooks
    without `@hookimpl`, pluggy's error for an unknown hook, and any exception of a hook.
    """
    hooks = module
    if isinstance(module, ModuleType):
        # Only functions can be hooks. pluggy examines every attribute of an object, which takes
        # longer than calling the hooks.
        members = vars(module).items()
        functions = {key: value for key, value in members if isinstance(value, FunctionType)}
        hooks = SimpleNamespace(**functions)
    manager.register(hooks, name)
    try:
        manager.check_pending()
        return tuple(_call_hooks(module, manager))
    finally:
        # Defects of one plugin must not be attributed to the next one.
        manager.unregister(name=name)


def _call_hooks(module: object, manager: pluggy.PluginManager) -> Iterator[Offer]:
    """Call all hooks of the registered plugin and yield their offers, hook by hook.

    `module`: the plugin; a hook that it does not have is skipped. Raises `PluginError` for a
    function with the name of a hook but without `@hookimpl`, and for results that are no offers of
    this hook; offers of earlier hooks have been yielded by then.
    """
    for hook in HOOKS:
        caller = getattr(manager.hook, hook)
        if hasattr(module, hook) and not caller.get_hookimpls():
            raise PluginError(f"{hook} is not marked with @hookimpl")
        for implementation in caller.get_hookimpls():
            returned = implementation.function()
            if reason := find_offer_defect(hook, returned):
                raise PluginError(reason)
            yield from returned


def _set_status(plugin: Plugin, state: PluginState, reason: str) -> Plugin:
    return replace(plugin, status=PluginStatus(state, reason))
