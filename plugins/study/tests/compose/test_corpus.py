"""Real MSCCL algorithms compose to algorithms with the verdict of the original."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from collhub_compose import embed, relabel, replicate, sequential

import hub_core
from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import Diagnostic, UsageError

pytestmark = pytest.mark.once

MOST_STEPS = 1500


def real_algorithms(corpus: Path) -> list[Algorithm]:
    registry = hub_core.discover()
    files = sorted((corpus / "msccl").glob("*.xml"))[::5]
    found = [hub_core.read(file, registry=registry, report=ignore) for file in files]
    return [algorithm for algorithm in found if len(algorithm.steps) <= MOST_STEPS]


def ignore(diagnostic: Diagnostic) -> None:
    del diagnostic


@pytest.mark.needs_plugins
def test_real_algorithms_keep_their_verdict(corpus: Path) -> None:
    checked = 0
    for algorithm in real_algorithms(corpus):
        if not hub_core.verify(algorithm).ok:
            continue
        order = np.random.default_rng(3).permutation(algorithm.num_ranks).tolist()
        composed = [
            replicate(algorithm, 2),
            replicate(algorithm, 2, interleaved=True),
            relabel(algorithm, order),
            embed(algorithm, [rank + 1 for rank in order], algorithm.num_ranks + 2),
        ]
        # A result at the root alone, or a shift, cannot be followed by the same again.
        with contextlib.suppress(UsageError):
            composed.append(sequential([algorithm, algorithm]))
        for result in composed:
            report = hub_core.verify(result)
            assert report.ok, (result.provenance, report.diagnostics)
        checked += len(composed)
    assert checked > 150
