"""Rules whose inputs are built here and given to the command that reports them."""

from __future__ import annotations

import importlib
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import hub_core
from hub_core.cli.command_context import Session
from hub_core.cli.main import collhub as program
from hub_core.model import HubError
from hub_core.pipeline.core_rules import collect_rules
from hub_core.registry.discovery import discover
from hub_core.testing.samples import ring_all_reduce

pytestmark = [pytest.mark.needs_plugins, pytest.mark.once]
Text = dict[str, Any]
PROVENANCE = {
    "producer": "unknown", "producer_version": "", "source_name": "", "source_sha256": "",
    "options": {},
}  # fmt: skip


def _store(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


# --- `collhub verify --sarif`: the rule is the identifier of a result ---


def _write_astra_sim_folder(folder: Path, system: str) -> Path:
    network = "topology: [ Ring ]\nnpus_count: [ 2 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n"
    _store(folder / "run" / "network.yml", network)
    _store(folder / "run" / "system.json", system)
    hub_core.write(ring_all_reduce(2), folder / "run" / "traces" / "ring", format="chakra")
    return folder / "run"


def _write_export(folder: Path, change: Callable[[Text, Text], object]) -> Path:
    """Write an archive of torch.export with one sum; `change` gets its node and its signature."""
    value = {"as_tensor": {"name": "x"}}
    inputs = [{"name": name, "arg": value, "kind": 1} for name in ("self", "other")]
    node = {"target": "torch.ops.aten.add.Tensor", "inputs": inputs, "metadata": {}}
    node["outputs"] = [{"as_tensor": {"name": "y"}}]
    signature = {
        "input_specs": [{"user_input": {"arg": value}}],
        "output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "y"}}}}],
    }
    tensor = {"dtype": 7, "sizes": [{"as_int": 8}]}
    graph = {"inputs": [value], "outputs": node["outputs"], "nodes": [node]}
    graph["tensor_values"] = {"x": tensor, "y": tensor}
    module = {"graph": graph, "signature": signature}
    document = {"schema_version": {"major": 8, "minor": 20}, "graph_module": module}
    change(node, signature)
    with zipfile.ZipFile(folder / "program.pt2", "w") as archive:
        archive.writestr("program/models/model.json", json.dumps(document))
    return folder / "program.pt2"


def _write_profile(folder: Path, *events: Text) -> Path:
    common = {"ph": "X", "pid": 1, "tid": 1, "ts": 100, "dur": 10}
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 1},
        "traceEvents": [{**common, **event} for event in events],
    }
    return _store(folder / "job.0.pt.trace.json", json.dumps(document))


def _write_profile_of_size(folder: Path, elements: int) -> Path:
    issuer = {"cat": "cpu_op", "name": "c10d::allreduce_", "ts": 90, "args": {}}
    args = {"Input Dims": [[elements]], "Input type": ["float"]}
    collective = {"cat": "user_annotation", "name": "gloo:all_reduce", "tid": 2, "args": args}
    return _write_profile(folder, issuer, collective)


def _write_orphan(folder: Path) -> Path:
    args = {"Input Dims": [[8]], "Input type": ["float"]}
    return _write_profile(
        folder,
        {"cat": "cpu_op", "name": "aten::mm", "ts": 0, "args": {}},
        {"cat": "user_annotation", "name": "gloo:all_reduce", "tid": 2, "args": args},
    )


def _write_teccl(folder: Path, volume: float) -> Path:
    """Write an all-to-all of 3 GPUs, each part of which takes a direct and an indirect path."""
    paths = {}
    for origin in range(3):
        for target in {0, 1, 2} - {origin}:
            via = 3 - origin - target
            direct = [[0, f"{origin}->{target} with volume {volume} in epoch 0"]]
            rest = f"with volume {1 - volume:.3f} in epoch"
            around = [[1, f"{origin}->{via} {rest} 1"], [2, f"{via}->{target} {rest} 2"]]
            key = f"Demand at {target} for chunk {target} from {origin} met by epoch 3"
            paths[key] = [direct, around]
    document = {"1-Epoch_Duration": 1e-6, "8-Chunk paths": paths}
    return _store(folder / "flows.json", json.dumps(document))


