"""Synthesis: pack trees, choose packing and chunks by the time, and certify the rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from math import floor

from collhub_packing.graph import round_bandwidths, with_common_unit
from collhub_packing.pipelining import Pipeline

from collhub_blink.certificate import (
    build_certificate,
    build_planes_certificate,
    lower_bound_ns,
    summarize_packing,
    summarize_planes,
)
from collhub_blink.packing.multi_root import build_all_gather_packings, build_all_reduce_packings
from collhub_blink.packing.packings import PlacedPacking, RateBound, get_cached_packings
from collhub_blink.packing.paths import build_path_packings
from collhub_blink.packing.single_root import build_rooted_packings
from collhub_blink.packing.task import PackingTask
from collhub_blink.plugin import BlinkOptions
from collhub_blink.scheduling.dividing import find_best_division
from collhub_blink.scheduling.planes import compute_union_bound, find_planes
from collhub_blink.scheduling.schedules import PackingSchedule
from collhub_blink.scheduling.switched_networks import find_fastest
from hub_core import installed_version
from hub_core.model import Algorithm, CollectiveKind, InputError, JsonValue, Provenance, UsageError
from hub_core.network import lower_bound_ns as links_bound_ns
from hub_core.plugin_api import SynthesisRequest, SynthesisResult
from hub_core.schedules import algorithm_of

_NAME = "collhub-blink"
# Schedules with more messages are judged by their planned time: simulation would take long.
_MAX_SIMULATED_MESSAGES = 1 << 20

_PACKERS: Mapping[CollectiveKind, Callable[[PackingTask], list[PlacedPacking]]] = {
    CollectiveKind.BROADCAST: build_rooted_packings,
    CollectiveKind.REDUCE: build_rooted_packings,
    CollectiveKind.ALL_REDUCE: build_all_reduce_packings,
    CollectiveKind.ALL_GATHER: build_all_gather_packings,
    CollectiveKind.REDUCE_SCATTER: build_all_gather_packings,
    CollectiveKind.SCATTER: build_path_packings,
    CollectiveKind.GATHER: build_path_packings,
}


def synthesize(request: SynthesisRequest, options: BlinkOptions) -> SynthesisResult:
    """Synthesize the fastest algorithm on trees among the evaluated packings and chunks.

    Compilation of kernels is reported as progress. If the bandwidths have no suitable
    common unit, they are rounded, and the bounds are relaxed accordingly; the result then
    has no certificate. Raise `UsageError` for unsuitable options and for a single rank.
    Raise `InputError` for collectives that do not run on trees, for ranks that cannot be
    reached, and if every schedule would have chunks below one byte.
    """
    # Imports numba, which takes a second.
    from collhub_packing.compiling import COMPILING, compilations

    # Compilation of kernels is reported as progress.
    with compilations(lambda: request.progress(0.0, COMPILING)):
        return _synthesize_with_common_unit(request, options)


def _synthesize_with_common_unit(
    request: SynthesisRequest, options: BlinkOptions
) -> SynthesisResult:
    """Synthesize an algorithm; round the bandwidths to a common unit first if necessary.

    A common unit is a bandwidth of which all bandwidths are integer multiples. Rounding
    (`round_bandwidths`) is necessary if there is no such unit, or if the synthesis with exact
    bandwidths raises `InputError` (`too-many-units`). All other errors, and those of the synthesis
    after rounding, pass through. After rounding, the result is valid for the true bandwidths:

    - each lower bound is divided by 1 + the largest relative rounding, and rounded down to ns; the
      time is that with the rounded bandwidths
    - the extension has no certificate, because it would prove a bound of the rounded network only
    - extension and statistics have the largest rounding as `bandwidths rounded by up to`
    """
    topology, tolerance = with_common_unit(request.topology)
    if not tolerance:
        try:
            return _synthesize_exactly(request, options)
        except InputError as error:
            if error.diagnostics[0].code != "too-many-units":
                raise
        topology, tolerance = round_bandwidths(request.topology)
    result = _synthesize_exactly(replace(request, topology=topology), options)

    # A true bandwidth exceeds its rounded one by at most the fraction `tolerance`.
    bounds_ns = {name: floor(time / (1 + tolerance)) for name, time in result.bounds_ns.items()}
    note: dict[str, JsonValue] = {"bandwidths rounded by up to": tolerance}
    extension = result.algorithm.extensions[_NAME]
    assert isinstance(extension, dict)
    fields = {name: value for name, value in extension.items() if name != "certificate"}
    extensions = {**result.algorithm.extensions, _NAME: fields | note}
    return replace(
        result,
        algorithm=replace(result.algorithm, extensions=extensions),
        bounds_ns=bounds_ns,
        statistics={**result.statistics, **note},
    )


def _synthesize_exactly(request: SynthesisRequest, options: BlinkOptions) -> SynthesisResult:
    """Return the fastest schedule of all allowed packings, with the bandwidths as they are.

    A topology with several planes is passed to `_synthesize_on_planes`. For a single plane:

    - Times are simulated; planned times replace them for more than 2^20 messages, or if the
      simulation gives no time. The first of equal times counts. Ctrl-C ends the search with the
      best schedule so far, and is raised again without one.
    - The algorithm has an extension with statistics and certificate. If the request names ranks
      (`wanted`), it has only their steps, and the result is partial.
    - Bounds: that of the packing's rate and, if all NPUs are ranks in order, the core's by links.
    - Raises `UsageError` if `setup` is not "0ns", `InputError` (`size-too-small`) for too few bytes
      for any schedule, and the errors of `PackingTask.of` and `_choose_packings`.
    """
    if request.topology.num_planes > 1:
        return _synthesize_on_planes(request, options)
    if options.setup != "0ns":
        raise UsageError(
            "option setup: the topology has only one plane",
            cure="join networks by +, as in dgx1v+dgx1-pcie",
        )
    task = PackingTask.of(request, options)
    packings = _choose_packings(task)
    timer = _ScheduleTimer(task, request)
    best = find_fastest(task, packings, timer.time_ns)
    if best is None:
        raise _size_error(task)
    statistics = summarize_packing(task, packings, best)
    algorithm = timer.algorithm(
        best.schedule.pipeline,
        {**statistics, "certificate": build_certificate(task, best.packing)},
        options,
    )
    bounds = _collect_bounds_ns(task, best.packing.bound, request)
    is_partial = request.wanted is not None
    return SynthesisResult(algorithm, best.time_ns, bounds, statistics, is_partial=is_partial)


class _ScheduleTimer:
    """Evaluates the time of schedules, and caches the algorithm of the fastest one.

    Building an algorithm takes as long as simulating it.
    """

    def __init__(self, task: PackingTask, request: SynthesisRequest) -> None:
        self._task = task
        self._request = request
        self._best_time_ns: int | None = None
        self._fastest: tuple[Pipeline, Algorithm] | None = None

    def time_ns(self, packing: PlacedPacking, schedule: PackingSchedule) -> int:
        """Return the time of a schedule in ns, and remember the fastest schedule so far.

        The time is simulated. The planned time, rounded up, counts for a schedule of more than
        `_MAX_SIMULATED_MESSAGES` (2^20) messages, and if the simulation gives no time. A schedule
        that is faster than all before it replaces `_best_time_ns` and `_fastest`; an equal time
        does not. `_fastest` is its pipeline and algorithm, or None if it was not simulated, because
        then no algorithm was built. The ratio to the planned time is reported to the pace of the
        task. `packing` has no effect. Ctrl-C and limits of the search end the simulation by an
        exception.
        """
        pipeline = schedule.pipeline
        built_algorithms: list[Algorithm] = []

        def build_algorithm() -> Algorithm:
            """Build the algorithm of the schedule without an extension, keep it, and return it.

            It is appended to `built_algorithms`; the first entry of this list is returned, so call
            it once.
            """
            built_algorithms.append(_build_algorithm(self._task, pipeline, {}))
            return built_algorithms[0]

        time_ns = _evaluate_time_ns(pipeline, self._request, build_algorithm)
        self._task.pace.observe(time_ns, pipeline.time_ps / 1000)
        if self._best_time_ns is None or time_ns < self._best_time_ns:
            self._best_time_ns = time_ns
            self._fastest = (pipeline, built_algorithms[0]) if built_algorithms else None
        return time_ns

    def algorithm(
        self, pipeline: Pipeline, extension: Mapping[str, JsonValue], options: BlinkOptions
    ) -> Algorithm:
        """Return the algorithm of a schedule with its provenance and extension.

        The algorithm that was built for the simulation is used if `pipeline` is the very object of
        the fastest schedule so far, this schedule was simulated, and the request names no ranks.
        Otherwise the algorithm is built, with the steps of the requested ranks only (None: of all).
        `options` are recorded in the provenance. Errors of `_build_algorithm` pass through.
        """
        ranks = self._request.wanted
        if ranks is None and self._fastest is not None and self._fastest[0] is pipeline:
            algorithm = self._fastest[1]
            extensions = {_NAME: dict(extension)}
            provenance = _build_provenance(self._task, options)
            return replace(algorithm, provenance=provenance, extensions=extensions)
        return _build_algorithm(self._task, pipeline, extension, wanted=ranks, options=options)


def _synthesize_on_planes(request: SynthesisRequest, options: BlinkOptions) -> SynthesisResult:
    """Return the fastest algorithm over the planes of a network, with the data divided among them.

    Only planes on which all ranks reach each other are used, each with its packings of trees. The
    candidates are a division with all data on the fastest plane, then at most 3 divisions over
    several planes (`find_best_division`). The smallest time of the joint schedule decides; of equal
    times the first candidate. The time is simulated if possible, otherwise planned. Ctrl-C during
    the search returns the best candidate so far.

    The result has the lower bound of the network of all planes. If rank r is on NPU r for all NPUs,
    it also has the core's bound by links.

    Raises `InputError`: `size-too-small` if the bytes are too few for the first candidate,
    `disconnected` if no plane connects all ranks. Raises `UsageError` for an invalid option `setup`
    and for trees that a plane does not have (`_choose_packings`).
    """
    planes = find_planes(request, options, _choose_packings)
    # The network of all planes, for the bound and for the joint algorithm.
    full_task = PackingTask.of(request, options)
    # A plane without a share has no sends, so that its entry is not used.
    startup_ns = [0] * request.topology.num_planes
    for plane in planes:
        startup_ns[plane.number] = plane.startup_ns

    def time_ns(pipeline: Pipeline) -> int:
        """Evaluate the time of a joint schedule in ns."""
        return _evaluate_time_ns(
            pipeline, request, lambda: _build_algorithm(full_task, pipeline, {}, startup_ns)
        )

    best = find_best_division(planes, full_task, time_ns)
    if best is None:
        raise _size_error(full_task)
    bound = compute_union_bound(full_task)
    statistics = summarize_planes(best, bound)
    algorithm = _build_algorithm(
        full_task,
        best.pipeline,
        {**statistics, "certificate": build_planes_certificate(full_task, best.shares, bound)},
        startup_ns,
        wanted=request.wanted,
        options=options,
    )
    bounds = _collect_bounds_ns(full_task, bound, request)
    is_partial = request.wanted is not None
    return SynthesisResult(algorithm, best.time_ns, bounds, statistics, is_partial=is_partial)


def _size_error(task: PackingTask) -> InputError:
    """Return (do not raise) the error for a size at which a tree would carry less than a byte.

    It is an `InputError` (`size-too-small`) that states the bytes of the task.
    """
    message = f"too few bytes to be divided among the trees: {task.collective_bytes}"
    return InputError(message, cure="choose a larger size, or fewer chunks", code="size-too-small")


def find_packings(task: PackingTask) -> list[PlacedPacking]:
    """Return all packings of a task, built or from the cache, those at the optimal rate first."""
    return get_cached_packings(task, _PACKERS[task.collective.kind])


def _collect_bounds_ns(
    task: PackingTask, bound: RateBound, request: SynthesisRequest
) -> dict[str, int]:
    """Return lower bounds of the collective's time in ns by name, each rounded down.

    The first is that of `bound`, a certified maximum rate; its name is `bound.kind`, such as
    `cut`. `links`, the core's bound by latencies and links, follows only if rank r is on NPU r
    for all NPUs of the topology and the core has such a bound for this collective.
    """
    bounds = {bound.kind: lower_bound_ns(task, bound)}
    every_npu = tuple(range(task.topology.num_npus))
    if task.npus == every_npu:
        links = links_bound_ns(request.collective, task.topology, task.collective_bytes)
        if links is not None:
            bounds["links"] = int(links)
    return bounds


def _choose_packings(task: PackingTask) -> list[PlacedPacking]:
    """Return the packings of a task that the option `trees` allows, in the order of the search.

    The packings at the optimal rate come first. By `task.trees`:

    - `auto`: all packings
    - `shallow`: those that were built as shallow (`is_shallow`)
    - `fewest`: of the packings that are not shallow, those with the minimum number of trees

    Raises `UsageError` if there is no packing of the requested kind.
    """
    packings = find_packings(task)
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
    # `fewest`: only the packings with the minimum number of trees.
    fewest = min(len(packing.trees) for packing in chosen)
    return [packing for packing in chosen if len(packing.trees) == fewest]


def _evaluate_time_ns(
    pipeline: Pipeline,
    request: SynthesisRequest,
    algorithm: Callable[[], Algorithm],
) -> int:
    """Return the time of a schedule in ns, by simulation if possible.

    `algorithm`: function that builds the schedule's algorithm; it is called only for a
    simulation. The result is the planned time, rounded up to ns, for more than
    `_MAX_SIMULATED_MESSAGES` messages, and if the simulation gives None or 0. Exceptions of
    the simulation, such as Ctrl-C, pass through.
    """
    # Rounded up: no schedule is faster than planned.
    planned_time_ns = -(-pipeline.time_ps // 1000)
    if len(pipeline.transfers) > _MAX_SIMULATED_MESSAGES:
        return planned_time_ns
    return request.simulate(algorithm()) or planned_time_ns


def _build_algorithm(
    task: PackingTask,
    pipeline: Pipeline,
    extension: Mapping[str, JsonValue],
    startup_ns: Sequence[int] = (),
    *,
    wanted: tuple[int, ...] | None = None,
    options: BlinkOptions | None = None,
) -> Algorithm:
    """Build the algorithm of a schedule, with the steps of the ranks `wanted` (None: of all).

    `extension`: content of the extension with the plugin's name. `startup_ns`: start-up time in
    ns of each plane. `options`: the options in the provenance. Raises `InputError`
    (`schedule-acausal`) for a chunk that is sent before its source has it.
    """
    return algorithm_of(
        pipeline.collective,
        pipeline.chunks,
        pipeline.transfers,
        npus=task.npus,
        num_npus=task.topology.num_npus,
        wanted=wanted,
        provenance=_build_provenance(task, options),
        collective_bytes=task.collective_bytes,
        extensions={_NAME: dict(extension)},
        startup_ns=startup_ns,
    )


def _build_provenance(task: PackingTask, options: BlinkOptions | None) -> Provenance:
    """Return the origin of an algorithm: plugin, its version, topology, and options as text.

    The version is "" if the plugin is not installed. Without `options` (None), the origin
    has no options.
    """
    values = {} if options is None else asdict(options)
    option_texts = {name: str(value) for name, value in values.items()}
    # Sources that are imported without installation have no version.
    version = installed_version(_NAME) or ""
    return Provenance(_NAME, version, task.topology.name, "", option_texts)
