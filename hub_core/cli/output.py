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

from hub_core.model import Diagnostic, Severity

PROGRESS_DELAY_S = 1.0
_GAP = "  "
_NARROWEST_COLUMN = 12


def print_line(line: str = "") -> None:
    """Print one line of data."""
    print(one_line(line))


def print_json(document: object) -> None:
    """Print one JSON document: keys in the given order, ASCII, two spaces of indent, no NaN."""
    # Imported here: most commands print text.
    import json

    print(json.dumps(document, indent=2, allow_nan=False))


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> None:
    """Print aligned columns, two spaces apart; the columns named in `right` are right-aligned.

    On a terminal, wide columns are wrapped into its width; nothing is cut.
    """
    table = [[one_line(cell) for cell in row] for row in (header, *rows)]
    is_right = [name in right for name in header]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    if (most := _terminal_columns()) is not None:
        widths = _narrowed(widths, is_right, most - len(_GAP) * (len(widths) - 1))
    for row in table:
        for cells in _wrapped(row, widths):
            aligned = (
                cell.rjust(width) if to_right else cell.ljust(width)
                for cell, width, to_right in zip(cells, widths, is_right, strict=True)
            )
            print(_GAP.join(aligned).rstrip())


def print_fields(fields: Mapping[str, str]) -> None:
    """Print one `name  value` line a field, values aligned, and wrapped on a terminal."""
    escaped = {one_line(name): one_line(value) for name, value in fields.items()}
    width = max(map(len, escaped), default=0)
    most = _terminal_columns()
    for name, value in escaped.items():
        room = len(value) if most is None else most - width - len(_GAP)
        for head, part in _wrapped((name, value), (width, max(room, _NARROWEST_COLUMN))):
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
    print(one_line(message), file=sys.stderr)


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


def _narrowed(widths: Sequence[int], is_right: Sequence[bool], most: int) -> list[int]:
    """Widths whose sum is at most `most`, taken from the widest columns of text.

    Numbers stay whole, and no column gets narrower than `_NARROWEST_COLUMN`.
    """
    narrowed = list(widths)
    texts = [column for column, to_right in enumerate(is_right) if not to_right]
    while texts and sum(narrowed) > most:
        widest = max(texts, key=narrowed.__getitem__)
        if narrowed[widest] <= _NARROWEST_COLUMN:
            break
        narrowed[widest] -= 1
    return narrowed


def _wrapped(row: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """The lines that one row takes, each with a cell for every column."""
    if all(len(cell) <= width for cell, width in zip(row, widths, strict=True)):
        yield tuple(row)
        return
    # Imported here: most tables fit.
    import itertools
    import textwrap

    columns = [
        textwrap.wrap(cell, max(width, 1), break_on_hyphens=False)
        for cell, width in zip(row, widths, strict=True)
    ]
    yield from itertools.zip_longest(*columns, fillvalue="")
