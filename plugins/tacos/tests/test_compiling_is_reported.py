"""Compiled kernels: the first synthesis reports them, and `collhub doctor --warm` leaves none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_runs import kernels_without_run

_FIRST = """
import hub_core
from hub_core.model import Collective, CollectiveKind

told = []
hub_core.synthesize(
    Collective(CollectiveKind.ALL_GATHER, 3, 3, in_place=True),
    hub_core.parse_topology("ring:3"),
    4096,
    name="tacos",
    options={"chunks": "1", "seeds": "1"},
    progress=lambda fraction, what: told.append((fraction, what)),
)
compiling = [fraction for fraction, what in told if what.startswith("compiling kernels, once")]
print(len(compiling) > 0, set(compiling) <= {0.0})
"""


@pytest.mark.slow
def test_compiling_is_reported_without_a_fraction_and_only_the_first_time(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", _FIRST]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    told = [
        subprocess.run(
            command, capture_output=True, text=True, timeout=600, check=True, env=environment
        ).stdout
        for _ in range(2)
    ]
    assert told == ["True True\n", "False True\n"]


def test_every_kernel_is_run_where_that_is_asked() -> None:
    assert kernels_without_run("collhub_tacos.plugin", "collhub_tacos") == []
