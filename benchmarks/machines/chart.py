"""Draw measured and predicted bus bandwidths of all-reduce on four machines.

`python benchmarks/machines/chart.py [FILE]` writes the picture of the README (default:
docs/pictures/machines.svg) from the shipped profiles: the measured knots of their tables, and the
times of their models at every power of two between the knots.
"""

from __future__ import annotations

import sys
from pathlib import Path

from collhub_machine_profiles import shipped_profile
from collhub_machine_profiles.calls import PlannedCall
from collhub_machine_profiles.prediction import predict_by_model
from collhub_machines.profile_check import bus_bandwidth
from collhub_pictures.comparison_picture import write_picture

from hub_core.plugin_api import BandwidthComparison, BandwidthSeries, NoOptions

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "machines.svg"
MACHINES = {"a100": 8, "h100": 8, "b200": 8, "gb200": 4}
SIZES = tuple(2**power for power in range(9, 30))


def draw() -> bytes:
    """Return the picture as SVG."""
    series = []
    for name, ranks in MACHINES.items():
        profile = shipped_profile(name)
        calls = [PlannedCall("all-reduce", ranks, 1, size) for size in SIZES]
        table = profile.table_for(calls[0])
        assert table is not None
        measured = dict(zip(table.sizes, table.times_us, strict=True))
        label = f"{ranks} x {profile.gpu},"
        series += [
            BandwidthSeries(
                f"{label} measured",
                tuple(bus_bandwidth(call, measured.get(call.size_bytes)) for call in calls),
            ),
            BandwidthSeries(
                f"{label} predicted",
                tuple(
                    bus_bandwidth(call, predicted.time_us if predicted else None)
                    for call in calls
                    for predicted in [predict_by_model(profile, call)]
                ),
            ),
        ]
    title = "All-reduce on one node: measured and predicted bus bandwidth"
    comparison = BandwidthComparison(title, SIZES, series)
    (artifact,) = write_picture(comparison, NoOptions()).artifacts
    return artifact.content()


def main() -> None:
    """Write the picture."""
    Path(sys.argv[1] if len(sys.argv) > 1 else PICTURE).write_bytes(draw())


if __name__ == "__main__":
    main()
