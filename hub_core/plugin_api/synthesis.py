"""Synthesizers, budgets of their searches, lower bounds of their results, and parallel engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from hub_core.model.kinds import CollectiveKind
from hub_core.plugin_api.options import NoOptions, Reference
from hub_core.plugin_api.runtime_limits import RuntimeFit
from hub_core.plugin_api.runtimes import Merit, SynthesisTarget, UnitLimits

if TYPE_CHECKING:
    from hub_core.model.algorithm import Algorithm, JsonValue
    from hub_core.model.collectives import Collective
    from hub_core.model.diagnostics import Diagnostic
    from hub_core.network.links import Occupancy
    from hub_core.network.topology import Topology
    from hub_core.registry.plugins import Registry

P = ParamSpec("P")
T = TypeVar("T")


class BudgetReached(KeyboardInterrupt):
    """A limit of a search was reached. A search that has a result returns it."""


@dataclass(frozen=True, slots=True)
class SearchCut:
    """Part of a search that a limit ended.

    `name`: of the search, such as a synthesizer. `work`: its counted work so far. `reason`: the
    limit. `not_tried`: description of the remaining work, empty if unknown.
    """

    name: str
    work: int
    reason: str
    not_tried: str = ""

    def __str__(self) -> str:
        rest = f"; not tried: {self.not_tried}" if self.not_tried else ""
        return f"{self.name} after {self.work} steps of work: {self.reason}{rest}"


class SearchBudget:
    """Work and time that a search may still use.

    `work`: maximum number of counted steps, None for no limit; a simulation counts as the steps of
    its algorithm plus `STEPS_OF_A_SIMULATION`. `timeout_s`: seconds from now, None for no limit.
    `work_option`: the option that sets the limit of work, for messages. `done`: work so far.
    `cuts`: all parts that limits ended, including those of nested budgets. `is_reached`: a limit
    ended this search. A budget that is sent to another process keeps the time that remains when it
    is sent.
    """

    STEPS_OF_A_SIMULATION = 500

    def __init__(
        self,
        work: int | None = None,
        timeout_s: float | None = None,
        work_option: str = "-O work=",
    ) -> None:
        self.work = work
        self.timeout_s = timeout_s
        self.done = 0
        self.cuts: list[SearchCut] = []
        self.is_reached = False
        self._work_limit = "" if work is None else f"{work} steps, {work_option}"
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._parent: SearchBudget | None = None
        self._is_simulating = False

    def part(self, work: int | None = None, work_option: str = "-O work=") -> SearchBudget:
        """Create the budget of a part of this search, with the same time limit.

        Its limit of work is `work`, or the remaining work of this search if that is less or `work`
        is None; without either it is unlimited. Work of the part also counts for this search, and
        both record cuts in the same list. `work_option`: the option that sets `work`, for messages;
        if the remaining work is the limit, messages name the option of this search.
        """
        remaining = self.left_work
        has_limit = work is not None and (remaining is None or work <= remaining)
        part = SearchBudget(work if has_limit else remaining, None, work_option)
        if not has_limit:
            part._work_limit = self._work_limit
        part.timeout_s, part._deadline_s = self.timeout_s, self._deadline_s
        part.cuts, part._parent = self.cuts, self
        return part

    @property
    def left_s(self) -> float | None:
        """Return the seconds until the time limit, 0 if it has passed; None without a limit."""
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - time.monotonic())

    @property
    def left_work(self) -> int | None:
        """Work until the limit, at least 0; None without a limit."""
        return None if self.work is None else max(0, self.work - self.done)

    @property
    def reason(self) -> str:
        """Description of the limit that is reached, that of work first; "" if none is.

        The limits are reached at the permitted work or more, and when no time is left.
        """
        if self.work is not None and self.done >= self.work:
            return f"the work limit was reached ({self._work_limit})"
        if self.left_s == 0.0:
            return f"the time limit was reached ({self.timeout_s:g} s, --timeout)"
        return ""

    def count(self, work: int) -> None:
        """Add work, in steps, to this and all containing searches; limits are not checked."""
        self.done += work
        if self._parent is not None:
            self._parent.count(work)

    def check(self) -> None:
        """Raise `BudgetReached` at the first check after a limit is reached, and set `is_reached`.

        Later checks raise no exception, so that the search can finish and return its result. The
        limit of work, unlike that of time, does not apply while the counted work is 0.
        """
        # A limit of work never prevents the first simulation: with a limit of 0 there is one
        # result.
        is_due = self.done > 0 or self.left_s == 0.0
        if not self.is_reached and is_due and self.reason:
            self.is_reached = True
            raise BudgetReached

    def spend(self, work: int) -> None:
        """Count `work` steps, then raise `BudgetReached` if a limit of this search is reached.

        The steps are counted for this search and all searches that contain it, and also if the
        exception is raised. It is raised only once per budget, so that the search can finish: later
        calls just count. The limit of work never applies while the counted work is 0.
        """
        self.count(work)
        self.check()

    def simulated(self, steps: int, simulate: Callable[[], T], *, is_checked: bool = True) -> T:
        """Check the limits, count a simulation, call `simulate`, and return its result.

        The work of `steps` + 500 steps is counted for this and all containing searches, before the
        call, so also if `simulate` raises an error. `BudgetReached` is raised as in `check`, before
        counting; with `is_checked` False the limits are not checked. While a simulation of the
        outermost containing search runs, a further call neither checks nor counts.
        """
        outermost = self._get_outermost()
        if outermost._is_simulating:
            return simulate()
        if is_checked:
            self.check()
        self.count(steps + self.STEPS_OF_A_SIMULATION)
        outermost._is_simulating = True
        try:
            return simulate()
        finally:
            outermost._is_simulating = False

    def cut(self, name: str, not_tried: str = "") -> None:
        """Record that a limit ended the search `name`."""
        self.cuts.append(SearchCut(name, self.done, self.reason, not_tried))

    def checked(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function with a check of the limits before each call.

        The returned function raises `BudgetReached` in place of the first call after a limit is
        reached. Later calls are executed, because `check` raises only once.
        """

        def checking(*arguments: P.args, **named: P.kwargs) -> T:
            self.check()
            return function(*arguments, **named)

        return checking

    def _get_outermost(self) -> SearchBudget:
        return self if self._parent is None else self._parent._get_outermost()

    def __reduce__(self) -> tuple[Callable[..., SearchBudget], tuple[object, ...]]:
        left = self.left_work, self.left_s
        return _rebuild_budget, (*left, self.timeout_s, self._work_limit)


