"""Rules of the executor: what a plan does in one launch, and in those after it."""

from __future__ import annotations

import json

import pytest
from collhub_mscclpp.checking import check_plan, execution
from collhub_mscclpp.checking.check_plan import check_mscclpp
from collhub_mscclpp.checking.lowering import ranges_of
from collhub_mscclpp.checking.memory import plan_memory
from collhub_mscclpp.plan_records import BUFFER_TYPES, Scope
from collhub_mscclpp.reading.read_plan import parse_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from made_plans import (
    NOP,
    Json,
    by_port,
    checked,
    chunk,
    codes,
    copied,
    fragment,
    operations,
    port_put,
    ring,
    sent_by_proxy,
    two_ranks,
)

from hub_core.plugin_api import CheckRequest, NoOptions, Source


def test_the_smallest_plan_of_the_format_is_right() -> None:
    report = checked(two_ranks())
    assert (report.ok, report.verdict, report.verdict_relaunch) == (True, "ok", "ok")
    assert report.diagnostics == ()


@settings(max_examples=6, deadline=None)
@given(st.integers(2, 9))
def test_rings_of_any_number_of_ranks_are_right(num_ranks: int) -> None:
    report = checked(ring(num_ranks))
    assert report.ok, [str(found) for found in report.diagnostics]


def test_without_a_handshake_the_second_launch_races() -> None:
    plan = two_ranks()
    for rank in range(2):
        del operations(plan, rank, 0)[0]
        del operations(plan, rank, 1)[:2]
    once, often = checked(plan, 1), checked(plan)
    # The caller of rank 1 may not have made its output ready in the first one, which none judges.
    assert once.verdict == "ok"
    assert (often.verdict, often.verdict_relaunch, often.ok) == ("ok", "race", False)
    message = next(str(found) for found in often.diagnostics if found.code == "race")
    assert "put of rank" in message
    assert "the caller of rank" in message
    assert "in launches 1 and 2" in message


def test_a_caller_who_reads_an_output_too_early_is_a_race() -> None:
    plan = two_ranks()
    # Nothing awaits the put any more, so the kernel may end before it has come.
    del operations(plan, 0, 0)[1]
    del operations(plan, 1, 1)[4]
    report = checked(plan)
    assert report.verdict == "race"
    assert "who fills inputs and reads outputs" in str(report.errors[0])


def test_a_wait_without_a_signal_is_a_deadlock_with_its_place() -> None:
    plan = two_ranks()
    del operations(plan, 1, 1)[4]
    report = checked(plan)
    assert report.verdict == "deadlock"
    places = [str(found) for found in report.errors if found.code == "deadlock"]
    assert places == [
        "plan.json: rank 0: wait of thread block 0, ops[1]: waits for ever in launch 1; "
        "see what its partner waits for"
    ]


def test_wrong_contents_are_named_by_what_is_there() -> None:
    plan = two_ranks()
    operations(plan, 0, 1)[-1]["dst_buff"][0]["index"] = 1
    report = checked(plan)
    assert report.verdict in ("race", "wrong")
    assert "wrong-output" in codes(report)


def test_an_output_that_is_wrong_in_every_launch_is_reported_once() -> None:
    plan = fragment(copied(chunk("i", 1), chunk("o", 0)), collective="allreduce")
    plan["gpus"][0].update(input_chunks=2, output_chunks=2)
    found = [one.message for one in checked(plan, 3).errors]
    assert [message.split(" ")[:3] for message in found] == [
        ["output", "chunk", "0"],
        ["output", "chunk", "1"],
    ]
    assert all(message.endswith("after launch 1") for message in found)


def test_a_contribution_that_is_added_twice_is_named() -> None:
    plan = ring(2)
    reduce = next(one for one in operations(plan, 0, 0) if one["name"] == "re")
    reduce["src_buff"].append(reduce["src_buff"][1])
    report = checked(plan)
    assert report.verdict == "wrong"
    assert "has a contribution of rank 1, part 1 too many" in str(report.errors[0])


def test_counters_that_a_launch_leaves_raised_are_found() -> None:
    plan = two_ranks()
    operations(plan, 0, 1).append({**operations(plan, 0, 1)[4]})
    report = checked(plan)
    assert "unbalanced" in codes(report)
    assert not report.ok


def test_packets_in_halves_are_safe_where_one_half_is_not() -> None:
    def exchange(is_double: bool) -> Json:
        put = {
            "name": "ppkt",
            "channel_type": "memory",
            "src_buff": [chunk("i", 0)],
            "dst_buff": [{"buffer_id": 0, "index": 0, "size": 1}],
        }
        plan = two_ranks()
        plan.update(protocol="LL", use_double_scratch_buffer=is_double)
        for rank, gpu in enumerate(plan["gpus"]):
            gpu["scratch_chunks"] = 1
            gpu["remote_buffers"][0]["type"] = "s"
            packets, own = chunk("s", 0), chunk("i", 0)
            gpu["threadblocks"][0]["ops"] = [
                {"name": "upkt", "src_buff": [packets], "dst_buff": [chunk("o", 1 - rank)]}
            ]
            gpu["threadblocks"][1]["ops"] = [put, copied(own, chunk("o", rank))]
        return plan

    assert checked(exchange(True)).ok
    report = checked(exchange(False))
    assert (report.verdict, report.verdict_relaunch) == ("ok", "race")


