"""Plans that the writer makes run rightly, launch after launch, and say what was meant."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.plan_records import Plan
from collhub_mscclpp.plugin import PlanWriteOptions
from collhub_mscclpp.reading.read import read
from collhub_mscclpp.reading.read_plan import parse_plan
from collhub_mscclpp.writing.write import build_draft, write
from executor_verdicts import run_plan, run_written

from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    InputError,
    ReduceOp,
    StepKind,
    StepTableBuilder,
    UsageError,
)
from hub_core.plugin_api import NoOptions, Source
from hub_core.testing import (
    all_samples,
    direct_all_to_all,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from hub_core.verification import verify

SAMPLES = all_samples(4)
WAYS = {
    "simple": PlanWriteOptions(),
    "packets": PlanWriteOptions(protocol="LL"),
    "shared": PlanWriteOptions(tbg=3),
    "shared-packets": PlanWriteOptions(protocol="LL", tbg=2),
    "nodes": PlanWriteOptions(nodes=2),
    "shared-nodes": PlanWriteOptions(nodes=2, tbg=2),
    "pushed": PlanWriteOptions(pull=False),
    "slices": PlanWriteOptions(slices=4096),
    "slices-nodes": PlanWriteOptions(nodes=2, slices=4096),
}


def content(algorithm: Algorithm, way: PlanWriteOptions | None = None) -> bytes:
    (artifact,) = write(algorithm, way or PlanWriteOptions()).artifacts
    return artifact.content()


def parsed(algorithm: Algorithm, way: PlanWriteOptions | None = None) -> Plan:
    return parse_plan(content(algorithm, way), "written.json")


def operations(algorithm: Algorithm, way: PlanWriteOptions | None = None) -> list[dict[str, Any]]:
    document = json.loads(content(algorithm, way))
    blocks = [block for gpu in document["gpus"] for block in gpu["threadblocks"]]
    return [operation for block in blocks for operation in block["ops"]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SAMPLES)
def test_written_plan_passes_three_launches(name: str, way: str) -> None:
    report = check_plan(parsed(SAMPLES[name], WAYS[way]))
    assert report.diagnostics == ()
    assert (report.is_loadable, report.verdict) == (True, "ok")
    assert report.is_fragment or report.verdict_relaunch == "ok"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SAMPLES)
def test_written_plan_is_read_as_an_algorithm_that_verifies(name: str, way: str) -> None:
    source = Source.of_bytes("written.json", content(SAMPLES[name], WAYS[way]))
    back = read(source, NoOptions())
    assert verify(back).ok
    kind = SAMPLES[name].collective.kind
    assert back.collective.kind in (kind, CollectiveKind.CUSTOM)
    assert back.num_ranks == SAMPLES[name].num_ranks


@pytest.mark.parametrize("name", ["direct-gather", "direct-scatter"])
def test_parts_of_a_rooted_call_in_place_are_not_taken_for_one_buffer(name: str) -> None:
    """A custom plan does not say which part of the root's vector is its other buffer."""
    algorithm = SAMPLES[name]
    collective = replace(algorithm.collective, in_place=True, out_of_place=False)
    served = replace(algorithm, collective=collective)
    assert verify(served).ok
    plan = parsed(served)
    assert not plan.header.in_place
    assert check_plan(plan).diagnostics == ()
    losses = {loss.feature for loss in write(served, PlanWriteOptions()).losses}
    assert "in_place" in losses


def test_all_gather_lands_in_place() -> None:
    draft = build_draft(ring_all_gather(4), PlanWriteOptions())
    assert draft.landing.is_direct[draft.work.messages.receive].all()
    assert draft.landing.scratch.tolist() == [0, 0, 0, 0]


def test_message_over_data_of_the_call_is_staged() -> None:
    draft = build_draft(ring_all_reduce(4), PlanWriteOptions())
    receives = draft.work.messages.receive
    staged = receives[~draft.landing.is_direct[receives]]
    assert len(staged) >= 4 * 3
    assert set(draft.landing.buffer[staged].tolist()) == {int(Buffer.SCRATCH)}


def test_sum_goes_on_in_the_operation_that_makes_it() -> None:
    names = Counter(operation["name"] for operation in operations(ring_all_reduce(4)))
    # Two of the three reductions of a rank are sent on at once, and so is the last, by all-gather.
    assert names["res"] == 12
    assert names["re"] == 0


