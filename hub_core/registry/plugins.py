"""The plugins of one run and their offers, looked up by kind and name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pickle import PicklingError
from typing import Generic, TypeVar, cast

from hub_core.installed import canonical_name
from hub_core.model.diagnostics import HubError, PluginError, UsageError, closest
from hub_core.plugin_api.offers import OFFER_KINDS, Offer, kind_of, noun_of

T = TypeVar("T", bound=Offer)
T_co = TypeVar("T_co", bound=Offer, covariant=True)


class PluginState(StrEnum):
    """Outcome of loading a plugin.

    DISABLED: by the user. INCOMPATIBLE: made for another version of the core. BROKEN: it failed.
    """

    LOADED = "loaded"
    DISABLED = "disabled"
    INCOMPATIBLE = "incompatible"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """The outcome of loading a plugin.

    `reason`: why it is not loaded, or an anomaly of a loaded plugin.
    """

    state: PluginState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin: name of its entry point, its distribution, its status and its offers.

    `module`: value of the entry point. The core's own offers belong to the plugin named `core`.
    """

    name: str
    distribution: str
    version: str
    module: str
    status: PluginStatus
    offers: tuple[Offer, ...] = ()

    @property
    def is_core(self) -> bool:
        """Whether this is the core itself, whose failures are bugs of the hub."""
        return self.name == CORE_NAME

    def __str__(self) -> str:
        origin = " ".join(filter(None, (self.distribution, self.version)))
        return f"plugin {self.name} ({origin})" if origin else f"plugin {self.name}"


CORE_NAME = "core"


