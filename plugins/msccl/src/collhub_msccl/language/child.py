"""MSCCLang in the process of one program: what the program recorded becomes its trace."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path

from collhub_source_programs import Report, calling_line, chosen_places, error_report, run_job

from collhub_msccl.language.contracts import kind_of
from collhub_msccl.language.host import CURRENT_HOST, Host
from collhub_msccl.language.program import MSCCLProgram
from collhub_msccl.language.shim import install

_OWN_FOLDER = str(Path(__file__).parent)
# Lines of a failed Check() that are told; the others are counted.
_SHOWN = 5
_MOST_LISTED = 40


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


class _MscclLanguage:
    """What `run_job` asks of the language."""

    folder = _OWN_FOLDER

    def __init__(self) -> None:
        self._recorder = _ProgramRecorder("")

    def prepare(self, file: str) -> None:
        """Record what the program makes, and let it import `msccl`."""
        self._recorder = _ProgramRecorder(file)
        CURRENT_HOST.set(self._recorder)
        install()

    def has_result(self) -> bool:
        """Whether there is a program."""
        return self._recorder.programs != []

    def report(self, namespace: Mapping[str, object], chosen: str | None, end: Report) -> Report:
        """The trace of the chosen program, or what makes it none."""
        return _result(self._recorder, end, chosen)

    def message(self, error: BaseException) -> str:
        """What a slot that holds nothing means, when it is used."""
        slot = self._recorder.empty_slot
        if isinstance(error, AttributeError) and "'NoneType'" in str(error) and slot:
            return f"uses a chunk that was never written: {slot} holds nothing"
        return ""


def main() -> None:
    """Run the job on standard input."""
    run_job(_MscclLanguage())


def _result(recorder: _ProgramRecorder, outcome: Report, chosen: str | None) -> Report:
    """The trace of the chosen program of a file that ended well, or what makes it none."""
    if not recorder.programs:
        return _no_program(outcome)
    fitting = chosen_places([one.name for one in recorder.programs], chosen)
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
            return error_report(f"{error}{first}", program._line, "check-failed")


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
    return error_report(message, -1, "several-programs")


def _no_program(outcome: Report) -> Report:
    """What to tell of a file that ended well without a program, by `sys.exit` or not."""
    line = outcome.get("exit_line")
    ending = "" if line is None else f": it ended by sys.exit in line {line}"
    return error_report(
        f"defines no MSCCLProgram{ending}", -1 if line is None else line, "no-program"
    )
