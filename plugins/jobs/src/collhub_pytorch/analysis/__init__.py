"""Analysis of profiles: pure functions on the columns of a workload."""

from collhub_pytorch.analysis.device_time import (
    RankTime,
    Stragglers,
    WaitingTimes,
    find_stragglers,
    is_communication,
    is_computation,
    is_measured,
    measure_rank_times,
    measure_waiting,
    overlap_percent,
)
from collhub_pytorch.analysis.matching import Meetings, match_communications
from collhub_pytorch.analysis.timeline import (
    ClockFit,
    Timeline,
    fit_clocks,
    has_times,
    measured_timeline,
)

__all__ = [
    "ClockFit", "Meetings", "RankTime", "Stragglers", "Timeline", "WaitingTimes",
    "find_stragglers", "fit_clocks", "has_times", "is_communication", "is_computation",
    "is_measured", "match_communications", "measure_rank_times", "measure_waiting",
    "measured_timeline", "overlap_percent",
]  # fmt: skip
