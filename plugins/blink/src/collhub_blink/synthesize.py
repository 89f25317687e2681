"""Synthesis: pack trees, choose the packing and its chunks by the time, and hand over the algorithm with its proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

from collhub_packing.pipelining import Pipeline

from collhub_blink.certificate import certificate_of, certificate_of_planes, lower_bound_ns
from collhub_blink.packing.all_reduce import all_reduce_packings
from collhub_blink.packing.multi_root import spread_packings
from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.paths import path_packings
from collhub_blink.packing.single_root import rooted_packings
from collhub_blink.packing.task import PackingTask
from collhub_blink.packing.union import union_bound
from collhub_blink.scheduling.fastest import TimedSchedule, fastest
from collhub_blink.scheduling.planes import Divided, divided, planes_of
from collhub_blink.scheduling.schedules import Scheduled
from hub_core.algorithm import Algorithm, JsonValue, Provenance
from hub_core.bounds import lower_bound_ns as links_bound_ns
from hub_core.collectives import CollectiveKind
from hub_core.diagnostics import InputError, UsageError
from hub_core.plugins.contract import Options, SynthesisRequest, SynthesisResult
from hub_core.transfers import algorithm_of

_NAME = "collhub-blink"
_MOST_SIMULATED = 1 << 19

_PACKERS: Mapping[CollectiveKind, Callable[[PackingTask], list[PlacedPacking]]] = {
    CollectiveKind.BROADCAST: rooted_packings,
    CollectiveKind.REDUCE: rooted_packings,
    CollectiveKind.ALL_REDUCE: all_reduce_packings,
    CollectiveKind.ALL_GATHER: spread_packings,
    CollectiveKind.REDUCE_SCATTER: spread_packings,
    CollectiveKind.SCATTER: path_packings,
    CollectiveKind.GATHER: path_packings,
}


def synthesize(request: SynthesisRequest, options: Options) -> SynthesisResult:
    """The fastest algorithm on trees that was found for a request; see `plugin.BLINK` for the options.

    Raises `UsageError` for options that do not fit, and `InputError` for collectives that do not run on trees, ranks
    that cannot be reached, and sizes below a byte a chunk.
    """
    if request.topology.num_planes > 1:
        return _synthesize_on_planes(request, options)
    if str(options["setup"]) != "0ns":
        raise UsageError(
            "option setup: the topology has one plane alone",
            cure="join networks by +, as in dgx1v+dgx1-pcie",
        )
    task = PackingTask.of(request, options)
    packings = _wanted(task, packings_of(task))

    def judge(packing: PlacedPacking, scheduled: Scheduled) -> int:
        named = {"certificate": certificate_of(task, packing)}
        return _time_ns(
            scheduled.pipeline,
            lambda: _algorithm(task, scheduled.pipeline, None, {}, named),
            request.simulate,
        )

    best = fastest(task, packings, judge)
    if best is None:
        raise _too_small(task)
    statistics = _statistics(task, packings, best)
    extension = {**statistics, "certificate": certificate_of(task, best.packing)}
    algorithm = _algorithm(task, best.scheduled.pipeline, request.wanted, options, extension)
    bounds = _bounds_ns(task, best.packing.bound, request)
    return SynthesisResult(
        algorithm, best.time_ns, bounds, statistics, is_partial=request.wanted is not None
    )


def _synthesize_on_planes(request: SynthesisRequest, options: Options) -> SynthesisResult:
    """One algorithm over several planes, which share the data."""
    planes = planes_of(request, options, lambda task: _wanted(task, packings_of(task)))
    whole = PackingTask.of(request, options)
    startup_ns = [0] * request.topology.num_planes
    for plane in planes:
        startup_ns[plane.number] = plane.startup_ns

    def simulate(pipeline: Pipeline) -> int:
        return _time_ns(
            pipeline,
            lambda: _algorithm(whole, pipeline, None, {}, {}, startup_ns),
            request.simulate,
        )

    best = divided(planes, whole, simulate)
    if best is None:
        raise _too_small(whole)
    bound = union_bound(whole)
    statistics = _statistics_of_planes(best, bound)
    extension = {**statistics, "certificate": certificate_of_planes(whole, best.shares, bound)}
    algorithm = _algorithm(whole, best.pipeline, request.wanted, options, extension, startup_ns)
    bounds = _bounds_ns(whole, bound, request)
    return SynthesisResult(
        algorithm, best.time_ns, bounds, statistics, is_partial=request.wanted is not None
    )


def _too_small(task: PackingTask) -> InputError:
    message = f"{task.collective_bytes} bytes are too few to be shared out among the trees"
    return InputError(message, cure="choose a larger size, or fewer chunks", code="size-too-small")


def packings_of(task: PackingTask) -> list[PlacedPacking]:
    """All packings for a task, those at the optimal rate first."""
    return _PACKERS[task.collective.kind](task)


def _bounds_ns(task: PackingTask, bound: RateBound, request: SynthesisRequest) -> dict[str, int]:
    """The bound of the certificate, and what latencies and single ranks' links add."""
    bounds = {bound.kind: lower_bound_ns(task, bound)}
    if task.npus == tuple(range(task.topology.num_npus)):
        links = links_bound_ns(request.collective, task.topology, task.collective_bytes)
        bounds |= {} if links is None else {"links": int(links)}
    return bounds


