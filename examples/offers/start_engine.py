"""The engine example: threads of this process."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor

from hub_core.model import UsageError
from hub_core.plugin_api import EngineRequest, NoOptions


def start(request: EngineRequest, options: NoOptions) -> Executor:
    """As many threads as there are tasks at once."""
    if request.task_timeout_s is not None:
        raise UsageError("a thread cannot be ended", cure="give no time limit")
    return ThreadPoolExecutor(request.workers)
