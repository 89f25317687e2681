"""Values of system files: numbers are numbers, as ASTRA-sim's JSON library reads them."""

from __future__ import annotations

import json

import pytest
from collhub_astra_sim.workloads.system import System

from hub_core.model import InputError

STATED = {"scheduling-policy": "FIFO", "preferred-dataset-splits": 1}


@pytest.mark.parametrize("value", [True, -1, "1", None, 10**400])
def test_a_bandwidth_is_a_number_from_zero_on(value: object) -> None:
    text = json.dumps({**STATED, "local-mem-bw": value})
    with pytest.raises(InputError, match=r"system\.json: local-mem-bw: .* is not a number"):
        System.of_json(text)


def test_a_switch_may_be_true() -> None:
    system = System.of_json(json.dumps({**STATED, "replay-only": True}))
    assert system.is_replay_only
