"""The flows that SimAI writes for a replay with ns-3.

The format: `MockNcclGroup.cc` of aliyun/SimAI; the files here are written for these tests.
"""

from __future__ import annotations

import random

import pytest
from collhub_simai.plugin import FLOW_TEXT, SimaiFlowOptions, flow_texts, source_of
from collhub_simai.read_flow_text import read

import hub_core
from hub_core.model import Algorithm, Diagnostic, HubError, InputError, Severity, StepKind
from hub_core.plugin_api import Source

FIRST = "0 0 1 8 0 0 1 RING 0 3 1 1 100 0 0 0 0 0 3 0"


def read_flows(text: str, layer: int | None = None) -> tuple[Algorithm, list[Diagnostic]]:
    heard: list[Diagnostic] = []
    source = Source("flow_output.txt", source_of("flow_output.txt", text).parts, heard.append)
    return read(source, SimaiFlowOptions(layer)), heard


def test_send_waits_for_the_arrival_of_its_parents_and_for_its_delay() -> None:
    algorithm, heard = read_flows(FLOW_TEXT)
    steps = algorithm.steps
    own = steps.rank == 0
    assert steps.kind[own].tolist() == [
        StepKind.SEND, StepKind.RECV, StepKind.COMPUTE, StepKind.SEND, StepKind.RECV,
    ]  # fmt: skip
    assert steps.duration_ns[own].tolist()[2] == 500
    assert heard == []
    # Both halves take 1024 ns at 1 GB/s, and the delay is between them.
    network = hub_core.parse_topology("ring:2?bandwidth=1GB/s&latency=0ns")
    assert hub_core.simulate(algorithm, network, algorithm.collective.unit_count).time_ns == 2548


def test_facts_of_the_collective_are_kept() -> None:
    algorithm, _ = read_flows(FLOW_TEXT)
    assert algorithm.extensions["simai-flows"] == {
        "layer": 0, "group_type": 0, "operation": "all-reduce", "loop_state": 0,
    }  # fmt: skip


def test_older_files_have_no_delay() -> None:
    """The field `relative_delay_ns` was added later; a file without a number of flows is read."""
    algorithm, heard = read_flows(f"{FIRST}\n")
    assert algorithm.steps.kind.tolist() == [StepKind.SEND, StepKind.RECV]
    assert heard == []


def test_first_collective_is_read_and_the_layer_chooses_another_one() -> None:
    second = "1 1 0 16 0 0 1 RING 0 3 1 100 100 0 0 0 4 0 2 0"
    algorithm, heard = read_flows(f"2\n{FIRST}\n{second}\n")
    assert algorithm.steps.count.tolist() == [8, 8]
    assert [one.severity for one in heard] == [Severity.NOTE]
    assert "1 flows of other collectives are not read; see -O layer" in heard[0].message
    algorithm, _ = read_flows(f"2\n{FIRST}\n{second}\n", layer=4)
    assert algorithm.steps.count.tolist() == [16, 16]
    with pytest.raises(InputError, match="has no flows of this layer, and 2 others; give -O layer"):
        read_flows(f"2\n{FIRST}\n{second}\n", layer=1)


def test_groups_that_execute_a_collective_at_the_same_time_are_one_algorithm() -> None:
    other = "1 2 3 8 0 0 1 RING 0 3 1 203 100 0 0 0 0 0 3 0"
    algorithm, _ = read_flows(f"0\n{FIRST}\n{other}\n")
    assert algorithm.num_ranks == 4


def test_cut_file_is_warned_of() -> None:
    """The first line has the number of flows; it is 0 until the simulation finishes."""
    _, heard = read_flows(f"3\n{FIRST}\n")
    assert [(one.severity, one.message) for one in heard] == [
        (Severity.WARNING, "1 of 3 flows: the file is cut")
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0\n", "has no flows of this layer, and 0 others"),
        (f"0\n{FIRST}\n{FIRST}\n", "flow_output.txt:3: flow 0 is also on line 2"),
        ("0 0 1 8 0 0 1 RING 0 3 1 1 100 0 1 7 0 0 0 3 0\n", "flow 7 is not in the file"),
        (
            f"{FIRST}\n1 2 0 8 0 0 1 RING 0 3 1 200 100 0 1 0 0 0 0 3 0\n",
            "flow_output.txt:2: a parent of flow 1 does not end at rank 2",
        ),
        ("0 1 1 8 0 0 1 RING 0 3 1 1 100 0 0 0 0 0 3 0\n", "from rank 1 to itself"),
        ("0 0 1 0 0 0 1 RING 0 3 1 1 100 0 0 0 0 0 3 0\n", "size or the delay .* out of range"),
        ("0 0 1 8 0 0 1 RING 0 3 1 1 100\n", "has 13 words, and number of previous ranks is missing"),
        ("0 0 1 8 0 0 1 RING 0 3 1 1 100 0 9 0 0\n", "line ends within 9 entries after the number of"),
        (f"{FIRST} 5 6\n", "1 words after the last field"),
        ("0 0 x 8 0 0 1 RING 0 3 1 1 100 0 0 0 0 0 3 0\n", r"word 3 \(dest\) is 'x', no number"),
        ("0b000001 0b000101 10000 100 8 5 31 30\n", "are no schedule; read the flows that were"),
        ("0b000001 0b000101 10000 100 8 5 31 30 7\n", "completion times of ns-3 have no dependencies"),
    ],
)  # fmt: skip
def test_invalid_texts_are_refused_with_line_and_cure(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_flows(text)


def test_damaged_texts_are_read_or_refused() -> None:
    generator = random.Random(3)
    refused = 0
    for _ in range(300):
        content = bytearray(FLOW_TEXT.encode())
        for _ in range(generator.randint(1, 4)):
            place = generator.randrange(len(content))
            content[place : place + generator.randint(0, 3)] = generator.choice(
                [b"-1", b"99999999999999999999", b" ", b"\n", b"\xff", b"7"]
            )
        try:
            read_flows(content.decode("latin-1"))
        except HubError:
            refused += 1
    # Every other exception fails the test.
    assert 0 < refused < 300


@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", ["flow_output.txt", "any"])
def test_the_program_recognises_the_text_by_its_content(collhub, tmp_path, name) -> None:
    path = tmp_path / name
    path.write_bytes(flow_texts()[0].content())
    run = collhub("inspect", path)
    assert run.code == 0
    assert f"{name} (simai-flows)" in run.out
