"""What the benchmarks of this folder share: versions, CPU seconds, networks of the tests."""

from __future__ import annotations

import importlib.util
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import numba
import numpy as np

from hub_core import installed_version

_TESTS = Path(__file__).resolve().parents[2] / "plugins" / "tacos" / "tests"
T = TypeVar("T")


def versions() -> str:
    """What is measured, and on what it runs."""
    ours = f"collhub-tacos {installed_version('collhub-tacos')}"
    libraries = f"numba {numba.__version__}, numpy {np.__version__}"
    return f"{ours}, {libraries}, Python {platform.python_version()}"


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What a work returns, and its CPU seconds."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def timed_warm(work: Callable[[], T]) -> tuple[T, float]:
    """The same of a second call: the first one compiles, or loads what is compiled."""
    work()
    return timed(work)


def median_timed(work: Callable[[], T], runs: int) -> tuple[T, float]:
    """What the last of some runs returns, and the median of their CPU seconds."""
    results = [timed(work) for _ in range(runs)]
    return results[-1][0], statistics.median(seconds for _, seconds in results)


def networks_of_tests() -> ModuleType:
    """The module `tacos_networks` of the plugin's tests, which are no installed package."""
    name = "tacos_networks"
    specification = importlib.util.spec_from_file_location(name, _TESTS / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module
