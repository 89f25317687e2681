"""The executor `mpi`: lets mpiexec start one process per rank on this machine."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hub_core.execution.launching import launch
from hub_core.model import PluginError
from hub_core.plugin_api import ExecutionRequest, ExecutionResult, Options

INSTALL = "python -m pip install 'collhub-mpi[mpich]'"

_CURE = f"{INSTALL}; the executor numpy works without it"
_VERSION_TIMEOUT_S = 20.0


def execute(request: ExecutionRequest, options: Options) -> ExecutionResult:
    """Run the program with MPI's non-blocking messages; data stays in numpy arrays."""
    if importlib.util.find_spec("mpi4py") is None:
        message = "the executor mpi needs the package mpi4py, which is not installed"
        raise PluginError(message, cure=_CURE, code="no-mpi4py")
    named = options["launcher"]
    start = shlex.split(str(named)) if named else found_launcher()
    ranks = str(request.program.num_ranks)
    return launch(
        request,
        lambda folder: [*start, "-n", ranks, sys.executable, "-m", "collhub_mpi.rank", str(folder)],
    )


def found_launcher() -> Sequence[str]:
    """The command that starts ranks, more of them than cores where need be. Raises `PluginError` where there is none.

    An mpiexec that was installed beside this Python comes first: mpi4py then loads the same MPI.
    """
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    if found is None:
        raise PluginError(
            "the executor mpi needs mpiexec, which is not on the path",
            cure=_CURE,
            code="no-mpiexec",
        )
    try:
        printed = subprocess.run(
            [found, "--version"], capture_output=True, timeout=_VERSION_TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PluginError(f"{found} --version: {error}", cure=_CURE, code="no-mpiexec") from None
    if b"Open MPI" not in printed and b"OpenRTE" not in printed:
        return [found]
    # Open MPI counts cores, and refuses the super-user, unless told otherwise.
    return [found, "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
