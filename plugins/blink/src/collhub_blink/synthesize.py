"""Synthesis: pack trees, choose the packing and its chunks by the time, and state the proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from math import floor

from collhub_packing.graph import with_common_unit
from collhub_packing.pipelining import Pipeline
from collhub_schedules import algorithm_of

from collhub_blink.certificate import certificate_of, certificate_of_planes, lower_bound_ns
from collhub_blink.options import BlinkOptions
from collhub_blink.packing.all_reduce import all_reduce_packings
from collhub_blink.packing.kept import kept_packings
from collhub_blink.packing.multi_root import spread_packings
from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.paths import path_packings
from collhub_blink.packing.single_root import rooted_packings
from collhub_blink.packing.task import PackingTask
from collhub_blink.packing.union import union_bound
from collhub_blink.scheduling.dividing import divided
from collhub_blink.scheduling.fastest import fastest
from collhub_blink.scheduling.planes import planes_of
from collhub_blink.scheduling.schedules import Scheduled
from collhub_blink.summary import Statistics, statistics_of, statistics_of_planes
from hub_core import installed_version
from hub_core.model import Algorithm, CollectiveKind, InputError, JsonValue, Provenance, UsageError
from hub_core.network import lower_bound_ns as links_bound_ns
from hub_core.plugin_api import SynthesisRequest, SynthesisResult

_NAME = "collhub-blink"
# Larger schedules are judged by their own times, since simulating each would take long.
_MOST_SIMULATED = 1 << 20

_PACKERS: Mapping[CollectiveKind, Callable[[PackingTask], list[PlacedPacking]]] = {
    CollectiveKind.BROADCAST: rooted_packings,
    CollectiveKind.REDUCE: rooted_packings,
    CollectiveKind.ALL_REDUCE: all_reduce_packings,
    CollectiveKind.ALL_GATHER: spread_packings,
    CollectiveKind.REDUCE_SCATTER: spread_packings,
    CollectiveKind.SCATTER: path_packings,
    CollectiveKind.GATHER: path_packings,
}


def synthesize(request: SynthesisRequest, options: BlinkOptions) -> SynthesisResult:
    """The fastest algorithm on trees that was found for a request.

    Raises `UsageError` for options that do not fit, and `InputError` for collectives that do not
    run on trees, ranks that cannot be reached, and sizes below a byte a chunk.
    """
    # Imports numba, which takes a second.
    from collhub_packing.compiling.compilations import COMPILING, compilations

    # While kernels are compiled, that is reported.
    with compilations(lambda: request.progress(0.0, COMPILING)):
        return _synthesize(request, options)


def _synthesize(request: SynthesisRequest, options: BlinkOptions) -> SynthesisResult:
    topology, tolerance = with_common_unit(request.topology)
    if not tolerance:
        return _synthesize_exactly(request, options)
    made = _synthesize_exactly(replace(request, topology=topology), options)
    return _with_tolerance(made, tolerance)


def _with_tolerance(made: SynthesisResult, tolerance: float) -> SynthesisResult:
    """A result for rounded bandwidths, as one for bandwidths larger by up to `tolerance`.

    Its bounds are earlier by as much. The certificate, of the rounded network, is removed.
    """
    extension = made.algorithm.extensions[_NAME]
    assert isinstance(extension, dict)
    kept = {name: value for name, value in extension.items() if name != "certificate"}
    note: dict[str, JsonValue] = {"bandwidths rounded by up to": tolerance}
    extensions = {**made.algorithm.extensions, _NAME: kept | note}
    return replace(
        made,
        algorithm=replace(made.algorithm, extensions=extensions),
        bounds_ns={name: floor(time / (1 + tolerance)) for name, time in made.bounds_ns.items()},
        statistics={**made.statistics, **note},
    )


def _synthesize_exactly(request: SynthesisRequest, options: BlinkOptions) -> SynthesisResult:
    if request.topology.num_planes > 1:
        return _synthesize_on_planes(request, options)
    if options.setup != "0ns":
        raise UsageError(
            "option setup: the topology has one plane alone",
            cure="join networks by +, as in dgx1v+dgx1-pcie",
        )
    return _synthesize_on_one(request, options)


def _synthesize_on_one(request: SynthesisRequest, options: BlinkOptions) -> SynthesisResult:
    """The fastest of all packings of a network."""
    task = PackingTask.of(request, options)
    packings = _wanted_packings(task)
    judge = _Judge(task, request)
    best = fastest(task, packings, judge.time_ns)
    if best is None:
        raise _too_small(task)
    statistics = statistics_of(task, packings, best)
    algorithm = judge.algorithm(
        best.scheduled.pipeline,
        {**statistics, "certificate": certificate_of(task, best.packing)},
        options,
    )
    bounds = _bounds_ns(task, best.packing.bound, request)
    return _result(request, algorithm, best.time_ns, bounds, statistics)


class _Judge:
    """Times schedules, and keeps the algorithm of the fastest: that takes as long as to time it."""

    def __init__(self, task: PackingTask, request: SynthesisRequest) -> None:
        self._task = task
        self._request = request
        self._least_ns: int | None = None
        self._fastest: tuple[Pipeline, Algorithm] | None = None

    def time_ns(self, packing: PlacedPacking, scheduled: Scheduled) -> int:
        """Nanoseconds of a schedule."""
        pipeline, made = scheduled.pipeline, list[Algorithm]()

        def algorithm() -> Algorithm:
            made.append(_algorithm(self._task, pipeline, {}))
            return made[0]

        time_ns = _time_ns(pipeline, self._request, algorithm)
        if self._least_ns is None or time_ns < self._least_ns:
            self._least_ns = time_ns
            self._fastest = (pipeline, made[0]) if made else None
        return time_ns

    def algorithm(
        self, pipeline: Pipeline, extension: Mapping[str, JsonValue], options: BlinkOptions
    ) -> Algorithm:
        """The steps of a schedule, with what is said of it."""
        wanted = self._request.wanted
        if wanted is None and self._fastest is not None and self._fastest[0] is pipeline:
            whole = self._fastest[1]
            said = {_NAME: dict(extension)}
            provenance = _provenance(self._task, options)
            return replace(whole, provenance=provenance, extensions=said)
        return _algorithm(self._task, pipeline, extension, wanted=wanted, options=options)


def _synthesize_on_planes(request: SynthesisRequest, options: BlinkOptions) -> SynthesisResult:
    """One algorithm over several planes, which share the data."""
    planes = planes_of(request, options, _wanted_packings)
    # The network of all planes, for the bound and for the joint algorithm.
    whole = PackingTask.of(request, options)
    # A plane that is left out has no sends that could wait.
    startup_ns = [0] * request.topology.num_planes
    for plane in planes:
        startup_ns[plane.number] = plane.startup_ns

    def time_ns(pipeline: Pipeline) -> int:
        return _time_ns(pipeline, request, lambda: _algorithm(whole, pipeline, {}, startup_ns))

    best = divided(planes, whole, time_ns)
    if best is None:
        raise _too_small(whole)
    bound = union_bound(whole)
    statistics = statistics_of_planes(best, bound)
    algorithm = _algorithm(
        whole,
        best.pipeline,
        {**statistics, "certificate": certificate_of_planes(whole, best.shares, bound)},
        startup_ns,
        wanted=request.wanted,
        options=options,
    )
    bounds = _bounds_ns(whole, bound, request)
    return _result(request, algorithm, best.time_ns, bounds, statistics)


def _result(
    request: SynthesisRequest,
    algorithm: Algorithm,
    time_ns: int,
    bounds_ns: dict[str, int],
    statistics: Statistics,
) -> SynthesisResult:
    return SynthesisResult(
        algorithm,
        time_ns,
        bounds_ns,
        statistics,
        is_partial=request.wanted is not None,
    )


def _too_small(task: PackingTask) -> InputError:
    """The refusal of a size of which some tree would carry less than a byte."""
    message = f"{task.collective_bytes} bytes are too few to be shared out among the trees"
    return InputError(message, cure="choose a larger size, or fewer chunks", code="size-too-small")


def packings_of(task: PackingTask) -> list[PlacedPacking]:
    """All packings for a task, those at the optimal rate first."""
    return kept_packings(task, _PACKERS[task.collective.kind])


def _bounds_ns(task: PackingTask, bound: RateBound, request: SynthesisRequest) -> dict[str, int]:
    """The bound of the certificate, and what latencies and single ranks' links add."""
    bounds = {bound.kind: lower_bound_ns(task, bound)}
    every_npu = tuple(range(task.topology.num_npus))
    # The core's bound is for collectives of all NPUs.
    if task.npus == every_npu:
        links = links_bound_ns(request.collective, task.topology, task.collective_bytes)
        if links is not None:
            bounds["links"] = int(links)
    return bounds


