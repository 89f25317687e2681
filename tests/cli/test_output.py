"""Tables, lines and progress."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable

import pytest

from hub_core.cli import output
from hub_core.model import Diagnostic, Location

OnNarrow = Callable[[Callable[[], None]], str]


class Terminal(io.StringIO):
    """A standard error that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


def test_columns_are_aligned_and_numbers_stand_right(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "size"), [("a", "1"), ("long", "1000")], right=("size",))
    assert capsys.readouterr().out == "name  size\na        1\nlong  1000\n"


def test_a_table_without_rows_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "size"), [])
    assert capsys.readouterr().out == "name  size\n"


@pytest.fixture
def on_narrow(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], str]:
    """`on_narrow(print_it)`: what is printed on a terminal of 40 columns."""

    def run(print_it: Callable[[], None]) -> str:
        # Within the test: pytest sets standard output anew between a fixture and a test.
        monkeypatch.setenv("COLUMNS", "40")
        monkeypatch.setattr(sys, "stdout", terminal := Terminal())
        print_it()
        return terminal.getvalue()

    return run


def test_a_table_fits_a_terminal_and_loses_nothing(on_narrow: OnNarrow) -> None:
    text = "what a long description of a format says, word by word"
    header = ("name", "size", "description")
    row = ("a", "123456", text)
    lines = on_narrow(lambda: output.print_table(header, [row], right=("size",))).splitlines()
    assert max(map(len, lines)) <= 40
    # The first two columns and the gaps behind them take 14 characters.
    assert " ".join(line[14:] for line in lines[1:]).split() == text.split()
    assert lines[1].startswith("a     123456  ")


def test_a_word_that_is_wider_than_its_column_is_broken_and_not_cut(on_narrow: OnNarrow) -> None:
    shown = on_narrow(lambda: output.print_table(("name", "path"), [("a", "/" + 60 * "x")]))
    assert max(map(len, shown.splitlines())) <= 40
    assert shown.count("x") == 60


def test_numbers_are_never_broken(on_narrow: OnNarrow) -> None:
    row = ("x" * 30, "1" * 30)
    assert row[1] in on_narrow(lambda: output.print_table(("a", "b"), [row], right=("b",)))


def test_fields_fit_a_terminal_and_lose_nothing(on_narrow: OnNarrow) -> None:
    fields = {"steps": " ".join(f"{count} kind" for count in range(20)), "size": "1"}
    lines = on_narrow(lambda: output.print_fields(fields)).splitlines()
    assert max(map(len, lines)) <= 40
    assert [count for line in lines for count in line.split() if count == "kind"] == ["kind"] * 20
    assert lines[-1] == "size   1"


def test_what_is_piped_is_not_wrapped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    output.print_table(("name",), [("word " * 30,)])
    assert capsys.readouterr().out == f"name\n{('word ' * 30).rstrip()}\n"


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        output.print_json({"a": float("nan")})


def test_progress_is_silent_where_stderr_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "PROGRESS_DELAY_S", 0.001)
    with output.progress("working"):
        time.sleep(0.02)
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal_counts_and_wipes_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PROGRESS_DELAY_S", 0.001)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with output.progress("working"):
        time.sleep(0.05)
    shown = terminal.getvalue()
    assert "\rworking ... 0 s" in shown
    assert shown.endswith("\r" + " " * len("working ... 0 s") + "\r")


def test_quick_work_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with output.progress("working"):
        pass
    assert terminal.getvalue() == ""


def test_progress_is_not_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PROGRESS_DELAY_S", 0.0)
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with output.progress_bar("working") as show:
        show(0.0, "x" * 50)
    assert terminal.getvalue() == f"\rworking, {'x' * 10}\r{' ' * 19}\r"


def test_no_time_is_told_while_nothing_is_done_and_none_of_it_counts_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with output.progress_bar("synthesizing") as show:
        for now[0] in (2.0, 20.0):
            show(0.0, "compiling")
        now[0] = 24.0
        show(0.5, "searching")
    lines = [line.rstrip() for line in terminal.getvalue().split("\r")]
    assert lines[1:4] == [
        "synthesizing, compiling",
        "synthesizing, compiling",
        "synthesizing 50 %, 4 s left, searching",
    ]


