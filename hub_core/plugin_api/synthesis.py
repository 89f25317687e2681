"""Synthesizers, lower bounds of their results, and engines that run a search in parallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hub_core.model.kinds import CollectiveKind
from hub_core.plugin_api.options import NoOptions, Reference
from hub_core.plugin_api.runtimes import Merit, RuntimeFit, SynthesisTarget, UnitLimits
from hub_core.plugin_api.search_budget import SearchBudget, SearchCut

if TYPE_CHECKING:
    from hub_core.model.algorithm import Algorithm, JsonValue
    from hub_core.model.collectives import Collective
    from hub_core.model.diagnostics import Diagnostic
    from hub_core.network.links import Occupancy
    from hub_core.network.topology import Topology
    from hub_core.registry.plugins import Registry


ONE_SIZE = " (one message size)"
"""Suffix of the name of a bound that holds only for messages of the chosen size."""


@dataclass(frozen=True, slots=True)
class SynthesisRequest:
    """Request for an algorithm of a collective of `collective_bytes` on a topology.

    `collective`: kind, ranks, root and operator; the synthesizer chooses the number of units.
    `npus`: the NPU of each rank. All other NPUs may only relay; if there are any, the algorithm has
    one rank per NPU and is custom. `occupancy`: the link model of all times. `wanted`: ranks (NPUs)
    whose steps are needed, None for all. `simulate(algorithm)`: time in ns on the topology for this
    size and link model, or None without a simulator. `progress(fraction, label)`: reports the
    progress, from 0 to 1; 0 while the search waits, for example for a compiler. `hub`: the plugins
    of the run, for synthesizers that call other offers; None in a request built by hand. `budget`:
    limits of the search. `simulate` and `progress` check the limits and count simulations; a search
    that computes for long without calling them calls `budget.spend`. Ctrl-C and limits raise
    `KeyboardInterrupt`: a synthesizer that has a result then returns it. `backend`: name of the
    simulator behind `simulate`; empty if `simulate` is a function of the caller. `target`: the
    runtime that will execute the algorithm, None for any; its units are constraints of the search.
    """

    collective: Collective
    topology: Topology
    collective_bytes: int
    npus: tuple[int, ...]
    occupancy: Occupancy
    wanted: tuple[int, ...] | None = None
    simulate: Callable[[Algorithm], int | None] = lambda algorithm: None
    progress: Callable[[float, str], None] = lambda fraction, label: None
    hub: Registry | None = None
    budget: SearchBudget = field(default_factory=SearchBudget)
    backend: str = ""
    target: SynthesisTarget | None = None

    @property
    def units(self) -> UnitLimits | None:
        """Allowed numbers of units of the full buffer; None if every number is allowed."""
        return None if self.target is None else self.target.units

    @property
    def chunk_limits(self) -> UnitLimits | None:
        """Allowed numbers of units if every unit is a message to every rank; None for any."""
        return None if self.target is None else self.target.chunks


@dataclass(frozen=True, slots=True)
class SynthesisResult:
    """An algorithm with its time and its lower bounds, as the synthesizer reports them.

    `time_ns`: time of the algorithm under the request's link model. `bounds_ns`: lower bounds by
    name, such as `ingress`, `cut`, `diameter`; no algorithm is faster than the largest one. A bound
    whose name ends with `ONE_SIZE` holds only for algorithms whose messages all have the chosen
    size; `bound_ns` ignores it. `statistics`: further values for the report by name: seed, chunks,
    method. `is_partial`: the algorithm contains only the steps of the ranks in `request.wanted`.
    `is_replayed`: the complete algorithm was verified on the synthesizer's arrays. `not_tried`:
    variants that a search skipped, with their reasons. `cuts`: parts of the search that a limit
    ended; the hub sets it. `diagnostics`: warnings, such as failed parts of a search. `fit`:
    resources of the algorithm on the runtime of the request, and `merit`: time, messages and excess
    of its preferred limits; None if they were not determined.
    """

    algorithm: Algorithm
    time_ns: int
    bounds_ns: Mapping[str, int] = field(default_factory=dict)
    statistics: Mapping[str, JsonValue] = field(default_factory=dict)
    is_partial: bool = False
    is_replayed: bool = False
    not_tried: Mapping[str, str] = field(default_factory=dict)
    cuts: tuple[SearchCut, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    fit: RuntimeFit | None = None
    merit: Merit | None = None

    def __repr__(self) -> str:
        bound = "" if self.bound_ns is None else f", bound {self.bound_ns} ns"
        return f"<SynthesisResult: {self.time_ns} ns{bound}, {self.algorithm!r}>"

    @property
    def bound_ns(self) -> int | None:
        """Largest lower bound that holds for messages of any size; None if there is none."""
        bounds = (time for name, time in self.bounds_ns.items() if not name.endswith(ONE_SIZE))
        return max(bounds, default=None)

    @property
    def ratio_to_bound(self) -> float | None:
        """Time divided by `bound_ns`; None without a bound, and for a bound of 0."""
        return self.time_ns / self.bound_ns if self.bound_ns else None


@dataclass(frozen=True, slots=True)
class Synthesizer:
    """Producer: `synthesize(request: SynthesisRequest, options) -> SynthesisResult`.

    Requests that it cannot satisfy raise `InputError`. `adapts`: the messages follow the links of
    the topology; otherwise they follow a fixed pattern. `estimate(request, options) -> int | None`:
    expected time in ns, computed in a small fraction of the time of `synthesize` and equal on every
    host; None if unknown. Callers that try several synthesizers start with the lowest estimate;
    synthesizers that adapt count with the lower bound of the network. `only_by_name`: commands that
    try all synthesizers use it only if the user names it, for example a model of an installed
    library. `collectives`: the supported kinds; the hub refuses all other kinds before it calls the
    synthesizer, and portfolios skip it for them. Empty: the synthesizer itself refuses unsupported
    kinds.
    """

    name: str
    description: str
    synthesize: Reference
    options: type = NoOptions
    adapts: bool = False
    estimate: Reference = ""
    only_by_name: bool = False
    collectives: tuple[CollectiveKind, ...] = ()

    def supports(self, kind: CollectiveKind) -> bool:
        """Whether `collectives` contains the kind; True if the offer declares no kinds."""
        return not self.collectives or kind in self.collectives


@dataclass(frozen=True, slots=True)
class BoundRequest:
    """Request for lower bounds of a collective on a topology, for sizes in bytes in any order.

    `npus`: the NPU of each rank, None for NPU r of rank r. `max_work`: limit of the work, in
    operations of about 1 ns on one core. Work is counted, not measured, so that equal requests
    always have equal results.
    """

    collective: Collective
    topology: Topology
    sizes: tuple[int, ...]
    npus: tuple[int, ...] | None = None
    max_work: int = 10**9


@dataclass(frozen=True, slots=True)
class BoundResult:
    """`times_ps`: lower bound in ps for each size of the request, rounded down.

    Empty if the offer has no bound for the request, or would exceed `max_work`.
    """

    times_ps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LowerBound:
    """`prove(request: BoundRequest, options) -> BoundResult`.

    The bound holds for every algorithm with messages of any size, on shared links with the
    occupancy `serialization`. `kinds`: collectives that it supports. `loading_work`: work of the
    import of its modules, in the unit of `BoundRequest.max_work` (10^9 is about 1 s). The hub calls
    it only if `max_work` exceeds this work, for times more than 2 % above the known bounds.
    """

    name: str
    description: str
    prove: Reference
    kinds: tuple[CollectiveKind, ...]
    loading_work: int
    options: type = NoOptions


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """Number of tasks that run at once, and the time limit of a task in s (None: no limit).

    An engine that cannot stop a task raises `UsageError` if a limit is given.
    """

    workers: int
    task_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """`start(request: EngineRequest, options) -> concurrent.futures.Executor`.

    Tasks, arguments and results are pickled. The future of a task raises `BrokenExecutor` if its
    worker died, `TimeoutError` after the time limit; all other tasks continue. `start` raises
    `UsageError` for a cluster that cannot be reached. `shares_files`: the workers see the files of
    this host; other engines get no tasks that contain paths.
    """

    name: str
    description: str
    start: Reference
    options: type = NoOptions
    shares_files: bool = False
