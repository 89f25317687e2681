"""Check for `collhub doctor`: which emitted programs can be built on this host."""

from __future__ import annotations

import shutil

from hub_core.plugin_api import CheckLine, CheckReport, CheckRequest, NoOptions

# Compiler, what works with it, advice if it is missing.
_TOOLS = (
    (
        "g++",
        "programs of the format nccl run here, on the test double of NCCL",
        "install g++ and make to run them without GPU",
    ),
    (
        "nvcc",
        "programs of the format nccl compile for GPUs",
        "install the CUDA toolkit to compile them; `make double` needs none",
    ),
)


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """One line per compiler; always successful.

    Compilers are optional: programs are written without them, and the executor numpy runs
    algorithms.
    """
    del options
    path = request.environment.get("PATH")
    lines = []
    for tool, works, cure in _TOOLS:
        executable = shutil.which(tool, path=path)
        details = f"{executable}: {works}" if executable else f"not found; {cure}"
        lines.append(CheckLine(tool, True, details))
    return CheckReport(True, lines=tuple(lines))
