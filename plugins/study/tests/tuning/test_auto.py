"""The synthesizer `auto`: the fastest wins, by the judge of the request, within the limit of work."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from collhub_tuning import auto
from collhub_tuning.plugin import AutoOptions
from collhub_tuning.variations import evaluate_failures

import hub_core
from hub_core import (
    Algorithm,
    Collective,
    CollectiveKind,
    Diagnostic,
    HubError,
    PluginError,
    Severity,
    verify,
)
from hub_core.model import StepKind
from hub_core.network import Occupancy
from hub_core.pipeline.synthesis import create_synthesis_request
from hub_core.plugin_api import (
    ONE_SIZE,
    SearchBudget,
    Simulator,
    SynthesisRequest,
    SynthesisResult,
    Synthesizer,
    synthesis,
)

_SEARCH = "large network: its search would take minutes"
_ESTIMATE = "large network: its time cannot be estimated"


@pytest.fixture(autouse=True)
def classics() -> None:
    registry = hub_core.discover()
    if not {"ring", "direct"} <= {found.name for found in registry.all(Synthesizer)}:
        pytest.skip("the synthesizers of collhub-synthesis are not installed")


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
    assert (result.statistics["winner"], result.time_ns) == ("direct", 10)
    assert result.statistics["ahead of"] == "ring by 100.0 %"
    assert len(seen) == 3
    assert verify(result.algorithm).ok


@pytest.mark.parametrize(("slower", "objective", "winner"), [
    (1010, "messages", "few"), (1011, "messages", "many"), (1010, "time", "many"),
])  # fmt: skip
def test_within_one_percent_the_fewest_messages_win(
    slower: int, objective: str, winner: str
) -> None:
    """A ring sends 24 messages in an all-reduce of 4 ranks, recursive doubling sends 8."""
    names = {24: "many", 8: "few"}
    times = {"many": 1000, "few": slower}

    def judge(algorithm: Algorithm) -> int:
        return times[names[algorithm.steps.num_messages]]

    asked = AutoOptions(candidates="ring,recursive-doubling", objective=objective)
    request = request_for(CollectiveKind.ALL_REDUCE, simulate=judge)
    result = auto.synthesize(request, asked)
    assert names[result.algorithm.steps.num_messages] == winner
    assert result.time_ns == times[winner]
    note = result.statistics.get("fewer messages")
    if winner == "few":
        faster = "0.99 % faster (-O objective=time)"
        assert note == f"8 instead of 24 of ring, which is {faster}"
    else:
        assert note is None


def test_what_does_not_fit_is_left_out() -> None:
    result = auto.synthesize(request_for(), AutoOptions(candidates="pairwise,ring"))
    assert result.statistics["winner"] == "ring"
    assert result.statistics["candidates"] == "1 of 2 fit and were made"


def test_where_nothing_fits_every_reason_is_told() -> None:
    with pytest.raises(HubError, match="no synthesizer fits: pairwise: does not support all-ga"):
        auto.synthesize(request_for(), AutoOptions(candidates="pairwise"))


def test_reasons_that_the_user_can_remove_come_first_with_their_cure() -> None:
    """More synthesizers lack the collective than reject the size."""
    collective = Collective(CollectiveKind.SCATTER, 5, 5, 0)
    request = create_synthesis_request(collective, hub_core.parse_topology("ring:5"), 1)
    with pytest.raises(HubError) as caught:
        auto.synthesize(request, AutoOptions(candidates="ring,bruck,pairwise,direct,binomial"))
    assert str(caught.value) == (
        "no synthesizer fits: direct, binomial: 1 bytes cannot be cut in 5 parts; "
        "ring, bruck, pairwise: does not support scatter; choose a larger size, or fewer chunks"
    )


def test_only_an_unsupported_collective_comes_last_not_the_text_of_a_reason() -> None:
    search = auto._SynthesizerSearch(["a", "b", "c"], SearchBudget())
    search.failures = {
        "a": "a does not support scatter",
        "b": "b does not support switches",
        "c": "c needs links",
    }
    search.unsupporting = {"a"}
    error = auto._create_error(request_for(), search)
    assert error.diagnostics[0].message == (
        "no synthesizer fits: "
        "b: does not support switches; c: needs links; a: does not support scatter"
    )


def test_a_request_beyond_the_limits_is_answered_with_the_limit_and_its_cure() -> None:
    """10 240 ranks exchange 10 240 * 10 239 blocks."""
    topology = hub_core.parse_topology("switch:10240")
    collective = Collective(CollectiveKind.ALL_TO_ALL, 10240, 10240)
    request = create_synthesis_request(collective, topology, 1 << 30)
    with pytest.raises(HubError) as caught:
        auto.synthesize(request, AutoOptions(candidates="ring,bruck,pairwise"))
    assert str(caught.value) == (
        "all-to-all of 10240 ranks is too large: 104847360 blocks in messages are too many "
        "(limit 20000000) (bruck, pairwise); choose fewer ranks, or an algorithm of fewer messages"
    )


def test_a_synthesizer_at_work_ends_at_the_work_limit_with_its_best() -> None:
    """The group order of bruck would need a second simulation."""
    topology = hub_core.parse_topology("dgx-a100:2")
    collective = Collective(CollectiveKind.ALL_GATHER, 16, 16, in_place=True)
    whole = hub_core.synthesize(collective, topology, 1 << 20, name="bruck")
    asked = {"candidates": "bruck", "work": "1"}
    cut = hub_core.synthesize(collective, topology, 1 << 20, name="auto", options=asked)
    (told,) = cut.cuts
    assert (told.name, told.work) == ("bruck", len(whole.algorithm.steps) + 500)
    assert "work limit was reached (1 steps, -O work=)" in told.reason
    assert verify(cut.algorithm).ok


def test_after_the_work_limit_no_candidate_is_begun() -> None:
    result = auto.synthesize(request_for(), AutoOptions(candidates="ring,direct", work=0))
    assert result.statistics["winner"] == "ring"
    assert result.statistics["candidates"] == "1 of 2 fit and were made"
    assert list(result.not_tried) == ["direct"]
    assert "work limit" in result.not_tried["direct"]


def test_without_a_time_limit_the_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopped for an hour between two candidates tries all of them."""
    hours = iter(range(0, 10**6, 3600))
    monkeypatch.setattr(synthesis.time, "monotonic", lambda: float(next(hours)))
    asked = AutoOptions(candidates="ring,direct")
    result = auto.synthesize(request_for(), asked)
    assert result.statistics["candidates"] == "2 of 2 fit and were made"
    assert not result.not_tried


