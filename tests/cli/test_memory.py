"""What the program frees it uses again."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import numpy as np
from hub_core.cli.main import main
from hub_core.cli.session_inputs import keep_freed_memory

def pages_cleared():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        # Beyond the largest limit that glibc chooses by itself.
        np.ones(1 << 23)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

usual = pages_cleared()
{call}
pages_cleared()
print(usual, pages_cleared())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc is told to")
@pytest.mark.parametrize(
    "call",
    [
        pytest.param("keep_freed_memory()", id="call"),
        # The core alone has no such command.
        pytest.param(
            "main(['topology', 'show', 'ring:4'])", id="topology", marks=pytest.mark.needs_plugins
        ),
    ],
)
def test_large_arrays_use_freed_memory_again(call: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT.replace("{call}", call)],
        capture_output=True,
        text=True,
        check=True,
    )
    usual, kept = map(int, done.stdout.splitlines()[-1].split())
    if usual < 20:
        pytest.skip("this C library keeps freed memory by itself")
    assert kept < usual / 4
