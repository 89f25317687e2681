"""`collhub plugins ...` and `collhub doctor`: what they say of good, bad and missing plugins, and their exit codes."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hub_core.cli.commands.offer_scaffolds import SCAFFOLDS
from hub_core.cli.main import main
from hub_core.model.diagnostics import ExitCode

MakePlugin = Callable[..., object]
Collhub = Callable[..., tuple[int, str, str]]

SIMULATOR = """
@dataclass(frozen=True)
class SimOptions:
    speed: str = option(
        OptionType.TEXT, "fast", "how fast", choices=("fast", "slow"), environment="SPEED"
    )

@hookimpl
def collhub_consumers():
    return [Simulator("sim", "always 1 ns", f"{__name__}:simulate", SimOptions)]

def simulate(request, options):
    return SimulationResult((1,) * request.algorithm.num_ranks)
"""


@pytest.fixture
def collhub(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Collhub:
    """`collhub(*arguments)`: exit code, standard output, standard error."""
    monkeypatch.delenv("COLLHUB_DISABLE_PLUGINS", raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        return code, *capfd.readouterr()

    return run


def _valid(out: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(out)
    name = document["schema"].removeprefix("collhub/")
    schema = json.loads(
        importlib.resources.files("hub_core.schemas").joinpath(f"{name}.json").read_bytes()
    )
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)
    return document


def test_list_says_what_is_wrong_with_each_plugin(
    collhub: Collhub, make_plugin: MakePlugin
) -> None:
    make_plugin("good", SIMULATOR)
    make_plugin("exits", "raise SystemExit(1)")
    make_plugin("older", "", requires="collhub<0.0.1")
    make_plugin("other-api", "", preamble="COLLHUB_PLUGIN_API = (7, 0)")
    make_plugin("off", "")
    code, out, _ = collhub("--disable-plugin", "off", "plugins", "list")
    assert code == ExitCode.DONE
    assert "exits is broken: importing dist_exits: it tried to end the program with status 1" in out
    assert "older is incompatible: needs collhub<0.0.1" in out
    assert "other-api is incompatible: needs plugin API 7.0" in out
    assert "off is disabled: by --disable-plugin off" in out
    assert "simulator sim" in next(line for line in out.splitlines() if line.startswith("good "))


def test_list_names_clashes(collhub: Collhub, make_plugin: MakePlugin) -> None:
    make_plugin("one", SIMULATOR)
    make_plugin("two", SIMULATOR)
    text = "plugin one (dist-one 0.7) and plugin two (dist-two 0.7) both offer a simulator 'sim', so neither is used"
    assert text in collhub("plugins", "list")[1].splitlines()
    assert _valid(collhub("plugins", "list", "--json")[1])["clashes"] == [text]


def test_list_as_json_follows_its_schema(collhub: Collhub, make_plugin: MakePlugin) -> None:
    make_plugin("good", SIMULATOR)
    make_plugin("bad", "1/0")
    plugins = {
        plugin["name"]: plugin
        for plugin in _valid(collhub("plugins", "list", "--json")[1])["plugins"]
    }
    assert plugins["core"]["status"] == plugins["good"]["status"] == "loaded"
    assert "ZeroDivisionError" in plugins["bad"]["reason"]
    assert plugins["good"]["provides"][0]["options"][0]["environment"] == "SPEED"


def test_without_plugins_all_are_listed_as_disabled(
    collhub: Collhub, make_plugin: MakePlugin
) -> None:
    make_plugin("good", SIMULATOR)
    assert "good is disabled: by --no-plugins" in collhub("--no-plugins", "plugins", "list")[1]


def test_show_tells_offers_and_options(collhub: Collhub, make_plugin: MakePlugin) -> None:
    make_plugin("good", SIMULATOR)
    code, out, _ = collhub("plugins", "show", "dist-good")
    assert code == ExitCode.DONE
    assert "simulator sim: always 1 ns" in out
    assert (
        "-O speed=...  how fast (text; one of fast, slow; default fast; environment variable SPEED)"
        in out
    )


@pytest.mark.parametrize("command", ["show", "check"])
def test_missing_plugin_exits_3(collhub: Collhub, make_plugin: MakePlugin, command: str) -> None:
    make_plugin("good", SIMULATOR)
    code, out, err = collhub("plugins", command, "goood")
    assert code == ExitCode.PLUGIN
    assert "no plugin 'goood' is installed; did you mean 'good'?" in out + err


def test_check_passes_a_sound_plugin(collhub: Collhub, make_plugin: MakePlugin) -> None:
    make_plugin("good", SIMULATOR)
    code, out, _ = collhub("plugins", "check", "good")
    assert code == ExitCode.DONE
    assert out.splitlines()[-1] == "good: 8 passed, 24 skipped"


def test_check_of_a_faulty_plugin_exits_3_and_reports(
    collhub: Collhub, make_plugin: MakePlugin
) -> None:
    make_plugin("bad", SIMULATOR.replace("(1,)", "(-1,)"))
    code, out, _ = collhub("plugins", "check", "bad", "--json")
    assert code == ExitCode.PLUGIN
    report = _valid(out)
    assert report["ok"] is False
    failed = [
        check["check"] for check in report["plugins"][0]["checks"] if check["verdict"] == "failed"
    ]
    assert failed == ["simulators-simulate"]


def test_check_of_an_absent_plugin_reports_every_check_failed(collhub: Collhub) -> None:
    (plugin,) = _valid(collhub("plugins", "check", "absent", "--json")[1])["plugins"]
    assert plugin["status"] == "absent"
    assert {check["verdict"] for check in plugin["checks"]} == {"failed"}


@pytest.mark.parametrize("name", ["Core", "core", "hub", "a b", "../x", "9x", "", "x-"])
def test_new_plugin_needs_a_usable_name(
    collhub: Collhub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = collhub("plugins", "new", "--", name)
    assert code == ExitCode.USAGE
    assert "cannot be the name of a plugin" in err
    assert not list(tmp_path.iterdir())


def test_new_plugin_does_not_overwrite(collhub: Collhub, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    code, _, err = collhub("plugins", "new", "steps", "--directory", tmp_path)
    assert code == ExitCode.USAGE
    assert "is not empty; choose an empty or new folder with --directory [output-exists]" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_help_of_new_plugins_lists_every_kind_of_offer(collhub: Collhub) -> None:
    _, out, _ = collhub("plugins", "new", "--help")
    kinds = "".join(out.split())
    assert [kind for kind in SCAFFOLDS if f"{kind}," not in kinds and f"{kind}." not in kinds] == []


def test_new_plugin_is_named_throughout(collhub: Collhub, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    code, out, err = collhub("plugins", "new", "my_format", "--directory", folder)
    files = {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert code == ExitCode.DONE
    assert sorted(out.splitlines()) == sorted(str(folder / name) for name in files)
    assert f"collhub plugins install {folder}" in err
    assert 'name = "collhub-my-format"' in files["pyproject.toml"]
    assert (
        'Format("my-format", "one line of text a step", (".my-format",), rb"^my-format 1\\n")'
        in (files["src/collhub_my_format/plugin.py"])
    )
    assert [name for name, text in files.items() if "example" in name + text] == []


def test_new_plugin_is_printed_as_a_path_of_the_current_folder(
    collhub: Collhub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = collhub("plugins", "new", "myfmt")
    assert code == ExitCode.DONE
    assert all(line.startswith("./collhub-myfmt/") for line in out.splitlines())
    assert "next: collhub plugins install ./collhub-myfmt && collhub plugins check myfmt" in err


def test_existing_folder_is_installed_as_a_path(
    collhub: Collhub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "collhub-myfmt").mkdir()
    code, _, err = collhub("plugins", "install", "collhub-myfmt", "--", "--no-index")
    assert code == ExitCode.PLUGIN
    assert err.splitlines()[0].endswith(" ./collhub-myfmt")


def test_name_without_a_folder_is_installed_from_the_index(
    collhub: Collhub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = collhub("plugins", "install", "collhub-myfmt", "--", "--no-index")
    assert code == ExitCode.PLUGIN
    assert err.splitlines()[0].endswith(" collhub-myfmt")


def test_installation_that_pip_refuses_is_an_error(collhub: Collhub, tmp_path: Path) -> None:
    code, _, err = collhub("plugins", "install", tmp_path / "nothing", "--", "--no-index")
    assert code == ExitCode.PLUGIN
    assert "error: pip ended with status 1" in err


def test_a_folder_named_pip_in_the_working_folder_is_not_executed(
    collhub: Collhub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = "import pathlib; pathlib.Path('executed').touch()\n"
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").write_text(mark)
    (tmp_path / "pip" / "__main__.py").write_text(mark)
    monkeypatch.chdir(tmp_path)
    code, _, err = collhub("plugins", "install", tmp_path / "nothing", "--", "--no-index")
    assert code == ExitCode.PLUGIN
    assert "error: pip ended with status 1" in err
    assert not (tmp_path / "executed").exists()


def test_pip_options_go_behind_two_hyphens(collhub: Collhub) -> None:
    code, _, err = collhub("plugins", "install", "--", "--user")
    assert code == ExitCode.USAGE
    assert "'--user' is not a path or the name of a distribution" in err


def test_misspelt_command_names_the_closest(collhub: Collhub) -> None:
    code, _, err = collhub("plugins", "chek", "x")
    assert (code, err) == (
        ExitCode.USAGE,
        "error: there is no command 'plugins chek'; did you mean 'check'? [unknown-command]\n",
    )


@pytest.mark.once
def test_doctor_finds_the_installation_healthy(collhub: Collhub) -> None:
    code, out, _ = collhub("--no-plugins", "doctor", "--json")
    report = _valid(out)
    assert (code, report["ok"]) == (ExitCode.DONE, True)
    assert {"python", "collhub", "dependencies", "temporary folder"} <= {
        line["subject"] for line in report["lines"]
    }


@pytest.mark.once
def test_doctor_exits_3_for_a_broken_plugin(collhub: Collhub, make_plugin: MakePlugin) -> None:
    make_plugin("bad", "1/0")
    code, out, _ = collhub("doctor")
    assert code == ExitCode.PLUGIN
    assert "BAD  bad: plugin: dist-bad 0.7 is broken: importing dist_bad: ZeroDivisionError" in out


@pytest.mark.once
def test_doctor_tells_what_checks_of_the_installation_say(
    collhub: Collhub, make_plugin: MakePlugin
) -> None:
    code = """
@hookimpl
def collhub_checks():
    return [Check("device", Subject.INSTALLATION, "looks", f"{__name__}:check")]

def check(request, options):
    device = request.environment["DEVICE"]
    return CheckReport(False, lines=(CheckLine("device", False, "no device " + device, "plug it in"),))
"""
    make_plugin("sick", code)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEVICE", "nr. 4")
        status, out, _ = collhub("doctor")
    assert status == ExitCode.PLUGIN
    assert "BAD  sick: device: no device nr. 4; plug it in" in out.splitlines()
