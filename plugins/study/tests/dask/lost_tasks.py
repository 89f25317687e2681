"""Tasks that end their worker, hang, or take all memory, in a module that workers can import."""

from __future__ import annotations

import os
import time
from pathlib import Path


def dies() -> None:
    os._exit(3)


def hangs() -> None:
    time.sleep(600)


def takes_all_memory() -> None:
    taken = []
    while True:
        taken.append(b"x" * (50 << 20))


def tells_its_process(file: Path) -> str:
    """Ends once the file is there for the second time."""
    if file.exists():
        return "done again"
    file.write_text(str(os.getpid()))
    time.sleep(600)
    return "never"
