"""Tables, lines and progress."""

from __future__ import annotations

import io
import sys
import time

import pytest

from hub_core.cli import output


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
