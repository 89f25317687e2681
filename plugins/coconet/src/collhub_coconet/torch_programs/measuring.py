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

    A new Python process runs the modules and starts a process per rank. The times are in seconds,
    each the median of `REPEATS` steps on the slowest rank. The first step of a module is not
    timed. The difference is the largest one of any element of an output of `before`, divided by
    the largest magnitude of this output. It is returned however large it is.

    Errors:

    - `InputError` if a program cannot be written as a module
    - `InputError` (`run`) if the modules fail, or run longer than `TIME_LIMIT_S` seconds (600)
    - `InputError` (`run`) if an element of an output is NaN or infinite in only one module
    - `UsageError` without PyTorch
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, workload in (("before", before), ("after", after)):
            (artifact,) = write(workload, options).artifacts
            path = Path(folder, f"{name}.py")
            path.write_bytes(artifact.content())
            paths.append(str(path))
        report = _run(paths[1], paths[0])
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


def _run(module: str, original: str) -> dict[str, float]:
    """Run a written module in a new Python process, and return the report that it prints.

    `module`, `original`: paths of files; the module measures both and compares their results. The
    report is the JSON object in the last line of its output: `ranks`, `seconds` and
    `original_seconds` (median of a step of the module and of the original), and
    `max_relative_error`.

    Errors, in this order: `InputError` (`run`) if the process runs longer than `TIME_LIMIT_S`
    seconds (600); `UsageError` if its error output has "No module named 'torch'"; `InputError`
    (`run`), with the last line of its error output, for an exit code other than 0 or for no output.
    A last line that is no JSON raises `json.JSONDecodeError`.
    """
    command = [sys.executable, "-P", "-W", "ignore", module]
    command += ["--original", original, "--repeats", str(REPEATS)]
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
    report: dict[str, float] = json.loads(lines[-1])
    return report
