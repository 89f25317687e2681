"""Free space of file systems to which programs of ranks write: full ones kill ranks without a
message.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hub_core.model import UsageError, format_bytes

# POSIX shared memory on Linux; message libraries are killed by a signal if it is full.
SHARED_MEMORY = Path("/dev/shm")

# For sessions of launchers and files through which ranks find each other.
_TEMPORARY_BYTES = 1 << 20


def no_room(place: str, error: OSError) -> UsageError:
    """Return the error for a job folder `place` that cannot be written."""
    return UsageError(
        f"the ranks have no folder to meet in: {place}: {error.strerror}",
        cure="make room there, or set TMPDIR to another folder",
        code="no-space",
    )


def crowded_places(shared_bytes: int) -> str:
    """Describe file systems with too little space; empty if there is enough.

    `shared_bytes`: maximum use of `SHARED_MEMORY` by the ranks.
    """
    required = {Path(tempfile.gettempdir()): _TEMPORARY_BYTES, SHARED_MEMORY: shared_bytes}
    return " and ".join(_crowded(required))


def _crowded(required: dict[Path, int]) -> Iterator[str]:
    """Yield a description of each existing folder with less space than required."""
    for place, needed in required.items():
        if not needed or not place.is_dir():
            continue
        total, _, free = shutil.disk_usage(place)
        if free < needed:
            name = f"{place} (TMPDIR)" if place != SHARED_MEMORY else os.fspath(place)
            available = f"{format_bytes(free)} of {format_bytes(total)} free"
            yield f"{name} has {available}, where the ranks may take {format_bytes(needed)}"
