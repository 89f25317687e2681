"""The offer `LowerBound`: a time that no algorithm for a collective on a topology can beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hub_core.model.kinds import CollectiveKind
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference

if TYPE_CHECKING:
    from hub_core.model.collectives import Collective
    from hub_core.network.topology import Topology


@dataclass(frozen=True, slots=True)
class BoundRequest:
    """A collective on a topology for some sizes in bytes, ascending or not.

    `npus`: the NPU of every rank, None for NPU r. `max_work`: limit of the work, in operations of
    about a nanosecond of one core; counted, never measured, so that the answer is always the same.
    """

    collective: Collective
    topology: Topology
    sizes: tuple[int, ...]
    npus: tuple[int, ...] | None = None
    max_work: int = 10**9


@dataclass(frozen=True, slots=True)
class BoundResult:
    """`times_ps`: whole picoseconds for every size of the request, rounded down.

    Empty where the offer proves nothing for the request, or would take more than `max_work`.
    """

    times_ps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LowerBound:
    """`prove(request: BoundRequest, options) -> BoundResult`.

    The bound must hold for every algorithm, with messages of any size, for shared links with the
    occupancy `serialization`. `kinds`: the collectives that it is asked for. `loading_work`: work
    of importing its modules, as in `BoundRequest.max_work`: 10^9 for a second. It is asked only if
    that leaves work to do, and only if a time is not within 2 % of the bounds that are known.
    """

    name: str
    description: str
    prove: Reference
    kinds: tuple[CollectiveKind, ...]
    loading_work: int
    options: type = NoOptions
