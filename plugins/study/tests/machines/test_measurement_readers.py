"""Readers of measurements: each format, each sample, refusals with line and cure, mutations."""

from __future__ import annotations

import functools
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from collhub_machines.calibration import merge_calls, read_points
from collhub_machines.plugin import collhub_producers
from collhub_machines.reading import library_of, nccl_tests_json
from collhub_machines.structured_results import close_json
from collhub_machines.tabular_results import aiconfigurator_points

from hub_core import Registry, discover
from hub_core.model import InputError, UsageError
from hub_core.plugin_api import Measurement, MeasurementSet

pytestmark = pytest.mark.once

ALL_GATHER: dict[str, Any] = {"collective": "all-gather", "ranks": 8, "nodes": 1}
HEADER = """\
# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=22902
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1024 maxBytes 4096 step: 2(factor) iters: 20 agg iters: 1 graph: 0
#  Rank  0 Group  0 Pid   1201 on      alpha device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1202 on       beta device  1 [0000:43:00] NVIDIA H100 80GB HBM3
#                                                 out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   \
algbw   busbw  #wrong
"""
ROW = (
    "        1024           256     float     sum      -1     7.11    0.14    0.14       0"
    "     7.02    0.15    0.15       0\n"
)
END = "# Avg bus bandwidth    : 0.3\n"


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@functools.cache
def _installed_plugins() -> Registry:
    return discover()


def _read_content(content: bytes, name: str, **facts: Any) -> MeasurementSet:
    Path(name).write_bytes(content)
    return read_points([name], registry=_installed_plugins(), **facts)


def _read(text: str, **facts: Any) -> tuple[list[Measurement], list[str]]:
    read = _read_content(text.encode(), "run.txt", **facts)
    return list(read.points), [str(one) for one in read.skipped]


def _times(points: list[Measurement], place: str) -> list[tuple[int, float]]:
    return [(one.size_bytes, one.time_us) for one in points if one.place == place]


def test_text_of_nccl_tests_gives_both_places_with_ranks_nodes_and_version() -> None:
    points, skipped = _read(HEADER + ROW + END)
    assert skipped == []
    assert _times(points, "out") == [(1024, 7.11)]
    assert _times(points, "in") == [(1024, 7.02)]
    first = points[0]
    assert (first.collective, first.ranks, first.nodes) == ("all-reduce", 2, 2)
    assert (str(first.library), first.machine) == ("NCCL 2.29.2", "NVIDIA H100 80GB HBM3")
    assert first.line == 8


def test_host_names_are_not_kept() -> None:
    points, _ = _read(HEADER + ROW + END)
    assert "alpha" not in repr(points)


def test_lines_with_the_prefix_of_mpirun_are_read() -> None:
    text = "".join(f"[1,0]<stdout>:{line}\n" for line in (HEADER + ROW + END).splitlines())
    assert _times(_read(text)[0], "out") == [(1024, 7.11)]


@pytest.mark.parametrize("prefix", ["[0] ", "[prterun-alpha-71@1,0]<stdout>: "])
def test_lines_with_the_rank_of_another_launcher_are_read(prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in (HEADER + ROW + END).splitlines())
    assert _times(_read(text)[0], "out") == [(1024, 7.11)]


def test_a_table_whose_comment_signs_a_web_page_has_removed_is_read() -> None:
    text = (HEADER + ROW + END).replace(" #wrong", " wrong").replace("#", " ")
    points, skipped = _read(text)
    assert skipped == []
    first = points[0]
    assert (first.collective, first.ranks, first.nodes) == ("all-reduce", 2, 2)
    assert (str(first.library), first.time_us) == ("NCCL 2.29.2", 7.11)


def test_rows_without_their_header_are_refused_with_line_and_cure() -> None:
    with pytest.raises(InputError, match=r"run\.txt:2: rows of nccl-tests without .*; keep"):
        _read("NCCL:\n" + ROW + END)


UNNAMED = "\n".join(line for line in HEADER.splitlines() if "starting" not in line) + "\n"


def test_the_command_line_before_a_table_names_its_collective() -> None:
    build = "Linking all_to_all.o > build/alltoall_perf\n"
    text = build + "$ mpirun -np 2 ./all_gather_perf -b 1K -e 4K\n" + UNNAMED + ROW + END
    assert {point.collective for point in _read(text)[0]} == {"all-gather"}
    second = "$ ./build/bin/allreduce_test_perf --minbytes 1K\n" + UNNAMED + ROW + END
    found = [point.collective for point in _read(text + second)[0]]
    assert found == ["all-gather", "all-gather", "all-reduce", "all-reduce"]


def test_a_command_line_within_a_table_does_not_name_it() -> None:
    text = UNNAMED + ROW + "alpha: ./all_gather_perf -b 1K\n" + ROW + END
    assert {p.collective for p in _read(text, collective="all-reduce")[0]} == {"all-reduce"}


def test_a_command_line_in_a_comment_names_the_collective() -> None:
    text = "# mpirun -np 2 ./build/all_gather_perf -b 1K -e 4K\n" + UNNAMED + ROW + END
    assert {point.collective for point in _read(text)[0]} == {"all-gather"}


