"""The official bindings and programs (mlc-chakra) as oracle: descriptors, bytes, jsonizer, visualizer."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2

import hub_core
from hub_core.chakra import record_bounds
from hub_core.chakra.trace_records import file_descriptor_set
from hub_core.plugin_api import Source, SourcePart
from hub_core.testing.samples import ring_all_reduce
from hub_core.trace_profile.formats import ChakraReadOptions, ChakraWriteOptions
from hub_core.trace_profile.read import chakra_algorithm
from hub_core.trace_profile.write import write

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def bindings() -> ModuleType:
    return pytest.importorskip(
        "chakra.schema.protobuf.et_def_pb2",
        reason="mlc-chakra, the official bindings, is not installed",
    )


def test_descriptors_are_equal(bindings: ModuleType) -> None:
    ours, theirs = file_descriptor_set().file[0], descriptor_pb2.FileDescriptorProto()
    bindings.DESCRIPTOR.CopyToProto(theirs)
    for message in (*ours.message_type, *theirs.message_type):
        for field in message.field:
            # Compilers differ in whether they spell the default JSON name.
            field.ClearField("json_name")
    assert ours.package == theirs.package
    assert list(ours.enum_type) == list(theirs.enum_type)
    assert {message.name: message for message in ours.message_type} == {
        message.name: message for message in theirs.message_type
    }


def test_our_files_parse_and_serialise_to_the_same_bytes(bindings: ModuleType) -> None:
    for artifact in write(ring_all_reduce(5), ChakraWriteOptions()).artifacts:
        content = artifact.content()
        starts, stops = record_bounds(content)
        for number, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            message = (bindings.Node if number else bindings.GlobalMetadata)()
            message.ParseFromString(content[start:stop])
            assert message.SerializeToString() == content[start:stop]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """The file of rank 0 of a ring all-reduce of 3 ranks."""
    for rank, artifact in enumerate(write(ring_all_reduce(3), ChakraWriteOptions()).artifacts):
        (tmp_path / f"ring.{rank}.et").write_bytes(artifact.content())
    return tmp_path / "ring.0.et"


def run_tool(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """Run a program of mlc-chakra in this process: its module, such as `jsonizer.jsonizer`."""
    module = pytest.importorskip(
        f"chakra.src.{name}", reason="mlc-chakra or what its program needs is not installed"
    )
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    module.main()


def test_chakra_reads_every_record(bindings: ModuleType, trace: Path) -> None:
    protolib = importlib.import_module("chakra.src.third_party.utils.protolib")
    content = protolib.openFileRd(str(trace))
    assert protolib.decodeMessage(content, bindings.GlobalMetadata())
    nodes, node = [], bindings.Node()
    while protolib.decodeMessage(content, node):
        nodes.append(node.id)
    content.close()
    assert nodes == list(range(len(record_bounds(trace.read_bytes())[0]) - 1))


def test_the_hub_reads_what_chakra_jsonizer_writes(
    bindings: ModuleType, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in sorted(trace.parent.glob("*.et")):
        target = file.with_suffix(".json")
        run_tool(
            *("jsonizer.jsonizer", monkeypatch),
            *("--input_filename", file, "--output_filename", target),
        )
    files = [path.read_bytes() for path in sorted(trace.parent.glob("*.json"))]
    parts = tuple(
        SourcePart(f"x.{rank}.json", partial(files.__getitem__, rank), rank) for rank in range(3)
    )
    algorithm = chakra_algorithm(Source("x", parts), ChakraReadOptions())
    assert ring_all_reduce(3).differences(algorithm) == []


def test_chakra_visualizer_draws_all_nodes_and_dependencies(
    bindings: ModuleType, trace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = tmp_path / "graph.graphml"
    run_tool(
        *("visualizer.visualizer", monkeypatch),
        *("--input_filename", trace, "--output_filename", target),
    )
    text = target.read_text()
    starts, stops = record_bounds(trace.read_bytes())
    edges = 0
    for start, stop in zip(starts[1:].tolist(), stops[1:].tolist(), strict=True):
        node = bindings.Node.FromString(trace.read_bytes()[start:stop])
        assert f'<node id="{node.id}">' in text
        edges += len({*node.data_deps, *node.ctrl_deps})
    assert text.count("<edge ") == edges > 0


def test_the_distribution_has_these_programs_and_neither_feeder_nor_replay(
    bindings: ModuleType,
) -> None:
    distribution = importlib.metadata.distribution("mlc-chakra")
    assert distribution.version == "1.0.0"
    assert {entry.name for entry in distribution.entry_points} == {
        *("chakra_converter", "chakra_generator", "chakra_jsonizer"),
        *("chakra_timeline_visualizer", "chakra_trace_link", "chakra_visualizer"),
    }
    files = [str(file) for file in distribution.files or ()]
    assert [file for file in files if "feeder" in file or file.endswith((".cpp", ".h"))] == []
    # The only file with this word in its name is an exception of trace_link.
    replay = [file.rpartition("/")[2] for file in files if "replay" in file]
    assert [file for file in replay if file.endswith(".py")] == ["et_replay_import_error.py"]


@pytest.mark.needs_plugins
def test_the_hub_reads_all_traces_that_chakra_generator_writes(
    bindings: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_tool("generator.generator", monkeypatch, "--num_npus", 2)
    names = sorted({file.name.removesuffix(".0.et") for file in tmp_path.glob("*.0.et")})
    assert len(names) == 14
    for name in names:
        job = hub_core.read_workload(
            tmp_path / f"{name}.0.et", format="chakra-workload", report=lambda finding: None
        )
        assert job.num_ranks == 2
        assert len(job.nodes.kind) >= 2
