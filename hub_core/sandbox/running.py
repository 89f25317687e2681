"""Run one program in this process, which was started for it.

The result is reported as one line of JSON: the report of the program's language, or an error with
the program's line.
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
from typing import Any, Protocol, TextIO

from hub_core.model import HubError, parse_whole
from hub_core.sandbox.confinement import close_streams, restrict_this_process

_MAX_PRINTED = 8000
_FAILED = "program-failed"
# Text of `tempfile` if it can write nowhere.
_NO_FOLDER = "No usable temporary directory"
_SANDBOX_CURE = (
    "the sandbox lets programs write no files, read only their folder and open no connections;"
    " for a program that you trust: -O sandbox=off"
)
# Texts of programs that read their command line.
_ARGUMENT_SOURCES = (b"argparse", b"sys.argv")
Report = dict[str, Any]
"""JSON values that the parent process reads."""


class Language(Protocol):
    """A language that is embedded in Python: it prepares, examines and explains programs.

    `folder`: folder of its modules; messages of errors that are raised there are reported
    unchanged.
    """

    folder: str

    def prepare(self, file: str) -> None:
        """Prepare for the execution of the program in this file."""
        ...

    def has_result(self) -> bool:
        """Return whether the program has created a result so far."""
        ...

    def report(self, namespace: Mapping[str, object], chosen: str | None, end: Report) -> Report:
        """Return the report on a program that ended normally.

        `namespace`: global names of the program. `chosen`: the program to report, if there are
        several. `end`: the line of `sys.exit`, if the program ended by it, as `exit_line`.
        """
        ...

    def message(self, error: BaseException) -> str:
        """Return the message for an error; empty for the message of the exception."""
        ...


class _PrintedText(io.TextIOBase):
    """A standard stream of the program.

    Stores where and what the program wrote first, and the last characters.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self.line = -1
        self.first = ""
        self.last = ""

    def writable(self) -> bool:
        """Return True, as `print` requires."""
        return True

    def write(self, text: str) -> int:
        """Store the start and the end of the printed text; return the length of `text`.

        `first` gets the first 200 characters of the first text that is not empty, and `line` the
        line of the program that printed it. `last` has the last 8000 characters of all texts.
        """
        if text and not self.first:
            self.line, self.first = calling_line(self._file), text[:200]
        self.last = (self.last + text)[-_MAX_PRINTED:]
        return len(text)


