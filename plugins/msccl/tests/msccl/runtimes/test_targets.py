"""Synthesis for a runtime: units divide the size, limits hold, unsuitable requests are refused."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from collhub_packing.pipelining.schedules import apportion

from hub_core import (
    create_synthesis_request,
    find_runtimes,
    run_registry,
    run_synthesizer,
    write,
)
from hub_core.cli.main import main
from hub_core.model import Collective, CollectiveKind, InputError, UsageError
from hub_core.pipeline import limit_search
from hub_core.pipeline.limit_search import find_necessary_limit
from hub_core.pipeline.runtime_fits import count_least_operations
from hub_core.plugin_api import (
    RESOURCES,
    BudgetReached,
    LimitError,
    Merit,
    RuntimeFit,
    RuntimeLimits,
    SynthesisRequest,
    UnitLimits,
    choose_best,
)
from hub_core.verification import verify

KIB = 1 << 10


def request_of(kind: str, ranks: int, size: int, runtime: str, topology: str) -> SynthesisRequest:
    collective = Collective(
        CollectiveKind(kind),
        ranks,
        CollectiveKind(kind).traits.parts(ranks),
        root=0 if CollectiveKind(kind).traits.is_rooted else None,
        in_place=kind != "all-to-all",
    )
    return create_synthesis_request(collective, topology, size, runtime=runtime)


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "kind", "topology", "runtime"),
    [
        ("flows", "all-to-all", "ring:4", "executor"),
        ("tacos", "all-gather", "ring:4", "rccl"),
        ("blink", "all-reduce", "ring:4", "mscclpp"),
        ("ring", "all-reduce", "ring:4", "msccl"),
    ],
)
def test_units_of_results_divide_the_size(
    name: str, kind: str, topology: str, runtime: str
) -> None:
    request = request_of(kind, 4, 4 * KIB, runtime, topology)
    result = run_synthesizer(request, name)
    assert verify(result.algorithm).ok
    assert result.fit is not None
    assert request.target is not None
    assert request.target.units.granules % result.fit.units == 0
    assert result.fit.blocks <= 108


def test_sizes_that_are_no_multiple_of_the_ranks_are_refused_for_rings() -> None:
    nearest = "multiples of 24 bytes, the nearest are 4080 bytes and 4104 bytes"
    with pytest.raises(InputError, match=f"executor does not serve 4 KiB: .*{nearest}"):
        run_synthesizer(request_of("all-reduce", 6, 4 * KIB, "executor", "ring:6"), "ring")


def test_a_runtime_that_cannot_express_the_collective_is_refused() -> None:
    with pytest.raises(InputError, match="msccl cannot express gather"):
        request_of("gather", 4, 4 * KIB, "msccl", "ring:4")


def test_an_unknown_runtime_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no runtime 'cuda'"):
        request_of("all-gather", 4, 4 * KIB, "cuda", "ring:4")


def test_a_size_that_the_runtime_does_not_serve_names_the_nearest_ones() -> None:
    with pytest.raises(InputError, match="the nearest are 992 bytes and 1008 bytes"):
        request_of("all-gather", 4, 1001, "mscclpp", "ring:4")


def test_counts_of_units_divide_every_granule() -> None:
    assert UnitLimits(48, 24).list_counts(4) == [1, 2, 3, 4, 6]
    assert UnitLimits(48).choose_count(4, 5) == 4
    assert UnitLimits(10).list_counts(4) == []
    assert UnitLimits(0, 12).list_counts(4) == [1, 2, 3]


def test_the_first_exceeded_limit_is_reported() -> None:
    fit = RuntimeFit(blocks=80, operations=900, block_operations=70, channels=1, units=8)
    limits = RuntimeLimits(max_blocks=64, max_operations=500)
    assert fit.find_excess(limits) == "blocks"
    assert fit.describe_excess(limits) == "80 thread blocks of a rank, at most 64 run at once"


def test_fewest_messages_win_within_one_percent_and_preferred_limits_within_five() -> None:
    fast, few, slow = Merit(1000, 90), Merit(1009, 60), Merit(1011, 10)
    assert choose_best([fast, few, slow]) == 1
    large = Merit(1000, 90, excess=2.0)
    assert choose_best([large, Merit(1049, 95), Merit(1051, 5)]) == 1
    assert choose_best([large, Merit(1009, 60, excess=1.5)]) == 1


def test_resources_are_compared_with_the_preferred_limits() -> None:
    fit = RuntimeFit(blocks=30, operations=250, block_operations=9, channels=1, units=8)
    limits = RuntimeLimits(preferred_blocks=24, preferred_operations=500)
    assert fit.compute_excess(limits) == 30 / 24
    assert fit.compute_excess(RuntimeLimits()) == 1


def test_a_forwarded_message_is_one_operation() -> None:
    request = request_of("all-gather", 4, 4 * KIB, "executor", "ring:4")
    relay = run_synthesizer(replace(request, target=None), "ring").algorithm
    # Three sends and three receives, of which two receives are forwarded.
    assert count_least_operations(relay) == 4


def test_items_are_apportioned_by_largest_remainders() -> None:
    parts = [Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)]
    assert apportion(parts, 16) == [6, 5, 5]
    assert apportion([Fraction(99, 100), Fraction(1, 100)], 4) == [3, 1]


def test_convert_names_the_nearest_sizes_that_the_runtime_serves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = request_of("all-reduce", 6, 4 * KIB, "ideal", "ring:6")
    write(run_synthesizer(request, "ring").algorithm, tmp_path / "ring.json")
    arguments = ["convert", str(tmp_path / "ring.json"), "-o", str(tmp_path / "ring.xml")]
    assert main(arguments) == 0
    message = capsys.readouterr().err
    assert "executor does not serve 4 KiB: the algorithm serves multiples of 24 bytes" in message
    assert "the nearest are 4080 bytes and 4104 bytes" in message


def synthesize_within(name: str, kind: str, runtime: str, limits: str) -> RuntimeFit:
    request = request_of(kind, 8, 64 * KIB, f"{runtime}?{limits}", "switch:8")
    fit = run_synthesizer(request, name).fit
    assert fit is not None
    return fit


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "kind", "runtime", "resource", "limit"),
    [
        ("direct", "all-to-all", "executor", "blocks", 3),
        ("direct", "all-to-all", "msccl", "operations", 9),
        ("direct", "all-gather", "executor", "block_operations", 2),
        ("ring", "all-gather", "executor", "operations", 3),
        ("ring", "all-reduce", "mscclpp", "block_operations", 4),
        ("halving-doubling", "all-reduce", "rccl", "block_operations", 1),
        ("auto", "reduce-scatter", "mscclpp", "operations", 3),
    ],
)
def test_the_named_limit_suffices_and_one_less_does_not(
    name: str, kind: str, runtime: str, resource: str, limit: int
) -> None:
    with pytest.raises(LimitError) as refused:
        synthesize_within(name, kind, runtime, f"{resource}={limit}")
    assert refused.value.resource == resource
    (sufficient,) = re.findall(rf"set {resource}=(\d+) in --for", str(refused.value))
    assert f"{sufficient} {RESOURCES[resource].noun} suffice" in str(refused.value)
    fit = synthesize_within(name, kind, runtime, f"{resource}={sufficient}")
    assert fit.get_use(resource) <= int(sufficient)
    with pytest.raises(LimitError):
        synthesize_within(name, kind, runtime, f"{resource}={int(sufficient) - 1}")


@pytest.mark.once
def test_limits_that_only_suffice_together_are_named_together() -> None:
    with pytest.raises(LimitError, match="suffice together") as refused:
        synthesize_within("ring", "all-gather", "mscclpp", "block_operations=4&operations=9")
    (query,) = re.findall(r"set (\S+) in --for", str(refused.value))
    assert synthesize_within("ring", "all-gather", "mscclpp", query)


@pytest.mark.once
def test_the_search_for_limits_ends_at_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    # An all-to-all of 8 ranks has 112 sends and receives. Two trials are within this work.
    monkeypatch.setattr(limit_search, "_MAX_WORK", 4000)
    with pytest.raises(LimitError, match=r"blocks of a rank suffice \(4 to \d+ were not tried\)"):
        synthesize_within("direct", "all-to-all", "executor", "blocks=3")


@pytest.mark.once
def test_new_searches_count_as_work_of_the_search_for_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = request_of("all-gather", 8, 64 * KIB, "executor?operations=3", "ring:8")
    assert request.target is not None
    result = run_synthesizer(replace(request, target=None), "ring")
    search = limit_search.LimitedSearch(request, result, lambda again: result)
    budget = request.budget.part(100_000)
    assert search.find_results(request.target, budget) == [result]
    assert budget.done == len(result.algorithm.steps) + 2 * budget.STEPS_OF_A_SIMULATION
    search.find_results(request.target, budget)
    assert budget.done == len(result.algorithm.steps) + 2 * budget.STEPS_OF_A_SIMULATION
    with pytest.raises(BudgetReached):
        limit_search.LimitedSearch(request, result, search.search_again).find_results(
            request.target, request.budget.part(1000)
        )


@pytest.mark.once
def test_ctrl_c_ends_only_the_search_for_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(search: object, target: object, budget: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(limit_search.LimitedSearch, "find_results", interrupt)
    with pytest.raises(LimitError) as refused:
        synthesize_within("direct", "all-to-all", "executor", "blocks=3")
    assert "suffice" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "limits", "message"),
    [
        ("all-gather", "chunks=4", "chunks of the buffer to 4: 8 are necessary for every"),
        ("all-gather", "operations=1", "operations of a rank to 1: 2 are necessary for every"),
        ("all-to-all", "block_operations=1&blocks=1", "blocks of a rank to 1: 2 are necessary"),
    ],
)
def test_limits_below_the_proven_minimum_are_refused(kind: str, limits: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        request_of(kind, 8, 64 * KIB, f"executor?{limits}", "ring:8")


def test_an_all_reduce_may_need_a_single_operation() -> None:
    collective = Collective(CollectiveKind.ALL_REDUCE, 8, 1)
    assert find_necessary_limit(collective, RuntimeLimits(), "operations") == 1


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        ("executor?threads=4", "'threads' is not a resource"),
        ("executor?blocks=2&blocks=3", "'blocks' is given twice"),
        ("executor?blocks=0", "the limit '0' of blocks is no whole number from 1"),
        ("executor?blocks=-1", "the limit '-1' of blocks"),
        ("executor?blocks", "the limit '' of blocks"),
        ("executor?", "'' is not a resource"),
        ("ideal?blocks=16", "--for ideal?blocks=16: ideal has no limits to replace"),
        ("executor?blocks=16,channels=2", "separate the limits of a runtime by &, as executor?"),
        ("executor,executor?blocks=4", "runtime 'executor' is named with different limits"),
    ],
)
def test_invalid_limits_are_refused(runtime: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        request_of("all-gather", 8, 64 * KIB, runtime, "ring:8")


def test_blanks_around_limits_and_repeated_runtimes_are_ignored() -> None:
    chosen = find_runtimes("executor ? blocks=16, executor?blocks=16", run_registry())
    assert [(one.text, one.runtime.limits.max_blocks) for one in chosen] == [
        ("executor?blocks=16", 16)
    ]


@pytest.mark.once
def test_reports_have_the_limits_of_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["synthesize", "ring", "--collective", "all-gather", "--topology", "ring:4"]
    arguments += ["--size", "64KiB"]
    assert main([*arguments, "--for", "executor?blocks=16"]) == 0
    assert "  executor?blocks=16: " in capsys.readouterr().out
    assert main([*arguments, "--for", "executor?blocks=16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runtime"] == "executor?blocks=16"
    assert main([*arguments, "--json"]) == 0
    assert "runtime" not in json.loads(capsys.readouterr().out)


def test_an_option_of_the_writer_that_contradicts_a_limit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ring.xml"
    arguments = ["synthesize", "ring", "--collective", "all-gather", "--topology", "ring:4"]
    arguments += ["--size", "64KiB", "--for", "executor?blocks=8", "-o", str(out)]
    assert main([*arguments, "-O", "max_blocks=64"]) == 2
    message = capsys.readouterr().err
    assert "error: -O max_blocks=64 contradicts --for executor?blocks=8; leave out" in message
    assert not out.exists()
    assert main([*arguments, "-O", "max_blocks=8"]) == 0


@pytest.mark.once
def test_a_written_file_respects_the_limits_of_the_request(tmp_path: Path) -> None:
    out = tmp_path / "direct.xml"
    arguments = ["synthesize", "direct", "--collective", "all-gather", "--topology", "switch:8"]
    arguments += ["--size", "64KiB", "--for", "executor?blocks=7", "-o", str(out)]
    assert main(arguments) == 0
    blocks = [gpu.count("<tb ") for gpu in out.read_text().split("<gpu ")[1:]]
    assert max(blocks) == 7


def test_errors_of_limits_keep_their_resource_between_processes() -> None:
    error = pickle.loads(pickle.dumps(LimitError("too many").about("channels")))
    assert error.resource == "channels"
    assert str(error) == "too many"
