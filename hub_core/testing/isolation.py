"""See what a piece of code does besides returning: output, files, processes, network."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

# Names of audit events that tell of something outside the process ("Audit events table" of Python's
# library reference); `open` is looked at apart.
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
# The import system, and what reads the metadata of installed distributions.
_IMPORTERS = ("importlib", "importlib_metadata")
_METADATA_READER = "hub_core.installed"
_LONGEST_LINE = 120


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
        """Take an event of the whole process: the hook of PEP 578."""
        if self.seen is None or not _is_access(event):
            return
        # Data files of a distribution are a part of it, as its code is.
        if event == "open" and self._is_own(*arguments[:2]):
            return
        # A first call imports what the work needs, which opens files as well.
        if _is_importing():
            return
        what = ", ".join(map(repr, arguments[:1]))
        self.seen.append(f"{event} {what}"[:_LONGEST_LINE])

    def _is_own(self, path: object, mode: object) -> bool:
        """Whether a file of the distribution itself is opened for reading."""
        # The mode is None where flags alone are given, as by `os.open`.
        is_reading = not isinstance(mode, str) or not set(mode) & set("wax+")
        if not is_reading or not isinstance(path, str):
            return False
        return os.path.abspath(path).startswith(self.own_folders)


@functools.cache
def _installed_watch() -> _Watch:
    # An audit hook stays for the life of the process, so there is one.
    watch = _Watch()
    sys.addaudithook(watch.note)
    return watch


def _is_access(event: str) -> bool:
    """Whether an audit event opens a file or stands under one of the prefixes in `_AUDITED`."""
    return event == "open" or event.startswith(_AUDITED)


def _is_importing() -> bool:
    """Whether the import system or a reader of metadata is at work further up the stack."""
    return any(
        name == _METADATA_READER or name.partition(".")[0] in _IMPORTERS
        for name in _calling_modules()
    )


def _calling_modules() -> Iterator[str]:
    """Names of the modules whose code is being run, innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        yield str(frame.f_globals.get("__name__", ""))
        frame = frame.f_back  # type: ignore[assignment]
