"""Rules that a plan keeps or breaks before it runs, each at its limit and one beyond it."""

from __future__ import annotations

from typing import Any

import pytest
from made_plans import NOP, by_port, checked, chunk, copied, fragment, operations, two_ranks

from hub_core.model import Severity

Json = dict[str, Any]


def findings_of(plan: Json, code: str) -> list[tuple[int | None, str]]:
    """(rank, message) of every finding with a code."""
    return [
        (one.location.rank, one.message) for one in checked(plan).diagnostics if one.code == code
    ]


def connected(peers: int, *ops: Json, kind: str = "memory", used: int | None = None) -> Json:
    """Rank 0 with a channel and a remote output buffer for each of `peers` connections to rank 1.

    The thread block uses the first `used` of them, by default all.
    """
    plan = fragment(*ops, gpus=2)
    first = plan["gpus"][0]
    remote = {"rank": 1, "type": "o", "access_channel_types": [kind]}
    first["channels"] = [{"channel_type": kind, "connected_to": [1] * peers}]
    first["remote_buffers"] = [remote] * peers
    plan["gpus"][1]["channels"] = [{"channel_type": kind, "connected_to": [0] * peers}]
    count = peers if used is None else used
    first["threadblocks"][0].update(
        channels=[{"channel_type": kind, "channel_ids": list(range(count))}],
        remote_buffer_refs=[{"access_channel_type": kind, "remote_buffer_ids": list(range(count))}],
    )
    return plan


def barrier(number: int, blocks: int = 1) -> Json:
    return {"name": "barrier", "barrier_id": number, "num_threadblocks": blocks}


def semaphores(name: str, *numbers: int) -> Json:
    return {"name": name, "semaphore_ids": list(numbers)}


def with_semaphores(plan: Json, *values: int) -> Json:
    plan["gpus"][0]["semaphores"] = [{"init_value": value} for value in values]
    return plan


def signal(count: int) -> Json:
    return {"name": "signal", "channel_type": "memory", "channel_ids": list(range(count))}


