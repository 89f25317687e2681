"""Networks without a link are refused."""

from __future__ import annotations

import pytest

import hub_core
from hub_core import InputError
from hub_core.model import Collective, CollectiveKind


@pytest.mark.parametrize("kind", [CollectiveKind.ALL_TO_ALL, CollectiveKind.SCATTER])
def test_there_has_to_be_a_link(kind: CollectiveKind) -> None:
    root = 0 if kind.traits.is_rooted else None
    collective = Collective(kind, 2, kind.traits.parts(2), root)
    with pytest.raises(InputError, match="there is no link"):
        hub_core.synthesize(collective, "mesh:2x4?npus=2,7", 1 << 20, name="flows")
