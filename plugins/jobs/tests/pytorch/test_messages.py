"""Messages name options that exist, and ranks are inferred from names of ranks only."""

from __future__ import annotations

import ast
import copy
import dataclasses
import gzip
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import collhub_pytorch
import pytest
from collhub_pytorch import execution_trace
from collhub_pytorch.command import profile, to_command_options
from collhub_pytorch.formats import JobMachineOptions, ProfileOptions, RankOptions
from collhub_pytorch.kineto.read import read
from collhub_pytorch.samples import execution_trace as trace_document
from collhub_pytorch.samples import part, profile_of, step_events
from collhub_pytorch.trace_files import list_files

from hub_core.model import InputError
from hub_core.plugin_api import Source

FOLDER = Path(collhub_pytorch.__file__).parent
READER_OPTION = re.compile(r"-O ([a-z_]+)")
COMMAND_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]+)")
PARAMETERS = {
    name.removeprefix("--")
    for parameter in profile.params
    for name in (*parameter.opts, *parameter.secondary_opts)
}
OPTIONS = {field.name for field in dataclasses.fields(ProfileOptions)}
# Options of the simulator of jobs on measured machines.
MACHINE_OPTIONS = {field.name for field in dataclasses.fields(JobMachineOptions)}
SHARED_OPTIONS = {field.name for field in dataclasses.fields(RankOptions)}

# Options of `nsys profile` and `nsys export` in cures.
NSYS_OPTIONS = {"trace", "type"}


def texts() -> list[str]:
    """All texts of the plugin but docstrings, which are no messages."""
    found = []
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_messages_name_options_that_exist() -> None:
    named = {name for text in texts() for name in READER_OPTION.findall(text)}
    assert (
        {"step", "ranks_missing", "clocks", "clock_residual"} <= named <= OPTIONS | MACHINE_OPTIONS
    )
    spelled = {name for text in texts() for name in COMMAND_OPTION.findall(text)}
    assert "topology" in spelled
    # Cures name `--from` of all commands that read files.
    assert spelled <= PARAMETERS | NSYS_OPTIONS | {"from"}


def test_the_command_names_its_own_options() -> None:
    # A report of waiting times needs collectives that agree.
    for name in OPTIONS - {"mismatches"}:
        spelled = to_command_options(f"give -O {name}=VALUE, or another")
        assert spelled == f"give --{name.replace('_', '-')} VALUE, or another"
        assert COMMAND_OPTION.findall(spelled)[0] in PARAMETERS


def test_errors_of_the_command_name_its_options(collhub, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(profile_of(0, step_events(100), 4)))
    run = collhub("profile", file)
    assert run.code == 1
    assert run.error_lines[0].endswith("or give --ranks-missing assume-same [missing-ranks]")
    inspected = collhub("inspect", file)
    assert inspected.code == 1
    assert "-O ranks_missing=assume-same" in inspected.error_lines[-1]


def test_errors_of_execution_traces_name_options_of_their_reader() -> None:
    whole = trace_document()
    short = {**whole, "nodes": []}
    parts = [part("a.0.et.json", 0, whole), part("a.1.et.json", 1, short)]
    with pytest.raises(InputError) as caught:
        execution_trace.read(Source("a", tuple(parts)), RankOptions())
    assert "but rank 1" in str(caught.value)
    assert set(READER_OPTION.findall(str(caught.value))) <= SHARED_OPTIONS


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node["attrs"].append({"name": "pg_size", "type": "", "value": math.inf}),
        lambda node: node.update(name="## process_group:init ##", inputs={"values": ['["x"]']}),
    ],
    ids=["infinite", "group"],
)
def test_invalid_nodes_of_execution_traces_are_refused(change: Callable[[Any], None]) -> None:
    document = copy.deepcopy(trace_document())
    change(document["nodes"][0])  # type: ignore[index]
    with pytest.raises(InputError, match=r"node 5 \(.*\) cannot be read: "):
        execution_trace.read(Source("a", (part("a.0.et.json", 0, document),)), RankOptions())


