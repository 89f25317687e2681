"""The executor `torch`, which starts ranks with torch.distributed, and the check of torch."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from collhub_execution import LevelledRequest, execute_levelled, launch

from collhub_torch.plugin import TorchOptions
from hub_core.model import PluginError
from hub_core.plugin_api import (
    CheckLine,
    CheckReport,
    CheckRequest,
    ExecutionRequest,
    ExecutionResult,
    NoOptions,
)

INSTALL = "python -m pip install torch"


def execute(request: ExecutionRequest, options: TorchOptions) -> ExecutionResult:
    """Run a request with real messages: gloo for data on the CPU, NCCL for data on GPUs.

    There is one process per rank on this host. Raises `PluginError` without torch, and the errors
    of `execute_levelled` and `launch`.
    """
    require_torch()
    run = partial(run_in_processes, options=options)
    return execute_levelled(request, run)


def require_torch() -> None:
    """Raise `PluginError` if torch is not installed, without the slow import of torch."""
    if importlib.util.find_spec("torch") is None:
        message = "the executor torch needs the package torch, which is not installed"
        cure = f"{INSTALL}; the executor numpy works without it"
        raise PluginError(message, cure=cure, code="no-torch")


def run_in_processes(request: LevelledRequest, options: TorchOptions) -> ExecutionResult:
    """Run a levelled request in a program that imports torch once and forks all ranks.

    Returns when all ranks have finished: the outputs by rank, the seconds of the repeats, and the
    step times if the request wants them. `options`: device of the data (`cpu` or `cuda`), and
    whether messages of a level start as one batch.

    Raises `InputError` if a rank exits early, or if `request.timeout_s` (seconds, with the start of
    the program) has elapsed. Raises `PluginError` if a rank reports missing software or GPUs, or if
    the program cannot be started, and `UsageError` if the temporary folder cannot be written.
    """

    def command(folder: Path) -> list[str]:
        """Return the command line of the program that serves all ranks of the job in `folder`.

        It imports torch once, and forks a process per rank.
        """
        # -P: do not import files of the working folder, such as a torch.py.
        program = [sys.executable, "-P", "-m", "collhub_torch.rank", str(folder)]
        batch = ["--batch"] if options.batch else []
        return [*program, f"--device={options.device}", *batch]

    return launch(request, command)


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Return one line, from the installed distribution: importing torch would take seconds.

    Passes without torch: only this executor needs it.
    """
    try:
        details = f"torch {version('torch')} for the executor torch"
    except PackageNotFoundError:
        need = f"the executor torch needs it ({INSTALL})"
        details = f"not installed; {need}, the executor numpy does not"
    return CheckReport(ok=True, lines=(CheckLine("torch", True, details),))
