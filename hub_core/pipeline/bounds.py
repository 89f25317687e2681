"""The best lower bound of the core and the plugins, and the ratio of a time to it.

`simulate`, `compare`, `tune`, `topology check` and `demo` all compute their bounds here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import Diagnostic, InputError, Severity
from hub_core.model.quantities import format_time
from hub_core.network import Topology, lower_bounds_ps
from hub_core.pipeline.calls import bound_options, call
from hub_core.plugin_api.synthesis import (
    ONE_SIZE,
    BoundRequest,
    BoundResult,
    LowerBound,
    SynthesisRequest,
    SynthesisResult,
)
from hub_core.registry.discovery import run_registry
from hub_core.registry.plugins import Registry

CORE_METHOD = "links"
"""Name of the core's bound: links of ranks, cuts and partitions, distances, latencies."""
TIGHT_RATIO = 1.02
"""Maximum ratio of a time to a bound at which no further offer is called."""
QUICK_WORK = 10**9
"""Work limit of offers for `simulate` and `demo`: about 1 s of one core, with imports."""
THOROUGH_WORK = 20 * 10**9
"""Work limit of offers for `compare`, `tune` and `topology check`, for all sizes together."""


@dataclass(frozen=True, slots=True)
class ProvenBound:
    """A time in ps that no algorithm beats, and the name of the offer that proves it."""

    time_ps: int
    method: str

    @property
    def time_ns(self) -> int:
        """The bound in nanoseconds, rounded down."""
        return self.time_ps // 1000

    def ratio(self, time_ps: int | None, slack_ps: int = 0) -> float | None:
        """Return a time divided by this bound, at least 1.0.

        `slack_ps`: maximum rounding error of the time. Returns None if the time is None or 0, if
        the bound is 0, and if the time is below the bound by more than `slack_ps`, which
        `beaten_bound` reports.
        """
        if not time_ps or not self.time_ps or time_ps + slack_ps < self.time_ps:
            return None
        return max(time_ps / self.time_ps, 1.0)


def best_bounds(
    collective: Collective,
    topology: Topology,
    sizes: Sequence[int],
    *,
    registry: Registry | None = None,
    npus: Sequence[int] | None = None,
    best_times_ps: Sequence[int | None] | None = None,
    is_thorough: bool = False,
) -> tuple[ProvenBound | None, ...]:
    """Compute the largest known lower bound in ps for every size in bytes, in the order of sizes.

    A bound is None for a custom collective, and if ranks cannot reach each other. `npus`: the NPU
    of each rank, None for NPU r. `best_times_ps`: times of the fastest known algorithms by size,
    None if unknown. `registry`: None for that of the run.

    The core's bound is computed first. Then the offers for the collective's kind are called, by
    ascending loading work, then by name. Each offer gets the sizes with a bound that is loose: the
    best time is unknown, or more than 2 % above the largest bound so far. An offer replaces only
    smaller bounds. Its limit of work is `QUICK_WORK`, or `THOROUGH_WORK` if `is_thorough`, minus
    its loading work. The search ends if no bound is loose, or at the first limit of 0 or less.

    Raises `InputError` (`topology-too-small`) for fewer NPUs than ranks. An offer that raises
    `InputError` is skipped; other errors of an offer are raised as `HubError`.
    """
    core_ps = lower_bounds_ps(collective, topology, sizes, npus)
    if core_ps is None:
        return (None,) * len(sizes)
    best = [
        ProvenBound(int(time_ps), CORE_METHOD) if math.isfinite(time_ps) else None
        for time_ps in core_ps
    ]
    times = best_times_ps or [None] * len(sizes)
    registry = registry or run_registry()
    offers = sorted(
        (offered for offered in registry.all(LowerBound) if collective.kind in offered.offer.kinds),
        key=lambda offered: (offered.offer.loading_work, offered.name),
    )
    for provided in offers:
        # A better bound would change little for a time that is near to the present one.
        loose = [
            i
            for i, (bound, time_ps) in enumerate(zip(best, times, strict=True))
            if bound is not None and (time_ps is None or time_ps > TIGHT_RATIO * bound.time_ps)
        ]
        max_work = (THOROUGH_WORK if is_thorough else QUICK_WORK) - provided.offer.loading_work
        if not loose or max_work <= 0:
            break
        request = BoundRequest(
            collective,
            topology,
            tuple(sizes[i] for i in loose),
            None if npus is None else tuple(npus),
            max_work,
        )
        try:
            result = call(provided, BoundResult, request, bound_options(provided, None))
        except InputError:
            # The offer has no bound for this network, for example because some pairs have no path.
            continue
        for i, time_ps in zip(loose, result.times_ps, strict=False):
            so_far = best[i]
            if so_far is not None and time_ps > so_far.time_ps:
                best[i] = ProvenBound(time_ps, provided.name)
    return tuple(best)


