"""The offers of this plugin: two executors and the command `run`."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Command, Executor, RuleSet, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

NUMPY = Executor(
    "numpy",
    "all ranks in one process, on numpy arrays",
    "collhub_local.numpy_executor:execute",
)

SHARED_MEMORY = Executor(
    "shared-memory",
    "one process per rank, on shared memory of this host",
    "collhub_local.shared_memory:execute",
)


@hookimpl
def collhub_consumers() -> Sequence[Executor]:
    """Describe the executors."""
    return [NUMPY, SHARED_MEMORY]


RUN = Command(
    "run",
    "Run the algorithm in IN on real data and check the result of every rank.",
    "collhub_local.run_command:run",
)


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Describe the command."""
    return [RUN]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Describe the rules of executions."""
    return [RuleSet("execution", "findings in runs on real data", "collhub_local.rules:list_rules")]
