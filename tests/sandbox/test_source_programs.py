"""Programs run in a process of their own; more of it is tested by the languages."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hub_core.model import Diagnostic, ExitCode, InputError, Severity, UsageError
from hub_core.plugin_api import Source
from hub_core.sandbox import (
    ProcessLimits,
    ProgramAnswerError,
    Report,
    chosen_places,
    imports_any,
    landlock_features,
    landlock_version,
    parsed_source,
    process,
    run_program,
    shell_words,
    warn_of_output,
)

pytestmark = pytest.mark.once

LIMITS = ProcessLimits(5, 1 << 30)
CHILD = "collhub_source_programs_test_language:main"


def run(tmp_path: object, text: str, *arguments: str, limits: ProcessLimits = LIMITS) -> Report:
    return run_program(CHILD, "program.py", text.encode(), list(arguments), limits)


@pytest.fixture(autouse=True)
def language(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A language whose programs make the number `result`."""
    path = f"{tmp_path}/collhub_source_programs_test_language.py"
    with open(path, "w") as file:
        file.write(LANGUAGE)
    monkeypatch.syspath_prepend(str(tmp_path))


LANGUAGE = """\
from hub_core.sandbox import error_report, run_job


def look_up(key):
    return {}[key]


class Language:
    folder = __file__

    def prepare(self, file):
        pass

    def has_result(self):
        return False

    def report(self, namespace, chosen, end):
        if "result" not in namespace:
            return error_report("makes no result", -1, "no-program")
        return {"result": namespace["result"], "line": end.get("exit_line")}

    def message(self, error):
        return "a key is missing" if isinstance(error, KeyError) and error.args[0] else ""


def main():
    run_job(Language())
"""


def test_what_a_program_makes_comes_back(tmp_path: object) -> None:
    text = "import sys\nresult = len(sys.argv)\n"
    assert run(tmp_path, text, "one", "two") == {"result": 3, "line": None}


def test_process_of_a_program_imports_neither_numpy_nor_the_plugin_api(tmp_path: object) -> None:
    # They take two thirds of the start, and only the hub's own process needs them.
    text = "import sys\nresult = sorted({'numpy', 'hub_core.plugin_api'} & set(sys.modules))\n"
    assert run(tmp_path, text)["result"] == []


