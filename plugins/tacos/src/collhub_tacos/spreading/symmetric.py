"""All-gather on networks that look alike from every node, links of any times.

One node's part is made, and moved to all the others.
"""

from __future__ import annotations

import numpy as np
from collhub_packing.compiling import kernel, part

from collhub_tacos.networks.distances import unreachable_error
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.symmetry import Translations
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.seed_search import (
    AfterTrial,
    Best,
    Progress,
    find_best_of_seeds,
    ignore_progress,
    ignore_trial,
    report_activity,
)
from hub_core.columns import Float64Array, Int64Array
from hub_core.model import InputError

NEVER = 1 << 60
# A chunk that a faster in-link could bring as well is left to it; of others, the more neighbours
# still need it the better.
_FASTER, _NEEDED = 10.0, 0.5


@kernel
def deliver_cells(
    shift: Int64Array,
    busy: Int64Array,
    arrival: Int64Array,
    tier: Int64Array,
    own: int,
    urgency: Float64Array,
    latest: int,
) -> tuple[Int64Array, Int64Array]:
    """Which chunk comes over which in-link, and when it starts: int64[chunks] each.

    The start is `NEVER` where a chunk does not come. `shift[j, x]`: what chunk x of the source of
    in-link j is at this node; x comes to the source when it comes here. Chunks 0..own-1 are there
    before. `busy`, `arrival`: picoseconds per in-link, the fastest first; `tier`: number of faster
    ones. A free in-link takes what suits it best of what its source has (ties: the least
    `urgency`), unless it would arrive after `latest`: then the others must bring it.
    """
    degree, num_chunks = shift.shape
    start, link = np.full(num_chunks, NEVER), np.full(num_chunks, -1)
    start[:own] = 0
    fastest = np.full(num_chunks, degree)
    waiting, num_waiting = np.empty((degree, num_chunks), np.int64), np.zeros(degree, np.int64)
    # Per in-link a queue of what is on its way: entries `first[j]..end[j] - 1` of its row.
    flying = np.empty((degree, num_chunks), np.int64)
    first, end = np.zeros(degree, np.int64), np.zeros(degree, np.int64)
    free = np.zeros(degree, np.int64)
    # Chunks of the node itself, and of all others at once.
    for chunk in range(own):
        _plan(shift, chunk, tier, fastest)
        _arrive(shift, chunk, start, waiting, num_waiting)
    now = np.int64(0)
    while now < NEVER:
        # What arrives now can be sent on now: arrivals before departures.
        for slot in range(degree):
            while (
                first[slot] < end[slot] and start[flying[slot, first[slot]]] + arrival[slot] <= now
            ):
                _arrive(shift, flying[slot, first[slot]], start, waiting, num_waiting)
                first[slot] += 1
        for slot in range(degree):
            # Too late here: a faster in-link has to bring what is left.
            if free[slot] > now or now + arrival[slot] > latest:
                continue
            chunk = _choose(shift, slot, tier[slot], start, waiting, num_waiting, fastest, urgency)
            if chunk >= 0:
                start[chunk], link[chunk] = now, slot
                free[slot] = now + busy[slot]
                flying[slot, end[slot]] = chunk
                end[slot] += 1
                _plan(shift, chunk, tier, fastest)
        # Between two events no link gets free and no chunk arrives.
        now = _next_event(now, start, flying, first, end, arrival, free)
    return start, link


@part
def _plan(shift: Int64Array, chunk: int, tier: Int64Array, fastest: Int64Array) -> None:
    """The chunk will be here, and at all sources alike: there is a way for what it becomes."""
    for slot in range(shift.shape[0]):
        moved = shift[slot, chunk]
        fastest[moved] = min(fastest[moved], tier[slot])


@part
def _arrive(
    shift: Int64Array,
    chunk: int,
    start: Int64Array,
    waiting: Int64Array,
    num_waiting: Int64Array,
) -> None:
    """The chunk is here, and at all sources alike: each in-link can bring what it becomes."""
    for slot in range(shift.shape[0]):
        moved = shift[slot, chunk]
        if start[moved] == NEVER:
            waiting[slot, num_waiting[slot]] = moved
            num_waiting[slot] += 1


