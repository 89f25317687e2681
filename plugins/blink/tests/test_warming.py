"""What `collhub doctor --warm` does here: afterwards no kernel is left to compile."""

from __future__ import annotations

import subprocess
import sys

import pytest
from collhub_blink.warming import check

from hub_core.plugin_api import CheckRequest, WarmOptions

# In a process of its own, where no other test has run a kernel.
_UNUSED = """
import importlib, pkgutil, sys
from numba.core.dispatcher import Dispatcher
from collhub_blink.warming import check
from hub_core.plugin_api import CheckRequest, WarmOptions

assert check(CheckRequest(), WarmOptions(warm=True)).ok
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(package.__path__, name + "."):
        module = importlib.import_module(found.name)
        for value in vars(module).values():
            is_kernel = isinstance(value, Dispatcher) and value.stats.cache_path is not None
            if is_kernel and value.py_func.__module__ == found.name and not value.signatures:
                print(value.py_func.__module__, value.py_func.__name__)
"""
PACKAGES = ("collhub_blink", "collhub_packing")


def test_every_kernel_is_run() -> None:
    command = [sys.executable, "-P", "-c", _UNUSED, *PACKAGES]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


def test_unasked_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    # numba takes a second to import.
    monkeypatch.setitem(sys.modules, "collhub_packing.compiling.warming", None)
    report = check(CheckRequest(), WarmOptions())
    assert (report.ok, report.lines) == (True, ())
