"""Run plugin code in isolation: exceptions, exits and output do not affect the program."""

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

# The standard streams belong to the process: two threads that load plugins must not replace them at
# the same time. The lock is reentrant, because a plugin may discover plugins while it is loaded.
_STREAMS = threading.RLock()


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """Result of plugin code: its value or the reason of its failure, and its output."""

    value: T | None
    reason: str | None
    printed: str


def attempt(work: Callable[[], T]) -> Attempt[T]:
    """Run `work`; return its value, or the reason of the exception that it raised, and its output.

    The value is None after an exception, and the reason None without one. All exceptions are
    caught, including `SystemExit` and `os._exit`; only Ctrl-C and lack of memory are not. Standard
    output and error are captured together, standard input is empty. Only one thread at a time runs
    here.
    """
    with _STREAMS, _intercept_exit(), _capture_streams() as stream:
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
    """Convert exceptions of plugin code in the body to `PluginError` with plugin and function.

    `owner`: the plugin; `reference`: the function. A missing module has its own message and remedy.
    Not converted: `HubError`, which the plugin raised on purpose; Ctrl-C; lack of memory, which is
    not the plugin's fault. `SystemExit` is converted.
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
    """Describe an error in one line: its type, its message, and the file and line that raised it.

    A `HubError` is described by its first message only, `SystemExit` as an attempt to end the
    program with its status. White space in messages is reduced to single spaces, and they are
    truncated to 300 characters; an empty one is omitted.
    """
    origin = _format_origin(error)
    if isinstance(error, SystemExit):
        return f"it tried to end the program with status {error.code!r}{origin}"
    if isinstance(error, HubError):
        return error.diagnostics[0].message
    message = " ".join(_get_message(error).split())[:300]
    return (
        f"{type(error).__name__}: {message}{origin}"
        if message
        else f"{type(error).__name__}{origin}"
    )


def _format_origin(error: BaseException) -> str:
    """Return ` (FILE:LINE)` of the innermost frame that raised an error; "" without a traceback.

    FILE is the name of the source file without its folder; the text begins with a space.
    """
    # Only the frames: the library's `extract_tb` would read every source file for its lines.
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return ""
    return f" ({Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno})"


def _get_message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "an error without a readable message"


@contextlib.contextmanager
def _intercept_exit() -> Iterator[None]:
    """Convert `os._exit` in the body, which would end the program silently, to `SystemExit`.

    `os._exit` is replaced for all threads during the body and restored afterwards. Processes that
    the body forks exit normally, and so does a call of the replacement after the body.
    """
    real_exit, owner = os._exit, os.getpid()

    def refused(status: int) -> NoReturn:
        # Plugin code may store this function and call it in a child process, or later.
        if os._exit is real_exit or os.getpid() != owner:
            real_exit(status)
        raise SystemExit(status)

    os._exit = refused
    try:
        yield
    finally:
        os._exit = real_exit


@contextlib.contextmanager
def _capture_streams() -> Iterator[_Captured]:
    """Replace the standard streams during the body; yield the stream that captures its output.

    Standard output and standard error go to that one stream, in the order of writing; standard
    input is empty. Only the objects in `sys` are replaced, not the file descriptors. The previous
    streams are restored, also after an exception.
    """
    saved = sys.stdin, sys.stdout, sys.stderr
    stream = _Captured()
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO()), stream, stream
    try:
        yield stream
    finally:
        sys.stdin, sys.stdout, sys.stderr = saved


class _Captured(io.TextIOWrapper):
    """A UTF-8 text stream into memory without buffering; `buffer` has the bytes so far."""

    buffer: io.BytesIO

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="replace", write_through=True)
