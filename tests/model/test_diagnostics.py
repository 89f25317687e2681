"""Cures that name a similar word."""

from __future__ import annotations

import pytest

from hub_core.model import closest


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("rhe", "did you mean 'rhea'?"),
        # Equally similar to `ringa` and `ringz`, less to `rhea`.
        ("ringo", "did you mean 'ringz'?"),
        ("RING", ""),
        ("tree", ""),
        ("", ""),
    ],
)
def test_the_most_similar_name_is_the_cure(name: str, cure: str) -> None:
    assert closest(name, ["ringz", "rhea", "ringa", "ringz"]) == cure


def test_less_similar_names_count_with_a_lower_minimum() -> None:
    assert closest("abcd", ["abxy"]) == ""
    assert closest("abcd", ["abxy"], 0.5) == "did you mean 'abxy'?"
    assert closest("abcd", []) == ""
