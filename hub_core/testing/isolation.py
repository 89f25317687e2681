"""Observe the side effects of a function: output, files, processes, network."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

# Prefixes of audit events that concern the system outside the process ("Audit events table" of
# Python's library reference); `open` is handled separately.
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
# Modules of the import system; the reader of metadata of installed distributions.
_IMPORTERS = ("importlib", "importlib_metadata")
_METADATA_READER = "hub_core.installed"
_MAX_TEXT_LENGTH = 120
_MEMORY_DATABASE = ("sqlite3.connect", (":memory:",))


def capture_output(work: Callable[[], object]) -> str:
    """Call `work` and return the text that it writes to standard output and standard error.

    Both outputs are in one text, in the order of writing. Only output through `sys.stdout`
    and `sys.stderr` is captured, not that of other processes or of `os.write`. The result
    of `work` is dropped. Exceptions of `work` are raised again, and the text is lost.
    """
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        work()
    return output.getvalue()


def record_accesses(work: Callable[[], object], readable_folders: Sequence[str]) -> list[str]:
    """Call `work`, and list its accesses to files, processes and the network in time order.

    Each recorded audit event of Python (`_Watch.note`) gives one text
    `EVENT FIRST_ARGUMENT` of at most 120 characters. Only the current thread is watched.
    Accesses by imports or by readers of package metadata are omitted, and so is opening
    files in `readable_folders` for reading. The result of `work` is dropped; its exceptions
    are not caught. The first call installs an audit hook, which remains in the process.
    """
    watch = _install_watch()
    watch.accesses = []
    # With a separator at the end, so that `/a/bc` is not in `/a/b`.
    prefixes = (os.path.join(os.path.abspath(folder), "") for folder in readable_folders)
    watch.readable_prefixes = tuple(prefixes)
    try:
        work()
    finally:
        accesses, watch.accesses = watch.accesses, None
    return accesses


class _Watch(threading.local):
    """Accesses of the current thread while it is watched, else None.

    `readable_prefixes`: files whose paths begin with one of them may be opened for reading.
    """

    accesses: list[str] | None = None
    readable_prefixes: tuple[str, ...] = ()

    def note(self, event: str, arguments: tuple[object, ...]) -> None:
        """Record an audit event if the current thread is watched (an audit hook of PEP 578).

        The text `EVENT FIRST_ARGUMENT`, with the `repr` of the argument and cut to 120 characters,
        is appended to `accesses`. Nothing happens if the thread is not watched (`accesses` is
        None). Only `open` and events that begin with a prefix of `_AUDITED`, such as `os.` or
        `socket.`, are recorded. Of these, the following are left out:

        - `open` for reading, of a path (`str`) that begins with one of `readable_prefixes`. It is
          relative to the current folder; links are not resolved. `os.open` counts as reading,
          with any flags.
        - databases in memory, and `sqlite3.connect/handle`
        - events with a caller, direct or not, in `importlib`, `importlib_metadata` (also their
          submodules) or `hub_core.installed`
        """
        if self.accesses is None or not (event == "open" or event.startswith(_AUDITED)):
            return
        if event == "open":
            path, mode = arguments[:2]
            # The mode is None for `os.open`, which has only flags.
            is_reading = not isinstance(mode, str) or not set(mode) & set("wax+")
            file = os.path.abspath(path) if isinstance(path, str) else ""
            if is_reading and file.startswith(self.readable_prefixes):
                return
        # A database in memory is no file; the handle belongs to a connection that was reported.
        if event == "sqlite3.connect/handle" or (event, arguments[:1]) == _MEMORY_DATABASE:
            return
        # Imports open files too.
        if any(
            name == _METADATA_READER or name.partition(".")[0] in _IMPORTERS
            for name in _iterate_calling_modules()
        ):
            return
        argument = ", ".join(map(repr, arguments[:1]))
        self.accesses.append(f"{event} {argument}"[:_MAX_TEXT_LENGTH])


@functools.cache
def _install_watch() -> _Watch:
    """Install the audit hook on the first call and return its watch.

    Later calls return the same watch, because an audit hook cannot be removed.
    """
    # An audit hook cannot be removed, so there is one per process.
    watch = _Watch()
    sys.addaudithook(watch.note)
    return watch


def _iterate_calling_modules() -> Iterator[str]:
    """Yield the module name of every frame on the stack, from the innermost frame outwards.

    The innermost frame is the one that requests the first name. Names repeat if a module
    has several frames. The name of a frame without a module name is "".
    """
    frame = sys._getframe(1)
    while frame is not None:
        yield str(frame.f_globals.get("__name__", ""))
        frame = frame.f_back  # type: ignore[assignment]
