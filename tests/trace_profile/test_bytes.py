"""Bytes on the wire: what we write is what protobuf would write, and the published example records are read."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings

from hub_core.chakra import (
    encode_metadata,
    message_class,
    record_bounds,
    varint,
)
from hub_core.model.algorithm import Algorithm
from hub_core.plugin_api import Source
from hub_core.testing.strategies import algorithms
from hub_core.trace_profile.formats import ChakraReadOptions, ChakraWriteOptions
from hub_core.trace_profile.read import chakra_algorithm
from hub_core.trace_profile.write import write

# The byte-exact records of the format notes: SEND and RECV of 131072 bytes, a COMP of 7 us, and single attributes.
SEND = bytes.fromhex(
    "12025330180552 0f0a09636f6d6d5f73697a6548808008 520c0a08636f6d6d5f6473743801 520c0a08636f6d6d5f7461673800"
)
RECV = bytes.fromhex(
    "080112025231 1806 2a0100 520f0a09636f6d6d5f73697a6548808008 520c0a08636f6d6d5f7372633807 520c0a08636f6d6d5f7461673800"
)
COMP = bytes.fromhex("08021202433218042201002a01013807")


def nodes_of(content: bytes) -> list[Any]:
    starts, stops = record_bounds(content)
    return [
        message_class("Node").FromString(content[a:b])
        for a, b in zip(starts[1:].tolist(), stops[1:].tolist(), strict=True)
    ]


def test_the_example_records_are_read() -> None:
    assert (len(SEND), len(RECV), len(COMP)) == (0x33, 0x38, 0x10)
    records = b"".join(
        varint(len(body)) + body
        for body in (
            SEND.replace(b"\x38\x01", b"\x38\x00"),
            RECV.replace(b"\x38\x07", b"\x38\x00"),
            COMP,
        )
    )
    steps = chakra_algorithm(
        Source.of_bytes("x.0.et", encode_metadata("0.0.4", ()) + records), ChakraReadOptions()
    ).steps
    assert steps.count.tolist() == [131072, 131072, 0]
    assert steps.duration_ns.tolist() == [-1, -1, 7000]
    assert (steps.data_indices.tolist(), steps.control_indices.tolist()) == ([0, 1], [0])


def test_numbers_of_metadata_that_json_lacks_are_left_out() -> None:
    metadata = message_class("GlobalMetadata")(version="0.0.4")
    for name, value in (("bad", math.nan), ("huge", -math.inf), ("good", 2.5)):
        metadata.attr.add(name=name, double_val=value)
    records = b"".join(
        varint(len(body)) + body
        for body in (
            metadata.SerializeToString(),
            SEND.replace(b"\x38\x01", b"\x38\x00"),
            RECV.replace(b"\x38\x07", b"\x38\x00"),
        )
    )
    algorithm = chakra_algorithm(Source.of_bytes("x.0.et", records), ChakraReadOptions())
    assert algorithm.extensions["chakra-source"] == {"metadata": {"good": 2.5, "version": "0.0.4"}}


@given(algorithms())
@settings(max_examples=100)
def test_every_record_is_what_protobuf_would_write(algorithm: Algorithm) -> None:
    for artifact in write(algorithm, ChakraWriteOptions()).artifacts:
        content = artifact.content()
        starts, stops = record_bounds(content)
        for number, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            message = message_class("Node" if number else "GlobalMetadata").FromString(
                content[start:stop]
            )
            assert message.SerializeToString() == content[start:stop]


@given(algorithms())
@settings(max_examples=50)
def test_ids_count_from_0_and_parents_stand_before_children(algorithm: Algorithm) -> None:
    for artifact in write(algorithm, ChakraWriteOptions()).artifacts:
        nodes = nodes_of(artifact.content())
        assert [node.id for node in nodes] == list(range(len(nodes)))
        for node in nodes:
            parents = [*node.data_deps, *node.ctrl_deps]
            assert all(parent < node.id for parent in parents)
            assert len(set(node.data_deps)) == len(node.data_deps)


@given(algorithms())
@settings(max_examples=50)
def test_flattened_traces_have_no_control_dependencies_and_no_double_ones(
    algorithm: Algorithm,
) -> None:
    for artifact in write(algorithm, ChakraWriteOptions(flatten=True)).artifacts:
        for node in nodes_of(artifact.content()):
            assert not node.ctrl_deps
            assert len(set(node.data_deps)) == len(node.data_deps)