@pytest.mark.parametrize(
    ("line", "variant"),
    [
        ("$ NCCL_ALGO=Tree ./all_reduce_perf -b 1K", "NCCL_ALGO=Tree"),
        ("# mpirun -np 2 -x NCCL_ALGO='Ring,Tree' \\", "NCCL_ALGO=Ring,Tree"),
        ("srun --export=ALL,NCCL_PROTO=^LL,A=1 ./all_reduce_perf -b 1", "NCCL_PROTO=^LL"),
        ("a:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Tree.", "NCCL_ALGO=Tree"),
        ("$ NCCL_MAX_NCHANNELS=4 NCCL_ALGO=Ring x", "NCCL_ALGO=Ring, NCCL_MAX_NCHANNELS=4"),
        ("$ NCCL_DEBUG=INFO NCCL_ALGORITHM=1 ./all_reduce_perf -b 1K", ""),
    ],
)
def test_choices_that_settings_take_from_nccl_are_a_variant(line: str, variant: str) -> None:
    points, _ = _read(f"{line}\n{HEADER}{ROW}{END}{HEADER}{ROW}{END}")
    assert [point.library.variant for point in points] == [variant, variant, "", ""]


def test_a_command_line_after_an_aborted_table_counts_for_the_next() -> None:
    points, _ = _read(
        HEADER + ROW + "$ NCCL_ALGO=Tree \\\n ./all_reduce_perf -b 1K\n" + HEADER + ROW
    )
    assert [point.library.variant for point in points] == ["", "", *["NCCL_ALGO=Tree"] * 2]


def test_results_of_amd_gpus_without_a_version_are_of_rccl() -> None:
    header = "\n".join(HEADER.splitlines()[1:]) + "\n"
    points, _ = _read(header.replace("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X") + ROW + END)
    assert str(points[0].library) == "RCCL"
    points, _ = _read("rccl-tests: Version develop:83d38d9\n" + header + ROW + END)
    assert str(points[0].library) == "RCCL"


def test_bandwidths_of_more_ranks_than_listed_need_the_number_of_ranks() -> None:
    large = "1073741824 268435456 float sum -1 9600.1 111.85 209.71 0 9600.1 111.85 209.71 0\n"
    with pytest.raises(InputError, match="not those of an all-reduce of the 2 ranks listed; give"):
        _read(HEADER + ROW + large + END)
    with pytest.raises(InputError, match="not those of an all-reduce of the 2 ranks listed"):
        _read(HEADER + ROW + large + END, ranks=8)
    points, _ = _read(HEADER + ROW + large + END, ranks=16, nodes=2)
    assert {(point.ranks, point.nodes) for point in points} == {(16, 2)}


def test_a_list_of_ranks_without_its_start_needs_the_number_of_ranks() -> None:
    text = HEADER.replace("Rank  0", "Rank 70").replace("Rank  1", "Rank 71") + ROW + END
    with pytest.raises(InputError, match="list of ranks is cut; give --ranks"):
        _read(text)
    assert _read(text, ranks=72, nodes=18)[0][0].ranks == 72


def test_a_rank_that_is_listed_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"a rank is listed twice: .*MPI=1"):
        _read(HEADER.replace("Rank  1", "Rank  0") + ROW + END, ranks=2)


def test_the_version_that_nccl_prints_is_that_of_the_test() -> None:
    text = "NCCL version 2.8.4+cuda10.1\n" + HEADER.split("\n", 1)[1] + ROW + END
    assert str(_read(text)[0][0].library) == "NCCL 2.8.4"


OSU = "# OSU MPI{} Test v7.4\n# Size       Avg Latency(us)\n1024                  12.31\n"


def test_rows_of_an_unknown_osu_test_do_not_belong_to_the_test_before_it() -> None:
    text = OSU.format(" Allreduce Latency") + OSU.format(" Scatterv Latency")
    with pytest.raises(InputError, match=r"run\.txt:5: the collective is not named"):
        _read(text, ranks=8)


@pytest.mark.parametrize("title", [" Latency", "-CUDA Multi Latency", "_Put Latency"])
def test_osu_tests_of_two_ranks_are_refused_also_with_a_collective(title: str) -> None:
    with pytest.raises(InputError, match=r"run\.txt:1: .*between two ranks.*collective latency"):
        _read(OSU.format(title), collective="all-reduce", ranks=2)


def test_an_osu_test_of_a_non_blocking_collective_is_refused() -> None:
    text = OSU.format(" Non-blocking Allgather Latency").replace("Avg Latency", "Overall")
    with pytest.raises(InputError, match=r"run\.txt:2: .*overlaps.*osu_allgather for osu_iall"):
        _read(text, ranks=8)


@pytest.mark.parametrize("change", ["[1,0]<stdout>: ", "[0] ", "\\"])
def test_osu_lines_with_a_rank_or_an_escaped_comment_are_read(change: str) -> None:
    lines = OSU.format(" Allgather Latency").splitlines(keepends=True)
    is_escape = change == "\\"
    text = "".join(line if is_escape and line[0] != "#" else change + line for line in lines)
    (point,) = _read(text, ranks=8)[0]
    assert (point.collective, point.size_bytes, point.time_us) == ("all-gather", 8192, 12.31)


def test_noise_of_other_programs_is_reported_with_its_line() -> None:
    _, skipped = _read("alpha:1:1 [0] NCCL INFO Bootstrap\n" + HEADER + ROW + END)
    assert skipped == ["run.txt:1: 1 line of other programs skipped, from this line on"]


