"""Inputs that are Python programs: executed in a process of their own, with limits.

Names are imported on first use: the process of a program needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core import names_from

if TYPE_CHECKING:
    from collhub_source_programs.landlock import landlock_features, landlock_version
    from collhub_source_programs.options import SourceProgramOptions
    from collhub_source_programs.process import ProcessLimits, ProgramAnswerError, run_program
    from collhub_source_programs.running import (
        Language,
        Report,
        calling_line,
        chosen_places,
        error_report,
        run_job,
    )
    from collhub_source_programs.source_checks import (
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
        "collhub_source_programs.landlock": "landlock_features landlock_version",
        "collhub_source_programs.options": "SourceProgramOptions",
        "collhub_source_programs.process": "ProcessLimits ProgramAnswerError run_program",
        "collhub_source_programs.running": (
            "Language Report calling_line chosen_places error_report run_job"
        ),
        "collhub_source_programs.source_checks": (
            "imports_any parsed_source shell_words warn_at warn_of_output"
        ),
    },
)