def test_exit_without_error_is_an_end(tmp_path: object) -> None:
    assert run(tmp_path, "import sys\nresult = 1\nsys.exit()\n")["line"] == 3


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("x = 1\n", "no-program", "program.py: makes no result"),
        ("result = 1\n{}['x']\n", "program-failed", "program.py:2: a key is missing"),
        (
            "from collhub_source_programs_test_language import look_up\nlook_up('')\n",
            "program-failed",
            "program.py:2: KeyError$",
        ),
        ("1 / 0\n", "program-failed", "program.py:1: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit('so')\n", "program-failed", "program.py:2: .*status 1: so"),
        ("import os\nos.abort()\n", "program-failed", "ended by signal 6"),
        ("x = bytearray(1 << 34)\n", "memory-limit", "program.py:1: needs more memory than the"),
    ],
)
def test_a_program_that_fails_is_told_with_its_line(
    tmp_path: object, text: str, code: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        run(tmp_path, text)
    assert caught.value.diagnostics[0].code == code


@pytest.mark.parametrize("arguments", [(), ("8",)])
def test_failure_of_a_program_without_its_arguments_says_how_to_give_them(
    tmp_path: object, arguments: tuple[str, ...]
) -> None:
    text = "import sys\nrange(sys.argv[1:] == ['8'] or None)\nrange(None)\n"
    with pytest.raises(InputError) as caught:
        run(tmp_path, text, *arguments)
    finding = caught.value.diagnostics[0]
    assert finding.location.line == (3 if arguments else 2)
    assert ("give them after --" in finding.cure) == (not arguments)


def test_what_is_printed_is_kept_with_its_line(tmp_path: object) -> None:
    report = run(tmp_path, "result = 1\nprint('words')\n")
    assert report["printed"] == {"line": 2, "text": "words"}
    findings: list[Diagnostic] = []
    warn_of_output(Source("program.py", (), findings.append), report)
    assert [(one.code, one.location.line) for one in findings] == [("program-prints", 2)]


def test_syntax_is_told_without_executing() -> None:
    with pytest.raises(InputError, match=r"program\.py:2: is no Python program") as caught:
        parsed_source("program.py", b"x = 1\ndef\n")
    assert caught.value.diagnostics[0].code == "syntax"


def test_imports_are_seen_in_both_forms() -> None:
    for text in (b"import one.two\n", b"from one import two\n"):
        (node,) = parsed_source("p", text).body
        assert imports_any(node, ("one",))
        assert not imports_any(node, ("two",))


def test_one_of_several_is_meant_by_number_or_name() -> None:
    names = ["a", "b", "a"]
    assert chosen_places(names, None) == [0, 1, 2]
    assert chosen_places(names, "2") == [1]
    assert chosen_places(names, "a") == [0, 2]
    assert chosen_places(names, "4") == []
    # Python converts at most 4300 digits.
    assert chosen_places(names, "1" * 5000) == []


def test_arguments_are_quoted_as_in_a_shell() -> None:
    assert shell_words("--name 'two words'") == ["--name", "two words"]
    with pytest.raises(UsageError, match="quote as in a shell"):
        shell_words("'open")


# ---- the sandbox ----

needs_landlock = pytest.mark.skipif(landlock_version() == 0, reason="the kernel has no Landlock")
REPORTS_ERROR = """
def attempt(action):
    try:
        action()
    except OSError as error:
        return type(error).__name__
    return "allowed"
"""


def attempt(tmp_path: object, action: str, limits: ProcessLimits = LIMITS) -> object:
    """What becomes of an action of a program: `allowed`, or the name of the error."""
    text = f"import os, socket\n{REPORTS_ERROR}\nresult = attempt(lambda: {action})\n"
    return run(tmp_path, text, limits=limits)["result"]


@needs_landlock
@pytest.mark.parametrize(
    "action",
    [
        "open({file!r}, 'w')",
        "os.mkdir({file!r})",
        "open('/etc/passwd').read()",
        "os.listdir('/')",
        "os.kill({parent}, 0)",
    ],
)
def test_a_program_has_no_access_outside_its_sandbox(tmp_path: Path, action: str) -> None:
    outside = tmp_path.parent / "outside"
    named = action.format(file=str(outside), parent=os.getpid())
    assert attempt(tmp_path, named) == "PermissionError"
    assert not outside.exists()


@needs_landlock
@pytest.mark.parametrize(
    "action", ["open({file!r}, 'w')", "__import__('tempfile').TemporaryDirectory()"]
)
def test_an_action_that_the_sandbox_denies_has_the_cure_to_switch_it_off(
    tmp_path: Path, action: str
) -> None:
    text = f"import sys\nsys.argv\n{action.format(file=str(tmp_path.parent / 'outside'))}\n"
    with pytest.raises(InputError) as caught:
        run(tmp_path, text)
    assert caught.value.diagnostics[0].cure.endswith("-O sandbox=off")
    # Without the sandbox the user's rights are the reason.
    with pytest.raises(InputError) as caught:
        run(tmp_path, f"raise PermissionError({action!r})", limits=replace(LIMITS, sandbox=False))
    assert "sandbox" not in caught.value.diagnostics[0].cure


@pytest.mark.skipif(
    not landlock_features(landlock_version())["TCP connections"],
    reason="the kernel's Landlock does not restrict TCP",
)
def test_a_program_opens_no_tcp_connections(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert attempt(tmp_path, f"socket.create_connection({address})") == "PermissionError"


def test_without_sandbox_a_program_has_the_rights_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "written"
    limits = ProcessLimits(5, 1 << 30, sandbox=False)
    assert attempt(tmp_path, f"open({str(file)!r}, 'w')", limits) == "allowed"
    assert file.exists()


def test_a_program_sees_no_variables_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("HOME", "/root")
    text = "import os\nresult = [name for name in ('SECRET_TOKEN', 'HOME') if name in os.environ]\n"
    assert run(tmp_path, text)["result"] == []


def test_the_memory_of_all_processes_is_limited_together(tmp_path: Path) -> None:
    text = (
        "import os, time\n"
        "for _ in range(8):\n"
        "    if os.fork() == 0:\n"
        "        data = bytearray(os.urandom(1 << 20) * 64)\n"
        "        time.sleep(30)\n"
        "        os._exit(0)\n"
        "time.sleep(30)\n"
    )
    with pytest.raises(InputError, match="took more memory than the limit"):
        run(tmp_path, text, limits=ProcessLimits(5, 256 << 20))


def test_the_cpu_time_of_all_processes_is_limited_together(tmp_path: Path) -> None:
    text = (
        "import os\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        while True: pass\n"
        "import time\ntime.sleep(60)\n"
    )
    with pytest.raises(InputError, match=r"took more CPU time|did not end within") as caught:
        run(tmp_path, text, limits=ProcessLimits(1, 1 << 30))
    assert caught.value.diagnostics[0].code in ("limit", "time-limit")


def test_the_number_of_processes_is_limited(tmp_path: Path) -> None:
    text = (
        "import os, time\n"
        "for _ in range(100):\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(30)\n"
        "        os._exit(0)\n"
        "time.sleep(30)\n"
    )
    with pytest.raises(InputError, match="started more than 64 processes") as caught:
        run(tmp_path, text)
    assert caught.value.diagnostics[0].code == "limit"


FIND_REPORT = """
import os
def report_pipe():
    for number in range(3, 30):
        try:
            if os.readlink(f"/proc/self/fd/{number}").startswith("pipe"):
                return number
        except OSError:
            pass
"""


def test_a_report_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_REPORT_BYTES", 4 << 20)
    text = FIND_REPORT + "pipe = report_pipe()\nwhile True:\n    os.write(pipe, b'{' * (1 << 16))\n"
    with pytest.raises(InputError, match="the program reports more than 4 MiB"):
        run(tmp_path, text)


def test_a_forged_answer_is_an_error(tmp_path: Path) -> None:
    forged = b'{"answer": ["verified: correct"], "line": 1}'
    text = FIND_REPORT + f"os.write(report_pipe(), {forged!r})\nos._exit(0)\n"
    with pytest.raises(ProgramAnswerError) as caught:
        run(tmp_path, text)
    assert caught.value.exit_code == ExitCode.INVALID
    assert [found.severity for found in caught.value.diagnostics] == [Severity.NOTE, Severity.ERROR]
    assert {found.code for found in caught.value.diagnostics} == {"program-answer"}


def test_a_report_that_is_nested_too_deep_is_an_error(tmp_path: Path) -> None:
    text = FIND_REPORT + "os.write(report_pipe(), b'{\"a\":' * 10000)\nos._exit(0)\n"
    with pytest.raises(InputError) as caught:
        run(tmp_path, text)
    assert {found.code for found in caught.value.diagnostics} == {"program-failed"}


@needs_landlock
def test_a_process_that_ignores_signals_ends_with_the_program(tmp_path: Path) -> None:
    text = (
        "import ctypes, os, signal, time\n"
        "parent = os.getppid()\n"
        "ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    for number in range(1, 32):\n"
        "        try: signal.signal(number, signal.SIG_IGN)\n"
        "        except (OSError, ValueError): pass\n"
        "    try: os.kill(parent, 9)\n"
        "    except OSError: pass\n"
        "    time.sleep(300)\n"
        "result = 1\n"
    )
    before = time.monotonic()
    assert run(tmp_path, text)["result"] == 1
    # Bounded: far less than the sleep of the process that was left.
    assert time.monotonic() - before < 60
