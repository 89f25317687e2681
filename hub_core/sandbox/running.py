"""Run one program in this process, which was started for it.

What it did is told as one line of JSON: what its language makes of it, or an error with the
program's line.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Protocol, TextIO

from hub_core.model import HubError
from hub_core.sandbox.landlock import restrict_this_process

_MOST_PRINTED = 8000
Report = dict[str, Any]
"""JSON values, which the parent reads."""


class Language(Protocol):
    """A language that is embedded in Python: what its programs make, and what they are told.

    `folder`: where its own modules are; errors that begin there are told as they are.
    """

    folder: str

    def prepare(self, file: str) -> None:
        """Make ready for the program of this name, which is about to be executed."""
        ...

    def has_result(self) -> bool:
        """Whether the program has made anything so far."""
        ...

    def report(self, namespace: Mapping[str, object], chosen: str | None, end: Report) -> Report:
        """What to tell of a program that ended well.

        `namespace`: its global names. `chosen`: which of several is meant. `end`: the line of
        `sys.exit`, if it ended so, as `exit_line`.
        """
        ...

    def message(self, error: BaseException) -> str:
        """What to tell of an error, empty for its own message."""
        ...


class _PrintedText(io.TextIOBase):
    """A standard stream of the program.

    Keeps where and what it wrote first, and its last words.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self.line = -1
        self.first = ""
        self.last = ""

    def writable(self) -> bool:
        """Whether the stream can be written, as `print` asks."""
        return True

    def write(self, text: str) -> int:
        """Keep the ends of what is written: a program may print without end."""
        if text and not self.first:
            self.line, self.first = calling_line(self._file), text[:200]
        self.last = (self.last + text)[-_MOST_PRINTED:]
        return len(text)


def run_job(language: Language) -> None:
    """Read the job from standard input, run the program, write the report, and end.

    The job is a line of JSON; the program follows it.
    """
    # A descriptor that the program does not know.
    report = os.fdopen(os.dup(1), "wb")
    job = json.loads(sys.stdin.buffer.readline())
    source = sys.stdin.buffer.read()
    _close_streams()
    _set_limits(job["time_limit_s"], job["memory_limit_bytes"], report)
    if job["sandbox"]:
        folder = str(Path(job["name"]).resolve().parent)
        places = [*sys.path, folder, *_package_places(), *_system_places()]
        restrict_this_process(places, [os.devnull])
    run = _Run(language, job["name"])
    outcome = run.outcome(source, job["arguments"], job["program"])
    report.write(json.dumps(outcome, separators=(",", ":")).encode())
    report.flush()
    # Threads and exit handlers that the program left behind have nothing to add.
    os._exit(0)


def error_report(message: str, line: int, code: str) -> Report:
    """An error of the program; line -1 where it has none."""
    return {"error": message, "line": line, "code": code}


def chosen_places(names: Sequence[str], chosen: str | None) -> list[int]:
    """Places of the programs that are meant: by number from 1, or by name; None: all."""
    if chosen is None:
        return list(range(len(names)))
    if chosen.isdecimal() and 1 <= int(chosen) <= len(names):
        return [int(chosen) - 1]
    return [place for place, name in enumerate(names) if name == chosen]


def calling_line(file: str) -> int:
    """The line of the nearest caller in `file`, or -1.

    Not of the nearest caller at all: that may be a routine of the language or of a module beside
    the program, and the reader of a report has the program before him.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame.f_lineno if frame.f_code.co_filename == file else -1


def _close_streams() -> None:
    """Point the standard streams nowhere, so that only the report goes to the parent."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _package_places() -> list[str]:
    """Folders of the packages that this process has imported.

    Packages that are installed from a checkout are not found by `sys.path`.
    """
    packages = [module for name, module in sys.modules.items() if "." not in name]
    return [place for one in packages for place in getattr(one, "__path__", ())]


def _system_places() -> list[str]:
    """Files of the system that Python and its extension modules read."""
    return [
        *(sys.prefix, sys.base_prefix, sys.exec_prefix),
        *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"),
        *("/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/random"),
    ]


def _set_limits(time_limit_s: int, memory_limit_bytes: int, report: BinaryIO) -> None:
    """Let the system end the process at its limits.

    The interpreter says before where the program is.
    """
    # Not on every system.
    import resource

    faulthandler.register(signal.SIGXCPU, report, all_threads=False, chain=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Two seconds for the interpreter's words, then SIGKILL, which a program cannot catch.
    resource.setrlimit(resource.RLIMIT_CPU, (time_limit_s, time_limit_s + 2))
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, memory_limit_bytes))


