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

    Control characters are escaped. A line that is wider than the terminal is wrapped between words
    and not coloured; its continuation lines are indented by 4 more than the line. Without a
    terminal, lines are not wrapped.
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
    """Print one JSON document on standard output.

    The keys keep their order; the text is ASCII with an indentation of two spaces. Raises
    `ValueError` for NaN and infinity.
    """
    # Imported here: most commands print text.
    import json

    print(json.dumps(document, indent=2, allow_nan=False))


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> None:
    """Print a header and rows to standard output as aligned columns, with two spaces between them.

    The columns whose names are in `right` are right-aligned, all others left-aligned; trailing
    spaces are omitted. Unprintable characters are escaped. On a terminal, cells are wrapped between
    words, then at hyphens, to fit its width. If that is not sufficient, a row is printed as lines
    of column name and value instead, without header and empty cells, rows an empty line apart.
    No text is truncated, no number separated from its unit. `ValueError` if a row lacks a cell.
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
    """Merge the ranks whose rows are equal: one row per distinct row.

    `cells`: the cells of a row by rank. Rows are equal if all their cells are equal. The result is
    in the order of first appearance. A new first cell lists the ranks of the row, such as `0-7`.
    """
    ranks: dict[tuple[str, ...], list[int]] = {}
    for rank, row in cells.items():
        ranks.setdefault(tuple(row), []).append(rank)
    return [(format_ranks(members), *row) for row, members in ranks.items()]


def print_fields(fields: Mapping[str, str]) -> None:
    """Print one line `name  value` per field, with aligned values, wrapped on a terminal."""
    pairs = [(one_line(name), one_line(value)) for name, value in fields.items()]
    _print_pairs(pairs, _get_terminal_width())


def _print_pairs(pairs: Sequence[tuple[str, str]], room: int | None) -> None:
    """Print names and values in two columns.

    The first column is as wide as the longest name; the values begin two characters after it.
    `room`: characters per line in which values are wrapped, with at least `_NARROWEST_COLUMN` (12)
    for a value; None: values are not wrapped. Prints nothing without pairs.
    """
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        left = len(value) if room is None else room - width - len(_GAP)
        for head, part in _wrap_row((name, value), (width, max(left, _NARROWEST_COLUMN))):
            print(f"{head.ljust(width)}{_GAP}{part}".rstrip())


def print_diagnostic(diagnostic: Diagnostic) -> None:
    """Print a finding as one line on stderr: `error: FILE:LINE: message; cure [RULE]`.

    RULE is the identifier of the finding's rule, its `code`, of which `collhub explain RULE` prints
    the page; it is dim if standard error has colours. The identifier `usage` is omitted with its
    brackets, because it is the rule of all requests without a rule of their own.
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
    """Print a message as one line on stderr, followed by a space and `rule`, dim, unless empty."""
    # Flushed first, so that a terminal shows both streams in order.
    sys.stdout.flush()
    line = coloured_line(one_line(message), sys.stderr)
    if rule:
        line += f" {dimmed(one_line(rule), sys.stderr)}"
    print(line, file=sys.stderr)


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an error on standard error, chained exceptions included.

    The message of the error is printed as one line, because it may contain text of a file; its line
    breaks are replaced.
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
    r"""Escape all characters that could break the line or control the terminal.

    A line feed or tab becomes a space. Every other character that is not printable (Unicode's
    categories "Other" and "Separator", except the space) becomes a Python escape, such as `\r`.
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
    """Show `what` and the elapsed seconds on stderr while the body runs.

    Nothing is shown during the first second, or if stderr is not a terminal. A background thread
    shows it; it has ended when the body is left, also after an exception.
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

    The line is `WHAT P %, S s left, DETAIL`. Nothing is shown unless stderr is a terminal, nor
    within 1 s of the start or the last line. A fraction of 0 or less means waiting, for example
    for a compiler: `WHAT, DETAIL` is then shown at once. It is also shown if the largest fraction
    has not grown since the last wait. Otherwise S is (1 - fraction) / speed. The speed is this
    growth by the time since the wait (or the start). The line is erased when the body ends.
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
    """Overwrite the last `width` characters on stderr by a line, and return the new length.

    A line that is wider than the terminal is truncated, because a wrapped line could not be
    overwritten. Control characters are escaped.
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
    """Return the width of the terminal in characters; None if the stream is not a terminal.

    The default of `stream` is standard output. On a terminal, the environment variable COLUMNS
    takes precedence over the width that the system states.
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
    """Return column widths that fit into `room` characters, or None if words would be broken.

    `room` includes gaps of two characters. The widths start at the longest cells. While they do
    not fit, the widest column that is wider than its longest word (the leftmost of equal ones)
    loses one character. Only if the longest words do not fit, words are also split at hyphens
    between letters; None if these parts do not fit either.
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
    """Split a text at spaces into parts between which a line may end; none is empty.

    A digit before a space and a letter, `µ` or `%` stays with the next word ("5 ms", "8 ranks"):
    the part has a no-break space (`_TIE`) there, which the caller replaces. `at_hyphens`: also
    split after a hyphen between two letters.
    """
    # Imported here: most output is not wrapped.
    import re

    words = re.sub(r"(?<=[0-9]) (?=[A-Za-zµ%])", _TIE, text).split(" ")
    if at_hyphens:
        words = [part for word in words for part in re.split(r"(?<=[A-Za-z]-)(?=[A-Za-z])", word)]
    return [word for word in words if word]


def _wrap_row(row: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Yield the printed lines of one row of a table, each with one cell per column.

    Cells are wrapped to the widths of their columns (at least 1); shorter cells are continued by
    "". A row whose cells all fit is yielded unchanged.
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
    """Split a word that is longer than `width`, such as a path, into parts of at most that length.

    It is split at every hyphen between letters. Parts that are still too long are split after every
    punctuation character such as `/`, `,`, `_` or `-`, and if these parts are too long, after every
    `width` characters. Joined, the parts are the word; short neighbours are not joined again.
    """
    import re

    pieces: list[str] = []
    for piece in _split_into_words(word, at_hyphens=True):
        parts = [piece] if len(piece) <= width else re.split(r"(?<=[/,;:?&=+_.|()*-])", piece)
        for part in filter(None, parts):
            pieces += [part[first : first + width] for first in range(0, len(part), width)]
    return pieces
