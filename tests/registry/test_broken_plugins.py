"""Whatever a plugin does at import or in a hook becomes its status, and the others load."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hub_core.registry.discovery import discover
from hub_core.registry.plugins import Plugin, PluginState

Load = Callable[..., Plugin]

BROKEN = {
    "import-error": (
        "import no_such_module_anywhere",
        "ModuleNotFoundError: No module named 'no_such_module_anywhere'",
    ),
    "syntax-error": ("def (", "SyntaxError"),
    "exits": (
        "import sys; sys.exit(3)",
        "tried to end the program with status 3 (dist_subject.py:",
    ),
    "raises-base-exception": ("class Stop(BaseException): ...\nraise Stop('x')", "Stop: x"),
    "error-without-text": (
        "class Mute(Exception):\n  def __str__(self): raise ValueError\nraise Mute",
        "without a readable message",
    ),
    "hook-raises": (
        "@hookimpl\ndef collhub_producers(): raise KeyError('format')",
        "KeyError: 'format' (dist_subject.py:",
    ),
    "hook-exits": (
        "@hookimpl\ndef collhub_consumers(): raise SystemExit('bye')",
        "end the program with status 'bye'",
    ),
    "hook-returns-none": (
        "@hookimpl\ndef collhub_producers(): pass",
        "collhub_producers returned NoneType, expected a list",
    ),
    "hook-returns-text": (
        "@hookimpl\ndef collhub_producers(): return 'csv'",
        "returned str, expected a list",
    ),
    "hook-returns-other-offers": (
        "@hookimpl\ndef collhub_producers(): return [Simulator('x', 'd', 'm:f')]",
        "collhub_producers returned a list with Simulator, expected FormatReader or WorkloadReader or MeasurementReader or Synthesizer",
    ),
    "two-of-one-name": (
        "@hookimpl\ndef collhub_consumers(): return [Simulator('s', 'd', 'm:f'), Simulator('s', 'd', 'm:g')]",
        "returned two simulators named 's'",
    ),
    "bad-name": (
        "@hookimpl\ndef collhub_consumers(): return [Simulator('A b', 'd', 'm:f')]",
        "'A b' is not a name",
    ),
    "bad-reference": (
        "@hookimpl\ndef collhub_consumers(): return [Simulator('s', 'd', 'm.f')]",
        "'m.f' is not a reference",
    ),
    "reference-is-a-function": (
        "@hookimpl\ndef collhub_consumers(): return [Simulator('s', 'd', len)]",
        "is not a reference",
    ),
    "bad-suffix": (
        "@hookimpl\ndef collhub_producers(): return [FormatReader(Format('f', 'd', ('xml',)), 'm:f')]",
        "format f: suffixes ('xml',) are not a tuple of endings",
    ),
    "bad-signature": (
        "@hookimpl\ndef collhub_producers(): return [FormatReader(Format('f', 'd', (), b'('), 'm:f')]",
        "format f: signature b'(' is not a regular expression of bytes",
    ),
    "text-signature": (
        "@hookimpl\ndef collhub_producers(): return [FormatReader(Format('f', 'd', (), '<a'), 'm:f')]",
        "is not a regular expression of bytes",
    ),
    "bad-option-default": (
        "@dataclass\nclass Wrong:\n  steps: int = option(OptionType.INT, 'many', 'help')\n"
        "@hookimpl\ndef collhub_consumers(): return [Simulator('s', 'd', 'm:f', Wrong)]",
        "simulator s: option steps: the default 'many' is not a whole number",
    ),
    "default-outside-the-range": (
        "@dataclass\nclass Wrong:\n  steps: int = option(OptionType.INT, 0, 'help', minimum=1)\n"
        "@hookimpl\ndef collhub_consumers(): return [Simulator('s', 'd', 'm:f', Wrong)]",
        "simulator s: option steps: the default 0 is not at least 1",
    ),
    "options-are-no-record": (
        "@hookimpl\ndef collhub_consumers(): return [Simulator('s', 'd', 'm:f', int)]",
        "simulator s: its options are unusable: <class 'int'> is not a dataclass of options",
    ),
    "field-that-is-no-option": (
        "@dataclass\nclass Wrong:\n  steps: int = 1\n"
        "@hookimpl\ndef collhub_consumers(): return [Simulator('s', 'd', 'm:f', Wrong)]",
        "field steps of Wrong is not made by option(...)",
    ),
    "unknown-hook": (
        "@hookimpl\ndef collhub_producer(): return []",
        "unknown hook 'collhub_producer'",
    ),
    "hook-with-arguments": (
        "@hookimpl\ndef collhub_producers(source): return []",
        "PluginValidationError",
    ),
    "unmarked-hook": (
        "def collhub_producers(): return []",
        "collhub_producers is not marked with @hookimpl",
    ),
}


@pytest.mark.parametrize(("code", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_plugin_is_named_with_its_reason(load: Load, code: str, reason: str) -> None:
    plugin = load(code)
    assert plugin.status.state is PluginState.BROKEN
    assert reason in plugin.status.reason
    assert "\n" not in plugin.status.reason
    assert not plugin.offers


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("COLLHUB_PLUGIN_API = (2, 0)", "needs plugin API 2.0; this core has API 1.0"),
        ("COLLHUB_PLUGIN_API = (1, 9)", "needs plugin API 1.9; this core has API 1.0"),
        ("COLLHUB_PLUGIN_API = '1.0'", "expected a pair of whole numbers"),
        ("COLLHUB_PLUGIN_API = (True, 0)", "expected a pair of whole numbers"),
        ("", "states no COLLHUB_PLUGIN_API"),
    ],
)
def test_other_api_version_is_incompatible(load: Load, version: str, reason: str) -> None:
    plugin = load("", preamble=version)
    assert plugin.status.state is PluginState.INCOMPATIBLE
    assert reason in plugin.status.reason


def test_requirement_on_another_core_is_seen_before_import(load: Load) -> None:
    plugin = load("raise AssertionError('imported')", requires="CollHub>=9,<10")
    assert plugin.status.state is PluginState.INCOMPATIBLE
    assert plugin.status.reason.startswith("needs collhub<10,>=9, this is collhub ")


@pytest.mark.parametrize(
    "requires",
    ["collhub>=9; python_version < '3'", "collhub>=9; extra == 'all'", "collhub >< 3", "other>=9"],
)
def test_requirement_that_does_not_apply_constrains_nothing(load: Load, requires: str) -> None:
    assert load("", requires=requires).status.state is PluginState.LOADED


def test_printing_while_loading_reaches_no_stream(
    load: Load, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "import sys\nprint('hello')\n@hookimpl\ndef collhub_producers():\n  print('again', file=sys.stderr)\n  return []"
    plugin = load(code)
    assert capfd.readouterr() == ("", "")
    assert plugin.status.state is PluginState.LOADED
    assert plugin.status.reason == r"prints while it loads: 'hello\nagain'"


def test_plugin_that_reads_standard_input_gets_none(load: Load) -> None:
    assert "EOFError" in load("input()").status.reason


def test_plugin_that_closes_standard_output_closes_its_own(
    load: Load, capfd: pytest.CaptureFixture[str]
) -> None:
    load("import sys; sys.stdout.close()")
    print("still open")
    assert capfd.readouterr().out == "still open\n"


def test_interrupt_passes_through(load: Load) -> None:
    with pytest.raises(KeyboardInterrupt):
        load("raise KeyboardInterrupt")


def test_two_distributions_with_one_plugin_name_are_both_refused(
    make_plugin: Callable[..., object], load: Load
) -> None:
    make_plugin("subject", "", distribution="other-dist")
    plugin = load("")
    assert plugin.status.state is PluginState.BROKEN
    assert (
        plugin.status.reason
        == "dist-subject and other-dist both bring a plugin of this name; uninstall one"
    )


def test_name_of_the_core_is_taken(make_plugin: Callable[..., object]) -> None:
    make_plugin("core", "", distribution="usurper")
    usurper = discover(environment={}).plugin("usurper")
    assert (usurper.status.state, usurper.status.reason) == (
        PluginState.BROKEN,
        "the name 'core' is the core's own",
    )


def test_malformed_entry_points_break_one_distribution(load: Load) -> None:
    plugin = load("", entry_points="[collhub.plugins]\nsubject = !!\n", distribution="subject")
    assert plugin.status.state is PluginState.BROKEN
