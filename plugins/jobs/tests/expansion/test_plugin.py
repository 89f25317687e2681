"""The offer, and the example of the README."""

from __future__ import annotations

from pathlib import Path

import pytest
from collhub_expansion.plugin import collhub_commands

from hub_core.testing import check_examples

README = Path(__file__).resolve().parents[2] / "docs" / "expansion.md"


def test_the_command_is_offered() -> None:
    assert [one.name for one in collhub_commands()] == ["expand"]


def test_the_example_of_the_readme_runs() -> None:
    pytest.importorskip("collhub_classic")
    check_examples(README)
