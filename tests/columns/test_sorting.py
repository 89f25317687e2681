"""Orders of integers are those of numpy, whatever is equal."""

from __future__ import annotations

import numpy as np
import pytest

from hub_core.columns import stable_order, stable_order_by


@pytest.mark.parametrize("count", [0, 1, 7, 4095, 4096, 50_000])
@pytest.mark.parametrize("distinct", [1, 3, 1 << 40])
def test_equal_keys_keep_their_order(count: int, distinct: int) -> None:
    keys = np.random.default_rng(count).integers(-2, distinct, count)
    assert np.array_equal(stable_order(keys), np.argsort(keys, kind="stable"))


@pytest.mark.parametrize("count", [0, 1, 7, 4096, 50_000])
@pytest.mark.parametrize("least", [0, -5])
@pytest.mark.parametrize("first", [1, 1 << 50])
def test_two_keys_are_in_the_order_of_lexsort(count: int, least: int, first: int) -> None:
    generator = np.random.default_rng(count)
    one, two = generator.integers(0, 9, count) * first, generator.integers(least, 1 << 20, count)
    assert np.array_equal(stable_order_by(one, two), np.lexsort((two, one)))
