"""Find the user's file that is being executed."""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGE_FOLDER = str(Path(__file__).parent)


def find_calling_file() -> str:
    """Path of the file of the nearest caller outside of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE_FOLDER):
        frame = frame.f_back
    return frame.f_code.co_filename
