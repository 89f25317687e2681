"""Limits of a search: counted work, and a time limit if the user sets one.

A limit ends a search as Ctrl-C does: `BudgetReached` is a `KeyboardInterrupt`, so that every search
that returns its best result after Ctrl-C does so at a limit as well. Work is a count that is the
same on every machine. An answer depends on the clock only if a time limit has cut something, and
the cut is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class BudgetReached(KeyboardInterrupt):
    """A limit of a search was reached. A search with a result at hand returns it."""


@dataclass(frozen=True, slots=True)
class SearchCut:
    """Part of a search that a limit has ended.

    `name`: of the search, such as a synthesizer. `work`: counted work that it had done. `reason`:
    which limit was reached. `not_tried`: description of the work that was left out, empty if it is
    not known.
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

    `work`: steps that may be counted, None for no limit; a simulation counts the steps of its
    algorithm and `STEPS_OF_A_SIMULATION`. `timeout_s`: seconds from now, None for no limit.
    `work_option`: where a user sets the limit of work, for messages. `done`: work so far; `cuts`:
    all that limits have ended, of the parts as well; `is_reached`: a limit has ended this search.
    A budget that is sent to another process keeps the time that is left when it is sent.
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
        self._whole: SearchBudget | None = None
        self._is_simulating = False

    def part(self, work: int | None = None, work_option: str = "-O work=") -> SearchBudget:
        """Budget of a part of this search, with the same time limit.

        Its limit of work is `work`, or the work that is left of the whole if that is less. Its work
        counts for the whole as well.
        """
        left = self.left_work
        is_own = work is not None and (left is None or work <= left)
        part = SearchBudget(work if is_own else left, None, work_option)
        if not is_own:
            part._work_limit = self._work_limit
        part.timeout_s, part._deadline_s = self.timeout_s, self._deadline_s
        part.cuts, part._whole = self.cuts, self
        return part

    @property
    def left_s(self) -> float | None:
        """Seconds until the time limit, at least 0; None if there is none."""
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - time.monotonic())

    @property
    def left_work(self) -> int | None:
        """Work until the limit, at least 0; None if there is none."""
        return None if self.work is None else max(0, self.work - self.done)

    @property
    def reason(self) -> str:
        """Which limit is reached; empty if none is."""
        if self.work is not None and self.done >= self.work:
            return f"the work limit was reached ({self._work_limit})"
        if self.left_s == 0.0:
            return f"the time limit was reached ({self.timeout_s:g} s, --timeout)"
        return ""

    def count(self, work: int) -> None:
        """Count work that was done."""
        self.done += work
        if self._whole is not None:
            self._whole.count(work)

    def check(self) -> None:
        """Raise `BudgetReached` if a limit is reached, once: the search then comes to its end."""
        # A limit of work never refuses the first simulation: a limit of 0 leaves one answer.
        is_due = self.done > 0 or self.left_s == 0.0
        if not self.is_reached and is_due and self.reason:
            self.is_reached = True
            raise BudgetReached

    def spend(self, work: int) -> None:
        """Count work that was done, then raise as `check` does."""
        self.count(work)
        self.check()

    def simulated(self, steps: int, simulate: Callable[[], T], *, is_checked: bool = True) -> T:
        """Check the limits, count a simulation of so many steps, and return its result.

        A simulation that goes through the budgets of several searches is counted by the innermost.
        """
        whole = self._outermost()
        if whole._is_simulating:
            return simulate()
        if is_checked:
            self.check()
        self.count(steps + self.STEPS_OF_A_SIMULATION)
        whole._is_simulating = True
        try:
            return simulate()
        finally:
            whole._is_simulating = False

    def cut(self, name: str, not_tried: str = "") -> None:
        """Record that a limit has ended the search `name`."""
        self.cuts.append(SearchCut(name, self.done, self.reason, not_tried))

    def checked(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function, before each call of which `check` is called."""

        def checking(*arguments: P.args, **named: P.kwargs) -> T:
            self.check()
            return function(*arguments, **named)

        return checking

    def _outermost(self) -> SearchBudget:
        return self if self._whole is None else self._whole._outermost()

    def __reduce__(self) -> tuple[Callable[..., SearchBudget], tuple[object, ...]]:
        left = self.left_work, self.left_s
        return _rebuilt, (*left, self.timeout_s, self._work_limit)


def _rebuilt(
    work: int | None, left_s: float | None, timeout_s: float | None, work_limit: str
) -> SearchBudget:
    """Budget in another process, whose time limit is `left_s` seconds from now."""
    budget = SearchBudget(work, left_s)
    budget.timeout_s, budget._work_limit = timeout_s, work_limit
    return budget