def test_what_stays_with_its_sender_is_added_from_there() -> None:
    draft = build_draft(ring_reduce_scatter(4), PlanWriteOptions())
    assert draft.landing.is_pulled[draft.work.messages.receive].all()
    assert draft.landing.scratch.max() <= ring_reduce_scatter(4).scratch_units.max()
    names = Counter(operation["name"] for operation in operations(ring_reduce_scatter(4)))
    assert (names["rre"], names["put"], names["res"], names["re"]) == (12, 0, 0, 0)


def summed_at_the_root(num_ranks: int) -> Algorithm:
    """Rank 0 adds the vectors of all others to its own, one after another."""
    steps = StepTableBuilder(num_ranks)
    before: list[int] = []
    for peer in range(1, num_ranks):
        region = {"src_buffer": Buffer.INPUT, "count": 1}
        steps.add(peer, StepKind.SEND, peer=0, **region)
        target = {"dst_buffer": Buffer.INPUT, "peer": peer}
        before = [steps.add(0, StepKind.RECV_REDUCE, data=before, **region, **target)]
    collective = Collective(
        CollectiveKind.REDUCE, num_ranks, 1, root=0, in_place=True, out_of_place=False
    )
    return Algorithm(collective, steps.build(), collective.input_units() * 0)


@pytest.mark.parametrize(
    ("way", "name"), [("simple", "rre"), ("pushed", "re"), ("packets", "repkt")]
)
def test_messages_for_one_sum_are_added_by_one_operation(way: str, name: str) -> None:
    found = operations(summed_at_the_root(4), WAYS[way])
    (summed,) = [one for one in found if one["name"] == name]
    assert len(summed["src_buff"]) == 4
    assert check_plan(parsed(summed_at_the_root(12), WAYS[way])).diagnostics == ()


def exchanged() -> Algorithm:
    """Two ranks send each other their vectors, and each adds what comes to its own."""
    steps = StepTableBuilder(2)
    for rank in (0, 1):
        mine = {"src_buffer": Buffer.INPUT, "count": 1, "peer": 1 - rank}
        sent = steps.add(rank, StepKind.SEND, **mine)
        added = {**mine, "dst_buffer": Buffer.INPUT}
        steps.add(rank, StepKind.RECV_REDUCE, control=[sent], **added)
    collective = Collective(CollectiveKind.ALL_REDUCE, 2, 1, in_place=True, out_of_place=False)
    return Algorithm(collective, steps.build(), collective.input_units() * 0)


def test_what_its_sender_writes_again_is_put() -> None:
    draft = build_draft(exchanged(), PlanWriteOptions())
    assert not draft.landing.is_pulled.any()
    assert check_plan(parsed(exchanged())).verdict_relaunch == "ok"


def test_a_sender_that_did_not_wait_for_its_reader_would_race() -> None:
    document = json.loads(content(ring_reduce_scatter(4)))
    for gpu in document["gpus"]:
        for block in gpu["threadblocks"]:
            # The last wait of a block is the one for whoever reads here.
            if block["ops"][-1]["name"] == "wait":
                block["ops"].pop()
    report = check_plan(parse_plan(json.dumps(document).encode(), "hasty.json"))
    assert not report.ok


def test_slices_are_pipelines_of_all_messages() -> None:
    for operation in operations(ring_all_reduce(4), WAYS["slices"]):
        assert "src_buff" not in operation or operation["name"] == "copy"
        if operation["name"] == "pipeline":
            assert operation["iter_context"] == {"unit_size": 4096, "num_chunks": 1}


def test_window_ends_where_slices_are_not_counted_any_more() -> None:
    header = parsed(ring_all_reduce(4), WAYS["slices"]).header
    assert header.max_bytes == 65_535 * 4096 * 4


def star(num_ranks: int, lane: int = 0) -> Algorithm:
    """Rank 0 sends its vector to all others, on one lane."""
    steps = StepTableBuilder(num_ranks)
    for peer in range(1, num_ranks):
        region = {"count": 1, "lane": lane}
        steps.add(0, StepKind.SEND, peer=peer, src_buffer=Buffer.INPUT, **region)
        steps.add(peer, StepKind.RECV, peer=0, dst_buffer=Buffer.OUTPUT, **region)
    collective = Collective(CollectiveKind.BROADCAST, num_ranks, 1, root=0)
    return Algorithm(collective, steps.build(), collective.input_units() * 0)