@pytest.mark.parametrize(
    ("within", "beyond", "code", "message"),
    [
        (
            fragment(*[NOP] * 64),
            fragment(*[NOP] * 65),
            "limit-operations",
            "thread block 0 has 65 operations, at most 64 fit",
        ),
        (
            connected(16),
            connected(17),
            "limit-channels",
            "thread block 0 has 17 memory channels, at most 16 fit",
        ),
        (
            connected(16),
            connected(17),
            "limit-remote-buffers",
            "thread block 0 refers to 17 remote buffers by memory channels, at most 16 fit",
        ),
        (
            connected(9, signal(8)),
            connected(9, signal(9)),
            "limit-channels-of-operation",
            "thread block 0, ops[0]: 9 channels, at most 8 fit",
        ),
        (
            with_semaphores(fragment(semaphores("sem_release", *range(16))), *[0] * 17),
            with_semaphores(fragment(semaphores("sem_release", *range(17))), *[0] * 17),
            "limit-semaphores-of-operation",
            "thread block 0, ops[0]: 17 semaphores, at most 16 fit",
        ),
        (
            fragment(barrier(15)),
            fragment(barrier(16)),
            "limit-barriers",
            "thread block 0, ops[0]: barrier 16, but there are barriers 0..15",
        ),
        (
            fragment({"name": "re", "src_buff": [chunk("i", 0)] * 10, "dst_buff": [chunk("o", 0)]}),
            fragment({"name": "re", "src_buff": [chunk("i", 0)] * 11, "dst_buff": [chunk("o", 0)]}),
            "limit-ranges",
            "thread block 0, ops[0]: 11 ranges in src_buff, at most 10 fit",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_tables_of_the_executor_hold_exactly_their_length(
    within: Json, beyond: Json, code: str, message: str
) -> None:
    assert findings_of(within, code) == []
    ((rank, text),) = findings_of(beyond, code)
    assert rank == 0
    assert text.endswith(message)
    assert not checked(beyond).is_loadable


def test_tables_of_every_channel_type_are_apart() -> None:
    plan = connected(12)
    first = plan["gpus"][0]
    for gpu, peer in zip(plan["gpus"], (1, 0), strict=True):
        gpu["channels"].append({"channel_type": "port", "connected_to": [peer] * 12})
    block = first["threadblocks"][0]
    block["channels"].append({"channel_type": "port", "channel_ids": list(range(12))})
    assert checked(plan).diagnostics == ()


def test_ranges_of_both_sides_are_counted_apart() -> None:
    def put_of(count: int) -> Json:
        put = {
            "name": "put",
            "channel_type": "memory",
            "src_buff": [chunk("i", 0)] * count,
            "dst_buff": [{"buffer_id": 0, "index": 0, "size": 1}] * count,
        }
        return connected(1, put)

    assert findings_of(put_of(10), "limit-ranges") == []
    assert [text.split(": ")[1] for _, text in findings_of(put_of(11), "limit-ranges")] == [
        "11 ranges in src_buff, at most 10 fit",
        "11 ranges in dst_buff, at most 10 fit",
    ]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (chunk("i", 2, 2), chunk("o", 2, 2), ""),
        (chunk("i", 3, 2), chunk("o", 2, 2), "ends at chunk 5, buffer 'i' of rank 0 has 4"),
        (chunk("i", 0), chunk("s", 4), "ends at chunk 5, buffer 's' of rank 0 has 4"),
    ],
)
def test_ranges_end_with_their_buffer(source: Json, target: Json, message: str) -> None:
    texts = [text for _, text in findings_of(fragment(copied(source, target)), "range")]
    assert [message in text for text in texts] == ([True] if message else [])


def test_ranges_of_another_rank_end_with_its_buffer() -> None:
    put = {
        "name": "put",
        "channel_type": "memory",
        "src_buff": [chunk("i", 0)],
        "dst_buff": [{"buffer_id": 0, "index": 2, "size": 1}],
    }
    plan = connected(1, put)
    assert findings_of(plan, "range") == []
    plan["gpus"][1]["output_chunks"] = 2
    ((rank, text),) = findings_of(plan, "range")
    assert rank == 0
    assert "ends at chunk 3, buffer 'o' of rank 1 has 2" in text
    assert checked(plan).verdict == "n/a"


def test_ranges_of_one_move_have_one_size() -> None:
    put = {
        "name": "put",
        "channel_type": "memory",
        "src_buff": [chunk("i", 0, 1), chunk("i", 0, 2)],
        "dst_buff": [
            {"buffer_id": 0, "index": 0, "size": 1},
            {"buffer_id": 0, "index": 1, "size": 2},
        ],
    }
    # Every range of a put is a move of its own.
    assert findings_of(connected(1, put), "size-mismatch") == []
    sums = {"name": "re", "src_buff": [chunk("i", 0, 1), chunk("i", 0, 2)]}
    plan = fragment({**sums, "dst_buff": [chunk("o", 0)]}, {"name": "nop"})
    ((_, text),) = findings_of(plan, "size-mismatch")
    assert text.endswith("ranges of 1 and of 2 chunks belong together")
    assert checked(plan).verdict == "n/a"


@pytest.mark.parametrize("unknown", [False, True])
def test_every_rule_of_operations_keeps_a_plan_from_being_followed(unknown: bool) -> None:
    last = {"name": "glre"} if unknown else copied(chunk("i", 0, 2), chunk("o", 0))
    plan = fragment(copied(chunk("i", 0), chunk("o", 0)), last)
    report = checked(plan)
    assert (report.verdict, report.verdict_relaunch) == ("n/a", "n/a")
    assert report.order.tolist() == []


def test_only_members_of_a_group_use_its_switch_channel() -> None:
    def plan_of(*members: int) -> Json:
        store = {
            "name": "gstore",
            "channel_type": "switch",
            "channel_ids": [0],
            "src_buff": [chunk("i", 0)],
            "dst_buff": [{"switch_channel_id": 0, "index": 0, "size": 1}],
        }
        plan = fragment(store, gpus=3)
        group = {"size": len(members), "ranks": list(members)}
        channel = {"channel_type": "switch", "buffer_type": "o", "rank_groups": [group]}
        for rank in {0, *members}:
            plan["gpus"][rank]["channels"] = [channel]
        plan["gpus"][0]["threadblocks"][0]["channels"] = [
            {"channel_type": "switch", "channel_ids": [0]}
        ]
        return plan

    assert findings_of(plan_of(0, 1, 2), "switch-group") == []
    ((rank, text),) = findings_of(plan_of(1, 2), "switch-group")
    assert rank == 0
    assert text.endswith("rank 0 is not in the group of its switch channel")
    assert checked(plan_of(1, 2)).verdict == "n/a"


def port_put(channels: int, targets: int) -> Json:
    return by_port(
        "pwsf",
        list(range(channels)),
        src_buff=[chunk("i", number) for number in range(targets)],
        dst_buff=[{"buffer_id": 0, "index": number, "size": 1} for number in range(targets)],
    )


@pytest.mark.parametrize(("channels", "targets"), [(1, 1), (2, 2), (2, 1), (1, 2), (1, 3)])
def test_every_destination_of_a_port_put_has_its_channel(channels: int, targets: int) -> None:
    plan = connected(2, port_put(channels, targets), kind="port")
    texts = [text for _, text in findings_of(plan, "port-channels")]
    expected = f"{targets} ranges in dst_buff go through {channels} channels"
    assert [text.endswith(expected) for text in texts] == [True] * (targets > channels)


@pytest.mark.parametrize(
    ("alignment", "is_warned"), [(16, False), (32, False), (8, True), (24, True), (1, True)]
)
def test_alignment_is_a_multiple_of_16_bytes(alignment: int, is_warned: bool) -> None:
    plan = fragment(NOP, copied(chunk("i", 0), chunk("o", 0)), buffer_alignment=alignment)
    found = findings_of(plan, "alignment")
    assert bool(found) == is_warned
    # The first operation with a range, which the block barrier is not.
    assert all("ops[1]: with buffer_alignment" in text for _, text in found)
    assert findings_of(fragment(NOP, buffer_alignment=alignment), "alignment") == []
    assert all(
        one.severity is Severity.WARNING
        for one in checked(plan).diagnostics
        if one.code == "alignment"
    )


@pytest.mark.parametrize(
    ("name", "buffers", "is_warned"),
    [
        ("put", "ii", False),
        ("put", "io", True),
        ("ppkt", "io", True),
    ],
)
def test_a_memory_put_has_one_source_buffer(name: str, buffers: str, is_warned: bool) -> None:
    put = {
        "name": name,
        "channel_type": "memory",
        "src_buff": [chunk(buffer, number) for number, buffer in enumerate(buffers)],
        "dst_buff": [{"buffer_id": 0, "index": number, "size": 1} for number in range(2)],
    }
    plan = connected(1, NOP, put)
    plan["protocol"] = "LL"
    if name == "ppkt":
        plan["gpus"][0]["remote_buffers"][0]["type"] = "s"
    found = findings_of(plan, "put-sources")
    assert [text.split(":")[0] for _, text in found] == (
        [f"{name} of thread block 0, ops[1]"] if is_warned else []
    )


def test_sources_of_a_port_put_may_lie_in_several_buffers() -> None:
    put = port_put(2, 2)
    put["src_buff"] = [chunk("i", 0), chunk("o", 1)]
    plan = connected(2, put, kind="port")
    assert findings_of(plan, "put-sources") == []


@pytest.mark.parametrize(("index", "is_warned"), [(0, False), (1, True)])
def test_both_sides_of_a_get_have_one_index(index: int, is_warned: bool) -> None:
    get = {
        "name": "get",
        "channel_type": "memory",
        # The ranges of one get may differ from each other.
        "src_buff": [{"buffer_id": 0, "index": number, "size": 1} for number in (0, 2)],
        "dst_buff": [chunk("s", index), chunk("s", 2)],
    }
    assert bool(findings_of(connected(1, get), "get-indices")) == is_warned
    # Other operations take each index for the side that states it.
    put = {**get, "name": "put", "src_buff": get["dst_buff"], "dst_buff": get["src_buff"]}
    assert findings_of(connected(1, put), "get-indices") == []


def test_swapped_indices_of_a_get_that_leave_a_buffer_are_named() -> None:
    get = {
        "name": "get",
        "channel_type": "memory",
        "src_buff": [{"buffer_id": 0, "index": 2, "size": 1}],
        "dst_buff": [chunk("s", 3)],
    }
    plan = connected(1, get)
    plan["gpus"][1]["output_chunks"] = 3
    ((_, text),) = findings_of(plan, "range")
    assert "the executor swaps the indices of both sides of a get" in text


@pytest.mark.parametrize(
    ("channels", "targets", "is_warned"),
    [(1, 1, False), (2, 1, True), (2, 2, False), (1, 2, False)],
)
def test_a_flush_lists_a_destination_for_each_channel(
    channels: int, targets: int, is_warned: bool
) -> None:
    entries = [{"buffer_id": 0, "index": 0, "size": 1}] * targets
    plan = connected(2, by_port("flush", list(range(channels)), dst_buff=entries), kind="port")
    texts = [text for _, text in findings_of(plan, "flush-count")]
    expected = f"which has {targets} entries for {channels} channels"
    assert [expected in text for text in texts] == [True] * is_warned


@pytest.mark.parametrize(
    ("kind", "name", "is_warned"),
    [("memory", "pws", True), ("memory", "pwsf", True), ("memory", "put", False)],
)
def test_a_put_on_a_memory_channel_does_not_signal(kind: str, name: str, is_warned: bool) -> None:
    put = {
        "name": name,
        "channel_type": kind,
        "src_buff": [chunk("i", 0)],
        "dst_buff": [{"buffer_id": 0, "index": 0, "size": 1}],
    }
    assert bool(findings_of(connected(1, put), "memory-signal")) == is_warned


@pytest.mark.parametrize(("name", "buffer"), [("cpkt", "s"), ("cpkt", "o")])
def test_packets_are_stored_in_scratch(name: str, buffer: str) -> None:
    packets = {"name": name, "src_buff": [chunk("i", 0)], "dst_buff": [chunk(buffer, 0)]}
    found = findings_of(fragment(packets, protocol="LL"), "packet-buffer")
    assert bool(found) == (buffer != "s")


@pytest.mark.parametrize(
    ("protocol", "index", "size", "is_refused"),
    [
        ("Simple", 0, 2, False),
        ("Simple", 1, 1, False),
        ("Simple", 1, 2, True),
        ("Simple", 2, 1, True),
        ("LL", 2, 2, False),
        ("LL", 3, 1, False),
    ],
)
def test_packets_take_twice_the_room_of_their_data(
    protocol: str, index: int, size: int, is_refused: bool
) -> None:
    # Four chunks of scratch: a plan of the protocol LL has twice the bytes for them.
    packets = {"name": "cpkt", "src_buff": [chunk("i", 0, size)]}
    plan = fragment({**packets, "dst_buff": [chunk("s", index, size)]}, protocol=protocol)
    assert bool(findings_of(plan, "packet-room")) == is_refused


@pytest.mark.parametrize(
    ("plain", "is_refused"), [(0, False), (1, False), (2, True), (3, True), (4, False), (5, False)]
)
@pytest.mark.parametrize("is_double", [False, True])
def test_a_packet_of_chunk_1_lies_where_plain_chunks_2_and_3_do(
    plain: int, is_refused: bool, is_double: bool
) -> None:
    packets = {"name": "cpkt", "src_buff": [chunk("i", 0)], "dst_buff": [chunk("s", 1)]}
    plan = fragment(
        copied(chunk("i", 0), chunk("s", plain)),
        packets,
        scratch=6,
        protocol="LL",
        use_double_scratch_buffer=is_double,
    )
    found = findings_of(plan, "scratch-forms")
    expected = [(0, "cpkt of thread block 0, ops[1]: packets where plain data lies")]
    shown = [(rank, text.removesuffix(" in the scratch of rank 0")) for rank, text in found]
    assert shown == (expected if is_refused else [])


@pytest.mark.parametrize(
    ("distance", "size", "is_refused"),
    [(0, 2, False), (1, 2, True), (2, 2, False), (1, 1, False), (2, 3, True), (3, 3, False)],
)
def test_ranges_of_an_operation_are_equal_or_apart(
    distance: int, size: int, is_refused: bool
) -> None:
    for source, target in ((0, distance), (distance, 0)):
        plan = fragment(copied(chunk("s", source, size), chunk("s", target, size)), scratch=8)
        plan["gpus"][0]["threadblocks"][0]["ops"].insert(0, copied(chunk("i", 0), chunk("o", 0)))
        found = findings_of(plan, "overlap")
        assert [text.split(":")[0] for _, text in found] == (
            ["copy of thread block 0, ops[1]"] if is_refused else []
        )


def test_ranges_of_two_operations_are_compared_by_the_block_barrier_alone() -> None:
    plan = fragment(
        copied(chunk("s", 0, 2), chunk("o", 0, 2)), NOP, copied(chunk("i", 0, 2), chunk("s", 1, 2))
    )
    assert findings_of(plan, "overlap") == []


@pytest.mark.parametrize(("target", "is_refused"), [(1, True), (5, False)])
def test_only_the_ranges_of_one_move_of_a_put_may_not_overlap(
    target: int, is_refused: bool
) -> None:
    # Range 0 is chunks 0 and 1, range 1 is chunks 4 and 5 of the output. A channel of the rank to
    # itself lets a put write into the buffer that it reads.
    put = {
        "name": "put",
        "channel_type": "memory",
        "src_buff": [chunk("o", 0, 2), chunk("o", 4, 2)],
        "dst_buff": [{"buffer_id": 0, "index": index, "size": 2} for index in (target, 7)],
    }
    plan = connected(1, put)
    gpu = plan["gpus"][0]
    gpu["output_chunks"] = 9
    gpu["channels"][0]["connected_to"] = [0]
    gpu["remote_buffers"][0]["rank"] = 0
    assert bool(findings_of(plan, "overlap")) == is_refused


@pytest.mark.parametrize(
    ("size", "parts", "is_refused"), [(2, 1, False), (1, 1, True), (3, 1, True), (2, 2, True)]
)
def test_ranges_in_a_pipeline_are_those_of_its_slices(
    size: int, parts: int, is_refused: bool
) -> None:
    group = {"tbg_info": {"tb_id": 0, "tbg_size": parts}} if parts > 1 else {}
    inner = copied(chunk("i", 0, size), chunk("o", 0, size), **group)
    context = {"iter_context": {"unit_size": 1024, "num_chunks": 2}}
    plan = fragment(
        copied(chunk("i", 0), chunk("s", 0)), {"name": "pipeline", **context, "ops": [inner]}
    )
    found = findings_of(plan, "pipeline-range")
    assert [
        text.endswith("in this pipeline ranges have 2 chunks, and no tbg_info") for _, text in found
    ] == ([True] * is_refused)


@pytest.mark.parametrize(
    ("releases", "acquires", "message"),
    [
        (1, 1, ""),
        (2, 1, "is raised more often than awaited, by 1 in every launch"),
        (1, 3, "is awaited more often than raised, by 2 in every launch"),
    ],
)
def test_a_launch_leaves_every_counter_as_it_was(
    releases: int, acquires: int, message: str
) -> None:
    ops = [semaphores("sem_release", 0)] * releases + [semaphores("sem_acquire", 0)] * acquires
    plan = with_semaphores(fragment(NOP, *ops), 5)
    found = [text for _, text in findings_of(plan, "unbalanced")]
    where = "sem_release of thread block 0, ops[1]"
    assert found == ([f"{where}: semaphore 0 of rank 0 {message}"] if message else [])


@pytest.mark.parametrize(
    ("chunks", "units", "is_refused"), [(2, 1024, False), (1, 1024, True), (2, 512, True)]
)
def test_a_counter_is_raised_and_awaited_in_equal_slices(
    chunks: int, units: int, is_refused: bool
) -> None:
    def pipeline(unit: int, count: int, op: Json) -> Json:
        context = {"iter_context": {"unit_size": unit, "num_chunks": count}}
        return {"name": "pipeline", **context, "ops": [op]}

    plan = with_semaphores(
        fragment(
            pipeline(1024, 2, semaphores("sem_release", 0)),
            pipeline(units, chunks, semaphores("sem_acquire", 0)),
        ),
        0,
    )
    found = [text for _, text in findings_of(plan, "unbalanced")]
    expected = "is raised and awaited in pipelines of different numbers of slices"
    assert [expected in text for text in found] == [True] * is_refused


@pytest.mark.parametrize(
    ("uses", "stated", "is_refused"),
    [
        ([1, 1], 2, False),
        ([2, 2], 2, False),
        ([1, 2], 2, True),
        ([1, 1], 3, True),
        ([1, 1], 1, True),
    ],
)
def test_a_barrier_is_used_equally_often_by_the_stated_number_of_blocks(
    uses: list[int], stated: int, is_refused: bool
) -> None:
    plan = fragment()
    blocks = plan["gpus"][0]["threadblocks"]
    blocks[:] = [
        {**blocks[0], "id": number, "ops": [barrier(3, stated)] * count}
        for number, count in enumerate(uses)
    ]
    assert bool(findings_of(plan, "barrier-blocks")) == is_refused


def test_a_channel_to_the_own_rank_is_refused() -> None:
    plan = two_ranks()
    plan["gpus"][1]["channels"].append({"channel_type": "port", "connected_to": [1]})
    ((rank, text),) = findings_of(plan, "channel-to-itself")
    assert (rank, text) == (1, "$.gpus[1].channels: a port channel of the rank to itself")
    assert not checked(plan).is_loadable


def test_a_collective_without_a_contract_is_noted() -> None:
    plan = fragment(copied(chunk("i", 0), chunk("o", 0)), collective="gossip")
    ((_, text),) = findings_of(plan, "no-contract")
    assert text == "nothing is known of a collective 'gossip'"
    report = checked(plan)
    assert (report.ok, report.is_fragment) == (True, True)
    for collective in ("test", "custom"):
        assert findings_of(fragment(NOP, collective=collective), "no-contract") == []


def test_sizes_of_messages_are_named_where_the_second_rank_has_none() -> None:
    plan = two_ranks()
    plan["gpus"][0]["input_chunks"] = 0
    (found,) = findings_of(plan, "zero-chunks")
    assert found == (0, "$.gpus[0].input_chunks: 0, by which the executor divides")
    # The counts contradict the collective too, for the same reason.
    assert findings_of(plan, "chunk-counts") == []


@pytest.mark.parametrize("kind", ["wait", "sem_acquire"])
def test_threads_meet_between_a_wait_and_the_data_after_it(kind: str) -> None:
    plan = two_ranks()
    block = operations(plan, 0, 1)
    at = next(k for k, one in enumerate(block) if one["name"] == "put")
    assert findings_of(plan, "missing-nop") == []
    if kind == "wait":
        del block[at - 1]
        before = "rlxwait"
    else:
        plan["gpus"][0]["semaphores"] = [{"init_value": 1}]
        block[at:at] = [semaphores("sem_acquire", 0)]
        block.append(semaphores("sem_release", 0))
        before = "sem_acquire"
    texts = [text for _, text in findings_of(plan, "missing-nop")]
    assert texts[0].startswith("put of thread block 1")
    assert texts[0].endswith(f"no nop since the {before} before it")


@pytest.mark.parametrize(
    ("first", "second", "needs_nop"),
    [
        (copied(chunk("i", 0), chunk("s", 0)), copied(chunk("s", 0), chunk("o", 0)), True),
        (copied(chunk("i", 0), chunk("s", 0)), copied(chunk("s", 1), chunk("o", 0)), False),
        (copied(chunk("i", 0), chunk("s", 0)), copied(chunk("i", 0), chunk("o", 0)), False),
        (copied(chunk("i", 0), chunk("s", 0)), copied(chunk("o", 1), chunk("i", 0)), True),
        (copied(chunk("i", 0), chunk("s", 0)), copied(chunk("i", 1), chunk("s", 0)), True),
        (copied(chunk("i", 0, 2), chunk("s", 0, 2)), copied(chunk("s", 1), chunk("o", 0)), True),
        (copied(chunk("i", 0, 2), chunk("s", 0, 2)), copied(chunk("s", 2), chunk("o", 0)), False),
        (copied(chunk("s", 1), chunk("o", 0)), copied(chunk("i", 0), chunk("s", 0)), False),
    ],
)
def test_threads_meet_between_operations_on_the_same_data(
    first: Json, second: Json, needs_nop: bool
) -> None:
    plan = fragment(first, second)
    assert bool(findings_of(plan, "missing-nop")) == needs_nop
    assert findings_of(fragment(first, NOP, second), "missing-nop") == []
    assert findings_of(fragment(first, barrier(0), second), "missing-nop") == []


def test_packets_of_equal_ranges_stay_with_their_thread() -> None:
    packed = {"name": "cpkt", "src_buff": [chunk("i", 0)], "dst_buff": [chunk("s", 0)]}
    unpacked = {"name": "upkt", "src_buff": [chunk("s", 0)], "dst_buff": [chunk("o", 0)]}
    again = {"name": "cpkt", "src_buff": [chunk("o", 0)], "dst_buff": [chunk("s", 1)]}
    assert findings_of(fragment(packed, unpacked, again, protocol="LL"), "missing-nop") == []
    # A part of the range belongs to another thread.
    wide = {"name": "cpkt", "src_buff": [chunk("o", 0, 2)], "dst_buff": [chunk("s", 2, 2)]}
    plan = fragment(packed, unpacked, wide, scratch=8, protocol="LL")
    assert len(findings_of(plan, "missing-nop")) == 1
    # So does every element of an operation without packets.
    plain = copied(chunk("o", 0), chunk("o", 1))
    assert findings_of(fragment(packed, unpacked, plain, protocol="LL"), "missing-nop")


@pytest.mark.parametrize("kind", ["signal", "sem_release"])
def test_threads_meet_between_data_and_their_announcement(kind: str) -> None:
    announce = signal(1) if kind == "signal" else semaphores("sem_release", 0)
    copies = copied(chunk("i", 0), chunk("o", 0))
    plan = with_semaphores(connected(1, copies, announce), 0)
    ((_, text),) = findings_of(plan, "missing-nop")
    assert text.endswith("no nop since the copy that it announces")
    plan = with_semaphores(connected(1, copies, NOP, announce), 0)
    assert findings_of(plan, "missing-nop") == []


def test_operations_of_two_blocks_need_no_block_barrier() -> None:
    plan = fragment(copied(chunk("i", 0), chunk("s", 0)))
    blocks = plan["gpus"][0]["threadblocks"]
    blocks.append({**blocks[0], "id": 1, "ops": [copied(chunk("s", 0), chunk("o", 0))]})
    report = checked(plan)
    assert {one.code for one in report.diagnostics} == {"race"}


@pytest.mark.parametrize("kind", ["memory", "port"])
@pytest.mark.parametrize("has_partner", [True, False])
def test_nobody_raises_the_counter_of_a_channel_without_a_partner(
    kind: str, has_partner: bool
) -> None:
    """`setupConnections`: the executor creates a dummy for the missing partner."""

    def sync(name: str) -> Json:
        return {"name": name, "channel_type": kind, "channel_ids": [0]}

    plan = connected(1, sync("signal"), sync("wait"), kind=kind)
    first, second = plan["gpus"]
    listed = [{"channel_type": kind, "channel_ids": [0]}]
    block = {"id": 0, "channels": listed, "remote_buffer_refs": []}
    second["threadblocks"] = [{**block, "ops": [sync("signal"), sync("wait")]}]
    if not has_partner:
        # Rank 1 is connected to itself instead.
        second["channels"][0]["connected_to"] = [1]
    report = checked(plan)
    assert report.verdict == ("ok" if has_partner else "deadlock")
    stuck = [one.location.rank for one in report.errors if one.code == "deadlock"]
    assert stuck == ([] if has_partner else [0, 1])
    assert first["channels"][0]["connected_to"] == [1]
