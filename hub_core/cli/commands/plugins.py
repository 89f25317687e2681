"""`collhub plugins`: list, show, check, enable, make and install plugins."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import json_flag
from hub_core.cli.command_context import Session
from hub_core.cli.completion import CommandGroup, plugin_names
from hub_core.cli.output import (
    print_diagnostic,
    print_fields,
    print_line,
    print_note,
    print_table,
)
from hub_core.cli.reports.installation_records import (
    create_plugin_item,
    create_plugin_report,
    default_text,
    description_of,
)
from hub_core.installed import canonical_name
from hub_core.model import ExitCode, PluginError
from hub_core.plugin_api.offers import OFFER_KINDS, kind_of
from hub_core.registry.compatibility import options_of
from hub_core.registry.plugins import PluginState

if TYPE_CHECKING:
    from hub_core.cli.reports.installation_records import PluginItem
    from hub_core.testing import RuleResult


@click.group(cls=CommandGroup)
def plugins() -> None:
    """List, show, check, enable, make and install plugins."""


@plugins.command("list")
@json_flag
@click.pass_obj
def list_plugins(session: Session, as_json: bool) -> int:
    """List installed plugins with version, status and reason, and the offers of each.

    Plugins that are disabled, incompatible or broken are listed too, with status and reason but no
    offers. The core is first, the others follow by name. Names that several plugins offer for one
    kind are listed last. Always exits with 0.
    """
    registry = session.registry()
    if as_json:
        items = [create_plugin_item(plugin) for plugin in registry.plugins]
        session.print_report(create_plugin_report(registry, items))
        return ExitCode.DONE
    rows = [
        (
            p.name,
            p.distribution,
            p.version,
            str(p.status.state),
            ", ".join(f"{kind_of(offer).noun} {offer.name}" for offer in p.offers) or "-",
        )
        for p in registry.plugins
    ]
    print_table(("name", "distribution", "version", "status", "provides"), rows)
    for plugin in registry.plugins:
        if plugin.status.reason:
            print_line(f"{plugin.name} is {plugin.status.state}: {plugin.status.reason}")
    for clash in registry.clashes():
        print_line(clash)
    return ExitCode.DONE


@plugins.command()
@click.argument("name", shell_complete=plugin_names)
@json_flag
@click.pass_obj
def show(session: Session, name: str, as_json: bool) -> int:
    """Show the plugin NAME: its distribution and module, status, offers and their options.

    NAME is the name of a plugin or of its distribution; case and `-`, `_` or `.` do not matter. If
    several plugins match, the first in `collhub plugins list` is shown. A plugin that is not loaded
    is shown with the reason and no offers. Exit 3 if no such plugin is installed.
    """
    registry = session.registry()
    plugin = registry.plugin(name)
    if as_json:
        session.print_report(create_plugin_report(registry, [create_plugin_item(plugin)]))
        return ExitCode.DONE
    reason = f": {plugin.status.reason}" if plugin.status.reason else ""
    print_fields(
        {
            "name": plugin.name,
            "distribution": f"{plugin.distribution} {plugin.version}",
            "module": plugin.module,
            "status": f"{plugin.status.state}{reason}",
        }
    )
    for offer in plugin.offers:
        description = description_of(offer)
        about = f": {description}" if description else ""
        print_line("")
        print_line(f"{kind_of(offer).noun} {offer.name}{about}")
        for option in options_of(offer):
            facts = [str(option.type)]
            facts += [f"one of {', '.join(option.choices)}"] if option.choices else []
            facts += [f"default {default_text(option)}"] if option.default is not None else []
            facts += [f"environment variable {option.environment}"] if option.environment else []
            print_line(f"  -O {option.name}=...  {option.help} ({'; '.join(facts)})")
    return ExitCode.DONE


@plugins.command()
@click.argument("name", shell_complete=plugin_names)
@json_flag
@click.pass_obj
def check(session: Session, name: str, as_json: bool) -> int:
    """Run the conformance checks on the plugin NAME.

    It is first imported in a process of its own, for 10 s at most. The verdict and the text of
    every check are printed, then the number of each verdict. Exit 3 if a check fails, or if the
    plugin is not installed or not loaded (disabled, broken).
    """
    # Imported here: the checks need numpy and verification, listing plugins does not.
    from hub_core.testing import Verdict, check_plugin

    _try_import(session, name)
    registry = session.registry()
    if not as_json:
        # Reports in one line why the plugin cannot be checked, instead of one line per rule.
        plugin = registry.plugin(name)
        if plugin.status.state is not PluginState.LOADED:
            raise PluginError(f"{plugin} is {plugin.status.state}: {plugin.status.reason}")
    results = check_plugin(name, registry)
    is_ok = all(result.verdict is not Verdict.FAILED for result in results)
    if as_json:
        item = _create_checked_item(session, name, results)
        session.print_report(create_plugin_report(registry, [item], ok=is_ok))
    else:
        for result in results:
            print_line(f"{result.verdict.upper():8}{result.rule.name}: {result.rule.text}")
            for line in result.details:
                print_line(f"{'':8}- {line}")
        counts = Counter(result.verdict for result in results)
        summary = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        print_line(f"{name}: {summary}")
    return ExitCode.DONE if is_ok else ExitCode.PLUGIN


@plugins.command()
@click.argument("name", shell_complete=plugin_names)
@click.pass_obj
def enable(session: Session, name: str) -> int:
    """Import the plugin NAME again, which was skipped because it ended or blocked a start.

    NAME is the name of a plugin or of its distribution. The plugin is imported from the next start
    on. For a plugin that was not skipped, only a note is printed. Exit 3 if no such plugin is
    installed.
    """
    from hub_core.cli.start_record import read_record

    # Not imported here, because the import failed before.
    registry, _ = session.unloaded_registry()
    plugin = registry.plugin(name)
    was_kept_out = read_record(print_diagnostic, {}).enable(plugin)
    state = "is imported again from the next start on" if was_kept_out else "was not kept out"
    print_note(f"{plugin} {state}")
    return ExitCode.DONE


@plugins.command()
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(),
    help="Where to write it (default: collhub-NAME in the current folder).",
)
@click.option(
    "--offers",
    default="reader,writer",
    show_default=True,
    metavar="KIND,...",
    help=f"Kinds of offers of the plugin: {', '.join(kind.word for kind in OFFER_KINDS)}.",
)
@click.pass_obj
def new(session: Session, name: str, directory: str | None, offers: str) -> int:
    """Write a distribution collhub-NAME that passes `collhub plugins check NAME` as it is.

    The folder must be new or empty; the paths of the written files are printed. Exit 2 if
    the folder is not empty, NAME is invalid, a kind of offer is unknown, or an installed
    plugin, package or offer has the name.
    """
    from hub_core.cli.commands.plugin_distributions import parse_offers, spell_target, write_plugin

    folder, files = write_plugin(name, directory, parse_offers(offers), session.registry())
    for file in files:
        print_line(spell_target(file))
    target = shlex.quote(spell_target(folder))
    print_note(f"next: collhub plugins install {target} && collhub plugins check {name}")
    return ExitCode.DONE


@plugins.command()
@click.argument("target", metavar="PATH_OR_NAME")
@click.argument("pip_options", nargs=-1, type=click.UNPROCESSED)
@json_flag
@click.pass_obj
def install(session: Session, target: str, pip_options: Sequence[str], as_json: bool) -> int:
    """Install a plugin with pip into the Python that runs collhub, and report its status.

    PATH_OR_NAME is an existing folder or file, or else the name of a package in pip's index. A
    plugin that is already installed is not an error.

    Options for pip follow after `--`: `collhub plugins install ./collhub-x -- --no-index`.

    Exit 3 if pip is missing or fails, if the installed plugin cannot be loaded, or if no plugin was
    added or changed.
    """
    from hub_core.cli.commands.plugin_distributions import install_plugin

    changed = install_plugin(target, pip_options)
    if as_json:
        session.print_report(create_plugin_report(session.registry(), changed))
    elif changed:
        print_table(
            ("name", "distribution", "version", "status"),
            [(item.name, item.distribution, item.version, item.status) for item in changed],
        )
    for item in changed:
        if item.status != PluginState.LOADED:
            status = f"its plugin {item.name} is {item.status}: {item.reason}"
            raise PluginError(f"{item.distribution} is installed, but {status}")
    if not changed:
        raise PluginError(
            f"{target} is installed, but it added or changed no plugin",
            cure="see 'collhub plugins list'",
        )
    return ExitCode.DONE


def _try_import(session: Session, name: str) -> None:
    """Import the plugins called `name`, each in a separate process; refuse those that fail.

    `name`: name of a plugin, or of a distribution for all its plugins, in any usual spelling. The
    reason of a failure (exception, crash, time limit) is stored by plugin name in
    `session.refused_plugins`, so that this process does not import the plugin. Unknown and disabled
    plugins are ignored.
    """
    from hub_core.testing.probe import trial

    _, importable = session.unloaded_registry()
    for plugin in importable:
        if canonical_name(name) in map(canonical_name, (plugin.name, plugin.distribution)):
            outcome = trial(plugin.name)
            if outcome.reason is not None:
                session.refused_plugins[plugin.name] = outcome.reason


def _create_checked_item(session: Session, name: str, results: Sequence[RuleResult]) -> PluginItem:
    """Return the report item of plugin `name`, with the results of its conformance rules in order.

    If no such plugin is installed, the item has this name, the status `absent`, the text of the
    error as reason, empty distribution, version, module and offers, and still the results.
    """
    from msgspec.structs import replace

    from hub_core.cli.reports.installation_records import PluginItem, RuleItem

    try:
        item = create_plugin_item(session.registry().plugin(name))
    except PluginError as error:
        item = PluginItem(
            name=name,
            distribution="",
            version="",
            module="",
            status="absent",
            reason=str(error),
            provides=(),
        )
    checks = [
        RuleItem(
            check=result.rule.name,
            rule=result.rule.text,
            verdict=str(result.verdict),
            details=result.details,
        )
        for result in results
    ]
    return replace(item, checks=checks)
