"""What `collhub doctor --warm` does here: afterwards the kernel of simulations is compiled."""

from __future__ import annotations

import subprocess
import sys

from collhub_astra_sim.simulating.warming import check

from hub_core.plugin_api import CheckRequest, WarmOptions

# In a process of its own, where no other test has run the kernel.
_COMPILED = """
from collhub_astra_sim.simulating.warming import check
from hub_core.plugin_api import CheckRequest, WarmOptions

report = check(CheckRequest(), WarmOptions(warm=True))
from collhub_astra_sim.simulating.kernel import run
print(report.ok, len(run.signatures))
"""


def test_the_kernel_is_compiled() -> None:
    command = [sys.executable, "-P", "-c", _COMPILED]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (result.returncode, result.stdout) == (0, "True 1\n"), result.stderr


def test_unasked_nothing_is_looked_at() -> None:
    report = check(CheckRequest(), WarmOptions())
    assert (report.ok, report.lines) == (True, ())
