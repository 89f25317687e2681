"""The offers, and the example of the README."""

from __future__ import annotations

from pathlib import Path

from collhub_compose.plugin import collhub_commands, collhub_passes

from hub_core.testing import check_examples

README = Path(__file__).resolve().parents[2] / "docs" / "compose.md"


def test_what_has_one_input_is_a_pass() -> None:
    names = ["replicate", "pipeline", "relabel", "embed", "rescale", "repair"]
    assert [one.name for one in collhub_passes()] == names
    assert [one.name for one in collhub_commands()] == ["compose"]


def test_the_example_of_the_readme_runs() -> None:
    check_examples(README)
