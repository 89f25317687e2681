"""What a profile tells: pure functions over the columns of a workload."""

from collhub_pytorch.analysis.device_time import (
    MeetingTimes,
    RankTime,
    Stragglers,
    find_stragglers,
    is_communication,
    is_computation,
    is_measured,
    meeting_times,
    overlap_percent,
    rank_times,
)
from collhub_pytorch.analysis.matching import Meetings, matched
from collhub_pytorch.analysis.timeline import (
    ClockFit,
    Timeline,
    fitted_clocks,
    has_times,
    measured_timeline,
)

__all__ = [
    "ClockFit", "MeetingTimes", "Meetings", "RankTime", "Stragglers", "Timeline",
    "find_stragglers", "fitted_clocks", "has_times", "is_communication", "is_computation",
    "is_measured", "matched", "measured_timeline", "meeting_times", "overlap_percent",
    "rank_times",
]  # fmt: skip
