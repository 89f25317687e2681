"""What comes in is verified: refused, warned of or let through as the policy says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hub_core.cli.session_inputs import VerifyPolicy, admit
from hub_core.model import Algorithm, Diagnostic, InputError, Severity
from hub_core.registry.discovery import load_core_only
from hub_core.testing import ring_all_reduce


@pytest.fixture
def wrong() -> Algorithm:
    """A ring in which one send goes to another rank, so that its receive waits for ever."""
    ring = ring_all_reduce(4)
    peer = ring.steps.peer.copy()
    peer[ring.steps.sends.nonzero()[0][0]] = 2
    return replace(ring, steps=replace(ring.steps, peer=peer))


def _heard(algorithm: Algorithm, policy: VerifyPolicy) -> list[Diagnostic]:
    heard: list[Diagnostic] = []
    admit(algorithm, "ring", policy, heard.append, load_core_only())
    return heard


def test_correct_algorithm_passes_in_silence() -> None:
    assert _heard(ring_all_reduce(4), VerifyPolicy.REFUSE) == []


def test_wrong_algorithm_is_refused_with_its_causes_and_the_way_out(wrong: Algorithm) -> None:
    with pytest.raises(InputError) as caught:
        _heard(wrong, VerifyPolicy.REFUSE)
    *causes, last = caught.value.diagnostics
    assert "unmatched-receive" in [cause.code for cause in causes]
    assert last.code == "not-verified"
    assert "--verify warn" in last.cure


def test_warning_policy_goes_on_with_warnings(wrong: Algorithm) -> None:
    heard = _heard(wrong, VerifyPolicy.WARN)
    assert {found.severity for found in heard} == {Severity.WARNING}


def test_switched_off_gate_does_not_look(wrong: Algorithm) -> None:
    assert _heard(wrong, VerifyPolicy.OFF) == []
