"""Forget on which lane the steps ran, so that a writer may choose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hub_core import Algorithm
from hub_core.plugin_api import NoOptions, PassReport


def run(algorithm: Algorithm, options: NoOptions) -> tuple[Algorithm, PassReport]:
    """Return the algorithm without lanes, and how many steps had one."""
    steps = algorithm.steps
    stated = int(np.count_nonzero(steps.lane != -1))
    without = replace(steps, lane=np.full_like(steps.lane, -1))
    changes = (f"{stated} steps lost their lane",) if stated else ()
    return replace(algorithm, steps=without), PassReport(changes)
