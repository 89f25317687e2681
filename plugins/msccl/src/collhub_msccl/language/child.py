"""Run one MSCCLang program in a separate process and report its trace.

In that process this implementation is importable as `msccl`, and as `sccl`, its name until 2022;
elsewhere an installed `msccl` is not replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import heapq
import io
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from collhub_msccl import language
from collhub_msccl.language import chunk_sets, collectives, programs, topologies
from collhub_msccl.language.program import MSCCLProgram
from collhub_msccl.language.trace import CURRENT_HOST, Host, find_kind
from hub_core.model import format_count
from hub_core.sandbox import Report, calling_line, chosen_places, error_report, run_job

# Names that a star import of the public package includes by accident: programs use them without
# importing them.
_LEAKED = {
    "dataclass": dataclasses.dataclass,
    "field": dataclasses.field,
    "Enum": enum.Enum,
    "defaultdict": defaultdict,
    "functools": functools,
    "heapq": heapq,
    "sys": sys,
}
_ROUTINES = ("allgather_ring_inplace", "allreduce_ring_inplace")
_PROGRAMS = ("allreduce_allpairs", "allreduce_ring", "alltoall_hierarchical", "alltoall_three_step")
_REGULAR_TOPOLOGIES = (
    "Topology",
    "binarize_topology",
    "fully_connected",
    "hub_and_spoke",
    "line",
    "reverse_topology",
    "ring",
    "star",
)
_DISTRIBUTED_TOPOLOGIES = ("distributed_fully_connected", "distributed_hub_and_spoke")
_NVIDIA_TOPOLOGIES = ("dgx1", "dgx_a100", "nvlink_only")
_AMD_TOPOLOGIES = ("amd4", "amd8")
# Modules of the public package: the module of this package that defines their names, and the names.
_MODULES: dict[str, tuple[ModuleType, Sequence[str]]] = {
    "msccl.language": (language, language.__all__),
    "msccl.language.collectives": (collectives, collectives.__all__),
    "msccl.language.routines": (programs, _ROUTINES),
    "msccl.topologies": (topologies, topologies.__all__),
    "msccl.topologies.generic": (topologies, (*_REGULAR_TOPOLOGIES, "Switch")),
    "msccl.topologies.distributed": (topologies, _DISTRIBUTED_TOPOLOGIES),
    "msccl.topologies.nvidia": (topologies, _NVIDIA_TOPOLOGIES),
    "msccl.topologies.amd": (topologies, _AMD_TOPOLOGIES),
    "msccl.collectives": (chunk_sets, chunk_sets.__all__),
    "msccl.programs": (programs, _PROGRAMS),
    # The public package has one module per program.
    **{f"msccl.programs.{name}": (programs, _PROGRAMS) for name in _PROGRAMS},
}


def install_modules() -> None:
    """Insert the packages `msccl` and `sccl` into `sys.modules`, for all later imports.

    Existing entries of these names are replaced, at each call by new modules. The modules are those
    of `_MODULES`, such as `msccl.language`. Each one has the public names of MSCCLang, as this
    distribution defines them. `msccl.language` also has the names of `_LEAKED`, such as
    `defaultdict`, because programs use them without an import. `__all__` lists all of these names,
    sorted. The package `msccl` has only its modules. `sccl`, the name of the package until 2022,
    has copies of the same modules; `sccl.language` also has `MSCCLProgram` as `SCCLProgram`.

    A submodule becomes an attribute of its parent, unless the parent has a public name equal to the
    name of the submodule. In that case the public name remains: `msccl.programs.allreduce_ring` is
    a function.
    """
    mirrors = {"msccl": ModuleType("msccl", "MSCCLang as collhub-msccl implements it.")}
    for name, (ours, exported) in _MODULES.items():
        public = {attribute: getattr(ours, attribute) for attribute in exported}
        if name == "msccl.language":
            public |= _LEAKED
        mirrors[name] = ModuleType(name, ours.__doc__)
        mirrors[name].__dict__.update(public, __all__=sorted(public))
    # The old names lack the first letter: `sccl.language`.
    for name, module in list(mirrors.items()):
        mirrors[name[1:]] = ModuleType(name[1:], module.__doc__)
        mirrors[name[1:]].__dict__.update(vars(module), __name__=name[1:])
    old_language = mirrors["sccl.language"]
    old_language.__dict__.update(
        SCCLProgram=MSCCLProgram, __all__=["SCCLProgram", *old_language.__all__]
    )
    # Parents precede their submodules.
    for name, module in mirrors.items():
        # Makes it a package, so that its modules can be imported by name.
        module.__path__ = []
        parent, _, last = name.rpartition(".")
        # A program has the name of its module: the function takes precedence.
        if parent and not hasattr(mirrors[parent], last):
            setattr(mirrors[parent], last, module)
    sys.modules.update(mirrors)


_PACKAGE_FOLDER = str(Path(__file__).parent)
# Reported lines of a failed Check(); the remaining lines are only counted.
_MAX_SHOWN_LINES = 5
_MAX_LISTED_PROGRAMS = 40


class _ProgramRecorder(Host):
    """Records the programs and the errors found by each `Check()`; prints no output."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.programs: list[MSCCLProgram] = []
        # By index of the program.
        self.checks: dict[int, list[Report]] = {}
        # The last requested slot that was empty.
        self.empty_slot = ""

    def record_program(self, program: MSCCLProgram) -> None:
        """Append the program to `programs`."""
        self.programs.append(program)

    def record_empty_slot(self, what: str) -> None:
        """Remember the description of an empty slot: the program may use the None that it got as a
        chunk.
        """
        self.empty_slot = what

    def show_xml(self, program: MSCCLProgram) -> None:
        """No effect: the reader of programs lowers the trace itself."""

    def show_check(self, program: MSCCLProgram) -> bool:
        """Verify the program and return whether it has no errors; no text is printed.

        A program with errors must be in `self.programs`, otherwise `ValueError` is raised. Each
        call that finds errors appends an entry to the list in `self.checks` at the program's
        index:

        - `line`: line of the program file that called the check, -1 without one.
        - `lines`: the first 5 lines of text. Lines printed by a user-defined collective come
          before the errors.
        - `count`: number of all these lines.

        Without errors no entry is added, and printed lines are lost. Exceptions of the
        verification pass through.
        """
        # A user-defined collective may print the errors that its check detects.
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            errors = program.findings()
        lines = printed.getvalue().splitlines() + errors
        if errors:
            check = {
                "line": calling_line(self._file),
                "lines": lines[:_MAX_SHOWN_LINES],
                "count": len(lines),
            }
            self.checks.setdefault(self.programs.index(program), []).append(check)
        return not errors


