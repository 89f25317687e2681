"""The executor `torch`: starts one process per rank on this machine, which talk by torch.distributed."""

from __future__ import annotations

import importlib.util
import sys

from hub_core.execution.launching import launch
from hub_core.model import PluginError
from hub_core.plugin_api import ExecutionRequest, ExecutionResult, Options

INSTALL = "python -m pip install 'collhub-torch[torch]'"


def require_torch() -> None:
    """Raise `PluginError` where torch is not installed. Nothing is imported: that takes seconds."""
    if importlib.util.find_spec("torch") is None:
        message = "the executor torch needs the package torch, which is not installed"
        raise PluginError(
            message, cure=f"{INSTALL}; the executor numpy works without it", code="no-torch"
        )


def execute(request: ExecutionRequest, options: Options) -> ExecutionResult:
    """Run the program with real messages: gloo for data on the CPU, NCCL for data on GPUs."""
    require_torch()
    backend = [f"--device={options['device']}", *(["--batch"] if options["batch"] else [])]
    return launch(
        request, lambda folder: [sys.executable, "-m", "collhub_torch.rank", str(folder), *backend]
    )
