"""Kernels that are compiled are seen, those from the cache are not; and warming says which."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numba
import pytest
from collhub_packing.compiling import CompiledKernel, compilations, compile_kernels

_KERNELS = """
from collhub_packing.compiling import kernel, part

@part
def twice(number):
    return 2 * number

@kernel
def more(number):
    return twice(number) + 1
"""
_SOURCE = """
from collhub_packing.compiling import kernel


@kernel
def double(number):
    return 2 * number
"""


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], ModuleType]:
    """`fresh()`: a module with a kernel and its part, as a new process imports it."""
    file = tmp_path / "fresh_kernels.py"
    file.write_text(_KERNELS)

    def load() -> ModuleType:
        spec = importlib.util.spec_from_file_location("fresh_kernels", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_a_kernel_is_seen_where_it_is_compiled_and_not_from_the_cache(fresh) -> None:
    with compilations() as compiled:
        assert fresh().more(1) == 3
    assert compiled == [CompiledKernel("more", is_cached=True)]
    with compilations() as loaded:
        assert fresh().more(2) == 5
    assert loaded == []


def test_begin_and_end_are_told_once_a_kernel_and_not_a_part(fresh) -> None:
    told = []
    with compilations(lambda: told.append(1)):
        fresh().more(1)
    assert len(told) == 2


def test_what_is_compiled_behind_the_body_is_not_seen(fresh) -> None:
    with compilations() as compiled:
        pass
    fresh().more(1)
    assert compiled == []


def test_warming_says_how_many_were_compiled_and_then_that_all_are(fresh) -> None:
    report = compile_kernels(lambda: fresh().more(1))
    (line,) = report.lines
    assert report.ok
    assert line.details.startswith("1 compiled in ")
    (again,) = compile_kernels(lambda: fresh().more(1)).lines
    assert again.details == "all compiled and cached on disk before"


def test_a_cache_that_cannot_be_kept_is_not_ok() -> None:
    import numba

    report = compile_kernels(lambda: numba.njit(lambda number: number + 1)(1))
    (line,) = report.lines
    assert (report.ok, line.is_ok) == (False, False)
    assert "NUMBA_CACHE_DIR" in line.cure


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
