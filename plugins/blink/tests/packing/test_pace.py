"""The pace of a simulator that is slower than the nominal links of a plan."""

from __future__ import annotations

import pytest
from collhub_blink.packing.task import SimulatorPace


def test_planned_times_count_as_they_are_before_the_first_simulation() -> None:
    assert SimulatorPace().to_simulated_ns(100.0) == 100.0


def test_the_fastest_schedule_decides_the_pace() -> None:
    pace = SimulatorPace()
    pace.observe(190.0, 100.0)
    pace.observe(150.0, 100.0)
    pace.observe(180.0, 100.0)
    assert pace.to_simulated_ns(1000.0) == 1500.0


@pytest.mark.parametrize("ratio", [1.0, 1.2, 2.1, 8.0])
def test_contention_and_latencies_are_no_pace_of_the_simulator(ratio: float) -> None:
    pace = SimulatorPace()
    pace.observe(100 * ratio, 100.0)
    assert pace.to_simulated_ns(1000.0) == 1000.0
