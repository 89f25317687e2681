"""Print data on standard output, and findings, notes and progress on standard error.

Names and contents of files are not trusted: all printed text passes `one_line`, so that it can
neither control the terminal nor imitate a line of the program. JSON is escaped by its encoder.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TextIO

from hub_core.cli.colours import coloured_cell, coloured_line, dimmed
from hub_core.model import Diagnostic, Severity, UsageError, format_ranks

PROGRESS_DELAY_S = 1.0
_GAP = "  "
# A space at which a line must not end.
_TIE = "\N{NO-BREAK SPACE}"
_NARROWEST_COLUMN = 12
# Additional indent of the continuation lines of a wrapped line.
_HANGING = 4


def print_line(line: str = "") -> None:
    """Print one line of data on standard output; `coloured_line` colours a verdict in it.

    Control characters are escaped. A line wider than the terminal is wrapped between words, not
    coloured, and continued with 4 more spaces. Without a terminal, lines are not wrapped.
    """
    text = one_line(line)
    room = _get_terminal_width()
    if room is None or len(text) <= room:
        print(coloured_line(text, sys.stdout))
        return
    indent = len(text) - len(text.lstrip())
    first, *continuation = _wrap_text(
        text.lstrip(), max(room - indent - _HANGING, _NARROWEST_COLUMN)
    )
    print(" " * indent + first)
    for part in continuation:
        print(" " * (indent + _HANGING) + part)


def print_json(document: object) -> None:
    """Print one JSON document on standard output, in ASCII with an indentation of two spaces.

    The keys keep their order. Raises `ValueError` for NaN and infinity.
    """
    # Imported here: most commands print text.
    import json

    print(json.dumps(document, indent=2, allow_nan=False))


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> None:
    """Print a header and rows to standard output as aligned columns, with two spaces between them.

    Columns in `right` are right-aligned, all others left-aligned, without trailing spaces.
    Unprintable characters are escaped. Verdicts such as `ok` are coloured (`coloured_cell`). Only
    on a terminal, cells are wrapped to its width, between words, then after hyphens. If that is not
    sufficient, each row is printed as lines of column name and value, without header and empty
    cells, rows an empty line apart. No text is truncated, no number separated from its unit.
    Raises `ValueError` if a row has too few or too many cells.
    """
    names = [one_line(name) for name in header]
    table = [[one_line(cell) for cell in row] for row in rows]
    room = _get_terminal_width()
    if room is None:
        widths: list[int] | None = _measure_columns([names, *table])
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
        for cells in _wrap_row(row, widths):
            aligned = (
                cell.rjust(width) if to_right else cell.ljust(width)
                for cell, width, to_right in zip(cells, widths, is_right, strict=True)
            )
            shown = [*aligned]
            shown[-1] = shown[-1].rstrip()
            print(_GAP.join(coloured_cell(cell, sys.stdout) for cell in shown).rstrip())


def folded_ranks(cells: Mapping[int, Sequence[str]]) -> list[tuple[str, ...]]:
    """Merge the ranks with equal rows: return one row per distinct row, by first appearance.

    `cells`: by rank, the cells of its row. A new first cell has the ranks in order: `0-7`, `0,1,4`.
    """
    ranks: dict[tuple[str, ...], list[int]] = {}
    for rank, row in cells.items():
        ranks.setdefault(tuple(row), []).append(rank)
    return [(format_ranks(members), *row) for row, members in ranks.items()]


def print_fields(fields: Mapping[str, str]) -> None:
    """Print one line `name  value` per field on standard output, with aligned values.

    On a terminal, values are wrapped to its width. Unprintable characters are escaped.
    """
    pairs = [(one_line(name), one_line(value)) for name, value in fields.items()]
    _print_pairs(pairs, _get_terminal_width())


def _print_pairs(pairs: Sequence[tuple[str, str]], room: int | None) -> None:
    """Print names and values on standard output in two columns; no lines without pairs.

    Values begin two characters after the longest name. `room`: characters per line, to which values
    are wrapped, but never to fewer than `_NARROWEST_COLUMN` (12) per value; None: no wrapping.
    """
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        left = len(value) if room is None else room - width - len(_GAP)
        for head, part in _wrap_row((name, value), (width, max(left, _NARROWEST_COLUMN))):
            print(f"{head.ljust(width)}{_GAP}{part}".rstrip())


def print_diagnostic(diagnostic: Diagnostic) -> None:
    """Print a finding as one line on stderr: `error: FILE:LINE: message; cure [RULE]`.

    RULE is the identifier of the finding's rule, its `code`, of which `collhub explain RULE` prints
    the page; it is dim if standard error has colours. `usage` is omitted, with its brackets.
    """
    line = f"{diagnostic.severity}: {diagnostic}"
    if diagnostic.code == UsageError.default_code:
        print_note(line)
    else:
        _print_message(line, f"[{diagnostic.code}]")


def print_error(message: str) -> None:
    """Print an error that has no diagnostic as one line on stderr."""
    print_note(f"{Severity.ERROR}: {message}")


def print_note(message: str) -> None:
    """Print a message as one line on stderr, after all data printed so far."""
    _print_message(message)


def _print_message(message: str, rule: str = "") -> None:
    """Print a message as one line on standard error, followed by a space and the dim `rule`.

    An empty `rule` adds no text. Standard output is flushed first. Unprintable characters are
    escaped, and a severity or verdict is coloured (`coloured_line`).
    """
    # Flushed first, so that a terminal shows both streams in order.
    sys.stdout.flush()
    line = coloured_line(one_line(message), sys.stderr)
    if rule:
        line += f" {dimmed(one_line(rule), sys.stderr)}"
    print(line, file=sys.stderr)


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an error on standard error, chained exceptions included.

    A message is printed as one line, with spaces for line breaks: it may contain text of a file.
    """
    # Imported here: it takes longer than most of the start.
    import traceback

    for part in traceback.format_exception(error):
        # A frame consists of several lines of the program; a message is one line, because it may
        # contain text of a file.
        lines = part.splitlines() if part.startswith("  ") else [part.rstrip("\n")]
        for line in lines:
            print_note(line)


