"""Run a comparison: an algorithm a task, several at once in processes, the known ones from a cache.

A task whose process dies costs its algorithm alone. What was measured is kept at once, so that a
comparison that Ctrl-C has ended goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed

from collhub_tuning.measuring import measured
from collhub_tuning.questions import ComparedAlgorithm, ComparisonQuestion, Measurement
from collhub_tuning.result_cache import ResultCache
from collhub_tuning.task_processes import TaskProcesses
from hub_core.model import format_time
from hub_core.network import Topology

Start = Callable[[int, float | None], Executor]
Progress = Callable[[float, str], None]
_Asked = tuple[ComparisonQuestion] | tuple[ComparisonQuestion, Topology]
# What was measured, or why nothing was.
_Done = tuple[ComparedAlgorithm, list[Measurement] | str]


def compared(
    algorithms: Sequence[ComparedAlgorithm],
    question: ComparisonQuestion,
    cache: ResultCache,
    *,
    jobs: int,
    progress: Progress,
    network: Topology | None = None,
    timeout_s: float | None = None,
    start: Start | None = None,
) -> list[Measurement]:
    """All measurements, in the order of the algorithms, then of the sizes.

    `jobs`: processes at once; 1: in this one. The number changes nothing in the result. `network`:
    in place of what the text of the question names; it is that of the cache. `timeout_s`: after
    which an algorithm is given up, at all sizes. `start`: what runs them, by the number at once and
    the time; by default processes.
    """
    found: dict[ComparedAlgorithm, list[Measurement]] = {}
    for one in algorithms:
        known = cache.find(one, question)
        if known is not None:
            found[one] = known
    missing = [one for one in algorithms if one not in found]
    asked = (question,) if network is None else (question, network)
    for one, measurements in _measured(missing, asked, min(jobs, len(missing)), timeout_s, start):
        if isinstance(measurements, str):
            # What was lost may be found another time: it is not kept.
            measurements = [
                Measurement(one.name, size, None, measurements) for size in question.sizes
            ]
        else:
            cache.keep(one, question, measurements)
        found[one] = measurements
        progress(len(found) / len(algorithms), one.name)
    return [measurement for one in algorithms for measurement in found[one]]


def _measured(
    missing: Sequence[ComparedAlgorithm],
    asked: _Asked,
    jobs: int,
    timeout_s: float | None,
    start: Start | None,
) -> Iterator[_Done]:
    """Each algorithm when it is done."""
    # A task that may be ended needs a process of its own.
    is_here = start is None and jobs <= 1 and timeout_s is None
    if not missing or is_here:
        for one in missing:
            yield one, measured(one, *asked)
        return
    with (start or TaskProcesses)(jobs, timeout_s) as pool:
        try:
            tasks = {pool.submit(measured, one, *asked): one for one in missing}
            for task in as_completed(tasks):
                yield tasks[task], _outcome(task, timeout_s)
        except BaseException:
            # Of Ctrl-C as well: nobody waits for what is under way.
            pool.shutdown(cancel_futures=True)
            raise


def _outcome(task: Future[list[Measurement]], timeout_s: float | None) -> list[Measurement] | str:
    """The result of a task, or why it has none."""
    try:
        return task.result()
    except BrokenExecutor:
        return "the process that measured it died"
    except TimeoutError:
        return f"it took longer than {format_time((timeout_s or 0.0) * 1e9)}"
    except MemoryError:
        return "it ran out of memory"
