"""All-gather on networks that look alike from every node, links of any times.

One node's part is made, and moved to all the others.
"""

from __future__ import annotations

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.reach import unreachable
from collhub_tacos.networks.translation import Translations
from collhub_tacos.progress import AfterTrial, Progress, named, silent, uncounted
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.spreading.seed_search import Best, best_of_seeds
from hub_core.columns import Float64Array, Int64Array
from hub_core.model import InputError

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
    progress: Progress = silent,
    after_trial: AfterTrial = uncounted,
) -> Best[LinkSchedule]:
    """Fastest all-gather over `seeds` seeds; a time of at most `goal_ps` ends the search.

    Seeds count from `first_seed` on. `translations` must be those for `origin` and `times`. Cost: a
    seed looks at the chunks of one node, not of all. Raises `InputError` where the network is not
    connected.
    """
    gather = _SymmetricGather(network, translations, times, origin)
    found = best_of_seeds(
        lambda seed, report: gather.part(seed),
        gather.time_ps,
        range(first_seed, first_seed + seeds),
        goal=goal_ps,
        threads=1,
        progress=named(progress, "all-gather"),
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
        self._shift = translations.cell_shift(self._own)[self._order]

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
        # Importing numba takes a second.
        from collhub_tacos.spreading.symmetric_kernel import NEVER, deliver_cells, retime_cells

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
        source = self._translations.source_of(chunk // self._own)
        return unreachable(self._network, source, 0)

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
        return LinkSchedule.spreading(
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
        owner = self._translations.minus(nodes[:, None], cell // self._own)
        chunk: Int64Array = by_node[owner, cell % self._own].ravel()
        return chunk
