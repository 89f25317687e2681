"""Colours of verdicts and findings on terminals: https://no-color.org, FORCE_COLOR, `--color`."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from typing import TextIO

COLOUR_POLICIES = ("auto", "always", "never")
_OFF, _ON = "NO_COLOR", "FORCE_COLOR"
COLOUR_VARIABLES = (_OFF, _ON)
"""Environment variables that decide for `auto`; any text but an empty one counts."""

_RED, _GREEN, _YELLOW, _CYAN = "31", "32", "33", "36"
_DIM = "2"
_END = "\x1b[0m"
_VERDICTS = {
    "ok": _GREEN,
    "correct": _GREEN,
    "loaded": _GREEN,
    "wrong": _RED,
    "BAD": _RED,
    "broken": _RED,
    "failed": _RED,
    "never": _RED,
    "passed": _GREEN,
    "incompatible": _YELLOW,
    "skipped": _YELLOW,
    "disabled": _YELLOW,
}
_SEVERITY = re.compile(r"(error|warning|note):(?= )")
_SEVERITIES = {"error": _RED, "warning": _YELLOW, "note": _CYAN}
# A verdict at the start of a line, or at its end after a colon.
_AT_START = re.compile(r"(ok|BAD)(?= )")
_AT_END = re.compile(r"(?<=: )(not correct as claimed|correct as claimed|verified)\Z")


def use_colours(policy: str, environment: MutableMapping[str, str]) -> None:
    """Set or remove the environment variables that control colours, following `--color`.

    `never` sets NO_COLOR to 1 and removes FORCE_COLOR; `always` does the opposite; `auto` changes
    nothing. `environment` is modified.
    """
    if policy == "auto":
        return
    environment.pop(_ON if policy == "never" else _OFF, None)
    environment[_OFF if policy == "never" else _ON] = "1"


def has_colours(stream: TextIO) -> bool:
    """Return whether output on a stream is coloured.

    A non-empty NO_COLOR disables colours; otherwise a non-empty FORCE_COLOR enables them; otherwise
    colours are used if the stream is a terminal and TERM is not `dumb`.
    """
    if os.environ.get(_OFF):
        return False
    if os.environ.get(_ON):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def coloured_cell(cell: str, stream: TextIO) -> str:
    """Return a table cell, coloured if its text is a verdict such as `ok`, `wrong` or `skipped`.

    The verdict must be the complete text except for surrounding blanks, which are kept and not
    coloured: green for success, red for failure, yellow for items that were not run or loaded.
    Any other cell is returned unchanged, and so is every cell if `stream` has no colours.
    """
    colour = _VERDICTS.get(cell.strip())
    if colour is None or not has_colours(stream):
        return cell
    word = cell.strip()
    return cell.replace(word, _paint(word, colour))


def coloured_line(line: str, stream: TextIO) -> str:
    """Return the line with at most one coloured word: its severity or its verdict.

    The first of these that the line has is coloured:

    - `error:`, `warning:` or `note:` at the start, followed by a blank;
    - `ok` or `BAD` at the start, followed by a blank;
    - `verified`, `correct as claimed` (both green) or `not correct as claimed` (red) at the
      end, after a colon and a blank.

    Any other line, and every line on a stream without colours, is returned unchanged. `line`
    has no line break.
    """
    if not has_colours(stream):
        return line
    if match := _SEVERITY.match(line):
        return _paint(match[0], _SEVERITIES[match[1]]) + line[match.end() :]
    if match := _AT_START.match(line):
        return _paint(match[1], _VERDICTS[match[1]]) + line[match.end() :]
    if match := _AT_END.search(line):
        colour = _RED if match[1].startswith("not") else _GREEN
        return line[: match.start()] + _paint(match[1], colour)
    return line


def dimmed(text: str, stream: TextIO) -> str:
    """Return a text in dim characters; unchanged on a stream without colours."""
    return _paint(text, _DIM) if has_colours(stream) else text


def _paint(text: str, colour: str) -> str:
    return f"\x1b[{colour}m{text}{_END}"