def run_job(language: Language) -> None:
    """Run the job on standard input, write its report, and end this process with status 0.

    The job is a line of JSON with the members `name` (file of the program), `arguments`, `program`
    (the chosen one), `time_limit_s`, `memory_limit_bytes` and `sandbox`; then comes the source of
    the program. The standard streams are redirected to the null device. Then the limits are set.
    With `sandbox`, only the import path, the folder of the program and system files stay readable,
    if the kernel supports that. Then the program runs (`_Run.outcome`).

    The report is one JSON object on the original standard output; an error of the program is part
    of it. The process ends without waiting for threads and exit handlers of the program, so that
    the function does not return. At the limit of CPU time (SIGXCPU, whatever its sender), the
    position of the program is written instead, and a signal ends the process, at the latest after
    two more seconds of CPU time. Exceptions before the program runs, for example for an invalid
    job or limits above the hard limits, are raised.
    """
    # A file descriptor that the program does not know.
    report = os.fdopen(os.dup(1), "wb")
    job = json.loads(sys.stdin.buffer.readline())
    source = sys.stdin.buffer.read()
    # From here on, the parent gets only the report.
    close_streams()
    # Not available on every system.
    import resource

    faulthandler.register(signal.SIGXCPU, report, all_threads=False, chain=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Two seconds for the report of the interpreter, then SIGKILL, which a program cannot catch.
    time_s, memory_bytes = job["time_limit_s"], job["memory_limit_bytes"]
    resource.setrlimit(resource.RLIMIT_CPU, (time_s, time_s + 2))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    is_confined = False
    if job["sandbox"]:
        folder = str(Path(job["name"]).resolve().parent)
        packages = [module for name, module in sys.modules.items() if "." not in name]
        readable = [
            *sys.path,
            folder,
            *[path for package in packages for path in getattr(package, "__path__", ())],
            # Files of the system that Python and its extension modules read.
            *(sys.prefix, sys.base_prefix, sys.exec_prefix),
            *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"),
            *("/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/random"),
        ]
        is_confined = restrict_this_process(readable, [os.devnull])
    run = _Run(language, job["name"], is_confined=is_confined)
    outcome = run.outcome(source, job["arguments"], job["program"])
    report.write(json.dumps(outcome, separators=(",", ":")).encode())
    report.flush()
    # Without waiting for threads and exit handlers of the program.
    os._exit(0)


def error_report(message: str, line: int, code: str) -> Report:
    """Create the report of an error of the program; line -1 if it has none."""
    return {"error": message, "line": line, "code": code}


def chosen_places(names: Sequence[str], chosen: str | None) -> list[int]:
    """Return the indices, from 0, of the selected programs.

    `chosen`: None for all; otherwise a number from 1 or, if it is not the number of a program, a
    name. The result is [] if no program has the name, and has several indices if several have it.
    """
    if chosen is None:
        return list(range(len(names)))
    number = parse_whole(chosen, 10**9 - 1)
    if number is not None and 1 <= number <= len(names):
        return [number - 1]
    return [index for index, name in enumerate(names) if name == chosen]


def calling_line(file: str) -> int:
    """Return the line of the innermost caller in `file`, or -1 if there is none.

    Callers in other files, such as functions of the language, are skipped.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame.f_lineno if frame.f_code.co_filename == file else -1


class _Run:
    """Execution of one program of a language."""

    def __init__(self, language: Language, name: str, *, is_confined: bool) -> None:
        self._language = language
        self._is_confined = is_confined
        self._name = name
        self._module = ModuleType("__main__")

    def outcome(self, source: bytes, arguments: list[str], chosen: str | None) -> Report:
        """Run the program with captured output, and return the first report that applies.

        1. `error`: an exception (also Ctrl-C), or an exit with a status other than 0. Has `line`
           (-1 if unknown) and, for exceptions, `code`.
        2. `answer`: `sys.exit` with status 0, printed text, and no result (`has_result`), as for
           `--help`. Has the lines of the last 8000 printed characters.
        3. The report of the language on the program `chosen` (number from 1, or name; None: all).
           An exception in it gives an `error`.

        An `error` without a `code`, or with `program-failed`, and without a `cure`, gets one if
        `arguments` is empty and `source` contains a word of `_ARGUMENT_SOURCES`. If anything was
        printed on standard output, reports 1 and 3 get `printed`: the first line of the first text,
        and its program line.
        """
        printed, complained = _PrintedText(self._name), _PrintedText(self._name)
        with (
            contextlib.redirect_stdout(_to_text_stream(printed)),
            contextlib.redirect_stderr(_to_text_stream(complained)),
        ):
            outcome = self._executed(source, arguments, complained)
            is_silent = "error" not in outcome and not self._language.has_result()
            if "exit_line" in outcome and is_silent and printed.last:
                # The program answers a question, such as --help, and creates no result.
                return {"answer": printed.last.splitlines()}
            if "error" not in outcome:
                outcome = self._reported(chosen, outcome)
        is_failure = "error" in outcome and outcome.get("code", _FAILED) == _FAILED
        uses_arguments = any(word in source for word in _ARGUMENT_SOURCES)
        if is_failure and not arguments and uses_arguments and "cure" not in outcome:
            outcome["cure"] = "if the program needs arguments, give them after --: FILE -- 8 1"
        if printed.first:
            outcome["printed"] = {"line": printed.line, "text": printed.first.splitlines()[0]}
        return outcome

    def _executed(self, source: bytes, arguments: list[str], complained: _PrintedText) -> Report:
        """Prepare the language, execute the program as `__main__`; return a report, {} at the end.

        Every exception gives a report instead of being raised, also KeyboardInterrupt:

        - `SystemExit` with status 0 or None: the line of the exit (`exit_line`).
        - `SystemExit` with another status: an error with the status. Its reason is the last line
          of `complained`, the program's standard error; if that is blank, a text as status.
        - Any other exception: its failure, from `_failure`.
        """
        try:
            self._language.prepare(self._name)
            # The program gets its own command line. It may import modules of its own folder, which
            # comes last, so that it hides no module.
            sys.argv = [self._name, *arguments]
            sys.path.append(str(Path(self._name).resolve().parent))
            self._module.__dict__.update(__file__=self._name, __builtins__=builtins)
            # Dataclasses and pickles look up the module of the program.
            sys.modules["__main__"] = self._module
            # Without this module's `annotations` feature.
            code = compile(source, self._name, "exec", dont_inherit=True)
            exec(code, self._module.__dict__)
        except SystemExit as end:
            return _report_exit(end, self._name, complained.last)
        # Including KeyboardInterrupt: every end of the program is reported.
        except BaseException as error:
            return self._failure(error)
        return {}

    def _reported(self, chosen: str | None, end: Report) -> Report:
        """Return the report of the language, which may execute more code of the program.

        `chosen`: number or name of the program, None for all; `end`: the report on how the program
        ended. An exception of any kind gives the report of a failure instead.
        """
        try:
            return self._language.report(self._module.__dict__, chosen, end)
        except BaseException as error:
            return self._failure(error)

    def _failure(self, error: BaseException) -> Report:
        """Return the report of an exception: its members `error` (message), `line` and `code`.

        The first rule that applies gives the report:

        - `MemoryError`: the code `memory-limit` and a fixed message
        - `SyntaxError` in the program itself: the code `syntax`, and the line of the error, -1
          if it is unknown. A syntax error in an imported file is not meant.
        - `HubError`: code, message and `cure` of its first finding, and its line if it is
          located in the program and has a line.
        - any other exception: the code `program-failed`, and the explanation of the language; if
          it has none, type and text (for `KeyError` the first argument), without the type if the
          innermost frame is in a file of the language and there is a text. If the kernel confines
          the program, a `PermissionError`, and the error of `tempfile` that it finds no folder,
          also get a `cure`: how to switch the sandbox off.

        Unless a rule says otherwise, the line is that of the innermost call in the program's
        file, -1 if there is none.
        """
        name = self._name
        line = _find_line(error, name)
        if isinstance(error, MemoryError):
            return error_report("needs more memory than the limit", line, "memory-limit")
        if isinstance(error, SyntaxError) and error.filename == name:
            message = f"is no Python program: {error.msg}"
            return error_report(message, error.lineno or -1, "syntax")
        # Lowering, which a program may call, reports lines itself.
        if isinstance(error, HubError):
            finding = error.diagnostics[0]
            reported_line = finding.location.line if finding.location.file == name else None
            report = error_report(finding.message, reported_line or line, finding.code)
            return report | {"cure": finding.cure}
        message = str(error)
        # The text of a KeyError is the `repr` of its argument.
        if isinstance(error, KeyError) and error.args:
            message = str(error.args[0])
        frames = traceback.extract_tb(error.__traceback__)
        is_of_language = bool(frames) and frames[-1].filename.startswith(self._language.folder)
        if not message or not is_of_language:
            kind = type(error).__name__
            message = f"{kind}: {message}" if message else kind
        report = error_report(self._language.message(error) or message, line, _FAILED)
        if self._is_confined and (isinstance(error, PermissionError) or _NO_FOLDER in message):
            report["cure"] = _SANDBOX_CURE
        return report


def _to_text_stream(stream: _PrintedText) -> TextIO:
    # contextlib expects a TextIO; `print` uses only methods of TextIOBase.
    return stream  # type: ignore[return-value]


def _report_exit(end: SystemExit, name: str, printed_errors: str) -> Report:
    """Return the report of a `SystemExit`: `exit_line` for status 0, else `error` and `line`.

    The line is the innermost line in the program `name`, or -1 if it is unknown. None
    counts as status 0. A code that is no integer counts as status 1. The message has the status
    and, after a colon, a reason: the last line of `printed_errors` (the program's standard
    error, where argparse writes it). If that is blank, it is a text given to `sys.exit`; if
    there is none either, the message has no reason. The error has no `code`.
    """
    line = _find_line(end, name)
    if end.code in (None, 0):
        return {"exit_line": line}
    words = printed_errors.strip().splitlines()
    if not words and isinstance(end.code, str):
        words = [end.code]
    reason = f": {words[-1]}" if words else ""
    status = end.code if isinstance(end.code, int) else 1
    # Without a code, because the message is the program's.
    return {"error": f"the program ends itself with status {status}{reason}", "line": line}


def _find_line(error: BaseException, name: str) -> int:
    """Return the innermost line of the program in the traceback of an exception, or -1.

    `name`: the file of the program. -1 if no frame is in that file, or its line is unknown.
    """
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == name]
    return (lines[-1] or -1) if lines else -1
