"""Record a job as it runs: a Kineto profile and an execution trace for every rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hub_core.model import UsageError

if TYPE_CHECKING:
    import torch.profiler


@contextmanager
def profile(folder: str | os.PathLike[str], name: str = "job") -> Iterator[torch.profiler.profile]:
    """Profile the body on this rank; every rank of the job calls it alike.

    Yields torch's profiler, whose `step()` marks iterations. At the end of the body writes
    `NAME.<rank>.pt.trace.json.gz` and `NAME.<rank>.et.json` into the folder, which is made; after
    an exception neither. Raises `UsageError` where torch is missing.
    """
    try:
        # Imported here: torch is large and needed for nothing else.
        import torch
        import torch.distributed
        import torch.profiler
    except ImportError:
        cure = "python -m pip install torch"
        raise UsageError("recording a profile needs torch", cure=cure) from None
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    distributed = torch.distributed
    is_joined = distributed.is_available() and distributed.is_initialized()
    stem = f"{name}.{distributed.get_rank() if is_joined else 0}"
    trace = place / f"{stem}.et.json"
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(trace))
    profiler = torch.profiler.profile(record_shapes=True, execution_trace_observer=observer)
    try:
        with profiler:
            yield profiler
    except BaseException:
        trace.unlink(missing_ok=True)
        raise
    profiler.export_chrome_trace(str(place / f"{stem}.pt.trace.json.gz"))