@part
def _next_event(
    now: np.int64,
    start: Int64Array,
    flying: Int64Array,
    first: Int64Array,
    end: Int64Array,
    arrival: Int64Array,
    free: Int64Array,
) -> np.int64:
    """When the next chunk arrives or the next in-link gets free, `NEVER` for neither."""
    following = np.int64(NEVER)
    for slot in range(len(free)):
        if first[slot] < end[slot]:
            lands = start[flying[slot, first[slot]]] + arrival[slot]
            following = min(following, lands)
        if free[slot] > now:
            following = min(following, free[slot])
    return following


@part
def _choose(
    shift: Int64Array,
    slot: int,
    tier: int,
    start: Int64Array,
    waiting: Int64Array,
    num_waiting: Int64Array,
    fastest: Int64Array,
    urgency: Float64Array,
) -> int:
    """The chunk that suits an in-link best, -1 for none.

    What has come by another one is dropped from its list.
    """
    kept, chosen, least = 0, -1, np.inf
    for place in range(num_waiting[slot]):
        chunk = waiting[slot, place]
        if start[chunk] != NEVER:
            continue
        waiting[slot, kept] = chunk
        kept += 1
        score = urgency[chunk]
        # A faster in-link has it, or will.
        if fastest[chunk] < tier:
            score += _FASTER
        for other in range(shift.shape[0]):
            # To others it is a chunk that they lack: it serves them when it is here.
            if start[shift[other, chunk]] == NEVER:
                score -= _NEEDED
        if score < least:
            least, chosen = score, chunk
    num_waiting[slot] = kept
    return chosen


@kernel
def retime_cells(
    shift: Int64Array,
    busy: Int64Array,
    arrival: Int64Array,
    start: Int64Array,
    link: Int64Array,
) -> Int64Array:
    """Starts as early as the order on every in-link allows: int64[chunks].

    `link` is -1 for chunks that are there before. One pass in the order of the given starts, in
    which causes stand before effects.
    """
    degree, num_chunks = shift.shape
    came_from = np.full(num_chunks, -1)
    for slot in range(degree):
        for chunk in range(num_chunks):
            if link[shift[slot, chunk]] == slot:
                came_from[shift[slot, chunk]] = chunk
    free, earliest = np.zeros(degree, np.int64), np.zeros(num_chunks, np.int64)
    for chunk in np.argsort(start, kind="mergesort"):
        slot = link[chunk]
        if slot < 0:
            continue
        # The chunk is at the source when what it is from there has come here.
        other = came_from[chunk]
        there = earliest[other] + arrival[link[other]] if link[other] >= 0 else 0
        earliest[chunk] = max(free[slot], there)
        free[slot] = earliest[chunk] + busy[slot]
    return earliest


Part = tuple[Int64Array, Int64Array]
"""Start in picoseconds and in-link of every chunk: int64[chunks] each."""

_DEFAULT_SEEDS = 20
_MOST_ROUNDS = 30


def find_all_gather(
    network: LinkNetwork,
    translations: Translations,
    times: LinkTimes,
    origin: Int64Array,
    seeds: int = _DEFAULT_SEEDS,
    first_seed: int = 0,
    goal_ps: int = 0,
    progress: Progress = ignore_progress,
    after_trial: AfterTrial = ignore_trial,
) -> Best[LinkSchedule]:
    """Fastest all-gather over `seeds` seeds; a time of at most `goal_ps` ends the search.

    Seeds count from `first_seed` on. `translations` must be those for `origin` and `times`. Cost: a
    seed looks at the chunks of one node, not of all. Raises `InputError` where the network is not
    connected.
    """
    gather = _SymmetricGather(network, translations, times, origin)
    found = find_best_of_seeds(
        lambda seed, report: gather.part(seed),
        gather.time_ps,
        range(first_seed, first_seed + seeds),
        goal=goal_ps,
        threads=1,
        progress=report_activity(progress, "all-gather"),
        after_trial=after_trial,
    )
    schedule = gather.schedule(found.result)
    return Best(schedule, found.seed, found.tried, found.is_interrupted)


