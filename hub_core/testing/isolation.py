"""See what a piece of code does besides returning: output, files, processes, network."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

_AUDITED = (
    "os.",
    "shutil.",
    "tempfile.",
    "socket.",
    "subprocess.",
    "urllib.",
    "http.",
    "ftplib.",
    "smtplib.",
    "sqlite3.",
    "glob.",
)


def output_of(work: Callable[[], object]) -> str:
    """What `work` writes to standard output and standard error."""
    taken = io.StringIO()
    with contextlib.redirect_stdout(taken), contextlib.redirect_stderr(taken):
        work()
    return taken.getvalue()


def accesses_of(work: Callable[[], object], own_folders: Sequence[str]) -> list[str]:
    """Files, processes and network addresses that `work` asks for, as Python's audit events tell.

    Left out: what imports and readers of package metadata do, and files in `own_folders` that are
    only read.
    """
    watch = _installed_watch()
    watch.seen, watch.own_folders = [], tuple(own_folders)
    try:
        work()
    finally:
        seen, watch.seen = watch.seen, None
    return seen


class _Watch(threading.local):
    """The accesses of the current thread while it is watched, else None."""

    seen: list[str] | None = None
    own_folders: tuple[str, ...] = ()

    def note(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.seen is None or not (event == "open" or event.startswith(_AUDITED)):
            return
        if not (event == "open" and self._is_own(*arguments[:2])) and not _is_importing():
            self.seen.append(f"{event} {', '.join(map(repr, arguments[:1]))}"[:120])

    def _is_own(self, path: object, mode: object) -> bool:
        is_reading = not isinstance(mode, str) or not set(mode) & set("wax+")
        return (
            is_reading
            and isinstance(path, str)
            and os.path.abspath(path).startswith(self.own_folders)
        )


@functools.cache
def _installed_watch() -> _Watch:
    # An audit hook stays for the life of the process, so there is one.
    watch = _Watch()
    sys.addaudithook(watch.note)
    return watch


def _is_importing() -> bool:
    return any(
        name.partition(".")[0] in ("importlib", "importlib_metadata") for name in _calling_modules()
    )


def _calling_modules() -> Iterator[str]:
    frame = sys._getframe(1)
    while frame is not None:
        yield str(frame.f_globals.get("__name__", ""))
        frame = frame.f_back  # type: ignore[assignment]