def replace_bounds(
    result: SynthesisResult, request: SynthesisRequest, network: Topology
) -> SynthesisResult:
    """Return a copy of the result with the best proven bound on `network` as its only bound.

    It is used for times of a machine whose switches can do more than those of the
    network in `request`. The bound is for the collective, the total bytes, the NPUs and
    the registry of `request`. A bound within 2 % of the time of the result is not
    improved further. If no bound is proven, the result has none.

    Raises `InputError` (`topology-too-small`) if `network` has fewer NPUs than ranks, and
    `HubError` for a broken plugin.
    """
    (bound,) = best_bounds(
        request.collective,
        network,
        (request.collective_bytes,),
        registry=request.hub,
        npus=request.npus,
        best_times_ps=(1000 * result.time_ns,),
    )
    return replace(result, bounds_ns={} if bound is None else {bound.method: bound.time_ns})


def beaten_bound(
    bound: ProvenBound | None, time_ps: int | None, *, slack_ps: int = 0, name: str = ""
) -> Diagnostic | None:
    """Return the warning (`bound-beaten`) about a time below a bound; None if there is none.

    Such a time is a bug of the algorithm or of the bound. Returns None if the time or the bound is
    unknown, and if the time is below the bound by at most `slack_ps`, its maximum rounding error.
    `name`: the algorithm, for the message.
    """
    if bound is None or time_ps is None or time_ps + slack_ps >= bound.time_ps:
        return None
    lead = f"{name}: " if name else ""
    return Diagnostic(
        "bound-beaten",
        f"{lead}the time of {time_ps} ps is below the lower bound of {bound.time_ps} ps by "
        f"{bound.method}: one of them is wrong",
        Severity.WARNING,
        cure="verify the algorithm; if it is correct, please report this as a bug of the bound",
    )


def apply_simulated_time(result: SynthesisResult, time_ps: int) -> SynthesisResult:
    """Return a copy of the result with a simulated time and without bounds above this time.

    `time_ps`: computed with times of messages that are truncated to ps, so it is too low by at
    most 1 ps per step. The new time in ns is the larger one of these:

    - `time_ps`, rounded up to ns
    - the largest bound that is at most `time_ps` plus 1 ps per step, rounded down to ns

    Bounds above the new time are wrong and are removed; an equal one remains. Each removal
    adds a warning `bound-beaten` after the other diagnostics. Bounds that hold only for messages
    of one size are removed without a warning.
    """
    latest_ns = (time_ps + len(result.algorithm.steps)) // 1000
    reached_ns = max((ns for ns in result.bounds_ns.values() if ns <= latest_ns), default=0)
    result = replace(result, time_ns=max(-(-time_ps // 1000), reached_ns))
    bounds = {name: bound for name, bound in result.bounds_ns.items() if bound <= result.time_ns}
    warnings = [
        Diagnostic(
            "bound-beaten",
            f"the lower bound {name}, {format_time(bound)}, is wrong: the algorithm takes "
            f"{format_time(result.time_ns)}",
            Severity.WARNING,
            cure="report this as a bug of the synthesizer that states the bound",
        )
        for name, bound in result.bounds_ns.items()
        if name not in bounds and not name.endswith(ONE_SIZE)
    ]
    return replace(result, bounds_ns=bounds, diagnostics=(*result.diagnostics, *warnings))