def one_line(text: str) -> str:
    r"""Return `text` without characters that could break the line or control the terminal.

    A line feed or tab becomes a space, every other unprintable character (Unicode's categories
    "Other" and "Separator", except the space) a Python escape, such as `\r`.
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
    """Context manager: show `what` and the elapsed seconds on stderr while the body runs.

    The line appears after 1 s and is erased after the body, also after an exception. A background
    thread prints it until then. Nothing is shown if stderr is not a terminal.
    """
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    ticker = threading.Thread(target=_show_elapsed_time, args=(what, done), daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float, str], None]]:
    """Yield `show(fraction, detail)`, which shows progress and remaining time on stderr.

    Waiting (`fraction` of at most 0) shows `WHAT, DETAIL` at once. Other calls show nothing within
    1 s after the start or the last line. Later ones show `WHAT P %, S s left, DETAIL` if the
    largest fraction has grown by G > 0 in the T seconds since the last wait (or the start), else
    `WHAT, DETAIL`. P is 100 times `fraction`; S is T (1 - `fraction`) / G. A new line replaces the
    old one. The end erases it. Nothing is shown unless stderr is a terminal.
    """
    shown_at, shown_width = time.monotonic(), 0
    # Start of the work after the last wait, its fraction at that time, and its largest fraction so
    # far.
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
        _erase_line(shown_width)


def _show_elapsed_time(what: str, done: threading.Event) -> None:
    start = time.monotonic()
    width = 0
    while not done.wait(PROGRESS_DELAY_S):
        width = _show_over(f"{what} ... {time.monotonic() - start:.0f} s", width)
    _erase_line(width)


def _show_over(line: str, width: int) -> int:
    """Replace the current line on standard error by `line`; return the new number of characters.

    `width`: number of characters shown so far; spaces overwrite the rest of them. A line wider than
    the terminal is truncated, as it could not be overwritten. Unprintable characters are escaped.
    """
    max_width = (_get_terminal_width(sys.stderr) or len(line) + 1) - 1
    # Names from files may contain line breaks.
    shown = one_line(line)[:max_width]
    print(f"\r{shown.ljust(min(width, max_width))}", end="", file=sys.stderr, flush=True)
    return len(shown)


def _erase_line(width: int) -> None:
    """Erase the first `width` characters of the line on stderr and return to its start."""
    if width:
        print(f"\r{' ' * width}\r", end="", file=sys.stderr, flush=True)


def _get_terminal_width(stream: TextIO | None = None) -> int | None:
    """Return the width of the terminal in characters; None if `stream` is not a terminal.

    `stream`, by default standard output, is only tested. The width is COLUMNS of the environment,
    if it is a positive integer, else that of the terminal of standard output, else 80.
    """
    if not (stream or sys.stdout).isatty():
        return None
    # Imported here: it brings libraries for compression, and pipes need none of it.
    import shutil

    return shutil.get_terminal_size().columns


def _measure_columns(table: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of the widest cell of every column."""
    return [max(map(len, column)) for column in zip(*table, strict=True)]