def test_a_step_of_execution_traces_is_refused(collhub, tmp_path: Path) -> None:
    file = tmp_path / "a.et.json"
    file.write_text(json.dumps(trace_document()))
    run = collhub("profile", file, "--step", "3")
    assert (run.code, "--step has no meaning" in run.err) == (2, True)


def ranks_of(*names: str) -> list[int | None]:
    return [file.rank for file in list_files([f"folder.7/{name}" for name in names])]


@pytest.mark.parametrize(
    "name",
    [
        "Qwen1.5-0.5B.pt.trace.json", "Qwen1.5-0.5B.json.gz", "llama-3.1.pt.trace.json",
        "llama-3.1-8b.json", "resnet50.json.gz", "run.2024.json", "frank1.json", "ranking5.json",
        "host_12.1694128201545.pt.trace.json", "rank8B.json",
    ],
)  # fmt: skip
def test_numbers_of_versions_and_sizes_are_no_ranks(name: str) -> None:
    assert ranks_of(name) == [None]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json.gz", 3), ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("worker0_step_12.1694128201545.pt.trace.json", 0), ("job_rank_12.json", 12),
        ("RANK5.json", 5), ("Qwen1.5-0.5B.rank2.json", 2),
    ],
)  # fmt: skip
def test_names_of_ranks_are_ranks(name: str, rank: int) -> None:
    assert ranks_of(name) == [rank]


def test_numbers_in_which_names_differ_are_ranks() -> None:
    assert ranks_of("job.1.pt.trace.json", "job.0.pt.trace.json") == [1, 0]
    assert ranks_of("llama-3.1.0.json.gz", "llama-3.1.1.json.gz") == [0, 1]
    # Two models, not two ranks of one job.
    assert ranks_of("Qwen1.5-0.5B.json", "Qwen1.5-1.8B.json") == [None, None]
    assert ranks_of("llama.3.json", "qwen.2.json") == [None, None]


def test_a_single_file_is_rank_0_unless_it_states_another(tmp_path: Path) -> None:
    document = dict(profile_of(0, step_events(100), 1))
    del document["distributedInfo"]
    document["traceEvents"] = [
        event for event in step_events(100) if "nccl" not in str(event["name"])
    ]
    file = part("llama-3.1.pt.trace.json", 1, document)
    workload = read(Source("llama-3.1", (file,), lambda found: None), ProfileOptions())
    assert workload.num_ranks == 1


def test_a_model_with_numbers_in_its_name_is_inspected(collhub, tmp_path: Path) -> None:
    document = dict(profile_of(0, step_events(100), 1))
    del document["distributedInfo"]
    document["traceEvents"] = [
        event for event in step_events(100) if "nccl" not in str(event["name"])
    ]
    for name in ("Qwen1.5-0.5B.json.gz", "llama-3.1.json.gz", "llama-3.1.pt.trace.json.gz"):
        (tmp_path / name).write_bytes(gzip.compress(json.dumps(document).encode()))
        run = collhub("inspect", tmp_path / name)
        assert run.code == 0, run.err
        assert "1 ranks" in run.out


def test_a_size_beyond_64_bits_names_the_file_and_the_call() -> None:
    content = json.dumps(trace_document()).replace('"value": 1000', '"value": 9223372036854775808')
    source = Source.of_bytes("job.0.et.json", content.encode())
    message = r"job\.0\.et\.json: the call allreduce: its number of bytes needs more"
    with pytest.raises(InputError, match=message):
        execution_trace.read(source, RankOptions(ranks_missing="assume-same"))


def test_an_integer_of_more_digits_than_python_converts_is_no_json() -> None:
    content = json.dumps(trace_document()).replace('"value": 1000', f'"value": {"9" * 5000}')
    with pytest.raises(InputError, match=r"job\.0\.et\.json: byte \d+: this is no JSON: "):
        execution_trace.read(Source.of_bytes("job.0.et.json", content.encode()), RankOptions())
