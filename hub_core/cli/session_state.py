"""State of one run of the program: its flags and its plugins, which are discovered on first use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hub_core.cli import output

if TYPE_CHECKING:
    from hub_core.model import Diagnostic
    from hub_core.plugin_api import Option
    from hub_core.registry.plugins import Plugin, Registry


@dataclass(slots=True)
class SessionState:
    """Flags and plugins of a run.

    `separated_arguments`: number of arguments after `--` on the command line. `source_arguments`:
    those of them that are for IN, for readers whose input is a program. `rank_files`: files that
    are one input together, IN first, if their names do not show it. `verify_policy`: the value of
    `--verify`. `reported`: findings of readers and runtimes that `report_finding` printed.
    `refused_plugins`: reasons, by name, for plugins that must not be imported because their trial
    failed.

    Modules are imported inside the methods, because the help of a command needs no numpy.
    """

    use_plugins: bool = True
    disabled_plugins: tuple[str, ...] = ()
    is_debug: bool = False
    separated_arguments: int = 0
    source_arguments: tuple[str, ...] = ()
    rank_files: tuple[str, ...] = ()
    verify_policy: str = "refuse"
    reported: list[Diagnostic] = field(default_factory=list)
    refused_plugins: dict[str, str] = field(default_factory=dict)
    _registry: Registry | None = field(default=None, repr=False)

    def report_finding(self, finding: Diagnostic) -> None:
        """Print a finding on stderr, and append it to `reported`, which files of findings use."""
        output.print_diagnostic(finding)
        self.reported.append(finding)

    def registry(self) -> Registry:
        """Return the registry, built once: the core, then the plugins by name and distribution.

        Later calls return the same object, even if fields changed. A plugin has the first state of:
        - DISABLED: `use_plugins` is False, or its name or distribution is in `disabled_plugins` or
          in `COLLHUB_DISABLE_PLUGINS`. A name in the former that is not installed: `UsageError`.
        - BROKEN: it shares its name with a plugin or the core, or its metadata is malformed.
        - INCOMPATIBLE: it requires another version of the core.
        - BROKEN: it is in `refused_plugins`, or failed a trial, now or in an earlier run (warning).
          Trial: if a start ended during its import, another process imports it first. The trial
          fails if that process crashes, exits or needs over 10 s.
        - BROKEN: its import fails. INCOMPATIBLE: other API version. BROKEN: its offers fail.
        - LOADED, the only state with offers. During the first call descriptor 1 is standard error.
        """
        if self._registry is None:
            from hub_core.cli.start_record import data_kept_apart, recorded_start
            from hub_core.registry.discovery import discover

            recorded = recorded_start(self.refused_plugins, output.print_diagnostic)
            with data_kept_apart(), recorded as admission:
                self._registry = discover(
                    use_plugins=self.use_plugins,
                    disabled=self.disabled_plugins,
                    admission=admission,
                )
        return self._registry

    def unloaded_registry(self) -> tuple[Registry, list[Plugin]]:
        """Discover all plugins without importing any; return (registry, importable plugins).

        A plugin is importable if all of these hold:

        - `use_plugins` is True.
        - Neither `disabled_plugins` nor the variable `COLLHUB_DISABLE_PLUGINS` has its name or its
          distribution.
        - Its name differs from those of all other plugins and of the core.
        - Its metadata is readable, and its requirement on the core's version is met.

        `refused_plugins` and failed earlier starts do not count. The list has the importable
        plugins by name, then by distribution; it may be empty. The registry has the core, which is
        loaded and has the only offers, and then every plugin in the same order. Importable plugins
        have the state BROKEN there, with the reason `not imported`. The other ones are DISABLED,
        BROKEN or INCOMPATIBLE, with their reasons. The result of `registry` is not changed, and
        nothing is cached.

        Raises `UsageError` if no installed plugin or distribution has a name in `disabled_plugins`.
        """
        from hub_core.registry.discovery import discover

        importable: list[Plugin] = []

        def refuse(plugin: Plugin) -> str:
            importable.append(plugin)
            return "not imported"

        registry = discover(
            use_plugins=self.use_plugins, disabled=self.disabled_plugins, admission=refuse
        )
        return registry, importable

    def options_of(self, kind: type, name: str) -> tuple[Option, ...]:
        """Return the declared options of the offer `name` of this kind, in order; may be empty.

        The plugins are loaded if they are not yet. Raise `HubError` if there is no such offer.
        """
        from hub_core.registry.compatibility import options_of

        return options_of(self.registry().find(kind, name).offer)

    def bind_options(self, kind: type, name: str, options: Mapping[str, str]) -> object:
        """Convert option texts (by name) to the record of options of the offer `name` of this kind.

        An option without a text has the value of its environment variable, else its default. Raise
        `HubError` if there is no such offer, and for unknown options or invalid values.
        """
        from hub_core.pipeline.calls import bound_options

        return bound_options(self.registry().find(kind, name), options)
