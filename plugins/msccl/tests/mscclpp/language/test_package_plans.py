"""Programs become the plans that the package makes of them (release 1f5f065d), rule by rule.

Expected operations follow the rules of the package's own post-processing (fusion, meetings,
numbering), and were compared with plans that it wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collhub_mscclpp.language import (
    AllGather,
    AllReduce,
    Buffer,
    BufferType,
    CollectiveProgram,
    LoopIterationContext,
    MemoryChannel,
    PortChannel,
    Rank,
    Semaphore,
    SwitchChannel,
    SyncType,
    TestCollective,
    ThreadBlockGroup,
)
from collhub_mscclpp.language.recorded import BaseBuffer

Document = dict[str, Any]


def gpu_of(program: CollectiveProgram, rank: int = 0) -> Document:
    gpu: Document = json.loads(program.to_json())["gpus"][rank]
    return gpu


def operations(program: CollectiveProgram, block: int = 0, rank: int = 0) -> list[Document]:
    ops: list[Document] = gpu_of(program, rank)["threadblocks"][block]["ops"]
    return ops


def describe(operation: Document) -> str:
    """Name, sources and destinations: `rre i0+r0:1>i0`; `r0:1` is chunk 1 of remote buffer 0."""

    def place(entry: Document) -> str:
        where = f"r{entry['buffer_id']}:" if "buffer_id" in entry else str(entry["type"])
        return f"{where}{entry['index']}"

    if "src_buff" not in operation:
        return str(operation["name"])
    sides = ("+".join(map(place, operation[key])) for key in ("src_buff", "dst_buff"))
    return f"{operation['name']} {'>'.join(sides)}"


def record(
    write: Callable[[Rank, MemoryChannel, PortChannel, Buffer], None], **options: Any
) -> CollectiveProgram:
    """The program in which rank 0 does what `write` records; rank 1 does nothing."""
    program = CollectiveProgram("p", TestCollective(2, 4, 4), 2, **options)
    with program:
        scratch = Buffer(0, 4)
        Buffer(1, 4)
        write(Rank(0), MemoryChannel(1, 0), PortChannel(1, 0), scratch)
    return program


def there(name: str = "output") -> Any:
    """A buffer of rank 1."""
    return getattr(Rank(1), f"get_{name}_buffer")()


def chain_of_read_reductions(rank: Rank, memory: MemoryChannel, _: Any, __: Any) -> None:
    own = rank.get_input_buffer()[0:1]
    for index in range(3):
        memory.reduce(own, [there("input")[index : index + 1]], tb=0)
    for index in range(2):
        memory.put(there()[index : index + 1], own, tb=0)


def sums_elsewhere(rank: Rank, _: Any, __: Any, ___: Any) -> None:
    given, target = rank.get_input_buffer(), rank.get_output_buffer()[3:4]
    rank.reduce(given[0:1], [given[1:2]], tb=0, dst_chunk=target)
    rank.reduce(given[0:1], [given[2:3]], tb=0, dst_chunk=target)


def gets(rank: Rank, memory: MemoryChannel, _: Any, __: Any) -> None:
    for index in range(3):
        memory.get(rank.get_input_buffer()[index : index + 1], there()[index : index + 1], tb=0)


def sums_of_packets(rank: Rank, memory: MemoryChannel, _: Any, scratch: Buffer) -> None:
    own = rank.get_input_buffer()[0:1]
    rank.reduce(own, [scratch[0:1]], tb=0, packet=True)
    rank.reduce(own, [scratch[1:2]], tb=0, packet=True)
    memory.put_packets(_remote_scratch()[0:1], own, tb=0)


def packet_copy_then_put(rank: Rank, memory: MemoryChannel, _: Any, scratch: Buffer) -> None:
    own = rank.get_input_buffer()[0:1]
    rank.reduce(own, [scratch[0:1]], tb=0, packet=True)
    rank.copy_packets(scratch[1:2], own, tb=0)
    memory.put_packets(_remote_scratch()[0:1], own, tb=0)


def packet_copy_then_forward(rank: Rank, memory: MemoryChannel, _: Any, scratch: Buffer) -> None:
    own = rank.get_input_buffer()[0:1]
    rank.reduce(own, [scratch[0:1]], tb=0, packet=True)
    rank.copy_packets(scratch[1:2], own, tb=0)
    memory.read_put_packets(_remote_scratch()[0:1], scratch[1:2], tb=0)


def packet_copy_then_proxy(rank: Rank, _: Any, port: PortChannel, scratch: Buffer) -> None:
    own = rank.get_input_buffer()[0:1]
    rank.reduce(own, [scratch[0:1]], tb=0, packet=True)
    rank.copy_packets(scratch[1:2], own, tb=0)
    port.read_put_packets(_remote_scratch()[0:1], scratch[1:2], tb=0)


def forwards(_: Any, memory: MemoryChannel, __: Any, scratch: Buffer) -> None:
    memory.read_put_packets(_remote_scratch()[0:1], scratch[0:1], tb=0)
    memory.read_put_packets(_remote_scratch()[1:2], scratch[0:1], tb=0)
    memory.read_put_packets(_remote_scratch()[2:3], scratch[1:2], tb=0)


def puts_with_signal(rank: Rank, _: Any, port: PortChannel, __: Any) -> None:
    for index in range(2):
        source = rank.get_input_buffer()[index : index + 1]
        port.put_with_signal(there()[index : index + 1], source, tb=0)


def _remote_scratch() -> Any:
    """The scratch that `record` allocates on rank 1."""
    return BaseBuffer(1, BufferType.scratch, 0, 4)


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (chain_of_read_reductions, ["rres i0+r0:0+r0:1+r0:2>i0+r1:0+r1:1"]),
        (sums_elsewhere, ["re i0+i1+i2>o3"]),
        (gets, ["get r0:0+r0:1+r0:2>i0+i1+i2"]),
        (sums_of_packets, ["respkt i0+s0+s1>i0+r0:0"]),
        (packet_copy_then_put, ["recspkt i0+s0>i0+s1+r0:0"]),
        (packet_copy_then_forward, ["recspkt i0+s0>i0+s1+r0:0"]),
        # A proxy cannot send what is still in the threads.
        (packet_copy_then_proxy, ["recpkt i0+s0>i0+s1", "rppkt s1>r0:0"]),
        (forwards, ["rppkt s0>r0:0+r0:1", "rppkt s1>r0:2"]),
        (puts_with_signal, ["pws i0+i1>r0:0+r0:1"]),
    ],
)
def test_neighbours_become_one_operation(write: Any, expected: list[str]) -> None:
    assert [describe(one) for one in operations(record(write))] == expected


@pytest.mark.parametrize("write", [chain_of_read_reductions, gets, forwards, puts_with_signal])
def test_without_fusion_operations_stay_single(write: Any) -> None:
    single = [one for one in operations(record(write, instr_fusion=False)) if one["name"] != "nop"]
    assert len(single) > len(operations(record(write)))
    assert all(len(one["dst_buff"]) == 1 for one in single)


def test_fused_operations_name_the_channel_of_each_range() -> None:
    (get,) = operations(record(gets))
    (put,) = operations(record(puts_with_signal))
    assert (get["channel_ids"], put["channel_ids"]) == ([0, 0, 0], [0, 0])


def test_sums_that_read_each_other_stay_apart() -> None:
    def write(rank: Rank, _: Any, __: Any, ___: Any) -> None:
        given, made = rank.get_input_buffer(), rank.get_output_buffer()
        rank.reduce(given[0:1], [given[1:2]], tb=0, dst_chunk=made[0:1])
        rank.reduce(given[0:1], [made[0:1]], tb=0, dst_chunk=made[0:1])

    names = [one["name"] for one in operations(record(write))]
    assert names == ["re", "nop", "re"]


def test_synchronisations_become_one_operation() -> None:
    program = CollectiveProgram("p", TestCollective(2, 1, 1), 2)
    with program:
        ports = [PortChannel(1, 0) for _ in range(2)]
        first, second = Semaphore(0, 0), Semaphore(0, 0)
        for port in ports:
            port.flush(tb=0)
        for semaphore in (first, second):
            semaphore.release(tb=1)
        for port in ports:
            port.flush(tb=2, data_sync=SyncType.before)
            port.flush(tb=2, data_sync=SyncType.after)
    assert operations(program, 0) == [
        {"name": "nop"},
        {"name": "flush", "channel_ids": [0, 1], "channel_type": "port"},
        {"name": "nop"},
    ]
    assert operations(program, 1)[1] == {"name": "sem_release", "semaphore_ids": [0, 1]}
    # Both meetings of what becomes one operation stay.
    assert [one["name"] for one in operations(program, 2)] == ["nop", "flush", "nop"]


def test_one_meeting_stays_between_two_synchronisations() -> None:
    program = CollectiveProgram("p", TestCollective(2, 1, 1), 2)
    with program:
        memory = MemoryChannel(1, 0)
        memory.signal(tb=0, relaxed=True)
        memory.wait(tb=0, relaxed=True)
        Rank(0).barrier([0])
        memory.signal(tb=0, data_sync=SyncType.none)
        Rank(0).barrier([0, 1])
        memory.wait(tb=0)
    names = [one["name"] for one in operations(program)]
    assert names == [
        "nop",
        "rlxsignal",
        "nop",
        "rlxwait",
        "nop",
        "signal",
        "barrier",
        "wait",
        "nop",
    ]


def test_in_place_programs_read_the_buffer_that_they_name() -> None:
    """The input of an in-place all-gather is `i`, although it is a part of `o`."""
    program = CollectiveProgram("p", AllGather(2, 1, True), 2)
    with program:
        scratch = Buffer(0, 1)
        Rank(0).copy_packets(scratch[0:1], Rank(0).get_input_buffer()[0:1], tb=0)
        Rank(0).copy(Rank(0).get_output_buffer()[0:1], Rank(0).get_output_buffer()[1:2], tb=1)
        Rank(0).copy(Rank(0).get_output_buffer()[1:2], Rank(0).get_input_buffer()[0:1], tb=1)
    assert describe(operations(program, 0)[0]) == "cpkt i0>s0"
    # Input chunk 0 of rank 0 is output chunk 0, which the first copy writes.
    assert [describe(one) for one in operations(program, 1)] == ["copy o1>o0", "nop", "copy i0>o1"]


def test_threads_meet_before_a_pipeline_that_depends_on_them() -> None:
    program = CollectiveProgram("p", TestCollective(1, 2, 2), 1)
    with program:
        given, made = Rank(0).get_input_buffer(), Rank(0).get_output_buffer()
        Rank(0).copy(made[0:1], given[0:1], tb=0)
        with LoopIterationContext(1 << 20, 1):
            Rank(0).copy(given[1:2], made[0:1], tb=0)
    assert [one["name"] for one in operations(program)] == ["copy", "nop", "pipeline"]


def test_packets_need_no_meeting() -> None:
    """A packet is read when its flag is there, so a packet copy and its reader need no nop."""

    def write(rank: Rank, memory: MemoryChannel, _: Any, scratch: Buffer) -> None:
        rank.copy_packets(scratch[0:1], rank.get_input_buffer()[0:1], tb=0)
        memory.read_put_packets(_remote_scratch()[0:1], scratch[0:1], tb=0)
        rank.unpack_packets(rank.get_output_buffer()[0:1], scratch[0:1], tb=0)

    assert [one["name"] for one in operations(record(write))] == ["cpkt", "rppkt", "upkt"]


def test_numbers_follow_the_order_of_the_program() -> None:
    """Remote buffers and barriers are numbered as they are first named, not by thread block."""
    program = CollectiveProgram("p", TestCollective(3, 1, 1), 3)
    with program:
        far, near = PortChannel(2, 0), MemoryChannel(1, 0)
        own = Rank(0).get_input_buffer()[0:1]
        far.put(Rank(2).get_output_buffer()[0:1], own, tb=1)
        near.put(Rank(1).get_output_buffer()[0:1], own, tb=0)
        MemoryChannel(2, 0).put(Rank(2).get_output_buffer()[0:1], own, tb=0)
        Rank(0).barrier([1, 2])
        Rank(0).barrier([0, 1])
    gpu = gpu_of(program)
    assert gpu["remote_buffers"] == [
        {"rank": 2, "type": "o", "access_channel_types": ["port", "memory"]},
        {"rank": 1, "type": "o", "access_channel_types": ["memory"]},
    ]
    assert [one["channel_type"] for one in gpu["channels"]] == ["port", "memory"]
    first, second = gpu["threadblocks"][:2]
    assert first["remote_buffer_refs"][0]["remote_buffer_ids"] == [1, 0]
    assert [one["barrier_id"] for one in second["ops"] if one["name"] == "barrier"] == [0, 1]


def test_a_channel_of_a_rank_to_itself_accesses_a_remote_buffer() -> None:
    """Degenerate, and refused when the plan is read, but so the package writes it."""
    program = CollectiveProgram("p", TestCollective(1, 2, 2), 1)
    with program:
        given, made = Rank(0).get_input_buffer(), Rank(0).get_output_buffer()
        MemoryChannel(0, 0).put(made[0:1], given[0:1], tb=0)
        Rank(0).copy(made[1:2], made[0:1], tb=0)
    # Signals would have to order the put and the copy.
    assert [describe(one) for one in operations(program)] == ["put i0>r0:0", "copy o0>o1"]


def test_chunks_of_other_ranks_than_the_ends_are_refused() -> None:
    with CollectiveProgram("p", TestCollective(2, 2, 2), 2):
        channel, own = MemoryChannel(1, 0), Rank(0).get_input_buffer()[0:1]
        with pytest.raises(RuntimeError, match="a remote chunk of rank 0 on a channel to rank 1"):
            channel.put(own, own, tb=0)
        with pytest.raises(RuntimeError, match="a local chunk of rank 1 on a channel from rank 0"):
            channel.reduce(there()[0:1], [there()[0:1]], tb=0)
        with pytest.raises(RuntimeError, match=r"put of chunks of sizes \[1, 2\]"):
            channel.put(there()[0:2], own, tb=0)


@pytest.mark.parametrize("instances", [1, 2])
def test_switch_channels_are_listed_one_by_one(instances: int) -> None:
    program = CollectiveProgram("p", AllReduce(2, 1, True), 2, instances)
    with program:
        channel = SwitchChannel([0, 1], BufferType.input).at_rank(0)
        own = Rank(0).get_input_buffer()[0:1]
        channel.reduce(0, 1, own, tb=0)
        channel.broadcast(own, 0, 1, tb=0)
        channel.reduce(0, 1, own, tb=1)
    group = {"size": 2, "ranks": [0, 1]}
    one = {"channel_type": "switch", "buffer_type": "i", "rank_groups": [group]}
    assert gpu_of(program)["channels"] == [one] * instances
    (fused,) = operations(program, 0)
    assert (fused["name"], fused["reduce_op"]) == ("glres", "sum")
    # The package writes a sum that is not broadcast, although executors do not know it.
    (alone,) = operations(program, instances)
    assert (alone["name"], alone["buffer_offset"], alone["dst_chunk"]["rank"]) == ("glre", 0, 0)


def test_members_are_those_of_the_package() -> None:
    """Memory puts and sums name no channels; sums name their operator; groups of one are kept."""
    program = record(lambda *_: None)
    with program:
        group = ThreadBlockGroup([0])
        Rank(0).copy(
            Rank(0).get_output_buffer()[0:1], Rank(0).get_input_buffer()[0:1], tb_group=group
        )
        memory = MemoryChannel(1, 0)
        memory.put(there()[0:1], Rank(0).get_input_buffer()[0:1], tb=1)
        memory.reduce(Rank(0).get_input_buffer()[1:2], [there()[1:2]], tb=2)
    members = [list(operations(program, block)[0]) for block in range(3)]
    assert members == [
        ["name", "src_buff", "dst_buff", "tbg_info"],
        ["name", "src_buff", "dst_buff", "channel_type"],
        ["name", "src_buff", "dst_buff", "channel_type", "reduce_op"],
    ]


def read_and_put_all_reduce(ranks: int) -> CollectiveProgram:
    """Every block of a rank sums one chunk of all ranks where it is stored, and puts the sum."""
    blocks = 8
    program = CollectiveProgram("all_reduce", AllReduce(ranks, blocks, True), ranks)
    with program:
        channels = {
            (here, block): [MemoryChannel(peer, here) for peer in range(ranks) if peer != here]
            for here in range(ranks)
            for block in range(blocks)
        }
        for (here, block), own in channels.items():
            place = slice(here * blocks + block, here * blocks + block + 1)
            part = Rank(here).get_input_buffer()[place]
            parts = [Rank(channel.dst_rank).get_input_buffer()[place] for channel in own]
            for channel in own:
                channel.signal(block, relaxed=True)
            for channel in own:
                channel.wait(block, data_sync=SyncType.after, relaxed=True)
            for channel, remote in zip(own, parts, strict=True):
                channel.reduce(part, [remote], block)
            for channel, remote in zip(own, parts, strict=True):
                channel.put(remote, part, block)
            for channel in own:
                channel.signal(block, data_sync=SyncType.before)
            for channel in own:
                channel.wait(block)
    return program


def forwarded_all_gather(ranks: int) -> CollectiveProgram:
    """Every rank forwards a packet copy of its input to all others, which unpack it."""
    program = CollectiveProgram("all_gather", AllGather(ranks, 1, True), ranks, protocol="LL")
    with program:
        scratch = [Buffer(rank, 2 * ranks) for rank in range(ranks)]
        for rank in range(ranks):
            copied = scratch[rank][ranks + rank : ranks + rank + 1]
            peers = [(rank + step) % ranks for step in range(1, ranks)]
            Rank(rank).copy_packets(copied, Rank(rank).get_input_buffer()[0:1], tb=0)
            for peer in peers:
                channel = MemoryChannel(peer, rank)
                channel.read_put_packets(scratch[peer][rank : rank + 1], copied, tb=0)
            for peer in peers:
                part = Rank(rank).get_output_buffer()[peer : peer + 1]
                Rank(rank).unpack_packets(part, scratch[rank][peer : peer + 1], tb=0)
    return program


def sum_of_the_switch(_: int) -> CollectiveProgram:
    """A sum that is not broadcast."""
    program = CollectiveProgram("switch_sum", TestCollective(3, 1, 1), 3)
    with program:
        target = Buffer(0, 1)[0:1]
        SwitchChannel([0, 1], BufferType.input).at_rank(0).reduce(0, 1, target, tb=0)
    return program


@pytest.mark.parametrize(
    ("write", "ranks", "file"),
    [
        (read_and_put_all_reduce, 2, "allreduce_g2.json"),
        (read_and_put_all_reduce, 4, "allreduce_g4.json"),
        (forwarded_all_gather, 8, "allgather_pkt_rppkt_g8.json"),
        (sum_of_the_switch, 3, "unit_switch_reduce.json"),
    ],
)
def test_plan_is_that_of_the_package(
    corpus: Path, write: Callable[[int], CollectiveProgram], ranks: int, file: str
) -> None:
    expected = json.loads((corpus / "mscclpp" / file).read_text())["gpus"]
    assert json.loads(write(ranks).to_json())["gpus"] == expected