def test_a_line_with_a_date_within_a_table_is_skipped() -> None:
    points, skipped = _read(HEADER + ROW + "2024-05-01 12:00:00 retrying\n" + END)
    assert _times(points, "out") == [(1024, 7.11)]
    assert any("run.txt:9" in line for line in skipped), skipped


def test_a_wrong_result_is_skipped_with_its_line() -> None:
    wrong = ROW.replace("0.14       0", "0.14   2e+00")
    points, skipped = _read(HEADER + wrong + ROW.replace("1024", "2048", 1) + END)
    assert _times(points, "out") == [(2048, 7.11)]
    assert any("run.txt:8" in one and "#wrong 2e+00" in one for one in skipped)


def test_the_error_column_of_old_versions_is_no_wrong_result() -> None:
    text = (HEADER + ROW + END).replace("#wrong", " error").replace("0.14       0", "0.14   5e-07")
    points, skipped = _read(text.replace("nccl", "rccl"))
    assert (len(points), skipped, str(points[0].library)) == (2, [], "RCCL 2.29.2")


def test_a_table_without_its_end_is_kept_and_reported() -> None:
    points, skipped = _read(HEADER + ROW)
    assert len(points) == 2
    assert any("run was aborted" in one for one in skipped)


def test_a_name_cut_in_the_last_line_does_not_replace_the_one_at_the_start() -> None:
    points, _ = _read(HEADER + ROW + END + "# Collective test concluded: all")
    assert {point.collective for point in points} == {"all-reduce"}


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,{rank}]<stdout>:",
        " {rank}: ",
        "   [1,{rank}]<stdout>:",
        "(head, rank={rank}, pid=3808) [1,0]<stdout>:",
        "2026-03-04T10:11:{second}.20341Z ",
        "Wed Mar  4 10:11:{second} 2026[1,{rank}]<stdout>:",
        "nccl-1  | ",
        "node001: ",
        "\x1b[0m",
        "\x1b[32m[{second}]\x1b[0m ",
        "{second}\t",
    ],
)
def test_any_prefix_of_the_lines_is_removed(prefix: str) -> None:
    expected, _ = _read(HEADER + ROW + END)
    lines = (HEADER + ROW + END).splitlines()
    text = "".join(
        f"{prefix.format(rank=number % 2, second=number + 10)}{line}\r\n"
        for number, line in enumerate(lines)
    )
    points, skipped = _read(text)
    assert skipped == []
    assert points == expected


def test_equal_warnings_of_a_file_without_results_are_combined() -> None:
    wrong = ROW.replace("      0", "      3")
    assert wrong != ROW
    with pytest.raises(InputError) as refusal:
        _read(HEADER + wrong * 9 + END)
    messages = [one.message for one in refusal.value.diagnostics]
    assert [text.endswith("(and 8 more lines)") for text in messages] == [True, True, False]
    assert messages[0].startswith("out-of-place result is wrong (#wrong 3)")


def test_tables_of_other_operations_are_skipped() -> None:
    other = (HEADER + ROW + END).replace("all_reduce_perf", "sendrecv_perf")
    assert "sendrecv_perf" in other
    points, skipped = _read(HEADER + ROW + END + other)
    assert len(points) == 2
    (message,) = skipped
    assert "sendrecv_perf is not a collective with a model: its table is skipped" in message
    with pytest.raises(InputError, match="sendrecv_perf is not a collective"):
        _read(other)


def test_text_in_utf_16_is_read() -> None:
    """PowerShell writes redirected output so."""
    expected, _ = _read(HEADER + ROW + END)
    content = (HEADER + ROW + END).replace("\n", "\r\n").encode("utf-16")
    assert _read_content(content, "run.txt").points == expected
    with pytest.raises(InputError, match="no reader of measurements"):
        _read_content(content[:2] + b"\x00", "run.txt")


def test_a_run_without_results_is_refused() -> None:
    with pytest.raises(InputError, match=r"run\.txt:\d+: .*the file has no times; repeat the run"):
        _read(HEADER)


def test_cpu_times_are_refused_with_line_and_cure() -> None:
    with pytest.raises(InputError, match=r"run\.txt:7: .*cputime.*without -C 1"):
        _read(HEADER.replace("  time  ", " cputime ") + ROW + END)


def test_a_replay_row_without_its_out_of_place_half_is_in_place() -> None:
    row = ROW.replace("    7.11    0.14    0.14       0", " " * 32)
    assert [(one.place, one.time_us) for one in _read(HEADER + row + END)[0]] == [("in", 7.02)]


def test_a_cut_list_of_ranks_needs_the_number_of_ranks() -> None:
    text = (HEADER + ROW + END).replace("#                     ", "# ...\n#                  ", 1)
    with pytest.raises(InputError, match="list of ranks is cut; give --ranks"):
        _read(text)
    points, _ = _read(text, ranks=16, nodes=2)
    assert (points[0].ranks, points[0].nodes) == (16, 2)


def test_settings_that_change_a_time_are_a_variant() -> None:
    points, _ = _read(HEADER.replace("agg iters: 1 graph: 0", "agg iters: 4 graph: 2") + ROW + END)
    assert points[0].library.variant == "agg iters 4, graph 2"