VERIFIED: Mapping[str, Callable[[Path], Path]] = {
    "invalid-system": lambda folder: _write_astra_sim_folder(
        folder, '{"all-reduce-implementation": ["rings"]}'
    ),
    "input": lambda folder: _write_export(
        folder, lambda node, signature: signature["input_specs"].append({"token": {"arg": {}}})
    ),
    "argument": lambda folder: _write_export(
        folder, lambda node, signature: node["inputs"][0].update(arg={"as_complex": {}})
    ),
    "operator": lambda folder: _write_export(
        folder, lambda node, signature: node.update(target="torch.ops.two words")
    ),
    "too-large": lambda folder: _write_profile_of_size(folder, 1 << 62),
    "no-issuer": _write_orphan,
    "volumes-rounded": lambda folder: _write_teccl(folder, 0.996),
}


@pytest.mark.parametrize("rule", VERIFIED)
def test_verify_reports_the_rule(rule: str, collhub: Any, tmp_path: Path) -> None:
    collhub("verify", VERIFIED[rule](tmp_path), "--sarif", tmp_path / "findings.sarif")
    (run,) = json.loads((tmp_path / "findings.sarif").read_text())["runs"]
    assert [result["ruleId"] for result in run["results"]] == [rule]
    # The rule has a page, which is its help.
    assert "- Cure: " in run["tool"]["driver"]["rules"][0]["help"]["text"]


# --- other commands: the rule is the identifier of their error ---


def _write_job(folder: Path, ranks: int, groups: int, **nodes: list[Any]) -> Path:
    members = [{"name": str(number), "ranks": list(range(ranks))} for number in range(groups)]
    document = {
        "schema": "collhub/workload-1", "num_ranks": ranks, "provenance": PROVENANCE,
        "groups": members, "names": [], "extras": [], "algorithms": [], "extensions": {},
        "nodes": nodes,
    }  # fmt: skip
    return _store(folder / "job.json", json.dumps(document))


def _write_deadlock(folder: Path) -> Path:
    """Write a job whose ranks call the all-reduces of two groups in opposite orders."""
    return _write_job(
        folder, 2, 2, rank=[0, 0, 0, 1, 1, 1],
        kind=["compute", "collective", "collective"] * 2, duration_ns=[7000] * 6,
        collective=[None, "all-reduce", "all-reduce"] * 2, bytes=[-1, 64, 64] * 2,
        group=[-1, 0, 1, -1, 1, 0], data=[[], [0], [1], [], [3], [4]],
    )  # fmt: skip


def _write_exchange(folder: Path) -> Path:
    """Write a job with an all-to-all of three ranks that has no measured time."""
    return _write_job(
        folder, 3, 1, rank=[0, 0, 1, 1, 2, 2], kind=["compute", "collective"] * 3,
        duration_ns=[7000, -1] * 3, collective=[None, "all-to-all"] * 3, bytes=[-1, 3000] * 3,
        group=[-1, 0] * 3,
    )  # fmt: skip


def _write_message(folder: Path) -> Path:
    """Write a captured graph of a message, which the passes of tensor programs cannot type."""
    tensor = {"element": "float32", "shape": [8]}
    document = {
        "schema": "collhub/captured-graph-1",
        "name": "step",
        "groups": {"0": [0, 1]},
        "inputs": [{"name": "x", **tensor, "role": "input", "placement": "L"}],
        "nodes": [
            {
                "name": "s",
                "operator": "_c10d_functional.isend.default",
                "arguments": {"input": {"value": "x"}, "dst": 1, "group_name": "0"},
                "results": [{"name": "s", **tensor}],
            }
        ],
        "outputs": [{"value": "s", "role": "output"}],
    }
    return _store(folder / "step.graph.json", json.dumps(document))


def _write_ring(folder: Path) -> Path:
    hub_core.write(ring_all_reduce(257), folder / "ring.json", format="json")
    return folder / "ring.json"


def _write_topology(folder: Path) -> Path:
    """Write a topology of NCCL in which no device is a GPU."""
    device = (
        '<pci busid="0000:00:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16"/>'
    )
    cpu = 'numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"'
    text = f'<system version="1"><cpu {cpu}>{device}</cpu></system>'
    return _store(folder / "system.xml", text)


