"""`collhub doctor --warm` compiles and stores the kernels of the simulators."""

from __future__ import annotations

import subprocess
import sys

import pytest
from collhub_astra_sim.plugin import check

from hub_core.plugin_api import CheckRequest, WarmOptions

# In processes of their own: this one has loaded kernels for other tests.
_WARM = """
from collhub_astra_sim.plugin import check
from hub_core.plugin_api import CheckRequest, WarmOptions

print(check(CheckRequest(), WarmOptions(warm=True)).ok)
"""
_COMPILING_FAILS = """
from collhub_kernels import machine_code

def fail(*arguments):
    raise AssertionError("a kernel is not stored")

machine_code._compile_kernel = fail
"""


def _run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


# It compiles all kernels where none are stored: more than a minute.
@pytest.mark.once
def test_no_kernel_is_compiled_after_warming() -> None:
    for program in (_WARM, _COMPILING_FAILS + _WARM):
        result = _run(program)
        assert (result.returncode, result.stdout) == (0, "True\n"), result.stderr


def test_unasked_nothing_is_looked_at() -> None:
    report = check(CheckRequest(), WarmOptions())
    assert (report.ok, report.lines) == (True, ())
