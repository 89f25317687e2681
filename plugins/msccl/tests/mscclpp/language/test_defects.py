"""What the package of the language gets wrong is told where a program meets it."""

from __future__ import annotations

import pytest
from collhub_mscclpp.language import (
    AllReduce,
    Buffer,
    BufferType,
    CollectiveProgram,
    MemoryChannel,
    Rank,
    ReduceOperationType,
    ReplicationPolicy,
    SwitchChannel,
    SyncType,
    TestCollective,
)
from collhub_mscclpp.language.child import find_defects
from collhub_mscclpp.reading.read import read_program

from hub_core.model import Diagnostic
from hub_core.plugin_api import Source, SourcePart
from hub_core.sandbox import SourceProgramOptions


def puts(program: CollectiveProgram) -> None:
    """Two puts of two buffers."""
    with program:
        channel = MemoryChannel(1, 0)
        made = Rank(1).get_output_buffer()
        channel.put(made[0:1], Rank(0).get_input_buffer()[0:1], tb=0)
        channel.put(made[1:2], Rank(0).get_output_buffer()[1:2], tb=0)


def packets(program: CollectiveProgram) -> None:
    """Packets are added to what a copy wrote, and the sum is copied as packets."""
    with program:
        rank, scratch = Rank(0), Buffer(0, 4)
        given, made = rank.get_input_buffer(), rank.get_output_buffer()
        rank.copy(made[0:1], given[0:1], tb=0)
        rank.reduce(made[0:1], [scratch[0:1]], tb=0, dst_chunk=given[1:2], packet=True)
        rank.copy_packets(scratch[1:2], given[1:2], tb=0)


def barriers(program: CollectiveProgram, count: int = 1) -> CollectiveProgram:
    """Barriers of blocks 0 and each of some others."""
    with program:
        for other in range(1, count + 1):
            Rank(0).barrier([0, other])
    return program


def test_puts_of_two_buffers_are_told() -> None:
    program = CollectiveProgram("p", TestCollective(2, 2, 2), 2)
    puts(program)
    assert list(find_defects(program)) == [
        "rank 0, thread block 0: neighbouring put of buffers i, o become one there, which copies "
        "all from i: separate them by another operation, or set instr_fusion=False"
    ]


def test_without_fusion_nothing_is_told() -> None:
    program = CollectiveProgram("p", TestCollective(2, 2, 2), 2, instr_fusion=False)
    puts(program)
    assert list(find_defects(program)) == []


def test_operations_beyond_the_tables_are_told() -> None:
    program = CollectiveProgram("p", TestCollective(11, 1, 1), 11)
    with program:
        for there in range(1, 11):
            MemoryChannel(there, 0).signal(tb=0, data_sync=SyncType.none)
    (told,) = find_defects(program)
    assert (
        "one signal of 10 channels, 0 ranges and 0 semaphores there, and executors have room for 8"
        in told
    )


@pytest.mark.parametrize(("instances", "expected"), [(1, 1), (2, 2)])
def test_sums_of_packets_are_told(instances: int, expected: int) -> None:
    program = CollectiveProgram("p", TestCollective(1, 2, 2), 1, instances, protocol="LL")
    packets(program)
    told = list(find_defects(program))
    assert len(told) == expected
    assert "threads do not meet between copy and recpkt there" in told[-1]
    assert all("instances of recpkt write one copy" in one for one in told[:-1])


def test_sum_of_the_switch_elsewhere_is_told() -> None:
    program = CollectiveProgram("p", AllReduce(2, 1, True), 2)
    with program:
        channel = SwitchChannel([0, 1], BufferType.input).at_rank(0)
        made = Rank(0).get_input_buffer()[0:1]
        channel.reduce(0, 1, made, tb=0)
        channel.broadcast(made, 1, 1, tb=0)
    (told,) = find_defects(program)
    assert "a sum of chunk 0 that is broadcast to chunk 1 is stored at 0 there" in told


def test_sums_that_read_each_other_are_reported() -> None:
    program = CollectiveProgram("p", TestCollective(1, 3, 2), 1)
    with program:
        rank = Rank(0)
        given, made = rank.get_input_buffer(), rank.get_output_buffer()
        rank.reduce(given[0:1], [given[1:2]], tb=0, dst_chunk=made[0:1])
        rank.reduce(given[0:1], [made[0:1]], tb=0, dst_chunk=made[0:1])
    (told,) = find_defects(program)
    assert "two neighbouring re become one there, which reads a chunk before" in told


def test_forgotten_dependency_of_the_package_is_reported() -> None:
    """The package keeps the last access to a chunk only: the put before a sum is forgotten."""
    program = CollectiveProgram("p", TestCollective(2, 3, 2), 2)
    with program:
        given, there = Rank(0).get_input_buffer(), Rank(1).get_output_buffer()
        MemoryChannel(1, 0).put(there[0:1], given[0:1], tb=0)
        Rank(0).reduce(given[0:1], [given[1:2]], tb=0)
    (told,) = find_defects(program)
    assert "threads do not meet between put and re there" in told


def test_operator_that_executors_ignore_is_reported() -> None:
    program = CollectiveProgram("p", TestCollective(1, 3, 2), 1)
    with program:
        given = Rank(0).get_input_buffer()
        Rank(0).reduce(given[0:1], [given[1:2]], tb=0, reduce_op=ReduceOperationType.max)
    (told,) = find_defects(program)
    assert "re names the operator max, and executors always add" in told


def test_barriers_behind_another_program_are_told() -> None:
    first = barriers(CollectiveProgram("a", TestCollective(1, 1, 1), 1), 15)
    second = barriers(CollectiveProgram("b", TestCollective(1, 1, 1), 1), 2)
    assert list(find_defects(first)) == []
    (told,) = find_defects(second, [first])
    assert "numbered from 15 on there" in told
    assert "beyond the 16 of the executor" in told


def test_policy_that_always_fails_is_told() -> None:
    given = {"replication_policy": ReplicationPolicy.none}
    (told,) = find_defects(CollectiveProgram("p", TestCollective(1, 1, 1), 1, **given))
    assert told.startswith("replication_policy none always fails with a TypeError there")


def test_reader_warns_at_the_line_of_the_program() -> None:
    text = """from mscclpp.language import *
with CollectiveProgram("p", TestCollective(2, 2, 2), 2):
    channel = MemoryChannel(1, 0)
    made = Rank(1).get_output_buffer()
    channel.put(made[0:1], Rank(0).get_input_buffer()[0:1], tb=0)
    channel.put(made[1:2], Rank(0).get_output_buffer()[1:2], tb=0)
    channel.signal(tb=0)
    MemoryChannel(0, 1).wait(tb=0)
    print(JSON())
"""
    found: list[Diagnostic] = []
    part = SourcePart("program.py", text.encode)
    read_program(Source("program.py", (part,), found.append), SourceProgramOptions())
    (told,) = [one for one in found if one.code == "package-defect"]
    assert told.location is not None
    assert told.location.line == 2
    assert "the package mscclpp makes another plan of it: rank 0, thread block 0" in told.message
