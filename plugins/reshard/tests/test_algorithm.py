"""Reshardings as algorithms: verified, byte-exact on arrays, and as fast as predicted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from collhub_reshard import Move, parse_move, plan_reshard
from collhub_reshard.algorithm import Lowered
from collhub_reshard.planning import ReshardChoices, ReshardPlan
from collhub_reshard.scheduling.best import Effort
from collhub_reshard.strategies import Strategy, compute_best_chunks
from hypothesis import given, settings
from hypothesis import strategies as st
from reshard_tasks import moves

import hub_core
from hub_core.model import InputError, StepKind
from hub_core.plugin_api import Executor, FormatWriter, Simulator

FAST = Effort(work=0)
# The suite, scaled down; case 8 is case 7.
SUITE = [
    ("32x32x16", "mesh(2,4): S0 R R", "mesh(2,4): S0 R R"),
    ("32x32x16", "mesh(2,4): R R R", "mesh(2,4): S0 R R"),
    ("32x32x16", "mesh(2,4): R S0 R", "mesh(2,4): S0 R R"),
    ("32x32x16", "mesh(2,4): R S01 R", "mesh(2,4): S01 R R"),
    ("32x32x16", "mesh(2,4): S1 R R", "mesh(2,4): S0 R R"),
    ("96x32x5", "mesh(2,4): S0 R R", "mesh(3,4): S0 R R"),
    ("32x32x16", "mesh(1,4): S1 R R", "mesh(2,4): R R R"),
    ("32x32x16", "mesh(2,4): R S0 R", "mesh(2,4): R R S0"),
]


def planned(move: Move, **choices: object) -> ReshardPlan:
    wanted = ReshardChoices(effort=FAST, **choices)
    return plan_reshard([move], host_bandwidth=1.25 * 2**30, latency_s=1e-5, choices=wanted)


def is_exact(made: Lowered, executor: str) -> bool:
    """Whether every unit of every OUTPUT is what the contract wants there."""
    collective = made.algorithm.collective
    units = collective.input_units().tolist()
    inputs = [np.arange(count, dtype=np.int64) + 10**9 * r for r, count in enumerate(units)]
    outputs = hub_core.execute(made.algorithm, inputs, name=executor).outputs
    expected = collective.postcondition()
    assert expected is not None
    wanted = [np.zeros(len(output), np.int64) for output in outputs]
    columns = (expected.rank, expected.offset, expected.source_rank, expected.source_unit)
    for rank, offset, source, unit in zip(*columns, strict=True):
        wanted[rank][offset] += inputs[source][unit]
    # Every unit is promised: nothing of an OUTPUT is free.
    assert len(set(zip(expected.rank, expected.offset, strict=True))) == sum(map(len, outputs))
    return all(np.array_equal(a, b) for a, b in zip(outputs, wanted, strict=True))


def need(kind: type, name: str) -> None:
    if name not in {found.name for found in hub_core.discover().all(kind)}:
        pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize("layout", ["packed", "rows"])
@pytest.mark.parametrize("case", SUITE, ids=range(len(SUITE)))
def test_the_suite_is_byte_exact(case: tuple[str, str, str], layout: str) -> None:
    need(Executor, "numpy")
    move = parse_move(f"{case[0]}:float32", case[1], case[2])
    made = planned(move, layout=layout, chunks=4).lower()
    assert hub_core.verify(made.algorithm).ok
    assert is_exact(made, "numpy")


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["shared-memory", "torch"])
def test_other_executors_are_byte_exact(executor: str) -> None:
    need(Executor, executor)
    if executor == "torch":
        pytest.importorskip("torch")
    move = parse_move("32x32x16:float32", "mesh(2,4): R S0 R", "mesh(2,4): R R S0")
    assert is_exact(planned(move, layout="rows", chunks=4).lower(), executor)


@given(moves(), st.sampled_from(list(Strategy)[:4]), st.sampled_from(["packed", "rows"]))
@settings(max_examples=40)
def test_every_strategy_and_layout_verifies(move: Move, strategy: Strategy, layout: str) -> None:
    made = planned(move, strategy=strategy, layout=layout, chunks=3).lower()
    report = hub_core.verify(made.algorithm)
    assert report.ok, [str(found) for found in report.diagnostics]


def test_split_pieces_are_one_box() -> None:
    move = parse_move("36x5:float32", "mesh(3,2): R R", "mesh(2,2): S0 R")
    wanted = ReshardChoices(effort=Effort(split=True), chunks=2)
    made = plan_reshard([move], host_bandwidth=1e9, choices=wanted).lower()
    assert hub_core.verify(made.algorithm).ok


def test_summands_are_added_up() -> None:
    need(Executor, "numpy")
    move = parse_move("13x7:float32", "mesh(2,3): Shard(0), Partial()", "mesh(3,2): S0 S1")
    made = planned(move, chunks=2).lower()
    assert hub_core.verify(made.algorithm).ok
    assert made.algorithm.steps.is_kind(StepKind.REDUCE).any()
    assert is_exact(made, "numpy")


def test_meshes_that_share_devices_send_only_what_is_missing() -> None:
    move = parse_move("16x8:float32", "mesh(2,4)@0-7: S0 S1", "mesh(2,4)@0-7: S0 S1")
    plan = planned(move)
    made = plan.lower()
    assert hub_core.verify(made.algorithm).ok
    assert not made.algorithm.steps.sends.any()
    assert plan.makespan_s == 0


def test_ragged_boxes_without_a_common_unit_are_filled_up() -> None:
    move = parse_move("1009x997:float32", "mesh(2,2): S0 S1", "mesh(3,1): R S0")
    made = planned(move, chunks=2).lower()
    assert hub_core.verify(made.algorithm).ok
    stored = made.algorithm.collective.output_units().sum() * made.layout.unit_bytes
    assert stored >= move.tensor.num_bytes
    assert made.layout.padding_bytes >= 0


def test_too_many_runs_say_what_to_do() -> None:
    move = parse_move("2048x2048x64:float32", "mesh(2,2): R R S0", "mesh(2,2): R S0 R")
    with pytest.raises(InputError, match="layout=packed"):
        planned(move, layout="rows").lower()


@pytest.mark.parametrize("case", SUITE, ids=range(len(SUITE)))
def test_the_simulator_agrees_with_the_prediction(case: tuple[str, str, str]) -> None:
    need(Simulator, "analytical")
    big = "x".join(str(int(length) * 32) for length in case[0].split("x"))
    plan = planned(parse_move(f"{big}:float32", case[1], case[2]), chunks=64)
    made = plan.lower()
    size = made.algorithm.collective_bytes
    assert size is not None
    time_ns = hub_core.simulate(made.algorithm, plan.topology, size).time_ns
    assert time_ns is not None
    assert time_ns / 1e9 == pytest.approx(plan.predicted_s, rel=0.02)
    assert time_ns / 1e9 <= 1.03 * plan.bound_s


def test_chunks_are_those_of_the_closed_form() -> None:
    # sqrt((s - 1) t / alpha) with 4 links, 3 ms and 10 us.
    assert compute_best_chunks(4, 3e-3, 1e-5) == 30
    assert compute_best_chunks(4, 1e-9, 1e-5) == 1
    assert compute_best_chunks(4, 1.0, 0.0) == 64


@pytest.mark.parametrize("format_name", ["astra-sim", "goal", "msccl-xml", "nccl"])
def test_other_formats_take_it(format_name: str, tmp_path: Path) -> None:
    need(FormatWriter, format_name)
    move = parse_move("16x16:float32", "mesh(2,2): S0 R", "mesh(2,2): R S0")
    made = planned(move, chunks=2).lower()
    written = hub_core.write(made.algorithm, tmp_path / "out", format=format_name)
    assert written.paths
    # The proof is ours: no other format has a place for it.
    assert "contents" not in {loss.feature for loss in written.losses}
