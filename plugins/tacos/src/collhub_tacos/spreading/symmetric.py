"""All-gather on networks in which all nodes are equivalent, with links of any times.

The part of one node is computed and translated to all others. Algorithm: TACOS's greedy matching
(Won et al., MICRO 2024) at one node in continuous time: a free in-link takes the most suitable
chunk that its source has. Every other node receives the translated chunk at the same instant, so
the source has a chunk exactly when this node has the chunk with the translated number.

Invariant: a chunk has a start as soon as it is in flight, and is in the list of an in-link from its
arrival at the link's source until it is taken. Cost: per message an examination of the waiting
chunks of its in-link, and of all in-links for each of these.

Import this module inside functions: numba takes a second to import.
"""

from __future__ import annotations

import numpy as np
from collhub_packing.compiling import kernel, part

from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.search.seeds import (
    AfterTrial,
    Best,
    Progress,
    find_best_of_seeds,
    ignore_progress,
    ignore_trial,
    report_activity,
)
from collhub_tacos.symmetry import Translations, unreachable_error
from hub_core.columns import Float64Array, Int64Array
from hub_core.model import InputError

NEVER = 1 << 60
# Penalty for a chunk that a faster in-link could bring, and bonus per neighbour that still needs
# the chunk.
_FASTER_LINK_PENALTY, _NEED_BONUS = 10.0, 0.5


@kernel
def deliver_cells(
    shift: Int64Array,
    busy: Int64Array,
    arrival: Int64Array,
    tier: Int64Array,
    chunks_per_node: int,
    urgency: Float64Array,
    latest: int,
) -> tuple[Int64Array, Int64Array]:
    """Return the start (ps) and the in-link of every chunk at one node: int64[chunks] each.

    All nodes are equivalent. `shift[j, x]`: number at this node of chunk x of the source of in-link
    j; x reaches the source at the same time as it reaches this node. Chunks 0..`chunks_per_node` -
    1 are present at the start. `busy`, `arrival`: ps per in-link, the fastest first. `tier`: number
    of faster in-links of each in-link.

    A free in-link takes the most suitable chunk of its source (ties: the lowest `urgency`), unless
    it would arrive after `latest`; other in-links must then bring the remaining chunks. The start
    of a chunk that does not arrive is `NEVER`, and its in-link is -1.
    """
    degree, num_chunks = shift.shape
    start, link = np.full(num_chunks, NEVER), np.full(num_chunks, -1)
    start[:chunks_per_node] = 0
    fastest = np.full(num_chunks, degree)
    waiting, num_waiting = np.empty((degree, num_chunks), np.int64), np.zeros(degree, np.int64)
    # Queue of the chunks in flight per in-link: entries `first[j]..end[j] - 1` of its row.
    flying = np.empty((degree, num_chunks), np.int64)
    first, end = np.zeros(degree, np.int64), np.zeros(degree, np.int64)
    free = np.zeros(degree, np.int64)
    # The initial chunks of this node, and by translation of all other nodes.
    for chunk in range(chunks_per_node):
        _record_planned(shift, chunk, tier, fastest)
        _add_to_waiting(shift, chunk, start, waiting, num_waiting)
    now = np.int64(0)
    while now < NEVER:
        # Arrivals come first because a chunk can be forwarded at the instant of its arrival.
        for slot in range(degree):
            while (
                first[slot] < end[slot] and start[flying[slot, first[slot]]] + arrival[slot] <= now
            ):
                _add_to_waiting(shift, flying[slot, first[slot]], start, waiting, num_waiting)
                first[slot] += 1
        for slot in range(degree):
            # Too late for this in-link: a faster one must bring the remaining chunks.
            if free[slot] > now or now + arrival[slot] > latest:
                continue
            chunk = _choose_chunk(
                shift, slot, tier[slot], start, waiting, num_waiting, fastest, urgency
            )
            if chunk >= 0:
                start[chunk], link[chunk] = now, slot
                free[slot] = now + busy[slot]
                flying[slot, end[slot]] = chunk
                end[slot] += 1
                _record_planned(shift, chunk, tier, fastest)
        # Between two events no link becomes free and no chunk arrives.
        now = _find_next_event(now, start, flying, first, end, arrival, free)
    return start, link


@part
def _record_planned(shift: Int64Array, chunk: int, tier: Int64Array, fastest: Int64Array) -> None:
    """Lower `fastest` of all translations of a chunk that is planned to be present here.

    The chunk will then also be at the sources of all in-links, so its translations have a path.
    `fastest`: by chunk, the tier of the fastest such in-link.
    """
    for slot in range(shift.shape[0]):
        moved = shift[slot, chunk]
        fastest[moved] = min(fastest[moved], tier[slot])


@part
def _add_to_waiting(
    shift: Int64Array,
    chunk: int,
    start: Int64Array,
    waiting: Int64Array,
    num_waiting: Int64Array,
) -> None:
    """Append the translations of an arrived chunk to the lists of the in-links.

    The chunk is then present at all sources, too. Chunks that are already taken are omitted.
    """
    for slot in range(shift.shape[0]):
        moved = shift[slot, chunk]
        if start[moved] == NEVER:
            waiting[slot, num_waiting[slot]] = moved
            num_waiting[slot] += 1


