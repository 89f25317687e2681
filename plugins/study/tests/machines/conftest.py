"""Measured points and samples for the tests of calibration."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
CORPUS = ROOT.parent / "shared" / "corpus" / "measured"


@pytest.fixture
def corpus() -> Path:
    """Folder of public measurements and samples; skips if the checkout lacks it."""
    if not CORPUS.is_dir():
        pytest.skip("corpus/measured (../shared) is absent")
    return CORPUS


@pytest.fixture
def h100(tmp_path: Path) -> Path:
    """Points of one node of eight H100, with NCCL 2.29.2."""
    return Path(shutil.copy(ROOT / "examples" / "measured_h100.json", tmp_path))
