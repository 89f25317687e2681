"""The executor model agrees with what is known of MSCCL++: its own plans, and plans that fail."""

from __future__ import annotations

import csv
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from collhub_mscclpp.plugin import PlanWriteOptions
from collhub_mscclpp.writing.write import write
from executor_plan import Call, LoaderError, load_plan, share_offset
from executor_verdicts import run_call, run_plan
from made_plans import NOP, checked, chunk, codes, copied, fragment, operations, ring, two_ranks

from hub_core.model import InputError
from hub_core.testing import ring_all_gather, ring_all_reduce

CORPUS = Path(__file__).resolve().parents[5] / "shared" / "corpus"
# Five units of 16 bytes: odd, and one for each part of the largest thread block group.
CHUNK_BYTES = 80
# Requests of these plans are not flushed, so that the caller overwrites what the proxy then reads.
UNFLUSHED = {"mn_reducescatter_n1.json", "mn_reducescatter_n4.json", "mn_send_recv_n4_i1.json"}
VERDICTS = {"ok": "right", "race": "wrong", "deadlock": "hang"}


def listed_plans() -> list[tuple[str, str]]:
    """(file, known verdict) of the official plans that the loader takes."""
    index = CORPUS / "mscclpp" / "index.csv"
    if not index.exists():
        return []
    with index.open() as lines:
        return [
            (row["file"], "wrong" if row["file"] in UNFLUSHED else VERDICTS[row["verdict"]])
            for row in csv.DictReader(lines)
            if "zero" not in row["problems"] and row["verdict"] in VERDICTS
        ]


def read_plan(folder: str, file: str) -> dict[str, Any]:
    path = CORPUS / folder / file
    if not path.exists():
        pytest.skip("the corpus of plans is not next to the checkout")
    plan: dict[str, Any] = json.loads(path.read_bytes())
    return plan


@pytest.mark.parametrize(("file", "verdict"), listed_plans())
def test_official_plans_have_their_known_verdicts(file: str, verdict: str) -> None:
    outcome = run_plan(read_plan("mscclpp", file), CHUNK_BYTES)
    assert outcome.verdict == verdict, outcome


@pytest.mark.parametrize(
    ("file", "verdicts"),
    [
        ("1_49.json", {"hang", "out of bounds"}),
        ("1_70.json", {"wrong"}),
        ("multi_node_send_recv_1_2_0x0_1.json", {"wrong"}),
        ("single_node_allgather_nvls_zero_copy_pkt_2_1.json", {"right"}),
    ],
)
def test_plans_of_others_have_their_known_verdicts(file: str, verdicts: set[str]) -> None:
    plan = read_plan("strangers/plans", file)
    # The smallest size of one of these plans is 1 KiB.
    assert run_plan(plan, 1024).verdict in verdicts


def test_unequal_scratch_fails_in_the_second_launch_only() -> None:
    plan = read_plan("strangers/plans", "1_49.json")
    assert run_plan(plan, launches=1).verdict == "right"
    largest = max(gpu["scratch_chunks"] for gpu in plan["gpus"])
    for gpu in plan["gpus"]:
        gpu["scratch_chunks"] = largest
    assert run_plan(plan).verdict == "right"


def test_flushed_requests_are_right() -> None:
    plan = read_plan("strangers/plans", "multi_node_send_recv_1_2_0x0_1.json")
    for gpu in plan["gpus"]:
        for op in gpu["threadblocks"][0]["ops"]:
            op["name"] = {"pws": "pwsf"}.get(op["name"], op["name"])
    assert run_plan(plan).verdict == "right"


@pytest.mark.parametrize(
    "file", ["allreduce_g2.json", "mn_allgather_n4.json", "alltoall_alltoall_pipeline_g2.json"]
)
def test_plans_without_block_barriers_are_wrong(file: str) -> None:
    plan = read_plan("mscclpp", file)
    for block in plan["gpus"][0]["threadblocks"]:
        block["ops"] = [op for op in block["ops"] if op["name"] != "nop"]
        for op in block["ops"]:
            if "ops" in op:
                op["ops"] = [inner for inner in op["ops"] if inner["name"] != "nop"]
    assert run_plan(plan, CHUNK_BYTES).verdict == "wrong"


@pytest.mark.parametrize("num_ranks", [2, 3, 5, 13])
def test_ring_with_handshake_is_right(num_ranks: int) -> None:
    assert run_plan(ring(num_ranks)).verdict == "right"


@pytest.mark.parametrize("name", ["nop", "signal", "wait"])
def test_ring_with_an_operation_missing_is_not_right(name: str) -> None:
    plan = ring(3)
    ops = plan["gpus"][1]["threadblocks"][0]["ops"]
    # Behind the handshake, which has a block barrier of its own.
    at = next(at for at, op in enumerate(ops) if op["name"] == name and at > 2)
    del ops[at]
    assert run_plan(ring(3)).verdict == "right"
    assert run_plan(plan).verdict != "right"