class _MscclLanguage:
    """Hooks of the language for `run_job`."""

    folder = _PACKAGE_FOLDER

    def __init__(self) -> None:
        self._recorder = _ProgramRecorder("")

    def prepare(self, file: str) -> None:
        """Prepare to execute the program in `file`, so that all programs it defines are recorded.

        Make the module `msccl` importable in this process, in place of an installed one, and
        direct `XML()` and `Check()` to a new recorder; earlier recordings are dropped. The file
        is neither read nor executed here.
        """
        self._recorder = _ProgramRecorder(file)
        CURRENT_HOST.set(self._recorder)
        install_modules()

    def has_result(self) -> bool:
        """Whether the file defined at least one program."""
        return self._recorder.programs != []

    def report(self, namespace: Mapping[str, object], chosen: str | None, end: Report) -> Report:
        """Return the `trace` (JSON) and the `checks` of the selected program.

        `chosen`: a number from 1 in the order of creation, else a name; None for the only program.
        `checks`: entries of `show_check`, [] without any. `end`: report of the execution;
        `exit_line` is the line of a call of `sys.exit`, if any. The first case that applies gives
        an error report (message, line, code) instead:

        1. `no-program`: the file created no program. The line is `exit_line`, or -1.
        2. `several-programs`: `chosen` does not select exactly one program, also if it selects
           none. The message lists the first 40 programs; the line is -1.
        3. `check-failed`: building the trace raises an exception, for example in a user's check.
           The message has its text and the first line printed meanwhile; the line is the program's.
        """
        if not self._recorder.programs:
            line = end.get("exit_line")
            ending = "" if line is None else f": it called sys.exit in line {line}"
            return error_report(
                f"defines no MSCCLProgram{ending}", -1 if line is None else line, "no-program"
            )
        fitting = chosen_places([program.name for program in self._recorder.programs], chosen)
        if len(fitting) != 1:
            described = []
            for number, program in enumerate(self._recorder.programs, 1):
                kind = f"{find_kind(program.collective)} of {program.num_ranks} ranks"
                described.append(f"{number} {program.name!r} ({kind}, line {program._line})")
            listed = ", ".join(described[:_MAX_LISTED_PROGRAMS])
            hidden = len(described) - _MAX_LISTED_PROGRAMS
            more = f", and {hidden} more" if hidden > 0 else ""
            which = "" if chosen is None else f", none or several of which are {chosen!r}"
            programs = format_count(len(described), "program")
            message = f"defines {programs}{which}: {listed}{more}"
            return error_report(message, -1, "several-programs")
        program = self._recorder.programs[fitting[0]]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                checks = self._recorder.checks.get(fitting[0], [])
                return {"trace": program.trace().to_json(), "checks": checks}
            # This calls the user-defined collective, which may raise any exception.
            except Exception as error:
                first = "".join(f"; {line}" for line in printed.getvalue().splitlines()[:1])
                return error_report(f"{error}{first}", program._line, "check-failed")

    def message(self, error: BaseException) -> str:
        """Return an explanation of an exception that a program raised; "" if there is none.

        Only an `AttributeError` with `'NoneType'` in its text is explained, and only if the
        program has requested a reference to an empty slot (place for a chunk), which is None.
        The explanation names the last such slot: the program probably uses a chunk that was
        never written.
        """
        slot = self._recorder.empty_slot
        if isinstance(error, AttributeError) and "'NoneType'" in str(error) and slot:
            return f"uses a chunk that was never written: {slot} is empty"
        return ""


def main() -> None:
    """Read a job from standard input, execute its program, and write the report to standard
    output.
    """
    run_job(_MscclLanguage())
