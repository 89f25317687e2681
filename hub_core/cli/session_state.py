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
        """Return the plugins of this run; the first call discovers and imports them.

        Later calls return the same object. A plugin during whose import an earlier start of the
        program ended is skipped with a warning if it fails again in a separate process. Plugins in
        `disabled_plugins` and in `refused_plugins` are not imported. While plugins are imported,
        file descriptor 1 is standard error. Raises `UsageError` for a disabled name that no plugin
        has.
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
        """Discover all plugins without importing any; return the registry and the importable ones.

        A plugin is importable unless it is disabled or has the name of another plugin. Plugins that
        `registry` skips, because of `refused_plugins` or a failed earlier start, are importable
        too. In the returned registry, all importable plugins are refused with the reason `not
        imported`, so that it has the offers of the core only. The list is in the order of
        discovery. The registry of the session is not changed. Raises `UsageError` for a disabled
        name that no plugin has.
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
        """Return the options of an offer. Raises `HubError` if no offer has this kind and name."""
        from hub_core.registry.compatibility import options_of

        return options_of(self.registry().find(kind, name).offer)

    def bind_options(self, kind: type, name: str, options: Mapping[str, str]) -> object:
        """Convert the given texts to the record of options of an offer.

        Raises `HubError` if no offer has this kind and name, and for unknown options or invalid
        values.
        """
        from hub_core.pipeline.calls import bound_options

        return bound_options(self.registry().find(kind, name), options)
