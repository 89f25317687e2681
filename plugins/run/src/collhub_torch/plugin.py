"""The offers of this plugin: the executor `torch`."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_torch.options import TorchOptions
from hub_core.plugin_api import Check, Executor, Subject, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

INSTALLATION = Check(
    "torch",
    Subject.INSTALLATION,
    "whether torch is installed",
    "collhub_torch.executor:check",
)

TORCH = Executor(
    "torch",
    "torch.distributed, a process per rank on this host: gloo on CPUs, NCCL on GPUs",
    "collhub_torch.executor:execute",
    TorchOptions,
)


@hookimpl
def collhub_consumers() -> Sequence[Executor]:
    """Describe the executor."""
    return [TORCH]


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Describe the check of the installation."""
    return [INSTALLATION]
