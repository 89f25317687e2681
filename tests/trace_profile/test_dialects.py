"""Traces of other tools: every integer kind, any field order, packed or not, bytes or chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hub_core.chakra import (
    INTEGER_KINDS,
    AttributeKind,
    MetadataEntry,
    encode_metadata,
    message_class,
    varint,
)
from hub_core.model import Buffer, CollectiveKind
from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import InputError, UsageError
from hub_core.model.kinds import StepKind
from hub_core.plugin_api import Source, SourcePart
from hub_core.testing.samples import ring_all_reduce
from hub_core.trace_profile.formats import ChakraReadOptions, ChakraWriteOptions
from hub_core.trace_profile.lowering import chakra_nodes
from hub_core.trace_profile.read import chakra_algorithm
from hub_core.trace_profile.write import write


def framed(body: bytes) -> bytes:
    return varint(len(body)) + body


def message(
    number: int, node_type: int, values: dict[str, int], kinds: dict[str, str] | None = None
) -> Any:
    node: Any = message_class("Node")(id=number, type=node_type)
    for name, value in values.items():
        setattr(node.attr.add(name=name), (kinds or {}).get(name, "int32_val"), value)
    return node


def send(
    number: int = 0,
    *,
    dst: int = 1,
    tag: int = 0,
    kinds: dict[str, str] | None = None,
    **sizes: int,
) -> Any:
    return message(number, 5, {"comm_dst": dst, "comm_tag": tag, **sizes}, kinds)


def receive(number: int = 0, *, src: int = 0, tag: int = 0, **sizes: int) -> Any:
    return message(number, 6, {"comm_src": src, "comm_tag": tag, **sizes})


def source(*ranks: list[Any], collective: str = "") -> Source:
    entries = [MetadataEntry("collective", AttributeKind.STRING, collective)] if collective else []
    start = encode_metadata("", entries)
    files = [
        start + b"".join(framed(node.SerializeToString()) for node in nodes) for nodes in ranks
    ]
    return Source(
        "x", tuple(SourcePart(f"x.{rank}.et", lambda c=c: c, rank) for rank, c in enumerate(files))
    )


def parsed(
    *ranks: list[Any], collective: str = "", options: ChakraReadOptions | None = None
) -> Algorithm:
    return chakra_algorithm(source(*ranks, collective=collective), options or ChakraReadOptions())


@pytest.mark.parametrize("kind", sorted(INTEGER_KINDS))
def test_sizes_of_every_integer_kind_are_understood(kind: AttributeKind) -> None:
    value = 1 if kind is AttributeKind.BOOL else 300
    algorithm = parsed(
        [send(comm_size=value, kinds={"comm_size": kind.field})], [receive(comm_size=value)]
    )
    assert algorithm.steps.count.tolist() == [value, value]


def test_a_trace_without_the_profile_is_timing_only() -> None:
    algorithm = parsed([send(comm_size=64)], [receive(comm_size=64), message(1, 4, {})])
    assert algorithm.collective.kind is CollectiveKind.CUSTOM
    assert algorithm.collective_bytes == algorithm.collective.unit_count == 64
    assert algorithm.steps.kind.tolist() == [StepKind.SEND, StepKind.RECV, StepKind.COMPUTE]
    assert set(algorithm.steps.src_buffer.tolist()) | set(algorithm.steps.dst_buffer.tolist()) == {
        Buffer.UNKNOWN
    }
    assert not algorithm.has_contents


def test_a_stated_size_makes_the_named_collective() -> None:
    algorithm = parsed(
        [send(comm_size=64)],
        [receive(comm_size=64)],
        collective="allreduce",
        options=ChakraReadOptions(size=128),
    )
    assert (algorithm.collective.kind, algorithm.collective.unit_count) == (
        CollectiveKind.ALL_REDUCE,
        128,
    )
    assert algorithm.steps.count.tolist() == [64, 64]


def test_chunks_become_units() -> None:
    chunks = {"msg_chunk_idx": 2, "msg_chunk_cnt": 2, "total_chunk_cnt": 4}
    algorithm = parsed([send(**chunks)], [receive(**chunks)], collective="allreduce")
    assert (algorithm.collective.kind, algorithm.collective.unit_count) == (
        CollectiveKind.ALL_REDUCE,
        4,
    )
    assert algorithm.collective_bytes is None
    assert chakra_nodes(algorithm, 1000).size.tolist() == [500, 500]


def test_chunks_of_different_totals_come_on_one_denominator() -> None:
    halves = {"msg_chunk_idx": 1, "msg_chunk_cnt": 1, "total_chunk_cnt": 2}
    thirds = {"msg_chunk_idx": 1, "msg_chunk_cnt": 1, "total_chunk_cnt": 3}
    algorithm = parsed(
        [send(**halves), send(1, tag=1, **thirds)], [receive(**halves), receive(1, tag=1, **thirds)]
    )
    assert algorithm.collective.unit_count == 6
    assert algorithm.steps.count.tolist() == [3, 2, 3, 2]
    assert algorithm.steps.src_offset.tolist()[:2] == [3, 2]


def test_all_gather_chunks_that_count_one_rank_are_scaled_to_the_whole() -> None:
    chunks = {"msg_chunk_idx": 1, "msg_chunk_cnt": 1, "total_chunk_cnt": 1}
    algorithm = parsed([send(**chunks)], [receive(**chunks)], collective="allgather")
    assert (algorithm.collective.kind, algorithm.collective.unit_count) == (
        CollectiveKind.ALL_GATHER,
        2,
    )


def test_chunks_of_minus_one_leave_the_size_in_bytes() -> None:
    none = {"msg_chunk_idx": -1, "msg_chunk_cnt": -1, "total_chunk_cnt": -1, "comm_size": 8}
    assert parsed([send(**none)], [receive(**none)]).collective_bytes == 8


def test_bytes_and_chunks_mixed_are_refused() -> None:
    chunks = {"msg_chunk_idx": 0, "msg_chunk_cnt": 1, "total_chunk_cnt": 2}
    with pytest.raises(InputError, match="others only in chunks"):
        parsed([send(**chunks)], [receive(comm_size=8)])


def test_tags_count_modulo_500_million() -> None:
    algorithm = parsed([send(tag=500_000_003, comm_size=8)], [receive(tag=3, comm_size=8)])
    assert algorithm.steps.channel.tolist() == [3, 3]
    assert chakra_nodes(algorithm, 8).tag.tolist() == [3, 3]


def test_fields_behind_attributes_and_unpacked_lists_are_read() -> None:
    dependent = send(7, comm_size=8).SerializeToString()
    late = (
        b"\x52" + dependent.split(b"\x52", 1)[1] + b"\x18\x05\x28\x03\x28\x04\x22\x01\x05\x08\x07"
    )
    start = encode_metadata("", ())
    parents = [message(number, 4, {}).SerializeToString() for number in (3, 4, 5)]
    other = start + framed(receive(comm_size=8).SerializeToString())
    content = start + b"".join(map(framed, (*parents, late)))
    parts = (SourcePart("x.0.et", lambda: content, 0), SourcePart("x.1.et", lambda: other, 1))
    steps = chakra_algorithm(Source("x", parts), ChakraReadOptions()).steps
    assert steps.data_indices.tolist() == [0, 1]
    assert steps.control_indices.tolist() == [2]
    assert steps.kind[3] == StepKind.SEND


def test_attributes_we_do_not_know_are_counted() -> None:
    odd = message(2, 4, {"vendor_x": 1})
    odd.attr.add(name="vendor_list").string_list.values.extend(["a", "b"])
    odd.attr.add(name="vendor_empty")
    algorithm = parsed([send(comm_size=8), odd], [receive(comm_size=8)])
    left_out = algorithm.extensions["chakra-source"]
    assert left_out == {"attributes left out": {"vendor_empty": 1, "vendor_list": 1, "vendor_x": 1}}


def test_a_stale_extension_is_refused() -> None:
    algorithm = ring_all_reduce(2)
    for extension in (
        [],
        {"tag": 1},
        {"ranks": {"9": {}}},
        {"ranks": {"0": {"ids": [1]}}},
        {"ranks": {"0": {"order": [0] * 5}}},
    ):
        stale = Algorithm(
            algorithm.collective,
            algorithm.steps,
            np.zeros(2, np.int64),
            extensions={"chakra": extension},
        )
        with pytest.raises(InputError, match="does not fit the steps"):
            chakra_nodes(stale, 1024)


def test_byte_sizes_cannot_be_written_as_chunks() -> None:
    algorithm = parsed([send(comm_size=64)], [receive(comm_size=64)])
    with pytest.raises(UsageError, match="symbolic"):
        write(algorithm, ChakraWriteOptions(dialect="symbolic"))


def test_sizes_beyond_2_to_62_bytes_are_refused() -> None:
    with pytest.raises(UsageError, match="choose a smaller size"):
        write(ring_all_reduce(2), ChakraWriteOptions(size=2**62 * 3))


def test_rounding_for_other_readers_is_a_note_and_no_loss() -> None:
    nodes = [send(comm_size=8), message(1, 4, {})]
    nodes[1].duration_micros = 3
    algorithm = parsed(nodes, [receive(comm_size=8)])
    even = write(algorithm, ChakraWriteOptions())
    assert (even.losses, even.notes) == ([], ())
    uneven = np.where(algorithm.steps.duration_ns >= 0, 3400, -1)
    steps = type(algorithm.steps).from_columns(
        2, {"rank": [0, 0, 1], "kind": [0, 5, 1], "peer": [1, -1, 0], "duration_ns": uneven}
    )
    result = write(
        Algorithm(algorithm.collective, steps, np.zeros(2, np.int64)), ChakraWriteOptions()
    )
    # The attribute duration_ns has the exact time, so that reading back shows no difference.
    assert result.losses == []
    assert result.notes[0].startswith("duration_micros is rounded")


def test_flattening_control_dependencies_is_a_loss() -> None:
    nodes = [send(comm_size=8), message(1, 4, {})]
    nodes[1].ctrl_deps.append(0)
    algorithm = parsed(nodes, [receive(comm_size=8)])
    assert [loss.feature for loss in write(algorithm, ChakraWriteOptions(flatten=True)).losses] == [
        "control dependencies"
    ]
    assert not write(ring_all_reduce(2), ChakraWriteOptions(flatten=True)).losses


def test_provenance_names_the_set_without_its_folder() -> None:
    files = source([send(comm_size=8)], [receive(comm_size=8)])
    origin = chakra_algorithm(Source("some/folder/x", files.parts), ChakraReadOptions()).provenance
    assert (origin.source_name, len(origin.source_sha256)) == ("x", 64)


def test_a_rank_without_messages_keeps_its_id() -> None:
    algorithm = parsed([send(comm_size=8)], [receive(comm_size=8)], [message(9, 4, {})])
    assert chakra_nodes(algorithm, 8).node_id.tolist() == [0, 0, 9]
