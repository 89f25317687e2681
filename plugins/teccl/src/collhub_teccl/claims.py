"""The check `teccl-claims`: what the solver claims of a schedule beside what a simulator finds."""

from __future__ import annotations

import numpy as np

import hub_core
from collhub_teccl.read import EXTENSION
from hub_core import Algorithm, Topology
from hub_core.model import Diagnostic, JsonValue, Severity, StepKind
from hub_core.network import Links
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions

# Bytes of a unit, and of what a link takes in a second: an epoch of one unit is a second.
_UNIT_BYTES = 10**9
# Times are whole nanoseconds.
_TOLERANCE = 1e-6


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Compare epochs. A schedule that needs more than it claims is a warning.

    A schedule does not say its network: it is simulated on the links that it uses, of which each
    takes a chunk an epoch. It needs less than it claims where links are slower than that or have
    latencies, and more where fast links take several chunks in an epoch of the slowest one.
    """
    del options
    algorithm = request.algorithm
    claims = algorithm.extensions.get(EXTENSION) if algorithm is not None else None
    claimed = claims.get("epochs") if isinstance(claims, dict) else None
    if algorithm is None or not isinstance(claims, dict) or not isinstance(claimed, int | float):
        verdict = "carries no claims of TE-CCL"
        return CheckReport(ok=True, verdict=verdict, is_applicable=False)
    needed = needed_epochs(algorithm)
    if needed is None:
        return CheckReport(ok=False, verdict="it never ends")
    facts: dict[str, JsonValue] = {"claimed_epochs": claimed, "needed_epochs": needed}
    facts |= {name: claims[name] for name in ("finish_time_s", "demand_met_s") if name in claims}
    duration_s = claims.get("epoch_duration_s")
    if isinstance(duration_s, int | float):
        facts["needed_s"] = needed * duration_s
    verdict = f"TE-CCL claims {claimed} epochs; on its links the schedule needs {needed:.2f}"
    warnings = _warnings(claimed, needed)
    return CheckReport(
        ok=True,
        verdict=verdict,
        diagnostics=warnings,
        facts=facts,
    )


def _warnings(claimed: float, needed: float) -> tuple[Diagnostic, ...]:
    if needed <= claimed + _TOLERANCE:
        return ()
    message = (
        f"it needs {needed:.2f} epochs where each link takes a chunk in one, and claims {claimed}: "
        "simulate it on its network"
    )
    return (Diagnostic("teccl-claims", message, Severity.WARNING),)


def needed_epochs(algorithm: Algorithm) -> float | None:
    """Epochs of the schedule as simulated, None where a rank never finishes.

    Raises `HubError` where no simulator is installed.
    """
    size = algorithm.collective.unit_count * _UNIT_BYTES
    result = hub_core.simulate(algorithm, _network(algorithm), size)
    return None if result.time_ns is None else result.time_ns / 1e9 / _units_of_chunk(algorithm)


def _units_of_chunk(algorithm: Algorithm) -> int:
    """Units of a chunk of the schedule: one, or parts that fractions are multiples of."""
    collective = algorithm.collective
    return collective.unit_count // collective.num_ranks


def _network(algorithm: Algorithm) -> Topology:
    """The links that are used, each of which takes a unit in a second."""
    steps = algorithm.steps
    sends = np.flatnonzero(steps.is_kind(StepKind.SEND))
    pairs = np.unique(np.stack([steps.rank[sends], steps.peer[sends]]), axis=1).astype(np.int64)
    rate = np.full(pairs.shape[1], float(_UNIT_BYTES))
    return Links(pairs[0], pairs[1], rate, np.zeros(pairs.shape[1])).topology(
        "links of the schedule", algorithm.num_ranks, algorithm.num_ranks
    )