class _Run:
    """One program and the language that it is written in."""

    def __init__(self, language: Language, name: str) -> None:
        self._language = language
        self._name = name
        self._module = ModuleType("__main__")

    def outcome(self, source: bytes, arguments: list[str], chosen: str | None) -> Report:
        """Run the program and tell what became of it."""
        printed, complained = _PrintedText(self._name), _PrintedText(self._name)
        with (
            contextlib.redirect_stdout(_text(printed)),
            contextlib.redirect_stderr(_text(complained)),
        ):
            outcome = self._executed(source, arguments, complained)
            is_silent = "error" not in outcome and not self._language.has_result()
            if "exit_line" in outcome and is_silent and printed.last:
                # The program answers a question, such as --help, instead of making anything.
                return {"answer": printed.last.splitlines()}
            if "error" not in outcome:
                outcome = self._reported(chosen, outcome)
        if printed.first:
            outcome["printed"] = {"line": printed.line, "text": printed.first.splitlines()[0]}
        return outcome

    def _executed(self, source: bytes, arguments: list[str], complained: _PrintedText) -> Report:
        """Execute the program; an error, or the line of `sys.exit`."""
        try:
            self._language.prepare(self._name)
            self._execute(source, arguments)
        except SystemExit as end:
            return _exit(end, self._name, complained.last)
        # KeyboardInterrupt too: whatever ends the program is told.
        except BaseException as error:
            return self._failure(error)
        return {}

    def _reported(self, chosen: str | None, end: Report) -> Report:
        """What the language makes of the program; that may run more of its code."""
        try:
            return self._language.report(self._module.__dict__, chosen, end)
        except BaseException as error:
            return self._failure(error)

    def _execute(self, source: bytes, arguments: list[str]) -> None:
        """Execute the program as Python executes a script."""
        # The program sees its own words, not those of this process.
        sys.argv = [self._name, *arguments]
        # Programs may import modules that lie beside them; nothing of the system is hidden by
        # these.
        sys.path.append(str(Path(self._name).resolve().parent))
        self._module.__dict__.update(__file__=self._name, __builtins__=builtins)
        # Dataclasses and pickles of the program look their module up.
        sys.modules["__main__"] = self._module
        # Not with this module's `annotations` feature.
        code = compile(source, self._name, "exec", dont_inherit=True)
        exec(code, self._module.__dict__)

    def _failure(self, error: BaseException) -> Report:
        """What an exception says of the program, with the program's innermost line."""
        name = self._name
        line = _line_of(error, name)
        if isinstance(error, MemoryError):
            return error_report("needs more memory than the limit", line, "memory-limit")
        if isinstance(error, SyntaxError) and error.filename == name:
            message = f"is no Python program: {error.msg}"
            return error_report(message, error.lineno or -1, "syntax")
        # Lowering, which a program may ask for, names lines itself.
        if isinstance(error, HubError):
            found = error.diagnostics[0]
            told = found.location.line if found.location.file == name else None
            report = error_report(found.message, told or line, found.code)
            return report | {"cure": found.cure}
        return error_report(self._message(error), line, "program-failed")

    def _message(self, error: BaseException) -> str:
        """What to tell the user of an exception."""
        message = str(error)
        # The text of a KeyError is the `repr` of what it was given.
        if isinstance(error, KeyError) and error.args:
            message = str(error.args[0])
        told = self._language.message(error)
        if told:
            return told
        if self._is_of_language(error):
            return message
        kind = type(error).__name__
        return f"{kind}: {message}" if message else kind

    def _is_of_language(self, error: BaseException) -> bool:
        """Whether the language refuses something, rather than Python or the program itself."""
        frames = traceback.extract_tb(error.__traceback__)
        is_own = bool(frames) and frames[-1].filename.startswith(self._language.folder)
        return is_own and str(error) != ""


def _text(stream: _PrintedText) -> TextIO:
    # contextlib asks for a TextIO, of which `print` uses what a TextIOBase has.
    return stream  # type: ignore[return-value]


def _exit(end: SystemExit, name: str, said: str) -> Report:
    """What `sys.exit` means; argparse ends by it too, with its reason on standard error."""
    line = _line_of(end, name)
    if end.code in (None, 0):
        return {"exit_line": line}
    words = said.strip().splitlines()
    if not words and isinstance(end.code, str):
        words = [end.code]
    reason = f": {words[-1]}" if words else ""
    status = end.code if isinstance(end.code, int) else 1
    # Without a code of its own, as the program speaks for itself.
    return {"error": f"the program ends itself with status {status}{reason}", "line": line}


def _line_of(error: BaseException, name: str) -> int:
    """The innermost line of the program that an exception passed, or -1."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == name]
    return (lines[-1] or -1) if lines else -1
