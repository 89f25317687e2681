"""How commands print: data as JSON or aligned text on stdout; findings and progress on stderr.

Names and contents of files are not to be trusted: everything that is printed passes `one_line`, so
that it can neither drive the terminal nor look like a line of its own. JSON escapes by itself.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TextIO

from hub_core.cli.colours import coloured_cell, coloured_line
from hub_core.model import Diagnostic, Severity, format_ranks

PROGRESS_DELAY_S = 1.0
_GAP = "  "
# Stands for a blank at which no line may end.
_TIE = "\N{NO-BREAK SPACE}"
_NARROWEST_COLUMN = 12
# Further indent of the lines that follow a wrapped one.
_HANGING = 4


def print_line(line: str = "") -> None:
    """Print one line of data, on a terminal wrapped between words, with a deeper indent."""
    text = one_line(line)
    room = _terminal_columns()
    if room is None or len(text) <= room:
        print(coloured_line(text, sys.stdout))
        return
    indent = len(text) - len(text.lstrip())
    first, *others = _lines(text.lstrip(), max(room - indent - _HANGING, _NARROWEST_COLUMN))
    print(" " * indent + first)
    for part in others:
        print(" " * (indent + _HANGING) + part)


def print_json(document: object) -> None:
    """Print one JSON document: keys in the given order, ASCII, two spaces of indent, no NaN."""
    # Imported here: most commands print text.
    import json

    print(json.dumps(document, indent=2, allow_nan=False))


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> None:
    """Print aligned columns, two spaces apart; the columns named in `right` are right-aligned.

    On a terminal, columns are wrapped between words, then at hyphens, into its width; if that is
    not enough, every row becomes lines of a column's name and value. Nothing is cut, and no number
    is parted from its unit.
    """
    names = [one_line(name) for name in header]
    table = [[one_line(cell) for cell in row] for row in rows]
    room = _terminal_columns()
    if room is None:
        widths: list[int] | None = _natural_widths([names, *table])
    else:
        widths = fitted_widths([names, *table], room)
    if widths is None:
        for number, row in enumerate(table):
            if number:
                print()
            pairs = zip(names, row, strict=True)
            _print_pairs([(name, cell) for name, cell in pairs if cell], room)
        return
    is_right = [name in right for name in header]
    for row in [names, *table]:
        for cells in _wrapped(row, widths):
            aligned = (
                cell.rjust(width) if to_right else cell.ljust(width)
                for cell, width, to_right in zip(cells, widths, is_right, strict=True)
            )
            shown = [*aligned]
            shown[-1] = shown[-1].rstrip()
            print(_GAP.join(coloured_cell(cell, sys.stdout) for cell in shown).rstrip())


def folded_ranks(cells: Mapping[int, Sequence[str]]) -> list[tuple[str, ...]]:
    """Rows of a table by rank with equal ones as one row, in the order of their first ranks.

    `cells`: by rank; the first cell of a row are its ranks, such as `0-7`.
    """
    ranks: dict[tuple[str, ...], list[int]] = {}
    for rank, row in cells.items():
        ranks.setdefault(tuple(row), []).append(rank)
    return [(format_ranks(members), *row) for row, members in ranks.items()]


def print_fields(fields: Mapping[str, str]) -> None:
    """Print one `name  value` line a field, values aligned, and wrapped on a terminal."""
    pairs = [(one_line(name), one_line(value)) for name, value in fields.items()]
    _print_pairs(pairs, _terminal_columns())


def _print_pairs(pairs: Sequence[tuple[str, str]], room: int | None) -> None:
    """Print names and values in two columns, the values wrapped into `room` characters."""
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        left = len(value) if room is None else room - width - len(_GAP)
        for head, part in _wrapped((name, value), (width, max(left, _NARROWEST_COLUMN))):
            print(f"{head.ljust(width)}{_GAP}{part}".rstrip())


def print_diagnostic(diagnostic: Diagnostic) -> None:
    """Print a finding as one line on stderr: `error: FILE:LINE: what is wrong; what to do`."""
    print_note(f"{diagnostic.severity}: {diagnostic}")


def print_error(message: str) -> None:
    """Print an error that has no diagnostic as one line on stderr."""
    print_note(f"{Severity.ERROR}: {message}")


def print_note(message: str) -> None:
    """Print what the user may want to know, but not as data, as one plain line on stderr."""
    # What is already on stdout goes first, so that a terminal shows both in order.
    sys.stdout.flush()
    print(coloured_line(one_line(message), sys.stderr), file=sys.stderr)


def print_traceback(error: BaseException) -> None:
    """Print where an error came from, on stderr."""
    # Imported here: it takes longer than most of the start.
    import traceback

    for part in traceback.format_exception(error):
        # A frame is several lines of ours; a message is one, whatever it holds.
        lines = part.splitlines() if part.startswith("  ") else [part.rstrip("\n")]
        for line in lines:
            print_note(line)


def one_line(text: str) -> str:
    """Escape what would break a line or a terminal: control characters, escapes, overrides.

    What is not printable (Unicode's categories "Other" and "Separator", a space excepted) becomes
    its Python escape; line breaks and tabs become spaces.
    """
    if text.isprintable():
        return text
    return "".join(
        c
        if c.isprintable()
        else " "
        if c in "\n\t"
        else c.encode("unicode_escape", "replace").decode()
        for c in text
    )


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Show `what` and the seconds it has taken on stderr while the body runs.

    Only on a terminal, not before 1 s.
    """
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    ticker = threading.Thread(target=_tick, args=(what, done), daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float, str], None]]:
    """Yield `show(fraction, detail)`, which tells how far the work is and how long it may take.

    On a terminal, from 1 s on. A fraction of 0 says that the work proper waits, as for a compiler:
    that is shown at once, without a time, and does not count in the times told afterwards.
    """
    shown_at, shown_width = time.monotonic(), 0
    # Since when the work goes on without waiting, how far it was then, and how far it is.
    work_start, work_done, done = shown_at, 0.0, 0.0

    def show(fraction: float, detail: str) -> None:
        nonlocal shown_at, shown_width, work_start, work_done, done
        now = time.monotonic()
        is_waiting = fraction <= 0
        if is_waiting:
            work_start, work_done = now, done
        done = max(done, fraction)
        is_early = now - shown_at < PROGRESS_DELAY_S
        if not sys.stderr.isatty() or (is_early and not is_waiting):
            return
        line = f"{what}, {detail}"
        if not is_waiting and done > work_done:
            left = (now - work_start) * (1 - fraction) / (done - work_done)
            line = f"{what} {100 * fraction:.0f} %, {left:.0f} s left, {detail}"
        shown_at, shown_width = now, _show_over(line, shown_width)

    try:
        yield show
    finally:
        _wipe(shown_width)