def test_put_into_a_rank_of_an_earlier_launch_is_not_right() -> None:
    plan = two_ranks()
    for rank in (0, 1):
        ops = operations(plan, rank, 1)
        ops[:] = [op for op in ops if op["name"] != "rlxwait"]
    assert run_plan(plan, launches=1).verdict == "wrong"


def test_data_announced_by_a_relaxed_signal_are_not_right() -> None:
    plan = two_ranks()
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            for op in block["ops"]:
                op["name"] = {"signal": "rlxsignal", "wait": "rlxwait"}.get(op["name"], op["name"])
    assert run_plan(two_ranks()).verdict == "right"
    assert run_plan(plan).verdict == "wrong"
    # The handshake is relaxed as well, and stores nothing before.
    assert "relaxed-signal" not in codes(checked(two_ranks()))
    assert "relaxed-signal" in codes(checked(plan))


def test_hang_names_who_waits() -> None:
    plan = two_ranks()
    ops = operations(plan, 0, 1)
    ops[:] = [op for op in ops if op["name"] != "signal"]
    outcome = run_plan(plan)
    assert outcome.verdict == "hang"
    assert "rank 1" in outcome.detail


def test_dependent_copies_need_a_block_barrier() -> None:
    first, second = copied(chunk("i", 0), chunk("s", 0)), copied(chunk("s", 0), chunk("o", 0))

    def promise(inputs: Any) -> Any:
        return [(slice(0, CHUNK_BYTES // 4), inputs[0][: CHUNK_BYTES // 4])]

    barred, bare = (
        fragment(first, NOP, second, inplace=False),
        fragment(first, second, inplace=False),
    )
    assert run_plan(barred, CHUNK_BYTES, promises=promise).verdict == "right"
    assert run_plan(bare, CHUNK_BYTES, promises=promise).verdict == "wrong"


@pytest.mark.parametrize(
    ("num_bytes", "throws"), [(4, True), (100, True), (192, False), (4100, True), (4096, True)]
)
def test_loader_throws_where_chunks_do_not_divide_the_size(num_bytes: int, throws: bool) -> None:
    # Six ranks: multiples of 96 bytes, and so no power of two.
    call = Call((num_bytes,) * 6, (num_bytes,) * 6, True)
    outcome = run_call(ring(6), call)
    assert outcome.verdict == ("throws" if throws else "right")


def test_window_is_in_bytes_of_the_output_for_all_gather_alone() -> None:
    gathered, reduced = two_ranks(), ring(2)
    for plan, most, inside in ((gathered, 64, 32), (reduced, 64, 64)):
        plan["max_message_size"] = most
        total = inside * 2 if plan is gathered else inside
        load_plan(plan, Call((inside,) * 2, (total,) * 2, plan["inplace"]))
        with pytest.raises(LoaderError, match=r"outside 0\.\.64"):
            load_plan(plan, Call((inside * 2,) * 2, (total * 2,) * 2, plan["inplace"]))


def test_parts_of_a_range_differ_by_one_unit() -> None:
    for units in range(3, 40):
        starts = [share_offset(units * 16, part, 3, 16) // 16 for part in range(4)]
        sizes = {last - first for first, last in pairwise(starts)}
        assert (starts[0], starts[3]) == (0, units)
        assert sizes <= {units // 3, units // 3 + 1}


def test_more_parts_than_units_lose_data() -> None:
    # The loader takes the part's number modulo the number of units.
    assert [share_offset(16, part, 2, 16) for part in range(3)] == [0, 0, 0]


def test_alignment_below_16_bytes_is_warned_of() -> None:
    # Parts of 40 bytes: the executor truncates addresses of sums to multiples of 16.
    plan = json.loads(write(ring_all_reduce(3), PlanWriteOptions(tbg=2)).artifacts[0].content())
    assert run_plan(plan, CHUNK_BYTES).verdict == "right"
    plan["buffer_alignment"] = 8
    assert run_plan(plan, CHUNK_BYTES).verdict != "right"
    assert "alignment" in codes(checked(plan))


@pytest.mark.parametrize("entry", [{"buffer_id": 7, "index": 0, "size": 1}, {"buffer_id": 0}])
def test_ranges_of_a_flush_are_read(entry: dict[str, int]) -> None:
    # The loader resolves them before it knows that the operation is a flush.
    plan = json.loads(write(ring_all_gather(2), PlanWriteOptions(nodes=2)).artifacts[0].content())
    blocks = [block for gpu in plan["gpus"] for block in gpu["threadblocks"]]
    flush = next(op for block in blocks for op in block["ops"] if op["name"] == "flush")
    checked(plan)
    flush["dst_buff"] = [entry]
    with pytest.raises(InputError):
        checked(plan)
