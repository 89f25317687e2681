"""Programs of ours with the constructs of the public examples.

Each runs in several instances and by both policies.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from collhub_msccl import plugin
from collhub_msccl.plugin import LanguageOptions
from collhub_msccl.read_program import read

from hub_core.model import Algorithm, CollectiveKind, Diagnostic, StepKind
from hub_core.plugin_api import Source
from hub_core.verification import verify

PROGRAMS = Path(__file__).parent / "programs"
SIZES = {"exchange": [2], "shipped_programs": [2, 3, 4, 5]}
KINDS = {
    "ring_channels_all_reduce": CollectiveKind.ALL_REDUCE,
    "all_pairs_all_reduce": CollectiveKind.ALL_REDUCE,
    "hierarchical_all_reduce": CollectiveKind.ALL_REDUCE,
    "recursive_doubling_all_gather": CollectiveKind.ALL_GATHER,
    "passed_on_all_gather": CollectiveKind.ALL_GATHER,
    "two_level_rings": CollectiveKind.ALL_REDUCE,
    "in_place_all_gather": CollectiveKind.ALL_GATHER,
    "halving_doubling_all_reduce": CollectiveKind.ALL_REDUCE,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "two_step_all_to_all": CollectiveKind.ALL_TO_ALL,
    "three_step_all_to_all": CollectiveKind.ALL_TO_ALL,
    "pipelined_broadcast": CollectiveKind.BROADCAST,
    "all_to_next": CollectiveKind.CUSTOM,
    "exchange": CollectiveKind.CUSTOM,
    "shipped_programs": None,
}
# Programs with tests and arguments of their own.
OTHERS = {"every_name", "tree_sum_all_reduce"}
# Several instances by either policy, and one instance, which the shipped programs run in.
WAYS = ["2 --manual", "4 --blocked"]
CASES = [
    (name, size, way)
    for name in KINDS
    for size in SIZES.get(name, [4])
    for way in (["1", *WAYS] if name == "shipped_programs" else WAYS)
]


def run(name: str, arguments: str) -> tuple[Algorithm, list[Diagnostic]]:
    """Read a program of ours, and what was reported about it."""
    reported: list[Diagnostic] = []
    file = PROGRAMS / f"{name}.py"
    parts = Source.of_bytes(str(file), file.read_bytes()).parts
    return read(Source(str(file), parts, reported.append), LanguageOptions(arguments)), reported


def test_every_program_is_listed() -> None:
    assert {file.stem for file in PROGRAMS.glob("*.py")} == {*KINDS, *OTHERS}


@pytest.mark.parametrize(("name", "size", "way"), CASES)
def test_program_verifies(name: str, size: int, way: str) -> None:
    algorithm, reported = run(name, f"{size} {way}")
    report = verify(algorithm)
    assert report.ok, report.diagnostics[:3]
    assert report.method != "none"
    assert reported == []
    assert algorithm.num_ranks == size
    if KINDS[name] is not None:
        assert algorithm.collective.kind is KINDS[name]


@pytest.mark.once
@pytest.mark.parametrize("instances", [1, 2, 4])
def test_instances_multiply_units_and_channels(instances: int) -> None:
    algorithm, _ = run("ring_channels_all_reduce", f"4 {instances} --manual")
    assert algorithm.collective.unit_count == 8 * instances
    assert sorted(set(algorithm.steps.channel.tolist())) == list(range(2 * instances))
    assert sorted(set(algorithm.steps.lane.tolist())) == list(range(2 * instances))


def test_automatic_policy_states_no_lanes_and_no_control_dependencies() -> None:
    algorithm, _ = run("ring_channels_all_reduce", "4 1")
    assert set(algorithm.steps.lane.tolist()) == {-1}
    assert not len(algorithm.steps.control_indices)


def test_manual_policy_keeps_the_order_of_each_thread_block() -> None:
    algorithm, _ = run("ring_channels_all_reduce", "4 1 --manual")
    steps = algorithm.steps
    lanes = steps.rank * 2 + steps.lane
    assert len(steps.control_indices) == len(steps) - len(set(lanes.tolist()))


def test_eight_ranks_recursive_doubling_in_four_instances_is_right() -> None:
    # The public compiler's output is wrong and racy here.
    algorithm, _ = run("recursive_doubling_all_gather", "8 4")
    assert verify(algorithm).ok


def test_steps_know_the_line_of_the_program() -> None:
    algorithm, _ = run("pipelined_broadcast", "3 1")
    text = (PROGRAMS / "pipelined_broadcast.py").read_text().splitlines()
    assert {text[line - 1].strip() for line in algorithm.steps.source_line.tolist()} == {
        "c = c.copy(rank, sendtb=0, recvtb=0)"
    }


def test_provenance_names_program_and_arguments() -> None:
    algorithm, _ = run("exchange", "2 1")
    assert algorithm.provenance.source_name.endswith("exchange.py")
    assert algorithm.provenance.options == {"arguments": "2 1"}
    assert len(algorithm.provenance.source_sha256) == 64


def test_description_says_that_the_program_is_executed() -> None:
    (offer,) = (offer for offer in plugin.collhub_producers() if offer.format.name == "mscclang")
    assert offer.executes_source
    assert "EXECUTES" in offer.format.description


def test_messages_of_a_connection_have_one_order_on_both_ends() -> None:
    steps = run("two_step_all_to_all", "4 2")[0].steps
    sent = {}
    for kind in (StepKind.SEND, StepKind.RECV):
        for row in (steps.kind == kind).nonzero()[0].tolist():
            here, there = int(steps.rank[row]), int(steps.peer[row])
            ends = (here, there) if kind == StepKind.SEND else (there, here)
            sent.setdefault((kind, *ends, int(steps.channel[row])), []).append(
                int(steps.source_line[row])
            )
    for (kind, *connection), lines in sent.items():
        if kind == StepKind.SEND:
            assert sent[(StepKind.RECV, *connection)] == lines