def _write_dump(folder: Path) -> Path:
    return _store(folder / "dump_0", "{}" * 50)


def _write_inspector_log(folder: Path) -> Path:
    return _store(folder / "nccl-pid7.log", '{"header": 1}\n')


# By rule set and rule: the input, the command with FILE for it and OUT for a file, and a part of
# the message.
COMMANDS: Mapping[tuple[str, str], tuple[Callable[[Path], Path], str, str]] = {
    ("coconet", "send"): (
        _write_message,
        "transform FILE --pass dead -o OUT.json",
        "is a message, which programs of one group lack",
    ),
    ("diagnosis", "invalid-inspector"): (
        _write_inspector_log,
        "diagnose FILE",
        "no line is a record of NCCL's Inspector",
    ),
    ("nccl-files", "too-many-ranks"): (
        _write_ring,
        "convert FILE --to nccl-graph -o OUT.xml",
        "257 ranks do not fit one node",
    ),
    ("nccl-files", "no-gpu"): (_write_topology, "topology show FILE", "the file names no GPU"),
    ("profiles", "deadlock"): (_write_deadlock, "profile FILE", "this node never starts"),
    ("profiles", "not-predicted"): (
        _write_exchange,
        "profile FILE --machine l40s",
        "is not predicted: l40s has no times of 3 ranks",
    ),
}
# One command per class of request errors: the class, which is the subject of its rules, the
# identifier, and the arguments.
REQUESTS: Mapping[str, tuple[str, str]] = {
    "arguments and options": ("unknown-option", "inspect RING -O none=1"),
    "outputs": ("output-is-input", "convert RING -o RING"),
    "plugins": ("no-such-plugin", "plugins show nobody"),
    "algorithms and schedules": (
        "collective-unsupported",
        "synthesize bruck --collective broadcast --topology ring:4 --size 1MiB",
    ),
    "synthesizers": (
        "odd-ranks",
        "synthesize neighbour-exchange --collective all-gather --topology ring:5 --size 1MiB",
    ),
    "networks": (
        "depth",
        "synthesize blink --collective broadcast --topology switch:4 --size 1MiB -O depth=1",
    ),
    "executors and loaded algorithms": ("unknown-op", "run RING --size 1KiB --op median"),
    "comparisons, compositions, the zoo, pages": ("unknown-entry", "zoo show nobody"),
    "jobs, tensor programs and shardings": ("schedule", "pipeline 1f2b"),
    "transformations of tensor programs": (
        "refused-target",
        "transform PROGRAM --size N=64 --pass split -O target=none -o OUT.xml --to tensor-program",
    ),
    "files for runtimes and simulators": (
        "library-name",
        "convert RING --to nccl -O name=a-b -o OUT.xml",
    ),
    "simulation and synthesis with ASTRA-sim's model": (
        "no-binary",
        "simulate RING --topology ring:4 --size 1MiB --backend astra-sim",
    ),
}
# The errors of classes that a run of any command can have.
ANY_COMMAND: Mapping[str, str] = {
    "usage": "verify RING --topology ring:4",
    "lossy": "convert RING --to nccl-graph -o OUT.xml --strict",
}
# Limits of readers that are lowered: module and name of the limit, and as above.
LIMITS: Mapping[tuple[str, str], tuple[str, str, Callable[[Path], Path], str, str]] = {
    ("diagnosis", "too-large"): (
        "collhub_diagnosis.read_evidence",
        "MAX_FILE_BYTES",
        _write_dump,
        "diagnose FILE",
        "the file has 100 bytes; at most 64 are read",
    ),
    ("goal", "too-large"): (
        "collhub_goal.parse",
        "MAX_BYTES",
        lambda folder: _store(folder / "a.goal", "num_ranks 1\n" + 99 * "\n"),
        "verify FILE",
        "the file is larger than",
    ),
    ("msccl", "too-large"): (
        "collhub_msccl.reading.read_xml",
        "MAX_BYTES",
        lambda folder: _store(folder / "a.xml", f"<algo>{99 * ' '}</algo>"),
        "verify FILE",
        "MSCCL-IR files up to 64 bytes are read",
    ),
    ("nccl-files", "too-large"): (
        "collhub_nccl.explain.tuning_log",
        "MAX_FILE_BYTES",
        lambda folder: _store(folder / "nccl.log", 99 * "x"),
        "nccl explain --log FILE",
        "the log exceeds",
    ),
}


