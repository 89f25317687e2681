"""`collhub profile --machine P`: bandwidth of a job's collectives against that of the machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from collhub_machine_profiles import shipped_profile
from collhub_machine_profiles.calls import MedianTimes
from collhub_machine_profiles.machine_profile import ErrorEntry, MachineProfile, profile_bytes
from collhub_machine_timing.profiles import predict_library_times
from collhub_pytorch.samples import execution_traces, profiles

from hub_core.plugin_api import Library, LibraryCall, LibraryTime, LibraryTimesRequest

pytestmark = pytest.mark.once

NCCL = Library("NCCL", "2.29.2")
# The sample job has one all-reduce of 4000 bytes on two ranks, which transfers for 60 us.
MEASURED_US = 60.0
PLACED = ("--ranks-per-node", "2")


def profile(sizes: tuple[int, ...], times_us: tuple[float, ...], error: float) -> MachineProfile:
    """Return a profile with one table, of an all-reduce of two ranks on one node."""
    table = MedianTimes("all-reduce", 2, 1, NCCL, "", np.array(sizes, float), np.array(times_us))
    entry = ErrorEntry("table", "all-reduce", 2, 1, "NCCL", "2.29.2", 5, error, error, error)
    return MachineProfile("small", "small", "", NCCL, {}, (table,), (entry,), ())


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = []
    for part in profiles()[0].parts:
        paths.append(tmp_path / part.name)
        paths[-1].write_bytes(part.load())
    return paths


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Interpolates 32 us for 4000 bytes, with a held-out error of 25 %."""
    file = tmp_path / "small.json"
    file.write_bytes(profile_bytes(profile((1000, 8000), (20.0, 48.0), 0.25)))
    return file


def test_bandwidth_and_saving_have_the_error_of_the_profile(
    collhub, files: list[Path], machine: Path
) -> None:
    run = collhub("profile", *files, "--machine", machine, *PLACED, "--json")
    assert run.code == 0, run.err
    comparison = run.report()["machine_comparison"]
    (calls,) = comparison["collectives"]
    assert calls["reached_percent"] == pytest.approx(100 * 32 / MEASURED_US)
    # The bus bandwidth of an all-reduce of two ranks is size / time.
    assert calls["machine_bus_bandwidth_bytes_per_s"] == pytest.approx(4000 / 32e-6)
    assert (calls["methods"], calls["held_out_error"]) == (["interpolated"], 0.25)
    assert calls["not_predicted"] is None
    saving = comparison["saving"]
    assert saving["saved_ns"] == 60_000 - 32_000
    assert saving["min_saved_ns"] == 60_000 - round(32_000 / 0.75)
    assert saving["max_saved_ns"] == 60_000 - round(32_000 / 1.25)


def test_the_text_names_size_percent_machine_and_error(
    collhub, files: list[Path], machine: Path
) -> None:
    run = collhub("profile", *files, "--machine", machine, *PLACED)
    assert (
        "3.906 KiB all-reduce, 2 ranks on 1 node: 53 % of the bandwidth that small reaches "
        "(held-out error 25 %), 66.67 MB/s of 125 MB/s\n"
    ) in run.out
    assert "saves 28.00 us (17.33 us to 34.40 us by the held-out error), 12.7 %" in run.out


