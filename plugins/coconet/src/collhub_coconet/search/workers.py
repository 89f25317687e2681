"""Run the tasks of a search in this process or in worker processes, with equal results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import TypeVar

from hub_core.model import InputError

Task = TypeVar("Task")
TaskResult = TypeVar("TaskResult")
Progress = Callable[[float, str], None]
"""Callback that receives the completed fraction (0 to 1) and a text about the current work."""


def ignore_progress(fraction: float, text: str) -> None:
    """Discard a progress report."""


def run_tasks(
    workers: Executor | None,
    function: Callable[[Task], TaskResult],
    tasks: Sequence[Task],
    is_enough: Callable[[int], bool] | None = None,
) -> list[TaskResult]:
    """Apply `function` to every task, and return the results in the order of the tasks.

    Without workers, or with a single task, the tasks run one after the other in this process.
    `is_enough` is called after each result with the number of results so far; once it returns True,
    these results are returned, and tasks that have not started are cancelled or never run.
    Exceptions of a task propagate. Raises `InputError` if a worker process died.
    """
    futures: list[Future[TaskResult]] = []
    if workers is None or len(tasks) < 2:
        pending = (function(task) for task in tasks)
    else:
        futures = [workers.submit(function, task) for task in tasks]
        pending = (future.result() for future in futures)
    results: list[TaskResult] = []
    try:
        for result in pending:
            results.append(result)
            if is_enough is not None and is_enough(len(results)):
                break
    except BrokenExecutor as error:
        message = f"a worker of the search died: {error}" if str(error) else "a worker died"
        raise InputError(message, cure="run with --jobs 1, or on fewer programs") from error
    for future in futures:
        future.cancel()
    return results