def _rebuild_budget(
    work: int | None, left_s: float | None, timeout_s: float | None, work_limit: str
) -> SearchBudget:
    """Create the copy of a budget in another process, with the same remaining limits.

    `work`: remaining steps of work, None for no limit. `left_s`: seconds from now to the time
    limit, None for no limit. `timeout_s`, `work_limit`: the original limits, only for messages. The
    copy has counted no work, has no record of ended searches, and is not part of another search.
    """
    budget = SearchBudget(work, left_s)
    budget.timeout_s, budget._work_limit = timeout_s, work_limit
    return budget


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
    `needs_time` False: the caller times the result itself; one candidate needs no simulation.
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
    needs_time: bool = True

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

    `time_ns`: time under the request's link model, or a lower bound if `needs_time` is False.
    `bounds_ns`: lower bounds by name, such as `ingress`, `cut`, `diameter`; no algorithm is faster
    than the largest one. A bound whose name ends with `ONE_SIZE` holds only for algorithms whose
    messages all have the chosen size; `bound_ns` ignores it. `statistics`: further values for the
    report by name: seed, chunks, method. `is_partial`: the algorithm contains only the steps of the
    ranks in `request.wanted`. `is_replayed`: the complete algorithm was verified on the
    synthesizer's arrays. `not_tried`: variants that a search skipped, with their reasons. `cuts`:
    parts of the search that a limit ended; the hub sets it. `diagnostics`: warnings, such as failed
    parts of a search. `fit`: resources of the algorithm on the runtime of the request, and `merit`:
    time, messages and excess of its preferred limits; None if they were not determined.
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
        """The largest lower bound in ns that holds for messages of any size; None without one.

        Bounds whose name has the suffix `ONE_SIZE` are ignored.
        """
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
