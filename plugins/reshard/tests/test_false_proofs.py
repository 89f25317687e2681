"""Proofs that claim more than is true, or whose values have a wrong type or range, are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from collhub_reshard import parse_move, plan_reshard
from collhub_reshard.planning import ReshardChoices, ReshardPlan
from collhub_reshard.recheck import check_schedule
from collhub_reshard.scheduling.best import Effort
from collhub_reshard.strategies import Strategy
from collhub_shardings import Move
from reshard_tasks import changing

from hub_core.model import Algorithm
from hub_core.network import Topology
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions

pytestmark = pytest.mark.once

# A byte takes 1 ns.
BANDWIDTH = 1e9
# A task from two hosts to one, and a task to both of two hosts.
ONE_TASK = parse_move("64:int8", "mesh(2,1): R", "mesh(1,1): R")
TO_ALL = parse_move("64:int8", "mesh(1,1)@0: R", "mesh(2,1)@1-2: R")
TO_ONE = parse_move("64:int8", "mesh(1,1)@0: R", "mesh(1,1)@1: R")


def _plan(moves: Sequence[Move], cards: int = 1, strategy: Strategy | None = None) -> ReshardPlan:
    """Plan moves without a search; strategy None: chosen for each box."""
    choices = ReshardChoices(strategy, 1, "packed", Effort(work=0))
    return plan_reshard(moves, host_bandwidth=BANDWIDTH, cards=cards, choices=choices)


def _check_changed(
    algorithm: Algorithm, change: Callable[[Any], None], topology: Topology | None = None
) -> CheckReport:
    """Check an algorithm after a change of its proof; without the change, the check passes."""
    request = CheckRequest(algorithm=algorithm, topology=topology)
    assert check_schedule(replace(request, topology=None), NoOptions()).ok
    proof = json.loads(json.dumps(algorithm.extensions["reshard"]))
    change(proof)
    changed = replace(algorithm, extensions={"reshard": proof})
    return check_schedule(replace(request, algorithm=changed), NoOptions())


def _assert_refused(report: CheckReport, code: str, message: str) -> None:
    """The report has one diagnostic, with this code and text."""
    assert not report.ok
    assert [found.code for found in report.diagnostics] == [code]
    assert message in report.diagnostics[0].message


def test_an_exclusive_bound_with_two_cards_per_host_is_refused() -> None:
    plan = _plan([TO_ALL, TO_ONE])
    assert plan.outcome.makespan_s == 128e-9

    def claim(proof: Any) -> None:
        # 96 ns: the second task begins in the middle of the first. With two cards both tasks run
        # at once, in 64 ns.
        seconds = "3/31250000"
        proof["cards"] = 2
        proof["schedule"][1][2] = "1/31250000"
        proof["makespan_s"] = proof["lower_bound_s"] = seconds
        proof["bound"] = {"kind": "exclusive", "seconds": seconds, "hosts": [0], "task": -1}

    report = _check_changed(plan.lower().algorithm, claim)
    _assert_refused(report, "reshard-bound", "one card per host, not for 2")


def test_the_bound_by_a_task_is_refused_for_a_split_schedule() -> None:
    plan = _plan([ONE_TASK], cards=2)
    assert plan.outcome.kind == "task"

    def split(proof: Any) -> None:
        # Both halves one after the other; at once, on two cards, they take half of the time.
        task, sender, start, _, _, last = proof["schedule"][0]
        half = "1/31250000"
        proof["schedule"] = [[task, sender, start, half, "0", "1/2"],
                             [task, sender, half, half, "1/2", last]]  # fmt: skip

    report = _check_changed(plan.lower().algorithm, split)
    _assert_refused(report, "reshard-bound", "holds only for unsplit tasks")


def test_work_of_a_strategy_raises_no_bound() -> None:
    plan = _plan([ONE_TASK], cards=2)

    def repeat(proof: Any) -> None:
        # Twice the bytes, in twice the time.
        proof["tasks"][0]["work"] = "2"
        proof["schedule"][0][3] = proof["makespan_s"] = proof["lower_bound_s"] = "1/7812500"
        proof["bound"]["seconds"] = "1/7812500"

    report = _check_changed(plan.lower().algorithm, repeat)
    _assert_refused(report, "reshard-bound", "the task bound is 1/15625000 s, not 1/7812500 s")


def test_a_strategy_that_repeats_bytes_is_not_called_optimal() -> None:
    move = parse_move("64:int8", "mesh(1,1): R", "mesh(2,1): R")
    chain, gathered = (
        _plan([move], strategy=strategy)
        for strategy in (Strategy.BROADCAST, Strategy.SCATTER_ALL_GATHER)
    )
    assert (chain.outcome.makespan_s, gathered.outcome.makespan_s) == (64e-9, 96e-9)
    assert (chain.outcome.status, gathered.outcome.status) == ("optimal", "feasible")
    report = check_schedule(CheckRequest(algorithm=gathered.lower().algorithm), NoOptions())
    assert (report.ok, report.facts["gap"]) == (True, 0.5)


def test_a_late_start_within_a_tick_of_the_bound_is_not_optimal() -> None:
    # Three tasks of 64 bytes from two hosts: 96 ns divided, 128 ns in whole tasks.
    plan = _plan([parse_move("192:int8", "mesh(2,1): R", "mesh(3,1): S0")])
    assert (plan.outcome.bound_s, plan.outcome.makespan_s) == (96e-9, 128e-9)

    def delay(proof: Any) -> None:
        # 16 ns later than needed: 144 ns.
        last = max(proof["schedule"], key=lambda piece: piece[2] != "0")
        last[2] = "1/12500000"
        proof["makespan_s"] = "9/62500000"

    report = _check_changed(plan.lower().algorithm, delay)
    _assert_refused(report, "reshard-optimal", "the schedule is longer")


def test_two_cards_are_not_those_of_a_topology() -> None:
    plan = _plan([ONE_TASK])

    def add_card(proof: Any) -> None:
        # Nothing else contradicts the cards.
        proof["cards"] = 2
        proof["bound"] = {"kind": "nothing", "seconds": "0", "hosts": [], "task": -1}
        proof["status"], proof["proof"] = "feasible", "none"

    report = _check_changed(plan.lower().algorithm, add_card, plan.topology)
    _assert_refused(report, "reshard-topology", "cards other than those of")


@pytest.fixture(scope="module")
def lowered() -> Algorithm:
    return _plan([ONE_TASK]).lower().algorithm


_PARTS = [[0, 0, "0", "1/7812500", "0", "2"], [0, 0, "1/7812500", "0", "2", "1"]]


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (changing("schedule", value=_PARTS), "form", "2 to 1, expected first < last"),
        (changing("schedule", 0, 5, value="0"), "form", "0 to 0, expected first < last"),
        (changing("schedule", 0, 2, value="-1/2"), "form", "expected a fraction from 0 on"),
        (changing("schedule", 0, 3, value="-1"), "form", "expected a fraction from 0 on"),
        (changing("schedule", 0, 3, value="1e999999999"), "form", "expected a fraction"),
        (changing("schedule", 0, 0, value=-1), "form", "the task of piece 0 is -1"),
        (changing("schedule", 0, 0, value=0.5), "form", "the task of piece 0 is 0.5"),
        (changing("schedule", 0, 1, value=True), "form", "the sender of piece 0 is True"),
        (changing("out_rate", "0", value="1/0"), "form", "out_rate.0 is '1/0'"),
        (changing("in_rate", "0", value="0"), "form", "in_rate.0 is 0"),
        (changing("out_rate", "0", value="-1"), "form", "out_rate.0 is '-1'"),
        (changing("out_rate", " 0", value="1"), "form", "out_rate has the host ' 0'"),
        (changing("out_rate", "00", value="1"), "form", "out_rate has the host '00'"),
        (changing("in_rate", "1_0", value="1"), "form", "in_rate has the host '1_0'"),
        (changing("tasks", 0, "bytes", value=64.0), "form", "the bytes of task 0 is 64.0"),
        (changing("tasks", 0, "senders", 0, value=False), "form", "a host in senders of task 0 is"),
        (changing("tasks", 0, "receivers", 0, value=2.0), "form", "a host in receivers of task 0"),
        (changing("cards", value=0), "form", "the number of cards is 0"),
        (changing("host_of", 0, value=10**30), "form", "the host of device 0"),
        (changing("host_of", 0, value=-1), "form", "device 0 of the moves has no host"),
        (changing("moves", 0, "release_s", value=-1.0), "form", "release_s is -1.0"),
        (changing("moves", 0, "due_s", value=float("inf")), "form", "due_s is inf"),
        (changing("moves", 0, "release_s", value=10**400), "form", "release_s is 1000"),
        (changing("moves", value=[]), "form", "does not match the devices"),
        (changing("tasks", 0, "work", value="1/2"), "tasks", "less work than its bytes"),
        (changing("bound", "kind", value="fastest"), "bound", "'fastest' is no kind of bound"),
        (changing("bound", "kind", value="senders"), "bound", "the senders bound is"),
        (changing("bound", "hosts", value=[]), "bound", "hosts [] prove no bound"),
        (changing("bound", "hosts", value=[0]), "bound", "host 0 receives nothing"),
        (changing("bound", "hosts", value=[9]), "bound", "hosts [9] prove no bound"),
        (changing("bound", "task", value=0), "bound", "a task that it does not use"),
    ],
)
def test_a_wrong_value_of_a_proof_is_named(lowered: Algorithm, change, code, message) -> None:
    _assert_refused(_check_changed(lowered, change), f"reshard-{code}", message)


def test_a_proof_without_method_is_malformed(lowered: Algorithm) -> None:
    report = _check_changed(lowered, lambda proof: proof.pop("method"))
    _assert_refused(report, "reshard-form", "'method'")


def test_a_schedule_longer_than_any_float_is_malformed(lowered: Algorithm) -> None:
    def lengthen(proof: Any) -> None:
        proof["schedule"][0][3] = proof["makespan_s"] = "9" * 400
        proof["status"], proof["proof"] = "feasible", "none"

    _assert_refused(_check_changed(lowered, lengthen), "reshard-form", "too large")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changing("streams", 0, 2, value="1"), "1 to 1, expected first < last"),
        (changing("streams", 0, 2, value="-1"), "expected a fraction from 0 on"),
        (changing("streams", 0, 0, value=-1), "the delivery of stream 0 is -1"),
        (changing("streams", 0, 1, 0, value=[0.5, 1]), "a device of stream 0 is 0.5"),
        (changing("bound", "weights", 0, 1, value=True), "weight of the bound is True"),
        (changing("host_of", value=[0]), "does not match the devices"),
        (changing("npus", value=2.5), "npus is 2.5"),
        (changing("bound", "seconds", value="1/0"), "the bound is '1/0'"),
        (changing("links", 0, 0, value=0.9), "the source of link 0 is 0.9"),
        (changing("links", 0, 0, value=False), "the source of link 0 is False"),
        (changing("links", 0, 0, value="0"), "the source of link 0 is '0'"),
        (changing("links", 1, 0, value=-1), "the destination of link 0 is -1"),
        (changing("links", 2, 0, value=True), "the rate of link 0 is True"),
        (changing("links", 2, 0, value="9e17"), "the rate of link 0 is '9e17'"),
        (changing("links", 2, 0, value=float("nan")), "the rate of link 0 is nan"),
    ],
)
def test_a_wrong_value_of_a_proof_of_streams_is_named(change, message: str) -> None:
    choices = ReshardChoices(None, 1, "packed", Effort(work=0))
    topology = _plan([ONE_TASK]).topology
    plan = plan_reshard([ONE_TASK], topology=topology, choices=choices)
    _assert_refused(_check_changed(plan.lower().algorithm, change), "reshard-form", message)
