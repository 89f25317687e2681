"""The offers of this plugin: the executor `torch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.plugin_api import Check, Executor, OptionType, Subject, choice, hookimpl, option

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """The device of tensors, and how messages start."""

    device: str = choice(DEVICES, "device of the data: cpu (gloo), or cuda (NCCL, a GPU per rank)")
    batch: bool = option(
        OptionType.BOOL,
        False,
        "start the messages of a level by one batch_isend_irecv; on cuda always so",
    )


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