@part
def _find_next_event(
    now: np.int64,
    start: Int64Array,
    flying: Int64Array,
    first: Int64Array,
    end: Int64Array,
    arrival: Int64Array,
    free: Int64Array,
) -> np.int64:
    """Return the time in ps of the next event after `now`; `NEVER` if there is none.

    An event is the arrival of the first chunk in flight on an in-link, or the release of an
    in-link.
    """
    next_ps = np.int64(NEVER)
    for slot in range(len(free)):
        if first[slot] < end[slot]:
            lands_ps = start[flying[slot, first[slot]]] + arrival[slot]
            next_ps = min(next_ps, lands_ps)
        if free[slot] > now:
            next_ps = min(next_ps, free[slot])
    return next_ps


@part
def _choose_chunk(
    shift: Int64Array,
    slot: int,
    tier: int,
    start: Int64Array,
    waiting: Int64Array,
    num_waiting: Int64Array,
    fastest: Int64Array,
    urgency: Float64Array,
) -> int:
    """Return the chunk with the lowest score in the list of an in-link, -1 if the list has none.

    The list of in-link `slot` is the first `num_waiting[slot]` entries of `waiting[slot]`, in the
    order of arrival at the source. Chunks with a start (`start` is not `NEVER`) are removed first,
    in place: the others keep their order, and `num_waiting[slot]` becomes their number. Their
    score is:

    - `urgency[chunk]`
    - plus 10 if `fastest[chunk]` is below `tier`: an in-link of a faster tier can bring it
    - minus 0.5 for every in-link j for which chunk `shift[j, chunk]` has no start: then a
      neighbour still needs the translated chunk

    Of equal scores the first in the list is returned. The returned chunk stays in the list.
    """
    num_kept, best_chunk, best_score = 0, -1, np.inf
    for place in range(num_waiting[slot]):
        chunk = waiting[slot, place]
        if start[chunk] != NEVER:
            continue
        waiting[slot, num_kept] = chunk
        num_kept += 1
        score = urgency[chunk]
        # A faster in-link can bring it, now or later.
        if fastest[chunk] < tier:
            score += _FASTER_LINK_PENALTY
        for other in range(shift.shape[0]):
            # Other nodes lack the translated chunk, which this node could forward.
            if start[shift[other, chunk]] == NEVER:
                score -= _NEED_BONUS
        if score < best_score:
            best_score, best_chunk = score, chunk
    num_waiting[slot] = num_kept
    return best_chunk