def test_two_tests_in_one_file_keep_their_collectives() -> None:
    second = HEADER.replace("all_reduce_perf", "all_gather_perf")
    points, _ = _read(HEADER + ROW + END + second + ROW + END)
    assert [one.collective for one in points] == ["all-reduce"] * 2 + ["all-gather"] * 2


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("NCCL 2.27.7 (NVLS from 2 MiB)", ("NCCL", "2.27.7", "")),
        ("NCCL 2.27.7, NVLS off (ring)", ("NCCL", "2.27.7", "NVLS off")),
        ("MSCCL++ kernel 6", ("MSCCL++", "", "kernel 6")),
        ("NCCL", ("NCCL", "", "")),
        ("", ("unknown", "", "")),
    ],
)
def test_library_texts_have_name_version_and_variant(text: str, parts: tuple[str, ...]) -> None:
    library = library_of(text)
    assert (library.name, library.version, library.variant) == parts


def _inspector_line(rank: int, call: int, time_us: int) -> str:
    return json.dumps(
        {
            "header": {"id": "0x1", "rank": rank, "n_ranks": 8, "nnodes": 1},
            "metadata": {"hostname": "alpha"},
            "coll_perf": {
                "coll": "AllGather",
                "coll_sn": call,
                "coll_msg_size_bytes": 1024,
                "coll_exec_time_us": time_us,
                "coll_timing_source": "kernel_gpu",
            },
        }
    )


def test_inspector_takes_the_minimum_over_ranks_and_the_median_over_calls(tmp_path: Path) -> None:
    times = {0: (30, 50, 90), 1: (40, 45, 95)}
    files = []
    for rank, by_call in times.items():
        lines = [_inspector_line(rank, call, time) for call, time in enumerate(by_call)]
        files.append(tmp_path / f"rank{rank}.jsonl")
        files[-1].write_text("\n".join(lines))
    (point,) = read_points([str(file) for file in files]).points
    assert (point.size_bytes, point.time_us) == (8192, 45)


def test_points_without_calls_are_not_merged() -> None:
    points, _ = _read(HEADER + ROW + END)
    assert merge_calls(points) == points


def test_columns_of_aiconfigurator_become_bytes_and_microseconds() -> None:
    columns = {
        "op_name": ["all_reduce", "sendrecv"],
        "nccl_dtype": ["half", "half"],
        "num_gpus": [8, 8],
        "message_size": [512, 512],
        "latency": [0.0156, 0.01],
        "version": ["2.29.2", "2.29.2"],
        "device": ["NVIDIA H100 80GB HBM3"] * 2,
    }
    read = aiconfigurator_points(columns, "nccl_perf.parquet")
    (point,) = read.points
    assert (point.size_bytes, point.ranks) == (1024, 8)
    assert point.time_us == pytest.approx(15.6)
    assert len(read.skipped) == 1


