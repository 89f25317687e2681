"""Run code of plugins so that nothing it does.

Raising, exiting, printing - reaches further than it may.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

from hub_core.model.diagnostics import HubError, PluginError
from hub_core.plugin_api.options import Reference

T = TypeVar("T")

# The standard streams belong to the process: two threads that load plugins must not swap them at
# once. A plugin that discovers plugins while it is loaded comes here twice.
_STREAMS = threading.RLock()


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """What plugin code returned, or the reason why it did not; and what it printed meanwhile."""

    value: T | None
    reason: str | None
    printed: str


def attempt(work: Callable[[], T]) -> Attempt[T]:
    """Run `work`, catching all but Ctrl-C and lack of memory, `SystemExit` and `os._exit` included.

    `except Exception` is not enough here.
    """
    with _STREAMS, _no_silent_end(), _swapped_streams() as stream:
        try:
            value, reason = work(), None
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:
            value, reason = None, reason_of(error)
        printed = "" if stream.closed else stream.buffer.getvalue().decode(errors="replace")
    return Attempt(value, reason, printed)


@contextlib.contextmanager
def blamed_on(owner: str, reference: Reference) -> Iterator[None]:
    """Turn what plugin code raises in the body into a `PluginError` that names plugin and function.

    Passed through: `HubError`, which the plugin meant; Ctrl-C; lack of memory, which no plugin can
    help.
    """
    try:
        yield
    except (HubError, KeyboardInterrupt, MemoryError):
        raise
    except ModuleNotFoundError as error:
        cure = (
            f"install the distribution of {error.name!r}, or the plugin again with its dependencies"
        )
        raise PluginError(
            f"{owner}: {reference} needs the module {error.name!r}, which is missing", cure=cure
        ) from error
    except BaseException as error:
        cure = "report it to the plugin's authors; --debug shows the traceback"
        raise PluginError(f"{owner}: {reference} failed: {reason_of(error)}", cure=cure) from error


def reason_of(error: BaseException) -> str:
    """One line: the kind of error, its message, and the file and line that raised it."""
    place = _place_of(error)
    if isinstance(error, SystemExit):
        return f"it tried to end the program with status {error.code!r}{place}"
    if isinstance(error, HubError):
        return error.diagnostics[0].message
    message = " ".join(_text_of(error).split())[:300]
    return (
        f"{type(error).__name__}: {message}{place}" if message else f"{type(error).__name__}{place}"
    )


def _place_of(error: BaseException) -> str:
    """` (FILE:LINE)` of the code that raised an error, or an empty text."""
    # The frames alone: the library's `extract_tb` reads every file that it names for its lines.
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return ""
    return f" ({Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno})"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "an error without a readable message"


@contextlib.contextmanager
def _no_silent_end() -> Iterator[None]:
    """Make `os._exit`, which would end the program with nothing said, a `SystemExit` in the body.

    Processes that the body forks end by it as ever.
    """
    real_exit, owner = os._exit, os.getpid()

    def refused(status: int) -> NoReturn:
        # Who keeps this function may call it in a child, or when no plugin is being loaded.
        if os._exit is real_exit or os.getpid() != owner:
            real_exit(status)
        raise SystemExit(status)

    os._exit = refused
    try:
        yield
    finally:
        os._exit = real_exit


@contextlib.contextmanager
def _swapped_streams() -> Iterator[_Captured]:
    """Keep the program's standard streams away from the body.

    Yield the stream that took its output.
    """
    kept = sys.stdin, sys.stdout, sys.stderr
    stream = _Captured()
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO()), stream, stream
    try:
        yield stream
    finally:
        sys.stdin, sys.stdout, sys.stderr = kept


class _Captured(io.TextIOWrapper):
    """A text stream into memory."""

    buffer: io.BytesIO

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="replace", write_through=True)
