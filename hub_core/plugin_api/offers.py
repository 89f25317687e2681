"""The table of all kinds of offer: their names, the hooks that return them, where their code is.

To add a kind: one file that defines the offer, its request and its result, and one line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from hub_core.plugin_api.algorithm_pass import AlgorithmPass
from hub_core.plugin_api.check import Check
from hub_core.plugin_api.command import Command
from hub_core.plugin_api.engine import Engine
from hub_core.plugin_api.executor import Executor
from hub_core.plugin_api.lower_bound import LowerBound
from hub_core.plugin_api.reader import FormatReader
from hub_core.plugin_api.report_writer import ReportWriter
from hub_core.plugin_api.selection_writer import SelectionWriter
from hub_core.plugin_api.simulator import Simulator
from hub_core.plugin_api.synthesizer import Synthesizer
from hub_core.plugin_api.topology_builder import TopologyBuilder
from hub_core.plugin_api.topology_reader import TopologyReader
from hub_core.plugin_api.topology_writer import TopologyWriter
from hub_core.plugin_api.workload_generator import WorkloadGenerator
from hub_core.plugin_api.workload_reader import WorkloadReader
from hub_core.plugin_api.workload_simulator import WorkloadSimulator
from hub_core.plugin_api.workload_writer import WorkloadWriter
from hub_core.plugin_api.writer import FormatWriter

Producer = FormatReader | WorkloadReader | Synthesizer | WorkloadGenerator
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
Offer = Producer | Consumer | NetworkOffer | AlgorithmPass | Check | Command | Engine | LowerBound
AnyOffer = TypeVar("AnyOffer", bound=Offer)


@dataclass(frozen=True, slots=True)
class OfferKind:
    """One kind of offer: its class, its noun in messages, its hook, and the field of its code."""

    type: type[Offer]
    noun: str
    hook: str
    reference: str


OFFER_KINDS = (
    OfferKind(FormatReader, "reader", "collhub_producers", "read"),
    OfferKind(WorkloadReader, "workload reader", "collhub_producers", "read"),
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
    OfferKind(Command, "command", "collhub_commands", "function"),
    OfferKind(Engine, "engine", "collhub_engines", "start"),
    OfferKind(LowerBound, "lower bound", "collhub_bounds", "prove"),
)
HOOKS = tuple(dict.fromkeys(kind.hook for kind in OFFER_KINDS))

_KIND_OF: dict[type, OfferKind] = {kind.type: kind for kind in OFFER_KINDS}


def kind_of(offer: Offer) -> OfferKind:
    """The row of `OFFER_KINDS` for an offer."""
    return _KIND_OF[type(offer)]


def noun_of(kind: type) -> str:
    """What messages call a kind: `reader`, `topology builder`."""
    return _KIND_OF[kind].noun
