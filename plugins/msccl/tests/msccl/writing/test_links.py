"""What the writer makes of links that messages share, and of places that are used again."""

from __future__ import annotations

import re
from itertools import product

import pytest
from collhub_msccl.plugin import ReadOptions, WriteOptions
from collhub_msccl.reading.read_xml import read, read_program
from collhub_msccl.writing.draft import build_draft
from collhub_msccl.writing.execution_times import compute_block_figures, compute_link_times
from collhub_msccl.writing.scratch import rename_scratch_values
from collhub_msccl.writing.spread import Fusing, find_fusable_pairs
from collhub_msccl.writing.write_xml import write

from hub_core.model import Algorithm, Buffer, StepKind
from hub_core.plugin_api import Source
from hub_core.testing import CustomSteps
from hub_core.verification import verify

BUFFER = 1 << 30
# Of a buffer's time, in a small and in a large call.
LATENCIES = 1 / 2, 1 / 1024


def _written(algorithm: Algorithm) -> Source:
    (artifact,) = write(algorithm, WriteOptions("msccl", channels=32)).artifacts
    return Source.of_bytes("x.xml", artifact.content())


@pytest.mark.parametrize(
    ("is_in_turn", "crossings", "hops"),
    # Side by side, the second message follows the first one right behind on both links.
    [(False, 3, 2), (True, 4, 4)],
)
def test_messages_share_links_and_blocks_wait_for_their_arrival(
    is_in_turn: bool, crossings: int, hops: int
) -> None:
    steps = CustomSteps(2, 4)
    sent: list[int] = []
    for unit in range(2):
        control = sent if is_in_turn else []
        sent = [steps.send(0, 1, unit, channel=unit, control=control)]
        steps.receive(1, 0, unit, channel=unit)
    expected = [BUFFER * (crossings / 4 + hops * latency) for latency in LATENCIES]
    assert list(compute_link_times(steps.algorithm())) == expected


def test_ranks_that_send_to_all_begin_with_different_ones() -> None:
    ranks = 8
    steps = CustomSteps(ranks, ranks)
    for rank, peer in product(range(ranks), repeat=2):
        if rank != peer:
            steps.send(rank, peer, peer)
            steps.receive(rank, peer, peer)
    large = compute_link_times(read(_written(steps.algorithm()), ReadOptions()))[1]
    # All that a rank sends crosses its link, the last message then another one.
    assert large == BUFFER * ((ranks - 1) / ranks + 1 / ranks + 2 * LATENCIES[1])


def _staged() -> Algorithm:
    """Four units reach rank 1 through one place in scratch, one after the other."""
    steps = CustomSteps(2, 4)
    place = {"src_buffer": Buffer.SCRATCH, "src_offset": 0, "count": 1}
    last: list[int] = []
    for unit in range(4):
        steps.send(0, 1, unit, channel=unit)
        received = steps.add(
            1, StepKind.RECV, peer=0, count=1, channel=unit, dst_buffer=Buffer.SCRATCH, data=last
        )
        target = {"dst_buffer": Buffer.OUTPUT, "dst_offset": unit}
        last = [steps.add(1, StepKind.COPY, data=[received], **place, **target)]
    return steps.algorithm(scratch_units=1)


def test_values_that_took_turns_in_scratch_no_longer_wait_for_each_other() -> None:
    file = _written(_staged())
    # Receive and copy of all four side by side, where one after the other takes eight.
    assert compute_block_figures(read_program(file)[1]).makespan == 2
    assert max(int(text) for text in re.findall(rb's_chunks="(\d+)"', file.content())) == 4
    assert verify(read(file, ReadOptions())).modes["out_of_place"].verdict == "ok"


def test_values_that_a_step_reads_together_keep_their_distance() -> None:
    steps = CustomSteps(2, 4)
    last: list[int] = []
    for _ in range(2):
        written = []
        for unit in (0, 1):
            region = {"dst_buffer": Buffer.SCRATCH, "dst_offset": unit, "count": 1, "data": last}
            source = {"src_buffer": Buffer.INPUT, "src_offset": unit}
            written.append(steps.add(0, StepKind.COPY, **source, **region))
        scratch = {"src_buffer": Buffer.SCRATCH, "src_offset": 0, "count": 2}
        last = [steps.add(0, StepKind.SEND, peer=1, data=written, **scratch)]
        steps.receive(1, 0, count=2)
    own = rename_scratch_values(steps.algorithm())
    assert own is not None
    rows = own.steps
    assert rows.dst_offset[rows.rank == 0].tolist() == [0, 1, 0, 2, 3, 0]
    assert rows.src_offset[rows.rank == 0].tolist() == [0, 1, 0, 0, 1, 2]
    assert own.scratch_units.tolist() == [4, 0]


def test_conflicts_that_nothing_orders_are_not_put_in_order() -> None:
    steps = CustomSteps(3, 4)
    for rank in (0, 1):
        steps.send(rank, 2)
        steps.receive(2, rank)
    back = read(_written(steps.algorithm()), ReadOptions())
    assert not verify(back).ok


@pytest.mark.parametrize(
    ("is_needed_elsewhere", "found"),
    # What else is sent on would have to wait until the first send has arrived.
    [(False, {"all": 1, "prompt": 1, "none": 0}), (True, {"all": 1, "prompt": 0, "none": 0})],
)
def test_receives_are_promptly_fused_where_nothing_else_waits_for_them(
    is_needed_elsewhere: bool, found: dict[str, int]
) -> None:
    steps = CustomSteps(4, 4)
    steps.send(0, 1)
    received = steps.receive(1, 0)
    passed_on = {"src_buffer": Buffer.OUTPUT, "src_offset": 0, "count": 1, "data": [received]}
    for peer in (2, 3) if is_needed_elsewhere else (2,):
        steps.add(1, StepKind.SEND, peer=peer, **passed_on)
        steps.receive(peer, 1)
    draft = build_draft(steps.algorithm(), with_control=False)
    pairs = {fusing.value: len(find_fusable_pairs(draft, True, fusing, 1)[0]) for fusing in Fusing}
    assert pairs == found


def test_runs_of_reductions_wait_for_no_operand_that_comes_later() -> None:
    steps = CustomSteps(2, 4)
    target = {"dst_buffer": Buffer.INPUT, "dst_offset": 0, "count": 1}
    target["src_buffer"] = Buffer.SCRATCH
    last: list[int] = []
    for unit in range(3):
        received = []
        # The last operand comes behind another message.
        if unit == 2:
            steps.send(1, 0, 3, channel=9)
            received = [steps.receive(0, 1, 3, channel=9)]
        steps.send(1, 0, unit, channel=unit)
        region = {"dst_buffer": Buffer.SCRATCH, "dst_offset": unit, "count": 1, "channel": unit}
        arrived = steps.add(0, StepKind.RECV, peer=1, data=received, **region)
        last = [steps.add(0, StepKind.REDUCE, src_offset=unit, data=[arrived, *last], **target)]
    draft = build_draft(steps.algorithm(), with_control=False)
    runs = {fusing: len(find_fusable_pairs(draft, True, fusing, 1)[0]) for fusing in Fusing}
    assert runs == {Fusing.ALL: 2, Fusing.PROMPT: 1, Fusing.NONE: 2}
