"""Execute a program of `mscclpp.language` in a process of its own and report its plans.

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

# The package has many modules; programs import what they need from any of them.
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
    """Whether the package itself is installed, with its language."""
    try:
        return importlib.util.find_spec("mscclpp.language.program") is not None
    # A package without the language, or one that does not load here.
    except (ImportError, OSError):
        return False


def install() -> None:
    """Put `mscclpp` and its modules into `sys.modules`."""
    exported = {name: getattr(language, name) for name in language.__all__}
    for name in _MODULES:
        module = ModuleType(name, language.__doc__)
        module.__dict__.update(exported, __all__=list(exported), __path__=[])
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)


class _PlanLanguage:
    """What `run_job` asks of the language."""

    folder = str(Path(__file__).parent)

    def __init__(self) -> None:
        self._file = ""
        self._uses_package = False
        self._programs: list[Any] = []
        self._lines: list[int] = []
        # By place of the program: the plan that it asked for. Asking the package twice for one
        # makes its instances twice.
        self._plans: dict[int, str] = {}

    def prepare(self, file: str) -> None:
        """Record programs of the package where it is installed, else of our implementation."""
        self._file = file
        self._uses_package = has_package()
        made: Any = CollectiveProgram
        if self._uses_package:
            made = importlib.import_module("mscclpp.language.program").CollectiveProgram
        else:
            install()
        self._watch(made)

    def _watch(self, kind: Any) -> None:
        """Keep programs as they begin, and plans as they are made."""
        enter, to_json = kind.__enter__, kind.to_json

        def entered(program: Any) -> Any:
            # The line of `with`, for those who have to choose among several.
            self._programs.append(program)
            self._lines.append(calling_line(self._file))
            return enter(program)

        def told(program: Any, *given: Any, **named: Any) -> Any:
            text = to_json(program, *given, **named)
            places = [at for at, one in enumerate(self._programs) if one is program]
            self._plans.update(dict.fromkeys(places, text))
            return text

        kind.__enter__, kind.to_json = entered, told

    def has_result(self) -> bool:
        """Whether there is a program."""
        return self._programs != []

    def report(self, namespace: Mapping[str, object], chosen: str | None, end: Report) -> Report:
        """The plan of the chosen program."""
        del namespace, end
        names = [str(program.name) for program in self._programs]
        fitting = chosen_places(names, chosen)
        if len(fitting) != 1:
            listed = ", ".join(f"{at} {name!r}" for at, name in enumerate(names, 1))
            message = f"defines {len(names)} programs: {listed or 'none'}"
            return error_report(message, -1, "several-programs")
        place = fitting[0]
        if place not in self._plans:
            self._programs[place].to_json()
        plan, line = self._plans[place], self._lines[place]
        # What the package makes is in its plan, for the check to find.
        made = () if self._uses_package else self._programs
        defects = [*find_defects(self._programs[place], made[:place])] if made else []
        return {"plan": plan, "line": line, "package": self._uses_package, "defects": defects}

    def message(self, error: BaseException) -> str:
        """Errors speak for themselves."""
        del error
        return ""


def main() -> None:
    """Run the job on standard input."""
    run_job(_PlanLanguage())