def test_sizes_of_one_class_are_one_line(collhub, tmp_path: Path) -> None:
    """Sizes above one power of two up to the next; predicted and other sizes separately."""
    traces = []
    for rank in range(2):
        header = {"id": "0x1", "rank": rank, "n_ranks": 2, "nnodes": 1}
        metadata = {
            "inspector_output_format_version": "v4.0", "hostname": "node0", "pid": 100 + rank
        }  # fmt: skip
        calls = [
            {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": size,
             "coll_exec_time_us": 100, "coll_timing_source": "kernel_gpu"}
            for number, size in enumerate((3000, 4000, 4096, 5000, 9000), 1)
        ]  # fmt: skip
        records = [{"header": header, "metadata": metadata, "coll_perf": call} for call in calls]
        traces.append(tmp_path / f"node0-pid{100 + rank}.log")
        traces[-1].write_text("".join(json.dumps(record) + "\n" for record in records))
    file = tmp_path / "small.json"
    file.write_bytes(profile_bytes(profile((1000, 8000), (20.0, 48.0), 0.25)))
    report = collhub("profile", *traces, "--machine", file, *PLACED, "--json").report()
    classes = report["machine_comparison"]["collectives"]
    assert [(one["min_bytes"], one["max_bytes"], one["calls"]) for one in classes] == [
        (3000, 4096, 3),
        (5000, 5000, 1),
        (9000, 9000, 1),
    ]
    # Each of the three calls takes 100 us; the table gives 20 us + 4 us for each 1000 bytes.
    predicted_us = 28 + 32 + 16 + 4 * 4.096
    assert classes[0]["reached_percent"] == pytest.approx(100 * predicted_us / 300)
    run = collhub("profile", *traces, "--machine", file, *PLACED)
    assert "2.93 KiB to 4 KiB all-reduce, 2 ranks on 1 node: 31 % of the" in run.out
    assert "1 of 5 calls are not predicted and keep their times" in run.out
    assert "assumed: 2 consecutive ranks on each node (--ranks-per-node)" in run.out


def test_a_measured_size_has_no_error_of_prediction(
    collhub, files: list[Path], tmp_path: Path
) -> None:
    file = tmp_path / "knot.json"
    file.write_bytes(profile_bytes(profile((1000, 4000), (20.0, 30.0), 0.25)))
    run = collhub("profile", *files, "--machine", file, *PLACED)
    assert "50 % of the bandwidth that small reaches (measured at this size)" in run.out


