"""`collhub doctor --warm` compiles and stores the kernels of the simulators."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from collhub_astra_sim.simulating.warming import check

from hub_core.plugin_api import CheckRequest, WarmOptions

# In a process of its own, where no other test has run the kernel.
_COMPILED = """
from collhub_astra_sim.simulating.warming import check
from hub_core.plugin_api import CheckRequest, WarmOptions

report = check(CheckRequest(), WarmOptions(warm=True))
print(report.ok)
"""


def test_the_kernels_are_stored(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", _COMPILED]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env=environment
    )
    assert (result.returncode, result.stdout) == (0, "True\n"), result.stderr
    # Of algorithms, of jobs, and of the orders of custom algorithms.
    assert len(list(tmp_path.iterdir())) == 3


def test_unasked_nothing_is_looked_at() -> None:
    report = check(CheckRequest(), WarmOptions())
    assert (report.ok, report.lines) == (True, ())
