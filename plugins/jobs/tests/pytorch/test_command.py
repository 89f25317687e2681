"""`collhub profile`: reports, replays on a network, and requests that mean nothing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from collhub_job_traces import writing
from collhub_jobs import documents
from collhub_pytorch.ccl_bench import samples as ccl_bench_samples
from collhub_pytorch.plugin import collhub_commands, collhub_producers
from collhub_pytorch.replay import NetworkTimes
from collhub_pytorch.samples import execution_traces, profiles

import hub_core
from hub_core.model import JobCollective
from hub_core.plugin_api import NoOptions
from hub_core.testing import training_step


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return written(tmp_path, profiles()[0].parts)


def written(folder: Path, parts) -> list[Path]:
    found = []
    for part in parts:
        found.append(folder / part.name)
        found[-1].write_bytes(part.load())
    return found


def test_offers() -> None:
    assert [one.name for one in collhub_producers()] == [
        "kineto",
        "pytorch-et",
        "nccl-inspector",
        "nccl-profiler",
        "nccl-calls",
        "deepspeed-log",
        "nsys",
        "nsys-parquet",
        "ccl-bench",
    ]
    assert [one.name for one in collhub_commands()] == ["profile"]


def test_the_report_says_what_waits(collhub, files: list[Path]) -> None:
    run = collhub("profile", *files)
    assert run.code == 0
    assert "all-reduce: 25.0 % of 160.00 us, all ranks together, is waiting" in run.out


def test_the_document_holds_the_same(collhub, files: list[Path]) -> None:
    report = collhub("profile", *files, "--json").report()
    (found,) = report["collectives"]
    assert (found["kind"], found["bytes"], found["group"]) == ("all-reduce", 4000, "0")
    assert (found["waiting_ns"], found["transferring_ns"]) == (40_000, 120_000)
    assert [one["last_count"] for one in report["ranks"]] == [0, 1]
    assert report["replay"] is None


@pytest.mark.needs_plugins
def test_a_network_is_judged_by_simulated_times(collhub, files: list[Path]) -> None:
    network = ("--topology", "ring:2?bandwidth=1GB/s&latency=1us")
    report = collhub("profile", *files, "--json", *network).report()
    replay = report["replay"]
    (simulated,) = replay["simulated"]
    assert (simulated["kind"], simulated["algorithm"]) == ("all-reduce", "ring")
    # The all-reduce of the profile took 60 us, and the step waited for it.
    assert replay["saved_ns"] == 60_000 - simulated["time_ns"]
    other = collhub("profile", *files, "--json", *network, "--collective", "all-reduce=direct")
    assert other.report()["replay"]["simulated"][0]["algorithm"] == "direct"


def test_execution_traces_are_counted(collhub, tmp_path: Path) -> None:
    traces = written(tmp_path, execution_traces()[0].parts)
    run = collhub("profile", *traces)
    assert run.out.splitlines()[1].split() == ["all-reduce", "3.906", "KiB", "0", "2", "1"]
    assert collhub("profile", *traces, "--json").report()["job_ns"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--collective", "all-reduce=ring"), 2, "has no meaning without --topology"),
        (("--collective", "sum=ring", "--topology", "ring:2"), 2, "'sum=ring' is not KIND=NAME"),
        (("--topology", "ring:2", "--collective", "all-reduce=rink"), 2, "ring"),
        (("--step", "7"), 1, "there is no ProfilerStep#7"),
    ],
)
def test_requests_that_mean_nothing(
    collhub, files: list[Path], arguments: tuple[str, ...], code: int, message: str
) -> None:
    run = collhub("profile", *files, *arguments)
    assert message in run.err
    assert run.code in (code, 3)


def test_a_file_named_twice_and_one_that_is_not_there(collhub, files: list[Path]) -> None:
    assert "is named more than once" in collhub("profile", files[0], files[0]).err
    missing = collhub("profile", files[0].with_name("none.json"))
    assert missing.code == 1
    assert missing.error_lines[0].endswith(
        "none.json: No such file or directory [unreadable-input]"
    )


def test_inspect_of_all_files_says_what_waits(collhub, files: list[Path]) -> None:
    run = collhub("inspect", *files)
    assert run.code == 0, run.err
    assert "all-reduce  3.906 KiB  0          2      1      60.00 us  20.00 us  25.0 %" in run.out
    assert "is waiting for the last rank" in run.out
    lines = collhub("inspect", *files, "--json").report()["lines"]
    assert set(lines) <= set(map(str.rstrip, run.out.splitlines())) | set(run.out.splitlines())


@pytest.mark.parametrize("name", ["model.json.gz", "any.gz", "Qwen1.5-0.5B.json.gz", "plain"])
def test_archives_of_any_name_are_read(collhub, tmp_path: Path, name: str) -> None:
    (part, *_) = profiles()[0].parts
    (tmp_path / name).write_bytes(gzip.compress(part.load()))
    same = ("-O", "ranks_missing=assume-same")
    run = collhub("inspect", tmp_path / name, *same)
    assert (run.code, run.error_lines) == (0, []), run.err
    assert "(kineto)" in run.out
    assert collhub("convert", tmp_path / name, *same, "-o", tmp_path / "job.json").code == 0
    simulated = collhub("simulate", tmp_path / name, *same, "--topology", "ring:2")
    assert simulated.code == 0, simulated.err


def test_compressed_execution_traces_of_any_name_are_read(collhub, tmp_path: Path) -> None:
    (part, *_) = execution_traces()[0].parts
    (tmp_path / "run.json.gz").write_bytes(gzip.compress(part.load()))
    run = collhub("inspect", tmp_path / "run.json.gz", "-O", "ranks_missing=assume-same")
    assert run.code == 0, run.err
    assert "(pytorch-et)" in run.out


@pytest.mark.parametrize("ending", ["pt.trace.json", "json.gz"])
def test_files_of_any_names_are_the_ranks_of_one_job(collhub, tmp_path: Path, ending: str) -> None:
    # As torch.profiler's handler for TensorBoard names them.
    names = [f"host_4{rank}.1694128201545.{ending}" for rank in range(2)]
    for name, part in zip(names, profiles()[0].parts, strict=True):
        content = part.load()
        (tmp_path / name).write_bytes(gzip.compress(content) if ending == "json.gz" else content)
    files = [tmp_path / name for name in names]
    inspected = collhub("inspect", *files)
    assert inspected.code == 0, inspected.err
    assert "2 ranks" in inspected.out
    assert collhub("simulate", *files, "--topology", "ring:2").code == 0
    assert collhub("convert", *files, "-o", tmp_path / "job.json").code == 0
    # One of them twice is no job.
    assert collhub("inspect", files[0], files[0]).code == 2


def test_files_of_different_formats_are_no_job(collhub, files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "one.json").write_bytes(files[0].read_bytes())
    run = collhub("inspect", tmp_path / "one.json", tmp_path / "other.json")
    assert (run.code, "unexpected extra argument" in run.err) == (2, True)


@pytest.mark.parametrize(
    "document",
    [
        lambda whole: {"schemaVersion": 1, "computeProperties": [], **whole},
        lambda whole: {"distributedInfo": whole["distributedInfo"], "traceEvents": []} | whole,
        lambda whole: {"traceEvents": whole["traceEvents"], **whole},
        lambda whole: {"schemaVersion": 1, "host_name": "x" * 5000, **whole},
        lambda whole: [{"name": "process_name", "ph": "M", "ts": 0, "pid": 9, "tid": 0,
                        "args": {"name": "python"}}, *whole["traceEvents"]],
    ],
)  # fmt: skip
def test_profiles_are_told_by_their_beginning(collhub, tmp_path: Path, document) -> None:
    (part, *_) = profiles()[0].parts
    content = json.dumps(document(json.loads(part.load())))
    (tmp_path / "run.json").write_text(content)
    run = collhub("inspect", tmp_path / "run.json", "-O", "ranks_missing=assume-same")
    assert run.code == 0, run.err
    assert "(kineto)" in run.out


@pytest.fixture
def card(tmp_path: Path) -> Path:
    for part in ccl_bench_samples()[0].parts:
        path = tmp_path / part.name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(part.load())
    return tmp_path / "card" / "workload-card.yaml"


def test_a_card_of_ccl_bench_is_profiled_with_its_traces(collhub, card: Path) -> None:
    reports = [collhub("profile", path, "--json").report() for path in (card, card.parent)]
    assert reports[0] == reports[1]
    assert reports[0]["job_ns"] == 221_000
    assert collhub("profile", card, "--step", "7").code == 1


@pytest.mark.needs_plugins
def test_the_network_of_the_card_is_simulated_without_a_topology(collhub, card: Path) -> None:
    run = collhub("simulate", card.parent, "--json")
    assert run.code == 0, run.err
    network = "switch:2?bandwidth=300GB/s"
    assert f"states: {network}" in run.err
    given = collhub("simulate", card.parent, "--topology", network, "--json").report()
    assert run.report()["time_ns"] == given["time_ns"]
    assert run.report()["topology"] is None


@pytest.mark.needs_plugins
@pytest.mark.parametrize("kind", ["chakra", "document"])
def test_a_job_in_another_format_is_profiled_on_a_network(
    collhub, tmp_path: Path, kind: str
) -> None:
    name = "job.json" if kind == "document" else "job"
    write = documents.write if kind == "document" else writing.write
    for artifact in write(training_step(), NoOptions()).artifacts:
        (tmp_path / f"{name}{artifact.name}").write_bytes(artifact.content())
    run = collhub("profile", tmp_path / name, "--topology", "ring:4", "--json")
    assert run.code == 0, run.err
    assert run.report()["num_ranks"] == 4
    assert collhub("profile", tmp_path / name).code == 0
    assert "mark no iterations" in collhub("profile", tmp_path / name, "--step", "1").err


@pytest.mark.needs_plugins
def test_rank_files_of_another_format_are_one_job_by_their_names(collhub, tmp_path: Path) -> None:
    files = []
    for artifact in writing.write(training_step(), NoOptions()).artifacts:
        files.append(tmp_path / f"job{artifact.name}")
        files[-1].write_bytes(artifact.content())
    run = collhub("profile", *reversed(files), "--topology", "ring:4", "--json")
    assert run.code == 0, run.err
    assert run.report()["num_ranks"] == len(files) == 4


@pytest.mark.needs_plugins
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("job.1.et", "job.3.et"), "the file of rank 1 is there, that of rank 0 not"),
        (("job.2.et", "job.0.et"), "the file of rank 2 is there, that of rank 1 not"),
        (("job.0.et", "job.1.json"), "job.1.json: byte 0: "),
        (("job.0.et", "other.0.et"), "other.0.et: the file of rank 0 is there already: "),
        (("job.0.et", "copy.et"), "copy.et: the file name does not contain the rank"),
    ],
)
def test_some_rank_files_of_another_format_have_the_ranks_of_their_names(
    collhub, tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    for artifact in writing.write(training_step(), NoOptions()).artifacts:
        (tmp_path / f"job{artifact.name}").write_bytes(artifact.content())
    (tmp_path / "job.1.json").write_text('{"schema": "1"}')
    for name in ("other.0.et", "copy.et"):
        (tmp_path / name).write_bytes((tmp_path / "job.0.et").read_bytes())
    run = collhub("profile", *(tmp_path / name for name in names))
    assert run.code == 1
    assert message in run.err
    assert "twice" not in run.err


@pytest.mark.needs_plugins
@pytest.mark.parametrize("command", ["inspect", "verify", "simulate"])
def test_some_rank_files_of_a_set_are_a_job_without_the_others(
    collhub, tmp_path: Path, command: str
) -> None:
    for artifact in writing.write(training_step(), NoOptions()).artifacts:
        (tmp_path / f"job{artifact.name}").write_bytes(artifact.content())
    run = collhub(command, tmp_path / "job.1.et", tmp_path / "job.3.et")
    assert run.code == 1
    assert "the file of rank 1 is there, that of rank 0 not" in run.err


@pytest.mark.needs_plugins
@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"assumed_ranks": ["q"]}, "$.extensions.pytorch.assumed_ranks[0]: 'q' is no rank"),
        (
            {"has_device": [True]},
            "$.extensions.pytorch.has_device: one entry for each of 2 ranks was expected, there"
            " are 1",
        ),
        ({"idle": [1, None]}, "$.extensions.pytorch.idle[0]: no idle times by stream"),
        ({"idle": [None, [{"stream": 7}]]}, "$.extensions.pytorch.idle[1]: no idle times by"),
    ],
)
def test_a_document_with_other_facts_of_the_profile_is_refused(
    collhub, files: list[Path], tmp_path: Path, facts: dict[str, object], message: str
) -> None:
    path = tmp_path / "job.json"
    assert collhub("convert", *files, "-o", path, "--to", "workload-json").code == 0
    assert collhub("profile", path).code == 0
    document = json.loads(path.read_text())
    document["extensions"]["pytorch"] |= facts
    path.write_text(json.dumps(document))
    run = collhub("profile", path)
    assert run.code == 1
    assert message in run.err
    assert "remove the extension pytorch" in run.err


@pytest.mark.needs_plugins
def test_extras_and_ranks_of_nodes_in_a_changed_document(
    collhub, files: list[Path], tmp_path: Path
) -> None:
    path = tmp_path / "job.json"
    assert collhub("convert", *files, "-o", path, "--to", "workload-json").code == 0
    document = json.loads(path.read_text())
    assert document["extras"]
    document["extras"] = ["{"] * len(document["extras"])
    path.write_text(json.dumps(document))
    assert collhub("profile", path).code == 0
    document["extensions"]["pytorch"]["ranks_per_node"] = 0
    path.write_text(json.dumps(document))
    run = collhub("profile", path, "--machine", "h100")
    assert run.code == 1
    assert "ranks_per_node: 0 is below 1" in run.err


@pytest.mark.parametrize("kind", [JobCollective.ALL_REDUCE, JobCollective.ALL_TO_ALL])
@pytest.mark.parametrize("ranks", [(2, 3, 5), (5, 2, 3)])
def test_a_group_on_a_part_of_the_network_has_the_times_of_its_part(
    kind: JobCollective, ranks: tuple[int, ...]
) -> None:
    whole, part = (
        NetworkTimes(
            hub_core.parse_topology(f"switch:{count}?bandwidth=450GB/s"),
            {},
            hub_core.TimingSource(),
            hub_core.run_registry(),
        )
        for count in (8, 3)
    )
    time_ns = whole(kind, 1 << 20, ranks)
    assert time_ns is not None
    assert time_ns == part(kind, 1 << 20, (0, 1, 2))


def test_verify_takes_the_profiles_of_a_job_as_one_input(collhub, tmp_path: Path) -> None:
    files = [tmp_path / f"trace_rank_{rank}.json" for rank in range(2)]
    for file, part in zip(files, profiles()[0].parts, strict=True):
        with part.stream() as stream:
            file.write_bytes(stream.read())
    run = collhub("verify", *files)
    assert run.code == 0, run.err
    assert "workload, 2 ranks, 24 nodes" in run.out
    # A file that cannot be read leaves the inputs separate, so that each gets a verdict.
    files[1].write_bytes(b"")
    run = collhub("verify", *files)
    assert run.code == 1
    assert "0 of 2 inputs pass" in run.out
