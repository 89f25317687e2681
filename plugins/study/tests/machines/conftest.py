"""Measured points for the tests of calibration."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def h100(tmp_path: Path) -> Path:
    """Points of one node of eight H100, with NCCL 2.29.2."""
    return Path(shutil.copy(ROOT / "examples" / "measured_h100.json", tmp_path))
