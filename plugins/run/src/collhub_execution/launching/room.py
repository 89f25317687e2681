"""Places that programs of ranks write to, and what is left there: full ones end ranks unnamed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hub_core.model import UsageError, format_bytes

# Where POSIX shared memory lies on Linux; message libraries that find it full end by a signal.
SHARED_MEMORY = Path("/dev/shm")

# Sessions of launchers and files by which ranks meet.
_TEMPORARY_BYTES = 1 << 20


def no_room(place: str, error: OSError) -> UsageError:
    """What is to be said where the folder of a job, `place`, cannot be written."""
    return UsageError(
        f"the ranks have no folder to meet in: {place}: {error.strerror}",
        cure="make room there, or set TMPDIR to another folder",
        code="no-space",
    )


def crowded_places(shared_bytes: int) -> str:
    """Places with little room, in words; empty where there is enough.

    `shared_bytes`: what the ranks may take of `SHARED_MEMORY`.
    """
    wanted = {Path(tempfile.gettempdir()): _TEMPORARY_BYTES, SHARED_MEMORY: shared_bytes}
    return " and ".join(_crowded(wanted))


def _crowded(wanted: dict[Path, int]) -> Iterator[str]:
    for place, needed in wanted.items():
        if not needed or not place.is_dir():
            continue
        total, _, free = shutil.disk_usage(place)
        if free < needed:
            name = f"{place} (TMPDIR)" if place != SHARED_MEMORY else os.fspath(place)
            have = f"{format_bytes(free)} of {format_bytes(total)} free"
            yield f"{name} has {have}, where the ranks may take {format_bytes(needed)}"
