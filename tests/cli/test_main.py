"""The program as a whole: help, version, misspelt names, exit codes, and errors as one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from hub_core.cli import main as program
from hub_core.model.diagnostics import (
    Diagnostic,
    InputError,
    Location,
    LossyError,
    PluginError,
    Severity,
    UsageError,
)
from hub_core.plugin_api import Command
from hub_core.registry.core_plugin import OWN_COMMANDS
from hub_core.version import __version__

HEAVY = ("numpy", "google.protobuf", "jsonschema", "numba")


def subprocess_run(*arguments: str, **more: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-P", "-m", "hub_core.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, check=False, **more)  # type: ignore[call-overload,no-any-return]


def test_version_is_that_of_the_distribution(collhub) -> None:
    run = collhub("--version")
    assert (run.code, run.out, run.err) == (0, f"collhub {__version__}\n", "")


def test_help_has_one_line_per_command(collhub) -> None:
    run = collhub("--help")
    assert run.code == 0
    listed = re.findall(r"^  ([a-z]+)  +\S.*[.]$", run.out, re.MULTILINE)
    own = [command.name for command in OWN_COMMANDS]
    assert listed[: len(own)] == own


def test_no_arguments_are_a_request_for_help(collhub) -> None:
    assert collhub().out == collhub("--help").out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import json, sys; from hub_core.cli.main import main; main(sys.argv[1:]);"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, timeout=60, check=True
    )
    assert json.loads(result.stdout.splitlines()[-1]) == []


_SHOW_ALL_HELP = f"""
import json, sys
import click
from hub_core.cli.main import collhub
from hub_core.cli.command_context import Session

heavy_imports, seen = {{}}, set()

def show_help(command, context):
    command.get_help(context)
    heavy = set({HEAVY!r}) & set(sys.modules) - seen
    seen.update(heavy)
    heavy_imports[context.command_path] = sorted(heavy)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            part = command.get_command(context, name)
            show_help(part, click.Context(part, parent=context, info_name=name, obj=context.obj))

show_help(collhub, click.Context(collhub, info_name="collhub", obj=Session()))
print(json.dumps(heavy_imports))
"""


def test_the_help_of_no_command_imports_anything_heavy() -> None:
    """All commands, also those of plugins; a module is attributed to the first command only."""
    result = subprocess.run(
        [sys.executable, "-P", "-c", _SHOW_ALL_HELP], capture_output=True, timeout=60, check=True
    )
    heavy_imports = json.loads(result.stdout)
    assert {f"collhub {command.name}" for command in OWN_COMMANDS} < set(heavy_imports)
    assert {command: names for command, names in heavy_imports.items() if names} == {}


@pytest.mark.parametrize("name", [command.name for command in OWN_COMMANDS])
def test_every_command_has_help_that_states_its_usage(collhub, name: str) -> None:
    run = collhub(name, "--help")
    assert (run.code, run.err) == (0, "")
    assert run.out.startswith(f"Usage: collhub {name}")


@pytest.mark.parametrize("name", ["plugins", "topology"])
def test_summaries_in_the_help_of_a_group_are_not_cut(collhub, name: str, machines: None) -> None:
    run = collhub(name, "--help")
    assert run.code == 0
    assert "..." not in run.out.partition("Commands:")[2]


@pytest.mark.parametrize("command", OWN_COMMANDS, ids=lambda command: command.name)
def test_the_summary_of_the_table_fits_one_line(command: Command) -> None:
    assert len(command.description) <= 66


def test_command_of_a_plugin_is_listed_and_run(collhub, make_plugin) -> None:
    make_plugin("greeter", GREETER)
    assert re.search(r"^  greet +Say hello[.]$", collhub("--help").out, re.MULTILINE)
    assert collhub("greet").out == "who  world\n"
    assert "did you mean 'greet'?" in collhub("gret").err


def test_command_that_fails_is_blamed_on_its_plugin(collhub, make_plugin) -> None:
    make_plugin("greeter", GREETER.replace("import click", "import click, no_such_module"))
    # A name that is close to no other command's: else that one is suggested.
    run = collhub("salute")
    assert run.code == 3
    assert "no_such_module" in run.err


GREETER = """
import click

@hookimpl
def collhub_commands():
    return [Command("greet", "Say hello.", f"{__name__}:greet")]

