"""The hooks of the plugin API, version 1.0. Every hook returns a list of descriptions and imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from hub_core.plugin_api import contract

PROJECT = "collhub"
ENTRY_POINT_GROUP = "collhub.plugins"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def collhub_producers() -> Sequence[contract.FormatReader | contract.Synthesizer]:
    """Describe what makes algorithms: readers of formats, synthesizers."""
    raise AssertionError("a specification is not called")


@hookspec
def collhub_consumers() -> Sequence[
    contract.FormatWriter | contract.Simulator | contract.Executor | contract.LoadCheck
]:
    """Describe what takes algorithms: writers of formats, simulators, executors, and checks whether runtimes load files."""
    raise AssertionError("a specification is not called")


@hookspec
def collhub_topologies() -> Sequence[contract.TopologyReader]:
    """Describe readers of topology files."""
    raise AssertionError("a specification is not called")


@hookspec
def collhub_passes() -> Sequence[contract.AlgorithmPass | contract.WorkloadPass]:
    """Describe passes: model in, model out, with a report of what changed."""
    raise AssertionError("a specification is not called")


@hookspec
def collhub_health_checks() -> Sequence[contract.HealthCheck]:
    """Describe checks for `collhub doctor`."""
    raise AssertionError("a specification is not called")
