"""Run one program in this process, which was started for it, and tell what it did as one line of JSON."""

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
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, TextIO

from collhub_msccl.language.calling_line import calling_line
from collhub_msccl.language.host import CURRENT_HOST, Host
from collhub_msccl.language.program import MSCCLProgram
from collhub_msccl.language.shim import install
from hub_core.model import HubError

__all__ = ["main"]

_OWN_FOLDER = str(Path(__file__).parent)
_SHOWN = 5
Report = dict[str, Any]


class ProgramError(Exception):
    """What is wrong with a program as a whole."""


class _Recorder(Host):
    """Keeps the program and what its `Check()` found, prints nothing."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.program: MSCCLProgram | None = None
        self.checks: list[Report] = []
        self.empty_slot = ""

    def entered(self, program: MSCCLProgram) -> None:
        if self.program is not None:
            raise ProgramError(
                f"a second program, {program.name!r}, begins after {self.program.name!r}; one is expected"
            )
        self.program = program

    def found_empty(self, what: str) -> None:
        self.empty_slot = what

    def show_xml(self, program: MSCCLProgram) -> None:
        pass

    def show_check(self, program: MSCCLProgram) -> bool:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            found = program.findings()
        lines = printed.getvalue().splitlines() + found
        if found:
            self.checks.append(
                {"line": calling_line(self._file), "lines": lines[:_SHOWN], "count": len(lines)}
            )
        return not found


class _Printed(io.TextIOBase):
    """A standard stream of the program: keeps where and what it wrote first, and its last words."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.line = -1
        self.first = ""
        self.last = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text and not self.first:
            self.line, self.first = calling_line(self._file), text[:200]
        self.last = (self.last + text)[-2000:]
        return len(text)


def main() -> None:
    """Read the job from standard input (a line of JSON, then the program), run it, write the report, and end."""
    report = os.fdopen(os.dup(1), "wb")
    job = json.loads(sys.stdin.buffer.readline())
    source = sys.stdin.buffer.read()
    _close_streams()
    _set_limits(job["time_limit_s"], job["memory_limit_bytes"], report)
    outcome = _run(job["name"], source, job["arguments"])
    report.write(json.dumps(outcome, separators=(",", ":")).encode())
    report.flush()
    # Threads and exit handlers that the program left behind have nothing to add.
    os._exit(0)


def _close_streams() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _set_limits(time_limit_s: int, memory_limit_bytes: int, report: BinaryIO) -> None:
    """Let the system end the process at its limits, after the interpreter has said where the program is."""
    # Not on every system.
    import resource

    faulthandler.register(signal.SIGXCPU, report, all_threads=False, chain=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (time_limit_s, time_limit_s + 2))
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, memory_limit_bytes))


def _run(name: str, source: bytes, arguments: list[str]) -> Report:
    recorder, printed, complained = _Recorder(name), _Printed(name), _Printed(name)
    outcome: Report = {}
    CURRENT_HOST.set(recorder)
    try:
        with (
            contextlib.redirect_stdout(_text(printed)),
            contextlib.redirect_stderr(_text(complained)),
        ):
            _execute(name, source, arguments)
    except SystemExit as end:
        outcome = _exit(end, name, complained.last)
    except BaseException as error:
        outcome = _failure(error, name, recorder.empty_slot)
    if "error" not in outcome:
        outcome = _result(recorder, outcome)
    if printed.first:
        outcome["printed"] = {"line": printed.line, "text": printed.first.splitlines()[0]}
    return outcome | {"checks": recorder.checks}


def _text(stream: _Printed) -> TextIO:
    return stream  # type: ignore[return-value]


def _execute(name: str, source: bytes, arguments: list[str]) -> None:
    install()
    sys.argv = [name, *arguments]
    # Programs may import modules that lie beside them; nothing of the system is hidden by these.
    sys.path.append(str(Path(name).resolve().parent))
    module = ModuleType("__main__")
    module.__dict__.update(__file__=name, __builtins__=builtins)
    sys.modules["__main__"] = module
    exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)


def _result(recorder: _Recorder, outcome: Report) -> Report:
    if recorder.program is None:
        ending = (
            f": it ended by sys.exit in line {outcome['exit_line']}"
            if "exit_line" in outcome
            else ""
        )
        return {
            "error": f"defines no MSCCLProgram{ending}",
            "line": outcome.get("exit_line", -1),
            "code": "no-program",
        }
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            return {"trace": recorder.program.trace().to_json()}
        except Exception as error:
            first = "".join(f"; {line}" for line in said.getvalue().splitlines()[:1])
            return {
                "error": f"{error}{first}",
                "line": recorder.program._line,
                "code": "check-failed",
            }


def _exit(end: SystemExit, name: str, said: str) -> Report:
    line = _line_of(end, name)
    if end.code in (None, 0):
        return {"exit_line": line}
    words = said.strip().splitlines() or ([end.code] if isinstance(end.code, str) else [])
    reason = f": {words[-1]}" if words else ""
    return {
        "error": f"the program ends itself with status {end.code if isinstance(end.code, int) else 1}{reason}",
        "line": line,
    }


def _failure(error: BaseException, name: str, empty_slot: str) -> Report:
    if isinstance(error, MemoryError):
        return {
            "error": "needs more memory than the limit",
            "line": _line_of(error, name),
            "code": "memory-limit",
        }
    if isinstance(error, SyntaxError) and error.filename == name:
        return {
            "error": f"is no Python program: {error.msg}",
            "line": error.lineno or -1,
            "code": "syntax",
        }
    message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if isinstance(error, HubError):
        found = error.diagnostics[0]
        return {
            "error": found.message,
            "line": found.location.line or _line_of(error, name),
            "code": found.code,
        }
    if isinstance(error, AttributeError) and "'NoneType'" in message and empty_slot:
        message = f"uses a chunk that was never written: {empty_slot} holds nothing"
    elif not _is_ours(error):
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return {"error": message, "line": _line_of(error, name), "code": "program-failed"}


def _is_ours(error: BaseException) -> bool:
    """Whether the language refuses something, rather than Python or the program itself."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_OWN_FOLDER) and str(error) != ""


def _line_of(error: BaseException, name: str) -> int:
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == name
    ]
    return (lines[-1] or -1) if lines else -1


if __name__ == "__main__":
    main()
