"""Kinds of offers, and the hooks that return them: the plugin API, version 1.0.

Every hook returns a list of offers and imports nothing heavy. A plugin implements only the hooks
that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import pluggy

from hub_core.plugin_api.formats import (
    FormatReader,
    FormatWriter,
    TopologyBuilder,
    TopologyReader,
    TopologyWriter,
    WorkloadGenerator,
    WorkloadReader,
    WorkloadWriter,
)
from hub_core.plugin_api.measurements import MeasurementReader
from hub_core.plugin_api.options import Reference, RuleSet
from hub_core.plugin_api.outputs import ReportWriter, SelectionWriter
from hub_core.plugin_api.runs import Executor, Simulator, WorkloadSimulator
from hub_core.plugin_api.subjects import AlgorithmPass, Check
from hub_core.plugin_api.synthesis import Engine, LowerBound, Synthesizer


@dataclass(frozen=True, slots=True)
class Command:
    """`collhub NAME`:

    `function` refers to a click command, imported when it runs or shows its help.

    It gets a `CommandContext` by `click.pass_obj`, prints only through it, and returns its exit
    code or None. A `HubError` that it raises becomes messages and an exit code.
    """

    name: str
    description: str
    function: Reference


Producer = FormatReader | WorkloadReader | MeasurementReader | Synthesizer | WorkloadGenerator
Consumer = (
    FormatWriter
    | WorkloadWriter
    | Simulator
    | WorkloadSimulator
    | Executor
    | ReportWriter
    | SelectionWriter
)
NetworkOffer = TopologyReader | TopologyWriter | TopologyBuilder
Offer = (
    Producer
    | Consumer
    | NetworkOffer
    | AlgorithmPass
    | Check
    | RuleSet
    | Command
    | Engine
    | LowerBound
)
AnyOffer = TypeVar("AnyOffer", bound=Offer)


@dataclass(frozen=True, slots=True)
class OfferKind:
    """One kind of offer: its class, its noun in messages, its hook, and the field of its code."""

    type: type[Offer]
    noun: str
    hook: str
    reference: str

    @property
    def word(self) -> str:
        """Return the noun with `-` in place of spaces, as in `--offers lower-bound`."""
        return self.noun.replace(" ", "-")


OFFER_KINDS = (
    OfferKind(FormatReader, "reader", "collhub_producers", "read"),
    OfferKind(WorkloadReader, "workload reader", "collhub_producers", "read"),
    OfferKind(MeasurementReader, "measurement reader", "collhub_producers", "read"),
    OfferKind(Synthesizer, "synthesizer", "collhub_producers", "synthesize"),
    OfferKind(WorkloadGenerator, "workload generator", "collhub_producers", "generate"),
    OfferKind(FormatWriter, "writer", "collhub_consumers", "write"),
    OfferKind(WorkloadWriter, "workload writer", "collhub_consumers", "write"),
    OfferKind(Simulator, "simulator", "collhub_consumers", "simulate"),
    OfferKind(WorkloadSimulator, "workload simulator", "collhub_consumers", "simulate"),
    OfferKind(Executor, "executor", "collhub_consumers", "execute"),
    OfferKind(ReportWriter, "report writer", "collhub_consumers", "write"),
    OfferKind(SelectionWriter, "selection writer", "collhub_consumers", "write"),
    OfferKind(TopologyReader, "topology reader", "collhub_topologies", "read"),
    OfferKind(TopologyWriter, "topology writer", "collhub_topologies", "write"),
    OfferKind(TopologyBuilder, "topology builder", "collhub_topologies", "build"),
    OfferKind(AlgorithmPass, "pass", "collhub_passes", "run"),
    OfferKind(Check, "check", "collhub_checks", "run"),
    OfferKind(RuleSet, "rule set", "collhub_checks", "rules"),
    OfferKind(Command, "command", "collhub_commands", "function"),
    OfferKind(Engine, "engine", "collhub_engines", "start"),
    OfferKind(LowerBound, "lower bound", "collhub_bounds", "prove"),
)
HOOKS = tuple(dict.fromkeys(kind.hook for kind in OFFER_KINDS))

_KIND_OF: dict[type, OfferKind] = {kind.type: kind for kind in OFFER_KINDS}


def kind_of(offer: Offer) -> OfferKind:
    """Return the row of `OFFER_KINDS` for an offer."""
    return _KIND_OF[type(offer)]


def noun_of(kind: type) -> str:
    """Return the name of a kind in messages: `reader`, `topology builder`."""
    return _KIND_OF[kind].noun


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
def collhub_checks() -> Sequence[Check | RuleSet]:
    """Return checks of algorithms, certificates, networks, runtime files and the installation, and
    declarations of the rules of all findings.
    """
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