def _tick(what: str, done: threading.Event) -> None:
    start = time.monotonic()
    width = 0
    while not done.wait(PROGRESS_DELAY_S):
        width = _show_over(f"{what} ... {time.monotonic() - start:.0f} s", width)
    _wipe(width)


def _show_over(line: str, width: int) -> int:
    """Write a line over one of `width` characters that stands on stderr; return its own width.

    A line wider than the terminal is cut, since the next could not be written over it.
    """
    most = (_terminal_columns(sys.stderr) or len(line) + 1) - 1
    # Names from files may hold line breaks.
    shown = one_line(line)[:most]
    print(f"\r{shown.ljust(min(width, most))}", end="", file=sys.stderr, flush=True)
    return len(shown)


def _wipe(width: int) -> None:
    """Blank the first `width` characters of the line on stderr, and go back to its start."""
    if width:
        print(f"\r{' ' * width}\r", end="", file=sys.stderr, flush=True)


def _terminal_columns(stream: TextIO | None = None) -> int | None:
    """Characters in a line of the terminal; None where the stream (default: stdout) is no terminal.

    COLUMNS in the environment comes before what the terminal says.
    """
    if not (stream or sys.stdout).isatty():
        return None
    # Imported here: it brings libraries for compression, and pipes need none of it.
    import shutil

    return shutil.get_terminal_size().columns


def _natural_widths(table: Sequence[Sequence[str]]) -> list[int]:
    """The widest cell of every column."""
    return [max(map(len, column)) for column in zip(*table, strict=True)]


def fitted_widths(table: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Widths of the columns that fit into `room` characters, None where words would be broken.

    The widest columns give way first, none below its longest word; words are broken at hyphens only
    if there is no other way.
    """
    widths = _natural_widths(table)
    room -= len(_GAP) * (len(widths) - 1)
    for at_hyphens in (False, True):
        columns = zip(*table, strict=True)
        least = [
            max(len(word) for cell in column for word in _words(cell, at_hyphens) or [""])
            for column in columns
        ]
        if sum(least) > room:
            continue
        fitted = list(widths)
        while sum(fitted) > room:
            slack = [width - low for width, low in zip(fitted, least, strict=True)]
            # The widest of those that can: long texts wrap before short names do.
            able = [column for column, left in enumerate(slack) if left]
            fitted[max(able, key=fitted.__getitem__)] -= 1
        return fitted
    return None


def _words(text: str, at_hyphens: bool = False) -> list[str]:
    """The parts between which a line may end: numbers stay with their units."""
    # Imported here: most output is not wrapped.
    import re

    words = re.sub(r"(?<=[0-9]) (?=[A-Za-zµ%])", _TIE, text).split(" ")
    if at_hyphens:
        words = [part for word in words for part in re.split(r"(?<=[A-Za-z]-)(?=[A-Za-z])", word)]
    return [word for word in words if word]


def _wrapped(row: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """The lines that one row takes, each with a cell for every column."""
    if all(len(cell) <= width for cell, width in zip(row, widths, strict=True)):
        yield tuple(row)
        return
    # Imported here: most tables fit.
    import itertools

    columns = [_lines(cell, max(width, 1)) for cell, width in zip(row, widths, strict=True)]
    yield from itertools.zip_longest(*columns, fillvalue="")


def _lines(text: str, width: int) -> list[str]:
    """A text in lines of at most `width`: by words, else at hyphens, else behind punctuation."""
    lines: list[str] = []
    line = ""
    for word in _words(text):
        pieces = [word]
        if len(word) > width:
            pieces = _pieces(word, width)
        for number, piece in enumerate(pieces):
            joined = f"{line} {piece}" if line and not number else f"{line}{piece}"
            if line and len(joined) > width:
                lines.append(line)
                joined = piece
            line = joined
    return [part.replace(_TIE, " ") for part in [*lines, line] if part] or [""]


def _pieces(word: str, width: int) -> list[str]:
    """A word that is too long, in parts: a path or a topology text behind its punctuation."""
    import re

    found: list[str] = []
    for piece in _words(word, at_hyphens=True):
        parts = [piece] if len(piece) <= width else re.split(r"(?<=[/,;:?&=+_.|()*-])", piece)
        for part in filter(None, parts):
            found += [part[first : first + width] for first in range(0, len(part), width)]
    return found
