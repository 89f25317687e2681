"""Measured times of nccom-test (AWS Neuron) and of DeepSpeed's communication logger.

The forms: the documentation of nccom-test, and `deepspeed/utils/comms_logging.py`; the files here
are written for these tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from collhub_machines.calibration import read_points

from hub_core import discover
from hub_core.model import InputError
from hub_core.plugin_api import Measurement

pytestmark = pytest.mark.once

COMMAND = "nccom-test -r 8 -N 2 --minbytes 1kb -e 1mb -d fp32 allg --hosts 10.1.4.1 10.1.4.2\n"
HEADER = "   size(B)    count(elems)    type    time(us)    algbw(GB/s)    busbw(GB/s)\n"
ROW = "     65536           16384    fp32         150           0.41           0.36\n"
END = "Avg bus bandwidth:      0.3600GB/s\n"

SUMMARY = (
    "Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)",
    "tput_avg (Gbps)", "busbw_avg (Gbps)",
)  # fmt: skip
MINIMA = (
    "Comm. Op", "Message Size", "Count", "Total comm lat(ms)", "Total straggler(ms)",
    "Avg comm lat(ms)", "Avg straggler(ms)",
)  # fmt: skip


def read(text: str, **facts: Any) -> tuple[list[Measurement], list[str]]:
    path = Path("run.txt")
    path.write_text(text)
    result = read_points([str(path)], registry=discover(), **facts)
    return list(result.points), [f"{one.message} [{one.code}]" for one in result.skipped]


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def table(columns: tuple[str, ...], *rows: tuple[object, ...], prefix: str = "") -> str:
    """A table as DeepSpeed prints it: operations on lines of their own, columns of 20 characters."""
    lines = ["".join(f"{name: <20}" for name in columns)]
    for operation, size, count, *values in rows:
        numbers = "".join(f"{value: <20.2f}" for value in values)
        lines += [str(operation), f"{' ': <20}{size: <20}{count: <20}{numbers}"]
    return "".join(f"{prefix}{line}\n" for line in lines)


def test_command_line_gives_collective_ranks_and_nodes() -> None:
    """The table has none of them. Sizes are those of the gathered buffer."""
    (point,), skipped = read(COMMAND + HEADER + ROW + END)
    assert (point.collective, point.ranks, point.nodes) == ("all-gather", 8, 2)
    assert (point.size_bytes, point.time_us, point.machine) == (65536, 150.0, "AWS Neuron")
    assert skipped == []


@pytest.mark.parametrize("name", ["allr", "all_reduce"])
def test_short_and_long_names_of_a_test_are_known(name) -> None:
    (point,), _ = read(f"nccom-test {name} --nworkers=4\n{HEADER}{ROW}")
    assert (point.collective, point.ranks, point.nodes) == ("all-reduce", 4, 1)


def test_newer_tables_have_more_columns() -> None:
    """`--show-input-output-size` adds columns, and the time is an average."""
    header = HEADER.replace("count(elems)", "count(elems) total_input_size(B)")
    row = ROW.replace("16384", "16384 8192").replace("  150 ", "6.16")
    (point,), _ = read(COMMAND + header.replace("time(us)", "time:avg(us)") + row)
    assert (point.size_bytes, point.time_us) == (65536, 6.16)


def test_json_of_nccom_test_needs_the_facts() -> None:
    row = {"size(B)": 1024, "count(elems)": 256, "type": "fp32", "time:avg(us)": 6.19}
    text = json.dumps({"results": [row, {**row, "size(B)": "x"}]})
    points, skipped = read(text, collective="all-reduce", ranks=32, nodes=2)
    assert [(point.ranks, point.size_bytes, point.time_us) for point in points] == [
        (32, 1024, 6.19)
    ]
    assert skipped == ["results[1]: size(B) or the time is no number [skipped]"]


def test_sums_of_bytes_are_separate() -> None:
    """A reduction of 8-bit integers has another rate than one of floats."""
    (point,), _ = read(f"nccom-test -r 2 allr\n{HEADER}{ROW.replace('fp32', 'uint8')}")
    assert point.dtype == "int8"


def test_rows_of_failed_runs_are_skipped() -> None:
    failed = "  33554432    Failure running neuron-bench - log file neuron.log\n"
    points, skipped = read(COMMAND + HEADER + ROW + failed + "1 errors found - test failed\n")
    assert len(points) == 1
    assert skipped == ["the run of this size failed [skipped]"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEADER + ROW, r"txt:2: .* neither the collective nor the ranks; give --collective C"),
        (f"nccom-test -r 2 sendrecv\n{HEADER}{ROW}", r"txt:3: .* between two ranks"),
        (COMMAND + HEADER.replace("time(us)", "t"), r"txt:2: no column has times \(time\(us\)\)"),
        (COMMAND + HEADER, r"no result can be used: the file has no times"),
    ],
)
def test_nccom_tables_without_usable_rows_are_refused(text, said) -> None:
    with pytest.raises(InputError, match=said):
        read(text)


def test_minima_over_the_ranks_are_preferred() -> None:
    """The summary has the times of rank 0, which include the wait for other ranks."""
    text = table(SUMMARY, ("all_reduce", "1.0 MB", 4, 2.4, 0.6, 27.96, 20.97))
    text += "____\nBreakdown with straggler effect\n----\n"
    text += table(MINIMA, ("all_reduce", "1.0 MB", 4, 2.0, 0.4, 0.5, 0.1))
    (point,), skipped = read(text, ranks=4)
    assert (point.collective, point.ranks, point.size_bytes) == ("all-reduce", 4, 1 << 20)
    assert point.time_us == 500.0
    assert skipped == []


def test_summary_of_rank_0_is_read_with_a_warning() -> None:
    text = table(SUMMARY, ("all_gather_into_tensor", "1.0 MB", 4, 2.4, 0.6, 55.92, 41.94))
    (point,), skipped = read(text)
    # (n - 1) / n of the bandwidths: 4 ranks, each of which contributes 1 MiB.
    assert (point.ranks, point.size_bytes, point.time_us) == (4, 4 << 20, 600.0)
    assert skipped == [
        "the times are those of rank 0, which include the wait for other ranks [waits]"
    ]


def test_prefix_of_a_launcher_is_left_out() -> None:
    text = table(SUMMARY, ("all_reduce", "1.0 MB", 4, 2.4, 0.6, 27.96, 20.97), prefix="worker-0: ")
    (point,), _ = read(text, ranks=4)
    assert point.time_us == 600.0


def test_median_of_single_calls_counts() -> None:
    line = (
        "[INFO] [Rank 0] comm op: all_reduce | time (ms): {} | msg size: 1.0 MB "
        "| algbw (Gbps): 27.96 | busbw (Gbps): 20.97\n"
    )
    (point,), _ = read("".join(line.format(time) for time in ("0.60", "90.00", "0.70")), ranks=4)
    assert point.time_us == 700.0


def test_times_below_the_resolution_of_a_log_are_skipped() -> None:
    """Averages have two decimals of ms: 0.03 ms may be 25 or 35 us."""
    rows = [
        ("all_reduce", "1.0 KB", 4, 0.12, 0.03, 0.55, 0.41),
        ("all_reduce", "1.0 MB", 4, 2.4, 0.6, 27.96, 20.97),
    ]
    points, skipped = read(table(SUMMARY, *rows), ranks=4)
    assert [point.size_bytes for point in points] == [1 << 20]
    assert skipped[0] == "0.03 ms is too short for two decimals of ms [skipped]"


def test_json_has_exact_bytes_and_ranks() -> None:
    """`log_all(return_dict=True)`: sizes are keys, and a time may be short."""
    entry = {"count": 3, "avg_latency_ms": 0.9, "msg_size_bytes": 1000}
    minimum = {"count": 3, "avg_comm_lat_ms": 0.0125}
    value = {
        "summary": {"all_gather_into_tensor": {"1000": entry}},
        "straggler_analysis": {"all_gather_into_tensor": {"1000": minimum}},
        "metadata": {"world_size": 8, "rank": 0},
    }
    (point,), skipped = read(json.dumps(value, indent=1))
    assert (point.collective, point.ranks, point.size_bytes) == ("all-gather", 8, 8000)
    assert point.time_us == 12.5
    assert skipped == []
    del value["straggler_analysis"]
    (point,), skipped = read(json.dumps(value))
    assert point.time_us == 900.0
    assert "[waits]" in skipped[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metadata": {}}, "metadata.world_size is missing; give --ranks N"),
        (
            {"summary": {"all_reduce": {"x": {"avg_latency_ms": 1}}}},
            "all_reduce.x: a size in bytes with avg_latency_ms was expected",
        ),
    ],
)
def test_json_without_ranks_or_sizes_is_refused(change, said) -> None:
    value = {
        "summary": {"all_reduce": {"8": {"avg_latency_ms": 1}}},
        "metadata": {"world_size": 8},
    }
    with pytest.raises(InputError, match=said):
        read(json.dumps(value | change))
