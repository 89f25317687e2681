"""Which kernels a piece of work leaves without a run: for the checks that compile them all."""

from __future__ import annotations

import subprocess
import sys

_SECONDS = 600
# In a process of its own, where no other test has run a kernel.
_UNUSED = """
import importlib, pkgutil, sys
from hub_core.plugin_api import CheckReport, CheckRequest, WarmOptions

check = importlib.import_module(sys.argv[1]).check
# Unasked nothing is looked at, numba above all: it takes a second to import.
assert check(CheckRequest(), WarmOptions()) == CheckReport(True)
assert "numba" not in sys.modules

from numba.core.dispatcher import Dispatcher
assert check(CheckRequest(), WarmOptions(warm=True)).ok
for name in sys.argv[2:]:
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(package.__path__, name + "."):
        module = importlib.import_module(found.name)
        for value in vars(module).values():
            is_kernel = isinstance(value, Dispatcher) and value.stats.cache_path is not None
            if is_kernel and value.py_func.__module__ == found.name and not value.signatures:
                print(value.py_func.__module__, value.py_func.__name__)
"""


def kernels_without_run(warming: str, *packages: str) -> list[str]:
    """Kernels of `packages` that the `check` of the module `warming` leaves without a run.

    Fails where that looks at anything unasked.
    """
    command = [sys.executable, "-P", "-c", _UNUSED, warming, *packages]
    result = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()
