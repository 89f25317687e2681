"""Programs of mscclpp.language: what they record becomes a plan, which is checked when read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.language import (
    AlgoSpec,
    AllGather,
    AllReduce,
    AllToAll,
    Buffer,
    BufferType,
    Chunk,
    Collective,
    CollectiveProgram,
    LoopIterationContext,
    MemoryChannel,
    PortChannel,
    Rank,
    ReduceScatter,
    ReplicationPolicy,
    Semaphore,
    SendRecv,
    SwitchChannel,
    SyncType,
    TestCollective,
    ThreadBlockGroup,
)
from collhub_mscclpp.language.child import _PlanLanguage, has_package
from collhub_mscclpp.reading.read import list_program_samples, read_program
from collhub_mscclpp.reading.read_plan import parse_plan

from hub_core.model import Algorithm, CollectiveKind, Diagnostic, InputError, UsageError
from hub_core.plugin_api import Source, SourcePart
from hub_core.sandbox import SourceProgramOptions
from hub_core.verification import verify

START = "from mscclpp.language.program import *\nfrom mscclpp.language.channel import *\n"


def read_text(text: str, **given: str) -> tuple[Algorithm, list[str]]:
    found: list[Diagnostic] = []
    part = SourcePart("program.py", text.encode)
    algorithm = read_program(
        Source("program.py", (part,), found.append), SourceProgramOptions(**given)
    )
    return algorithm, list(map(str, found))


def verdicts(program: CollectiveProgram) -> tuple[str, str, list[str]]:
    report = check_plan(parse_plan(program.to_json().encode(), "program.json"))
    return report.verdict, report.verdict_relaunch, [str(one) for one in report.diagnostics]


def names(program: CollectiveProgram, rank: int = 0, block: int = 0) -> list[str]:
    document: dict[str, Any] = json.loads(program.to_json())
    return [one["name"] for one in document["gpus"][rank]["threadblocks"][block]["ops"]]


def exchange(program: CollectiveProgram, kind: type = MemoryChannel) -> None:
    """Both of two ranks put their part to the other one, by handshake and signal."""
    with program:
        for rank, channel in enumerate([kind(1, 0), kind(0, 1)]):
            channel.signal(tb=0, relaxed=True)
            channel.wait(tb=0, relaxed=True)
            part = Rank(rank).get_output_buffer()[rank : rank + 1]
            there = Rank(1 - rank).get_output_buffer()[rank : rank + 1]
            channel.put(there, part, tb=0)
            channel.signal(tb=0)
            channel.wait(tb=0)


def packets(program: CollectiveProgram) -> None:
    """An all-reduce of two ranks by packets."""
    with program:
        scratch = [Buffer(rank, 2) for rank in range(2)]
        for rank, channel in enumerate([MemoryChannel(1, 0), MemoryChannel(0, 1)]):
            own = Rank(rank).get_input_buffer()[0:2]
            channel.put_packets(scratch[1 - rank][0:2], own, tb=0)
            Rank(rank).reduce(own, [scratch[rank][0:2]], tb=0, packet=True)


@pytest.mark.parametrize("instances", [1, 2, 3])
def test_instances_of_a_program_run_rightly(instances: int) -> None:
    program = CollectiveProgram("exchange", AllGather(2, 1, True), 2, instances=instances)
    exchange(program)
    assert verdicts(program) == ("ok", "ok", [])


def test_program_with_port_channels_runs_rightly() -> None:
    program = CollectiveProgram("exchange", AllGather(2, 1, True), 2)
    exchange(program, PortChannel)
    assert verdicts(program)[:2] == ("ok", "ok")


@pytest.mark.parametrize("instances", [1, 2])
def test_packets_reduce(instances: int) -> None:
    collective = AllReduce(2, 1, True)
    program = CollectiveProgram(
        "packets", collective, 2, instances, "LL", use_double_scratch_buffer=True
    )
    packets(program)
    assert verdicts(program) == ("ok", "ok", [])


def test_program_of_a_specification_is_that_of_its_arguments() -> None:
    collective = AllGather(2, 1, True)
    one = CollectiveProgram("exchange", collective, 2, protocol="LL")
    other = CollectiveProgram.from_spec(AlgoSpec("exchange", collective, 2, protocol="LL"))
    exchange(one)
    exchange(other)
    assert one.to_json() == other.to_json()


def test_threads_meet_between_operations_that_depend_on_each_other() -> None:
    program = CollectiveProgram("copies", TestCollective(1, 2, 2), 1)
    with program:
        given, made = Rank(0).get_input_buffer(), Rank(0).get_output_buffer()
        Rank(0).copy(made[0:1], given[0:1], tb=0)
        Rank(0).copy(made[1:2], given[1:2], tb=0)
        Rank(0).copy(given[0:1], made[1:2], tb=0)
    assert names(program) == ["copy", "copy", "nop", "copy"]


@pytest.mark.parametrize(
    ("sync", "expected"),
    [
        (SyncType.none, ["copy", "sem_release", "copy"]),
        (SyncType.before, ["copy", "nop", "sem_release", "copy"]),
        (SyncType.after, ["copy", "sem_release", "nop", "copy"]),
        (SyncType.both, ["copy", "nop", "sem_release", "nop", "copy"]),
    ],
)
def test_threads_meet_around_synchronisation_as_asked(sync: SyncType, expected: list[str]) -> None:
    program = CollectiveProgram("release", TestCollective(1, 2, 2), 1)
    with program:
        given, made = Rank(0).get_input_buffer(), Rank(0).get_output_buffer()
        semaphore = Semaphore(0, 0)
        Rank(0).copy(made[0:1], given[0:1], tb=0)
        semaphore.release(tb=0, data_sync=sync)
        Rank(0).copy(made[1:2], given[1:2], tb=0)
    assert names(program) == expected


def test_group_divides_an_operation_among_its_thread_blocks() -> None:
    program = CollectiveProgram("group", TestCollective(1, 1, 1), 1)
    with program:
        given, made = Rank(0).get_input_buffer(), Rank(0).get_output_buffer()
        Rank(0).copy(made[0:1], given[0:1], tb_group=ThreadBlockGroup([0, 1]))
        Rank(0).barrier([0, 1])
    blocks = json.loads(program.to_json())["gpus"][0]["threadblocks"]
    parts = [block["ops"][0]["tbg_info"] for block in blocks]
    assert parts == [{"tb_id": 0, "tbg_size": 2}, {"tb_id": 1, "tbg_size": 2}]
    assert [block["ops"][1]["barrier_id"] for block in blocks] == [0, 0]


def test_loop_records_a_pipeline() -> None:
    program = CollectiveProgram("loop", TestCollective(1, 1, 1), 1)
    with program, LoopIterationContext(1 << 20, 1):
        given, made = Rank(0).get_input_buffer(), Rank(0).get_output_buffer()
        Rank(0).copy(made[0:1], given[0:1], tb=0)
    (operation,) = json.loads(program.to_json())["gpus"][0]["threadblocks"][0]["ops"]
    assert operation["iter_context"] == {"unit_size": 1 << 20, "num_chunks": 1}
    assert [one["name"] for one in operation["ops"]] == ["copy"]


@pytest.mark.parametrize(
    ("collective", "name", "counts"),
    [
        (AllGather(4, 2), "allgather", (2, 8)),
        (AllReduce(4, 2), "allreduce", (8, 8)),
        (ReduceScatter(4, 2), "reducescatter", (8, 2)),
        (AllToAll(4, 2), "alltoall", (8, 8)),
        (SendRecv(4, 2), "sendrecv", (2, 2)),
    ],
)
def test_collectives_have_the_chunks_of_the_language(
    collective: Collective, name: str, counts: tuple[int, int]
) -> None:
    assert (collective.name, collective.counts()) == (name, counts)


def test_chunk_outside_its_buffer_is_refused() -> None:
    with CollectiveProgram("small", AllGather(2), 2):
        assert Rank(1).get_output_buffer()[1:] == Chunk(1, BufferType.output, 1, 1)
        with pytest.raises(ValueError, match="chunks 0:3 of an output buffer of 2 chunks"):
            Rank(0).get_output_buffer()[0:3]


def test_program_is_read_as_an_algorithm_that_verifies() -> None:
    (source,) = list_program_samples()
    algorithm, found = read_text(source.content().decode())
    assert found == []
    assert algorithm.collective.kind is CollectiveKind.ALL_GATHER
    assert algorithm.provenance.options["language"] in ("collhub-mscclpp", "mscclpp")
    assert verify(algorithm).ok


def test_program_that_does_not_wait_is_refused() -> None:
    text = list_program_samples()[0].content().decode()
    waits, signals = (f"channels[target, source].{name}(tb=0)" for name in ("wait", "signal"))
    racing = text.replace(waits, "pass").replace(signals, "pass")
    with pytest.raises(InputError, match=r"touch chunk . of buffer 'o' of rank 0"):
        read_text(racing)


def test_error_names_the_line_of_the_program() -> None:
    with pytest.raises(InputError, match=r"program.py:3: .*used outside"):
        read_text(START + "MemoryChannel(1, 0)\n")


def test_file_of_another_language_is_not_executed() -> None:
    with pytest.raises(InputError, match="it was not executed") as caught:
        read_text("raise SystemExit(3)\n")
    assert caught.value.diagnostics[0].code == "not-a-program"


def test_one_of_several_programs_is_chosen() -> None:
    text = list_program_samples()[0].content().decode()
    text += text.replace('"all_pairs"', '"other"')
    with pytest.raises(UsageError, match="defines 2 programs: 1 'all_pairs', 2 'other'"):
        read_text(text)
    algorithm, _ = read_text(text, program="other")
    assert verify(algorithm).ok


def through_the_switch(program: CollectiveProgram, collective: str) -> None:
    """All meet; each adds up or spreads its part through the switch; all meet again."""
    ranks = range(program.num_ranks)
    with program:
        kind = BufferType.input if collective == "all-reduce" else BufferType.output
        switch = SwitchChannel(list(ranks), kind)
        channels = {
            (here, there): MemoryChannel(there, here)
            for here in ranks
            for there in ranks
            if here != there
        }
        for here in ranks:
            others = [channel for (one, _), channel in channels.items() if one == here]
            _meet(others)
            own = Rank(here)
            if collective == "all-reduce":
                part = own.get_input_buffer()[here : here + 1]
                switch.at_rank(here).reduce(here, 1, part, tb=0)
            else:
                part = own.get_output_buffer()[here : here + 1]
            switch.at_rank(here).broadcast(part, here, 1, tb=0)
            _meet(others)


def _meet(channels: list[MemoryChannel]) -> None:
    for channel in channels:
        channel.signal(tb=0)
    for channel in channels:
        channel.wait(tb=0)


@pytest.mark.parametrize("instances", [1, 2])
def test_all_reduces_through_the_switch(instances: int) -> None:
    program = CollectiveProgram("nvls", AllReduce(4, 1, True), 4, instances)
    through_the_switch(program, "all-reduce")
    assert verdicts(program)[:2] == ("ok", "ok")
    # The sum is broadcast by the operation that makes it.
    assert [name for name in names(program) if name.startswith("g")] == ["glres"]


@pytest.mark.parametrize("instances", [1, 2])
def test_all_gathers_through_the_switch(instances: int) -> None:
    program = CollectiveProgram("nvls", AllGather(4, 1, True), 4, instances)
    through_the_switch(program, "all-gather")
    assert verdicts(program)[:2] == ("ok", "ok")
    assert [name for name in names(program) if name.startswith("g")] == ["gstore"]


def test_a_sum_of_the_switch_that_is_not_broadcast_is_refused() -> None:
    text = START + (
        "from mscclpp.language.rank import *\n"
        'with CollectiveProgram("nvls", AllReduce(2, 1, True), 2):\n'
        "    switch = SwitchChannel([0, 1], BufferType.input)\n"
        "    switch.at_rank(0).reduce(0, 1, Rank(0).get_input_buffer()[0:1], tb=0)\n"
        "    print(JSON())\n"
    )
    with pytest.raises(InputError, match="the executor has no operation 'glre'"):
        read_text(text)


def test_a_switch_knows_its_group() -> None:
    with CollectiveProgram("nvls", AllReduce(3, 1, True), 3):
        switch = SwitchChannel([0, 1], BufferType.input)
        with pytest.raises(RuntimeError, match="rank 2 is none of the switch channel's"):
            switch.at_rank(2)
        with pytest.raises(RuntimeError, match="a switch channel of the ranks"):
            SwitchChannel([1, 1], BufferType.input)


def in_a_ring(program: CollectiveProgram) -> None:
    """A sum goes round, each rank adding its input and sending on; the last one sends it back."""
    size = program.num_ranks
    with program:
        scratch = [Buffer(rank, size) for rank in range(size)]
        onward = [MemoryChannel((rank + 1) % size, rank) for rank in range(size)]
        backward = [MemoryChannel((rank - 1) % size, rank) for rank in range(size)]
        for rank in range(size):
            # The one before may write only once this launch has begun.
            backward[rank].signal(tb=0, relaxed=True)
            onward[rank].wait(tb=0, relaxed=True)
        own = [Rank(rank).get_input_buffer()[0:size] for rank in range(size)]
        for turn in range(2 * size - 1):
            here, there = turn % size, (turn + 1) % size
            if turn:
                backward[here].wait(tb=0)
            if 0 < turn < size:
                Rank(here).reduce(own[here], [scratch[here][0:size]], tb=0)
            if turn < 2 * size - 2:
                target = scratch[there] if turn < size - 1 else Rank(there).get_input_buffer()
                onward[here].put(target[0:size], own[here], tb=0)
                onward[here].signal(tb=0)


def to_all(program: CollectiveProgram) -> None:
    """Each puts its part to all others, then signals all."""
    ranks = range(program.num_ranks)
    with program:
        for here in ranks:
            channels = [MemoryChannel(there, here) for there in ranks if there != here]
            for channel in channels:
                channel.signal(tb=0, relaxed=True)
            for channel in channels:
                channel.wait(tb=0, relaxed=True)
            part = Rank(here).get_output_buffer()[here : here + 1]
            for channel in channels:
                there = Rank(channel.dst_rank).get_output_buffer()[here : here + 1]
                channel.put(there, part, tb=0)
            _meet(channels)


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize(
    ("made", "collective", "rank", "fused"),
    [
        (in_a_ring, AllReduce(3, 1, True), 1, ["rlxsignal", "rlxwait", "wait", "res", "signal"]),
        (to_all, AllGather(4, 1, True), 0, ["rlxsignal", "rlxwait", "put", "signal", "wait"]),
    ],
)
def test_fused_programs_do_the_same(
    made: Any, collective: Collective, rank: int, fused: list[str], instances: int
) -> None:
    found = {}
    for is_fused in (False, True):
        count = 3 if made is in_a_ring else 4
        program = CollectiveProgram("p", collective, count, instances, instr_fusion=is_fused)
        made(program)
        assert verdicts(program) == ("ok", "ok", [])
        found[is_fused] = [name for name in names(program, rank) if name != "nop"]
    assert found[True][: len(fused)] == fused
    assert len(found[True]) < len(found[False])


def test_puts_of_several_buffers_stay_apart() -> None:
    program = CollectiveProgram("puts", TestCollective(2, 2, 2), 2)
    with program:
        channel = MemoryChannel(1, 0)
        made = Rank(1).get_output_buffer()
        channel.put(made[0:1], Rank(0).get_input_buffer()[0:1], tb=0)
        channel.put(made[1:2], Rank(0).get_output_buffer()[1:2], tb=0)
    # The executor would take the buffer of the first for both.
    assert names(program) == ["put", "put"]


def test_instances_can_only_be_interleaved() -> None:
    with pytest.raises(ValueError, match="instances can only be interleaved"):
        CollectiveProgram(
            "p", AllGather(2, 1, True), 2, 2, replication_policy=ReplicationPolicy.none
        )


def test_no_operation_has_more_channels_than_the_kernel() -> None:
    program = CollectiveProgram("signals", TestCollective(11, 1, 1), 11)
    with program:
        for there in range(1, 11):
            MemoryChannel(there, 0).signal(tb=0, data_sync=SyncType.none)
    document = json.loads(program.to_json())
    operations = document["gpus"][0]["threadblocks"][0]["ops"]
    assert [len(one["channel_ids"]) for one in operations] == [8, 2]


def test_earlier_name_of_the_class_of_programs_is_read() -> None:
    body = """
