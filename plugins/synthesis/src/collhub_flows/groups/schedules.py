"""The fastest schedule found for some groups at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collhub_flows.groups.jobs import TreeJobs
from collhub_flows.groups.lowering import GroupSchedule
from collhub_flows.groups.packing import packed_trees
from collhub_flows.groups.shares import Shares
from collhub_flows.groups.trees import Trees
from collhub_flows.groups.wishes import GroupWish
from collhub_flows.network import FlowNetwork
from hub_core.model import InputError
from hub_core.network import Occupancy
from hub_core.plugin_api import SearchBudget

# Passes forward and backward; later ones gain next to nothing.
_PASSES = 4
_TREES_EACH = (1, 4, 16)
_PARTS = (1, 2, 4, 8, 16)
# Below this part of the effort, every other count of parts and fewer passes have to do.
_HASTE = 1 / 16
# Nodes that all searches visit together: some ten seconds.
_MOST_VISITS = 60_000_000
_MOST_JOBS = 500_000
# Even in haste so many are scheduled, or deep pipelines would have too few pieces.
_LEAST_JOBS = 30_000
# Tables of trees are as wide as there are NPUs.
_MOST_ENTRIES = 60_000_000
# So near to the load of the fullest link, finer pieces are not worth their messages.
_GOOD = 1.01


@dataclass(frozen=True, slots=True, eq=False)
class GroupNetwork:
    """The network of all groups, and how long messages keep its links."""

    flows: FlowNetwork
    occupancy: Occupancy


def fastest_schedule(
    network: GroupNetwork,
    wishes: Sequence[GroupWish],
    effort: float = 1.0,
    budget: SearchBudget | None = None,
) -> GroupSchedule:
    """Schedule of all groups at once that ends first by its own clock.

    `effort`: part of the usual number of searches. `budget`: at a limit, the best so far is
    returned; its `is_reached` is then set. Raises `InputError` for what is too large, and
    where a member cannot be reached.
    """
    budget = budget or SearchBudget()
    shares = Shares.of(wishes)
    best: GroupSchedule | None = None
    least = 0
    is_hasty = effort < _HASTE
    most_jobs = max(_LEAST_JOBS, effort * _MOST_JOBS)
    ladder = _PARTS[::2] if is_hasty else _PARTS
    for trees in _packings(network, wishes, shares, effort):
        for parts in ladder:
            cut = trees.cut(parts)
            is_fine = cut.pieces.share_units > min(shares.bytes)
            if best is not None and (is_fine or len(cut.arcs) > most_jobs):
                break
            jobs = TreeJobs.of(network.flows, cut, shares.bytes, network.occupancy)
            start = min(jobs.orders(passes=1 if is_hasty else _PASSES), key=jobs.time_ps)
            time = jobs.time_ps(start)
            if best is None or time < least:
                best = GroupSchedule(network.flows, shares, cut, jobs, start)
                least = time
            budget.count(len(cut.arcs))
            if budget.reason:
                budget.is_reached = True
                return best
            # Finer pieces shorten the way in and out alone.
            if time <= _GOOD * jobs.least_ps():
                break
    assert best is not None
    return best


def _packings(
    network: GroupNetwork, wishes: Sequence[GroupWish], shares: Shares, effort: float
) -> Iterator[Trees]:
    """Trees of all shares, one a share first, then more where there is time for them."""
    npus = network.flows.topology.num_npus
    if 2 * len(shares) * npus > _MOST_ENTRIES:
        raise InputError(
            f"{len(shares)} shares on {npus} NPUs are too many to schedule together",
            cure="name fewer or smaller groups",
            code="too-large",
        )
    ladder = _TREES_EACH[:-1] if effort < _HASTE else _TREES_EACH
    for count in ladder:
        visits = len(shares) * count * npus * 6
        is_long = visits > effort * _MOST_VISITS
        # A piece has a byte at least.
        is_fine = count > min(shares.bytes)
        if count > 1 and (is_long or is_fine):
            return
        yield packed_trees(network.flows, wishes, shares, count)