def test_a_wait_in_the_middle_does_not_count_in_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with output.progress_bar("synthesizing") as show:
        for now[0], fraction in ((10.0, 0.5), (10.0, 0.0), (40.0, 0.0), (42.0, 0.75)):
            show(fraction, "x")
    lines = [line.strip() for line in terminal.getvalue().split("\r")]
    # Half in 10 s; then a quarter in the 2 s behind the wait, so that the last quarter takes 2 s.
    assert lines[1] == "synthesizing 50 %, 10 s left, x"
    assert lines[4] == "synthesizing 75 %, 2 s left, x"


def test_headings_wrap_before_words_break_and_numbers_keep_their_units(
    on_narrow: OnNarrow,
) -> None:
    header = ("size", "winner", "time", "ratio to bound")
    row = ("16 KiB", "recursive-doubling", "160.78 us", "1.829")
    lines = on_narrow(lambda: output.print_table(header, [row], ("size", "time"))).splitlines()
    assert max(map(len, lines)) <= 40
    assert any("160.78 us" in line for line in lines)
    assert lines[2].split() == ["16", "KiB", "recursive-", "160.78", "us", "1.829"] or (
        "recursive-doubling" in lines[2]
    )


def test_a_table_that_cannot_fit_becomes_a_record_a_row(on_narrow: OnNarrow) -> None:
    header = ("name", *(f"column{number}" for number in range(5)))
    rows = [("a", *["12345 GB/s"] * 5), ("b", "", *["1 us"] * 4)]
    lines = on_narrow(lambda: output.print_table(header, rows, header[1:])).splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[:2] == ["name     a", "column0  12345 GB/s"]
    # The empty cell of the second row is left out.
    assert lines[7:] == ["name     b", *[f"column{number}  1 us" for number in range(1, 5)]]


def test_a_long_topology_text_breaks_behind_its_punctuation(on_narrow: OnNarrow) -> None:
    text = "dgx-h100:4?network=leaf-spine:4,8,4&network-bandwidth=50GB/s"
    lines = on_narrow(lambda: output.print_fields({"topology": text})).splitlines()
    assert max(map(len, lines)) <= 40
    assert "".join(line.removeprefix("topology").strip() for line in lines) == text
    assert all(line.rstrip()[-1] in "-:?&=,/" for line in lines[:-1])


def test_lines_wrap_with_a_hanging_indent(on_narrow: OnNarrow) -> None:
    text = "  -O chunks=TEXT  pieces of the share of every rank, or auto"
    lines = on_narrow(lambda: output.print_line(text)).splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[0].startswith("  -O chunks=TEXT")
    assert all(line.startswith(6 * " ") for line in lines[1:])


def test_equal_rows_of_ranks_are_folded() -> None:
    cells = {0: ("1 us", "2"), 1: ("1 us", "2"), 2: ("3 us", "2"), 3: ("1 us", "2")}
    assert output.folded_ranks(cells) == [("0,1,3", "1 us", "2"), ("2", "3 us", "2")]
    assert output.folded_ranks(dict.fromkeys(range(8), ("1 us",))) == [("0-7", "1 us")]


@pytest.mark.parametrize(
    ("environment", "is_terminal", "is_coloured"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_findings_are_coloured_on_terminals(
    environment: dict[str, str],
    is_terminal: bool,
    is_coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    output.print_error("it is broken")
    plain = "error: it is broken\n"
    assert stream.getvalue() == (
        plain.replace("error:", "\x1b[31merror:\x1b[0m", 1) if is_coloured else plain
    )


def test_the_rule_of_a_finding_is_dim_on_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    output.print_diagnostic(Diagnostic("race", "two writes", location=Location("a.xml", 3)))
    assert terminal.getvalue() == "\x1b[31merror:\x1b[0m a.xml:3: two writes \x1b[2m[race]\x1b[0m\n"


def test_verdicts_in_tables_are_coloured_and_stay_aligned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    output.print_table(("mode", "verdict", "x"), [("in place", "ok", "1"), ("out", "wrong", "2")])
    shown = terminal.getvalue().splitlines()
    assert shown[1] == "in place  \x1b[32mok\x1b[0m       1"
    assert shown[2] == "out       \x1b[31mwrong\x1b[0m    2"
