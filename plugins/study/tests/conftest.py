"""Public measurements for the tests of this distribution."""

from __future__ import annotations

from pathlib import Path

import pytest

CORPUS = Path(__file__).resolve().parents[3].parent / "shared" / "corpus" / "measured"


@pytest.fixture
def measured_corpus() -> Path:
    """Folder of public measurements and samples; skips if the checkout lacks it."""
    if not CORPUS.is_dir():
        pytest.skip("corpus/measured (../shared) is absent")
    return CORPUS
