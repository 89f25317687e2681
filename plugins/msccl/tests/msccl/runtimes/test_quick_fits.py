"""Comparisons fit algorithms without their exact resources: the algorithms must be the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from collhub_msccl.plugin import WriteOptions, fit_executor
from collhub_msccl.writing import choose, write_xml
from collhub_msccl.writing.known_fits import KnownFits

from hub_core import create_synthesis_request, parse_topology, run_synthesizer
from hub_core.model import Algorithm, Collective, CollectiveKind, InputError
from hub_core.plugin_api import LimitError, RuntimeFit, RuntimeLimits
from hub_core.testing import direct_all_to_all, ring_all_reduce

TOPOLOGY = parse_topology("switch:4")


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "kind", "topology"),
    [
        ("ring", "all-reduce", "ring:4"),
        ("rings", "all-gather", "switch:4"),
        ("tacos", "all-reduce", "torus:2x3"),
        ("direct", "all-to-all", "switch:4"),
        ("hierarchical", "reduce-scatter", "dgx-a100:1"),
    ],
)
@pytest.mark.parametrize("runtime", ["executor", "executor?blocks=6", "rccl"])
def test_quick_fits_choose_the_algorithms_of_exact_ones(
    name: str, kind: str, topology: str, runtime: str
) -> None:
    """An algorithm is chosen by its time; its resources only decide whether it is executed."""
    ranks = parse_topology(topology).num_npus
    units = CollectiveKind(kind).traits.parts(ranks)
    collective = Collective(CollectiveKind(kind), ranks, units, in_place=kind != "all-to-all")
    chosen: list[Algorithm | str] = []
    for is_quick in (False, True):
        request = create_synthesis_request(
            collective, topology, ranks << 12, runtime=runtime, is_quick=is_quick
        )
        try:
            result = run_synthesizer(request, name)
        except InputError as error:
            chosen.append(error.diagnostics[0].code)
            continue
        assert result.fit is not None
        assert request.target is not None
        assert request.target.limits is not None
        assert not result.fit.find_excess(request.target.limits)
        chosen.append(result.algorithm)
    exact, quick = chosen
    if isinstance(exact, str) or isinstance(quick, str):
        assert exact == quick
    else:
        assert not exact.steps.differences(quick.steps)


def test_an_algorithm_with_too_many_peers_is_refused_before_any_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread block sends to one rank: three peers need three blocks, whatever the program."""

    def fail(*arguments: object, **named: object) -> None:
        raise AssertionError("an attempt was made")

    monkeypatch.setattr(write_xml, "ProgramSearch", fail)
    limits = RuntimeLimits(max_blocks=2)
    expected = "executor cannot run the algorithm: at least 3 thread blocks of a rank, at most 2"
    with pytest.raises(LimitError, match=expected) as caught:
        fit_executor(direct_all_to_all(4), 1 << 12, TOPOLOGY, limits, is_quick=True)
    assert caught.value.resource == "blocks"


def test_too_many_channels_between_two_ranks_are_refused_before_any_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Channels that the producer assigned stay apart, so that no assignment can have fewer."""
    monkeypatch.setattr(choose, "assemble", None)
    algorithm = ring_all_reduce(3)
    messages = algorithm.steps.sends
    channel = np.zeros(len(messages), np.int64)
    # The n-th message of each connection, on both sides.
    for side in (messages, algorithm.steps.receives):
        for rank in range(3):
            rows = np.flatnonzero(side & (algorithm.steps.rank == rank))
            channel[rows] = np.arange(len(rows))
    steps = replace(algorithm.steps, channel=channel.astype(algorithm.steps.channel.dtype))
    options = WriteOptions(runtime="executor", max_channels=3)
    with pytest.raises(LimitError, match="need more than the 3 channels that it has") as caught:
        write_xml.measure_fit(replace(algorithm, steps=steps), options)
    assert caught.value.resource == "channels"


def test_equal_algorithms_are_measured_once_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A portfolio fits what its members return, and most members the same steps for all sizes."""
    monkeypatch.setattr(write_xml, "_KNOWN_FITS", KnownFits())
    measured: list[int] = []
    original = write_xml._measure_within

    def count(coarse: Algorithm, options: WriteOptions, limits: RuntimeLimits) -> RuntimeFit:
        measured.append(len(coarse.steps))
        return original(coarse, options, limits)

    monkeypatch.setattr(write_xml, "_measure_within", count)
    limits = RuntimeLimits()
    first, other = ring_all_reduce(4), ring_all_reduce(5)
    fits = [
        fit_executor(each, size, TOPOLOGY, limits, is_quick=True)
        for each in (first, replace(first, collective_bytes=1 << 20), other)
        for size in (1 << 20, 1 << 21)
    ]
    assert measured == [len(first.steps), len(other.steps)]
    assert [fit.max_bytes for fit in fits] == [1 << 20, 1 << 21] * 3
    assert len({replace(fit, max_bytes=0) for fit in fits[:4]}) == 1


def test_an_error_is_known_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """An algorithm that no program can express costs the most attempts."""
    monkeypatch.setattr(write_xml, "_KNOWN_FITS", KnownFits())
    limits = RuntimeLimits(max_blocks=2)
    messages = []
    for _ in range(2):
        with pytest.raises(LimitError) as caught:
            fit_executor(direct_all_to_all(4), 1 << 12, TOPOLOGY, limits, is_quick=True)
        messages.append(str(caught.value))
        monkeypatch.setattr(write_xml, "_measure_within", None)
    assert messages[0] == messages[1]
    assert caught.value.resource == "blocks"


def test_only_the_latest_results_are_known() -> None:
    """The memory of a comparison is bounded."""
    known, fit = KnownFits(), RuntimeFit(1, 1, 1, 1, 1)
    calls: list[int] = []

    def measure(number: int) -> RuntimeFit:
        calls.append(number)
        return fit

    first = ring_all_reduce(3)
    for number in [*range(512), 0, 512, 0, 1]:
        known.find(first, number, partial(measure, number))
    assert calls == [*range(513), 1]
