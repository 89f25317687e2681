"""The synthesizer `auto`: the fastest wins, by the judge of the request, within the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from collhub_tuning import auto
from collhub_tuning.options import AutoOptions

import hub_core
from hub_core import Algorithm, Collective, CollectiveKind, HubError, verify
from hub_core.network import Occupancy
from hub_core.plugin_api import SynthesisRequest, Synthesizer


@pytest.fixture(autouse=True)
def classics() -> None:
    registry = hub_core.discover()
    if not {"ring", "direct"} <= {found.name for found in registry.all(Synthesizer)}:
        pytest.skip("the synthesizers of collhub-classic are not installed")


def request_for(
    kind: CollectiveKind = CollectiveKind.ALL_GATHER,
    simulate: Callable[[Algorithm], int | None] = lambda algorithm: None,
    size: int = 1 << 20,
) -> SynthesisRequest:
    topology = hub_core.parse_topology("ring:4")
    collective = Collective(kind, 4, 4, in_place=True)
    npus = (0, 1, 2, 3)
    return SynthesisRequest(
        collective, topology, size, npus, Occupancy.SERIALIZATION, simulate=simulate
    )


def test_the_judge_of_the_request_decides() -> None:
    """Fewer steps count as faster here: direct has one message a pair, as the ring has."""
    asked = AutoOptions(candidates="ring,bruck,direct")
    seen: list[int] = []

    def judge(algorithm: Algorithm) -> int:
        seen.append(len(algorithm.steps))
        # The second that is asked is the fastest.
        return 10 if len(seen) == 2 else 20

    result = auto.synthesize(request_for(simulate=judge), asked)
    assert (result.statistics["winner"], result.time_ns) == ("bruck", 10)
    assert result.statistics["ahead of"] == "ring by 100.0 %"
    assert len(seen) == 3
    assert verify(result.algorithm).ok


def test_what_does_not_fit_is_left_out() -> None:
    result = auto.synthesize(request_for(), AutoOptions(candidates="pairwise,ring"))
    assert result.statistics["winner"] == "ring"
    assert result.statistics["candidates"] == "1 of 2 fit and were made"


def test_where_nothing_fits_every_reason_is_told() -> None:
    with pytest.raises(HubError, match="no synthesizer fits: pairwise: defines no all-ga"):
        auto.synthesize(request_for(), AutoOptions(candidates="pairwise"))


def test_after_the_budget_no_candidate_is_begun() -> None:
    result = auto.synthesize(request_for(), AutoOptions(candidates="ring,direct", budget=0.0))
    assert result.statistics["winner"] == "ring"
    assert result.statistics["candidates"] == "1 of 2 fit and were made"


def test_ctrl_c_ends_the_search_with_the_best_so_far() -> None:
    calls: list[int] = []

    def judge(algorithm: Algorithm) -> int:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return 10

    result = auto.synthesize(request_for(simulate=judge), AutoOptions(candidates="ring,direct"))
    assert result.statistics["winner"] == "ring"
    assert result.statistics["interrupted"] is True


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        ((30, 40), {"cut": 25, "latency": 5}),
        # What the loser proves lies above the winner's time: true for its own messages alone.
        ((20, 40), {"cut": 10, "latency": 5}),
    ],
)
def test_of_each_kind_the_latest_bound_that_fits_the_winner_stays(
    judged: tuple[int, int], expected: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_for(simulate=lambda algorithm: next(times))
    asked = AutoOptions(candidates="ring,direct")
    made = auto.synthesize(request_for(), asked)
    proved = iter([{"cut": 10, "latency": 5}, {"cut": 25}])
    times = iter(judged)
    monkeypatch.setattr(
        auto.hub_core, "synthesize", lambda *_, **__: replace(made, bounds_ns=next(proved))
    )
    result = auto.synthesize(request, asked)
    assert (result.time_ns, result.bounds_ns) == (judged[0], expected)


def test_unknown_candidates_are_answered_with_the_closest_one() -> None:
    with pytest.raises(HubError, match="did you mean 'ring'"):
        auto.synthesize(request_for(), AutoOptions(candidates="rnig"))


def test_without_a_name_synthesize_takes_auto(collhub) -> None:
    asked = ("--collective", "all-gather", "--topology", "ring:4", "--size", "1MiB")
    run = collhub("synthesize", *asked, "-O", "candidates=ring,direct")
    assert run.code == 0
    assert "winner" in run.out
    assert "verification  correct" in run.out
