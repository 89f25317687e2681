"""Lookup by name, clashes, disabled plugins, and what a request says when the right plugin is not loaded."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest

from hub_core.model.diagnostics import PluginError, UsageError
from hub_core.plugin_api import FormatReader, FormatWriter
from hub_core.registry.discovery import DISABLING_VARIABLE, discover, registry_from
from hub_core.registry.plugins import PluginState, Registry, RegistrySettings

MakePlugin = Callable[..., object]

WRITER = """
@hookimpl
def collhub_consumers():
    return [FormatWriter(Format("steps-csv", "one line a step", (".csv",)), "dist_one:write")]
"""


def test_only_offer_of_a_name_is_found(make_plugin: MakePlugin) -> None:
    make_plugin("one", WRITER)
    found = discover().find(FormatWriter, "steps-csv")
    assert (found.plugin.name, found.plugin.version, found.offer.write) == (
        "one",
        "0.7",
        "dist_one:write",
    )


def test_two_plugins_with_one_name_are_both_named_and_neither_is_guessed(
    make_plugin: MakePlugin,
) -> None:
    make_plugin("one", WRITER)
    make_plugin("two", WRITER)
    registry = discover()
    text = "plugin one (dist-one 0.7) and plugin two (dist-two 0.7) both offer a writer 'steps-csv', so neither is used"
    assert registry.clashes() == [text]
    with pytest.raises(PluginError) as caught:
        registry.find(FormatWriter, "steps-csv")
    assert (
        str(caught.value) == f"{text}; choose one with --disable-plugin one or --disable-plugin two"
    )


def test_disabling_one_of_two_resolves_a_clash(make_plugin: MakePlugin) -> None:
    make_plugin("one", WRITER)
    make_plugin("two", WRITER)
    assert discover(disabled=["two"]).find(FormatWriter, "steps-csv").plugin.name == "one"


def test_plugin_cannot_take_a_format_of_the_core_in_silence(make_plugin: MakePlugin) -> None:
    make_plugin("one", WRITER.replace("steps-csv", "chakra"))
    with pytest.raises(
        PluginError, match=r"plugin core .* and plugin one .* choose one with --disable-plugin one$"
    ):
        discover().find(FormatWriter, "chakra")


def test_misspelt_name_names_the_closest() -> None:
    with pytest.raises(UsageError, match=r"there is no reader 'chakar'.*; did you mean 'chakra'\?"):
        discover(environment={}).find(FormatReader, "chakar")


def test_unknown_name_lists_the_known_ones() -> None:
    core_alone = Registry(discover(environment={}).plugins[:1])
    with pytest.raises(
        UsageError, match=r"there is no reader 'xyz'; known: chakra, chakra-json, json$"
    ):
        core_alone.find(FormatReader, "xyz")


def test_request_that_a_broken_plugin_may_serve_names_it_with_the_reason(
    make_plugin: MakePlugin,
) -> None:
    make_plugin("one", "import nowhere_to_be_found")
    with pytest.raises(PluginError) as caught:
        discover().find(FormatWriter, "steps-csv")
    text = str(caught.value)
    assert text.startswith(
        "there is no writer 'steps-csv'; plugin one (dist-one 0.7) is broken: importing dist_one: "
    )
    assert "No module named 'nowhere_to_be_found'" in text


def test_format_called_after_a_broken_plugin_is_not_taken_for_misspelt(
    make_plugin: MakePlugin,
) -> None:
    make_plugin("jsonx", "import nowhere_to_be_found")
    with pytest.raises(PluginError, match=r"plugin jsonx .* is broken"):
        discover().find(FormatReader, "jsonx")


@pytest.mark.parametrize("name", ["one", "dist-one", "Dist_One"])
def test_disabled_plugin_is_not_imported(make_plugin: MakePlugin, name: str) -> None:
    make_plugin("one", "raise AssertionError('imported')")
    plugin = discover(disabled=[name]).plugin("one")
    assert (plugin.status.state, plugin.status.reason) == (
        PluginState.DISABLED,
        f"by --disable-plugin {name}",
    )


def test_environment_variable_disables_several(make_plugin: MakePlugin) -> None:
    make_plugin("one", "raise AssertionError('imported')")
    make_plugin("two", "raise AssertionError('imported')")
    registry = discover(environment={"COLLHUB_DISABLE_PLUGINS": "one, dist-two, not-installed"})
    assert [registry.plugin(name).status.reason for name in ("one", "two")] == [
        "by COLLHUB_DISABLE_PLUGINS"
    ] * 2


def test_without_plugins_only_the_core_is_loaded(make_plugin: MakePlugin) -> None:
    make_plugin("one", "raise AssertionError('imported')")
    registry = discover(use_plugins=False)
    assert [
        plugin.name for plugin in registry.plugins if plugin.status.state is PluginState.LOADED
    ] == ["core"]
    assert registry.plugin("one").status.reason == "by --no-plugins"


def test_disabling_an_unknown_plugin_is_refused(make_plugin: MakePlugin) -> None:
    make_plugin("traces", "")
    with pytest.raises(
        UsageError,
        match="no plugin 'trace' is installed, so it cannot be disabled; did you mean 'traces'",
    ):
        discover(disabled=["trace"])


def test_distribution_on_two_paths_counts_once(
    make_plugin: MakePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_plugin("one", WRITER)
    monkeypatch.syspath_prepend(sys.path[0])
    assert [plugin.name for plugin in discover().plugins].count("one") == 1


def test_listing_imports_no_heavy_module() -> None:
    script = "import sys; from hub_core.registry.discovery import discover; discover(); print(*sys.modules)"
    listed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"numpy", "numba", "google.protobuf", "torch", "yaml", "jsonschema"} & set(listed)


@pytest.mark.needs_plugins
def test_a_registry_is_pickled_as_its_settings() -> None:
    """Another process disables and refuses the same plugins, which it does not import."""
    names = sorted(plugin.name for plugin in discover(environment={}).plugins)
    disabled, refused = names[1], names[2]
    settings = RegistrySettings(
        disabled=((disabled, "by --disable-plugin"), ("not-installed-here", "by a variable")),
        refused=((refused, "it killed the last start"),),
    )
    sent = pickle.loads(pickle.dumps(registry_from(settings)))
    assert sent.settings == settings
    states = {plugin.name: str(plugin.status.state) for plugin in sent.plugins}
    assert (states[disabled], states[refused]) == ("disabled", "broken")


@pytest.mark.needs_plugins
def test_discovery_records_what_was_disabled_and_refused() -> None:
    names = [plugin.name for plugin in discover(environment={}).plugins if not plugin.is_core]
    found = discover(
        disabled=[names[0]],
        environment={DISABLING_VARIABLE: names[1]},
        admission=lambda plugin: "no" if plugin.name == names[2] else None,
    )
    assert found.settings is not None
    assert [name for name, _ in found.settings.disabled] == [names[0], names[1]]
    assert found.settings.refused == ((names[2], "no"),)
    assert registry_from(found.settings) == found


def test_a_registry_without_settings_is_not_pickled() -> None:
    with pytest.raises(pickle.PicklingError, match="without settings"):
        pickle.dumps(Registry(()))