def test_the_time_limit_of_the_request_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]
    monkeypatch.setattr(synthesis.time, "monotonic", lambda: seconds[0])

    def judge(algorithm: Algorithm) -> int:
        seconds[0] += 61
        return 10

    request = replace(request_for(simulate=judge), budget=SearchBudget(timeout_s=60.0))
    result = auto.synthesize(request, AutoOptions(candidates="ring,direct"))
    assert result.statistics["winner"] == "ring"
    assert "time limit was reached (60 s, --timeout)" in result.not_tried["direct"]


def test_without_an_algorithm_in_time_the_error_names_the_limit() -> None:
    budget = SearchBudget(timeout_s=1e-9)
    with pytest.raises(HubError, match=r"no synthesizer finished an algorithm: the time limit"):
        auto.synthesize(replace(request_for(), budget=budget), AutoOptions(candidates="ring"))


def test_candidates_are_tried_in_the_order_of_their_estimates() -> None:
    """On a ring, messages between ranks that are far apart load the links more."""
    names = ["direct", "bruck", "ring", "bidirectional-ring"]
    order = auto._sort_by_estimate(names, hub_core.discover(), request_for(size=1 << 26))
    assert order == ["bidirectional-ring", "ring", "direct", "bruck"]


def test_synthesizers_that_adapt_are_tried_first() -> None:
    registry = hub_core.discover()
    if "tacos" not in {found.name for found in registry.all(Synthesizer)}:
        pytest.skip("collhub-tacos is not installed")
    result = auto.synthesize(request_for(), AutoOptions(candidates="ring,tacos", work=0))
    assert result.statistics["winner"] == "tacos"
    assert list(result.not_tried) == ["ring"]


