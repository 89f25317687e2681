"""Spreading through switches in stages: directly to all NPUs, or within and between groups.

If switches join all NPUs, the shortest trees are stars. If groups are connected by slower links, a
chunk should cross these once: it is sent to one member of every group and on within the group, or
in the reverse order. A broadcast would use only the links of its root. Therefore the root sends its
chunks to the other NPUs in turn, which forward them, like van de Geijn's scatter and all-gather
without a barrier (Barnett et al., Supercomputing 1994).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.routing.routes import RoutePlan
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.search.candidates import Trials
from hub_core.columns import Int64Array, inverse, ordinals, positions_in

# Maximum number of levels of groups to try.
_MAX_LEVELS = 2
# Maximum number of plans without fixed turns to try.
_MAX_FREE_PLANS = 3


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """NPUs in groups: NPU `b * width + a` is member a of group b."""

    width: int
    groups: int

    def shift(self, node: Int64Array, axis: int, steps: Int64Array) -> Int64Array:
        """Return the NPUs that are `steps` positions further along an axis, cyclically.

        Axis 0 is within the group, by member. Axis 1 is among groups, with the same member number.
        """
        group, member = np.divmod(node, self.width)
        if axis == 0:
            return group * self.width + (member + steps) % self.width
        return (group + steps) % self.groups * self.width + member

    @property
    def lanes(self) -> int:
        """Members of a group that share a broadcast; with a single group, all except the root."""
        return self.width if self.groups > 1 else max(1, self.width - 1)

    def size(self, axis: int) -> int:
        """Return the number of NPUs along an axis."""
        return self.groups if axis else self.width


@dataclass(frozen=True, slots=True, eq=False)
class _PartialTrees:
    """Partial trees: transfers and the holders of chunks; int64 columns.

    `chunk`, `source`, `target`, `parent`: transfers as in `RoutePlan`. `held_chunk`, `holder`,
    `bringer`: NPU `holder[i]` has chunk `held_chunk[i]` by transfer `bringer[i]`, -1 at the origin.
    """

    chunk: Int64Array
    source: Int64Array
    target: Int64Array
    parent: Int64Array
    held_chunk: Int64Array
    holder: Int64Array
    bringer: Int64Array

    @classmethod
    def at(cls, origin: Int64Array) -> _PartialTrees:
        """Return a growth without transfers, in which chunk i is only at NPU `origin[i]`.

        A growth lists the transfers so far, and which NPU holds which chunk by which transfer (-1
        at the origin).
        """
        empty = np.zeros(0, np.int64)
        chunk = np.arange(len(origin))
        return cls(empty, empty, empty, empty, chunk, origin, np.full(len(origin), -1))

    def append(
        self, chunk: Int64Array, source: Int64Array, target: Int64Array, parent: Int64Array
    ) -> _PartialTrees:
        """Return a new growth with further transfers, each of which brings a new chunk.

        `parent`: row of the transfer that brought the chunk to the source, -1 at the origin. The
        targets become holders of the chunks.
        """
        first_row = len(self.chunk)
        return _PartialTrees(
            np.concatenate([self.chunk, chunk]),
            np.concatenate([self.source, source]),
            np.concatenate([self.target, target]),
            np.concatenate([self.parent, parent]),
            np.concatenate([self.held_chunk, chunk]),
            np.concatenate([self.holder, target]),
            np.concatenate([self.bringer, first_row + np.arange(len(chunk))]),
        )

    def send_directly(self, grid: _Grid, axis: int) -> _PartialTrees:
        """Return the growth after every holder sent its chunk directly to all others of an axis.

        A growth is a set of transfers with the present holders of each chunk; this one is not
        changed. Axis 0: NPUs of the holder's group; axis 1: NPUs with its member number in other
        groups. The transfers of a holder are in cyclic order from the next NPU on; all wait for the
        one that brought the chunk.
        """
        num_others = grid.size(axis) - 1
        steps = np.tile(np.arange(1, num_others + 1), len(self.held_chunk))
        source = np.repeat(self.holder, num_others)
        target = grid.shift(source, axis, steps)
        return self.append(
            np.repeat(self.held_chunk, num_others),
            source,
            target,
            np.repeat(self.bringer, num_others),
        )

    def send_around(self, grid: _Grid, axis: int) -> _PartialTrees:
        """Return a growth with further transfers: every chunk goes once around an axis, NPU by NPU.

        From each holder, the chunk makes size - 1 hops, each to the next NPU along the axis,
        cyclically (`_Grid.shift`). The NPUs on its path become holders. Each hop waits for the
        previous one, and the first one for the transfer that brought the chunk to the holder.
        New transfers are appended holder by holder. This growth is not changed; it is itself
        returned if the axis has size 1.
        """
        num_others = grid.size(axis) - 1
        if not num_others:
            return self
        steps = np.tile(np.arange(1, num_others + 1), len(self.held_chunk))
        start = np.repeat(self.holder, num_others)
        row = len(self.chunk) + np.arange(len(start))
        parent = np.where(steps == 1, np.repeat(self.bringer, num_others), row - 1)
        return self.append(
            np.repeat(self.held_chunk, num_others),
            grid.shift(start, axis, steps - 1),
            grid.shift(start, axis, steps),
            parent,
        )

    def remove_repeats(self, origin: Int64Array) -> _PartialTrees:
        """Return the growth without transfers that bring a chunk back to its origin.

        `origin`: NPU of each chunk. A removed transfer must not be the parent of another one, which
        is not checked. The order is kept, and parents are renumbered. The columns of the holders
        are not changed, so the result can only be converted to a plan.
        """
        kept_rows = np.flatnonzero(self.target != origin[self.chunk])
        new_row = positions_in(kept_rows, len(self.chunk) + 1)
        return replace(
            self,
            chunk=self.chunk[kept_rows],
            source=self.source[kept_rows],
            target=self.target[kept_rows],
            parent=new_row[self.parent[kept_rows]],
        )

    def plan(self, network: LinkNetwork) -> RoutePlan | None:
        """Return the transfers as a plan of routes over arcs, None if the network lacks an arc.

        An arc connects two NPUs. A transfer uses the first arc from its source to its target;
        if one has no such arc, the result is None. Transfers keep their order and their
        parents. The network must have at least one arc.
        """
        # Arcs are sorted by destination, then by source, so these keys ascend.
        key = network.destination * network.num_nodes + network.source
        requested_key = self.target * network.num_nodes + self.source
        arc = np.minimum(np.searchsorted(key, requested_key), len(key) - 1)
        if not np.array_equal(key[arc], requested_key):
            return None
        return RoutePlan(network, self.chunk, arc, self.parent)


# Methods by which chunks cross from the root's group to the others.
_LANE_METHODS = (_PartialTrees.send_directly, _PartialTrees.send_around)


def generate_staged_all_gathers(
    network: LinkNetwork, times: LinkTimes, origin: Int64Array, trials: Trials
) -> Iterator[LinkSchedule]:
    """Yield schedules in which every chunk reaches all NPUs, one per plan that is scheduled.

    The plans are those of `build_all_gather_plans`: each sends the chunks directly or
    around, among all NPUs or in stages over groups of near NPUs. Plans that `trials` does
    not consider promising are omitted. The remaining ones are scheduled by ascending lower
    bound, farthest chunk first, and their times (ps) are recorded in `trials`. The search
    stops at the first plan whose lower bound exceeds the best time so far. If every plan needs
    an arc that the network lacks, the iterator is empty.
    """
    plans = dict(enumerate(build_all_gather_plans(network, times, origin)))
    yield from _schedule_promising(
        plans, times, lambda plan: plan.schedule_farthest_first(times), trials
    )


def build_all_gather_plans(
    network: LinkNetwork, times: LinkTimes, origin: Int64Array
) -> list[RoutePlan]:
    """Return the plans by which every chunk reaches all NPUs, without those that lack an arc.

    `origin`: NPU that has each chunk at first. The order is:

    1. from the origin directly to all NPUs
    2. from NPU to NPU, once around all of them
    3. three plans for every grid (groups of NPUs) of `find_group_grids`, in its order: to one
       member of every group, then within the groups; from group to group, then within the groups;
       within the group, then to all other groups

    A plan is omitted if the network lacks an arc for one of its transfers. The list may be empty.
    """
    start, all_npus = _PartialTrees.at(origin), _Grid(network.num_npus, 1)
    plans = [
        start.send_directly(all_npus, 0).plan(network),
        start.send_around(all_npus, 0).plan(network),
    ]
    for grid in find_group_grids(network, times):
        plans += [
            start.send_directly(grid, 1).send_directly(grid, 0).plan(network),
            start.send_around(grid, 1).send_directly(grid, 0).plan(network),
            start.send_directly(grid, 0).send_directly(grid, 1).plan(network),
        ]
    return [plan for plan in plans if plan is not None]


def build_free_all_gathers(
    network: LinkNetwork, times: LinkTimes, origin: Int64Array
) -> list[LinkSchedule]:
    """Return schedules with a low maximum load in which a message waits only for its data.

    They have no fixed order on links, which would add delays if messages of many senders share
    links. Of the plans of `build_all_gather_plans`, those with the lowest maximum load of a
    link are used, by ascending load, ties in their order: at most 3 (`_MAX_FREE_PLANS`), but
    all of them if switches multicast or reduce, because a link then carries less than its
    messages. Start times ignore contention. Of messages that are available at the same time, an
    NPU sends first those with the lowest number among the chunks of their origin.
    """
    plans = build_all_gather_plans(network, times, origin)
    max_loads = [plan.max_load_ps(times) for plan in plans]
    piece = ordinals(origin)
    is_multiplied = network.topology.multicast or network.topology.reduction
    max_plans = len(plans) if is_multiplied else _MAX_FREE_PLANS
    by_load = np.argsort(max_loads, kind="stable")[:max_plans].tolist()
    ordered = (plans[index].sort_by(piece[plans[index].chunk]) for index in by_load)
    return [plan.schedule_without_contention(times) for plan in ordered]


def generate_staged_broadcasts(
    network: LinkNetwork, times: LinkTimes, root: int, chunks: int, trials: Trials
) -> Iterator[LinkSchedule]:
    """Yield schedules in which the chunks of a root reach all NPUs, plan by plan.

    1. The root sends every chunk directly to all NPUs.
    2. The root sends each chunk to one NPU, all NPUs in turn, which sends it to all others.
    3. For each grid (division into groups) of `find_group_grids`, two plans. Each chunk uses one
       member of the root's group, in turn. It goes on to one member of every other group: directly,
       or in the second plan from group to group. Each NPU that has it sends it to its group. A grid
       of one group has only the first plan.

    A plan is omitted if the network lacks one of its arcs, or `trials` considers it not promising.
    Plans of a grid are scheduled by ascending lower bound; at equal bounds the direct one is first.
    The second is omitted if its bound is above the time of the first. The time of each schedule
    (ps) is recorded in `trials` before the schedule is yielded.
    """
    origin = np.full(chunks, root, np.int64)
    all_npus = _Grid(network.num_npus, 1)
    direct = _PartialTrees.at(origin).send_directly(all_npus, 0).plan(network)
    if direct is not None:
        yield from _schedule_promising(
            {0: direct}, times, lambda plan: plan.schedule_farthest_first(times), trials
        )
    for level, grid in enumerate((all_npus, *find_group_grids(network, times)), 1):
        # With a single group both methods are equal.
        methods = _LANE_METHODS if grid.groups > 1 else _LANE_METHODS[:1]
        candidates = {
            level * len(_LANE_METHODS) + number: _grow_on_lanes(grid, origin, method).plan(network)
            for number, method in enumerate(methods)
        }
        plans = {index: plan for index, plan in candidates.items() if plan is not None}
        in_order = partial(_schedule_in_rounds, times=times, grid=grid, root=root)
        yield from _schedule_promising(plans, times, in_order, trials)


def _schedule_promising(
    plans: Mapping[int, RoutePlan],
    times: LinkTimes,
    build_schedule: Callable[[RoutePlan], LinkSchedule],
    trials: Trials,
) -> Iterator[LinkSchedule]:
    """Yield the schedules of the promising plans, by ascending lower bound; record their times.

    `plans`: plans by the index under which `trials` knows them; those that it does not consider
    promising are ignored. `build_schedule` builds the schedule of a plan, whose time is recorded in
    `trials`. Ends at the first plan whose lower bound exceeds the best time so far.
    """
    best: int | None = None
    promising = {index: plan for index, plan in plans.items() if trials.is_promising(index)}
    bounds = sorted((plan.minimum_ps(times), index) for index, plan in promising.items())
    for bound, index in bounds:
        if best is not None and bound > best:
            return
        schedule = build_schedule(promising[index])
        trials.note(index, schedule.time_ps)
        best = schedule.time_ps if best is None else min(best, schedule.time_ps)
        yield schedule


def _schedule_in_rounds(plan: RoutePlan, times: LinkTimes, grid: _Grid, root: int) -> LinkSchedule:
    """Schedule a broadcast from `root`, whose chunks are sent over `grid.lanes` lanes in turn.

    A lane is a member of the root's group that forwards one chunk of each round to other NPUs.

    - Several groups of NPUs: a free link chooses among its available messages
      (`schedule_by_rank`). The priority is by round (`chunk // grid.lanes`), then by distance,
      then by chunk. The distance is (target - source) modulo the number of NPUs.
    - A single group (all NPUs): links send strictly by slot, then by chunk. A transfer of chunk c
      from the root has the slot c, any other transfer c + h. With an even number m of NPUs without
      the root, h is the distance. Otherwise h in 0..m - 1 is such that 2 h = j - i modulo m for a
      transfer from NPU root + 1 + i to NPU root + 1 + j (modulo the number of NPUs).
    """
    network = plan.network
    source, target = network.source[plan.link], network.destination[plan.link]
    distance = (target - source) % network.num_npus
    if grid.groups > 1:
        rank = inverse(np.lexsort((plan.chunk, distance, plan.chunk // grid.lanes)))
        return plan.schedule_by_rank(times, rank)
    # NPU root + 1 + i has the index i. The transfers of a slot have different targets if chunk c
    # starts at index c modulo the number of other NPUs.
    num_others = network.num_npus - 1
    ahead = distance
    if num_others % 2:
        # Half of the difference of the indices modulo an odd number.
        target_index = (target - root - 1) % network.num_npus
        source_index = (source - root - 1) % network.num_npus
        ahead = (target_index - source_index) % num_others
        ahead = ahead * (num_others + 1) // 2 % num_others
    slot = plan.chunk + np.where(source == root, 0, ahead)
    rank = inverse(np.lexsort((plan.chunk, slot)))
    return plan.schedule_by_rank(times, rank, is_fixed=True)


def _grow_on_lanes(
    grid: _Grid, origin: Int64Array, across: Callable[[_PartialTrees, _Grid, int], _PartialTrees]
) -> _PartialTrees:
    """Build the trees of a broadcast in which a helper shares the work of the root.

    `origin[c]`: root of chunk c. G: size of a group. L: G with several groups, else max(1, G - 1).
    Members are counted cyclically from the root. The lane is member 1 + (c mod L) of its group. The
    helper is the lane. If this is the root, it is member 1 + (c // L mod max(1, G - 1)).

    Transfers, without those to the root:
    1. The root sends each chunk to its helper.
    2. `across` sends each chunk from its lane to the other groups (axis 1).
    3. Each holder sends its chunk to its group, in the root's group only the helper.

    The holders in the result include the root if a transfer to it was removed.
    """
    chunk = np.arange(len(origin))
    helpers = max(1, grid.width - 1)
    lane = grid.shift(origin, 0, 1 + chunk % grid.lanes)
    substitute = grid.shift(origin, 0, 1 + chunk // grid.lanes % helpers)
    helper = np.where(lane == origin, substitute, lane)
    to_helper = _PartialTrees.at(origin).append(chunk, origin, helper, np.full(len(chunk), -1))
    # The lanes start at some of the origins and helpers.
    bringer = np.where(lane == origin, -1, chunk)
    lane_starts = replace(to_helper, held_chunk=chunk, holder=lane, bringer=bringer)
    crossed = across(lane_starts, grid, 1)
    # Within the root's group the helper forwards the chunk.
    is_first = np.arange(len(crossed.held_chunk)) < len(chunk)
    spread = replace(
        crossed,
        holder=np.where(is_first, np.resize(helper, len(is_first)), crossed.holder),
        bringer=np.where(is_first, np.resize(chunk, len(is_first)), crossed.bringer),
    )
    return spread.send_directly(grid, 0).remove_repeats(origin)


def find_group_grids(network: LinkNetwork, times: LinkTimes) -> list[_Grid]:
    """Return grids of groups of NPUs that are near to each other, the smallest groups first.

    The groups of a grid are consecutive NPUs of one size, which must divide the number of NPUs, and
    be above 1 and below this number. Sizes are that of the topology's groups, if they have one size
    and contain all NPUs in ascending order, and those of the sets of first NPUs that NPU 0 reaches
    by one message within some time. The 2 (`_MAX_LEVELS`) smallest sizes give a grid each.
    """
    npus = network.num_npus
    # The size of the topology's groups if they partition the NPUs in order.
    groups = sorted(sorted(group) for group in network.topology.groups.values())
    members = [npu for group in groups for npu in group]
    sizes = {len(group) for group in groups}
    is_partition = members == list(range(network.num_npus))
    widths = sizes if is_partition and len(sizes) == 1 else set()
    # Sets 0 to size - 1 of NPU 0 and the NPUs that it reaches over one arc within some time. The
    # largest time is left out, because it gives all of them.
    from_first = np.flatnonzero(network.source == 0)
    arrival = times.arrival[from_first]
    neighbours = network.destination[from_first]
    for longest in np.unique(arrival)[:-1].tolist():
        near = np.sort(neighbours[arrival <= longest])
        if np.array_equal(near, np.arange(1, len(near) + 1)):
            widths.add(len(near) + 1)
    fitting = [width for width in sorted(widths) if 1 < width < npus and npus % width == 0]
    return [_Grid(width, npus // width) for width in fitting[:_MAX_LEVELS]]
