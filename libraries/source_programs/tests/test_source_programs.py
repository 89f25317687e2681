"""Programs run in a process of their own; more of it is tested by the languages."""

from __future__ import annotations

import pytest
from collhub_source_programs import (
    ProcessLimits,
    Report,
    chosen_places,
    imports_any,
    parsed_source,
    run_program,
    shell_words,
)

from hub_core.model import InputError, UsageError

LIMITS = ProcessLimits(5, 1 << 30)
CHILD = "collhub_source_programs_test_language:main"


def run(tmp_path: object, text: str, *arguments: str) -> Report:
    return run_program(CHILD, "program.py", text.encode(), list(arguments), LIMITS)


@pytest.fixture(autouse=True)
def language(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A language whose programs make the number `result`."""
    path = f"{tmp_path}/collhub_source_programs_test_language.py"
    with open(path, "w") as file:
        file.write(LANGUAGE)
    monkeypatch.syspath_prepend(str(tmp_path))


LANGUAGE = """\
from collhub_source_programs import error_report, run_job


class Language:
    folder = "/nowhere"

    def prepare(self, file):
        pass

    def has_result(self):
        return False

    def report(self, namespace, chosen, end):
        if "result" not in namespace:
            return error_report("makes no result", -1, "no-program")
        return {"result": namespace["result"], "line": end.get("exit_line")}

    def message(self, error):
        return "a key is missing" if isinstance(error, KeyError) else ""


def main():
    run_job(Language())
"""


def test_what_a_program_makes_comes_back(tmp_path: object) -> None:
    text = "import sys\nresult = len(sys.argv)\n"
    assert run(tmp_path, text, "one", "two") == {"result": 3, "line": None}


def test_exit_without_error_is_an_end(tmp_path: object) -> None:
    assert run(tmp_path, "import sys\nresult = 1\nsys.exit()\n")["line"] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "program.py: makes no result"),
        ("result = 1\n{}['x']\n", "program.py:2: a key is missing"),
        ("1 / 0\n", "program.py:1: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit('so')\n", "program.py:2: .*status 1: so"),
        ("import os\nos.abort()\n", "ended by signal 6"),
        ("x = bytearray(1 << 34)\n", "program.py:1: needs more memory than the limit"),
    ],
)
def test_a_program_that_fails_is_told_with_its_line(
    tmp_path: object, text: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run(tmp_path, text)


def test_what_is_printed_is_kept_with_its_line(tmp_path: object) -> None:
    report = run(tmp_path, "result = 1\nprint('words')\n")
    assert report["printed"] == {"line": 2, "text": "words"}


def test_syntax_is_told_without_executing() -> None:
    with pytest.raises(InputError, match=r"program\.py:2: is no Python program"):
        parsed_source("program.py", b"x = 1\ndef\n")


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


def test_arguments_are_quoted_as_in_a_shell() -> None:
    assert shell_words("--name 'two words'") == ["--name", "two words"]
    with pytest.raises(UsageError, match="quote as in a shell"):
        shell_words("'open")
