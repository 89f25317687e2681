"""What this distribution offers to the hub."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Executor, HealthCheck, Option, OptionType, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

TORCH = Executor(
    "torch",
    "torch.distributed, a process per rank on this machine: gloo on CPUs, NCCL on GPUs",
    "collhub_torch.executor:execute",
    (
        Option(
            "device",
            OptionType.TEXT,
            "cpu",
            "where the data lies: cpu (gloo), or cuda (NCCL, a GPU per rank)",
            ("cpu", "cuda"),
        ),
        Option(
            "batch",
            OptionType.BOOL,
            False,
            "start the messages of a level by one batch_isend_irecv; on cuda always so",
        ),
    ),
)


@hookimpl
def collhub_consumers() -> Sequence[Executor]:
    """Describe the executor."""
    return [TORCH]


@hookimpl
def collhub_health_checks() -> Sequence[HealthCheck]:
    """Describe the check of the library."""
    return [HealthCheck("torch", "collhub_torch.health:check")]