def test_puts_to_several_peers_are_one() -> None:
    names = [one for one in operations(star(4)) if one["name"] in ("put", "signal")]
    assert [len(one.get("dst_buff", one.get("channel_ids"))) for one in names] == [3, 3]


def test_operators_other_than_sum_are_refused() -> None:
    algorithm = ring_all_reduce(4)
    collective = replace(algorithm.collective, reduce_op=ReduceOp.MAX)
    with pytest.raises(InputError, match="the executor always sums"):
        write(replace(algorithm, collective=collective), PlanWriteOptions())


def test_first_message_of_a_channel_waits_for_the_launch_of_its_receiver() -> None:
    plan = json.loads(content(ring_all_gather(4)))
    for gpu in plan["gpus"]:
        names = [one["name"] for block in gpu["threadblocks"] for one in block["ops"]]
        assert names.count("rlxsignal") == names.count("rlxwait") == 1
        assert names.index("rlxwait") < names.index("put")


def test_long_thread_block_goes_on_in_another() -> None:
    plan = parsed(ring_all_gather(24))
    blocks = Counter(int(block) for block in plan.operations.block)
    assert max(blocks.values()) <= 64
    assert check_plan(plan).ok


@pytest.mark.once
def test_thread_block_of_many_peers_goes_on_in_another() -> None:
    # 69 peers: more connections than thread blocks of a rank, so that some share one.
    plan = parsed(direct_all_to_all(70))
    assert max(len(block.channels["memory"]) for block in plan.blocks) <= 16
    assert check_plan(plan, launches=1).ok


def test_ranks_of_other_nodes_are_reached_by_port_channels() -> None:
    gpus = parsed(direct_all_to_all(4), PlanWriteOptions(nodes=2)).gpus
    assert set(gpus[0].peers["memory"]) == {1}
    assert set(gpus[0].peers["port"]) == {2, 3}


@pytest.mark.parametrize("way", ["nodes", "shared-nodes", "slices-nodes"])
def test_put_by_a_proxy_is_flushed_before_its_thread_block_goes_on(way: str) -> None:
    found = operations(direct_all_to_all(4), WAYS[way])
    flat = [inner for one in found for inner in one.get("ops", [one])]
    puts = [at for at, one in enumerate(flat) if one["name"] == "pws"]
    assert len(puts) == 8 * WAYS[way].tbg
    for at in puts:
        flush = flat[at + 1]
        assert (flush["name"], flush["channel_ids"]) == ("flush", flat[at]["channel_ids"])
        # The executor counts the channels of a flush by its destinations.
        assert len(flush["dst_buff"]) == 1


def run_in_place(
    algorithm: Algorithm, way: PlanWriteOptions, chunk_bytes: int = 80, *, is_only_mode: bool = True
) -> str:
    """The executor's verdict on calls in place, with the collective claimed for them."""
    modes = {"in_place": True, "out_of_place": not is_only_mode}
    collective = replace(algorithm.collective, **modes)
    written = content(replace(algorithm, collective=collective), way)
    return run_written(written, collective, 1, chunk_bytes)[True].verdict


def gathered_from_inputs(num_ranks: int) -> Algorithm:
    """Every rank sends its input to all others."""
    steps = StepTableBuilder(num_ranks)
    for rank in range(num_ranks):
        own = {"src_buffer": Buffer.INPUT, "count": 1}
        steps.add(rank, StepKind.COPY, dst_buffer=Buffer.OUTPUT, dst_offset=rank, **own)
        for peer in set(range(num_ranks)) - {rank}:
            steps.add(rank, StepKind.SEND, peer=peer, **own)
            received = {"dst_buffer": Buffer.OUTPUT, "dst_offset": peer, "count": 1}
            steps.add(rank, StepKind.RECV, peer=peer, **received)
    collective = Collective(CollectiveKind.ALL_GATHER, num_ranks, num_ranks)
    return Algorithm(collective, steps.build(), collective.input_units() * 0)


def test_part_of_a_gathered_vector_is_read_from_the_whole_through_ports() -> None:
    # A port counts from the start of the allocation, which in place is that of the output.
    way, algorithm = WAYS["nodes"], gathered_from_inputs(4)
    assert run_in_place(algorithm, way) == "right"
    both = replace(algorithm.collective, in_place=True)
    losses = write(replace(algorithm, collective=both), way).losses
    assert any("correct only out of place" in loss.consequence for loss in losses)
    assert run_in_place(algorithm, way, is_only_mode=False) == "wrong"


