"""Execution of inputs that are Python programs, in a separate process with limits.

Names are imported on first use, because the process of a program needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core import names_from

if TYPE_CHECKING:
    from hub_core.sandbox.confinement import landlock_features, landlock_version
    from hub_core.sandbox.process import ProcessLimits, ProgramAnswerError, run_program
    from hub_core.sandbox.running import (
        Language,
        Report,
        calling_line,
        chosen_places,
        error_report,
        run_job,
    )
    from hub_core.sandbox.source_programs import (
        SourceProgramOptions,
        imports_any,
        parsed_source,
        shell_words,
        warn_at,
        warn_of_output,
    )

__all__ = [
    "Language", "ProcessLimits", "ProgramAnswerError", "Report", "SourceProgramOptions",
    "calling_line", "chosen_places", "error_report", "imports_any", "landlock_features",
    "landlock_version", "parsed_source", "run_job", "run_program", "shell_words", "warn_at",
    "warn_of_output",
]  # fmt: skip

__getattr__ = names_from(
    __name__,
    {
        "hub_core.sandbox.confinement": "landlock_features landlock_version",
        "hub_core.sandbox.process": "ProcessLimits ProgramAnswerError run_program",
        "hub_core.sandbox.running": (
            "Language Report calling_line chosen_places error_report run_job"
        ),
        "hub_core.sandbox.source_programs": (
            "SourceProgramOptions imports_any parsed_source shell_words warn_at warn_of_output"
        ),
    },
)
