"""The hooks of the plugin API, version 1.0.

Every hook returns a list of offers and imports nothing heavy. A plugin implements only the hooks
that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from hub_core.plugin_api.offers import Command, Consumer, NetworkOffer, Producer
from hub_core.plugin_api.subjects import AlgorithmPass, Check
from hub_core.plugin_api.synthesis import Engine, LowerBound

API_VERSION = (1, 0)
PROJECT = "collhub"
ENTRY_POINT_GROUP = "collhub.plugins"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin as the implementation of the hook of its name."""


@hookspec
def collhub_producers() -> Sequence[Producer]:
    """Return readers, synthesizers and generators of algorithms, workloads and measured times."""
    raise AssertionError("a specification is not called")


@hookspec
def collhub_consumers() -> Sequence[Consumer]:
    """Return consumers of algorithms and workloads: writers, simulators, executors, reports."""
    raise AssertionError("a specification is not called")


@hookspec
def collhub_topologies() -> Sequence[NetworkOffer]:
    """Return readers and writers of network files, and builders for texts such as `ring:8`."""
    raise AssertionError("a specification is not called")


@hookspec
def collhub_passes() -> Sequence[AlgorithmPass]:
    """Return passes, which change a model and report the changes."""
    raise AssertionError("a specification is not called")


@hookspec
def collhub_checks() -> Sequence[Check]:
    """Return checks of algorithms, certificates, networks, runtime files, the installation."""
    raise AssertionError("a specification is not called")


@hookspec
def collhub_commands() -> Sequence[Command]:
    """Return commands of the program."""
    raise AssertionError("a specification is not called")


@hookspec
def collhub_engines() -> Sequence[Engine]:
    """Return engines, which run many tasks concurrently."""
    raise AssertionError("a specification is not called")


@hookspec
def collhub_bounds() -> Sequence[LowerBound]:
    """Return lower bounds on the time of collectives on a topology."""
    raise AssertionError("a specification is not called")
