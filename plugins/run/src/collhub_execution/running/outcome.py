"""The result of a run: verdict, times, and bandwidths as defined by nccl-tests."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from collhub_execution.output_judgement import OutputJudgement
from collhub_execution.running.setup import RunSetup
from hub_core.model import Collective, CollectiveKind, JsonValue

_FULL_VECTOR = frozenset({CollectiveKind.BROADCAST, CollectiveKind.REDUCE})


def algorithm_bandwidth(collective_bytes: int, time_s: float) -> float:
    """Return bytes of the full buffer per second."""
    return collective_bytes / time_s


def bus_bandwidth(collective: Collective, collective_bytes: int, time_s: float) -> float | None:
    """Return the bandwidth of the busiest link of an ideal network, in bytes/s; None if custom.

    Algorithm bandwidth times 2 (n - 1) / n for all-reduce, 1 for broadcast and reduce, (n - 1) / n
    for the remaining collectives (NVIDIA nccl-tests, doc/PERFORMANCE.md).
    """
    kind, num_ranks = collective.kind, collective.num_ranks
    if kind is CollectiveKind.CUSTOM:
        return None
    if kind in _FULL_VECTOR:
        factor = 1.0
    else:
        factor = (num_ranks - 1) / num_ranks
        # Every element crosses the links twice: once to be reduced, once to be distributed.
        if kind is CollectiveKind.ALL_REDUCE:
            factor = 2 * factor
    return factor * algorithm_bandwidth(collective_bytes, time_s)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Result of a run: seconds of its repeats, and of the library's collective, if any."""

    setup: RunSetup
    judgement: OutputJudgement
    repeat_times_s: tuple[float, ...]
    native_times_s: tuple[float, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every rank's output is as the collective defines it."""
        return self.judgement.is_right

    @property
    def time_s(self) -> float:
        """Median of the repeats in seconds."""
        return median(self.repeat_times_s)

    @property
    def native_time_s(self) -> float | None:
        """Median of the library's collective in seconds."""
        return median(self.native_times_s) if self.native_times_s else None

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes per second, as defined by nccl-tests."""
        return algorithm_bandwidth(self.setup.collective_bytes, self.time_s)

    @property
    def bus_bandwidth(self) -> float | None:
        """Bytes per second, as defined by nccl-tests; None for custom collectives."""
        setup = self.setup
        return bus_bandwidth(setup.algorithm.collective, setup.collective_bytes, self.time_s)

    def fields(self) -> dict[str, JsonValue]:
        """Return the result by the names of the JSON report, in their order."""
        setup, judgement = self.setup, self.judgement
        return {
            "ok": self.ok,
            "collective": str(setup.algorithm.collective.kind),
            "num_ranks": setup.algorithm.num_ranks,
            "collective_bytes": setup.collective_bytes,
            "dtype": setup.dtype.name,
            "reduce_op": str(setup.op),
            "in_place": setup.in_place,
            "comparison": str(judgement.comparison),
            "max_abs_error": judgement.max_abs_error,
            "ranks_agree_bitwise": judgement.ranks_agree,
            "time_s": self.time_s,
            "algorithm_bandwidth_bytes_per_s": self.algorithm_bandwidth,
            "bus_bandwidth_bytes_per_s": self.bus_bandwidth,
            "native_time_s": self.native_time_s,
        }
