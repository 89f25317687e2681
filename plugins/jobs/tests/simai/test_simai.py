"""Workload text of AICB, and flows of SimCCL."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from collhub_simai.plugin import (
    FLOWS,
    WORKLOAD_TEXT,
    SimaiOptions,
    SimcclOptions,
    flows,
    source_of,
    workload_texts,
)
from collhub_simai.read_flows import COLUMNS
from collhub_simai.read_flows import read as read_flows
from collhub_simai.read_workload import read

import hub_core
from hub_core.model import (
    Diagnostic,
    HubError,
    InputError,
    JobCollective,
    NodeKind,
    StepKind,
    Workload,
)
from hub_core.plugin_api import Source

INFERENCE = "DISTRIBUTED_INFERENCE all_gpus: 2 model_parallel_NPU_group: 2"


@pytest.fixture
def workloads(corpus: Path) -> Path:
    folder = corpus / "evidence" / "workload"
    if not folder.is_dir():
        pytest.skip("the corpus has no workloads of other simulators")
    return folder


def read_text(text: str, options: SimaiOptions | None = None) -> tuple[Workload, list[str]]:
    notes: list[Diagnostic] = []
    source = Source("x.txt", source_of("x.txt", text).parts, notes.append)
    workload = read(source, options or SimaiOptions())
    return workload, [note.message for note in notes]


def collectives(workload: Workload, rank: int = 0) -> list[tuple[str, int, tuple[int, ...]]]:
    nodes = workload.nodes
    rows = np.flatnonzero((nodes.rank == rank) & (nodes.kind == NodeKind.COLLECTIVE))
    return [
        (JobCollective(int(nodes.collective[row])).name, int(nodes.bytes[row]),
         workload.members(int(nodes.group[row])))
        for row in rows.tolist()
    ]  # fmt: skip


def text_of(*rows: str, head: str = INFERENCE) -> str:
    return "\n".join((head, str(len(rows)), *rows, ""))


def test_collectives_of_the_published_text(workloads: Path) -> None:
    workload, _ = read_text((workloads / "aicb_ok.txt").read_text())
    assert workload.num_ranks == 8
    # The gathered buffer has 2 MiB; the all-to-alls are among one rank each, which is nothing.
    assert collectives(workload) == [
        ("ALL_REDUCE", 16 << 20, (0, 1)),
        ("ALL_GATHER", 512 << 10, (0, 2, 4, 6)),
    ]


def test_a_short_row_is_refused_with_its_line(workloads: Path) -> None:
    text = (workloads / "aicb_short_row.txt").read_text()
    with pytest.raises(InputError, match=r"^x.txt:4: row 2 of 2 has 4 of 12 words; complete"):
        read_text(text)


def test_groups_follow_tensor_data_expert_and_pipeline() -> None:
    head = "HYBRID_TRANSFORMER model_parallel_NPU_group: 2 ep: 2 pp: 2 all_gpus: 16"
    row = "l -1 1 ALLREDUCE 8 1 ALLTOALL_EP 8 1 ALLREDUCE_DP_EP 8 0"
    workload, notes = read_text(text_of(row, "m -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 8 0", head=head))
    groups = {one[2] for rank in range(16) for one in collectives(workload, rank)}
    assert {(0, 1), (0, 2), (0, 4), (0, 2, 4, 6), (9, 11, 13, 15), (9, 13)} <= groups
    assert all(max(group) - min(group) < 8 for group in groups)
    assert "messages between pipeline stages are not in the rows, and not in the job" in notes


@pytest.mark.parametrize("size", ["8388608.0", "8388608."])
def test_the_size_of_messages_between_stages_may_have_decimals(size: str) -> None:
    head = f"HYBRID_TRANSFORMER model_parallel_NPU_group: 2 pp: 2 all_gpus: 4 pp_comm: {size}"
    assert read_text(text_of("l -1 1 NONE 0 1 NONE 0 1 NONE 0 0", head=head))[0].num_ranks == 4


def test_the_gradient_of_the_input_overlaps_that_of_the_weights() -> None:
    head = "HYBRID_TRANSFORMER model_parallel_NPU_group: 2 all_gpus: 4"
    row = "l -1 10 NONE 0 20 ALLREDUCE 4096 30 ALLREDUCE 8192 5"
    workload, _ = read_text(text_of(row, head=head))
    nodes = workload.nodes
    names = [workload.names[nodes.name[row]] for row in range(int(nodes.rank_indptr[1]))]
    assert names == ["l forward", "l input gradient", "l", "l weight gradient", "l", "l update"]
    parents = [
        nodes.control_indices[nodes.control_indptr[row] : nodes.control_indptr[row + 1]].tolist()
        for row in range(6)
    ]
    assert parents == [[], [0], [1], [1], [3], [4]]


def test_the_next_step_waits_for_the_update_of_the_same_layer() -> None:
    head = "DATA all_gpus: 2"
    row = "l -1 10 NONE 0 20 NONE 0 30 ALLREDUCE 8192 5"
    workload, _ = read_text(text_of(row, head=head), SimaiOptions(passes=2))
    nodes = workload.nodes
    second = int(nodes.rank_indptr[1]) // 2
    first, last = nodes.control_indptr[second], nodes.control_indptr[second + 1]
    assert [workload.names[nodes.name[row]] for row in nodes.control_indices[first:last]] == [
        "l weight gradient",
        "l update",
    ]


def test_a_smaller_number_of_gpus_changes_data_parallelism_only() -> None:
    workload, notes = read_text(WORKLOAD_TEXT, SimaiOptions(gpus=4))
    assert workload.num_ranks == 4
    assert "the file is for 8 GPUs" in notes
    with pytest.raises(InputError, match=r"9216 GPUs with .* nodes each; .* -O gpus=N"):
        read_text(
            WORKLOAD_TEXT.replace("all_gpus: 8", "all_gpus: 9216"), SimaiOptions(max_nodes=99)
        )


def test_a_word_that_the_original_reader_ignores_is_reported() -> None:
    workload, notes = read_text(text_of("l -1 1 ALLREDUCEALLTOALL 8 1 NONE 0 1 NONE 0 0"))
    assert collectives(workload) == []
    assert "line 3: ALLREDUCEALLTOALL does nothing, as in the original reader" in notes


def test_words_behind_the_last_row_are_ignored_and_reported() -> None:
    _, notes = read_text(text_of("l -1 1 ALLREDUCE 8 1 NONE 0 1 NONE 0 0") + "test\n")
    assert "1 words behind the last row are ignored" in notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("HYBRID_OTHER\n1\n", "x.txt:1: the file begins with 'HYBRID_OTHER', no policy; use one"),
        ("MICRO all_gpus: x\n1\n", "x.txt:1: all_gpus is 'x', no number"),
        ("MICRO\nmany\n", "x.txt:2: 'many' is not the number of rows"),
        ("MICRO\n2\n" + "l -1 1 NONE 0 1 NONE 0 1 NONE 0 0\n", "row 2 of 2 has 0 of 12 words"),
        (text_of("l -1 1 SUM 8 1 NONE 0 1 NONE 0 0"), "x.txt:3: 'SUM' is no communication; use"),
        (text_of("l -1 a NONE 8 1 NONE 0 1 NONE 0 0"), "word 3 of the row is 'a', no number"),
        (text_of("l -1 1 NONE 8 1 NONE 0 1 NONE 0 0", head="DATA all_gpus: 3 pp: 2"),
         "3 GPUs are not a multiple of tensor 1 x pp 2"),
        (text_of("l -1 1 NONE 8 1 NONE 0 1 NONE 0 0", head="DATA all_gpus: 3 ep: 2"),
         "3 data-parallel ranks are not a multiple of ep 2"),
    ],
)  # fmt: skip
def test_invalid_texts_are_refused_with_line_and_cure(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_text(text)


def test_a_byte_order_mark_is_left_out() -> None:
    text = text_of("l -1 1 ALLREDUCE 8 1 NONE 0 1 NONE 0 0")
    assert collectives(read_text("\ufeff" + text)[0]) == collectives(read_text(text)[0])


def test_micro_has_only_the_collectives_of_the_first_weight_gradient() -> None:
    """ASTRA-sim issues them without computations and without waiting for one another."""
    rows = [
        "conv1 -1 5 ALLREDUCE 64 5 NONE 0 5 ALLTOALL 1048576 5",
        "conv2 -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 8 5",
    ]
    options = SimaiOptions(gpus=4, passes=3)
    workload, _ = read_text(text_of(*rows, head="MICRO"), options)
    assert collectives(workload) == [("ALL_TO_ALL", 1 << 20, (0, 1, 2, 3))] * 3
    assert len(workload.nodes.kind) == 12
    assert len(workload.nodes.data_indices) + len(workload.nodes.control_indices) == 0


@pytest.mark.parametrize("policy", ["MICRO", "DATA", "HYBRID_DATA_MODEL"])
def test_collectives_without_a_number_of_gpus_are_refused(policy) -> None:
    """Files of ASTRA-sim 1 have no `all_gpus`; one GPU would drop all collectives."""
    text = text_of("l -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 8 1", head=policy)
    with pytest.raises(InputError, match=r"txt:1: .* no all_gpus, .*; give .* -O gpus=N"):
        read_text(text)


def test_collectives_in_groups_of_one_gpu_are_warned_of() -> None:
    row = "l -1 1 ALLGATHER 8 1 REDUCESCATTER 8 1 ALLREDUCE 8 1"
    workload, notes = read_text(text_of(row, head="HYBRID_DATA_MODEL"), SimaiOptions(gpus=2))
    assert [name for name, *_ in collectives(workload)] == ["ALL_REDUCE"]
    assert notes[-1] == (
        "2 collectives of tensor parallelism are left out: their groups have one GPU"
    )


def test_model_parallelism_is_that_of_all_gpus_if_no_degree_is_given() -> None:
    row = "l -1 1 ALLREDUCE 8 1 NONE 0 1 NONE 0 1"
    workload, _ = read_text(text_of(row, head="MODEL"), SimaiOptions(gpus=4))
    assert collectives(workload) == [("ALL_REDUCE", 8, (0, 1, 2, 3))]


def test_customized_rows_have_one_more_word() -> None:
    row = "l -1 1 ALLREDUCE 8 1 NONE 0 1 NONE 0 0 MODEL"
    head = "HYBRID_CUSTOMIZED all_gpus: 2 model_parallel_NPU_group: 2"
    assert len(collectives(read_text(text_of(row, head=head))[0])) == 1
    with pytest.raises(InputError, match="12 of 13 words"):
        read_text(text_of(row.removesuffix(" MODEL"), head=head))


def flow_text(*rows: str) -> Source:
    return source_of("flows.csv", "\n".join((",".join(COLUMNS), *rows, "")))


def test_flows_are_messages_that_wait_for_their_parents() -> None:
    algorithm = read_flows(flows()[0], SimcclOptions(collective="all-reduce"))
    steps = algorithm.steps
    assert steps.kind.tolist() == [StepKind.SEND, StepKind.RECV, StepKind.RECV, StepKind.SEND]
    assert steps.data_indices.tolist() == [2]
    assert not algorithm.has_contents
    assert hub_core.simulate(algorithm, hub_core.parse_topology("ring:2"), 1024).time_ns


@pytest.mark.needs_plugins
def test_a_header_without_flows_is_refused(collhub, workloads: Path) -> None:
    run = collhub("inspect", workloads / "simccl_flows.csv")
    assert run.code == 1
    assert "has no flows of this collective, and 0 others; give" in run.err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["AllGather,0,8,1,2,0,0,0,1,8,0,1,NET,,", "AllGather,0,8,1,2,0,0,1,0,8,0,1,NET,,"],
         "flows.csv:3: flow 0 is also on line 2"),
        (["AllGather,0,8,1,2,0,0,0,1,8,0,1,NET,7,"], "flow 7 is not in the file"),
        (["AllGather,0,8,1,2,0,0,0,1,8,0,1,NET,,", "AllGather,0,8,1,2,0,1,2,0,8,0,1,NET,0,"],
         "a parent of flow 1 does not end at rank 2"),
        (["AllGather,0,8,1,2,0,0,0,0,8,0,1,NET,,"], "from rank 0 to itself"),
        (["AllGather,0,8"], "the row has 3 of 15 fields"),
        (["AllGather,0,8,1,2,0,0,0,x,8,0,1,NET,,"], "dest is 'x', no number"),
    ],
)  # fmt: skip
def test_invalid_flows_are_refused(rows: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_flows(flow_text(*rows), SimcclOptions())


def test_flows_that_wait_for_each_other_are_a_deadlock() -> None:
    rows = ["AllGather,0,8,1,2,0,0,0,1,8,0,1,NET,1,", "AllGather,0,8,1,2,0,1,1,0,8,0,1,NET,0,"]
    report = hub_core.verify(read_flows(flow_text(*rows), SimcclOptions()))
    assert "deadlock" in [one.code for one in report.diagnostics]


def test_damaged_inputs_are_read_or_refused() -> None:
    generator = random.Random(7)
    refused = 0
    for turn in range(600):
        text = (WORKLOAD_TEXT, FLOWS)[turn % 2]
        content = bytearray(text.encode())
        for _ in range(generator.randint(1, 4)):
            place = generator.randrange(len(content))
            content[place : place + generator.randint(0, 3)] = generator.choice(
                [b"-1", b"99999999999999999999", b" ", b"\n", b"\xff", b",", b"NONE"]
            )
        source = source_of("x", content.decode("latin-1"))
        try:
            if turn % 2:
                read_flows(source, SimcclOptions())
            else:
                read(source, SimaiOptions(max_nodes=10_000))
        except HubError:
            refused += 1
    # Every other exception fails the test.
    assert 0 < refused < 600


@pytest.mark.needs_plugins
def test_the_program_recognises_and_times_the_text(collhub, tmp_path: Path) -> None:
    path = tmp_path / "layers.txt"
    path.write_bytes(workload_texts()[0].content())
    report = collhub("simulate", path, "--topology", "switch:8", "--json").report()
    assert report["time_ns"] > 556_000
    assert collhub("verify", path).code == 0
