"""What an algorithm is asked for: collective, ranks, options, network and size."""

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
    """A collective of `num_ranks` ranks, the root being rank 0, rank r on NPU `npus[r]`.

    `alpha_s`, `beta_s_per_byte`: of a message between two of them, in the mean, by which numbers
    of chunks are chosen.
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
    """A plan with its cost, and what the user should know of the choices in it."""

    plan: MessagePlan
    cost: AlphaBetaCost
    details: Mapping[str, int | str]


class RankOrder(Enum):
    """How ranks are put on the places of a plan.

    `RING`: neighbours in the numbering talk to each other, and should be near. `GROUPS`: so should
    those at certain distances: groups stay together, or their members take turns. `GIVEN`: as
    numbered, since the plan looks at the topology itself, or since all talk to all.
    """

    GIVEN = "given"
    RING = "ring"
    GROUPS = "groups"


Planner = Callable[[ClassicTask], PlannedAlgorithm]


@dataclass(frozen=True, slots=True)
class ClassicAlgorithm:
    """An algorithm by name: how each collective that it defines is planned.

    `has_many_ports`: the cost holds for ranks with a link to every partner, else for ranks with one
    port. `order`: of the ranks on the topology, unless one is stated.
    """

    planners: Mapping[CollectiveKind, Planner]
    has_many_ports: bool = False
    order: RankOrder = RankOrder.GIVEN
