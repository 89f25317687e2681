"""`collhub doctor --warm`: plugins do what their first use would wait for, where they offer that."""

from __future__ import annotations

from hub_core.registry.discovery import discover

_WARMING = """
@dataclass(frozen=True, slots=True)
class WarmOptions:
    warm: bool = option(OptionType.BOOL, False, "do it now")

@hookimpl
def collhub_checks():
    return [
        Check("warming", Subject.INSTALLATION, "warms", f"{__name__}:warming", WarmOptions),
        Check("other", Subject.INSTALLATION, "has no such option", f"{__name__}:other"),
    ]

def warming(request, options):
    if not options.warm:
        return CheckReport(True)
    return CheckReport(True, lines=(CheckLine("cache", True, "filled"),))

def other(request, options):
    return CheckReport(True, lines=(CheckLine("other", True, "untouched"),))
"""


def _without_installed_plugins() -> list[str]:
    """Arguments that disable installed plugins: warming them takes minutes."""
    names = [plugin.name for plugin in discover().plugins[1:]]
    return [word for name in names for word in ("--disable-plugin", name)]


def test_warm_reaches_the_checks_that_declare_it(collhub, make_plugin) -> None:
    disabled = _without_installed_plugins()
    make_plugin("warm", _WARMING)
    lines = collhub(*disabled, "doctor", "--warm").out.splitlines()
    assert "ok   warm: cache: filled" in lines
    assert "ok   warm: other: untouched" in lines


def test_without_warm_nothing_is_warmed(collhub, make_plugin) -> None:
    disabled = _without_installed_plugins()
    make_plugin("warm", _WARMING)
    lines = collhub(*disabled, "doctor").out.splitlines()
    assert "ok   warm: other: untouched" in lines
    assert not [line for line in lines if "filled" in line]


def test_a_warming_that_fails_is_a_line_that_is_not_ok(collhub, make_plugin) -> None:
    disabled = _without_installed_plugins()
    make_plugin("warm", _WARMING.replace('"filled"', "1 / 0"))
    run = collhub(*disabled, "doctor", "--warm", "--json")
    report = run.report()
    (line,) = [line for line in report["lines"] if "ZeroDivisionError" in line["details"]]
    assert (line["plugin"], line["is_healthy"], run.code) == ("warm", False, 3)
