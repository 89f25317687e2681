"""Tasks of a search: here, or at once by the workers of an engine; the order is that of tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import TypeVar

from hub_core.model import InputError

Task = TypeVar("Task")
Found = TypeVar("Found")
Progress = Callable[[float, str], None]
"""What is told of a search: the fraction that is done, and what it is doing."""


def silent(fraction: float, what: str) -> None:
    """Tell nothing."""


def done_by(
    workers: Executor | None,
    function: Callable[[Task], Found],
    tasks: Sequence[Task],
    is_enough: Callable[[int], bool] | None = None,
) -> list[Found]:
    """The results of all tasks, in their order; without workers one after the other.

    `is_enough`: called with the number of results so far; if it is true, these are returned. Raises
    what a task raised, and `InputError` where the process of a worker died.
    """
    futures: list[Future[Found]] = []
    # One task gains nothing from a worker.
    if workers is None or len(tasks) < 2:
        calls = (function(one) for one in tasks)
    else:
        futures = [workers.submit(function, one) for one in tasks]
        calls = (one.result() for one in futures)
    found: list[Found] = []
    try:
        for result in calls:
            found.append(result)
            if is_enough is not None and is_enough(len(found)):
                break
    except BrokenExecutor as error:
        message = f"a worker of the search died: {error}" if str(error) else "a worker died"
        raise InputError(message, cure="run with --jobs 1, or on fewer programs") from error
    for future in futures:
        future.cancel()
    return found
