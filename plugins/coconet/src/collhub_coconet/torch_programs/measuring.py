"""Run written modules on gloo ranks of this host, and compare times and results."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

from collhub_coconet.plugin import TorchModuleOptions
from collhub_coconet.torch_programs.writing import write
from hub_core.model import InputError, UsageError, Workload
from hub_core.plugin_api import MeasuredGain

REPEATS = 5
TIME_LIMIT_S = 600.0


def measure(before: Workload, after: Workload, options: TorchModuleOptions) -> MeasuredGain:
    """Run both programs as PyTorch modules on equal random arguments; return times and difference.

    A new Python process runs the modules and starts a process per rank. Each time is in seconds,
    the median of `REPEATS` steps on the slowest rank, after one that is not timed. The difference
    is the largest one of any element of an output of `before`, divided by the largest magnitude of
    this output.

    Errors, in this order:

    - `InputError` if a program cannot be written as a module
    - `InputError` (`run`) if the modules run longer than `TIME_LIMIT_S` seconds (600)
    - `UsageError` without PyTorch; `InputError` (`run`) if the modules fail or print nothing
    - `InputError` (`run`) if an element of an output is NaN or infinite in only one module
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, workload in (("before", before), ("after", after)):
            (artifact,) = write(workload, options).artifacts
            path = Path(folder, f"{name}.py")
            path.write_bytes(artifact.content())
            paths.append(str(path))
        command = [sys.executable, "-P", "-W", "ignore", paths[1]]
        command += ["--original", paths[0], "--repeats", str(REPEATS)]
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            message = f"the modules ran for more than {TIME_LIMIT_S:.0f} s"
            raise InputError(message, cure="leave --run out", code="run") from None
    if "No module named 'torch'" in run.stderr:
        message = "PyTorch, which runs the module, is not installed"
        raise UsageError(message, cure="pip install torch, or leave --run out")
    lines = run.stdout.splitlines()
    if run.returncode or not lines:
        reason = (run.stderr.strip().splitlines() or ["no output"])[-1]
        raise InputError(f"the modules failed: {reason:.300}", cure="leave --run out", code="run")
    # The last line of the output is a JSON object with the figures of both modules.
    report: dict[str, float] = json.loads(lines[-1])
    if not math.isfinite(report["max_relative_error"]):
        message = "an output is NaN or infinite in only one of both programs"
        cure = "do not use the written module; compare it with the original one"
        raise InputError(message, cure=cure, code="run")
    ranks = int(report["ranks"])
    return MeasuredGain(
        f"gloo on {ranks} ranks of this host, median of {REPEATS} steps",
        report["original_seconds"],
        report["seconds"],
        report["max_relative_error"],
    )
