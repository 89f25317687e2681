"""A preload of workers: Ctrl-C goes to all processes of a terminal; who started them ends them."""

from __future__ import annotations

import signal


def dask_setup(worker: object) -> None:
    """Called by Dask in the main thread of a worker, before its first task."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
