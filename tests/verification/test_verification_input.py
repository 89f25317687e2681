from __future__ import annotations

from hub_core.testing.samples import ring_all_reduce
from hub_core.verification import VerificationInput, parse_expectation, verify, verify_input


def test_one_input_serves_several_verifications():
    algorithm = ring_all_reduce(4)
    given = VerificationInput(algorithm)
    broadcast = parse_expectation("broadcast root 0", algorithm.collective)
    wrong = verify_input(given, broadcast)
    right = verify_input(given)
    assert wrong == verify(algorithm, expected=broadcast)
    assert right == verify(algorithm)
    assert right.ok
    assert not wrong.ok
    claimed = verify_input(given, claimed_only=True)
    assert claimed.modes == {"in_place": right.modes["in_place"]}
    assert claimed.ok
    assert len(given.messages.send) == algorithm.steps.sends.sum()
