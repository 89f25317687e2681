"""Spreading through switches in stages: straight to all, or within groups and between them.

Where switches join all NPUs, the shortest trees are stars, and where groups stand behind slower
links, a chunk should cross these once: then it goes to one member of every group, and on within the
group, or the other way round. A broadcast would keep the links of its root alone busy: it sends its
chunks in turn to others, which send them on, as van de Geijn's scatter and all-gather without a
barrier (Barnett et al., Supercomputing 1994).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from collhub_tacos.candidates import Trials
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.routing.routes import RoutePlan
from collhub_tacos.schedules.link_schedule import LinkSchedule
from hub_core.columns import Int64Array, inverse, ordinals

# Levels of groups that are tried.
_MOST_LEVELS = 2
# Ways without turns that are tried.
_MOST_FREE = 3


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """NPU `b * width + a` is member a of group b."""

    width: int
    groups: int

    def shifted(self, node: Int64Array, axis: int, steps: Int64Array) -> Int64Array:
        """NPU so many steps further, round the group (axis 0) or round the groups (axis 1)."""
        group, member = np.divmod(node, self.width)
        if axis == 0:
            return group * self.width + (member + steps) % self.width
        return (group + steps) % self.groups * self.width + member

    @property
    def lanes(self) -> int:
        """Members of a group that share a broadcast: without other groups, all but the root."""
        return self.width if self.groups > 1 else max(1, self.width - 1)

    def size(self, axis: int) -> int:
        """NPUs along an axis."""
        return self.groups if axis else self.width


@dataclass(frozen=True, slots=True, eq=False)
class _Growth:
    """Trees as far as they have grown: transfers, and who has which chunk; int64 columns.

    `chunk`, `source`, `target`, `parent`: transfers as in `RoutePlan`. `held`, `holder`, `bringer`:
    NPU `holder[i]` has chunk `held[i]` by transfer `bringer[i]`, -1 at the origin.
    """

    chunk: Int64Array
    source: Int64Array
    target: Int64Array
    parent: Int64Array
    held: Int64Array
    holder: Int64Array
    bringer: Int64Array

    @classmethod
    def at(cls, origin: Int64Array) -> _Growth:
        """Nothing but the origin of every chunk."""
        empty = np.zeros(0, np.int64)
        chunk = np.arange(len(origin))
        return cls(empty, empty, empty, empty, chunk, origin, np.full(len(origin), -1))

    def then(
        self, chunk: Int64Array, source: Int64Array, target: Int64Array, parent: Int64Array
    ) -> _Growth:
        """With more transfers, which all bring something new."""
        first = len(self.chunk)
        return _Growth(
            np.concatenate([self.chunk, chunk]),
            np.concatenate([self.source, source]),
            np.concatenate([self.target, target]),
            np.concatenate([self.parent, parent]),
            np.concatenate([self.held, chunk]),
            np.concatenate([self.holder, target]),
            np.concatenate([self.bringer, first + np.arange(len(chunk))]),
        )

    def straight(self, grid: _Grid, axis: int) -> _Growth:
        """Every holder sends to all others along an axis, the next one first."""
        others = grid.size(axis) - 1
        steps = np.tile(np.arange(1, others + 1), len(self.held))
        source = np.repeat(self.holder, others)
        target = grid.shifted(source, axis, steps)
        return self.then(
            np.repeat(self.held, others), source, target, np.repeat(self.bringer, others)
        )

    def around(self, grid: _Grid, axis: int) -> _Growth:
        """Every holder sends to the next one along an axis, which sends on, and so on."""
        others = grid.size(axis) - 1
        if not others:
            return self
        steps = np.tile(np.arange(1, others + 1), len(self.held))
        start = np.repeat(self.holder, others)
        place = len(self.chunk) + np.arange(len(start))
        parent = np.where(steps == 1, np.repeat(self.bringer, others), place - 1)
        return self.then(
            np.repeat(self.held, others),
            grid.shifted(start, axis, steps - 1),
            grid.shifted(start, axis, steps),
            parent,
        )

    def without_repeats(self, origin: Int64Array) -> _Growth:
        """Without transfers to an NPU that is the origin of the chunk; these have no children."""
        kept = np.flatnonzero(self.target != origin[self.chunk])
        place = np.full(len(self.chunk) + 1, -1, np.int64)
        place[kept] = np.arange(len(kept))
        return replace(
            self,
            chunk=self.chunk[kept],
            source=self.source[kept],
            target=self.target[kept],
            parent=place[self.parent[kept]],
        )

    def plan(self, network: LinkNetwork) -> RoutePlan | None:
        """The transfers on the arcs of a network, None where there is no arc for one of them."""
        # Arcs stand by destination, then by source, so that these keys ascend.
        key = network.destination * network.num_nodes + network.source
        wanted = self.target * network.num_nodes + self.source
        arc = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        if not np.array_equal(key[arc], wanted):
            return None
        return RoutePlan(network, self.chunk, arc, self.parent)


# How chunks cross from the root's group to the others.
_WAYS_OF_LANES = (_Growth.straight, _Growth.around)


def staged_all_gathers(
    network: LinkNetwork, times: LinkTimes, origin: Int64Array, trials: Trials
) -> Iterator[LinkSchedule]:
    """Schedules in which every chunk comes to all NPUs, those that the network has arcs for.

    And that are worth a trial with so many chunks; what they take is noted there.
    """
    plans = dict(enumerate(all_gather_plans(network, times, origin)))
    yield from _hopeful(plans, times, lambda plan: plan.schedule_farthest_first(times), trials)


def all_gather_plans(network: LinkNetwork, times: LinkTimes, origin: Int64Array) -> list[RoutePlan]:
    """Ways in which every chunk comes to all NPUs, those that the network has arcs for."""
    start, whole = _Growth.at(origin), _Grid(network.num_npus, 1)
    ways = [partial(way, start, whole, 0) for way in (_Growth.straight, _Growth.around)]
    for grid in group_grids(network, times):
        ways += [partial(way, start, grid) for way in (_outwards, _around_groups, _inwards)]
    return [plan for way in ways if (plan := way().plan(network)) is not None]


def free_all_gathers(
    network: LinkNetwork, times: LinkTimes, origin: Int64Array
) -> list[LinkSchedule]:
    """Schedules of few full links in which a message waits for its data alone, not for its turn.

    Where messages of many senders meet inside the network, turns that are kept add up to waits.
    Who has several things at hand sends first pieces first. Where switches multicast or reduce, of
    all ways: a link carries less than its messages then.
    """
    plans = all_gather_plans(network, times, origin)
    fullest = [plan.max_load_ps(times) for plan in plans]
    piece = ordinals(origin)
    is_multiplied = network.topology.multicast or network.topology.reduction
    most = len(plans) if is_multiplied else _MOST_FREE
    by_load = np.argsort(fullest, kind="stable")[:most].tolist()
    ordered = (plans[place].sort_by(piece[plans[place].chunk]) for place in by_load)
    return [plan.schedule_without_contention(times) for plan in ordered]


def staged_broadcasts(
    network: LinkNetwork, times: LinkTimes, root: int, chunks: int, trials: Trials
) -> Iterator[LinkSchedule]:
    """Schedules in which the chunks of a root come to all NPUs: straight, or through others.

    Through others, chunk after chunk goes to the next member of the root's group, which sends it to
    one member of every other group, and each of these within its own. Those that are worth a trial
    with so many chunks; what they take is noted there.
    """
    origin = np.full(chunks, root, np.int64)
    whole = _Grid(network.num_npus, 1)
    straight = _Growth.at(origin).straight(whole, 0).plan(network)
    if straight is not None:
        yield from _hopeful(
            {0: straight}, times, lambda plan: plan.schedule_farthest_first(times), trials
        )
    for level, grid in enumerate((whole, *group_grids(network, times)), 1):
        # Without other groups one way is the other.
        ways = _WAYS_OF_LANES if grid.groups > 1 else _WAYS_OF_LANES[:1]
        found = {
            level * len(_WAYS_OF_LANES) + at: _on_lanes(grid, origin, way).plan(network)
            for at, way in enumerate(ways)
        }
        plans = {place: plan for place, plan in found.items() if plan is not None}
        in_order = partial(_in_rounds, times=times, grid=grid, root=root)
        yield from _hopeful(plans, times, in_order, trials)


def _hopeful(
    plans: Mapping[int, RoutePlan],
    times: LinkTimes,
    scheduled: Callable[[RoutePlan], LinkSchedule],
    trials: Trials,
) -> Iterator[LinkSchedule]:
    """Schedules of the plans, but for those that cannot be as fast as another one is."""
    best: int | None = None
    worth = {place: plan for place, plan in plans.items() if trials.is_worth(place)}
    for least, place in sorted((plan.minimum_ps(times), place) for place, plan in worth.items()):
        if best is not None and least > best:
            return
        schedule = scheduled(worth[place])
        trials.note(place, schedule.time_ps)
        best = schedule.time_ps if best is None else min(best, schedule.time_ps)
        yield schedule


def _in_rounds(plan: RoutePlan, times: LinkTimes, grid: _Grid, root: int) -> LinkSchedule:
    """Schedule of a broadcast over lanes, behind one switch in the fixed order of its slots."""
    rank = _round_by_round(plan, grid, root)
    return plan.schedule_by_rank(times, rank, is_fixed=grid.groups == 1)


def _outwards(start: _Growth, grid: _Grid) -> _Growth:
    """To one member of every group, then within the groups."""
    return start.straight(grid, 1).straight(grid, 0)


def _around_groups(start: _Growth, grid: _Grid) -> _Growth:
    """The same, from group to group."""
    return start.around(grid, 1).straight(grid, 0)


def _inwards(start: _Growth, grid: _Grid) -> _Growth:
    """Within the group, then to the other groups."""
    return start.straight(grid, 0).straight(grid, 1)


def _on_lanes(
    grid: _Grid, origin: Int64Array, across: Callable[[_Growth, _Grid, int], _Growth]
) -> _Growth:
    """Trees of a broadcast: to a helper in the root's group, on within it and from group to group.

    The root sends every chunk once within its group, to another member in turn. One lane to the
    other groups begins at each member, also at the root.
    """
    chunk = np.arange(len(origin))
    helpers = max(1, grid.width - 1)
    lane = grid.shifted(origin, 0, 1 + chunk % grid.lanes)
    stand_in = grid.shifted(origin, 0, 1 + chunk // grid.lanes % helpers)
    helper = np.where(lane == origin, stand_in, lane)
    to_helper = _Growth.at(origin).then(chunk, origin, helper, np.full(len(chunk), -1))
    # Of the origins and the helpers, those from which the lanes begin.
    bringer = np.where(lane == origin, -1, chunk)
    begun = replace(to_helper, held=chunk, holder=lane, bringer=bringer)
    crossed = across(begun, grid, 1)
    # Within the root's group it is the helper who sends on.
    first = np.arange(len(crossed.held)) < len(chunk)
    spread = replace(
        crossed,
        holder=np.where(first, np.resize(helper, len(first)), crossed.holder),
        bringer=np.where(first, np.resize(chunk, len(first)), crossed.bringer),
    )
    return spread.straight(grid, 0).without_repeats(origin)


def _round_by_round(plan: RoutePlan, grid: _Grid, root: int) -> Int64Array:
    """Rank of every transfer: chunks in rounds of one for each lane, without collisions.

    Let the others be 0 ... m - 1, m odd, and the root send to s in slot s. Who has a chunk at hand
    sends in slot s to 2 s - i, modulo m: these are all others but s. So whoever gets his own in
    slot i sends to i + 2, i + 4, ..., one in a slot.
    """
    network = plan.network
    others = network.num_npus - 1
    source, target = network.source[plan.link], network.destination[plan.link]
    ahead = (target - source) % network.num_npus
    if grid.groups > 1:
        return inverse(np.lexsort((plan.chunk, ahead, plan.chunk // grid.lanes)))
    if others % 2:
        # Places among the others; half of a way round, modulo an odd number.
        way = (target - root - 1) % network.num_npus - (source - root - 1) % network.num_npus
        ahead = way % others * (others + 1) // 2 % others
    slot = plan.chunk + np.where(source == root, 0, ahead)
    return inverse(np.lexsort((plan.chunk, slot)))


def group_grids(network: LinkNetwork, times: LinkTimes) -> list[_Grid]:
    """Grids of groups of NPUs that are nearer to one another than to others, the smallest first.

    Those that the topology names, and those that the times of the messages of NPU 0 tell; of one
    size, of NPUs whose numbers follow one another.
    """
    npus = network.num_npus
    widths = sorted(_named_widths(network) | _near_widths(network, times))
    fitting = [width for width in widths if 1 < width < npus and npus % width == 0]
    return [_Grid(width, npus // width) for width in fitting[:_MOST_LEVELS]]


def _named_widths(network: LinkNetwork) -> set[int]:
    """Size of the groups of the topology, where these stand one after another."""
    groups = sorted(sorted(group) for group in network.topology.groups.values())
    members = [npu for group in groups for npu in group]
    sizes = {len(group) for group in groups}
    is_partition = members == list(range(network.num_npus))
    return sizes if is_partition and len(sizes) == 1 else set()


def _near_widths(network: LinkNetwork, times: LinkTimes) -> set[int]:
    """Sizes of the groups of NPU 0 by the times of its messages."""
    from_first = np.flatnonzero(network.source == 0)
    arrival = times.arrival[from_first]
    near = network.destination[from_first]
    found = set()
    for longest in np.unique(arrival)[:-1].tolist():
        members = np.sort(near[arrival <= longest])
        if np.array_equal(members, np.arange(1, len(members) + 1)):
            found.add(len(members) + 1)
    return found
