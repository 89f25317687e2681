"""The official bindings (mlc-chakra) as oracle: equal descriptors, and our bytes through their classes."""

from __future__ import annotations

from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2

from hub_core.chakra import record_bounds
from hub_core.chakra.trace_records import file_descriptor_set
from hub_core.testing.samples import ring_all_reduce
from hub_core.trace_profile.formats import ChakraWriteOptions
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