def test_what_was_not_tried_is_in_text_and_json(collhub) -> None:
    asked = ("synthesize", "--collective", "all-gather", "--topology", "ring:4", "--size", "1MiB")
    limit = ("-O", "candidates=ring,direct", "-O", "work=0")
    run = collhub(*asked, *limit)
    assert "not tried     1, so the answer is partial: direct: the work limit" in run.out
    document = json.loads(collhub(*asked, *limit, "--json").out)
    assert document["is_partial"] is True
    assert [one["name"] for one in document["not_tried"]] == ["direct"]
    assert document["is_verified"] is True
    whole = json.loads(collhub(*asked, "-O", "candidates=ring,direct", "--json").out)
    assert (whole["is_partial"], whole["not_tried"]) == (False, [])


def test_the_plugins_of_the_request_are_the_candidates() -> None:
    """Others that are installed are neither tried nor known by name."""
    hub = hub_core.discover(disabled=["classic"])
    request = replace(request_for(), hub=hub)
    with pytest.raises(HubError, match="no synthesizer 'ring'"):
        auto.synthesize(request, AutoOptions(candidates="ring"))


def test_a_disabled_plugin_has_no_candidate(collhub) -> None:
    asked = ("synthesize", "--collective", "all-gather", "--topology", "ring:4", "--size", "1MiB")
    run = collhub("--disable-plugin", "classic", *asked, "-O", "candidates=ring")
    assert run.code != 0
    assert "plugin classic" in run.err


def test_a_candidate_that_crashes_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    run_synthesizer = hub_core.run_synthesizer

    def crash_if_direct(request, name, options):
        if name == "direct":
            raise PluginError("plugin classic: direct failed: AssertionError")
        return run_synthesizer(request, name, options)

    monkeypatch.setattr(auto.hub_core, "run_synthesizer", crash_if_direct)
    result = auto.synthesize(request_for(), AutoOptions(candidates="ring,direct"))
    (warning,) = result.diagnostics
    assert (warning.severity, warning.message) == (
        Severity.WARNING,
        "plugin classic: direct failed: AssertionError",
    )


