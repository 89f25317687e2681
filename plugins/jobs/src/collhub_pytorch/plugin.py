"""Offers of this distribution to the hub: two readers and the command `profile`."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_pytorch.options import EXECUTION_TRACE, KINETO, ProfileOptions, RankOptions
from hub_core.plugin_api import Command, Format, Layout, WorkloadReader, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

_KINETO = Format(
    KINETO,
    "profiles of torch.profiler (Kineto, Chrome traces), one file a rank",
    (".pt.trace.json", ".pt.trace.json.gz", ".json.gz"),
    # Files of 2021 begin with `computeProperties`; bare lists of events with an event.
    rb'"(?:traceEvents|deviceProperties|computeProperties|distributedInfo)"\s*:'
    rb'|\A\s*\[\s*\{[^{}]*"ph"\s*:\s*"|\A\s*\{\s*"schemaVersion"\s*:\s*1\b',
    Layout.PREFIX,
)
_EXECUTION_TRACE = Format(
    EXECUTION_TRACE,
    "PyTorch execution traces: collectives without times, one file a rank",
    (".et.json", ".et.json.gz", ".json.gz"),
    rb'"schema"\s*:\s*"[0-9.]+(?:-chakra[0-9.]+)?"',
    Layout.PREFIX,
)


@hookimpl
def collhub_producers() -> Sequence[WorkloadReader]:
    """Describe the readers."""
    return [
        WorkloadReader(
            _KINETO,
            "collhub_pytorch.kineto.read:read",
            ProfileOptions,
            lines="collhub_pytorch.report:lines",
            samples="collhub_pytorch.samples:profiles",
        ),
        WorkloadReader(
            _EXECUTION_TRACE,
            "collhub_pytorch.execution_trace:read",
            RankOptions,
            samples="collhub_pytorch.samples:execution_traces",
        ),
    ]


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Describe the command."""
    return [
        Command(
            "profile",
            "Say where a PyTorch job waits, and what would save it time.",
            "collhub_pytorch.command:profile",
        )
    ]