def test_parts_of_a_range_are_not_parts_of_its_chunks() -> None:
    # Half of two chunks is a chunk: the other thread block reads halves of each.
    first = {"tbg_info": {"tb_id": 0, "tbg_size": 2}}
    second = {"tbg_info": {"tb_id": 1, "tbg_size": 2}}
    plan = fragment(copied(chunk("i", 0, 2), chunk("s", 0, 2), **first))
    reader = [
        copied(chunk("i", 0, 2), chunk("s", 0, 2), **second),
        NOP,
        copied(chunk("s", 0), chunk("o", 0), **second),
    ]
    block = {"id": 1, "channels": [], "remote_buffer_refs": [], "ops": reader}
    plan["gpus"][0]["threadblocks"].append(block)
    assert checked(plan).verdict == "race"
    # With parts of one chunk both thread blocks stay in their own half.
    reader[2] = copied(chunk("s", 0, 2), chunk("o", 0, 2), **second)
    assert checked(plan).verdict == "ok"


def test_a_fragment_is_judged_alone_and_promises_nothing() -> None:
    report = checked(fragment(copied(chunk("i", 0), chunk("o", 0))))
    assert (report.is_fragment, report.ok, report.verdict_relaunch) == (True, True, "n/a")


@pytest.mark.parametrize(
    ("ops", "code"),
    [
        ([NOP] * 65, "limit-operations"),
        ([{"name": "glre"}], "unknown-operation"),
        ([copied(chunk("i", 3, 2), chunk("o", 0, 2))], "range"),
        ([copied(chunk("i", 0, 2), chunk("o", 0, 1))], "size-mismatch"),
        ([{"name": "barrier", "barrier_id": 16, "num_threadblocks": 1}], "limit-barriers"),
        (
            [{"name": "re", "src_buff": [chunk("i", 0)] * 11, "dst_buff": [chunk("o", 0)]}],
            "limit-ranges",
        ),
    ],
)
def test_what_the_executor_cannot_load_is_refused(ops: list[Json], code: str) -> None:
    report = checked(fragment(*ops))
    assert not report.is_loadable
    assert code in codes(report)


@pytest.mark.parametrize(
    ("name", "cure"), [("putt", "did you mean 'put'?"), ("xyz", "it has nop,")]
)
def test_an_unknown_operation_gets_the_closest_or_all(name: str, cure: str) -> None:
    (finding,) = [
        one
        for one in checked(fragment({"name": name})).diagnostics
        if one.code == "unknown-operation"
    ]
    assert finding.cure.startswith(cure)


def test_an_unknown_operation_is_described_by_its_whole_name() -> None:
    plan = parse_plan(json.dumps(fragment({"name": "sum of all"})).encode(), "plan.json")
    assert plan.describe(0) == "sum of all of rank 0, thread block 0, ops[0]"


