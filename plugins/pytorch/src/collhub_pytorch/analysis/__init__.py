"""What a profile tells: pure functions over the columns of a workload."""

from collhub_pytorch.analysis.clocks import ClockFit, fitted_clocks
from collhub_pytorch.analysis.matching import Meetings, matched
from collhub_pytorch.analysis.overlap import overlap_percent
from collhub_pytorch.analysis.timeline import Timeline, has_times, measured_timeline
from collhub_pytorch.analysis.waiting import MeetingTimes, meeting_times

__all__ = [
    "ClockFit", "MeetingTimes", "Meetings", "Timeline", "fitted_clocks", "has_times",
    "matched", "measured_timeline", "meeting_times", "overlap_percent",
]  # fmt: skip
