"""The check `teccl-claims`: compare the solver's claimed epochs with a simulation."""

from __future__ import annotations

import numpy as np

import hub_core
from collhub_teccl.read import EXTENSION
from hub_core import Algorithm, Topology
from hub_core.model import Diagnostic, JsonValue, Severity, StepKind
from hub_core.network import Links
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions

# Bytes of a unit, and bytes per second of a link: an epoch of one unit takes one second.
_UNIT_BYTES = 10**9
# Times are integer nanoseconds.
_TOLERANCE = 1e-6


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Compare epochs; a schedule that needs more than claimed causes a warning.

    A schedule does not contain its network: it is simulated on the links that it uses, each of
    which takes one epoch per chunk. It needs less than claimed if real links are slower or have
    latencies, and more if fast links carry several chunks in an epoch of the slowest one. Raises
    `HubError` if no simulator is installed.
    """
    del options
    algorithm = request.algorithm
    claims = algorithm.extensions.get(EXTENSION) if algorithm is not None else None
    claimed = claims.get("epochs") if isinstance(claims, dict) else None
    if algorithm is None or not isinstance(claims, dict) or not isinstance(claimed, int | float):
        verdict = "has no claims of TE-CCL"
        return CheckReport(ok=True, verdict=verdict, is_applicable=False)
    needed = simulate_epochs(algorithm)
    if needed is None:
        return CheckReport(ok=False, verdict="it never finishes")
    facts: dict[str, JsonValue] = {"claimed_epochs": claimed, "needed_epochs": needed}
    facts |= {name: claims[name] for name in ("finish_time_s", "demand_met_s") if name in claims}
    duration_s = claims.get("epoch_duration_s")
    if isinstance(duration_s, int | float):
        facts["needed_s"] = needed * duration_s
    verdict = f"TE-CCL claims {claimed} epochs; on its links the schedule needs {needed:.2f}"
    warnings = _warn_of_excess(claimed, needed)
    return CheckReport(
        ok=True,
        verdict=verdict,
        diagnostics=warnings,
        facts=facts,
    )


def _warn_of_excess(claimed: float, needed: float) -> tuple[Diagnostic, ...]:
    """A warning if more epochs are needed than claimed."""
    if needed <= claimed + _TOLERANCE:
        return ()
    message = (
        f"it needs {needed:.2f} epochs where each link takes a chunk in one, and claims {claimed}: "
        "simulate it on its network"
    )
    return (Diagnostic("teccl-claims", message, Severity.WARNING),)


def simulate_epochs(algorithm: Algorithm) -> float | None:
    """Epochs of the schedule as simulated; None if a rank never finishes.

    Raises `HubError` if no simulator is installed.
    """
    size = algorithm.collective.unit_count * _UNIT_BYTES
    result = hub_core.simulate(algorithm, _build_network(algorithm), size)
    return (
        None if result.time_ns is None else result.time_ns / 1e9 / _count_units_per_chunk(algorithm)
    )


def _count_units_per_chunk(algorithm: Algorithm) -> int:
    """Units per chunk of the schedule: one, or the number of parts if chunks are divided."""
    collective = algorithm.collective
    return collective.unit_count // collective.num_ranks


def _build_network(algorithm: Algorithm) -> Topology:
    """Network of the links in use, each of which carries one unit per second."""
    steps = algorithm.steps
    sends = np.flatnonzero(steps.is_kind(StepKind.SEND))
    pairs = np.unique(np.stack([steps.rank[sends], steps.peer[sends]]), axis=1).astype(np.int64)
    rate = np.full(pairs.shape[1], float(_UNIT_BYTES))
    return Links(pairs[0], pairs[1], rate, np.zeros(pairs.shape[1])).topology(
        "links of the schedule", algorithm.num_ranks, algorithm.num_ranks
    )
