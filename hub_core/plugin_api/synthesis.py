"""Synthesizers, lower bounds of their results, and engines that run a search in parallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hub_core.model.kinds import CollectiveKind
from hub_core.plugin_api.options import NoOptions, Reference
from hub_core.plugin_api.search_budget import SearchBudget, SearchCut

if TYPE_CHECKING:
    from hub_core.model.algorithm import Algorithm, JsonValue
    from hub_core.model.collectives import Collective
    from hub_core.model.diagnostics import Diagnostic
    from hub_core.network.links import Occupancy
    from hub_core.network.topology import Topology
    from hub_core.registry.plugins import Registry


ONE_SIZE = " (one message size)"
"""End of the name of a bound that holds only for messages of the size that was chosen."""


@dataclass(frozen=True, slots=True)
class SynthesisRequest:
    """A collective of `collective_bytes` on a topology, for which an algorithm is wanted.

    `collective`: kind, ranks, root and operator; the synthesizer chooses the units. `npus`: the NPU
    on which each rank of it runs; other NPUs may only relay, and where there are any, the algorithm
    has one rank per NPU and is custom. `occupancy`: the link model of all times. `wanted`: the
    ranks (NPUs) whose steps are needed, None for all. `simulate(algorithm)`: its time in
    nanoseconds on the topology, for this size and link model, by the simulator of the user's
    choice, or None where there is none. `progress(fraction, what)`: how far the work is, from 0
    to 1; 0 while the work proper waits, as for a compiler. `hub`: the plugins of the run, for
    synthesizers that call others; None in a request made by hand. `budget`: what the search may
    still do. Calls of `simulate` are counted, and `simulate` and `progress` check the limits; a
    search that works for long without them calls `budget.spend`. Ctrl-C and limits arrive as
    `KeyboardInterrupt`: a synthesizer with a result at hand returns it.
    """

    collective: Collective
    topology: Topology
    collective_bytes: int
    npus: tuple[int, ...]
    occupancy: Occupancy
    wanted: tuple[int, ...] | None = None
    simulate: Callable[[Algorithm], int | None] = lambda algorithm: None
    progress: Callable[[float, str], None] = lambda fraction, what: None
    hub: Registry | None = None
    budget: SearchBudget = field(default_factory=SearchBudget)


@dataclass(frozen=True, slots=True)
class SynthesisResult:
    """An algorithm, and how good it is by the synthesizer's own account.

    `time_ns`: time of the algorithm under the request's link model. `bounds_ns`: lower bounds by
    name, such as `ingress`, `cut`, `diameter`; no algorithm is faster than the largest.
    `statistics`: what else the user should know, by name: seed, chunks, method. `is_partial`: the
    algorithm holds the steps of the wanted ranks alone, and `is_replayed` says that the whole was
    checked on the synthesizer's own arrays. `not_tried`: what a search left out, each with the
    reason. `cuts`: parts of the search that a limit has ended; the hub fills it in.
    `diagnostics`: warnings for the report, such as parts of a search that failed.

    A bound whose name ends with `ONE_SIZE` holds only for algorithms whose messages all have the
    size that was chosen. It is not used for `bound_ns`, since others may be faster.
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

    def __repr__(self) -> str:
        bound = "" if self.bound_ns is None else f", bound {self.bound_ns} ns"
        return f"<SynthesisResult: {self.time_ns} ns{bound}, {self.algorithm!r}>"

    @property
    def bound_ns(self) -> int | None:
        """The largest lower bound that holds for messages of any sizes, None if there is none."""
        certain = (time for name, time in self.bounds_ns.items() if not name.endswith(ONE_SIZE))
        return max(certain, default=None)

    @property
    def ratio_to_bound(self) -> float | None:
        """Time by bound, or None where no bound is known."""
        return self.time_ns / self.bound_ns if self.bound_ns else None


@dataclass(frozen=True, slots=True)
class Synthesizer:
    """Producer: `synthesize(request: SynthesisRequest, options) -> SynthesisResult`.

    What it cannot make is refused with an `InputError`. `adapts`: it chooses the messages by the
    links of the topology; others follow a fixed pattern. `estimate(request, options) -> int |
    None`: expected time in nanoseconds, computed in a small part of the time of `synthesize`, the
    same on every machine; None if it cannot tell. Whoever tries several begins with the least
    estimate; those that adapt are expected at the lower bound of the network. `only_by_name`:
    commands that try all synthesizers use it only if the user names it, such as a model of an
    installed library.
    """

    name: str
    description: str
    synthesize: Reference
    options: type = NoOptions
    adapts: bool = False
    estimate: Reference = ""
    only_by_name: bool = False


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


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """How many tasks at once, and the seconds after which one is ended; None: never.

    An engine that cannot end a task raises `UsageError` for such a time.
    """

    workers: int
    task_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """`start(request: EngineRequest, options) -> concurrent.futures.Executor`.

    Tasks, their arguments and results are pickled. The future of a task whose worker died raises
    `BrokenExecutor`, of one that took too long `TimeoutError`; other tasks go on. A cluster that
    cannot be reached is a `UsageError` of `start`. `shares_files`: its workers see the files of
    this machine; no other is given tasks that name some.
    """

    name: str
    description: str
    start: Reference
    options: type = NoOptions
    shares_files: bool = False
