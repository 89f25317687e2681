"""The executor `mpi`: lets mpiexec start one process per rank on this machine."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from collhub_execution import LevelledRequest, execute_levelled, launch

from collhub_mpi.options import MpiOptions
from collhub_mpi.segments import segments_removed
from hub_core.model import PluginError
from hub_core.plugin_api import ExecutionRequest, ExecutionResult

INSTALL = "python -m pip install mpi4py mpich"

_CURE = f"{INSTALL}; the executor numpy works without it"
_VERSION_TIMEOUT_S = 20.0

# Of Open MPI 5; MPICH 5 takes 3 MiB a rank.
_SEGMENT_BYTES = 16 << 20

# Ranks of one machine need no network: they listen to nobody, or to their own machine alone.
_ON_ONE_MACHINE = {
    # UCX, of which MPICH and Open MPI are users.
    "UCX_TLS": "sm,self",
    # libfabric, of which MPICH is a user.
    "FI_TCP_IFACE": "lo",
    "FI_SOCKETS_IFACE": "lo",
    # Open MPI.
    "OMPI_MCA_btl": "^tcp",
}


def execute(request: ExecutionRequest, options: MpiOptions) -> ExecutionResult:
    """Run with MPI's non-blocking messages; data stays in numpy arrays."""
    if importlib.util.find_spec("mpi4py") is None:
        message = "the executor mpi needs the package mpi4py, which is not installed"
        raise PluginError(message, cure=_CURE, code="no-mpi4py")
    run = partial(run_in_processes, options=options)
    return execute_levelled(request, run)


def run_in_processes(request: LevelledRequest, options: MpiOptions) -> ExecutionResult:
    """Run a levelled request; see `execute`."""
    # A launcher that is named brings its own options, of which we know nothing.
    launcher = shlex.split(options.launcher) if options.launcher else found_launcher()
    start = [*launcher, "-n", str(request.program.num_ranks)]

    def command(folder: Path) -> list[str]:
        """One process a rank, each with a Python of its own."""
        # -P: files of the working folder, such as an mpi4py.py, are not to be imported.
        return [*start, sys.executable, "-P", "-m", "collhub_mpi.rank", str(folder)]

    with segments_removed():
        shared_bytes = _SEGMENT_BYTES * request.program.num_ranks
        return launch(request, command, _ON_ONE_MACHINE, shared_bytes)


def found_launcher() -> Sequence[str]:
    """The command that starts ranks, more of them than cores where need be.

    An mpiexec that was installed beside this Python comes first: mpi4py then loads the same MPI.
    Raises `PluginError` where there is none.
    """
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    if found is None:
        message = "the executor mpi needs mpiexec, which is not on the path"
        raise PluginError(message, cure=_CURE, code="no-mpiexec")
    printed = _printed_version(found)
    forking = Path(found).with_name("mpiexec.gforker")
    if b"HYDRA" in printed and forking.exists():
        # MPICH's other launcher only forks, and listens on no port.
        return [str(forking)]
    if b"Open MPI" not in printed and b"OpenRTE" not in printed:
        return [found]
    # Open MPI counts cores, and refuses the super-user, unless told otherwise.
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [found, "--oversubscribe", *as_root]


def _printed_version(launcher: str) -> bytes:
    """What the launcher says of itself."""
    command = [launcher, "--version"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_VERSION_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"{launcher} --version: {error}"
        raise PluginError(message, cure=_CURE, code="no-mpiexec") from None
    return done.stdout