def _run(collhub: Any, command: str, file: Path, folder: Path) -> str:
    """Run a command that fails, and return the line of its error."""
    places = {"FILE": str(file), "OUT.json": str(folder / "o.json"), "OUT.xml": str(folder / "o")}
    run = collhub(*(places.get(word, word) for word in command.split()))
    assert run.code == 1, run.err
    (line,) = run.error_lines
    return str(line)


@pytest.mark.parametrize(("name", "rule"), COMMANDS)
def test_a_command_reports_the_rule(name: str, rule: str, collhub: Any, tmp_path: Path) -> None:
    write, command, message = COMMANDS[name, rule]
    assert message in _run(collhub, command, write(tmp_path), tmp_path)


@pytest.mark.parametrize(("name", "rule"), LIMITS)
def test_a_file_above_a_limit_is_refused(
    name: str, rule: str, collhub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, limit, write, command, message = LIMITS[name, rule]
    monkeypatch.setattr(importlib.import_module(module), limit, 64)
    assert message in _run(collhub, command, write(tmp_path), tmp_path)


def _find_code(command: str, ring: Path, folder: Path) -> str:
    """Run a command that raises, and return the identifier of its error."""
    program_file = Path(__file__).parents[1] / "examples" / "coconet" / "adam.py"
    places = {
        "RING": str(ring),
        "OUT.xml": str(folder / "o.xml"),
        "PROGRAM": str(program_file),
    }
    arguments = [places.get(word, word) for word in command.split()]
    with pytest.raises(HubError) as refusal:
        program.main(arguments, prog_name="collhub", standalone_mode=False, obj=Session())
    return refusal.value.diagnostics[0].code


@pytest.mark.parametrize("subject", REQUESTS)
def test_a_request_error_is_of_its_class(
    subject: str, ring: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ASTRA_SIM_BIN", raising=False)
    rule, command = REQUESTS[subject]
    assert _find_code(command, ring, tmp_path) == rule
    assert f"requests: {subject}" in {one.subject for one in collect_rules(discover())[rule]}


@pytest.mark.parametrize("rule", ANY_COMMAND)
def test_any_command_reports_the_rule(rule: str, ring: Path, tmp_path: Path) -> None:
    assert _find_code(ANY_COMMAND[rule], ring, tmp_path) == rule


def test_every_class_of_request_errors_is_triggered() -> None:
    subjects = {rule.subject for rules in collect_rules(discover()).values() for rule in rules}
    classes = {subject for subject in subjects if subject.startswith("requests: ")}
    assert classes == {f"requests: {subject}" for subject in REQUESTS}


def test_a_request_error_is_a_result_with_a_page(collhub: Any, ring: Path, tmp_path: Path) -> None:
    findings = tmp_path / "findings.sarif"
    assert collhub("verify", ring, "-O", "none=1", "--sarif", findings).code == 1
    (run,) = json.loads(findings.read_text())["runs"]
    (rule,) = run["tool"]["driver"]["rules"]
    assert rule["id"] == "unknown-option"
    assert "--help" in rule["help"]["text"]


# An executor that rounds differently, as one that adds in another order.
ROUNDING = """
def execute(request, options):
    from dataclasses import replace
    import numpy as np
    from collhub_local.numpy_executor import execute as run
    result = run(request, options)
    return replace(result, outputs=tuple(np.nextafter(one, np.inf) for one in result.outputs))

@hookimpl
def collhub_consumers():
    return [Executor("rounding", "rounds up", "dist_rounding:execute")]
"""


def test_an_executor_with_another_order_is_reported(
    collhub: Any, make_plugin: Any, ring: Path
) -> None:
    make_plugin("rounding", ROUNDING)
    options = ("--size", "1KiB", "--data", "random", "--executor", "rounding", "--json")
    run = collhub("run", ring, *options)
    assert run.code == 0, run.err
    report = run.report()
    assert "order-changed" in {finding["code"] for finding in report["diagnostics"]}
