"""The shipped descriptor set is what the .proto file says, and what the official bindings say."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from hub_core.chakra import AttributeKind, NodeType, message_class
from hub_core.chakra.trace_records import file_descriptor_set


@pytest.mark.oracle
def test_the_descriptor_set_is_compiled_from_the_proto_file(tmp_path: Path) -> None:
    protoc = pytest.importorskip(
        "grpc_tools.protoc", reason="grpcio-tools, which compiles .proto files, is not installed"
    )
    out = tmp_path / "compiled.binpb"
    with as_file(files("hub_core.chakra").joinpath("schema", "chakra_et.proto")) as source:
        assert (
            protoc.main(
                ["protoc", f"-I{source.parent}", f"--descriptor_set_out={out}", source.name]
            )
            == 0
        )
    assert descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()) == file_descriptor_set()


def test_the_messages_stay_out_of_the_shared_pool() -> None:
    message_class("Node")
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("ChakraProtoMsg.NotThere")
    assert message_class("Node").DESCRIPTOR.file.pool is not descriptor_pool.Default()


def test_our_enumerations_are_those_of_the_schema() -> None:
    node_types = message_class("Node").DESCRIPTOR.file.enum_types_by_name["NodeType"]
    assert {f"{kind.name}_NODE": kind.value for kind in NodeType} == {
        v.name: v.number for v in node_types.values
    }
    fields = message_class("AttributeProto").DESCRIPTOR.oneofs_by_name["value"].fields
    assert {kind.field: kind.value for kind in AttributeKind} == {
        field.name: field.number for field in fields
    }