@click.command()
@click.pass_obj
def greet(context):
    \"\"\"Say hello.\"\"\"
    context.print_fields({"who": "world"})
"""


def test_a_misspelt_command_names_the_closest(collhub) -> None:
    run = collhub("covert")
    assert (run.code, run.out, run.err) == (
        2,
        "",
        "error: there is no command 'covert'; did you mean 'convert'? [unknown-command]\n",
    )


def test_an_unknown_command_lists_the_known(collhub) -> None:
    run = collhub("xyzzy")
    assert run.code == 2
    assert run.err.startswith("error: there is no command 'xyzzy'; use one of demo, formats,")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--frobnicate"],
        ["verify"],
        ["inspect", "a", "b"],
        ["simulate"],
        ["verify", "a", "-O", "x"],
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(collhub, arguments: list[str]) -> None:
    run = collhub(*arguments)
    assert (run.code, run.out) == (2, "")
    assert re.fullmatch(r"error: .*; see 'collhub.* --help'\n", run.err)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--lst", "there is no option '--lst' here; did you mean '--list'?"),
        ("--xyzzy", "there is no option '--xyzzy' here"),
        ("--hlp", "there is no option '--hlp' here; did you mean '--help'?"),
    ],
)
def test_an_unknown_option_names_the_closest(collhub, option: str, message: str) -> None:
    run = collhub("transform", "a", option)
    assert run.err == f"error: {message}; see 'collhub transform --help'\n"


def test_the_name_of_an_argument_is_not_proposed_as_option(collhub) -> None:
    run = collhub("explain", "--rule", "x")
    assert run.err == "error: there is no option '--rule' here; see 'collhub explain --help'\n"


def test_an_unknown_option_may_be_close_to_the_negative_name_of_a_flag(
    collhub, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    @click.option("--coloured/--plain")
    def command(coloured: bool) -> None:
        pass

    monkeypatch.setattr(
        program._OfferedCommands, "get_command", lambda self, context, name: command
    )
    assert "; did you mean '--plain'?; see" in collhub("verify", "--plan").err


def failing(error: BaseException):
    @click.command()
    def command() -> None:
        raise error

    return command


@pytest.fixture
def raise_from_command(collhub, monkeypatch: pytest.MonkeyPatch):
    """Run the program with a command that raises the given error."""

    def run(error: BaseException, *arguments: str):
        monkeypatch.setattr(
            program._OfferedCommands, "get_command", lambda self, context, name: failing(error)
        )
        return collhub(*arguments, "verify")

    return run


@pytest.mark.parametrize(
    ("error", "code", "rule"),
    [
        (InputError("x"), 1, " [invalid-input]"),
        # The page of `usage` says no more than that the request is wrong.
        (UsageError("x"), 2, ""),
        (UsageError("x", code="unknown-option"), 2, " [unknown-option]"),
        (PluginError("x"), 3, " [plugin]"),
        (LossyError("x"), 4, " [lossy]"),
    ],
)
def test_a_foreseen_error_is_one_line_with_its_rule_and_exit_code(
    raise_from_command, error: Exception, code: int, rule: str
) -> None:
    run = raise_from_command(error)
    assert (run.code, run.out, run.err) == (code, "", f"error: x{rule}\n")


def test_every_diagnostic_of_an_error_is_a_line_with_severity_place_cure_and_rule(
    raise_from_command,
) -> None:
    place = Location("a.xml", 3, rank=1)
    error = InputError(
        [
            Diagnostic("a", "bad", location=place, cure="mend it"),
            Diagnostic("b", "odd", Severity.WARNING),
        ]
    )
    assert raise_from_command(error).err.splitlines() == [
        "error: a.xml:3: rank 1: bad; mend it [a]",
        "warning: odd [b]",
    ]


def test_what_could_break_a_line_or_a_terminal_is_escaped(raise_from_command) -> None:
    error = InputError("a\nb\x1b[31m\udcff", code="c\nd")
    assert raise_from_command(error).err == "error: a b\\x1b[31m\\udcff [c d]\n"


def test_an_unforeseen_error_is_one_line_and_exit_70(raise_from_command) -> None:
    run = raise_from_command(ZeroDivisionError("oops"))
    assert run.code == 70
    assert re.fullmatch(
        r"error: internal error: ZeroDivisionError: oops; .*report it.*--debug\n", run.err
    )


def test_debug_shows_the_traceback(raise_from_command) -> None:
    assert (
        "Traceback (most recent call last)"
        in raise_from_command(ZeroDivisionError("oops"), "--debug").err
    )


def test_the_environment_asks_for_the_traceback_too(
    raise_from_command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLHUB_TRACEBACK", "1")
    assert "Traceback (most recent call last)" in raise_from_command(InputError("x")).err


def test_an_interrupt_is_exit_130(raise_from_command) -> None:
    run = raise_from_command(KeyboardInterrupt())
    assert (run.code, run.err) == (130, "error: interrupted\n")


def test_an_error_of_the_system_names_the_file(raise_from_command) -> None:
    run = raise_from_command(PermissionError(13, "Permission denied", "a.txt"))
    assert (run.code, run.err) == (1, "error: a.txt: Permission denied\n")


def test_lack_of_memory_is_said(raise_from_command) -> None:
    run = raise_from_command(MemoryError())
    assert (run.code, run.err) == (1, "error: not enough memory for this input\n")


def test_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-P", "-m", "hub_core.cli.main", "formats"]
    with os.fdopen(writer, "wb") as closed:
        result = subprocess.run(
            command, stdout=closed, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert (result.returncode, result.stderr) == (141, b"")


def test_output_that_cannot_be_redirected_opens_no_descriptor() -> None:
    """Without descriptors 0 and 2, the copy of descriptor 1 would get number 0 and stay open."""
    code = (
        "import os\n"
        "from hub_core.cli.start_record import data_kept_apart\n"
        "os.close(0); os.close(2)\n"
        "with data_kept_apart(): pass\n"
        "try: os.fstat(0)\n"
        "except OSError: print('closed')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert run.stdout == "closed\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-"])
@pytest.mark.parametrize("arguments", ["formats", "--help", "verify {}", "verify -"])
def test_a_closed_stream_is_quiet_and_changes_no_exit_code(
    ring: Path, closed: str, arguments: str
) -> None:
    command = f"{sys.executable} -P -m hub_core.cli.main {arguments.format(ring)} {closed}"
    streams = {"stdin": subprocess.DEVNULL, "capture_output": True}
    result = subprocess.run(command, shell=True, timeout=60, check=False, text=True, **streams)
    expected = 1 if arguments == "verify -" else 0
    assert result.returncode == expected
    assert "internal error" not in result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    # Words for standard error do not turn up among the data.
    assert "error: " not in result.stdout


def test_an_output_for_a_closed_stream_is_refused_and_not_lost(ring: Path) -> None:
    command = f"{sys.executable} -P -m hub_core.cli.main convert {ring} --to json -o - >&-"
    streams = {"stdin": subprocess.DEVNULL, "capture_output": True}
    result = subprocess.run(command, shell=True, timeout=60, check=False, text=True, **streams)
    assert result.returncode == 2
    assert result.stderr == "error: standard output is closed; give -o a path\n"


def test_a_file_does_not_get_the_number_of_a_closed_stream(ring: Path, tmp_path: Path) -> None:
    # Else the words for standard output would be written into the file.
    out = tmp_path / "out.json"
    command = f"{sys.executable} -P -m hub_core.cli.main convert {ring} -o {out} >&- 2>&-"
    assert subprocess.run(command, shell=True, timeout=60, check=False).returncode == 0
    assert out.read_bytes() == ring.read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_one_line() -> None:
    command = [sys.executable, "-P", "-m", "hub_core.cli.main", "formats"]
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert (result.returncode, result.stderr) == (1, b"error: No space left on device\n")


def test_the_installed_program_is_this_one() -> None:
    result = subprocess_run("--version")
    assert (result.returncode, result.stdout.decode()) == (0, f"collhub {__version__}\n")


@pytest.mark.parametrize(("policy", "is_coloured"), [("always", True), ("never", False)])
def test_color_decides_for_one_run(collhub, policy: str, is_coloured: bool) -> None:
    run = collhub("--color", policy, "verify", "no-such-file")
    assert run.code == 1
    assert ("\x1b[31merror:" in run.err) == is_coloured
    assert "NO_COLOR" not in os.environ or os.environ["NO_COLOR"] != "1"
    assert collhub("verify", "no-such-file").err.startswith("error:")
