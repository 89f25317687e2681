"""Run a comparison: an algorithm a task, several at once in processes, the known ones from a cache.

A task whose process dies costs its algorithm alone. What was measured is kept at once, so that a
comparison that Ctrl-C has ended goes on where it was.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from collhub_tuning.measuring import measured
from collhub_tuning.questions import ComparedAlgorithm, ComparisonQuestion, Measurement
from collhub_tuning.result_cache import ResultCache
from hub_core.network import Topology

Progress = Callable[[float, str], None]
# As the flag -P, for processes that are started without a command line of ours.
_SAFE_PATH = "PYTHONSAFEPATH"
_Asked = tuple[ComparisonQuestion] | tuple[ComparisonQuestion, Topology]
_Done = tuple[ComparedAlgorithm, list[Measurement]]


def compared(
    algorithms: Sequence[ComparedAlgorithm],
    question: ComparisonQuestion,
    cache: ResultCache,
    *,
    jobs: int,
    progress: Progress,
    network: Topology | None = None,
) -> list[Measurement]:
    """All measurements, in the order of the algorithms, then of the sizes.

    `jobs`: processes at once; 1: in this one. The number changes nothing in the result. `network`:
    in place of what the text of the question names; it is that of the cache.
    """
    found: dict[ComparedAlgorithm, list[Measurement]] = {}
    for one in algorithms:
        known = cache.find(one, question)
        if known is not None:
            found[one] = known
    missing = [one for one in algorithms if one not in found]
    asked = (question,) if network is None else (question, network)
    for one, measurements in _measured(missing, asked, min(jobs, len(missing))):
        cache.keep(one, question, measurements)
        found[one] = measurements
        progress(len(found) / len(algorithms), one.name)
    return [measurement for one in algorithms for measurement in found[one]]


def _measured(missing: Sequence[ComparedAlgorithm], asked: _Asked, jobs: int) -> Iterator[_Done]:
    """Each algorithm when it is done."""
    if jobs <= 1:
        for one in missing:
            yield one, measured(one, *asked)
        return
    died = []
    with _pool(jobs) as pool:
        tasks = {pool.submit(measured, one, *asked): one for one in missing}
        for task in as_completed(tasks):
            outcome = _outcome(task)
            if outcome is None:
                died.append(tasks[task])
            else:
                yield tasks[task], outcome
    # The death of one process ends all that were under way: each gets a process of its own.
    for one in died:
        with _pool(1) as pool:
            outcome = _outcome(pool.submit(measured, one, *asked))
        yield one, outcome if outcome is not None else _lost(one, asked[0])


def _outcome(task: Future[list[Measurement]]) -> list[Measurement] | None:
    """The result of a task, None where its process died."""
    try:
        return task.result()
    except BrokenProcessPool:
        return None


def _lost(one: ComparedAlgorithm, question: ComparisonQuestion) -> list[Measurement]:
    failure = "the process that measured it died"
    return [Measurement(one.name, size, None, failure) for size in question.sizes]


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes for tasks, in which nothing of the working folder is imported."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    # Spawned, as a fork would copy the threads of libraries in the state that they are in.
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            yield pool
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before
