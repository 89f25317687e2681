"""Claims of the solver beside what a simulator finds."""

from __future__ import annotations

import json

import pytest
from collhub_teccl.schedules import check, read

from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions, Source
from hub_core.testing import ring_all_gather

pytest.importorskip("collhub_astra_sim", reason="no simulator is installed")


def _chain() -> dict[str, object]:
    """An all-gather of three GPUs in a row: the ends get what the middle passes on."""
    ways = {
        (1, 0): ["0->1 in epoch 0"],
        (2, 0): ["0->1 in epoch 0", "1->2 in epoch 1"],
        (0, 1): ["1->0 in epoch 0"],
        (2, 1): ["1->2 in epoch 0"],
        (1, 2): ["2->1 in epoch 0"],
        (0, 2): ["2->1 in epoch 0", "1->0 in epoch 1"],
    }
    return {
        f"Demand at {at} for chunk 0 from {origin} met by epoch 1": hops
        for (at, origin), hops in ways.items()
    }


def _checked(epochs: float) -> CheckReport:
    claims = {"1-Epoch_Duration": 1e-6, "3-Epochs_Required": epochs, "8-Chunk paths": _chain()}
    source = Source.of_bytes("chain.json", json.dumps(claims).encode())
    return check(CheckRequest(algorithm=read(source, NoOptions())), NoOptions())


def test_claim_that_holds_is_confirmed() -> None:
    report = _checked(2)
    assert report.ok
    assert report.diagnostics == ()
    assert report.facts["needed_epochs"] == pytest.approx(2)
    assert report.facts["needed_s"] == pytest.approx(2e-6)


def test_claim_of_too_few_epochs_is_a_warning() -> None:
    (warning,) = _checked(1).diagnostics
    assert "needs 2.00 epochs where each link takes a chunk in one, and claims 1" in warning.message


def test_each_of_several_chunks_of_a_source_takes_an_epoch_of_a_link() -> None:
    ways = {
        f"Demand at {at} for chunk {chunk} from {origin} met by epoch 0": [
            f"{origin}->{at} in epoch 0"
        ]
        for at, origin in ((0, 1), (1, 0))
        for chunk in range(2)
    }
    claims = {"1-Epoch_Duration": 1e-6, "3-Epochs_Required": 1, "8-Chunk paths": ways}
    source = Source.of_bytes("two.json", json.dumps(claims).encode())
    report = check(CheckRequest(algorithm=read(source, NoOptions())), NoOptions())
    assert report.facts["needed_epochs"] == pytest.approx(2)
    assert [warning.code for warning in report.diagnostics] == ["teccl-claims"]


@pytest.mark.parametrize("epochs", [10**400, float("nan"), float("inf"), True])
def test_claim_that_is_no_finite_number_is_not_a_claim(epochs: float) -> None:
    assert not _checked(epochs).is_applicable


def test_other_algorithms_claim_nothing() -> None:
    report = check(CheckRequest(algorithm=ring_all_gather(3)), NoOptions())
    assert not report.is_applicable
