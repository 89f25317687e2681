"""Tell which line of the user's program is being executed."""

from __future__ import annotations

import sys
from pathlib import Path

_OWN_FOLDER = str(Path(__file__).parent)


def calling_file() -> str:
    """The file of the nearest caller outside of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FOLDER):
        frame = frame.f_back
    return frame.f_code.co_filename


def calling_line(file: str) -> int:
    """The line of the nearest caller in `file`, or -1.

    Not of the nearest caller at all: that may be a routine of the language or of a module beside
    the program, and the reader of a report has the program before him.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame.f_lineno if frame.f_code.co_filename == file else -1
