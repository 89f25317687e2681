"""`collhub nccl explain`: choices, alternatives, settings, logs, and bad input."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path

import jsonschema
import pytest
from collhub_machine_profiles.gpus import GPUS
from collhub_machine_profiles.nccl_choice import list_symmetric_launches
from collhub_machine_profiles.nccl_constants import ALGORITHMS
from collhub_machine_profiles.nccl_costs import Communicator, NodeNetwork, list_alternatives
from collhub_nccl.explain.calls import CallRequest, explain_call, parse_settings
from collhub_nccl.explain.log_check import check_log
from collhub_nccl.explain.tuning_log import read_tuning_log
from collhub_nccl.tuner.read import read_rules

from hub_core.model import InputError, UsageError

ROOT = Path(__file__).resolve().parents[4]
SAMPLES = ROOT.parent / "shared" / "corpus" / "measured" / "samples"
KIB, MIB = 2**10, 2**20
H100 = Communicator(GPUS["H100"], 8, 1, "2.29.2")

# A log of NCCL 2.23.4 on eight H100 with all forms of the lines of 2.20 to 2.28.
LOG = """\
node:1:2 [0] NCCL INFO NCCL version 2.23.4+cuda12.6
node:1:2 [0] NCCL INFO comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0
node:1:2 [0] NCCL INFO   Algorithm   |    Tree    |    Ring    |
node:1:2 [0] NCCL INFO   Protocol    | LL | LL128 | Simple | LL | LL128 | Simple |
node:1:2 [0] NCCL INFO  Max NThreads | 512 | 640 | 512 | 512 | 640 | {threads} |
node:1:2 [0] NCCL INFO     AllReduce | {tree_ll} | 31.5/ 128.8 | 64.4/ 165.6 | {ring} |
node:1:2 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo {algorithm} proto {protocol} time {time}
node:1:2 [0] NCCL INFO AllGather: 131072 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..{high}}}
"""
USUAL = {
    "threads": "512",
    "tree_ll": "15.2/  43.6",
    "ring": "15.0/  80.6 | 40.6/ 189.3 | 56.0/ 205.7",
    "algorithm": "1",
    "protocol": "0",
    "time": "28.014",
    "high": "23",
}


def _check(**changed: str) -> list[tuple[str, bool, str]]:
    text = LOG.format(**(USUAL | changed))
    check = check_log(read_tuning_log(text.encode(), "nccl.log"), lambda *_: H100_OF_LOG)
    return [(one.subject, one.agrees, one.explanation) for one in check.findings]


H100_OF_LOG = Communicator(GPUS["H100"], 8, 1, "2.23.4")


def _differences(**changed: str) -> dict[str, str]:
    return {subject: why for subject, agrees, why in _check(**changed) if not agrees}


def _schema(name: str) -> dict[str, object]:
    text = importlib.resources.files("hub_core.schemas").joinpath(name).read_text()
    schema: dict[str, object] = json.loads(text)
    return schema


def test_a_log_that_agrees_with_the_model_has_no_differences() -> None:
    assert _differences() == {}


@pytest.mark.parametrize(
    ("changed", "subject", "words"),
    [
        # Channels x speed of the search: 12 x 20 instead of 12 x 30.
        (
            {"ring": "15.0/  68.6 | 40.6/ 126.2 | 56.0/ 137.1"},
            "cost of all-reduce ring simple",
            "the search gives 240 GB/s (channels x speed), not 360",
        ),
        # The limit of LL before 2.22.
        (
            {"ring": "15.0/  50.1 | 40.6/ 189.3 | 56.0/ 205.7"},
            "cost of all-reduce ring ll",
            "constants of NCCL 2.18.5",
        ),
        ({"tree_ll": "16.6/  43.6"}, "cost of all-reduce tree ll", "hop 0.70 us instead of 0.6 us"),
        ({"tree_ll": "15.2/  21.8"}, "cost of all-reduce tree ll", "0.50 times that of the model"),
        ({"tree_ll": "0.0/   0.0"}, "cost of all-reduce tree ll", "disabled on this machine"),
        ({"threads": "256"}, "threads of ring simple", "at most 12 GB/s"),
        ({"high": "15"}, "all-gather of 1 MiB", "16 channels instead of 24"),
        ({"high": "31"}, "all-gather of 1 MiB", "NCCL_MIN_NCHANNELS"),
        (
            {"protocol": "2", "time": "61.097"},
            "all-reduce of 1 MiB",
            "explained by NCCL_ALGO=RING with NCCL_PROTO=SIMPLE",
        ),
        (
            {"protocol": "1", "time": "46.14"},
            "all-reduce of 1 MiB",
            "ring ll128 costs 46.14 us, ring ll 28.01 us",
        ),
        ({"time": "35.0"}, "all-reduce of 1 MiB", "52.4 GB/s instead of 80.6 GB/s"),
        ({"algorithm": "6"}, "all-reduce of 1 MiB", "pat has no all-reduce"),
    ],
)
def test_differences_name_the_constant_or_setting_that_explains_them(
    changed: dict[str, str], subject: str, words: str
) -> None:
    assert words in _differences(**changed)[subject]


def test_every_tuning_line_of_the_samples_is_explained(collhub) -> None:
    if not SAMPLES.is_dir():
        pytest.skip("corpus/measured (../shared) is absent")
    file = SAMPLES / "nccl_debug_tuning.log"
    run = collhub("nccl", "explain", "--log", file, "--json")
    report = json.loads(run.out)
    jsonschema.validate(report, _schema("report-nccl-log-1.json"))
    (log,) = report["logs"]
    assert log["communicator"]["gpu"] == "H100"
    assert log["communicator"]["ranks"] == 8
    lines = file.read_text().splitlines()
    tuning = {
        number
        for number, line in enumerate(lines, 1)
        if "Bytes ->" in line or "NThreads" in line or "AllReduce |" in line
    }
    assert {one["line"] for one in log["findings"]} == tuning
    differing = [one for one in log["findings"] if not one["agrees"]]
    assert {one["line"] for one in differing} == {7, 8, 9}
    assert all(one["explanation"] for one in differing)
    assert not any("not understood" in (one["explanation"] or "") for one in log["findings"])
    assert run.code == 0


def test_a_machine_is_recognized_by_the_costs_in_its_log() -> None:
    text = LOG.format(**USUAL)
    assert (
        check_log(read_tuning_log(text.encode(), "nccl.log"), None).communicator.gpu.name == "H100"
    )
    other = LOG.format(**(USUAL | {"ring": "15.0/ 10.0 | 40.6/ 10.0 | 56.0/ 10.0"}))
    with pytest.raises(InputError, match="no known machine"):
        check_log(read_tuning_log(other.encode(), "nccl.log"), None)


def test_settings_in_a_log_are_applied() -> None:
    text = "n NCCL INFO NCCL_ALGO set by environment to Tree\n" + LOG.format(**USUAL)
    check = check_log(read_tuning_log(text.encode(), "nccl.log"), lambda *_: H100_OF_LOG)
    ring = next(one for one in check.findings if one.subject == "cost of all-reduce ring ll")
    assert ring.predicted == "not used"
    assert "NCCL_ALGO=Tree" in ring.explanation


@pytest.mark.parametrize(
    "line",
    [
        "AllReduce: 0 Bytes -> Algo 1 proto 0 time 1.0",
        "AllReduce: 64 Bytes -> Algo 9 proto 0 time 1.0",
        "AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={5..3}",
        "Unknown: 64 Bytes -> Algo 1 proto 0 time 1.0",
        "AllReduce: 99999999999999999999999 Bytes -> Algo 1 proto 0 time 1.0",
    ],
)
def test_lines_of_no_known_form_are_reported(line: str) -> None:
    log = read_tuning_log(f"n:1:1 [0] NCCL INFO {line}\n".encode(), "nccl.log")
    assert [one.location.line for one in log.unread] == [1]


def test_a_table_of_costs_before_nccl_2_18_is_reported() -> None:
    text = "n:1:1 [0] NCCL INFO Latency/AlgBw |    Tree/    LL |    Ring/    LL |\n"
    log = read_tuning_log(text.encode(), "nccl.log")
    assert [str(one) for one in log.unread] == [
        "nccl.log:1: the table of costs has the form of NCCL before 2.18, and is not compared; "
        "give the log of NCCL 2.18 to 2.30"
    ]


def test_a_file_without_tuning_lines_is_refused() -> None:
    with pytest.raises(InputError, match="no TUNING lines") as refused:
        read_tuning_log(b"NCCL INFO NCCL version 2.23.4\n\xff\x00", "nccl.log")
    assert "NCCL_DEBUG_SUBSYS" in refused.value.diagnostics[0].cure


def test_mutated_logs_cause_no_other_error() -> None:
    import random

    generator = random.Random(7)
    content = bytearray(LOG.format(**USUAL).encode())
    for _ in range(300):
        mutated = bytearray(content)
        for _ in range(generator.randrange(1, 6)):
            mutated[generator.randrange(len(mutated))] = generator.randrange(256)
        try:
            check_log(read_tuning_log(bytes(mutated), "nccl.log"), lambda *_: H100_OF_LOG)
        except InputError:
            continue


@pytest.mark.parametrize(
    ("settings", "expected", "decided_by"),
    [
        ([], "nvls simple", "cost model"),
        (["NCCL_ALGO=Ring"], "ring ll", "cost model, NCCL_ALGO=Ring"),
        (["NCCL_ALGO=^nvls"], "ring ll", "cost model, NCCL_ALGO=^nvls"),
        (["NCCL_NVLS_ENABLE=0"], "ring ll", "cost model, NCCL_NVLS_ENABLE=0"),
        # Without multicast groups, NVLS is not available, whatever NCCL_ALGO names.
        (["NCCL_NVLS_ENABLE=0", "NCCL_ALGO=nvls,ring"], "ring ll", None),
        (["NCCL_ALGO=nvls,ring", "NCCL_NVLS_ENABLE=0"], "ring ll", None),
        (["NCCL_NVLS_ENABLE=0", "NCCL_NVLS_ENABLE=1"], "nvls simple", "cost model"),
        (["NCCL_PROTO=LL128"], "ring ll128", "cost model, NCCL_PROTO=LL128"),
        (["NCCL_ALGO=allgather:ring"], "nvls simple", "cost model"),
        (["NCCL_ALGO=tree;allreduce:ring,nvls"], "nvls simple", None),
        (["NCCL_ALGO=Ring", "NCCL_ALGO=Tree"], "tree ll128", "cost model, NCCL_ALGO=Tree"),
    ],
)
def test_variables_exclude_alternatives(
    settings: list[str], expected: str, decided_by: str | None
) -> None:
    call = explain_call(CallRequest(H100, "all-reduce", 2 * MIB, settings=parse_settings(settings)))
    assert call.choice is not None
    assert f"{call.choice.algorithm} {call.choice.protocol}" == expected
    if decided_by is not None:
        assert call.decided_by == decided_by


def test_limits_of_channels_are_applied() -> None:
    settings = parse_settings(["NCCL_MAX_NCHANNELS=8"])
    call = explain_call(CallRequest(H100, "all-reduce", MIB, settings=settings))
    assert call.choice is not None
    assert call.choice.channels == 8
    assert call.notes == (
        "without these settings: ring ll on 24 channels, 28.01 us by NCCL's cost model",
    )


def test_settings_that_leave_no_algorithm_are_refused_or_fall_back_by_version() -> None:
    settings = parse_settings(["NCCL_ALGO=NVLSTree"])
    new = explain_call(CallRequest(H100, "all-reduce", MIB, settings=settings))
    assert new.choice is None
    assert new.decided_by == "refused"
    old = Communicator(GPUS["H100"], 8, 1, "2.22.3")
    call = explain_call(CallRequest(old, "all-reduce", MIB, settings=settings))
    assert call.choice is not None
    assert call.choice.algorithm == "ring"
    # The communicator has at most this number of channels, for each algorithm.
    limited = parse_settings(["NCCL_ALGO=NVLSTree", "NCCL_MAX_NCHANNELS=4"])
    call = explain_call(CallRequest(old, "all-reduce", MIB, settings=limited))
    assert call.choice is not None
    assert (call.choice.algorithm, call.choice.channels) == ("ring", 4)


def test_a_protocol_without_any_ring_is_refused_before_the_release_that_refuses_it() -> None:
    old = Communicator(GPUS["L40S"], 8, 1, "2.22.3")
    settings = parse_settings(["NCCL_PROTO=LL128"])
    with pytest.raises(UsageError, match="NCCL_PROTO=LL128 leaves no ring for all-reduce"):
        explain_call(CallRequest(old, "all-reduce", MIB, settings=settings))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("NCCL_ALGO=Rign", "'Rign' is not a word of NCCL"),
        ("NCCL_PROTO=LL256", "'LL256' is not a word of NCCL"),
        ("NCCL_ALGO=alltoall:ring", "'alltoall' is not a collective"),
        ("NCCL_ALGO=ring;tree", "'tree' has no collective before it"),
        ("NCCL_DEBUG=INFO", "not one of the variables"),
        ("NCCL_ALGO", "not one of the variables"),
        ("NCCL_MAX_NCHANNELS=0", "'0' is not 1 to 64"),
        ("NCCL_MAX_NCHANNELS=0000000010", "is not 1 to 64"),
        ("NCCL_MAX_NCHANNELS=000000001" + "0" * 5000, "is not 1 to 64"),
        ("NCCL_NVLS_ENABLE=yes", "'yes' is not 0, 1 or 2"),
    ],
)
def test_settings_that_nccl_does_not_know_are_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        parse_settings([text])
    assert refused.value.diagnostics[0].cure


def _with_rules(text: str, size: int, settings: tuple[str, ...] = ()) -> object:
    rules, _ = read_rules(text.encode(), "nccl_tuner.conf", as_interpreted=True)
    request = CallRequest(H100, "all-reduce", size, settings=parse_settings(settings), rules=rules)
    call = explain_call(request)
    assert call.choice is not None
    choice = call.choice
    return choice.algorithm, choice.protocol, choice.channels, call.decided_by


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("allreduce,0,4194304,tree,simple,16,1,8", ("tree", "simple", 16, "tuner line 1")),
        ("allreduce,0,4194304,tree,simple,0,-1,-1", ("tree", "simple", 24, "tuner line 1")),
        # -1 channels and a call that no line matches leave one channel.
        ("allreduce,0,4194304,ring,ll,-1,1,8", ("ring", "ll", 1, "tuner line 1")),
        (
            "allreduce,0,1024,ring,ll,16,1,8",
            ("ring", "ll", 1, "cost model; channels of the tuner"),
        ),
        (
            "allreduce,0,4194304,ring,ll,16,2,16",
            ("ring", "ll", 1, "cost model; channels of the tuner"),
        ),
        # NCCL skips a line that it does not allow, and reads unknown words as ring and simple.
        (
            "allreduce,0,4194304,nvls_tree,simple,16,1,8\nallreduce,0,4194304,ring,simple,8,1,8",
            ("ring", "simple", 8, "tuner line 2"),
        ),
        ("allreduce,0,4194304,rign,ll256,4,1,8", ("ring", "simple", 4, "tuner line 1")),
    ],
)
def test_the_effect_of_a_tuner_line(line: str, expected: tuple[str, str, int, str]) -> None:
    assert _with_rules(line, MIB) == expected


def test_a_tuner_cannot_choose_what_a_variable_excludes() -> None:
    line = "allreduce,0,4194304,tree,simple,16,1,8\nallreduce,0,4194304,ring,ll,8,1,8"
    assert _with_rules(line, MIB, ("NCCL_ALGO=ring",)) == ("ring", "ll", 8, "tuner line 2")


def test_the_report_lists_choice_alternatives_and_reasons(collhub) -> None:
    run = collhub(
        *("nccl", "explain", "--topology", "dgx-h100", "--collective", "all-reduce"),
        *("--size", "1MiB..2MiB", "--nccl-version", "2.29.2", "--json"),
    )
    report = json.loads(run.out)
    jsonschema.validate(report, _schema("report-nccl-explain-1.json"))
    first, second = report["calls"]
    assert first["choice"]["protocol"] == "ll"
    assert second["choice"]["algorithm"] == "nvls"
    assert first["nccl_time_us"] == 28.014
    allowed = [one for one in first["alternatives"] if one["allowed"]]
    assert allowed[0]["nccl_time_us"] == first["nccl_time_us"]
    times = [one["nccl_time_us"] for one in allowed]
    assert times == sorted(times)
    refused = [one for one in first["alternatives"] if not one["allowed"]]
    assert len(allowed) + len(refused) == 21
    assert all(one["reason"] for one in refused)


def test_sizes_may_be_given_several_times(collhub) -> None:
    arguments = ("nccl", "explain", "--machine", "h100", "--collective", "all-reduce", "--json")
    run = collhub(*arguments, "--size", "8MiB", "--size", "1KiB..2KiB", "--size", "2KiB")
    sizes = [call["size_bytes"] for call in json.loads(run.out)["calls"]]
    assert sizes == [8 * MIB, KIB, 2 * KIB]


def test_several_nodes_use_the_network_of_the_topology(collhub) -> None:
    run = collhub(
        *("nccl", "explain", "--topology", "dgx-a100:2", "--collective", "all-reduce"),
        *("--size", "1KiB", "--json"),
    )
    communicator = json.loads(run.out)["communicator"]
    assert communicator["nodes"] == 2
    assert communicator["network"] == {"nics": 8, "nic_rate_GBps": 25.0, "cpu": "amd"}
    assert (communicator["search_channels"], communicator["channel_speed_GBps"]) == (8, 24.0)


def test_symmetric_kernels_are_listed_for_registered_buffers() -> None:
    call = explain_call(CallRequest(H100, "all-reduce", 64 * MIB, is_registered=True))
    assert call.symmetric[0].kernel == "AllReduce_RSxLDMC_AGxSTMC"
    assert call.symmetric[0].blocks == 2
    small = list_symmetric_launches(H100, "all-reduce", KIB)
    assert "LL" in small[0].kernel
    # Base 4.5 us, and at most log(2) us for a transfer that takes less than one microsecond.
    assert 4.5 < small[0].time_us < 4.5 + 0.7
    several = Communicator(GPUS["H100"], 16, 2, "2.29.2", NodeNetwork(8, 50.0))
    call = explain_call(CallRequest(several, "all-reduce", MIB, is_registered=True))
    assert call.symmetric == ()
    assert any("no symmetric kernels" in note for note in call.notes)


MACHINE = ("--machine", "h100", "--collective", "all-reduce", "--size", "1MiB")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*MACHINE, "--nccl-version", "2.17"), ("no known cost model", "2.18 to 2.30")),
        ((*MACHINE, "--env", "NCCL_ALGO=Rign"), ("'Rign'", "known: tree")),
        ((*MACHINE, "--topology", "dgx-a100"), ("the profile is of H100", "of this machine")),
        ((*MACHINE, "--topology", "switch:16"), ("nodes of 16 ranks", "of this machine")),
        ((*MACHINE, "--ranks", "9"), ("9 ranks on 2 nodes", "--ranks and --nodes")),
        ((*MACHINE, "--search", "12"), ("--search '12'", "12x30")),
        (("--machine", "h100", "--collective", "all-reduce", "--size", "1048576"), ("no unit",)),
        (("--machine", "h100", "--collective", "gather", "--size", "1MiB"), ("no gather",)),
        (("--machine", "h999", "--collective", "all-reduce", "--size", "1MiB"), ("'h999'", "p4de")),
        (
            ("--topology", "ring:8", "--collective", "all-reduce", "--size", "1MiB"),
            ("names no known GPU", "--machine"),
        ),
        (
            ("--machine", "l40s", "--collective", "all-reduce", "--size", "1MiB"),
            ("on L40S are unknown", "--search"),
        ),
        (("--machine", "h100", "--size", "1MiB"), ("--collective is missing",)),
        (("--collective", "all-reduce", "--size", "1MiB"), ("machine is missing", "--machine")),
        (("--log", "absent.log"), ("absent.log", "can be read")),
        (("--log", "absent.log", "--size", "1MiB"), ("no meaning with --log",)),
    ],
)
def test_bad_input_is_refused_with_one_line_and_a_cure(
    collhub, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    run = collhub("nccl", "explain", *arguments)
    assert run.code in (1, 2)
    assert run.out == ""
    assert len(run.err.splitlines()) == 1
    assert all(word in run.err for word in words), run.err


RECORD = (
    '{{"header":{{"id":"0x1","rank":0,"n_ranks":8,"nnodes":1}},"metadata":{{"inspector_output_format'
    '_version":"v4.0"}},"coll_perf":{{"coll":"{collective}","coll_sn":1,"coll_msg_size_bytes":{size},'
    '"coll_exec_time_us":{time},"coll_timing_source":"kernel_gpu"}}}}\n'
)


@pytest.mark.parametrize(
    ("collective", "size", "time", "agrees", "words"),
    [
        ("AllReduce", MIB, 25, True, ""),
        # The size is the share of one rank.
        ("AllGather", 128 * KIB, 17, True, ""),
        ("AllReduce", 16 * KIB, 60, False, "(step of LL, us)"),
        # The time of another choice than NVLS.
        ("AllReduce", 64 * MIB, 450, False, "ring ll128 would take"),
    ],
)
def test_records_of_the_inspector_are_compared_with_the_profile(
    collhub, tmp_path: Path, collective: str, size: int, time: int, agrees: bool, words: str
) -> None:
    pytest.importorskip("collhub_machines")
    file = tmp_path / "inspector.jsonl"
    file.write_text(RECORD.format(collective=collective, size=size, time=time))
    run = collhub("nccl", "explain", "--machine", "h100", "--log", file, "--json")
    report = json.loads(run.out)
    jsonschema.validate(report, _schema("report-nccl-log-1.json"))
    (finding,) = report["measured"]
    assert finding["agrees"] is agrees
    assert finding["expected_us"] > 0
    assert words in (finding["explanation"] or "")


def test_measured_times_need_a_machine(collhub, tmp_path: Path) -> None:
    pytest.importorskip("collhub_machines")
    file = tmp_path / "inspector.jsonl"
    file.write_text(RECORD.format(collective="AllReduce", size=MIB, time=25))
    run = collhub("nccl", "explain", "--log", file)
    assert run.code == 2
    assert "do not identify the machine; give --machine" in run.err


def test_a_single_channel_of_a_tuner_has_the_time_of_the_model(collhub, tmp_path: Path) -> None:
    file = tmp_path / "nccl_tuner.conf"
    file.write_text("allreduce,0,4194304,ring,ll,-1,1,8\n")
    arguments = ("nccl", "explain", *MACHINE, "--json")
    usual, tuned = (
        json.loads(collhub(*arguments, *more).out)["calls"][0]
        for more in ((), ("--tuner", str(file)))
    )
    assert usual["expected_by"] in {"measured", "interpolated"}
    assert tuned["expected_by"] == "model"
    assert tuned["choice"]["channels"] == 1
    assert tuned["expected_us"] > 10 * usual["expected_us"]


_WORDS = {"nvls_tree": "NVLSTree", "collnet_direct": "CollNetDirect", "pat": "PAT"}
_TITLES = {
    "broadcast": "Broadcast", "reduce": "Reduce", "all-gather": "AllGather",
    "reduce-scatter": "ReduceScatter", "all-reduce": "AllReduce",
}  # fmt: skip


def _table_of(communicator: Communicator) -> str:
    """Return the cost table that NCCL logs for a communicator: three algorithms in each block."""
    lines = [
        f"NCCL version {communicator.version}+cuda12.6",
        f"comm 0x1 rank 0 nRanks {communicator.ranks} nNodes {communicator.nodes} localRanks 8",
    ]
    for first in range(0, len(ALGORITHMS), 3):
        block = ALGORITHMS[first : first + 3]
        titles = " | ".join(_WORDS.get(name, name.capitalize()).center(48) for name in block)
        lines.append(f"  Algorithm   | {titles} |")
        lines.append(f"  Protocol    | {' | '.join(['LL', 'LL128', 'Simple'] * len(block))} |")
        for collective, title in _TITLES.items():
            cells = [
                f"{one.latency_us:8.1f}/{one.bandwidth:6.1f}"
                for one in list_alternatives(communicator, collective)
                if one.algorithm in block
            ]
            lines.append(f"{title:>13} | {' | '.join(cells)} |")
    return "".join(f"h:1:1 [0] NCCL INFO {line}\n" for line in lines)


@pytest.mark.parametrize("version", ["2.18.5", "2.22.3", "2.23.4", "2.27.7", "2.30.7"])
@pytest.mark.parametrize(
    ("gpu", "ranks", "nodes"), [("A100", 8, 1), ("H100", 4, 1), ("B200", 16, 2), ("GH200", 8, 8)]
)
def test_entire_tables_are_read_and_agree(version: str, gpu: str, ranks: int, nodes: int) -> None:
    communicator = Communicator(GPUS[gpu], ranks, nodes, version, NodeNetwork(8, 50.0))
    log = read_tuning_log(_table_of(communicator).encode(), "nccl.log")
    assert len(log.costs) == 5 * 3 * len(ALGORITHMS)
    assert (log.ranks, log.nodes, log.version) == (ranks, nodes, version)
    check = check_log(log, lambda *_: communicator)
    assert [one for one in check.findings if not one.agrees] == []


@pytest.mark.parametrize("version", ["2.20.3", "2.28.3"])
def test_a_table_of_another_version_is_explained_by_its_constants(version: str) -> None:
    logged = Communicator(GPUS["H100"], 8, 1, version)
    log = read_tuning_log(_table_of(logged).encode(), "nccl.log")
    check = check_log(log, lambda *_: H100_OF_LOG)
    differing = [one for one in check.findings if not one.agrees]
    assert differing
    assert all("constants of NCCL" in one.explanation for one in differing)