@pytest.mark.parametrize(
    ("ops", "code"),
    [
        ([{"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}], "barrier-blocks"),
        ([copied(chunk("i", 0, 2), chunk("i", 1, 2))], "overlap"),
        ([copied(chunk("i", 1, 2), chunk("i", 0, 2))], "overlap"),
        ([{"name": "cpkt", "src_buff": [chunk("i", 0)], "dst_buff": [chunk("s", 2)]}],
         "packet-room"),
        ([{"name": "cpkt", "src_buff": [chunk("i", 0)], "dst_buff": [chunk("o", 2)]}],
         "packet-buffer"),
    ],
)  # fmt: skip
def test_rules_that_no_loader_checks_are_errors_too(ops: list[Json], code: str) -> None:
    report = checked(fragment(*ops))
    assert report.is_loadable
    assert not report.ok
    assert code in codes(report)


def test_packets_and_plain_data_do_not_share_scratch() -> None:
    packets = {"name": "cpkt", "src_buff": [chunk("i", 0)], "dst_buff": [chunk("s", 1)]}
    # The packet of chunk 1 lies where plain chunks 2 and 3 do.
    shared = fragment(packets, copied(chunk("i", 0), chunk("s", 3)), protocol="LL")
    apart = fragment(packets, copied(chunk("i", 0), chunk("s", 1)), protocol="LL")
    assert "scratch-forms" in codes(checked(shared))
    assert checked(apart).ok


def packets_by_proxy(*between: Json, source: str = "s") -> Json:
    """Packets of the input, written to scratch and copied by a proxy to the scratch of the peer."""
    plan = sent_by_proxy(
        {"name": "cpkt", "src_buff": [chunk("i", 0)], "dst_buff": [chunk("s", 0)]},
        *between,
        port_put("ppkt", chunk(source, 0), index=1),
        {"name": "upkt", "src_buff": [chunk("s", 1)], "dst_buff": [chunk("o", 0)]},
    )
    for gpu in plan["gpus"]:
        gpu["remote_buffers"][0]["type"] = "s"
    return {**plan, "protocol": "LL", "use_double_scratch_buffer": True}


def test_a_proxy_copies_packets_as_they_are_and_does_not_wait_for_them() -> None:
    report = checked(packets_by_proxy(NOP))
    assert report.ok, [str(found) for found in report.diagnostics]
    # The threads that write the packets are not the one that asks the proxy.
    assert codes(checked(packets_by_proxy())) == {"missing-nop"}
    assert "packet-buffer" in codes(checked(packets_by_proxy(NOP, source="i")))


def test_a_proxy_does_not_order_packets_of_another_thread_block() -> None:
    plan = packets_by_proxy(NOP)
    for gpu in plan["gpus"]:
        (block,) = gpu["threadblocks"]
        ops = block["ops"]
        copy = ops.pop(3)
        gpu["threadblocks"].append(
            {"id": 1, "channels": [], "remote_buffer_refs": [], "ops": [copy]}
        )
    assert not checked(plan).ok


def test_operations_of_a_pipeline_span_its_chunks() -> None:
    context = {"iter_context": {"unit_size": 1024, "num_chunks": 2}}
    short = fragment({"name": "pipeline", **context, "ops": [copied(chunk("i", 0), chunk("o", 0))]})
    assert "pipeline-range" in codes(checked(short))


def test_no_chunks_are_refused_by_the_path_of_their_count() -> None:
    plan = two_ranks()
    plan["gpus"][1]["output_chunks"] = 0
    report = checked(plan)
    assert not report.is_loadable
    assert "$.gpus[1].output_chunks: 0, by which the executor divides; state at least 1" in str(
        report.errors[0]
    )


def test_more_chunks_than_can_be_followed_end_soon() -> None:
    plan = fragment(copied(chunk("i", 0), chunk("o", 0)))
    plan["gpus"][0]["input_chunks"] = 10**9
    report = checked(plan)
    assert "plan-size" in codes(report)
    assert report.verdict == "n/a"


def test_a_put_takes_the_buffer_of_its_first_source_for_all() -> None:
    plan = two_ranks()
    put = operations(plan, 0, 1)[2]
    put["src_buff"] = [chunk("i", 0), chunk("o", 0)]
    put["dst_buff"] = put["dst_buff"] * 2
    report = checked(plan)
    assert "put-sources" in codes(report)
    # Its second source is chunk 0 of the input as well, so the contents are right by chance.
    assert report.verdict == "ok"


def test_a_put_with_signal_does_not_signal_on_memory_channels() -> None:
    plan = two_ranks()
    operations(plan, 0, 1)[2].update(name="pws", channel_ids=[0])
    del operations(plan, 0, 1)[4]
    report = checked(plan)
    assert "memory-signal" in codes(report)
    assert report.verdict == "deadlock"


@pytest.mark.parametrize("place", [1, 3])
def test_missing_block_barrier_is_a_race(place: int) -> None:
    # Between the handshake and the put, and between the put and its signal.
    plan = two_ranks()
    assert operations(plan, 0, 1)[place] == NOP
    del operations(plan, 0, 1)[place]
    report = checked(plan)
    assert codes(report) == {"missing-nop"}
    assert (report.ok, report.verdict) == (False, "race")


@pytest.mark.parametrize("name", ["re", "put"])
def test_operations_on_the_same_data_need_a_block_barrier(name: str) -> None:
    # Ring: the sum is put on, and is made of data that came with a signal.
    plan = ring(3)
    ops = operations(plan, 0, 0)
    place = next(at for at, one in enumerate(ops) if one["name"] == "re")
    removed = place - 1 if name == "re" else place + 1
    assert ops[removed] == NOP
    del ops[removed]
    report = checked(plan)
    assert (codes(report), report.ok) == ({"missing-nop"}, False)


def test_reading_and_writing_other_data_needs_no_block_barrier() -> None:
    first, second = copied(chunk("i", 0), chunk("s", 0)), copied(chunk("i", 0), chunk("s", 1))
    assert checked(fragment(first, second)).ok
    assert not checked(fragment(first, copied(chunk("s", 0), chunk("o", 0)))).ok
    assert not checked(fragment(first, copied(chunk("i", 1), chunk("i", 0)))).ok


def test_wait_and_request_of_one_thread_need_no_block_barrier() -> None:
    plan = sent_by_proxy(port_put("pwsf", chunk("i", 0)), by_port("wait", [0]))
    for rank in range(2):
        assert operations(plan, rank, 0).pop(2) == NOP
    assert checked(plan).ok
    # Thread 0 requests the put, but thread 1 waits for the second channel.
    for rank in range(2):
        for sync in operations(plan, rank, 0)[:2]:
            sync["channel_ids"] = [0, 1]
    assert codes(checked(plan)) == {"missing-nop"}


_WAIT = by_port("wait", [0])
_FLUSH = by_port("flush", [0], dst_buff=[{"buffer_id": 0, "index": 0, "size": 1}])
_SENT = port_put("pws", chunk("i", 0))


@pytest.mark.parametrize(
    "ops",
    [
        [port_put("pwsf", chunk("i", 0)), _WAIT],
        [_SENT, _FLUSH, _WAIT],
        [_SENT, _WAIT, _FLUSH],
        [port_put("put", chunk("i", 0)), by_port("signal", [0]), _FLUSH, _WAIT],
        # The receiver tells that the data is there, so the proxy has read it.
        [_SENT, _WAIT, by_port("signal", [1]), by_port("wait", [1])],
    ],
)
def test_put_that_is_done_before_the_kernel_ends_is_right(ops: list[Json]) -> None:
    report = checked(sent_by_proxy(*ops))
    assert report.diagnostics == ()
    assert (report.verdict, report.verdict_relaunch) == ("ok", "ok")


@pytest.mark.parametrize(
    "ops",
    [
        [_SENT, _WAIT],
        [port_put("put", chunk("i", 0)), by_port("signal", [0]), _WAIT],
        # A flush of another channel waits for nothing that was put through this one.
        [_SENT, _WAIT, by_port("flush", [1], dst_buff=_FLUSH["dst_buff"])],
        # The language leaves dst_buff out, by which the executor counts channels.
        [_SENT, _WAIT, by_port("flush", [0])],
    ],
)
def test_put_that_may_outlast_the_kernel_is_a_warning(ops: list[Json]) -> None:
    report = checked(sent_by_proxy(*ops))
    assert "unflushed-put" in codes(report)
    assert (report.ok, report.verdict, report.verdict_relaunch) == (True, "ok", "ok")
    found = next(str(one) for one in report.diagnostics if one.code == "unflushed-put")
    assert "the kernel may end before the proxy has read chunk 0 of buffer 'i' of rank 0" in found
    assert "write pwsf, or a flush with one dst_buff entry for each channel" in found


def test_put_of_a_collective_without_a_name_is_warned_of_too() -> None:
    assert codes(checked(sent_by_proxy(_SENT, _WAIT, collective="custom"))) >= {"unflushed-put"}


def test_source_of_a_put_that_is_overwritten_before_a_flush_is_a_race() -> None:
    staged = copied(chunk("i", 0), chunk("s", 0))
    reused = copied(chunk("i", 0), chunk("s", 0))
    put = port_put("pws", chunk("s", 0))
    hasty = checked(sent_by_proxy(staged, NOP, put, NOP, reused, _WAIT))
    assert (hasty.ok, hasty.verdict) == (False, "race")
    told = " ".join(str(found) for found in hasty.errors)
    assert "overwrites chunk 0 of buffer 's' of rank 0 while the proxy may not have read it" in told
    # The next launch overwrites it before the other rank has told that it has the data.
    plan = sent_by_proxy(put, _WAIT)
    for rank in range(2):
        operations(plan, rank, 0)[:0] = [staged, NOP]
    hasty = checked(plan)
    assert (hasty.ok, hasty.verdict, hasty.verdict_relaunch) == (False, "ok", "race")
    # The copy of rank 0 is the first operation of all.
    assert [one.location.rank for one in hasty.errors] == [0, 1]
    patient = checked(sent_by_proxy(staged, NOP, put, _FLUSH, NOP, reused, _WAIT))
    assert patient.diagnostics == ()


def test_signal_of_a_memory_channel_does_not_tell_that_a_proxy_is_done() -> None:
    plan = sent_by_proxy(port_put("put", chunk("i", 0)), _FLUSH)
    for rank, gpu in enumerate(plan["gpus"]):
        gpu["channels"].append({"channel_type": "memory", "connected_to": [1 - rank]})
        block = gpu["threadblocks"][0]
        block["channels"].append({"channel_type": "memory", "channel_ids": [0]})
        sync = {"channel_type": "memory", "channel_ids": [0]}
        block["ops"] += [NOP, {"name": "signal", **sync}, {"name": "wait", **sync}]
    assert checked(plan).ok
    for rank in range(2):
        # The flush, and then the block barrier behind it.
        del operations(plan, rank, 0)[4]
    assert checked(plan).verdict == "race"


def test_every_range_of_a_port_put_has_its_channel() -> None:
    put = port_put("pwsf", chunk("i", 0))
    put["channel_ids"] = []
    report = checked(sent_by_proxy(put, _WAIT))
    assert codes(report) == {"port-channels"}
    assert not report.is_loadable


def test_unequal_halves_of_a_double_scratch_are_refused() -> None:
    def exchange(*scratch: int, is_double: bool = True) -> Json:
        plan = two_ranks()
        plan.update(protocol="LL", use_double_scratch_buffer=is_double)
        for rank, gpu in enumerate(plan["gpus"]):
            gpu["scratch_chunks"] = scratch[rank]
            gpu["remote_buffers"][0]["type"] = "s"
            unpacked = {"name": "upkt", "src_buff": [chunk("s", 0)]}
            gpu["threadblocks"][0]["ops"] = [{**unpacked, "dst_buff": [chunk("o", 1 - rank)]}]
            put = operations(plan, rank, 1)[2]
            put.update(name="ppkt", dst_buff=[{"buffer_id": 0, "index": 0, "size": 1}])
            own = copied(chunk("i", 0), chunk("o", rank))
            gpu["threadblocks"][1]["ops"] = [put, own]
        return plan

    assert checked(exchange(2, 2)).ok
    report = checked(exchange(1, 2))
    assert codes(report) == {"scratch-halves"}
    assert (report.ok, report.verdict, report.verdict_relaunch) == (False, "ok", "deadlock")
    assert "1 on rank 0, 2 on rank 1" in str(report.errors[0])
    assert "state 2 on all of them" in str(report.errors[0])
    # One half: senders add nothing to remote addresses.
    assert "scratch-halves" not in codes(checked(exchange(1, 2, is_double=False)))


def test_plain_remote_scratch_stays_in_the_first_half() -> None:
    """Only packets and local operands alternate: `handlePut` adds no half to the remote address."""
    plan = ring(3)
    assert checked(plan).ok
    plan["use_double_scratch_buffer"] = True
    report = checked(plan)
    assert (report.verdict, report.verdict_relaunch) == ("ok", "wrong")


def test_part_of_a_buffer_in_place_is_named_in_the_whole() -> None:
    """The executor adds the offset of the own buffer to the allocation of the other rank."""
    plan = two_ranks()
    assert checked(plan).ok
    plan["inplace"] = True
    # The input is a part of the output: its own copy moves nothing, and the put writes the output.
    assert checked(plan).ok
    for rank, gpu in enumerate(plan["gpus"]):
        gpu["remote_buffers"][0]["type"] = "i"
        operations(plan, rank, 1)[2]["dst_buff"][0]["index"] = 0
    report = checked(plan)
    assert "buffer-offset" in codes(report)
    assert "name the range of buffer 'o' that it is" in str(report.errors)


def test_proxy_reads_a_part_of_a_buffer_from_the_start_of_the_whole() -> None:
    put = port_put("pwsf", chunk("i", 0))
    plan = sent_by_proxy(put, _WAIT, collective="allgather")
    for rank, gpu in enumerate(plan["gpus"]):
        gpu["output_chunks"] = 2
        operations(plan, rank, 0)[3]["dst_buff"][0]["index"] = rank
    plan["inplace"] = True
    report = checked(plan)
    # The part of rank 0 is at the start.
    assert [(found.code, found.location.rank) for found in report.errors] == [("buffer-offset", 1)]
    assert report.verdict == "wrong"
    for rank in range(2):
        operations(plan, rank, 0)[3]["src_buff"] = [chunk("o", rank)]
    assert checked(plan).diagnostics == ()


def gathered_by_switch(num_ranks: int) -> Json:
    """The DSL's zero-copy all-gather by packets through the switch: no signal and no wait."""
    members = {"size": num_ranks, "ranks": list(range(num_ranks))}
    channels = [{"channel_type": "switch", "buffer_type": "s", "rank_groups": [members]}]
    gpus = []
    for rank in range(num_ranks):
        slot = [chunk("s", rank)]
        store = {"name": "gstorepkt", "channel_type": "switch", "src_buff": slot}
        target = {"switch_channel_id": 0, "index": rank, "size": 1}
        blocks: list[list[Json]] = [
            [{"name": "upkt", "src_buff": [chunk("s", k)], "dst_buff": [chunk("o", k)]}]
            for k in range(num_ranks)
        ]
        # The own packets are unpacked by another thread block, which may read them in between.
        packed = {"name": "cpkt", "src_buff": [chunk("o", rank)], "dst_buff": slot}
        blocks[0] = [packed, {**store, "dst_buff": [target]}, *blocks[0]]
        gpus.append(
            {
                "id": rank,
                "input_chunks": 1,
                "output_chunks": num_ranks,
                "scratch_chunks": num_ranks,
                "channels": channels,
                "remote_buffers": [],
                "threadblocks": [
                    {
                        "id": k,
                        "channels": [{"channel_type": "switch", "channel_ids": [0]}],
                        "ops": ops,
                    }
                    for k, ops in enumerate(blocks)
                ],
            }
        )
    header = {"collective": "allgather", "protocol": "LL", "inplace": True}
    return {"name": "g", "use_double_scratch_buffer": True, **header, "gpus": gpus}


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_packets_of_a_switch_tell_all_members_that_they_are_there(num_ranks: int) -> None:
    plan = gathered_by_switch(num_ranks)
    report = checked(plan)
    assert report.diagnostics == ()
    assert (report.verdict, report.verdict_relaunch) == ("ok", "ok")
    plan["gpus"][1]["scratch_chunks"] += 1
    assert codes(checked(plan)) == {"scratch-halves"}


def test_sum_of_a_switch_that_is_not_stored_is_unknown() -> None:
    report = checked(fragment({"name": "glre"}))
    assert "glres" in str(report.errors[0])


def test_a_packet_that_is_written_twice_is_a_race() -> None:
    packets = {"name": "cpkt", "src_buff": [chunk("i", 0)], "dst_buff": [chunk("s", 0)]}
    unpacked = {"name": "upkt", "src_buff": [chunk("s", 0)], "dst_buff": [chunk("o", 0)]}
    once = fragment(packets, unpacked, protocol="LL")
    twice = fragment(packets, packets, unpacked, protocol="LL")
    # Within one thread block they are in order, but the reader may still take the first one.
    assert checked(once).ok
    assert checked(twice).verdict == "race"


def _producers(*consumer: Json) -> Json:
    """Two thread blocks that release one semaphore each when they are done, and a third."""
    release = {"name": "sem_release", "semaphore_ids": [0]}
    plan = fragment(copied(chunk("i", 0), chunk("s", 0)), NOP, release)
    second = [copied(chunk("i", 1), chunk("s", 1)), NOP, release]
    gpu = plan["gpus"][0]
    gpu["semaphores"] = [{"init_value": 0}]
    for number, ops in enumerate([second, list(consumer)], 1):
        gpu["threadblocks"].append(
            {"id": number, "channels": [], "remote_buffer_refs": [], "ops": ops}
        )
    return plan


def test_one_count_of_two_producers_does_not_tell_whose_it_is() -> None:
    acquire = {"name": "sem_acquire", "semaphore_ids": [0]}
    first, second = (copied(chunk("s", k), chunk("o", k)) for k in range(2))
    # After both counts both are known to be done; after one, neither is.
    assert checked(_producers(acquire, acquire, NOP, first, second)).ok
    assert checked(_producers(acquire, NOP, first, acquire, NOP, second)).verdict == "race"


def test_two_thread_blocks_that_take_one_count_each_race() -> None:
    plan = ring(9)
    # Without the semaphore both wait on the channel, and either may come first.
    operations(plan, 0, 0).pop()
    operations(plan, 0, 1).pop(0)
    report = checked(plan)
    assert report.verdict == "race"
    told = " ".join(str(found) for found in report.errors)
    assert "touch memory connection 0 from rank 8 to rank 0 without an order" in told


def test_more_work_than_can_be_followed_ends_soon() -> None:
    most = 1 << 21
    plan = fragment(*[copied(chunk("i", 0, most), chunk("o", 0, most))] * 64)
    plan["gpus"][0].update(input_chunks=most, output_chunks=most)
    report = checked(plan)
    assert codes(report) == {"plan-size"}
    assert report.verdict == "n/a"


def test_an_operation_takes_at_most_eight_channels() -> None:
    for number, is_refused in ((8, False), (9, True)):
        plan = sent_by_proxy()
        for rank in range(2):
            operations(plan, rank, 0)[0]["channel_ids"] = [0] * number
            operations(plan, rank, 0)[1]["channel_ids"] = [0] * number
        assert ("limit-channels-of-operation" in codes(checked(plan))) == is_refused


def test_an_operation_takes_at_most_sixteen_semaphores() -> None:
    for number, is_refused in ((16, False), (17, True)):
        release, acquire = (
            {"name": name, "semaphore_ids": [0] * number} for name in ("sem_release", "sem_acquire")
        )
        plan = fragment(release, acquire)
        plan["gpus"][0]["semaphores"] = [{"init_value": 0}]
        report = checked(plan)
        assert ("limit-semaphores-of-operation" in codes(report)) == is_refused
        assert report.is_loadable != is_refused


def _two_blocks(*ops: Json, gpus: int = 1, **header: object) -> Json:
    """A fragment with two thread blocks on rank 0 that do the same."""
    plan = fragment(*ops, gpus=gpus, **header)
    plan["gpus"][0]["threadblocks"].append(
        {"id": 1, "channels": [], "remote_buffer_refs": [], "ops": list(ops)}
    )
    return plan


def test_uses_of_a_barrier_state_one_number_of_thread_blocks() -> None:
    barrier = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}
    assert checked(_two_blocks(barrier)).diagnostics == ()
    assert checked(_two_blocks(barrier, barrier)).diagnostics == ()
    plan = _two_blocks(barrier, barrier)
    plan["gpus"][0]["threadblocks"][1]["ops"][1] = {**barrier, "num_threadblocks": 3}
    (found,) = checked(plan).errors
    assert found.message.endswith("another use of this barrier states another num_threadblocks")
    assert (found.code, found.location.rank) == ("barrier-blocks", 0)


@pytest.mark.parametrize(
    ("target", "place"),
    [
        (chunk("o", 3), "chunk 3 of buffer 'o' of rank 0"),
        (chunk("s", 0), "chunk 0 of buffer 's' of rank 0"),
        (chunk("s", 3), "chunk 3 of buffer 's' of rank 0"),
    ],
)
def test_a_race_names_the_chunk_that_both_touch(target: Json, place: str) -> None:
    report = checked(_two_blocks(copied(chunk("i", 0), target)))
    assert report.verdict == "race"
    assert f"touch {place} without an order" in str(report.errors[0])


@pytest.mark.parametrize("is_double", [False, True])
def test_a_race_of_packets_names_their_chunk(is_double: bool) -> None:
    packets = {"name": "cpkt", "src_buff": [chunk("i", 0)], "dst_buff": [chunk("s", 1)]}
    plan = _two_blocks(packets, protocol="LL", use_double_scratch_buffer=is_double)
    report = checked(plan)
    assert report.verdict == "race"
    assert "touch chunk 1 of buffer 's' of rank 0 without an order" in str(report.errors[0])


def test_a_relaxed_signal_may_follow_data_that_a_proxy_stores() -> None:
    plan = sent_by_proxy(port_put("pwsf", chunk("i", 0)), _WAIT)
    for rank, gpu in enumerate(plan["gpus"]):
        gpu["channels"].append({"channel_type": "memory", "connected_to": [1 - rank]})
        block = gpu["threadblocks"][0]
        block["channels"].append({"channel_type": "memory", "channel_ids": [0]})
        sync = {"channel_type": "memory", "channel_ids": [0]}
        block["ops"] += [NOP, {"name": "rlxsignal", **sync}, {"name": "rlxwait", **sync}]
    assert "relaxed-signal" not in codes(checked(plan))


def test_more_actors_than_can_be_followed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two thread blocks on each of two ranks, and the two ranks.
    monkeypatch.setattr(check_plan, "_MOST_ACTORS", 6)
    assert checked(two_ranks()).ok
    monkeypatch.setattr(check_plan, "_MOST_ACTORS", 5)
    (found,) = checked(two_ranks()).errors
    assert (found.code, found.message) == (
        "plan-size",
        "6 thread blocks, ranks and lagging port channels; at most 5",
    )


def test_port_channels_whose_puts_may_lag_are_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    # A thread block, the rank itself and its first port channel, on two ranks.
    monkeypatch.setattr(check_plan, "_MOST_ACTORS", 5)
    (found,) = checked(sent_by_proxy(_SENT, _WAIT)).errors
    assert found.message.startswith("6 thread blocks, ranks and lagging port channels")


def test_parts_of_buffers_in_place_are_named_by_the_rank_that_reads_them() -> None:
    """Of an all-gather in place, rank r reads its input, which is chunk r of its output."""
    gpus = []
    for rank in range(3):
        channels = [{"channel_type": "port", "connected_to": [(rank + 1) % 3, (rank - 1) % 3]}]
        put = port_put("pwsf", chunk("i", 0), index=rank)
        block = {
            "id": 0,
            "channels": [{"channel_type": "port", "channel_ids": [0, 1]}],
            "remote_buffer_refs": [{"access_channel_type": "port", "remote_buffer_ids": [0]}],
            "ops": [put, by_port("wait", [1])],
        }
        remote = {"rank": (rank + 1) % 3, "type": "o", "access_channel_types": ["port"]}
        gpus.append(
            {
                "id": rank,
                "input_chunks": 1,
                "output_chunks": 3,
                "scratch_chunks": 0,
                "channels": channels,
                "remote_buffers": [remote],
                "semaphores": [],
                "threadblocks": [block],
            }
        )
    header = {"name": "p", "collective": "allgather", "protocol": "Simple", "inplace": True}
    report = checked({**header, "gpus": gpus})
    found = [one.location.rank for one in report.errors if one.code == "buffer-offset"]
    assert found == [1, 2]


def _chunk_counts(collective: str, *counts: tuple[int, int]) -> Json:
    """A plan without operations whose ranks have these (input, output) chunks."""
    plan = fragment(gpus=len(counts), collective=collective)
    for gpu, (inputs, outputs) in zip(plan["gpus"], counts, strict=True):
        gpu.update(input_chunks=inputs, output_chunks=outputs)
    return plan


@pytest.mark.parametrize(
    ("collective", "counts", "defect"),
    [
        ("allreduce", [(2, 2), (2, 2)], ""),
        ("allreduce", [(2, 2), (4, 4)], "allreduce with different chunk counts on different ranks"),
        ("allreduce", [(2, 4)] * 2, "allreduce of 2 ranks with 2 input and 4 output chunks"),
        ("allgather", [(2, 4)] * 2, ""),
        ("allgather", [(2, 2)] * 2, "allgather of 2 ranks with 2 input and 2 output chunks"),
        ("reducescatter", [(4, 2)] * 2, ""),
        (
            "reducescatter",
            [(4, 4)] * 2,
            "reducescatter of 2 ranks with 4 input and 4 output chunks",
        ),
        ("alltoall", [(4, 4)] * 2, ""),
        ("alltoall", [(3, 3)] * 2, "alltoall of 2 ranks with 3 input and 3 output chunks"),
        ("alltoall", [(4, 2)] * 2, "alltoall of 2 ranks with 4 input and 2 output chunks"),
        ("custom", [(4, 2), (1, 1)], ""),
    ],
)
def test_chunk_counts_are_those_of_the_collective(
    collective: str, counts: list[tuple[int, int]], defect: str
) -> None:
    report = checked(_chunk_counts(collective, *counts))
    found = [one.message for one in report.diagnostics if one.code == "chunk-counts"]
    assert found == ([defect] if defect else [])


def test_puts_at_the_end_of_a_plan_may_outlast_the_kernel() -> None:
    plan = sent_by_proxy(_SENT, _WAIT)
    # The last operation of all is a put of rank 1. It tells rank 0 that its own put is done.
    ops = operations(plan, 1, 0)
    ops[-2:] = ops[-2:][::-1]
    told = " ".join(str(one) for one in checked(plan).diagnostics if one.code == "unflushed-put")
    assert "has read chunk 0 of buffer 'i' of rank 1" in told
    assert "of rank 0" not in told


@pytest.mark.parametrize("pool", [1, 2, 3, 17])
@pytest.mark.parametrize(
    "plan",
    [
        two_ranks(),
        ring(9),
        sent_by_proxy(_SENT, _WAIT),
        fragment(
            copied(chunk("i", 0, 4), chunk("o", 0, 4)), NOP, copied(chunk("i", 0), chunk("s", 0))
        ),
    ],
    ids=["two ranks", "ring", "proxies", "fragment"],
)
def test_pools_of_clocks_and_reads_grow(
    plan: Json, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = checked(plan)
    monkeypatch.setattr(execution, "_FIRST_POOL", pool)
    report = checked(plan)
    assert report.diagnostics == expected.diagnostics
    assert sorted(report.order.tolist()) == sorted(expected.order.tolist())


def _without_handshake() -> Json:
    """Two ranks whose first operation is a put into the output of the other one."""
    plan = sent_by_proxy(port_put("pwsf", chunk("i", 0)), _WAIT)
    for rank in range(2):
        del operations(plan, rank, 0)[:3]
    return plan


def test_a_race_with_the_caller_is_located_at_the_rank_of_the_operation() -> None:
    # Without a handshake, the put of rank 0, its first operation, meets the caller of rank 1, who
    # still reads the output of the launch before.
    report = checked(_without_handshake())
    races = [one for one in report.errors if one.code == "race"]
    assert races[0].message.startswith("the caller of rank 1")
    assert "and pwsf of rank 0, thread block 0, ops[0] touch" in races[0].message
    assert [one.location.rank for one in races] == [0, 1]


@pytest.mark.parametrize(
    ("name", "between", "is_warned"),
    [
        ("put", [], True),
        ("put", [{"name": "barrier", "barrier_id": 0, "num_threadblocks": 1}], False),
        ("ppkt", [], False),
    ],
)
def test_a_relaxed_signal_does_not_order_plain_data(
    name: str, between: list[Json], is_warned: bool
) -> None:
    plan = two_ranks()
    plan["protocol"] = "LL"
    for rank, gpu in enumerate(plan["gpus"]):
        put = next(one for one in operations(plan, rank, 1) if one["name"] == "put")
        put["name"] = name
        if name == "ppkt":
            gpu["remote_buffers"][0]["type"] = "s"
            gpu["scratch_chunks"] = 4
        ops = operations(plan, rank, 1)
        at = ops.index(next(one for one in ops if one["name"] == "signal"))
        ops[at]["name"] = "rlxsignal"
        ops[at:at] = between
    found = [one.message for one in checked(plan).diagnostics if one.code == "relaxed-signal"]
    expected = f"a relaxed signal does not order the data stored at rank {1} before"
    assert (expected in " ".join(found)) == is_warned


@pytest.mark.parametrize(
    ("plan", "verdict"),
    [
        (two_ranks(), "mscclpp loads it; it runs rightly, in 3 launches one after the other"),
        (
            fragment(copied(chunk("i", 0), chunk("o", 0))),
            "mscclpp loads it; a fragment, which promises nothing: alone, it runs rightly",
        ),
        (
            fragment(*[NOP] * 65),
            "mscclpp refuses it; a fragment, which promises nothing: alone, it runs rightly",
        ),
        (
            sent_by_proxy(port_put("pwsf", chunk("i", 0))),
            "mscclpp loads it; operations race",
        ),
        (
            _without_handshake(),
            "mscclpp loads it; it runs rightly once, and launch after launch operations race",
        ),
    ],
    ids=["right", "fragment", "refused", "race", "later race"],
)
def test_the_verdict_in_words(plan: Json, verdict: str) -> None:
    source = Source.of_bytes("plan.json", json.dumps(plan).encode())
    assert check_mscclpp(CheckRequest(source=source), NoOptions()).verdict == verdict


@pytest.mark.parametrize(("most", "expected"), [(None, 65_535 * 1024 // 2 * 4), (1 << 20, 1 << 20)])
def test_calls_end_where_slices_of_a_pipeline_can_no_longer_be_counted(
    most: int | None, expected: int
) -> None:
    """The executor counts slices in 16 bits: 65 535 slices of 1 KiB for two of four chunks."""
    context = {"iter_context": {"unit_size": 1024, "num_chunks": 2}}
    copies = [copied(chunk("i", 0, 2), chunk("o", 0, 2))]
    plan = fragment({"name": "pipeline", **context, "ops": copies})
    if most is not None:
        plan["max_message_size"] = most
    source = Source.of_bytes("plan.json", json.dumps(plan).encode())
    report = check_mscclpp(CheckRequest(source=source), NoOptions())
    assert [call.max_bytes for call in report.calls] == [expected]


@pytest.mark.parametrize(("operand", "verdict"), [("i", "ok"), ("s", "wrong")])
def test_a_sum_with_data_that_nobody_wrote_is_undefined(operand: str, verdict: str) -> None:
    """Memory that nobody wrote may hold anything, even if zeros would give the right sum."""
    terms = [chunk("i", 0)] if operand == "i" else [chunk("i", 0), chunk(operand, 0)]
    name = "copy" if operand == "i" else "re"
    sums = {"name": name, "src_buff": terms, "dst_buff": [chunk("o", 0)]}
    plan = fragment(sums, collective="allreduce")
    plan["gpus"][0].update(input_chunks=1, output_chunks=1)
    assert checked(plan).verdict == verdict


def test_members_of_a_switch_group_list_it_in_one_order() -> None:
    plan = gathered_by_switch(2)
    groups = plan["gpus"][0]["channels"][0]["rank_groups"]
    plan["gpus"][1]["channels"] = json.loads(json.dumps(plan["gpus"][1]["channels"]))
    groups.append({"size": 2, "ranks": [0, 1]})
    report = checked(plan)
    assert not report.is_loadable
    messages = [found.message for found in report.errors if found.code == "switch-order"]
    assert len(messages) == 1
    assert "its switch channels with rank 1 are not those that rank 1 lists" in messages[0]


@pytest.mark.parametrize(("initial", "verdict"), [(0, "ok"), (1, "race")])
def test_a_count_that_is_there_at_first_tells_nothing(initial: int, verdict: str) -> None:
    release = {"name": "sem_release", "semaphore_ids": [0]}
    acquire = {"name": "sem_acquire", "semaphore_ids": [0]}
    plan = fragment(copied(chunk("i", 0), chunk("s", 0)), NOP, release)
    gpu = plan["gpus"][0]
    gpu["semaphores"] = [{"init_value": initial}]
    ops = [acquire, NOP, copied(chunk("s", 0), chunk("o", 0))]
    gpu["threadblocks"].append({"id": 1, "channels": [], "remote_buffer_refs": [], "ops": ops})
    assert checked(plan).verdict == verdict


def test_local_scratch_and_packets_alternate_between_halves() -> None:
    """`handlePut` and `handleCopy` of the executor: remote addresses are taken as they are."""
    plan = two_ranks()
    plan["use_double_scratch_buffer"] = True
    for rank, gpu in enumerate(plan["gpus"]):
        gpu["scratch_chunks"] = 2
        gpu["remote_buffers"][0]["type"] = "s"
        put = next(one for one in operations(plan, rank, 1) if one["name"] == "put")
        put["src_buff"], put["dst_buff"][0]["index"] = [chunk("s", 1)], 0
    parsed = parse_plan(json.dumps(plan).encode(), "plan.json")
    memory = plan_memory(parsed)
    ranges = ranges_of(parsed, memory)
    is_put = parsed.operands.scope[ranges.operand] == Scope.REMOTE
    is_scratch = ranges.buffer == BUFFER_TYPES.index("s")
    assert is_scratch.sum() == 4
    assert set(ranges.shift[is_scratch & ~is_put].tolist()) == {memory.half[0]}
    assert set(ranges.shift[is_put | ~is_scratch].tolist()) == {0}


def test_a_file_that_is_no_plan_is_not_accepted() -> None:
    source = Source.of_bytes("plan.json", b"{}")
    report = check_mscclpp(CheckRequest(source=source), NoOptions())
    assert not report.ok
    assert report.verdict == "mscclpp refuses it: it is no execution plan"
    assert report.facts == {"is_accepted": False}


@pytest.mark.parametrize(
    ("plan", "conditions"),
    [
        (two_ranks(), ("bytes of the output", "input bytes divisible by 16")),
        (ring(2), ("input bytes divisible by 32", "operator sum")),
    ],
    ids=["all-gather", "all-reduce"],
)
def test_calls_state_the_buffer_whose_size_counts(plan: Json, conditions: tuple[str, str]) -> None:
    source = Source.of_bytes("plan.json", json.dumps(plan).encode())
    (call,) = check_mscclpp(CheckRequest(source=source), NoOptions()).calls
    assert call.conditions == conditions


def test_a_relaxed_signal_of_another_thread_block_is_not_warned_of() -> None:
    plan = two_ranks()
    for rank, gpu in enumerate(plan["gpus"]):
        storing = operations(plan, rank, 1)
        at = next(k for k, one in enumerate(storing) if one["name"] == "signal")
        # The signal moves to a thread block that stores nothing.
        signal = {**storing.pop(at), "name": "rlxsignal"}
        gpu["threadblocks"].append({**gpu["threadblocks"][1], "id": 2, "ops": [signal]})
    assert "relaxed-signal" not in codes(checked(plan))
