"""The best lower bound that the core and the plugins offer, and the ratio of a time to it.

`simulate`, `compare`, `tune`, `topology check` and `demo` all take their bounds from here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import Diagnostic, InputError, Severity
from hub_core.network import Topology, lower_bounds_ps
from hub_core.pipeline.calls import bound_options, call
from hub_core.plugin_api.synthesis import BoundRequest, BoundResult, LowerBound
from hub_core.registry.discovery import run_registry
from hub_core.registry.plugins import Registry

CORE_METHOD = "links"
"""Name of the core's bound: links of ranks, cuts and partitions, distances, latencies."""
TIGHT_RATIO = 1.02
"""Ratio of a time to a bound up to which no further offer is asked."""
QUICK_WORK = 10**9
"""Work of the offers that `simulate` and `demo` ask: about a second of one core, with imports."""
THOROUGH_WORK = 20 * 10**9
"""Work of the offers that `compare`, `tune` and `topology check` ask, for all sizes together."""


@dataclass(frozen=True, slots=True)
class ProvenBound:
    """A time in picoseconds that no algorithm beats, and the offer that proves it."""

    time_ps: int
    method: str

    @property
    def time_ns(self) -> int:
        """Whole nanoseconds, rounded down."""
        return self.time_ps // 1000

    def ratio(self, time_ps: int | None, slack_ps: int = 0) -> float | None:
        """A time by the bound, at least 1; None without a time, and where one of them is zero.

        `slack_ps`: what rounding may have taken from the time. None also for a time that beats the
        bound by more, which `beaten_bound` reports.
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
    """The largest bound for every size, None for custom collectives and without a path.

    The core's own bound comes first; it takes a few passes over the links. `best_times_ps`: times
    of algorithms by size. Offers of plugins, which may import solvers, are asked in the order of
    the work of loading them, for the sizes at which the best time is more than 2 % above the bounds
    so far, each within `QUICK_WORK` or, if `is_thorough`, `THOROUGH_WORK`. Raises `HubError` for a
    broken plugin.
    """
    own = lower_bounds_ps(collective, topology, sizes, npus)
    if own is None:
        return (None,) * len(sizes)
    best = [ProvenBound(int(time), CORE_METHOD) if math.isfinite(time) else None for time in own]
    times = best_times_ps or [None] * len(sizes)
    registry = registry or run_registry()
    offers = sorted(
        (one for one in registry.all(LowerBound) if collective.kind in one.offer.kinds),
        key=lambda one: (one.offer.loading_work, one.name),
    )
    for provided in offers:
        loose = [
            place
            for place, bound in enumerate(best)
            if bound is not None and not _is_tight(bound, times[place])
        ]
        left = (THOROUGH_WORK if is_thorough else QUICK_WORK) - provided.offer.loading_work
        if not loose or left <= 0:
            break
        request = BoundRequest(
            collective,
            topology,
            tuple(sizes[place] for place in loose),
            None if npus is None else tuple(npus),
            left,
        )
        try:
            result = call(provided, BoundResult, request, bound_options(provided, None))
        except InputError:
            # It has no bound for this network, for example one on which some pairs have no path.
            continue
        for place, time_ps in zip(loose, result.times_ps, strict=False):
            so_far = best[place]
            if so_far is not None and time_ps > so_far.time_ps:
                best[place] = ProvenBound(time_ps, provided.name)
    return tuple(best)


def beaten_bound(
    bound: ProvenBound | None, time_ps: int | None, *, slack_ps: int = 0, name: str = ""
) -> Diagnostic | None:
    """The finding for a time below a bound: one of the two is wrong, which is a bug.

    `slack_ps`: what rounding may take from the time.
    """
    if bound is None or time_ps is None or time_ps + slack_ps >= bound.time_ps:
        return None
    what = f"{name}: " if name else ""
    return Diagnostic(
        "bound-beaten",
        f"{what}the time of {time_ps} ps is below the lower bound of {bound.time_ps} ps by "
        f"{bound.method}: one of them is wrong",
        Severity.WARNING,
        cure="verify the algorithm; if it is correct, please report this as a bug of the bound",
    )


def _is_tight(bound: ProvenBound, time_ps: int | None) -> bool:
    """Whether a time is so near the bound that a better one would hardly differ."""
    return time_ps is not None and time_ps <= TIGHT_RATIO * bound.time_ps