def test_parquet_without_pyarrow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"pyarrow is not installed; install collhub-study\[parq"):
        _read_content(b"PAR1....", "nccl_perf.parquet")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe\x00", b"hello", b"{", b"[1]"])
def test_other_content_is_refused_with_a_cure(content: bytes) -> None:
    with pytest.raises(InputError, match=r"^x: .*;|^x:\d+: .*; "):
        _read_content(content, "x")


# Points in the samples: all places that hold a valid time.
SAMPLES = {
    "inspector.jsonl": (2, {"all-reduce", "all-gather"}),
    "mscclpp_perf.jsonl": (2, {"all-reduce", "all-gather"}),
    "mscclpp_tuned.json": (2, {"all-reduce"}),
    "nccl_sweep.csv": (3, {"all-reduce"}),
    "nccl_tests.json": (3, {"all-reduce"}),
    "nccl_tests_all_types.txt": (7, {"all-reduce"}),
    "nccl_tests_new.txt": (6, {"all-reduce"}),
    "nccl_tests_per_iteration.txt": (4, {"all-gather"}),
}
# Samples without a collective or without ranks: they need the options.
STATED = {
    "mscclpp_test.txt": (2, "all-gather", 2, 1),
    "nccl_tests_old_nocheck_multinode.txt": (6, "all-gather", 4, 2),
    "osu_full.txt": (3, "all-reduce", 8, 1),
    "osu_short.txt": (2, "all-to-all", 8, 1),
}
WITHOUT_TIMES = {
    "bad_nccl_tuner.conf": 1,
    "nccl_debug_tuning.log": 6,
    "nccl_tuner.conf": 1,
    "ncclx_tuner.csv": 1,
    "ncclx_tuner.json": 1,
    "rccl_tuner_gfx950.csv": 1,
}


def test_every_sample_is_covered(measured_corpus: Path) -> None:
    names = {path.name for path in (measured_corpus / "samples").iterdir()}
    assert names == {*SAMPLES, *STATED, *WITHOUT_TIMES}


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_is_read_without_options(measured_corpus: Path, name: str) -> None:
    read = read_points([str(measured_corpus / "samples" / name)])
    count, collectives = SAMPLES[name]
    assert len(read.points) == count
    assert {point.collective for point in read.points} == collectives
    assert "alpha" not in repr([point.machine for point in read.points])


@pytest.mark.parametrize("name", STATED)
def test_sample_that_lacks_facts_is_refused_and_read_with_options(
    measured_corpus: Path, name: str
) -> None:
    file = str(measured_corpus / "samples" / name)
    with pytest.raises(InputError, match=rf"{name}:\d+: .*; give --"):
        read_points([file])
    read = read_points([file], **ALL_GATHER)
    count, collective, ranks, nodes = STATED[name]
    shapes = {(point.collective, point.ranks, point.nodes) for point in read.points}
    assert (len(read.points), shapes) == (count, {(collective, ranks, nodes)})


@pytest.mark.parametrize("name", WITHOUT_TIMES)
def test_file_without_times_is_refused_with_line_and_cure(measured_corpus: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"{name}:{WITHOUT_TIMES[name]}: .*not measured.*; "):
        read_points([str(measured_corpus / "samples" / name)])


@pytest.mark.parametrize(
    ("text", "format"),
    [
        (
            "# nThread 1 nGpus 8\n#  size count type redop root time algbw\n"
            " 8 2 float sum -1 abc 0\n",
            "nccl-tests",
        ),
        ('{"args": ["all_reduce_perf"], "results": [{"size": 8, "in_place": {}}]}\n', ""),
        ('{"args": ["all_reduce_perf"], "results": []}\n', ""),
        ('{"args": ["all_reduce_perf"], "results": [{"size": 8, "in_place": {"time": 0}}]}\n', ""),
        ("collective,size_bytes,latency_us\nallreduce,8,fast\n", ""),
        ("collective,size_bytes,latency_us\n", ""),
        ('{"schema": "measured-collectives/1", "points": []}\n', ""),
    ],
)
def test_a_file_without_usable_results_is_one_error_after_the_warnings(
    text: str, format: str
) -> None:
    with pytest.raises(InputError) as refusal:
        _read(text, collective="all-reduce", ranks=8, format=format or None)
    *warnings, error = refusal.value.diagnostics
    assert {str(one.severity) for one in warnings} <= {"warning"}
    reason = "the file has no times"
    if warnings:
        reason = "the other findings of this file give the reasons"
    assert error.message == f"no result can be used: {reason}"
    assert error.cure == "repeat the run and keep its entire output"


def test_lines_of_mscclpp_test_need_their_ranks() -> None:
    line = json.dumps({"name": "allreduce", "size": 1024, "time": 7.5, "ranksPerNode": 8})
    with pytest.raises(InputError, match=r":1: ranks and ranksPerNode are not whole numbers of at"):
        _read(line, format="mscclpp-lines")


def test_wrong_sum_of_the_sample_is_reported(measured_corpus: Path) -> None:
    read = read_points([str(measured_corpus / "samples" / "nccl_tests_all_types.txt")])
    lines = {one.location.line: one.message for one in read.skipped}
    assert "#wrong 2e+00" in lines[15]
    assert "FAILED" in lines[16]
    assert {point.dtype for point in read.points} == {"int8", ""}


def test_public_points_are_all_read(measured_corpus: Path) -> None:
    read = read_points([str(measured_corpus / "measured.json")])
    assert (len(read.points), read.skipped) == (411, [])
    assert read.sources["aiconfigurator"]["licence"] == "Apache-2.0"


def test_the_readers_claim_disjoint_samples(measured_corpus: Path) -> None:
    used = set()
    for name in (*SAMPLES, *STATED):
        content = (measured_corpus / "samples" / name).read_bytes()
        claimed = [
            reader.name
            for reader in collhub_producers()
            if re.search(reader.format.signature, content, re.MULTILINE)
        ]
        assert len(claimed) == 1
        used.update(claimed)
    names = {reader.name for reader in collhub_producers()}
    others = {"measured-json", "aiconfigurator", "collhub-program", "deepspeed-times", "nccom-test"}
    others |= {"rccl-tests-csv", "rccl-tests-json"}
    assert used == names - others


def _mutate(content: bytes, random_numbers: random.Random) -> bytes:
    """Change, delete, insert, double or cut bytes at a few places."""
    data = bytearray(content)
    for _ in range(random_numbers.randint(1, 6)):
        if not data:
            break
        place = random_numbers.randrange(len(data))
        width = random_numbers.choice((1, 1, 4, 40))
        match random_numbers.randrange(6):
            case 0:
                data[place] = random_numbers.randrange(256)
            case 1:
                del data[place : place + width]
            case 2:
                data[place:place] = bytes(data[place : place + width])
            case 3:
                del data[place:]
            case 4:
                data[place:place] = random_numbers.choice(
                    (b"-1", b"1e999", b"null", b"[", b"{", b"9" * 30, b"NaN", b"\n", b"#")
                )
            case _:
                data[place : place + 1] = str(random_numbers.randint(-9, 10**6)).encode()
    return bytes(data)


def test_mutated_samples_give_points_or_an_input_error(measured_corpus: Path) -> None:
    random_numbers = random.Random(35)
    samples = [path.read_bytes() for path in sorted((measured_corpus / "samples").iterdir())]
    count, refusals = 0, []
    for round_number in range(1200):
        content = _mutate(samples[round_number % len(samples)], random_numbers)
        facts = ALL_GATHER if round_number % 3 else {}
        try:
            points = _read_content(content, "mutant", **facts).points
        except InputError as error:
            refusals.append(str(error))
            continue
        assert all(point.time_us > 0 and point.size_bytes > 0 for point in points)
        count += len(points)
    assert count > 500
    assert [text for text in refusals if not text.startswith("mutant")] == []


def test_a_key_that_occurs_twice_is_refused() -> None:
    content = b'{"schema": "measured-collectives/1", "points": [{"ranks": 2, "ranks": 4}]}'
    with pytest.raises(InputError, match=r"points\.json.*occurs twice in one object"):
        _read_content(content, "points.json")


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ('{"a": [{"b": 1}, {"c": ', '{"a": [{"b": 1}]}'),
        ('{"a": ["}"], "b": 2', '{"a": ["}"]}'),
        ('{"a": [1]}', '{"a": [1]}'),
        ('{"a": [1}', '{"a": [1}'),
        ('{"a": 1', '{"a": 1'),
    ],
)
def test_cut_json_is_closed_after_its_last_complete_part(text: str, closed: str) -> None:
    assert close_json(text) == closed