def _wanted(task: PackingTask, packings: list[PlacedPacking]) -> list[PlacedPacking]:
    """The packings that the option `trees` allows."""
    if task.trees == "auto":
        return packings
    chosen = [packing for packing in packings if packing.is_shallow == (task.trees == "shallow")]
    if not chosen:
        raise UsageError(
            f"there are no {task.trees} trees for a {task.collective.kind}",
            cure="leave the option trees out",
        )
    fewest = min(len(packing.trees) for packing in chosen)
    return (
        chosen
        if task.trees == "shallow"
        else [packing for packing in chosen if len(packing.trees) == fewest]
    )


def _time_ns(
    pipeline: Pipeline,
    algorithm: Callable[[], Algorithm],
    simulate: Callable[[Algorithm], int | None],
) -> int:
    """The simulator's time, the schedule's own where there is none, or where it would take long."""
    own = -(-pipeline.time_ps // 1000)
    return own if len(pipeline.transfers) > _MOST_SIMULATED else simulate(algorithm()) or own


def _algorithm(
    task: PackingTask,
    pipeline: Pipeline,
    wanted: tuple[int, ...] | None,
    options: Options,
    extension: Mapping[str, JsonValue],
    startup_ns: Sequence[int] = (),
) -> Algorithm:
    given = {name: str(value) for name, value in options.items()}
    return algorithm_of(
        pipeline.collective,
        pipeline.chunks,
        pipeline.transfers,
        npus=task.npus,
        num_npus=task.topology.num_npus,
        wanted=wanted,
        provenance=Provenance(_NAME, version(_NAME), task.topology.name, "", given),
        collective_bytes=task.collective_bytes,
        extensions={_NAME: dict(extension)},
        startup_ns=startup_ns,
    )


def _statistics_of_planes(best: Divided, bound: RateBound) -> dict[str, JsonValue]:
    """As for one plane, a value per plane that carries anything; the rate is the sum, the best rate that of all links."""
    packings = [share.packing for share in best.shares]
    found: dict[str, JsonValue] = {
        "method": "; ".join(
            f"plane {share.plane.number}: {share.packing.method}" for share in best.shares
        ),
        "share %": ", ".join(f"{float(100 * share.part):.4g}" for share in best.shares),
        "trees": ", ".join(str(len(packing.trees)) for packing in packings),
        "depth": ", ".join(str(packing.depth) for packing in packings),
        "chunks": ", ".join(str(share.made.scheduled.chunks) for share in best.shares),
        "rate GB/s": ", ".join(f"{float(packing.rate) / 1e9:.6g}" for packing in packings),
        "best rate GB/s": float(bound.rate) / 1e9,
    }
    is_interrupted = best.is_interrupted or any(
        share.plane.task.budget.is_interrupted for share in best.shares
    )
    return found | ({"interrupted": True} if is_interrupted else {})


def _statistics(
    task: PackingTask, packings: Sequence[PlacedPacking], best: TimedSchedule
) -> dict[str, JsonValue]:
    packing = best.packing
    found: dict[str, JsonValue] = {
        "method": packing.method,
        "trees": len(packing.trees),
        "fewest trees": packing.at_least
        if packing.status == "optimal"
        else f"at least {packing.at_least}",
        "depth": packing.depth,
        "chunks": best.scheduled.chunks,
        "rate GB/s": float(packing.rate) / 1e9,
        "best rate GB/s": float(packing.bound.rate) / 1e9,
        "trees x depth": ", ".join(
            f"{len(packing.trees)} x {packing.depth}"
            for packing in packings
            if not packing.is_shallow
        ),
    }
    return found | (
        {"interrupted": True} if best.is_interrupted or task.budget.is_interrupted else {}
    )
