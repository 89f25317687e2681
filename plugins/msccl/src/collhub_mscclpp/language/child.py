"""Execute a program of `mscclpp.language` in a separate process and report its plans.

Our implementation is importable as `mscclpp.language` only in that process.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from collhub_mscclpp import language
from collhub_mscclpp.language.defects import find_defects
from collhub_mscclpp.language.program import CollectiveProgram
from hub_core.sandbox import Report, calling_line, chosen_places, error_report, run_job

# The package has many modules; programs import names from any of them.
_MODULES = (
    "mscclpp",
    "mscclpp.language",
    "mscclpp.language.channel",
    "mscclpp.language.collectives",
    "mscclpp.language.general",
    "mscclpp.language.internal",
    "mscclpp.language.internal.types",
    "mscclpp.language.loop",
    "mscclpp.language.program",
    "mscclpp.language.rank",
    "mscclpp.language.thread_block_group",
    "mscclpp.language.utils",
)


def has_package() -> bool:
    """Whether the package `mscclpp` with its language is installed and can be loaded."""
    try:
        return importlib.util.find_spec("mscclpp.language.program") is not None
    # A package without the language, or one that cannot be loaded on this host.
    except (ImportError, OSError):
        return False


def install() -> None:
    """Register our language in `sys.modules` under the names of the package's modules."""
    exported = {name: getattr(language, name) for name in language.__all__}
    for name in _MODULES:
        module = ModuleType(name, language.__doc__)
        module.__dict__.update(exported, __all__=list(exported), __path__=[])
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)


class _PlanLanguage:
    """The functions of the language that `run_job` calls."""

    folder = str(Path(__file__).parent)

    def __init__(self) -> None:
        self._file = ""
        self._uses_package = False
        self._programs: list[Any] = []
        self._lines: list[int] = []
        # By number of the program: the plan that the program itself requested. A second request
        # for a plan would create its instances twice in the package.
        self._plans: dict[int, str] = {}

    def prepare(self, file: str) -> None:
        """Observe the programs of the package if it is installed, else of our implementation."""
        self._file = file
        self._uses_package = has_package()
        program_class: Any = CollectiveProgram
        if self._uses_package:
            program_class = importlib.import_module("mscclpp.language.program").CollectiveProgram
        else:
            install()
        self._watch(program_class)

    def _watch(self, kind: Any) -> None:
        """Wrap a program class so that its programs and their plans are recorded."""
        enter, to_json = kind.__enter__, kind.to_json

        def enter_recorded(program: Any) -> Any:
            # The line of `with`, to tell several programs apart.
            self._programs.append(program)
            self._lines.append(calling_line(self._file))
            return enter(program)

        def to_json_recorded(program: Any, *arguments: Any, **keywords: Any) -> Any:
            text = to_json(program, *arguments, **keywords)
            places = [at for at, recorded in enumerate(self._programs) if recorded is program]
            self._plans.update(dict.fromkeys(places, text))
            return text

        kind.__enter__, kind.to_json = enter_recorded, to_json_recorded

    def has_result(self) -> bool:
        """Whether the file has executed a program."""
        return self._programs != []

    def report(self, namespace: Mapping[str, object], chosen: str | None, end: Report) -> Report:
        """Report the plan of the chosen program, its line and the package's known defects.

        Without a choice there must be exactly one program; else the report is an error.
        """
        del namespace, end
        names = [str(program.name) for program in self._programs]
        fitting = chosen_places(names, chosen)
        if len(fitting) != 1:
            listed = ", ".join(f"{at} {name!r}" for at, name in enumerate(names, 1))
            message = f"defines {len(names)} programs: {listed or 'none'}"
            return error_report(message, -1, "several-programs")
        number = fitting[0]
        if number not in self._plans:
            self._programs[number].to_json()
        plan, line = self._plans[number], self._lines[number]
        # A plan of the package contains its defects; the check of plans finds them.
        programs = () if self._uses_package else self._programs
        defects = [*find_defects(self._programs[number], programs[:number])] if programs else []
        return {"plan": plan, "line": line, "package": self._uses_package, "defects": defects}

    def message(self, error: BaseException) -> str:
        """Add nothing to error messages."""
        del error
        return ""


def main() -> None:
    """Run the job that is given on standard input."""
    run_job(_PlanLanguage())
