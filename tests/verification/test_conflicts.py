"""Keys of accesses: units far beyond 32 bits are told apart as small ones are."""

from __future__ import annotations

import numpy as np
import pytest

from hub_core.model import InputError
from hub_core.verification import regions


@pytest.mark.parametrize("far", [1, 1 << 51, 1 << 59, (1 << 61) - 1])
def test_keys_do_not_overflow_for_distant_units(far: int) -> None:
    nodes = 1 << 10
    atoms = np.asarray([far, 0, far, 0])
    places = np.asarray([5, 7, 3, 7])
    is_write = np.asarray([True, False, False, True])
    keys = regions.sort_keys(atoms, places, is_write, nodes)
    # Of the two accesses of step 7 to unit 0 the write stays.
    assert (keys & 1).tolist() == [1, 0, 1]
    assert ((keys >> 1) % nodes).tolist() == [7, 3, 5]
    numbers = (keys >> 1) // nodes
    assert numbers[0] < numbers[1] == numbers[2]


def test_more_overlaps_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "MAX_ACCESSES", 5)
    starts, counts = np.asarray([0, 0, 1]), np.asarray([3, 1, 1])
    # Borders at 0, 1, 2 and 3 divide the accesses into 3, 1 and 1 pieces.
    atoms, owner = regions._split_into_atoms(starts, counts)
    assert owner.tolist() == [0, 0, 0, 1, 2]
    assert atoms.tolist() == [0, 1, 2, 0, 1]
    monkeypatch.setattr(regions, "MAX_ACCESSES", 4)
    with pytest.raises(InputError, match=r"5 overlapping accesses are too many .* \(limit 4\)"):
        regions._split_into_atoms(starts, counts)
