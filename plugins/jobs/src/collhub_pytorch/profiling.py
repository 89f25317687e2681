"""Record a job as it runs, and read the profiles of a job by the names of its files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from collhub_pytorch.formats import KINETO, ProfileOptions
from hub_core.model import UsageError

if TYPE_CHECKING:
    import torch.profiler

    from hub_core.model import Workload

_DEFAULT_OPTIONS = ProfileOptions()


def read_profiles(files: Sequence[str], options: ProfileOptions = _DEFAULT_OPTIONS) -> Workload:
    """Read Kineto profiles, one file per rank, as a workload.

    The rank of a file follows from its content or its name, else from its position in
    `files`, which must not be empty. Files may be compressed; they are parsed as streams,
    at any size. Raises `UsageError` for a repeated path. Raises `InputError` for files that
    are invalid or cannot be opened, for two files of one rank, for missing ranks unless
    `options` assume them, for collectives that do not match, and for clocks that cannot be
    aligned.
    """
    # Lazy imports: recording profiles must not require numpy.
    from collhub_pytorch.kineto.read import workload_of
    from collhub_pytorch.trace_files import list_files
    from hub_core.model import Provenance

    return workload_of(list_files(files), options, Provenance(KINETO, "", files[0]))


@contextmanager
def profile(folder: str | os.PathLike[str], name: str = "job") -> Iterator[torch.profiler.profile]:
    """Profile the body of the `with` statement on this rank. Every rank calls it.

    Yields torch's profiler, whose `step()` marks iterations. When the body ends, writes
    `NAME.<rank>.pt.trace.json.gz` (Kineto profile) and `NAME.<rank>.et.json` (execution trace) into
    the folder, which is created. The rank is that of the default process group, 0 if it is not
    initialized: such processes need different names. After an exception of the body or of the
    export, neither file remains. Raises `UsageError` if torch is not installed.
    """
    try:
        # Lazy import: torch is large, and only this function needs it.
        import torch
        import torch.distributed
        import torch.profiler
    except ImportError:
        cure = "python -m pip install torch"
        raise UsageError("recording a profile needs torch", cure=cure) from None
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    distributed = torch.distributed
    is_joined = distributed.is_available() and distributed.is_initialized()
    stem = f"{name}.{distributed.get_rank() if is_joined else 0}"
    trace, profile_path = path / f"{stem}.et.json", path / f"{stem}.pt.trace.json.gz"
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(trace))
    profiler = torch.profiler.profile(record_shapes=True, execution_trace_observer=observer)
    try:
        with profiler:
            yield profiler
        profiler.export_chrome_trace(str(profile_path))
    except BaseException:
        for file in (trace, profile_path):
            if file.is_file():
                file.unlink()
        raise