def all_gather(
    network: LinkNetwork,
    translations: Translations,
    times: LinkTimes,
    origin: Int64Array,
    seed: int = 0,
) -> LinkSchedule:
    """Schedule of one seed; seed 0 takes the oldest of equally good chunks, others a random one."""
    return find_all_gather(network, translations, times, origin, 1, seed).result


class _SymmetricGather:
    """In-links of one node from the fastest to the slowest, and the chunks that they bring."""

    def __init__(
        self,
        network: LinkNetwork,
        translations: Translations,
        times: LinkTimes,
        origin: Int64Array,
    ) -> None:
        self._network = network
        self._translations = translations
        self._origin = origin
        in_links = translations.in_link[0]
        busy, arrival = times.busy[in_links], times.arrival[in_links]
        if int(busy.min()) < 1:
            raise InputError(
                "a link takes no time",
                cure="choose a larger size, or fewer chunks",
                code="link-times",
            )
        self._order = np.lexsort((busy, arrival))
        self._busy = busy[self._order]
        self._arrival = arrival[self._order]
        # In-links of equal times are of one tier.
        self._tier = np.searchsorted(self._arrival, self._arrival)
        self._own = len(origin) // network.num_npus
        self._shift = translations.shift_cells(self._own)[self._order]

    def part(self, seed: int) -> Part:
        """Start and in-link of all chunks.

        A link that is free before its message arrives may do better to wait for what comes then, so
        both are tried.
        """
        urgency = np.zeros(len(self._origin))
        if seed:
            urgency = np.random.default_rng(seed).random(len(self._origin))
        # The next message starts when the link is free, or when the last one has arrived.
        at_once = self._part(urgency, self._busy)
        if np.array_equal(self._busy, self._arrival):
            return at_once
        after_arrival = self._part(urgency, self._arrival)
        return min(at_once, after_arrival, key=self.time_ps)

    def _part(self, urgency: Float64Array, hold: Int64Array) -> Part:
        """What slow links would bring last is left to faster ones, until that helps no more.

        `hold`: int64 picoseconds per in-link, from one message to the next.
        """
        shift, arrival = self._shift, self._arrival
        best, latest = None, NEVER
        for _ in range(_MOST_ROUNDS):
            start, link = deliver_cells(
                shift, hold, arrival, self._tier, self._own, urgency, latest
            )
            if np.any(start == NEVER):
                break
            earliest = retime_cells(shift, self._busy, arrival, start, link)
            found = (earliest, link)
            if best is None or self.time_ps(found) < self.time_ps(best):
                best = found
            # The next round has to be faster, or leaves a chunk out.
            latest = self.time_ps((start, link)) - 1
        if best is None:
            raise self._unreachable(int(np.argmax(start == NEVER)))
        return best

    def _unreachable(self, chunk: int) -> InputError:
        """Error for a chunk that does not come; chunks are numbered by how far they come."""
        source = self._translations.find_source(chunk // self._own)
        return unreachable_error(self._network, source, 0)

    def time_ps(self, part: Part) -> int:
        """When the last chunk arrives."""
        start, link = part[0][self._own :], part[1][self._own :]
        finish = start + self._arrival[link]
        return int(np.max(finish, initial=0))

    def schedule(self, part: Part) -> LinkSchedule:
        """What every node does, in order of start, then of links."""
        start, slot = part[0][self._own :], part[1][self._own :]
        finish = start + self._arrival[slot]
        npus = self._network.num_npus
        chunk = self._moved_chunks()
        link = self._translations.in_link[:, self._order[slot]].ravel()
        starts, finishes = np.tile(start, npus), np.tile(finish, npus)
        order = np.lexsort((link, starts))
        return LinkSchedule.without_reduction(
            self._network,
            chunk[order],
            link[order],
            starts[order],
            finishes[order],
        )

    def _moved_chunks(self) -> Int64Array:
        """Chunk that every cell is at every node, but for the cells that it has before."""
        nodes = np.arange(self._network.num_npus)
        cell = np.arange(self._own, len(self._origin))
        by_node = np.argsort(self._origin, kind="stable").reshape(len(nodes), self._own)
        owner = self._translations.subtract(nodes[:, None], cell // self._own)
        chunk: Int64Array = by_node[owner, cell % self._own].ravel()
        return chunk
