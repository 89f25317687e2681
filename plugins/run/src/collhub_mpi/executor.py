"""The executor `mpi`, which uses mpiexec to start ranks on this host, and the check of MPI.

Names of shared memory in /dev/shm outlive ranks that are killed, so they are removed.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from collhub_execution import LevelledRequest, execute_levelled, launch

from collhub_mpi.plugin import MpiOptions
from hub_core.model import PluginError, UsageError
from hub_core.plugin_api import (
    CheckLine,
    CheckReport,
    CheckRequest,
    ExecutionRequest,
    ExecutionResult,
    NoOptions,
)

if TYPE_CHECKING:
    from mpi4py import MPI

# The launcher process must not start MPI.

_FOLDER = Path("/dev/shm")
# MPICH, UCX, and Open MPI from version 5 on and before.
_PREFIXES = ("mpich_shm_", "ucx_shm_", "sm_segment.", "vader_segment.")
# A rank maps a segment immediately after creating it: an older, unmapped one is left over.
_OLD_S = 1.0
_LIMIT_S = 2.5
_POLL_S = 0.1


def drop_names(world: MPI.Intracomm) -> None:
    """Remove the file names of MPI's shared memory, so that it is freed even if ranks are killed.

    Every rank calls this. First all pairs of ranks exchange messages, so that every rank has mapped
    the memory, and all ranks wait for each other. The memory is then freed when the last rank
    exits.
    """
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
    """Remove the shared memory of killed ranks if the block of this context manager fails.

    Any exception counts, also Ctrl-C; it is raised again afterwards. Without an exception, nothing
    is removed. A segment is a file in /dev/shm of this user with a name prefix of MPICH, UCX or
    Open MPI. Segments whose last change (ctime) is more than `_OLD_S` (1 s) before the start of the
    block belong to other jobs and are ignored.

    In each pass a segment is removed if its last change is more than 1 s ago and no process has it
    mapped; processes that cannot be read do not count. Passes are repeated until no segment is left
    or `_LIMIT_S` (2.5 s) have passed, which delays the exception. Errors of reading and removing
    are ignored.
    """
    start = time.time()
    try:
        yield
    except BaseException:
        deadline = time.monotonic() + _LIMIT_S
        # Repeat until the last rank has exited and all are old enough, so that no segment of
        # another job is removed.
        while (segments := _find_segments(start)) and time.monotonic() < deadline:
            processes = [path.name for path in Path("/proc").glob("[0-9]*")]
            mapped = {name for process in processes for name in _find_mapped(process)}
            now = time.time()
            for name, creation_time in segments.items():
                if name not in mapped and now - creation_time > _OLD_S:
                    with suppress(OSError):
                        os.unlink(name)
            time.sleep(_POLL_S)
        raise


def _find_segments(start: float) -> dict[str, float]:
    """Return the shared-memory files of MPI of this user, with their change times (Unix time in s).

    They are files in /dev/shm with the name prefixes of MPICH, UCX or Open MPI, changed after
    `start` - `_OLD_S`. Files that disappear in the meantime are ignored.
    """
    segments = {}
    for prefix in _PREFIXES:
        for path in _FOLDER.glob(f"{prefix}*"):
            with suppress(OSError):
                status = path.lstat()
                if status.st_uid == os.geteuid() and status.st_ctime >= start - _OLD_S:
                    segments[str(path)] = status.st_ctime
    return segments


def _find_mapped(process: str) -> set[str]:
    """Return the paths of the shared-memory segments of MPI that a process has mapped.

    They are files in /dev/shm with the name prefixes of MPICH, UCX or Open MPI; deleted ones are
    left out. `process`: its ID as text, or "self". Empty if the process is not accessible.
    """
    try:
        lines = Path(f"/proc/{process}/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return set()
    # The path is the last of six columns; the suffix " (deleted)" marks an unlinked name.
    names = {line.split(maxsplit=5)[5] for line in lines if str(_FOLDER) in line}
    starts = tuple(str(_FOLDER / prefix) for prefix in _PREFIXES)
    return {name for name in names if name.startswith(starts) and not name.endswith("(deleted)")}


INSTALL = "python -m pip install mpi4py mpich"

_CURE = f"{INSTALL}; the executor numpy works without it"
_VERSION_TIMEOUT_S = 20.0

# Maximum of Open MPI 5; MPICH 5 needs 3 MiB per rank.
_SEGMENT_BYTES = 16 << 20

# Ranks of one host need no network: they listen on no port, or only on the loopback interface.
_ON_ONE_MACHINE = {
    # UCX, used by MPICH and Open MPI.
    "UCX_TLS": "sm,self",
    # libfabric, used by MPICH.
    "FI_TCP_IFACE": "lo",
    "FI_SOCKETS_IFACE": "lo",
    # Open MPI.
    "OMPI_MCA_btl": "^tcp",
}


def execute(request: ExecutionRequest, options: MpiOptions) -> ExecutionResult:
    """Run a request with MPI's non-blocking messages between one process per rank on this host.

    The data are in numpy arrays. Raises `PluginError` without mpi4py (`no-mpi4py`) or mpiexec
    (`no-mpiexec`), and the errors of `execute_levelled` and `launch`.
    """
    if importlib.util.find_spec("mpi4py") is None:
        message = "the executor mpi needs the package mpi4py, which is not installed"
        raise PluginError(message, cure=_CURE, code="no-mpi4py")
    run = partial(run_in_processes, options=options)
    return execute_levelled(request, run)


def run_in_processes(request: LevelledRequest, options: MpiOptions) -> ExecutionResult:
    """Run a levelled request with one MPI process per rank on this host, and return its result.

    If `options.launcher` is not empty, it is split like a shell command and used with its own
    options; else the command of `find_launcher` is used. `-n RANKS` and the program follow. The
    variables of `_ON_ONE_MACHINE`, which avoid the network, are set unless the user has set
    them.

    If the run fails, shared memory of killed ranks is removed (`remove_segments_on_error`).
    Raises the errors of `find_launcher` (`PluginError`) and of `launch`: `InputError` for a
    rank that exits early or a timeout, `PluginError` for missing software or a launcher that
    cannot be started, `UsageError` for a folder that cannot be written, and `UsageError`
    for an unclosed quote in the launcher.
    """
    # A launcher that the user names includes its options, which are unknown here.
    try:
        launcher = shlex.split(options.launcher) if options.launcher else find_launcher()
    except ValueError as error:
        message = f"option launcher: {error}"
        raise UsageError(message, cure="quote as in a shell") from None
    start = [*launcher, "-n", str(request.program.num_ranks)]

    def command(folder: Path) -> list[str]:
        """Return the command that starts one Python process per rank."""
        # -P: do not import files of the working folder, such as an mpi4py.py.
        return [*start, sys.executable, "-P", "-m", "collhub_mpi.rank", str(folder)]

    with remove_segments_on_error():
        shared_bytes = _SEGMENT_BYTES * request.program.num_ranks
        return launch(request, command, _ON_ONE_MACHINE, shared_bytes)


def find_launcher() -> Sequence[str]:
    """Return the command that starts MPI ranks on this host, as a list without the rank count.

    First the mpiexec in the folder of this Python is used, because mpi4py then loads the same
    MPI; otherwise the one on the path. The output of `mpiexec --version` decides, its exit
    status does not:

    - contains HYDRA (MPICH), and `mpiexec.gforker` is in the folder of mpiexec: only that
      command
    - contains `Open MPI` or `OpenRTE`: mpiexec with `--oversubscribe` (more ranks than cores)
      and, for the super-user, `--allow-run-as-root`
    - otherwise: mpiexec without options

    Raises `PluginError` (`no-mpiexec`) if there is no mpiexec, or if `mpiexec --version` fails
    to start or does not end within `_VERSION_TIMEOUT_S` seconds.
    """
    python_folder = str(Path(sys.executable).parent)
    launcher = shutil.which("mpiexec", path=python_folder) or shutil.which("mpiexec")
    if launcher is None:
        message = "the executor mpi needs mpiexec, which is not on the path"
        raise PluginError(message, cure=_CURE, code="no-mpiexec")
    # The output of `--version` of the launcher.
    command = [launcher, "--version"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_VERSION_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"{launcher} --version: {error}"
        raise PluginError(message, cure=_CURE, code="no-mpiexec") from None
    printed = done.stdout
    forking = Path(launcher).with_name("mpiexec.gforker")
    if b"HYDRA" in printed and forking.exists():
        # MPICH's alternative launcher only forks, and listens on no port.
        return [str(forking)]
    if b"Open MPI" not in printed and b"OpenRTE" not in printed:
        return [launcher]
    # By default Open MPI refuses more ranks than cores, and the super-user.
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [launcher, "--oversubscribe", *as_root]


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Report whether mpi4py is installed, and if it is, whether mpiexec can be started.

    - Without mpi4py, the check passes. Its line `mpi4py` has the way to install it. Only
      this executor needs mpi4py.
    - With mpi4py, there are lines for its version and for `mpiexec`. The check fails if
      there is no mpiexec, or if `mpiexec --version` does not start or takes too long
      (`find_launcher`). No error is raised.

    mpi4py is not imported, because that would start MPI. `request` and `options` have no
    effect.
    """
    try:
        installed = version("mpi4py")
    except PackageNotFoundError:
        need = f"the executor mpi needs it ({INSTALL})"
        details = f"not installed; {need}, the executor numpy does not"
        return CheckReport(ok=True, lines=(CheckLine("mpi4py", True, details),))
    # An mpi4py without launcher is an incomplete installation.
    library = CheckLine("mpi4py", True, f"mpi4py {installed} for the executor mpi")
    try:
        launcher = CheckLine("mpiexec", True, " ".join(find_launcher()))
    except PluginError as error:
        launcher = CheckLine("mpiexec", False, error.diagnostics[0].message, INSTALL)
    return CheckReport(ok=launcher.is_ok, lines=(library, launcher))