@pytest.mark.parametrize("code", ["too-large", "contents"])
def test_the_fastest_verified_candidate_wins(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An algorithm that is wrong, or too large to check, does not hide one that is correct."""
    verify_input = auto.verify_input
    asked: list[object] = []

    def refusing(given, **others):
        report = verify_input(given, **others)
        asked.append(given)
        # The fastest is verified first.
        if len(asked) > 1:
            return report
        wrong = {name: replace(one, verdict="wrong") for name, one in report.modes.items()}
        return replace(report, modes=wrong, diagnostics=(Diagnostic(code, "reason"),))

    monkeypatch.setattr(auto, "verify_input", refusing)
    times = iter((20, 10))
    result = auto.synthesize(
        request_for(simulate=lambda algorithm: next(times)),
        AutoOptions(candidates="ring,direct"),
    )
    assert (result.statistics["winner"], result.time_ns) == ("ring", 20)
    (warning,) = result.diagnostics
    assert "direct" in warning.message
    assert ("could not be checked" in warning.message) == (code == "too-large")


def test_a_refused_candidate_is_named_in_text_and_json(
    collhub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest algorithm loses the result of its last message."""
    run_synthesizer = auto.hub_core.run_synthesizer

    def lose_a_message(request: SynthesisRequest, name: str, options=None) -> SynthesisResult:
        result = run_synthesizer(request, name, options)
        if name != "direct":
            return result
        steps = result.algorithm.steps
        offset = steps.dst_offset.copy()
        offset[np.flatnonzero(steps.kind == StepKind.RECV)[-1]] = 0
        return replace(
            result, algorithm=replace(result.algorithm, steps=replace(steps, dst_offset=offset))
        )

    monkeypatch.setattr(auto.hub_core, "run_synthesizer", lose_a_message)
    asked = ("synthesize", "auto", "--collective", "all-gather", "--topology", "fc:4")
    asked = (*asked, "--size", "1MiB", "-O", "candidates=ring,direct")
    run = collhub(*asked)
    assert run.code == 0
    line = next(line for line in run.err.splitlines() if line.startswith("warning: "))
    reason = r"rank 3, step 5: in place: nothing orders this receive from rank 2 into OUTPUT\[0\]"
    assert re.match(rf"warning: the algorithm of direct \(.* us\) is wrong: {reason}", line), line
    assert line.endswith("[wrong-candidate]")
    document = json.loads(collhub(*asked, "--json").out)
    (finding,) = document["diagnostics"]
    assert (finding["code"], finding["severity"]) == ("wrong-candidate", "warning")
    assert line.startswith(f"warning: {finding['message']}")
    assert document["statistics"]["winner"] == "ring"


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


def test_bounds_of_all_candidates_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest of each name, also above the time: whoever asks reports such a bound as wrong.

    Bounds for messages of one size hold for the algorithm that has messages of that size.
    """
    asked = AutoOptions(candidates="ring,direct")
    made = auto.synthesize(request_for(), asked)
    proved = iter([{"cut": 10, f"port{ONE_SIZE}": 5}, {"cut": 25, f"port{ONE_SIZE}": 19}])
    times = iter((20, 40))
    monkeypatch.setattr(
        auto.hub_core, "run_synthesizer", lambda *_, **__: replace(made, bounds_ns=next(proved))
    )
    result = auto.synthesize(request_for(simulate=lambda algorithm: next(times)), asked)
    assert (result.time_ns, result.bounds_ns) == (20, {"cut": 25, f"port{ONE_SIZE}": 5})


def test_unknown_candidates_are_answered_with_the_closest_one() -> None:
    with pytest.raises(HubError, match="did you mean 'ring'"):
        auto.synthesize(request_for(), AutoOptions(candidates="rnig"))


def test_without_a_name_synthesize_takes_auto(collhub) -> None:
    asked = ("--collective", "all-gather", "--topology", "ring:4", "--size", "1MiB")
    run = collhub("synthesize", *asked, "-O", "candidates=ring,direct")
    assert run.code == 0
    assert "winner" in run.out
    assert "verification  correct" in run.out


def test_the_robust_choice_has_the_smallest_largest_time_over_failures() -> None:
    registry = hub_core.discover()
    if "analytical" not in {found.name for found in registry.all(Simulator)}:
        pytest.skip("the simulator analytical (collhub-astra-sim) is not installed")
    topology = hub_core.parse_topology("dgx1v")
    collective = Collective(CollectiveKind.ALL_REDUCE, 8, 8, in_place=True)
    names = ("ring", "rings", "direct")
    request = create_synthesis_request(collective, topology, 1 << 20, registry=registry)
    chosen = auto.synthesize(request, AutoOptions(",".join(names), robust="links"))
    worst = {}
    for name in names:
        result = hub_core.synthesize(collective, topology, 1 << 20, name=name, registry=registry)
        times = evaluate_failures(result.algorithm, request, registry, result.time_ns)
        worst[name] = times.worst_ns
    assert worst[str(chosen.statistics["winner"])] == min(worst.values())
    assert "failures simulated" in str(chosen.statistics["worst failure"])


def test_searches_that_would_take_minutes_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """On large networks, fixed patterns come first; what was left out is not a failure."""
    monkeypatch.setattr(auto, "_MAX_PAIRS", 0)
    monkeypatch.setattr(auto, "_MAX_SEARCHED_PAIRS", 0)
    monkeypatch.setattr(auto, "_MAX_DIRECT_PAIRS", 0)
    monkeypatch.setattr(auto, "_NEAR_BOUND", 0.0)
    if "tacos" not in {found.name for found in hub_core.discover().all(Synthesizer)}:
        pytest.skip("the synthesizer tacos (collhub-tacos) is not installed")
    result = auto.synthesize(request_for(), AutoOptions(candidates="tacos,ring"))
    assert result.statistics["winner"] == "ring"
    assert result.not_tried == {"tacos": "large network: its search would take minutes"}


@pytest.mark.parametrize(
    ("text", "kind", "is_beyond"),
    [
        # 1 024 NPUs with 2 560 links: a search had no result in 10 minutes.
        ("leaf-spine:32,32,8", CollectiveKind.ALL_GATHER, True),
        ("leaf-spine:16,32,8", CollectiveKind.ALL_GATHER, False),
        # Without switches, links are all routes.
        ("ring:1024", CollectiveKind.ALL_GATHER, False),
        ("torus:32x32", CollectiveKind.ALL_GATHER, True),
        # Every pair has data of its own.
        ("ring:1024", CollectiveKind.ALL_TO_ALL, True),
    ],
)
def test_a_thousand_npus_with_many_routes_are_beyond_searches(
    text: str, kind: CollectiveKind, is_beyond: bool
) -> None:
    topology = hub_core.parse_topology(text)
    collective = Collective(kind, topology.num_npus, topology.num_npus)
    request = replace(request_for(), collective=collective, topology=topology)
    assert auto._is_beyond_search(request) is is_beyond


def test_the_search_on_a_large_network_ends_near_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "_MAX_PAIRS", 0)
    monkeypatch.setattr(auto, "_NEAR_BOUND", 1e9)
    result = auto.synthesize(request_for(), AutoOptions(candidates="ring,direct"))
    assert list(result.not_tried) == ["direct"]
    assert "above the lower bound" in result.not_tried["direct"]


@pytest.mark.parametrize(
    ("best_ns", "is_large", "reasons"),
    [
        # (reason of a pattern without estimate, of an adapting one, of one with `within`)
        (None, False, ("", "", "")),
        (None, True, ("", _SEARCH, _SEARCH)),
        (1200, False, (_ESTIMATE, _SEARCH, _SEARCH)),
        (1200, True, (_ESTIMATE, _SEARCH, _SEARCH)),
        (1300, False, (_ESTIMATE, "", _SEARCH)),
        (1300, True, (_ESTIMATE, _SEARCH, _SEARCH)),
        (2100, False, ("", "", _SEARCH)),
        (2100, True, (_ESTIMATE, _SEARCH, _SEARCH)),
    ],
)
def test_each_reason_to_skip_a_synthesizer(
    best_ns: int | None,
    is_large: bool,
    reasons: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bound is 1000 ns; another synthesizer found the request too large."""
    registry = hub_core.discover()
    if not {"blink", "flows"} <= {found.name for found in registry.all(Synthesizer)}:
        pytest.skip("the synthesizers blink and flows are not installed")
    monkeypatch.setattr(auto, "_MAX_SEARCHED_PAIRS", 0)
    monkeypatch.setattr(auto, "_MAX_DIRECT_PAIRS", 0 if is_large else 1 << 30)
    monkeypatch.setattr(auto, "_estimate_ns", lambda *_: float("inf"))
    request = request_for()
    search = auto._SynthesizerSearch(["ring"], SearchBudget())
    search.too_large["direct"] = Diagnostic("too-large", "too many messages")
    if best_ns is not None:
        result = auto.synthesize(request, AutoOptions(candidates="ring"))
        search.candidates.append(auto._SynthesizerResult("ring", result, best_ns, request))
    assert reasons == tuple(
        auto._find_reason_to_skip(name, request, registry, search, 1000.0)
        for name in ("ring", "flows", "blink")
    )
