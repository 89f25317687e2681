"""The README's examples are true."""

from __future__ import annotations

from pathlib import Path

from hub_core.testing import check_examples

README = Path(__file__).resolve().parents[2] / "docs" / "execution.md"


def test_examples_run() -> None:
    check_examples(README)


def test_public_names_are_there() -> None:
    import collhub_execution

    assert all(hasattr(collhub_execution, name) for name in collhub_execution.__all__)
