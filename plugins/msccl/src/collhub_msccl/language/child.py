"""Run one program in this process, which was started for it.

What it did is told as one line of JSON: its trace, or an error with the program's line.
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
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, TextIO

from collhub_msccl.language.calling_line import calling_line
from collhub_msccl.language.contracts import kind_of
from collhub_msccl.language.host import CURRENT_HOST, Host
from collhub_msccl.language.program import MSCCLProgram
from collhub_msccl.language.shim import install
from hub_core.model import HubError

_OWN_FOLDER = str(Path(__file__).parent)
# Lines of a failed Check() that are told; the others are counted.
_SHOWN = 5
_MOST_PRINTED = 8000
_MOST_LISTED = 40
Report = dict[str, Any]
"""JSON values; `program_process` and `read_program` read them."""


class _ProgramRecorder(Host):
    """Keeps the programs and what the `Check()` of each found, prints nothing."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.programs: list[MSCCLProgram] = []
        # By program: its place among them.
        self.checks: dict[int, list[Report]] = {}
        # The last slot that the program asked for and that held nothing.
        self.empty_slot = ""

    def entered(self, program: MSCCLProgram) -> None:
        """Keep the program."""
        self.programs.append(program)

    def found_empty(self, what: str) -> None:
        """Keep the slot: the program is about to use None as a reference."""
        self.empty_slot = what

    def show_xml(self, program: MSCCLProgram) -> None:
        """Do nothing: the reader lowers the trace."""

    def show_check(self, program: MSCCLProgram) -> bool:
        """Keep what is wrong, with the line of the call."""
        # A collective of the program may print what its check finds.
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            found = program.findings()
        lines = printed.getvalue().splitlines() + found
        if found:
            check = {"line": calling_line(self._file), "lines": lines[:_SHOWN], "count": len(lines)}
            self.checks.setdefault(self.programs.index(program), []).append(check)
        return not found


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


def main() -> None:
    """Read the job from standard input, run the program, write the report, and end.

    The job is a line of JSON; the program follows it.
    """
    # A descriptor that the program does not know.
    report = os.fdopen(os.dup(1), "wb")
    job = json.loads(sys.stdin.buffer.readline())
    source = sys.stdin.buffer.read()
    _close_streams()
    _set_limits(job["time_limit_s"], job["memory_limit_bytes"], report)
    outcome = _run(job["name"], source, job["arguments"], job["program"])
    report.write(json.dumps(outcome, separators=(",", ":")).encode())
    report.flush()
    # Threads and exit handlers that the program left behind have nothing to add.
    os._exit(0)


