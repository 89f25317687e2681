"""Simulated algorithms against public measurements, with the shipped profiles."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = ROOT / "benchmarks" / "machines" / "simulated.py"
# The kernel that lets the host copy: 83 us for 8 KiB, of which no constant is known.
BY_HOST = "A100 all-gather 1 nodes 8192 B MSCCL++ kernel 3"


@pytest.fixture(scope="module")
def script() -> Mapping[str, Callable[..., Sequence[Any]]]:
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def points(measured_corpus: Path) -> Sequence[Mapping[str, object]]:
    text = (measured_corpus / "measured.json").read_text()
    points: Sequence[Mapping[str, object]] = json.loads(text)["points"]
    return points


@pytest.mark.once
def test_algorithms_of_nccl_reach_the_bars(script, points) -> None:
    errors = np.abs([one.error for one in script["compare_nccl"](points, "aiconfigurator")])
    assert len(errors) == 165
    assert np.median(errors) < 0.05
    assert np.percentile(errors, 90) < 0.15


def test_kernels_of_mscclpp_are_within_their_bar(script, points) -> None:
    comparisons = script["compare_mscclpp"](points)
    assert len(comparisons) == 29
    assert [one.text for one in comparisons if abs(one.error) > 0.25] == [BY_HOST]


@pytest.mark.parametrize("name", ["ring", "hierarchical"])
def test_two_descriptions_of_a_cluster_take_the_same_time(script, name: str) -> None:
    times_us = [
        script["simulated_us"](
            script["synthesized"]("all-reduce", name, text),
            text,
            1 << 26,
            machine="h100",
            instances="0",
        )
        for text in ("dgx-h100:4", "rail:4x8")
    ]
    assert times_us[0] == pytest.approx(times_us[1], rel=0.05)


@pytest.mark.parametrize("size", [1 << 20, 1 << 26, 1 << 30])
@pytest.mark.parametrize(
    ("topology", "names"),
    [("dgx-h100", ("ring", "halving-doubling")), ("dgx-h100:2", ("ring", "hierarchical", "rings"))],
)
def test_copies_change_no_winner(script, topology: str, names: Sequence[str], size: int) -> None:
    times = {
        (name, copies): script["simulated_us"](
            script["synthesized"]("all-reduce", name, topology, copies),
            topology,
            size,
            machine="h100",
            instances="0" if copies == 1 else "1",
        )
        for name in names
        for copies in (1, 32)
    }
    best = min(time for (_, copies), time in times.items() if copies == 1)
    assert best <= 1.03 * min(times.values())
