"""Remove shared memory: names in /dev/shm outlive ranks of MPI that are killed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

# The launcher process must not start MPI.
if TYPE_CHECKING:
    from mpi4py import MPI

_FOLDER = Path("/dev/shm")
# MPICH, UCX, and Open MPI from version 5 on and before.
_PREFIXES = ("mpich_shm_", "ucx_shm_", "sm_segment.", "vader_segment.")
# A rank maps a segment immediately after creating it: an older, unmapped one is left over.
_OLD_S = 1.0
_LIMIT_S = 2.5
_POLL_S = 0.1


def drop_names(world: MPI.Intracomm) -> None:
    """Unlink the names of the ranks' shared memory, which is then freed with the last rank."""
    # Open MPI maps the memory of another rank at the first message, so every pair exchanges one.
    byte_a_rank = np.zeros(world.size, np.uint8)
    world.Alltoall(byte_a_rank, np.empty_like(byte_a_rank))
    world.Barrier()
    for name in _find_mapped("self"):
        # Ranks share segments: another rank may have unlinked the name first.
        with suppress(OSError):
            os.unlink(name)


@contextmanager
def remove_segments_on_error() -> Iterator[None]:
    """If the block fails, remove segments of ranks that were killed before unlinking them."""
    start = time.time()
    try:
        yield
    except BaseException:
        _remove_left_over(start)
        raise


def _remove_left_over(start: float) -> None:
    """Remove the segments of this user, created since `start`, that no process has mapped."""
    deadline = time.monotonic() + _LIMIT_S
    # Repeat until the last rank has exited and all are old enough, so that no segment of another
    # job is removed.
    while (segments := _find_segments(start)) and time.monotonic() < deadline:
        processes = [path.name for path in Path("/proc").glob("[0-9]*")]
        mapped = {name for process in processes for name in _find_mapped(process)}
        now = time.time()
        for name, creation_time in segments.items():
            if name not in mapped and now - creation_time > _OLD_S:
                with suppress(OSError):
                    os.unlink(name)
        time.sleep(_POLL_S)


def _find_segments(start: float) -> dict[str, float]:
    """Return the segments of this user by name, with their creation times."""
    segments = {}
    for prefix in _PREFIXES:
        for path in _FOLDER.glob(f"{prefix}*"):
            with suppress(OSError):
                status = path.lstat()
                if status.st_uid == os.geteuid() and status.st_ctime >= start - _OLD_S:
                    segments[str(path)] = status.st_ctime
    return segments


def _find_mapped(process: str) -> set[str]:
    """Return the paths of the segments that a process has mapped; empty if it is not accessible."""
    try:
        lines = Path(f"/proc/{process}/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return set()
    # The path is the last of six columns; the suffix " (deleted)" marks an unlinked name.
    names = {line.split(maxsplit=5)[5] for line in lines if str(_FOLDER) in line}
    starts = tuple(str(_FOLDER / prefix) for prefix in _PREFIXES)
    return {name for name in names if name.startswith(starts) and not name.endswith("(deleted)")}
