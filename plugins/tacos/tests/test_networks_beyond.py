"""Networks that join nobody, or too slowly: one clear line each."""

from __future__ import annotations

import pytest

import hub_core
from hub_core import InputError
from hub_core.model import Collective, CollectiveKind


@pytest.mark.parametrize("name", ["tacos", "blink"])
@pytest.mark.parametrize("kind", [CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE])
def test_npus_without_a_link_are_named(name: str, kind: CollectiveKind) -> None:
    collective = Collective(kind, 2, 2)
    with pytest.raises(InputError, match=r"no link leaves (NPU|the nodes) 0"):
        hub_core.synthesize(collective, "dgx1v?npus=0,5", 1 << 20, name=name)


@pytest.mark.parametrize("name", ["tacos", "blink"])
def test_times_beyond_the_clock_are_refused(name: str) -> None:
    collective = Collective(CollectiveKind.ALL_REDUCE, 8, 8)
    with pytest.raises(
        InputError, match=r"a message takes .* s on a link; times are counted up to"
    ):
        hub_core.synthesize(collective, "ring:8?bandwidth=1B/s", 1 << 30, name=name)
