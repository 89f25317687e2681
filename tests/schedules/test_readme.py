"""The example of the README runs."""

from __future__ import annotations

from pathlib import Path

from hub_core.testing import check_examples

README = Path(__file__).resolve().parents[2] / "docs" / "schedules.md"


def test_the_example_runs() -> None:
    names = check_examples(README)
    assert len(names["algorithm"].steps) == 9