def test_only_the_chosen_place_is_read() -> None:
    points, _ = _read(HEADER + ROW + END, options={"place": "in"})
    assert {point.place for point in points} == {"in"}
    with pytest.raises(UsageError, match="no option 'plase'; did you mean 'place'"):
        _read(HEADER + ROW + END, options={"plase": "in"})


def test_warm_up_calls_of_the_inspector_are_left_out() -> None:
    text = "\n".join(_inspector_line(0, call, time) for call, time in enumerate((90, 30, 31)))
    points, _ = _read(text, options={"warmup_calls": 1})
    assert [point.time_us for point in points] == [30.5]


def test_an_unreadable_line_of_the_inspector_keeps_its_cure() -> None:
    _, skipped = _read(_inspector_line(0, 0, 30) + "\n{\n", options={"warmup_calls": 0})
    assert any("is not a JSON object; it may be truncated" in one for one in skipped)


def test_a_file_that_two_readers_recognise_needs_the_name_of_its_format() -> None:
    text = HEADER + ROW + END + "# OSU MPI Allreduce Latency Test v7.4\n"
    with pytest.raises(UsageError, match=r"nccl-tests \(.*\) or osu \(.*\); name the format"):
        _read(text)
    assert _read(text, format="nccl-tests")[0]


def test_forced_choices_in_json_of_nccl_tests_are_a_variant() -> None:
    document = json.loads(nccl_tests_json()[0].source.content())
    document["env"] = ["PATH=/bin", "NCCL_PROTO=Simple", "NCCL_ALGO=Tree", "CMD=x NCCL_ALGO=Ring"]
    read = _read_content(json.dumps(document).encode(), "run.json")
    assert read.points[0].library.variant == "NCCL_ALGO=Tree, NCCL_PROTO=Simple"


def _versions(text: str) -> list[str]:
    return [point.library.version for point in _read(text)[0] if point.place == "out"]


OLD_HEADER = HEADER.replace("22902", "22304")
BARE_HEADER = HEADER.split("\n", 1)[1]
COLUMNS_LINE = "#                                                 out-of-place"


@pytest.mark.parametrize("end", [END, ""])
def test_each_run_of_a_file_has_its_version(end: str) -> None:
    assert _versions(OLD_HEADER + ROW + end + HEADER + ROW + END) == ["2.23.4", "2.29.2"]


@pytest.mark.parametrize("end", [END, ""])
def test_versions_that_nccl_prints_before_each_table_belong_to_it(end: str) -> None:
    old, new = (f"alpha:1:1 [0] NCCL INFO NCCL version {text}+cuda12.4\n"
                for text in ("2.21.5", "2.27.3"))  # fmt: skip
    before = old + old + BARE_HEADER + ROW + end + new + new + BARE_HEADER + ROW + END
    assert _versions(before) == ["2.21.5", "2.27.3"]
    within = (
        BARE_HEADER.replace(COLUMNS_LINE, old + COLUMNS_LINE) + ROW + end
        + BARE_HEADER.replace(COLUMNS_LINE, new + COLUMNS_LINE) + ROW + END
    )  # fmt: skip
    assert _versions(within) == ["2.21.5", "2.27.3"]


def test_a_version_after_a_table_belongs_to_the_next_one_if_there_is_one() -> None:
    version = "NCCL version 2.27.3+cuda12.4\n"
    assert _versions(BARE_HEADER + ROW + END + version) == ["2.27.3"]
    assert _versions(BARE_HEADER + ROW + END + version + BARE_HEADER + ROW) == ["", "2.27.3"]
    assert _versions(HEADER + ROW + END + "NCCL version 2.29.2\n" + HEADER + ROW) == ["2.29.2"] * 2


UNITS = (
    "#        (B)    (elements)                 (us)  (GB/s)  (GB/s)         (us)  (GB/s)  (GB/s)\n"
)


@pytest.mark.parametrize(("unit", "other"), [("(us)", "(ms)"), ("(us)", "(s)"), ("(B)", "(KB)")])
def test_tables_in_other_units_are_refused(unit: str, other: str) -> None:
    assert len(_read(HEADER + UNITS + ROW + END)[0]) == 2
    message = rf"run\.txt:8: the unit \({other[1:-1]}\) is not one of nccl-tests.*bytes and us"
    for text in (UNITS, UNITS.lstrip("# ")):
        with pytest.raises(InputError, match=message):
            _read(HEADER + text.replace(unit, other) + ROW + END)


