"""Fixtures of the tests of faults."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_injection import Fault


@pytest.fixture(scope="session")
def only_fault() -> Fault:
    return Fault()


@pytest.fixture
def fault(only_fault: Fault) -> Iterator[Fault]:
    yield only_fault
    only_fault.folder = None
    only_fault.counts_reads = False


@pytest.fixture
def before(collhub, ring: Path, tmp_path: Path) -> Path:
    """A folder with an older set of two more ranks and a file of the same name as an output."""
    folder = tmp_path / "before"
    folder.mkdir()
    (folder / "one.json").write_bytes(b"an older file\n")
    assert collhub("convert", ring, "-o", folder / "old", "--to", "chakra").code == 0
    for rank in (8, 9):
        shutil.copy(folder / "old.0.et", folder / f"old.{rank}.et")
    return folder
