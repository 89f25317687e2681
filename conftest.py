"""Fixtures shared by the tests of the core and of the plugins."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

# The machines that run the tests differ in speed and share their cores: no single example is too slow.
hypothesis.settings.register_profile("collhub", deadline=None)
hypothesis.settings.load_profile("collhub")

CORPUS = Path(__file__).resolve().parent.parent / "shared" / "corpus"


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real files made by others; tests that need it skip where it is absent."""
    if not CORPUS.is_dir():
        pytest.skip("the corpus of real files (../shared/corpus) is not beside this checkout")
    return CORPUS