def test_a_time_that_contradicts_its_bandwidth_gives_a_note() -> None:
    large = "1073741824 268435456 float sum -1 {} 111.85 111.85 0 9600.1 111.85 111.85 0\n"
    assert _read(HEADER + large.format("9600.1") + END)[1] == []
    points, skipped = _read(HEADER + large.format("9.6") + END)
    assert len(points) == 2
    assert len(skipped) == 1
    assert "run.txt:8: out-of-place time 9.6 us contradicts algbw 111.85 GB/s; " in skipped[0]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (ROW.replace(" 256 ", " 0.14 "), "count '0.14' is not a whole number"),
        (ROW.replace(" float ", " 7.11 "), "type '7.11' is not a data type"),
    ],
)
def test_rows_that_a_line_break_has_shifted_are_skipped(row: str, reason: str) -> None:
    points, skipped = _read(HEADER + row + ROW + END)
    assert len(points) == 2
    assert len(skipped) == 1
    assert reason in skipped[0]


def test_an_unreadable_number_of_wrong_results_skips_the_time() -> None:
    points, skipped = _read(HEADER + ROW.replace("0     7.02", "1e     7.02") + END)
    assert [point.place for point in points] == ["in"]
    assert "out-of-place #wrong '1e' is not a number: time skipped" in skipped[0]


def test_a_table_without_counts_of_elements_is_read() -> None:
    text = HEADER.replace("         count ", "") + ROW.replace("           256 ", "") + END
    assert _times(_read(text)[0], "out") == [(1024, 7.11)]


def test_the_ranks_of_a_group_need_not_be_consecutive() -> None:
    ranks = "".join(
        f"#  Rank {rank:2} Group {rank % 2:2} Pid   120{rank} on      alpha device {rank:2} "
        "[0000:1b:00] NVIDIA H100 80GB HBM3\n"
        for rank in range(8)
    )
    lines = HEADER.splitlines(keepends=True)
    header = "".join(lines[:3]) + ranks + "".join(lines[5:])
    assert {point.ranks for point in _read(header + ROW + END)[0]} == {4}
    with pytest.raises(InputError, match="list of ranks is cut"):
        _read(header.replace(ranks.splitlines(keepends=True)[1], "") + ROW + END)


def _read_json(change: Any) -> tuple[list[Measurement], list[str]]:
    times = {"time": 7.11, "alg_bw": 0.14, "bus_bw": 0.14, "nwrong": 0}
    devices = [
        {"rank": rank, "group": 0, "hostname": "node", "device_info": "NVIDIA H100"}
        for rank in range(4)
    ]
    document: dict[str, Any] = {
        "version": 3, "args": ["all_reduce_perf"], "nccl_version": 22902,
        "config": {"devices": devices},
        "results": [
            {"size": 1024, "type": "float", "out_of_place": times, "in_place": dict(times)}
        ],
        "out_of_bounds": {"count": 0, "okay": "true"}, "errors": [],
    }  # fmt: skip
    change(document)
    read = _read_content(json.dumps(document).encode(), "run.json", collective="all-gather")
    return list(read.points), [str(one) for one in read.skipped]


@pytest.mark.parametrize(
    ("rank", "key", "value", "message"),
    [
        (1, "rank", 0, "lists a rank twice; build the tests with MPI=1"),
        (3, "rank", 9, "lists 4 ranks, among them rank 9; give the complete file"),
        (2, "device_info", "NVIDIA A100", "different devices: NVIDIA A100, NVIDIA H100; measure"),
    ],
)
def test_devices_in_json_that_are_not_those_of_one_test_are_refused(
    rank: int, key: str, value: object, message: str
) -> None:
    def change(document: dict[str, Any]) -> None:
        document["config"]["devices"][rank][key] = value

    with pytest.raises(InputError, match=rf"run\.json:1: .*{message}"):
        _read_json(change)


def test_devices_in_json_of_two_groups_are_those_of_one_group() -> None:
    def change(document: dict[str, Any]) -> None:
        for rank, device in enumerate(document["config"]["devices"]):
            device["group"] = rank % 2

    assert [point.ranks for point in _read_json(change)[0]] == [2, 2]


@pytest.mark.parametrize(("listed", "ranks", "nodes"), [((0,), 8, 1), ((0, 8), 16, 2)])
def test_json_lists_only_the_first_gpu_of_each_process(
    listed: tuple[int, ...], ranks: int, nodes: int
) -> None:
    def change(document: dict[str, Any]) -> None:
        devices = [
            {"rank": rank, "group": 0, "hostname": f"node{rank}", "device_info": "NVIDIA H100"}
            for rank in listed
        ]
        document["config"] = {"nthreads": 2, "ngpus": 4, "devices": devices}

    points, skipped = _read_json(change)
    assert {(point.ranks, point.nodes) for point in points} == {(ranks, nodes)}
    assert skipped == []


def test_the_empty_error_of_json_without_errors_is_no_error() -> None:
    assert _read_json(lambda document: document.update(errors=[""]))[1] == []


def test_json_of_an_operation_that_is_no_collective_is_refused() -> None:
    with pytest.raises(InputError, match=r"sendrecv_perf is not a collective with a model; give"):
        _read_json(lambda document: document.update(args=["./sendrecv_perf", "-g", "4"]))


@pytest.mark.parametrize("count", [3, "3", "2e+00"])
def test_wrong_results_in_json_are_skipped_also_as_text(count: object) -> None:
    def change(document: dict[str, Any]) -> None:
        document["results"][0]["in_place"]["nwrong"] = count

    points, skipped = _read_json(change)
    assert [point.place for point in points] == ["out"]
    assert f"results[0].in_place: the result is wrong (nwrong {count})" in skipped[0]


