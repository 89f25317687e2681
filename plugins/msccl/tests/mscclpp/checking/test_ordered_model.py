"""The checker and the reference with explicit sets of events agree on every launch of a plan."""

from __future__ import annotations

import contextlib
import json
from functools import cache
from typing import Any

import pytest
from collhub_mscclpp.checking import execution
from collhub_mscclpp.checking.contents import contents_of
from collhub_mscclpp.checking.execution import Execution, LaunchResult
from collhub_mscclpp.checking.lowering import counters_of, lagging_proxies, program_of, ranges_of
from collhub_mscclpp.checking.memory import has_contract, plan_memory
from collhub_mscclpp.options import PlanWriteOptions
from collhub_mscclpp.plans.read_plan import parse_plan
from collhub_mscclpp.writing.write import write
from executor_plan import LoaderError, TableOverrunError
from made_plans import by_port, checked, chunk, port_put, ring, sent_by_proxy, two_ranks
from mutations import with_other_operations
from ordered_model import Launch, run_launches
from random_plans import random_plan

from hub_core.model import InputError
from hub_core.testing import ring_all_gather, ring_all_reduce

Json = dict[str, Any]

LAUNCHES = 3
CHANGES = 40
RANDOM_PLANS = 200


def written(collective: Any, **options: Any) -> Json:
    plan: Json = json.loads(write(collective, PlanWriteOptions(**options)).artifacts[0].content())
    return plan


@cache
def base_plans() -> dict[str, Json]:
    """Correct plans of all kinds of synchronisation."""
    return {
        "handshake": two_ranks(),
        "ring of 2": ring(2),
        "ring of 3": ring(3),
        "packets": written(ring_all_reduce(3), protocol="LL"),
        "packets of all-gather": written(ring_all_gather(3), protocol="LL"),
        "groups": written(ring_all_reduce(2), tbg=2),
        "nodes": written(ring_all_gather(4), nodes=2),
        "nodes of all-reduce": written(ring_all_reduce(3), nodes=3),
        "slices": written(ring_all_reduce(2), slices=48),
        "proxies": sent_by_proxy(
            port_put("put", chunk("i", 0)), by_port("signal", [0]), by_port("wait", [0])
        ),
    }


def check_launches(plan: Json) -> tuple[list[LaunchResult], Execution]:
    """All launches in the checker, repeated until no further unordered counters appear."""
    parsed = parse_plan(json.dumps(plan).encode(), "plan.json")
    memory = plan_memory(parsed)
    counters, proxies = counters_of(parsed), lagging_proxies(parsed)
    program = program_of(parsed, counters, proxies, ranges_of(parsed, memory))
    late: frozenset[int] = frozenset()
    while True:
        execution = Execution(
            parsed,
            memory,
            program,
            counters,
            proxies.count,
            contents_of(memory),
            LAUNCHES,
            has_contract(parsed),
            late,
        )
        results: list[LaunchResult] = []
        while len(results) < LAUNCHES and not (results and len(results[-1].blocked)):
            results.append(execution.launch())
        if not (unordered := execution.unordered_counters()):
            return results, execution
        late |= unordered


def simplified(result: LaunchResult, execution: Execution) -> Launch:
    """A launch of the checker in the form of the reference."""
    contents = execution.contents
    rows = result.wrong.nonzero()[0]
    return Launch(
        set(result.blocked.tolist()),
        {
            (one.operation, one.other, one.launch, one.other_launch, one.host_rank): one.is_late
            for one in result.races
        },
        {one.other for one in result.exposed},
        set(zip(contents.rank[rows].tolist(), contents.offset[rows].tolist(), strict=True)),
    )


def check_equal(plan: Json) -> str:
    """Compare all launches; the verdict of the checker."""
    report = checked(plan)
    if report.verdict != "n/a":
        results, execution = check_launches(plan)
        assert [simplified(one, execution) for one in results] == run_launches(plan, LAUNCHES)
    return report.verdict


@pytest.mark.parametrize("name", base_plans())
def test_launches_of_changed_plans_equal_those_of_the_reference(name: str) -> None:
    assert check_equal(base_plans()[name]) == "ok"
    verdicts = set()
    for seed in range(CHANGES):
        # The readers of both refuse what no operation of the format looks like.
        with contextlib.suppress(LoaderError, TableOverrunError, InputError):
            verdicts.add(check_equal(with_other_operations(base_plans()[name], seed)))
    assert {"ok", "race", "deadlock"} <= verdicts


@pytest.mark.parametrize("first", range(0, RANDOM_PLANS, 40))
def test_launches_of_random_plans_equal_those_of_the_reference(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where a pool is used up, the run starts again at the first block, in another order.
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
