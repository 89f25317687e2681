"""Keep what the program frees for itself, instead of giving it back to the system at once."""

from __future__ import annotations

import sys

# Parameters of `mallopt` (malloc.h of glibc), and the largest value they take.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = (1 << 31) - 1
_LARGEST_ON_HEAP = 1 << 30


def keep_freed_memory() -> None:
    """Let arrays use again what others have freed.

    glibc gives large blocks back to the system, which then clears page after page for the next
    array: on columns of millions of rows that took half as long as the work on them.
    """
    if not sys.platform.startswith("linux"):
        return
    # Imported here: the help of a command needs no arrays.
    import ctypes

    # Other C libraries have no such function, or one that does nothing.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
        mallopt(_TRIM_THRESHOLD, _LARGEST)
