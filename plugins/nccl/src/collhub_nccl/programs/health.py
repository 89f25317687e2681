"""Check for `collhub doctor`: what of the emitted programs can be built here."""

from __future__ import annotations

import shutil

from hub_core.plugin_api import CheckLine, CheckReport, CheckRequest, NoOptions

# Compiler, what works with it, what to do without.
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
    """One line a compiler.

    All is well without: programs are written anyway, and the executor numpy runs algorithms.
    """
    del options
    path = request.environment.get("PATH")
    lines = []
    for tool, works, cure in _TOOLS:
        found = shutil.which(tool, path=path)
        details = f"{found}: {works}" if found else f"not found; {cure}"
        lines.append(CheckLine(tool, True, details))
    return CheckReport(True, lines=tuple(lines))
