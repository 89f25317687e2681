"""Synthesis: pack trees, choose the packing and its chunks by the time, and hand over the algorithm with its proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from collhub_blink.all_reduce import all_reduce_packings
from collhub_blink.certificate import certificate_of, lower_bound_ns
from collhub_blink.multi_root import spread_packings
from collhub_blink.packing import Packing
from collhub_blink.paths import path_packings
from collhub_blink.schedules import Scheduled, coarser, schedule
from collhub_blink.single_root import rooted_packings
from collhub_blink.task import Task
from hub_core.algorithm import Algorithm, JsonValue, Provenance
from hub_core.bounds import lower_bound_ns as links_bound_ns
from hub_core.collectives import CollectiveKind
from hub_core.diagnostics import InputError, UsageError
from hub_core.plugins.contract import Options, SynthesisRequest, SynthesisResult
from hub_core.transfers import algorithm_of

__all__ = ["packings_of", "synthesize"]

_NAME = "collhub-blink"
_MOST_SIMULATED = 1 << 19

_PACKERS: Mapping[CollectiveKind, Callable[[Task], list[Packing]]] = {
    CollectiveKind.BROADCAST: rooted_packings,
    CollectiveKind.REDUCE: rooted_packings,
    CollectiveKind.ALL_REDUCE: all_reduce_packings,
    CollectiveKind.ALL_GATHER: spread_packings,
    CollectiveKind.REDUCE_SCATTER: spread_packings,
    CollectiveKind.SCATTER: path_packings,
    CollectiveKind.GATHER: path_packings,
}


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """A packing, its schedule, and the time in nanoseconds; `is_interrupted`: the search was cut short."""

    packing: Packing
    scheduled: Scheduled
    time_ns: int
    is_interrupted: bool = False


def synthesize(request: SynthesisRequest, options: Options) -> SynthesisResult:
    """The fastest algorithm on trees that was found for a request; see `plugin.BLINK` for the options.

    Raises `UsageError` for options that do not fit, and `InputError` for collectives that do not run on trees, ranks
    that cannot be reached, and sizes below a byte a chunk.
    """
    task = Task.of(request, options)
    packings = _wanted(task, packings_of(task))
    best = _best(_candidates(task, packings, request.simulate))
    if best is None:
        message = f"{task.collective_bytes} bytes are too few to be shared out among the trees"
        raise InputError(message, cure="choose a larger size, or fewer chunks", code="size-too-small")
    statistics = _statistics(task, packings, best)
    algorithm = _algorithm(task, best.packing, best.scheduled, request.wanted, options, statistics)
    bounds = _bounds_ns(task, best.packing, request)
    return SynthesisResult(algorithm, best.time_ns, bounds, statistics, is_partial=request.wanted is not None)


def packings_of(task: Task) -> list[Packing]:
    """All packings for a task, those at the optimal rate first."""
    return _PACKERS[task.collective.kind](task)


def _bounds_ns(task: Task, packing: Packing, request: SynthesisRequest) -> dict[str, int]:
    """The bound of the certificate, and what latencies and single ranks' links add."""
    bounds = {packing.bound.kind: lower_bound_ns(task, packing.bound)}
    if task.npus == tuple(range(task.topology.num_npus)):
        links = links_bound_ns(request.collective, task.topology, task.collective_bytes)
        bounds |= {} if links is None else {"links": int(links)}
    return bounds


def _wanted(task: Task, packings: list[Packing]) -> list[Packing]:
    """The packings that the option `trees` allows."""
    if task.trees == "auto":
        return packings
    chosen = [packing for packing in packings if packing.is_shallow == (task.trees == "shallow")]
    if not chosen:
        raise UsageError(f"there are no {task.trees} trees for a {task.collective.kind}", cure="leave the option trees out")
    fewest = min(len(packing.trees) for packing in chosen)
    return chosen if task.trees == "shallow" else [packing for packing in chosen if len(packing.trees) == fewest]


def _best(candidates: Iterator[_Made]) -> _Made | None:
    """The fastest; the first of equals. Ctrl-C ends the search, and passes where there is nothing yet."""
    best: _Made | None = None
    try:
        for made in candidates:
            if best is None or made.time_ns < best.time_ns:
                best = made
    except KeyboardInterrupt:
        if best is None:
            raise
        return _Made(best.packing, best.scheduled, best.time_ns, True)
    return best


def _candidates(task: Task, packings: Sequence[Packing], simulate: Callable[[Algorithm], int | None]) -> Iterator[_Made]:
    """Every packing with its best number of chunks, unless its rate alone makes it slower than what there is.

    Where messages meet at switches, their order there is not the schedule's to decide: larger chunks, of which fewer wait
    for each other, are tried as well.
    """
    least: int | None = None
    for place, packing in enumerate(packings[:1] if task.budget.is_interrupted else packings):
        task.progress(place / len(packings), packing.method)
        if least is not None and task.collective_bytes * 10**9 / packing.rate >= least:
            continue
        found = schedule(task, packing)
        for scheduled in () if found is None else (found,) if task.network.is_switchless else coarser(task, packing, found):
            time_ns = _time_ns(task, packing, scheduled, simulate)
            least = time_ns if least is None else min(least, time_ns)
            yield _Made(packing, scheduled, time_ns)


def _time_ns(task: Task, packing: Packing, scheduled: Scheduled, simulate: Callable[[Algorithm], int | None]) -> int:
    """The simulator's time, the schedule's own where there is none, or where it would take long."""
    own = -(-scheduled.pipeline.time_ps // 1000)
    if len(scheduled.pipeline.transfers) > _MOST_SIMULATED:
        return own
    return simulate(_algorithm(task, packing, scheduled, None, {}, {})) or own


def _algorithm(
    task: Task,
    packing: Packing,
    scheduled: Scheduled,
    wanted: tuple[int, ...] | None,
    options: Options,
    statistics: Mapping[str, JsonValue],
) -> Algorithm:
    given = {name: str(value) for name, value in options.items()}
    return algorithm_of(
        scheduled.pipeline.collective,
        scheduled.pipeline.chunks,
        scheduled.pipeline.transfers,
        npus=task.npus,
        num_npus=task.topology.num_npus,
        wanted=wanted,
        provenance=Provenance(_NAME, version(_NAME), task.topology.name, "", given),
        collective_bytes=task.collective_bytes,
        extensions={_NAME: {**statistics, "certificate": certificate_of(task, packing)}},
    )


def _statistics(task: Task, packings: Sequence[Packing], best: _Made) -> dict[str, JsonValue]:
    packing = best.packing
    found: dict[str, JsonValue] = {
        "method": packing.method,
        "trees": len(packing.trees),
        "fewest trees": packing.at_least if packing.status == "optimal" else f"at least {packing.at_least}",
        "depth": packing.depth,
        "chunks": best.scheduled.chunks,
        "rate GB/s": float(packing.rate) / 1e9,
        "best rate GB/s": float(packing.bound.rate) / 1e9,
        "trees x depth": ", ".join(f"{len(packing.trees)} x {packing.depth}" for packing in packings if not packing.is_shallow),
    }
    return found | ({"interrupted": True} if best.is_interrupted or task.budget.is_interrupted else {})