@kernel
def retime_cells(
    shift: Int64Array,
    busy: Int64Array,
    arrival: Int64Array,
    start: Int64Array,
    link: Int64Array,
) -> Int64Array:
    """Return the earliest starts in ps if every in-link keeps its order: int64[chunks].

    `link`: the in-link of every chunk, -1 for chunks that are present at the start, which have
    start 0. Every in-link brings its chunks in the order of the given `start`, of equal ones
    the lower number first. A chunk starts at the later of two times: when the in-link is free
    (`busy` after its previous start), and when the source has the chunk. Chunk `shift[j, x]` of
    in-link j is chunk x of the source, which the source has when chunk x arrives at this node:
    `arrival` after its new start, or 0 if it is present at the start.

    `busy`, `arrival`: ps per in-link. The arguments are not changed.
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
        # The source has the chunk when the corresponding chunk has arrived here.
        other = came_from[chunk]
        available_ps = earliest[other] + arrival[link[other]] if link[other] >= 0 else 0
        earliest[chunk] = max(free[slot], available_ps)
        free[slot] = earliest[chunk] + busy[slot]
    return earliest


Part = tuple[Int64Array, Int64Array]
"""Start in picoseconds and in-link of every chunk: int64[chunks] each."""

_DEFAULT_SEEDS = 20
_MAX_ROUNDS = 30


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
    """Find the fastest all-gather of a symmetric network over `seeds` seeds from `first_seed` on.

    Seeds are tried in ascending order, until a time is at most `goal_ps`. The result has the
    schedule with the smallest time in ps (of equal ones, the lowest seed), its seed, and the number
    of tried seeds. Seed 0 makes no random choices. `after_trial` is called after each seed. If
    Ctrl-C or a limit ends the search, the best result so far is marked as interrupted; without a
    result, the exception is raised again.

    `translations` must map `origin` (source NPU of every chunk) and `times` to themselves, which is
    not checked. Only the chunks of node 0 are computed, all others by translation.

    Raises `InputError` if a link is occupied for less than 1 ps (`link-times`) or a chunk cannot
    reach a node (`disconnected`), and `ValueError` if `seeds` is below 1.
    """
    gather = _SymmetricGather(network, translations, times, origin)
    best = find_best_of_seeds(
        lambda seed, report: gather.part(seed),
        gather.time_ps,
        range(first_seed, first_seed + seeds),
        goal=goal_ps,
        threads=1,
        progress=report_activity(progress, "all-gather"),
        after_trial=after_trial,
    )
    schedule = gather.schedule(best.result)
    return Best(schedule, best.seed, best.tried, best.is_interrupted)


def all_gather(
    network: LinkNetwork,
    translations: Translations,
    times: LinkTimes,
    origin: Int64Array,
    seed: int = 0,
) -> LinkSchedule:
    """Return the schedule of a seed; seed 0 takes the oldest of equal chunks, others any."""
    return find_all_gather(network, translations, times, origin, 1, seed).result


class _SymmetricGather:
    """In-links of one node, sorted from fast to slow, and the chunks that they bring."""

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
        # In-links with equal times are in one tier.
        self._tier = np.searchsorted(self._arrival, self._arrival)
        self._chunks_per_node = len(origin) // network.num_npus
        self._shift = translations.shift_cells(self._chunks_per_node)[self._order]

    def part(self, seed: int) -> Part:
        """Return start and in-link of all chunks at node 0, for a seed.

        If links are free before the arrival, a second variant is computed in which a link waits
        until then; the faster one is returned, of equally fast ones the first. Seed 0 has no random
        choices.
        """
        urgency = np.zeros(len(self._origin))
        if seed:
            urgency = np.random.default_rng(seed).random(len(self._origin))
        # The next message starts when the link is free, or when the last message has arrived.
        without_waiting = self._compute_part(urgency, self._busy)
        if np.array_equal(self._busy, self._arrival):
            return without_waiting
        with_waiting = self._compute_part(urgency, self._arrival)
        return min(without_waiting, with_waiting, key=self.time_ps)

    def _compute_part(self, urgency: Float64Array, hold: Int64Array) -> Part:
        """Return (start in ps, in-link) of all chunks at node 0 for the fastest round.

        Both are int64[chunks]. A round has two steps:

        1. `deliver_cells` assigns the chunks to in-links, with `hold` ps between two starts on an
           in-link. In the first round, chunks may arrive at any time. In a later round, all must
           arrive at least 1 ps before the last arrival that this step had in the previous round.
        2. `retime_cells` computes the earliest starts on the same in-links, where a link is free
           again after its `busy` time.

        The rounds end when a chunk does not arrive in time, and after 30 rounds. The result is the
        round with the earliest last arrival after step 2; ties: the first round. `urgency`:
        float64[chunks], lower is earlier. `hold`: int64, one entry per in-link. Raises
        `InputError` `disconnected` if a chunk does not arrive in the first round.
        """
        shift, arrival = self._shift, self._arrival
        best, latest = None, NEVER
        for _ in range(_MAX_ROUNDS):
            start, link = deliver_cells(
                shift, hold, arrival, self._tier, self._chunks_per_node, urgency, latest
            )
            if np.any(start == NEVER):
                break
            earliest = retime_cells(shift, self._busy, arrival, start, link)
            candidate = (earliest, link)
            if best is None or self.time_ps(candidate) < self.time_ps(best):
                best = candidate
            # The next round must be faster; otherwise it omits a chunk.
            latest = self.time_ps((start, link)) - 1
        if best is None:
            chunk = int(np.argmax(start == NEVER))
            source = self._translations.find_source(chunk // self._chunks_per_node)
            raise unreachable_error(self._network, source, 0)
        return best

    def time_ps(self, part: Part) -> int:
        """Return the time in ps at which the last chunk arrives at node 0; 0 without transfers.

        `part`: (start in ps, in-link) of every chunk. The first `_chunks_per_node` chunks are the
        node's own and do not count.
        """
        start, link = part[0][self._chunks_per_node :], part[1][self._chunks_per_node :]
        finish = start + self._arrival[link]
        return int(np.max(finish, initial=0))

    def schedule(self, part: Part) -> LinkSchedule:
        """Return the transfers of all nodes, ordered by start, then by link; no transfer reduces.

        `part`: start in ps and in-link of every chunk at node 0. Chunks of `part` are numbered by
        the node of their origin relative to node 0, then by index at this node. The first
        `_chunks_per_node` chunks start at node 0 and have no transfer.

        Every other node has the same transfers at the same times, with chunk and link translated to
        it. So there are num_npus * (chunks - `_chunks_per_node`) transfers. A transfer has its
        chunk (index in `origin`), its link in the network, its start, and its finish in ps: start
        plus the arrival time of the link.
        """
        start, slot = part[0][self._chunks_per_node :], part[1][self._chunks_per_node :]
        finish = start + self._arrival[slot]
        npus = self._network.num_npus
        # The chunk of every cell at every node, except for initial cells.
        nodes = np.arange(self._network.num_npus)
        cell = np.arange(self._chunks_per_node, len(self._origin))
        by_node = np.argsort(self._origin, kind="stable").reshape(len(nodes), self._chunks_per_node)
        owner = self._translations.subtract(nodes[:, None], cell // self._chunks_per_node)
        chunk: Int64Array = by_node[owner, cell % self._chunks_per_node].ravel()
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