with MSCCLPPProgram("earlier", AllGather(2, 1, True), 2, protocol="Simple"):
    for rank in range(2):
        channel = MemoryChannel(1 - rank, rank)
        channel.signal(tb=0)
        channel.wait(tb=0)
        own = Rank(rank).get_output_buffer()[rank : rank + 1]
        channel.put(Rank(1 - rank).get_output_buffer()[rank : rank + 1], own, tb=0)
        channel.signal(tb=0)
        channel.wait(tb=0)
    print(JSON())
"""
    names = ("collectives", "general", "rank")
    imports = "".join(f"from mscclpp.language.{name} import *\n" for name in names)
    algorithm, _ = read_text(START + imports + body)
    assert algorithm.collective.kind is CollectiveKind.ALL_GATHER
    assert verify(algorithm).ok


@pytest.mark.skipif(has_package(), reason="the package mscclpp has its runtime")
@pytest.mark.parametrize(
    "text", ["import mscclpp.comm\n", "import mscclpp\nmscclpp.comm.CommGroup()\n"]
)
def test_a_part_of_the_runtime_is_named_with_the_ways_to_do_without_it(text: str) -> None:
    with pytest.raises(InputError, match=r"needs mscclpp\.comm, a part of the runtime"):
        read_text(text)


def test_program_of_the_language_of_chunks_is_refused_with_the_reason() -> None:
    text = "from mscclpp.language import *\nfrom mscclpp.language.buffer import Buffer\n"
    with pytest.raises(InputError, match=r"imports mscclpp\.language\.buffer, .* with `chunk` is"):
        read_text(text)


def test_an_installed_package_without_the_class_of_programs_is_refused_with_a_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mscclpp" / "language"
    folder.mkdir(parents=True)
    for file in (folder.parent / "__init__.py", folder / "__init__.py", folder / "program.py"):
        file.write_text("")
    names = ("mscclpp", "mscclpp.language", "mscclpp.language.program")
    for name in names:
        # Restored at the end: absent, or what was there before.
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        InputError, match="mscclpp has no CollectiveProgram: it is too old; upgrade"
    ):
        _PlanLanguage().prepare("program.py")
