"""Find the least limits of a runtime with which a synthesis that failed has a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hub_core.model import Collective, HubError, InputError
from hub_core.pipeline.runtime_fits import list_tries
from hub_core.pipeline.runtimes import ChosenRuntime
from hub_core.plugin_api import (
    RESOURCES,
    TOO_LARGE,
    BudgetReached,
    LimitError,
    RuntimeFit,
    RuntimeLimits,
    SearchBudget,
    SynthesisRequest,
    SynthesisResult,
    SynthesisTarget,
)

# Maximum work of a search for sufficient limits, in steps of searches: about 10 s.
_MAX_WORK = 600_000
# Work of fitting one step of an algorithm to a runtime: 0.24 ms, and 0.02 ms for one of a search.
_FITTED_STEP = 10

Limits = Mapping[str, int | None]
"""Limits by the name of the resource, None for no limit."""


@dataclass(slots=True)
class LimitedSearch:
    """A search whose results exceed the limits of a runtime.

    `result`: that of the search for the target of `request`. `search_again`: searches for another
    request. The results to fit are the first one for a target, then those with fewer units. They
    depend only on the largest numbers of units and chunks of the target, and are computed once per
    value of these.
    """

    request: SynthesisRequest
    result: SynthesisResult
    search_again: Callable[[SynthesisRequest], SynthesisResult]
    _known: dict[tuple[int | None, int | None], list[SynthesisResult]] = field(default_factory=dict)

    def find_results(self, target: SynthesisTarget, budget: SearchBudget) -> list[SynthesisResult]:
        """Return the results of the search for a target, those with the fewest steps first.

        Results with equally many steps keep the order of the search. The list is empty if the
        search fails with a `HubError`. Results, also empty ones, are cached by the largest numbers
        of units and chunks that the target allows; other limits do not matter. A cached list is
        returned without work, and must not be changed.

        `budget` limits the work of a search that is not cached, and counts the work. The work of a
        search with n results is at least the steps of the results plus (n + 1) times
        `STEPS_OF_A_SIMULATION`. Raises `BudgetReached` if the limit is reached; then no result is
        cached, because the search may be incomplete.
        """
        key = target.units.max_units, target.max_chunks
        if key not in self._known:
            before = budget.done
            request, known = replace(self.request, target=target, budget=budget), self.request
            is_same = request.units == known.units and request.chunk_limits == known.chunk_limits
            try:
                # With equal limits the known result is the first one, without a search.
                first = self.result if is_same else self.search_again(request)
                rows = list(list_tries(request, first, self.search_again))
            except HubError:
                rows = []
            least = sum(len(row.algorithm.steps) for row in rows)
            least += SearchBudget.STEPS_OF_A_SIMULATION * (len(rows) + 1)
            budget.count(max(0, least - (budget.done - before)))
            # The search itself may have handled the exception of the budget.
            if budget.reason:
                raise BudgetReached
            self._known[key] = sorted(rows, key=lambda row: len(row.algorithm.steps))
        return self._known[key]


def check_necessary_limits(chosen: ChosenRuntime, collective: Collective) -> None:
    """Raise `InputError` (`runtime-limit`) if a limit of the runtime is below the proven minimum.

    The minimum of a resource (`find_necessary_limit`) is necessary for every schedule of the
    collective. Resources are checked in the order of `RESOURCES`; the first one whose limit is too
    small is named, with limit and minimum. A resource without a limit is not checked.
    """
    limits = chosen.runtime.limits
    for name, resource in RESOURCES.items():
        limit = limits.get_limit(name)
        necessary = find_necessary_limit(collective, limits, name)
        if limit is not None and limit < necessary:
            raise InputError(
                f"{chosen.runtime.name} limits the {resource.noun} to {limit}: {necessary} are "
                f"necessary for every {collective.kind} of {collective.num_ranks} ranks",
                cure=f"allow {name}={necessary} or more",
                code=TOO_LARGE,
            )


def find_necessary_limit(collective: Collective, limits: RuntimeLimits, resource: str) -> int:
    """Return a number that every schedule of the collective needs of a resource, at least 1.

    A runtime whose limit is lower cannot run the collective; a limit of this number may not
    suffice. `resource`: a name of `RESOURCES`.

    - `chunks`: the parts of the collective, because ranks send and receive parts; 1 for a
      custom collective and for uneven counts.
    - `operations` of a rank: 2 for an all-gather and an all-to-all of several ranks with
      even counts; else 1. The reason for 2: every rank sends its input and receives other
      data, and one operation cannot do both, because an operation that forwards sends only
      the data that it receives.
    - `blocks` and `block_operations`: the minimum of `operations` divided by the limit of
      the other one of these two in `limits`, rounded up; 1 if the other one has no limit.
    - any other resource: 1.
    """
    traits, ranks = collective.kind.traits, collective.num_ranks
    is_even = collective.counts is None and collective.contract is None
    if resource == "chunks":
        return traits.parts(ranks) if is_even else 1
    is_exchange = traits.split_by_source and not traits.is_rooted and not collective.reduces
    operations = 2 if is_even and is_exchange and ranks > 1 else 1
    if resource == "operations":
        return operations
    other = {"blocks": limits.max_block_operations, "block_operations": limits.max_blocks}
    return -(-operations // (other.get(resource) or operations))


def find_sufficient_limits(error: LimitError, searches: Sequence[LimitedSearch]) -> LimitError:
    """Return the error of a failed synthesis, extended by limits of the runtime that suffice.

    `searches`: at least one, with equal targets. A trial succeeds if any search has a result
    that the runtime executes within the tried limits.

    1. The limit of the resource of `error` is removed. If a trial fails, the limit that its
       last result exceeds is removed too, and the next trial runs.
    2. The limits that were removed are set to the numbers that the successful result uses. A
       trial must confirm them.
    3. Each number is reduced by bisection, one resource after another, until the next lower
       number fails. With several resources, one whose present limit suffices is dropped first.

    The new `LimitError` has the message of `error`, then the numbers and the largest ones that
    failed. Its cure gives the numbers for `--for`; location and resource are those of `error`.
    `error` itself is returned without exactly one runtime, or if step 1 or 2 fails or is ended
    by a work limit or Ctrl-C. In step 3 these end only the bisection; the message then gives
    the numbers that were not tried.
    """
    target = searches[0].request.target
    if target is None or target.replace_limits is None or target.limits is None:
        return error
    trials = _Trials(target.replace_limits, searches, searches[0].request.budget.part(_MAX_WORK))
    try:
        sufficient = _remove_limits(error.resource, trials)
        if not sufficient or trials.run(sufficient) is None:
            return error
    except (BudgetReached, KeyboardInterrupt):
        return error
    failed = _bisect(sufficient, target.limits, trials)
    collective = searches[0].request.collective
    text = _describe(sufficient, failed, target.limits, collective)
    query = "&".join(f"{name}={number}" for name, number in sufficient.items())
    found = error.diagnostics[0]
    return LimitError(
        f"{found.message}; {text}",
        location=found.location,
        cure=f"set {query} in --for to search within that",
    ).about(error.resource)


@dataclass(slots=True)
class _Trials:
    """Trials of limits.

    `budget`: limits the work of all trials: that of new searches, and `_FITTED_STEP` per step of an
    algorithm that is fitted. `last_error`: of the last trial that failed because of a limit.
    """

    replace_limits: Callable[[Limits], SynthesisTarget]
    searches: Sequence[LimitedSearch]
    budget: SearchBudget
    last_error: LimitError | None = None

    def run(self, limits: Limits) -> RuntimeFit | None:
        """Return the resources of the first result that fits into the limits; None if none does.

        `limits`: new limits by resource, None for no limit. Searches and their results are tried in
        order. Each result spends budget in proportion to its steps.

        `last_error` is reset to None. It then holds the `LimitError` of the last tried result that
        exceeds a limit, also if a later result fits. A result that is refused with another
        `InputError` is skipped.

        At the start, the progress callback of the first search gets the spent fraction of the
        budget's work, at most 1. Raises `BudgetReached` if the budget is used up.
        """
        target = self.replace_limits(limits)
        done = self.budget.done / max(self.budget.work or 0, 1)
        self.searches[0].request.progress(min(done, 1.0), "limits that suffice")
        self.last_error = None
        for search in self.searches:
            for result in search.find_results(target, self.budget):
                self.budget.spend(_FITTED_STEP * len(result.algorithm.steps))
                try:
                    return target.fit(result.algorithm).fit
                except LimitError as error:
                    self.last_error = error
                except InputError:
                    # The size is not served, or the writer refuses the algorithm.
                    continue
        return None


def _remove_limits(resource: str, trials: _Trials) -> dict[str, int]:
    """Remove limits one after another until an algorithm fits, and return the use of each.

    The first limit to remove is `resource`. Then a trial runs. If it fails, the limit that
    its last result exceeded is removed too, and the next trial runs with all of these
    removed.

    Returns the use of the removed resources by the fitting algorithm, in the order of
    `RESOURCES`. Returns {} without a trial if `resource` is "". Also returns {} if a trial
    fails and either no result exceeded a limit, or the exceeded one was removed before.

    Raises `BudgetReached` if the budget of the trials is used up.
    """
    removed: list[str] = []
    while resource and resource not in removed:
        removed.append(resource)
        fit = trials.run(dict.fromkeys(removed))
        if fit is not None:
            return {name: fit.get_use(name) for name in RESOURCES if name in removed}
        resource = "" if trials.last_error is None else trials.last_error.resource
    return {}


def _bisect(sufficient: dict[str, int], present: RuntimeLimits, trials: _Trials) -> dict[str, int]:
    """Find the smallest sufficient limit of each resource by trials, in the order of `sufficient`.

    `sufficient` is reduced in place and keeps only limits with which a trial succeeded. Returns
    by name the largest number that failed; at first this is the present limit, 0 without one.
    With several resources, the present limit of each is tried first. If it suffices, the resource
    is removed from `sufficient`, but not from the result. A single resource is only bisected. If
    the budget of trials ends, or at Ctrl-C, the search ends without an error.
    """
    failed = {name: present.get_limit(name) or 0 for name in sufficient}
    is_single = len(sufficient) == 1
    try:
        for name, low in list(failed.items()):
            if not is_single and trials.run({**sufficient, name: low}) is not None:
                del sufficient[name]
                continue
            while sufficient[name] - failed[name] > 1:
                middle = (sufficient[name] + failed[name]) // 2
                if trials.run({**sufficient, name: middle}) is None:
                    failed[name] = middle
                else:
                    sufficient[name] = middle
    except (BudgetReached, KeyboardInterrupt):
        pass
    return failed


def _describe(
    sufficient: Mapping[str, int],
    failed: Mapping[str, int],
    limits: RuntimeLimits,
    collective: Collective,
) -> str:
    """Return a text on limits such as `80 thread blocks of a rank suffice (79 do not)`.

    `sufficient`: by resource, a limit that suffices. Several resources are joined by `and` and
    `suffice together`. `failed`: by resource, a lower limit that does not suffice; all resources of
    `sufficient` must be in it.

    The brackets have these notes for each resource in order, joined by commas:

    1. `79 do not`, if `failed` is one less than the limit. Otherwise, for `failed` 70, `71 to 79
       were not tried`.
    2. `N are necessary`, if N of `find_necessary_limit` for `collective` and `limits` is above 1.
    """
    numbers, notes = [], []
    for name, number in sufficient.items():
        numbers.append(f"{number} {RESOURCES[name].noun}")
        if number - failed[name] > 1:
            notes.append(f"{failed[name] + 1} to {number - 1} were not tried")
        else:
            notes.append(f"{number - 1} {'does' if number == 2 else 'do'} not")
        necessary = find_necessary_limit(collective, limits, name)
        if necessary > 1:
            notes.append(f"{necessary} are necessary")
    verb = "suffice together" if len(numbers) > 1 else "suffice"
    if [*sufficient.values()] == [1]:
        verb = "suffices"
    return f"{' and '.join(numbers)} {verb} ({', '.join(notes)})"
