"""The checker and the reference with explicit sets of events agree on every launch of a plan."""

from __future__ import annotations

import contextlib
import json
from functools import cache
from typing import Any

import pytest
from collhub_mscclpp.checking import execution
from collhub_mscclpp.checking.check_plan import launch_plan, prepare_plan
from collhub_mscclpp.checking.execution import LaunchResult, PlanState
from collhub_mscclpp.checking.report import PlanFindings
from collhub_mscclpp.plugin import PlanWriteOptions
from collhub_mscclpp.reading.read_plan import parse_plan
from collhub_mscclpp.writing.write import write
from executor_plan import LoaderError, TableOverrunError
from made_plans import by_port, checked, chunk, port_put, ring, sent_by_proxy, two_ranks
from mutations import with_other_operations
from ordered_model import Launch, run_launches
from random_plans import random_plan

from hub_core.model import Algorithm, InputError
from hub_core.testing import ring_all_gather, ring_all_reduce

Json = dict[str, Any]

LAUNCHES = 3
CHANGES = 40
RANDOM_PLANS = 200


def write_plan(algorithm: Algorithm, **options: Any) -> Json:
    plan: Json = json.loads(write(algorithm, PlanWriteOptions(**options)).artifacts[0].content())
    return plan


@cache
def base_plans() -> dict[str, Json]:
    """Correct plans of all kinds of synchronisation."""
    return {
        "handshake": two_ranks(),
        "ring of 2": ring(2),
        "ring of 3": ring(3),
        "packets": write_plan(ring_all_reduce(3), protocol="LL"),
        "packets of all-gather": write_plan(ring_all_gather(3), protocol="LL"),
        "groups": write_plan(ring_all_reduce(2), tbg=2),
        "nodes": write_plan(ring_all_gather(4), nodes=2),
        "nodes of all-reduce": write_plan(ring_all_reduce(3), nodes=3),
        "slices": write_plan(ring_all_reduce(2), slices=48),
        "proxies": sent_by_proxy(
            port_put("put", chunk("i", 0)), by_port("signal", [0]), by_port("wait", [0])
        ),
    }


def check_launches(plan: Json) -> tuple[list[LaunchResult], PlanState]:
    """Run all launches in the checker."""
    parsed = parse_plan(json.dumps(plan).encode(), "plan.json")
    execution, results = launch_plan(prepare_plan(parsed, PlanFindings(parsed)), LAUNCHES)
    return results, execution


def convert_launch(result: LaunchResult, execution: PlanState) -> Launch:
    """Convert the result of a launch to the form of the reference."""
    contents = execution.contents
    rows = result.wrong.nonzero()[0]
    return Launch(
        set(result.blocked.tolist()),
        {
            (
                race.operation,
                race.other,
                race.launch,
                race.other_launch,
                race.host_rank,
            ): race.is_late
            for race in result.races
        },
        {race.other for race in result.exposed},
        set(zip(contents.rank[rows].tolist(), contents.offset[rows].tolist(), strict=True)),
    )


def check_equal(plan: Json) -> str:
    """Compare all launches with the reference and return the verdict of the checker."""
    report = checked(plan)
    if report.verdict != "n/a":
        results, execution = check_launches(plan)
        assert [convert_launch(result, execution) for result in results] == run_launches(
            plan, LAUNCHES
        )
    return report.verdict


@pytest.mark.parametrize("name", base_plans())
def test_launches_of_changed_plans_equal_those_of_the_reference(name: str) -> None:
    assert check_equal(base_plans()[name]) == "ok"
    verdicts = set()
    for seed in range(CHANGES):
        # The reader or the model of the loader refuses plans with damaged operations.
        with contextlib.suppress(LoaderError, TableOverrunError, InputError):
            verdicts.add(check_equal(with_other_operations(base_plans()[name], seed)))
    assert {"ok", "race", "deadlock"} <= verdicts


@pytest.mark.parametrize("first", range(0, RANDOM_PLANS, 40))
def test_launches_of_random_plans_equal_those_of_the_reference(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A run that exhausts a pool continues at the first block, so that the order would differ.
    monkeypatch.setattr(execution, "_FIRST_POOL", 1 << 13)
    verdicts = [check_equal(random_plan(seed)) for seed in range(first, first + 40)]
    assert {"race", "deadlock"} <= set(verdicts)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(RANDOM_PLANS, 4000, 100))
def test_launches_of_more_random_plans_equal_those_of_the_reference(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_FIRST_POOL", 1 << 13)
    for seed in range(first, first + 100):
        check_equal(random_plan(seed))
