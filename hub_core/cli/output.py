"""How commands print: data as JSON or aligned text on stdout; findings and progress on stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hub_core.model import Diagnostic, Severity

if TYPE_CHECKING:
    pass


PROGRESS_DELAY_S = 1.0


def print_line(line: str) -> None:
    """Print one line of data."""
    print(line)


def print_json(document: object) -> None:
    """Print one JSON document: keys in the given order, ASCII, two spaces of indent, no NaN."""
    # Imported here: most commands print text.
    import json

    print(json.dumps(document, indent=2, allow_nan=False))


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> None:
    """Print aligned columns, two spaces apart; the columns named in `right` are right-aligned."""
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for row in table:
        cells = zip(row, widths, header, strict=True)
        print(
            "  ".join(
                c.rjust(width) if name in right else c.ljust(width) for c, width, name in cells
            ).rstrip()
        )


def print_fields(fields: Mapping[str, str]) -> None:
    """Print one `name  value` line a field, values aligned."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        print(f"{name.ljust(width)}  {value}".rstrip())


def print_diagnostic(diagnostic: Diagnostic) -> None:
    """Print a finding as one line on stderr: `error: FILE:LINE: what is wrong; what to do`."""
    _print_line(diagnostic.severity, str(diagnostic))


def print_error(message: str) -> None:
    """Print an error that has no diagnostic as one line on stderr."""
    _print_line(Severity.ERROR, message)


def print_note(message: str) -> None:
    """Print what the user may want to know, but not as data, as one plain line on stderr."""
    sys.stdout.flush()
    print(one_line(message), file=sys.stderr)


def one_line(text: str) -> str:
    """Escape what would break a line or a terminal.

    Names and contents of files are not to be trusted.
    """
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

    On a terminal, from 1 s on.
    """
    start = time.monotonic()
    shown = [start, 0.0]

    def show(fraction: float, detail: str) -> None:
        now = time.monotonic()
        if not sys.stderr.isatty() or now - shown[0] < PROGRESS_DELAY_S:
            return
        left = (now - start) * (1 / fraction - 1) if fraction > 0 else float("inf")
        line = (
            f"{what} {100 * fraction:.0f} %, {left:.0f} s left, {detail}"
            if left < float("inf")
            else f"{what}, {detail}"
        )
        print(f"\r{line.ljust(int(shown[1]))}", end="", file=sys.stderr, flush=True)
        shown[:] = [now, len(line)]

    try:
        yield show
    finally:
        if shown[1]:
            print(f"\r{' ' * int(shown[1])}\r", end="", file=sys.stderr, flush=True)


def _tick(what: str, done: threading.Event) -> None:
    start = time.monotonic()
    line = ""
    while not done.wait(PROGRESS_DELAY_S):
        line = f"{what} ... {time.monotonic() - start:.0f} s"
        print(f"\r{line}", end="", file=sys.stderr, flush=True)
    if line:
        print(f"\r{' ' * len(line)}\r", end="", file=sys.stderr, flush=True)


def _print_line(severity: Severity, message: str) -> None:
    # What is already on stdout goes first, so that a terminal shows both in order.
    sys.stdout.flush()
    print(f"{severity}: {one_line(message)}", file=sys.stderr)
