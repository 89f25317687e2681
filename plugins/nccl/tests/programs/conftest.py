"""What is compiled once for all tests of emitted folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from emitted import make, missing_tools, tables, write_fixed

from hub_core.testing import samples

_SHARED_OBJECTS = ("library.double.o", "main.double.o", "nccl.double.o", "cuda.double.o")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the objects that all programs share."""
    if reason := missing_tools():
        pytest.skip(reason)
    path = tmp_path_factory.mktemp("emitted")
    write_fixed(path, tables(samples.ring_all_reduce(4)))
    make(path, *_SHARED_OBJECTS)
    return path
