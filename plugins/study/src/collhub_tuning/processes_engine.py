"""The engine `processes`: the cores of this machine."""

from __future__ import annotations

from concurrent.futures import Executor

from collhub_tuning.task_processes import TaskProcesses
from hub_core.plugin_api import EngineRequest, NoOptions


def start(request: EngineRequest, options: NoOptions) -> Executor:
    """Processes that import nothing of the working folder."""
    return TaskProcesses(request.workers, request.task_timeout_s)