def fitted_widths(table: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Return column widths that fit into `room` characters, or None if this is impossible.

    `room` includes gaps of two. The widths are those of the longest cells, if they fit. If not, the
    widest column (of equal ones the leftmost) loses a character until they do. No column becomes
    narrower than its longest word; a number and its unit are one word. Only if the longest words do
    not fit, words are also split after hyphens between letters.
    """
    widths = _measure_columns(table)
    room -= len(_GAP) * (len(widths) - 1)
    for at_hyphens in (False, True):
        columns = zip(*table, strict=True)
        min_widths = [
            max(
                len(word) for cell in column for word in _split_into_words(cell, at_hyphens) or [""]
            )
            for column in columns
        ]
        if sum(min_widths) > room:
            continue
        fitted = list(widths)
        while sum(fitted) > room:
            slack = [width - low for width, low in zip(fitted, min_widths, strict=True)]
            # The widest column that can be narrowed: long texts wrap before short names.
            narrowable = [column for column, left in enumerate(slack) if left]
            fitted[max(narrowable, key=fitted.__getitem__)] -= 1
        return fitted
    return None


def _split_into_words(text: str, at_hyphens: bool = False) -> list[str]:
    """Split a text at spaces (no other white space) into words, none of which is empty.

    A space between a digit and `A-Z`, `a-z`, `µ` or `%` ("5 ms") becomes a no-break space,
    which the caller replaces. `at_hyphens`: also split after a hyphen between ASCII letters.
    """
    # Imported here: most output is not wrapped.
    import re

    words = re.sub(r"(?<=[0-9]) (?=[A-Za-zµ%])", _TIE, text).split(" ")
    if at_hyphens:
        words = [part for word in words for part in re.split(r"(?<=[A-Za-z]-)(?=[A-Za-z])", word)]
    return [word for word in words if word]


def _wrap_row(row: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of one row of a table, with one text per column; a row that fits is one line.

    Cells are wrapped at words to their column's width (at least 1); shorter ones continue as "".
    """
    if all(len(cell) <= width for cell, width in zip(row, widths, strict=True)):
        yield tuple(row)
        return
    # Imported here: most tables fit.
    import itertools

    columns = [_wrap_text(cell, max(width, 1)) for cell, width in zip(row, widths, strict=True)]
    yield from itertools.zip_longest(*columns, fillvalue="")


def _wrap_text(text: str, width: int) -> list[str]:
    """Wrap a text into lines of at most `width` characters; [""] for an empty text or only spaces.

    Lines take words (`_split_into_words`: `5 ms` is one word) as long as they fit, with one space
    between. A word longer than `width` is split at hyphens, then after punctuation, then anywhere,
    as far as needed; its first part continues the line if it fits.
    """
    lines: list[str] = []
    line = ""
    for word in _split_into_words(text):
        pieces = [word]
        if len(word) > width:
            pieces = _split_long_word(word, width)
        for number, piece in enumerate(pieces):
            joined = f"{line} {piece}" if line and not number else f"{line}{piece}"
            if line and len(joined) > width:
                lines.append(line)
                joined = piece
            line = joined
    return [part.replace(_TIE, " ") for part in [*lines, line] if part] or [""]


def _split_long_word(word: str, width: int) -> list[str]:
    """Split a word without spaces into parts of at most `width` characters.

    First it is split after every hyphen between two ASCII letters, also if it is short. Second,
    longer parts are split after each of `/ , ; : ? & = + _ . | ( ) * -`; third, after every
    `width` characters. Joined, the parts give the word. An empty word gives [].
    """
    import re

    pieces: list[str] = []
    for piece in _split_into_words(word, at_hyphens=True):
        parts = [piece] if len(piece) <= width else re.split(r"(?<=[/,;:?&=+_.|()*-])", piece)
        for part in filter(None, parts):
            pieces += [part[first : first + width] for first in range(0, len(part), width)]
    return pieces