def _close_streams() -> None:
    """Point the standard streams nowhere, so that only the report goes to the parent."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


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


def _run(name: str, source: bytes, arguments: list[str], chosen: str | None) -> Report:
    """Run the program and tell what became of it; `chosen`: number or name of one of several."""
    recorder = _ProgramRecorder(name)
    printed, complained = _PrintedText(name), _PrintedText(name)
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
        if recorder.programs == [] and "error" not in outcome and printed.last:
            # The program answers a question, such as --help, instead of making anything.
            return {"answer": printed.last.splitlines()}
    # KeyboardInterrupt too: whatever ends the program is told.
    except BaseException as error:
        outcome = _failure(error, name, recorder.empty_slot)
    if "error" not in outcome:
        outcome = _result(recorder, outcome, chosen)
    if printed.first:
        outcome["printed"] = {"line": printed.line, "text": printed.first.splitlines()[0]}
    return outcome


def _text(stream: _PrintedText) -> TextIO:
    # contextlib asks for a TextIO, of which `print` uses what a TextIOBase has.
    return stream  # type: ignore[return-value]


def _execute(name: str, source: bytes, arguments: list[str]) -> None:
    """Execute the program as Python executes a script."""
    install()
    sys.argv = [name, *arguments]
    # Programs may import modules that lie beside them; nothing of the system is hidden by these.
    sys.path.append(str(Path(name).resolve().parent))
    module = ModuleType("__main__")
    module.__dict__.update(__file__=name, __builtins__=builtins)
    # Dataclasses and pickles of the program look their module up.
    sys.modules["__main__"] = module
    # Not with this module's `annotations` feature.
    code = compile(source, name, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def _result(recorder: _ProgramRecorder, outcome: Report, chosen: str | None) -> Report:
    """The trace of the chosen program of a file that ended well, or what makes it none."""
    if not recorder.programs:
        return _no_program(outcome)
    fitting = _fitting(recorder.programs, chosen)
    if len(fitting) != 1:
        return _no_choice(recorder.programs, chosen)
    program = recorder.programs[fitting[0]]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            checks = recorder.checks.get(fitting[0], [])
            return {"trace": program.trace().to_json(), "checks": checks}
        # The program's own collective is asked here, and may fail in any way.
        except Exception as error:
            first = "".join(f"; {line}" for line in said.getvalue().splitlines()[:1])
            return _error(f"{error}{first}", program._line, "check-failed")


def _fitting(programs: list[MSCCLProgram], chosen: str | None) -> list[int]:
    """Places of the programs that are meant: by number from 1, or by name."""
    if chosen is None:
        return list(range(len(programs)))
    if chosen.isdecimal() and 1 <= int(chosen) <= len(programs):
        return [int(chosen) - 1]
    return [place for place, program in enumerate(programs) if program.name == chosen]


def _no_choice(programs: list[MSCCLProgram], chosen: str | None) -> Report:
    """What to tell where not one program is meant: all that there are."""
    described = [
        f"{number} {program.name!r} ({kind_of(program.collective)} of {program.num_ranks} ranks,"
        f" line {program._line})"
        for number, program in enumerate(programs, 1)
    ]
    listed = ", ".join(described[:_MOST_LISTED])
    more = f", and {len(described) - _MOST_LISTED} more" if len(described) > _MOST_LISTED else ""
    which = "" if chosen is None else f", none or several of which are {chosen!r}"
    plural = "s" if len(programs) > 1 else ""
    message = f"defines {len(programs)} program{plural}{which}: {listed}{more}"
    return _error(message, -1, "several-programs")


def _no_program(outcome: Report) -> Report:
    """What to tell of a file that ended well without a program, by `sys.exit` or not."""
    line = outcome.get("exit_line")
    ending = "" if line is None else f": it ended by sys.exit in line {line}"
    return _error(f"defines no MSCCLProgram{ending}", -1 if line is None else line, "no-program")


def _error(message: str, line: int, code: str) -> Report:
    """An error of the program; line -1 where it has none."""
    return {"error": message, "line": line, "code": code}


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


def _failure(error: BaseException, name: str, empty_slot: str) -> Report:
    """What an exception says of the program, with the program's innermost line."""
    line = _line_of(error, name)
    if isinstance(error, MemoryError):
        return _error("needs more memory than the limit", line, "memory-limit")
    if isinstance(error, SyntaxError) and error.filename == name:
        return _error(f"is no Python program: {error.msg}", error.lineno or -1, "syntax")
    # Lowering, which Check() does, names lines itself.
    if isinstance(error, HubError):
        found = error.diagnostics[0]
        return _error(found.message, found.location.line or line, found.code)
    return _error(_message(error, empty_slot), line, "program-failed")


def _message(error: BaseException, empty_slot: str) -> str:
    """What to tell the user of an exception."""
    message = str(error)
    # The text of a KeyError is the `repr` of what it was given.
    if isinstance(error, KeyError) and error.args:
        message = str(error.args[0])
    if isinstance(error, AttributeError) and "'NoneType'" in message and empty_slot:
        return f"uses a chunk that was never written: {empty_slot} holds nothing"
    if _is_ours(error):
        return message
    kind = type(error).__name__
    return f"{kind}: {message}" if message else kind


def _is_ours(error: BaseException) -> bool:
    """Whether the language refuses something, rather than Python or the program itself."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_OWN_FOLDER) and str(error) != ""


def _line_of(error: BaseException, name: str) -> int:
    """The innermost line of the program that an exception passed, or -1."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == name]
    return (lines[-1] or -1) if lines else -1


if __name__ == "__main__":
    main()