def test_collectives_faster_than_the_machine_keep_their_times(
    collhub, files: list[Path], tmp_path: Path
) -> None:
    file = tmp_path / "slow.json"
    file.write_bytes(profile_bytes(profile((1000, 8000), (100.0, 170.0), 0.1)))
    comparison = collhub("profile", *files, "--machine", file, *PLACED, "--json").report()
    comparison = comparison["machine_comparison"]
    assert comparison["collectives"][0]["reached_percent"] == pytest.approx(100 * 130 / 60)
    saving = comparison["saving"]
    assert (saving["min_saved_ns"], saving["saved_ns"], saving["max_saved_ns"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("sizes", "placed", "reason"),
    [
        ((8000, 16000), PLACED, "small was measured from 7.812 KiB to 15.62 KiB (full buffer)"),
        ((1000, 2000), PLACED, "small was measured from 1000 B to 1.953 KiB (full buffer)"),
        (
            (1000, 8000),
            ("--ranks-per-node", "1"),
            "small has no times of 2 ranks on 2 nodes, only of 2 ranks on 1 node",
        ),
        ((1000, 8000), (), "small does not state its GPUs per node: give --ranks-per-node"),
    ],
)
def test_calls_beyond_the_profile_are_not_predicted(
    collhub,
    files: list[Path],
    tmp_path: Path,
    sizes: tuple[int, ...],
    placed: tuple[str, ...],
    reason: str,
) -> None:
    file = tmp_path / "other.json"
    file.write_bytes(profile_bytes(profile(sizes, (20.0, 48.0), 0.25)))
    run = collhub("profile", *files, "--machine", file, *placed)
    assert run.code == 0, run.err
    assert f"not predicted: {reason}\n" in run.out
    assert "1 of 1 calls are not predicted and keep their times" in run.out
    comparison = collhub("profile", *files, "--machine", file, *placed, "--json").report()
    comparison = comparison["machine_comparison"]
    assert comparison["saving"] is None
    assert comparison["collectives"][0]["reached_percent"] is None
    assert comparison["collectives"][0]["not_predicted"] == reason


def test_shipped_profiles_state_their_gpus_per_node() -> None:
    ranks = tuple(range(8))
    calls = (
        LibraryCall("all-reduce", ranks, 2**29),
        LibraryCall("all-reduce", ranks, 2**30),
        LibraryCall("all-reduce", tuple(range(4)), 2**30),
        LibraryCall("broadcast", ranks, 2**20),
        LibraryCall("all-reduce", (0, 1, 8), 2**20),
    )
    answer = predict_library_times(LibraryTimesRequest("h100", calls))
    assert (answer.machine.name, answer.ranks_per_node) == ("h100", 8)
    # The last knot of the table of the shipped profile.
    assert answer.times[0] == LibraryTime(1, pytest.approx(2_111_060), "measured", 0.0)
    assert [(time.nodes, time.time_ns, time.reason) for time in answer.times[1:]] == [
        (1, None, "h100 was measured from 512 B to 512 MiB (full buffer)"),
        (1, None, "the model of h100 was fitted to sizes up to 512 MiB"),
        (1, None, "h100 has no times of this collective"),
        (2, None, "its nodes have unequal numbers of ranks"),
    ]


def test_a_nominal_time_has_no_band() -> None:
    """A profile without networks predicts large messages between nodes by its network cards."""
    p5 = replace(shipped_profile("p5"), tables=(), networks=())
    call = LibraryCall("all-reduce", tuple(range(16)), 2**28)
    request = LibraryTimesRequest(profile_bytes(p5).decode(), (call,))
    (time,) = predict_library_times(request).times
    assert (time.nodes, time.method, time.held_out_error) == (2, "nominal", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--machine", "none"), "--machine none has no meaning without --topology"),
        (PLACED, "--ranks-per-node has no meaning without --machine P"),
        (("--machine", "h101"), "did you mean 'h100'"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    collhub, files: list[Path], arguments: tuple[str, ...], message: str
) -> None:
    run = collhub("profile", *files, *arguments)
    assert run.code == 2
    assert message in run.err
    assert run.out == ""


def test_execution_traces_have_no_bandwidth_but_predicted_times(
    collhub, tmp_path: Path, machine: Path
) -> None:
    traces = []
    for part in execution_traces()[0].parts:
        traces.append(tmp_path / part.name)
        traces[-1].write_bytes(part.load())
    report = collhub("profile", *traces, "--machine", machine, *PLACED, "--json").report()
    # One all-reduce of 4000 bytes.
    assert (report["job_ns"], report["machine_comparison"]) == (32_000, None)
    assert "the files record no computations" in " ".join(report["notes"])


def test_reports_satisfy_their_schema(collhub, files: list[Path], machine: Path) -> None:
    from hub_core import schema_violations

    for options in ((), ("--machine", machine, *PLACED)):
        report = collhub("profile", *files, *options, "--json").report()
        assert list(schema_violations(report, "report-profile-1.json")) == []
        assert json.dumps(report)


def test_a_job_is_simulated_with_the_times_of_the_library(
    collhub, files: list[Path], machine: Path
) -> None:
    placed = ("-O", "ranks_per_node=2")
    run = collhub("simulate", *files, "--machine", machine, *placed, "--json")
    assert run.code == 0, run.err
    report = run.report()
    measured = collhub("profile", *files, "--json").report()
    # The all-reduce, for which both ranks wait, takes 32 us instead of 60 us.
    assert report["time_ns"] == measured["job_ns"] - 28_000
    assert (report["backend"], report["machine"]["name"]) == ("machine", "small")
    (instant,) = report["changes"]
    assert (instant["name"], instant["saved_ns"]) == ("instant", 32_000)
    limits = [32_000 / divisor for divisor in (1.25, 0.75)]
    assert [instant["min_saved_ns"], instant["max_saved_ns"]] == [round(each) for each in limits]
    text = collhub("simulate", *files, "--machine", machine, *placed).out
    assert "if communication took no time: the job takes" in text
    assert "(25.60 us to 42.67 us by the held-out error)" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topology", "ring:2"), "--machine and --topology exclude each other for a workload"),
        (("--collective", "all-reduce=ring"), "--machine and --collective exclude each other"),
        (("--backend", "astra-sim"), "--machine and --backend astra-sim exclude each other"),
    ],
)
def test_a_job_on_a_machine_has_no_other_network(
    collhub, files: list[Path], machine: Path, arguments: tuple[str, ...], message: str
) -> None:
    run = collhub("simulate", *files, "--machine", machine, *arguments)
    assert (run.code, message in run.err) == (2, True)


