"""Limits of a search: counted work, and a time limit if the user sets one.

A limit ends a search like Ctrl-C: `BudgetReached` is a `KeyboardInterrupt`, so every search that
returns its best result after Ctrl-C does so at a limit as well. Work is a count that is equal on
every host. A result depends on the clock only if a time limit ended a part of the search, and that
is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

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
        is None; no limit if neither exists. Its work also counts for this search, and both list
        cuts in the same list. `work_option`: the option that sets `work`, for messages; if the
        limit is that of this search, messages name its option.
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
        """Seconds until the time limit, at least 0; None without a limit."""
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - time.monotonic())

    @property
    def left_work(self) -> int | None:
        """Work until the limit, at least 0; None without a limit."""
        return None if self.work is None else max(0, self.work - self.done)

    @property
    def reason(self) -> str:
        """Description of the limit that is reached; empty if none is.

        The limit of work goes first: it is reached if the counted work is at least the limit. The
        limit of time is reached when no time is left.
        """
        if self.work is not None and self.done >= self.work:
            return f"the work limit was reached ({self._work_limit})"
        if self.left_s == 0.0:
            return f"the time limit was reached ({self.timeout_s:g} s, --timeout)"
        return ""

    def count(self, work: int) -> None:
        """Add work, in steps, to that of this search and of all searches that contain it.

        Limits are not checked.
        """
        self.done += work
        if self._parent is not None:
            self._parent.count(work)

    def check(self) -> None:
        """Raise `BudgetReached` when a limit is reached; only once, so that the search can finish.

        The limit of work does not apply before any work was counted, so that a limit of 0 allows a
        first result; the limit of time always applies. `is_reached` is set before the exception is
        raised.
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
        calls just count. The limits are those of this budget, by work and by time; the limit of
        work never applies while the counted work is 0.
        """
        self.count(work)
        self.check()

    def simulated(self, steps: int, simulate: Callable[[], T], *, is_checked: bool = True) -> T:
        """Check the limits, count a simulation of `steps` steps, run it and return its result.

        The count is `steps` plus 500. A simulation that runs inside another one of the same
        outermost search, as when it passes through the budgets of nested searches, is neither
        checked nor counted again. `is_checked` False counts it without a check. Raises
        `BudgetReached` before the simulation if a limit is reached.
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

        The new function takes the same arguments. It raises `BudgetReached` instead of the first
        call after a limit is reached; later calls pass, as `check` raises only once.
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
    """Recreate a budget in another process.

    Its time limit ends `left_s` seconds from now (None: no limit); `timeout_s` and `work_limit` are
    only used in its messages.
    """
    budget = SearchBudget(work, left_s)
    budget.timeout_s, budget._work_limit = timeout_s, work_limit
    return budget
