"""Fixtures that run every plan that a test writes in the model of the executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from collhub_mscclpp.selecting import write_plans
from collhub_mscclpp.writing import write
from collhub_mscclpp.writing.draft import Draft
from collhub_mscclpp.writing.segments import Segment
from executor_model import Schedule, schedules
from executor_verdicts import run_written

from hub_core.verification import verify

# Five units of 16 bytes, which two or three blocks do not share evenly.
_CHUNK_BYTES = 80
# Plans of more operations are run in one order; those of far more take too long for a test.
_MOST_FOR_ALL_ORDERS, _MOST = 600, 2_500


@pytest.fixture(scope="session")
def known_plans() -> set[bytes]:
    """Plans that were run before."""
    return set()


@pytest.fixture(autouse=True)
def every_written_plan_runs(
    monkeypatch: pytest.MonkeyPatch, known_plans: set[bytes]
) -> Iterator[None]:
    """Fail the test if a plan that it has written is not right in every claimed mode."""
    written: dict[bytes, Draft] = {}
    text: Callable[[Draft, Sequence[Sequence[Segment]]], bytes] = write.plan_text

    def remember(draft: Draft, blocks: Sequence[Sequence[Segment]]) -> bytes:
        content = text(draft, blocks)
        written[content] = draft
        return content

    for module in (write, write_plans):
        monkeypatch.setattr(module, "plan_text", remember)
    yield
    for content, draft in written.items():
        if content not in known_plans:
            known_plans.add(content)
            _check(content, draft)


def _check(content: bytes, draft: Draft) -> None:
    operations = content.count(b'"name":')
    if operations > _MOST:
        return
    algorithm = draft.work.algorithm
    collective = algorithm.collective
    orders: list[Schedule] = schedules(collective.num_ranks, random_orders=1)
    if operations > _MOST_FOR_ALL_ORDERS:
        orders = orders[:1]
    unit = draft.work.unit
    outcomes = run_written(
        content,
        collective,
        unit,
        _CHUNK_BYTES * unit,
        orders=orders,
        # Some tests write algorithms that are not right themselves.
        has_promise=verify(algorithm).ok,
    )
    for is_in_place, outcome in outcomes.items():
        if outcome.verdict != "right" and (draft.serves_in_place() or not is_in_place):
            place = "in place" if is_in_place else "out of place"
            pytest.fail(f"executor model: {collective.kind} {place}: {outcome}")