def test_a_size_beyond_the_profile_of_the_machine_is_refused(
    collhub, files: list[Path], tmp_path: Path
) -> None:
    file = tmp_path / "small.json"
    file.write_bytes(profile_bytes(profile((100, 200), (20.0, 48.0), 0.25)))
    run = collhub("simulate", *files, "--machine", file, "-O", "ranks_per_node=2")
    # The measured time of the all-reduce remains where the profile does not predict it.
    assert run.code == 0, run.err
    workload = tmp_path / "job.json"
    assert collhub("convert", *files, "-o", workload).code == 0


SIMAI = """\
HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 2 \
checkpoints: 0 checkpoint_initiates: 0
2
first -1 1000 ALLREDUCE 4000 1000 NONE 0 1000 NONE 0 0
second -1 2000 ALLREDUCE 4000 1000 NONE 0 1000 NONE 0 0
"""


def test_jobs_without_times_of_collectives_have_those_of_the_machine(
    collhub, tmp_path: Path, machine: Path
) -> None:
    (tmp_path / "job.txt").write_text(SIMAI)
    run = collhub("profile", tmp_path / "job.txt", "--machine", machine, *PLACED, "--json")
    assert run.code == 0, run.err
    report = run.report()
    # Two forward passes, two all-reduces of 32 us, and the backward passes.
    assert report["job_ns"] == 3000 + 2 * 32_000 + 4000
    assert report["notes"][-1].endswith("they are predicted for small")
    assert report["machine_comparison"] is None
    assert report["instant_job_ns"] == 7000
    assert report["changes"] == []
    simulated = collhub(
        "simulate", tmp_path / "job.txt", "--machine", machine, "-O", "ranks_per_node=2", "--json"
    ).report()
    assert simulated["time_ns"] == report["job_ns"]
    assert simulated["diagnostics"] == []
    on_network = collhub(
        "profile",
        tmp_path / "job.txt",
        "--topology",
        "ring:2?bandwidth=1GB/s&latency=1us",
        "--json",
    ).report()
    assert on_network["replay"]["saved_ns"] == 0
    assert on_network["notes"][-1].startswith("the times of collectives are not recorded")


PROGRAM = """HloModule stage, is_scheduled=true, num_partitions=2

ENTRY %main (p: f32[1048576]) -> f32[1048576] {{
  %p = f32[1048576]{{0}} parameter(0)
  ROOT %q = f32[1048576]{{0}} collective-permute(%p), channel_id=1, source_target_pairs={pairs}
}}
"""


def test_messages_have_the_time_of_an_exchange_where_no_broadcast_is_measured(
    collhub, tmp_path: Path
) -> None:
    """A message of 4 MiB moves the bytes that each rank of an all-to-all of 8 MiB sends."""
    pytest.importorskip("collhub_hlo")
    file = tmp_path / "stage.hlo.txt"
    file.write_text(PROGRAM.format(pairs="{{0,1}}"))
    run = collhub("profile", file, "--machine", "h100", "--json")
    assert run.code == 0, run.err
    call = LibraryCall("all-to-all", (0, 1), 8 << 20)
    (expected,) = predict_library_times(LibraryTimesRequest("h100", (call,), 2)).times
    assert run.report()["job_ns"] == pytest.approx(expected.time_ns, abs=1)