def test_errors_and_wrong_results_of_a_test_in_json_give_notes() -> None:
    def change(document: dict[str, Any]) -> None:
        document.update(out_of_bounds={"count": 3, "okay": "false"}, errors=["out of memory"])

    points, skipped = _read_json(change)
    assert len(points) == 2
    assert "out_of_bounds.okay is false" in skipped[0]
    assert "the test reports an error: 'out of memory'" in skipped[1]


@pytest.mark.parametrize("title", ["Allgather", "Gather", "Scatter"])
def test_sizes_of_osu_per_rank_count_for_all_ranks(title: str) -> None:
    assert _read(OSU.format(f" {title} Latency"), ranks=8)[0][0].size_bytes == 8 * 1024


OSU_FULL = (
    "# OSU MPI Allreduce Latency Test v7.4\n"
    "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)\n"
)


def test_osu_times_in_another_unit_or_without_an_average_are_refused() -> None:
    with pytest.raises(InputError, match=r"run\.txt:2: the unit \(ms\) of 'Avg Latency\(ms\)'"):
        _read(OSU.format(" Allreduce Latency").replace("(us)", "(ms)"), ranks=8)
    text = OSU_FULL.replace("   Avg Latency(us)", "") + "1024   11.31   13.31\n"
    with pytest.raises(InputError, match=r"run\.txt:2: .*minimum and maximum latencies only"):
        _read(text, ranks=8)


def test_osu_columns_that_tabs_separate_are_read() -> None:
    text = re.sub("  +", "\t", OSU_FULL) + "1024\t12.31\t11.31\t13.31\n"
    assert _read(text, ranks=8)[0][0].time_us == 12.31


def test_osu_results_whose_validation_failed_are_skipped() -> None:
    text = OSU_FULL.rstrip() + "  Validation\n"
    text += "1024  12.31  11.31  13.31  Pass\n2048  12.90  11.90  13.90  Fail\n"
    points, skipped = _read(text, ranks=8)
    assert [point.size_bytes for point in points] == [1024]
    assert "run.txt:4: the result of this size is wrong (Validation: Fail)" in skipped[0]


@pytest.mark.parametrize("cut", ["2048  1", "2048  12.90  11.9", "2048  12.90  11.90  13.9"])
def test_the_last_row_of_osu_that_is_cut_is_skipped(cut: str) -> None:
    rows = OSU_FULL + "1024  12.31  11.31  13.31\n"
    points, skipped = _read(rows + cut, ranks=8)
    assert [point.size_bytes for point in points] == [1024]
    assert "run.txt:4: the file ends within this line; repeat the run" in skipped[0]
    points, skipped = _read(rows + "2048  12.90  11.90  13.90", ranks=8)
    assert len(points) == 2
    assert skipped == []
    # Without a complete row, the columns and the decimals of OSU count.
    for text in (OSU_FULL + "1024  12.31", OSU.format(" Allreduce Latency").rstrip()[:-1]):
        with pytest.raises(InputError, match="the file ends within this line"):
            _read(text, ranks=8)


SWEEP_HEADER = (
    "collective,size_bytes,algorithm,protocol,channels,nodes,ranks,bandwidth_gbps,latency_us"
)
SWEEP = f"{SWEEP_HEADER}\nallreduce,1048576,ring,simple,8,1,8,40.2,26.1\n"


@pytest.mark.parametrize(
    "text",
    [
        f"# of the 3rd run\n\n{SWEEP}",
        SWEEP.replace(",", ", "),
        SWEEP.replace("collective", '"collective"'),
        "latency_us,size_bytes,collective,ranks\n26.1,1048576,allreduce,8\n",
    ],
)
def test_a_sweep_may_have_comments_and_columns_in_any_order(text: str) -> None:
    points, skipped = _read(text)
    assert skipped == []
    assert [(point.size_bytes, point.time_us, point.ranks) for point in points] == [
        (1048576, 26.1, 8)
    ]


@pytest.mark.parametrize(
    ("name", "other"), [("latency_us", "latency_ms"), ("size_bytes", "size_kb")]
)
def test_a_sweep_in_other_units_is_refused(name: str, other: str) -> None:
    message = rf"run\.txt:1: the sweep has 0 columns {name}, not one; give the times in us"
    with pytest.raises(InputError, match=message):
        _read(SWEEP.replace(name, other))


def test_a_number_of_ranks_that_is_not_whole_is_not_replaced() -> None:
    points, skipped = _read(SWEEP + SWEEP.splitlines()[1].replace(",8,40.2", ",8.0,40.2"), ranks=4)
    assert [point.ranks for point in points] == [8]
    assert "run.txt:3: ranks '8.0' is not a whole number" in skipped[0]


def test_the_last_row_of_a_sweep_whose_time_is_cut_is_skipped() -> None:
    row = "allreduce,536870912,nvls,simple,16,1,8,254.3,2111.0"
    assert len(_read(SWEEP + row)[0]) == 2
    for length in (1, 2, 4):
        points, skipped = _read(SWEEP + row[:-length])
        assert [point.size_bytes for point in points] == [1048576]
        assert "run.txt:3: the file ends within this line" in skipped[0]