@dataclass(frozen=True, slots=True)
class Provided(Generic[T_co]):
    """An offer with its plugin, and the registry in which it was looked up."""

    plugin: Plugin
    offer: T_co
    registry: Registry | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name of the offer."""
        return self.offer.name


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Settings by which a registry was built, to rebuild it in another process.

    `disabled`: (plugin or distribution name, reason). `refused`: (plugin name, reason) of plugins
    that were not admitted.
    """

    use_plugins: bool = True
    disabled: tuple[tuple[str, str], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Registry:
    """All plugins, loaded or not: the core, then the others by name. Built by `discovery.discover`.

    `settings`: settings of the run. A registry is pickled as its settings; the process that
    unpickles it calls `rebuild`, which discovers the plugins of that process. A registry built by
    hand has neither and cannot be pickled.
    """

    plugins: tuple[Plugin, ...]
    settings: RegistrySettings | None = field(default=None, compare=False)
    rebuild: Callable[[RegistrySettings], Registry] | None = field(
        default=None, repr=False, compare=False
    )
    # The offers of each kind asked for so far: plugins do not change.
    _of_kind: dict[type, tuple[Provided[Offer], ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __reduce__(self) -> tuple[Callable[[RegistrySettings], Registry], tuple[RegistrySettings]]:
        if self.settings is None or self.rebuild is None:
            raise PicklingError("a registry without settings cannot be sent to another process")
        return self.rebuild, (self.settings,)

    def all(self, kind: type[T]) -> tuple[Provided[T], ...]:
        """Return all offers of a kind, ordered by name, including several offers of one name.

        Offers of subclasses of the kind are included. Offers with equal names are in the order
        of the plugins, the core first. Plugins that are not loaded have no offers. The result
        is empty if no plugin offers the kind.
        """
        if kind not in self._of_kind:
            provided_offers: list[Provided[Offer]] = []
            for plugin in self.plugins:
                offers = [offer for offer in plugin.offers if isinstance(offer, kind)]
                provided_offers += [Provided(plugin, offer, self) for offer in offers]
            self._of_kind[kind] = tuple(sorted(provided_offers, key=lambda one: one.name))
        return cast("tuple[Provided[T], ...]", self._of_kind[kind])

    def find(self, kind: type[T], name: str) -> Provided[T]:
        """Return the only offer of this kind (or of a subclass) with this name; case counts.

        Raises `PluginError` (`name-clash`) if several offers have the name; the cure is to disable
        a plugin. If no offer has the name, the message lists the plugins that are not loaded, with
        reasons. The known names are those of all loaded offers of the kind.

        - Raises `PluginError` (`not-available`) if some plugin is not loaded, and `name` contains
          that plugin's name or is close to no known name.
        - Otherwise raises `UsageError` (`unknown-name`). The cure names the closest known name. If
          none is close, it lists all known names. If there are none, it states that no installed
          plugin offers one.
        """
        matches = [provided for provided in self.all(kind) if provided.name == name]
        if len(matches) == 1:
            return matches[0]
        if matches:
            switches = [
                f"--disable-plugin {p.plugin.name}" for p in matches if not p.plugin.is_core
            ]
            cure = f"choose one with {' or '.join(switches)}"
            raise PluginError(_describe_clash(matches), cure=cure, code="name-clash")
        known = sorted({provided.name for provided in self.all(kind)})
        everything = f"known: {', '.join(known)}" if known else "no installed plugin offers one"
        message = f"there is no {noun_of(kind)} {name!r}"
        raise self.unknown_name(message, name, known, everything)

    def clashes(self) -> list[str]:
        """Return one line for each name that several loaded offers of one kind have, else [].

        A line names the plugins, the kind and the offer. The lines are in the order of
        `OFFER_KINDS`, then of the names. A line that occurs for two kinds (one is a subclass of
        the other) is returned once. Offers of unrelated kinds may have the same name.
        """
        lines = []
        for kind in OFFER_KINDS:
            offers: tuple[Provided[Offer], ...] = self.all(kind.type)
            counts = Counter(provided.name for provided in offers)
            for name in sorted(name for name, count in counts.items() if count > 1):
                lines.append(_describe_clash([p for p in offers if p.name == name]))
        # A kind may be a subclass of another kind.
        return list(dict.fromkeys(lines))

    def unavailable(self) -> tuple[Plugin, ...]:
        """Return the plugins that are installed but not loaded."""
        return tuple(
            plugin for plugin in self.plugins if plugin.status.state is not PluginState.LOADED
        )

    def unavailable_hint(self) -> str:
        """List all plugins that are not loaded, with reasons, in one clause.

        Empty if all are loaded.
        """
        return "; ".join(
            f"{plugin} is {plugin.status.state}: {plugin.status.reason}"
            for plugin in self.unavailable()
        )

    def unknown_name(
        self,
        message: str,
        name: str,
        known: Sequence[str],
        everything: str,
        code: str = "unknown-name",
    ) -> HubError:
        """Create the error for a name that no loaded offer has; the caller raises it.

        The text is `message`, followed by all plugins that are not loaded, with reasons, if there
        are any. The first rule that applies gives the error:

        1. Some plugin is not loaded, and its name is contained in `name` (case and `-`, `_`, `.` do
           not matter): `PluginError` (`not-available`). Its cure refers to `collhub plugins list`.
        2. Some plugin is not loaded, and none of the `known` names is close to `name` (`closest`):
           the same error.
        3. Otherwise a `UsageError` with `code`. Its cure is the closest of the `known` names, or
           `everything` if none is close.
        """
        close = closest(name, known)
        hint = self.unavailable_hint()
        # A format is often named after its plugin; then the name is not misspelt, but the plugin is
        # missing.
        is_namesake = any(
            canonical_name(plugin.name) in canonical_name(name) for plugin in self.unavailable()
        )
        if hint and (is_namesake or not close):
            cure = "see 'collhub plugins list'"
            return PluginError(f"{message}; {hint}", cure=cure, code="not-available")
        message = f"{message}; {hint}" if hint else message
        return UsageError(message, cure=close or everything, code=code)

    def plugin(self, name: str) -> Plugin:
        """Return the plugin whose entry-point name or distribution name is `name`.

        Case and `-`, `_`, `.` do not matter. Of several, the first one in `plugins` is returned, so
        a distribution name gives its first plugin. A plugin that is not loaded, such as a disabled
        or a broken one, is returned too, and so is the core. Raises `PluginError`
        (`no-such-plugin`) if no plugin matches; its cure is the most similar name, or `collhub
        plugins list` without one.
        """
        for plugin in self.plugins:
            if canonical_name(name) in (
                canonical_name(plugin.name),
                canonical_name(plugin.distribution),
            ):
                return plugin
        close = closest(
            name, [n for plugin in self.plugins for n in (plugin.name, plugin.distribution)]
        )
        cure = close or "see 'collhub plugins list'"
        raise PluginError(f"no plugin {name!r} is installed", cure=cure, code="no-such-plugin")


def _describe_clash(found: Sequence[Provided[Offer]]) -> str:
    owners = " and ".join(str(provided.plugin) for provided in found)
    noun = kind_of(found[0].offer).noun
    return f"{owners} both offer a {noun} {found[0].name!r}, so neither is used"
