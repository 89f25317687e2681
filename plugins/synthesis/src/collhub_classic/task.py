"""Input and output of a planner: collective, ranks, options, network, size; plan and cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from collhub_classic.costs import AlphaBetaCost
from collhub_classic.message_plan import MessagePlan
from collhub_classic.options import ClassicOptions
from hub_core.model import CollectiveKind
from hub_core.network import Topology


@dataclass(frozen=True, slots=True)
class ClassicTask:
    """A collective of `num_ranks` ranks with rank 0 as the root; rank r runs on NPU `npus[r]`.

    `alpha_s`, `beta_s_per_byte`: mean latency and time per byte of a message between two ranks,
    used to choose numbers of chunks.
    """

    kind: CollectiveKind
    num_ranks: int
    collective_bytes: int
    options: ClassicOptions
    topology: Topology
    npus: tuple[int, ...]
    alpha_s: float
    beta_s_per_byte: float


@dataclass(frozen=True, slots=True)
class PlannedAlgorithm:
    """A plan with its cost. `details`: choices made by the planner, for the statistics."""

    plan: MessagePlan
    cost: AlphaBetaCost
    details: Mapping[str, int | str]


class RankOrder(Enum):
    """How ranks are assigned to the positions of a plan.

    `RING`: neighbours in the numbering exchange messages and should be close. `GROUPS`: ranks at
    certain distances exchange messages too; groups stay together, or their members alternate.
    `GIVEN`: as numbered, since the plan uses the topology itself, or all ranks exchange messages
    with all.
    """

    GIVEN = "given"
    RING = "ring"
    GROUPS = "groups"


Planner = Callable[[ClassicTask], PlannedAlgorithm]


@dataclass(frozen=True, slots=True)
class ClassicAlgorithm:
    """An algorithm: the planner of every collective that it defines.

    `has_many_ports`: the cost holds for ranks with a link to every partner, otherwise for ranks
    with one port. `order`: assignment of ranks to positions, unless the user gives one.
    """

    planners: Mapping[CollectiveKind, Planner]
    has_many_ports: bool = False
    order: RankOrder = RankOrder.GIVEN
