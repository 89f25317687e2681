"""An index of compiled kernels that an earlier version left does not stop a later one."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from types import ModuleType

import numba
import pytest

_SOURCE = """
from collhub_packing.compiling import kernel


@kernel
def double(number):
    return 2 * number
"""


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "content",
    [
        # A class that is gone: `missing_module.Jobs`.
        pickle.dumps(numba.__version__) + b"cmissing_module\nJobs\n.",
        # A class that its module has no longer.
        pickle.dumps(numba.__version__) + b"cpickle\nJobs\n.",
        pickle.dumps(numba.__version__) + b"\x80",
        b"",
    ],
    ids=["module", "class", "truncated", "empty"],
)
def test_an_index_that_cannot_be_read_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "fast.py"
    file.write_text(_SOURCE)
    first = _load(file)
    assert first.double(3) == 6
    (index,) = Path(first.double.stats.cache_path).glob("fast.double-*.nbi")
    index.write_bytes(content)
    second = _load(file)
    assert second.double(4) == 8
    assert sum(second.double.stats.cache_misses.values()) == 1
    # The new index is complete again.
    third = _load(file)
    assert third.double(5) == 10
    assert sum(third.double.stats.cache_hits.values()) == 1