def scattered_by(root: int, num_ranks: int) -> Algorithm:
    """The root sends every rank its part, and keeps its own."""
    steps = StepTableBuilder(num_ranks)
    for peer in range(num_ranks):
        region = {"src_buffer": Buffer.INPUT, "src_offset": peer, "count": 1}
        if peer == root:
            steps.add(root, StepKind.COPY, dst_buffer=Buffer.OUTPUT, **region)
        else:
            steps.add(root, StepKind.SEND, peer=peer, **region)
            steps.add(peer, StepKind.RECV, peer=root, dst_buffer=Buffer.OUTPUT, count=1)
    collective = Collective(CollectiveKind.SCATTER, num_ranks, num_ranks, root=root)
    return Algorithm(collective, steps.build(), collective.input_units() * 0)


@pytest.mark.parametrize("root", [0, 2])
def test_buffers_at_other_offsets_than_the_own_are_not_written_directly(root: int) -> None:
    # The executor adds the offset of the root's output, a part of its input, to all addresses.
    assert run_in_place(scattered_by(root, 3), WAYS["pushed"]) == "right"


def test_packets_of_a_gather_in_place_are_refused() -> None:
    gather = SAMPLES["direct-gather"]
    collective = replace(gather.collective, in_place=True, out_of_place=False)
    with pytest.raises(UsageError, match="need equal scratch everywhere"):
        write(replace(gather, collective=collective), WAYS["packets"])


@pytest.mark.parametrize(("chunk_bytes", "verdict"), [(32, "throws"), (48, "right")])
def test_every_thread_block_of_a_group_has_data(chunk_bytes: int, verdict: str) -> None:
    # With more parts than units of 16 bytes the executor's parts do not cover a range.
    plan = json.loads(content(ring_all_reduce(4), WAYS["shared"]))
    assert plan["min_message_size"] == 3 * 16 * plan["gpus"][0]["input_chunks"]
    assert run_plan(plan, chunk_bytes).verdict == verdict


def test_parts_of_a_thread_block_divide_every_operation_on_data() -> None:
    for operation in operations(ring_all_reduce(4), PlanWriteOptions(tbg=2)):
        if "src_buff" in operation:
            assert operation["tbg_info"]["tbg_size"] == 2


def test_window_of_sizes_is_stated() -> None:
    header = parsed(ring_all_reduce(2), PlanWriteOptions(min_size=1024, max_size=65536)).header
    assert (header.min_bytes, header.max_bytes) == (1024, 65536)


def test_name_tells_the_content() -> None:
    one, other = parsed(ring_all_reduce(4)), parsed(ring_all_reduce(4), PlanWriteOptions(tbg=2))
    assert one.header.name == parsed(ring_all_reduce(4)).header.name
    assert one.header.name != other.header.name


def test_packets_use_both_halves_of_the_scratch() -> None:
    plan = parsed(ring_all_reduce(4), PlanWriteOptions(protocol="LL"))
    assert (plan.header.protocol, plan.header.double_scratch) == ("LL", True)
    names = {one["name"] for one in operations(ring_all_reduce(4), WAYS["packets"])}
    assert "respkt" in names
    assert not names & {"signal", "wait"}


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (PlanWriteOptions(nodes=3), "4 ranks do not divide into 3 nodes"),
        (PlanWriteOptions(protocol="LL", nodes=2), "packets do not travel between nodes"),
        (PlanWriteOptions(min_size=2, max_size=1), "max_size=1 is less than min_size=2"),
        (PlanWriteOptions(protocol="LL", slices=64), "slices are for protocol=Simple and tbg=1"),
        (PlanWriteOptions(tbg=2, slices=64), "slices are for protocol=Simple and tbg=1"),
        (PlanWriteOptions(slices=100), "slices=100 is no multiple of 16 bytes"),
        (PlanWriteOptions(slices=16, max_size=1 << 30), "slices of 16 bytes reach 4194240 bytes"),
    ],
)
def test_options_that_contradict_are_refused(way: PlanWriteOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        write(ring_all_reduce(4), way)


def test_unmatched_send_is_refused() -> None:
    steps = StepTableBuilder(2)
    source = {"src_buffer": Buffer.INPUT, "count": 1}
    steps.add(0, StepKind.SEND, peer=1, **source)
    collective = Collective(CollectiveKind.ALL_GATHER, 2, 2)
    with pytest.raises(InputError, match="nothing at rank 1"):
        write(Algorithm(collective, steps.build(), collective.input_units() * 0), WAYS["simple"])