def _wanted_packings(task: PackingTask) -> list[PlacedPacking]:
    """The packings that the option `trees` allows."""
    packings = packings_of(task)
    if task.trees == "auto":
        return packings
    is_shallow = task.trees == "shallow"
    chosen = [packing for packing in packings if packing.is_shallow == is_shallow]
    if not chosen:
        raise UsageError(
            f"there are no {task.trees} trees for a {task.collective.kind}",
            cure="leave the option trees out",
        )
    if is_shallow:
        return chosen
    # Shallow packings compete by time; of the others those with the fewest trees are asked for.
    fewest = min(len(packing.trees) for packing in chosen)
    return [packing for packing in chosen if len(packing.trees) == fewest]


def _time_ns(
    pipeline: Pipeline,
    request: SynthesisRequest,
    algorithm: Callable[[], Algorithm],
) -> int:
    """The simulator's time; the schedule's own where there is none, or it would take long."""
    # Rounded up: no schedule is faster than it is.
    own_ns = -(-pipeline.time_ps // 1000)
    if len(pipeline.transfers) > _MOST_SIMULATED:
        return own_ns
    return request.simulate(algorithm()) or own_ns


def _algorithm(
    task: PackingTask,
    pipeline: Pipeline,
    extension: Mapping[str, JsonValue],
    startup_ns: Sequence[int] = (),
    *,
    wanted: tuple[int, ...] | None = None,
    options: BlinkOptions | None = None,
) -> Algorithm:
    """The steps of a schedule; `wanted`: of these ranks alone."""
    return algorithm_of(
        pipeline.collective,
        pipeline.chunks,
        pipeline.transfers,
        npus=task.npus,
        num_npus=task.topology.num_npus,
        wanted=wanted,
        provenance=_provenance(task, options),
        collective_bytes=task.collective_bytes,
        extensions={_NAME: dict(extension)},
        startup_ns=startup_ns,
    )


def _provenance(task: PackingTask, options: BlinkOptions | None) -> Provenance:
    """Who made an algorithm, and how."""
    given = {} if options is None else asdict(options)
    stated = {name: str(value) for name, value in given.items()}
    # Sources that are imported without being installed have no version.
    version = installed_version(_NAME) or ""
    return Provenance(_NAME, version, task.topology.name, "", stated)
