"""Requests that the synthesizer cannot take are refused before any work."""

from __future__ import annotations

import pytest

import hub_core
from hub_core import Collective, CollectiveKind, UsageError, parse_topology


def test_several_planes_are_refused() -> None:
    collective = Collective(CollectiveKind.BROADCAST, 2, 1, root=0, in_place=True)
    with pytest.raises(UsageError, match="tacos makes algorithms for one plane, not for 2"):
        hub_core.synthesize(collective, parse_topology("fc:2+fc:2"), 1 << 20, name="tacos")
