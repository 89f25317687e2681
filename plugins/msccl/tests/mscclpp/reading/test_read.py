"""Plans as algorithms: contents, order and what steps cannot say."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from collhub_mscclpp.reading.read import read
from hypothesis import given, settings
from hypothesis import strategies as st
from made_plans import Json, chunk, copied, fragment, operations, ring, two_ranks

from hub_core.model import Algorithm, Buffer, Diagnostic, InputError, StepKind
from hub_core.plugin_api import NoOptions, Source
from hub_core.verification import verify

_RELEASE = {"name": "sem_release", "semaphore_ids": [0]}
_ACQUIRE = {"name": "sem_acquire", "semaphore_ids": [0]}


def _read(content: bytes, name: str = "plan.json") -> tuple[Algorithm, list[Diagnostic]]:
    reported: list[Diagnostic] = []
    quiet = Source.of_bytes(name, content)
    return read(Source(name, quiet.parts, reported.append), NoOptions()), reported


def _algorithm(plan: Json) -> Algorithm:
    return _read(json.dumps(plan).encode())[0]


def test_plans_of_the_corpus_with_a_promise_keep_it(corpus: Path) -> None:
    folder = corpus / "mscclpp"
    with (folder / "index.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    right = [row["file"] for row in rows if row["verdict_relaunch"] == "ok"]
    assert len(right) == 32
    for name in right:
        algorithm, _ = _read((folder / name).read_bytes(), name)
        assert verify(algorithm).ok, name
        assert algorithm.collective.postcondition() is not None


def test_plans_that_race_or_do_not_end_are_refused(corpus: Path) -> None:
    for name in ("exectest_reduce_tbg.json", "mn_send_recv_n1_i1.json"):
        with pytest.raises(InputError):
            _read((corpus / "mscclpp" / name).read_bytes(), name)


@settings(max_examples=5, deadline=None)
@given(st.integers(2, 8))
def test_rings_are_read_with_two_messages_a_step(num_ranks: int) -> None:
    algorithm = _algorithm(ring(num_ranks))
    assert verify(algorithm).ok
    assert np.count_nonzero(algorithm.steps.sends) == 2 * num_ranks * (num_ranks - 1)


def test_steps_name_the_line_of_their_operation() -> None:
    plan = ring(2)
    content = json.dumps(plan, indent=1)
    steps = _read(content.encode())[0].steps
    lines = content.split("\n")
    assert (steps.source_line >= 1).all()
    assert all('"name":' in lines[line - 1] for line in steps.source_line.tolist())
    sends = [lines[line - 1] for line in steps.source_line[steps.sends].tolist()]
    assert all("put" in line for line in sends)
    # In a file of one line, steps have no source line.
    assert (_algorithm(plan).steps.source_line == -1).all()


def test_a_put_is_a_message_and_lands_where_it_is_put() -> None:
    steps = _algorithm(two_ranks()).steps
    assert steps.kind.tolist() == [StepKind.SEND, StepKind.RECV, StepKind.COPY] * 2 or sorted(
        steps.kind[steps.rank == 0].tolist()
    ) == sorted([StepKind.SEND, StepKind.RECV, StepKind.COPY])
    received = np.flatnonzero(steps.receives)
    assert steps.dst_offset[received].tolist() == [1, 0]
    # The thread block that awaits the signal is the lane of what arrives.
    assert steps.lane[received].tolist() == [0, 0]


def test_a_remote_reduction_is_a_message_with_an_operand(corpus: Path) -> None:
    algorithm, _ = _read((corpus / "mscclpp" / "repo_files_allreduce.json").read_bytes())
    kinds = np.unique(algorithm.steps.kind).tolist()
    assert kinds == [StepKind.SEND, StepKind.RECV, StepKind.RECV_REDUCE]


def test_operations_of_switches_are_said_to_be_messages(corpus: Path) -> None:
    path = corpus / "mscclpp" / "allgather_nvls_zero_copy_g2_i1.json"
    _, reported = _read(path.read_bytes())
    assert [found.code for found in reported] == ["switch-operations"]


def test_semaphores_order_steps_of_thread_blocks() -> None:
    plan = fragment(
        copied(chunk("i", 0), chunk("s", 0)),
        {"name": "nop"},
        {"name": "sem_release", "semaphore_ids": [0]},
    )
    later = [
        {"name": "sem_acquire", "semaphore_ids": [0]},
        {"name": "nop"},
        copied(chunk("i", 1), chunk("o", 1)),
    ]
    gpu = plan["gpus"][0]
    gpu["semaphores"] = [{"init_value": 0}]
    gpu["threadblocks"].append({"id": 1, "channels": [], "remote_buffer_refs": [], "ops": later})
    steps = _algorithm(plan).steps
    # They touch nothing in common: the order is the plan's alone.
    assert steps.data_indices.tolist() == []
    assert steps.control_indptr.tolist() == [0, 0, 1]
    # What another thread block awaits stays in the lane of the one that did it.
    assert steps.lane.tolist() == [0, 1]


def test_first_acquisitions_take_what_a_semaphore_holds_at_first() -> None:
    plan = fragment(copied(chunk("i", 0), chunk("s", 0)), {"name": "nop"}, _RELEASE)
    later = [_ACQUIRE, {"name": "nop"}, copied(chunk("i", 1), chunk("o", 1))]
    gpu = plan["gpus"][0]
    gpu["semaphores"] = [{"init_value": 1}]
    gpu["threadblocks"].append({"id": 1, "channels": [], "remote_buffer_refs": [], "ops": later})
    steps = _algorithm(plan).steps
    assert len(steps) == 2
    assert steps.control_indptr.tolist() == [0, 0, 0]


def test_barriers_order_steps_of_thread_blocks() -> None:
    barrier = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}
    plan = fragment(
        copied(chunk("i", 0), chunk("o", 0)), barrier, copied(chunk("i", 1), chunk("o", 1))
    )
    other = [copied(chunk("i", 2), chunk("o", 2)), barrier, copied(chunk("i", 3), chunk("o", 3))]
    plan["gpus"][0]["threadblocks"].append(
        {"id": 1, "channels": [], "remote_buffer_refs": [], "ops": other}
    )
    steps = _algorithm(plan).steps
    parents = [
        steps.src_offset[steps.control_indices[low:high]].tolist()
        for low, high in zip(steps.control_indptr[:-1], steps.control_indptr[1:], strict=True)
    ]
    behind = dict(zip(steps.src_offset.tolist(), map(sorted, parents), strict=True))
    assert behind == {0: [], 2: [], 1: [0, 2], 3: [0, 2]}


def test_a_barrier_that_is_used_again_orders_what_came_in_between() -> None:
    barrier = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}

    def ops(block: int) -> list[Json]:
        first, second = (copied(chunk("i", block + k), chunk("o", block + k)) for k in (0, 2))
        return [first, barrier, second, barrier, copied(chunk("i", block), chunk("s", block))]

    plan = fragment(*ops(0))
    plan["gpus"][0]["threadblocks"].append(
        {"id": 1, "channels": [], "remote_buffer_refs": [], "ops": ops(1)}
    )
    steps = _algorithm(plan).steps
    last = [row for row in range(len(steps)) if steps.dst_buffer[row] == Buffer.SCRATCH]
    between = {row for row in range(len(steps)) if steps.src_offset[row] >= 2}
    for row in last:
        low, high = steps.control_indptr[row : row + 2]
        assert set(steps.control_indices[low:high].tolist()) == between


def test_members_of_the_plan_are_kept() -> None:
    extension = _algorithm(two_ranks()).extensions["mscclpp"]
    assert isinstance(extension, dict)
    assert extension["protocol"] == "Simple"
    assert extension["operations"] == {
        "copy": 2, "nop": 8, "put": 2, "rlxsignal": 2, "rlxwait": 2, "signal": 2, "wait": 2,
    }  # fmt: skip


def test_wrong_contents_are_left_to_the_verification_of_the_hub() -> None:
    plan = ring(2)
    reduce = next(one for one in operations(plan, 0, 0) if one["name"] == "re")
    reduce["src_buff"].append(reduce["src_buff"][1])
    algorithm, reported = _read(json.dumps(plan).encode())
    assert reported == []
    assert not verify(algorithm).ok


def test_a_race_of_later_launches_is_a_warning() -> None:
    plan = two_ranks()
    for rank in range(2):
        del operations(plan, rank, 0)[0]
        del operations(plan, rank, 1)[:2]
    algorithm, reported = _read(json.dumps(plan).encode())
    assert verify(algorithm).ok
    assert {(found.code, found.severity.value) for found in reported} == {("race", "warning")}


def _sums(sources: list[Json], target: Json) -> list[tuple[StepKind, int, int]]:
    """(kind, offset of the source, offset of the target) of the steps of one sum."""
    steps = _algorithm(fragment({"name": "re", "src_buff": sources, "dst_buff": [target]})).steps
    columns = (steps.kind.tolist(), steps.src_offset.tolist(), steps.dst_offset.tolist())
    return [(StepKind(kind), source, to) for kind, source, to in zip(*columns, strict=True)]


def test_a_sum_elsewhere_begins_with_a_copy_of_its_first_operand() -> None:
    sums = _sums([chunk("i", 0), chunk("i", 1), chunk("i", 3)], chunk("o", 2))
    assert sums == [(StepKind.COPY, 0, 2), (StepKind.REDUCE, 1, 2), (StepKind.REDUCE, 3, 2)]


def test_a_sum_in_place_adds_the_other_operands() -> None:
    sums = _sums([chunk("o", 2), chunk("i", 1)], chunk("o", 2))
    assert sums == [(StepKind.REDUCE, 1, 2)]


def test_what_is_added_to_itself_is_added_before_other_operands() -> None:
    sums = _sums([chunk("o", 2), chunk("i", 1), chunk("o", 2)], chunk("o", 2))
    assert sums == [(StepKind.REDUCE, 2, 2), (StepKind.REDUCE, 1, 2)]


def test_steps_that_another_rank_does_have_no_lane(corpus: Path) -> None:
    algorithm, _ = _read((corpus / "mscclpp" / "repo_files_allreduce.json").read_bytes())
    lanes = algorithm.steps.lane
    assert lanes.min() == -1
    assert lanes[algorithm.steps.receives].max() >= 0


def test_what_nobody_awaits_has_no_lane() -> None:
    plan = two_ranks()
    plan["collective"] = "test"
    for rank in range(2):
        for block in range(2):
            ops = operations(plan, rank, block)
            ops[:] = [one for one in ops if one["name"] == "put"]
    steps = _algorithm(plan).steps
    assert steps.lane[steps.receives].tolist() == [-1, -1]
    assert steps.lane[steps.sends].min() >= 0
