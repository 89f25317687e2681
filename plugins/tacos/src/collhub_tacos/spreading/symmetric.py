"""All-gather on networks that look alike from every node, links of any times: one node's part, moved to all the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.reach import unreachable
from collhub_tacos.networks.translation import Translations
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.spreading.seed_search import Best, best_of_seeds
from hub_core.diagnostics import InputError

Int64Array = npt.NDArray[np.int64]
Part = tuple[Int64Array, Int64Array]

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
    progress: Callable[[float, str], None] = lambda fraction, what: None,
) -> Best[LinkSchedule]:
    """The fastest over `seeds` seeds from `first_seed` on; a time of at most `goal_ps` ends the search.

    `translations` must be those for `origin` and `times`. Cost: a seed looks at the chunks of one node, not of all.
    Raises `InputError` where the network is not connected.
    """
    work = _SymmetricGather(network, translations, times, origin)
    found = best_of_seeds(
        lambda seed, report: work.part(seed),
        work.time_ps,
        range(first_seed, first_seed + seeds),
        goal=goal_ps,
        threads=1,
        progress=lambda fraction: progress(fraction, "all-gather"),
    )
    return Best(work.schedule(found.result), found.seed, found.tried, found.is_interrupted)


def all_gather(
    network: LinkNetwork,
    translations: Translations,
    times: LinkTimes,
    origin: Int64Array,
    seed: int = 0,
) -> LinkSchedule:
    """The schedule of one seed; seed 0 takes the oldest of equally good chunks, others a random one."""
    return find_all_gather(network, translations, times, origin, 1, seed).result


class _SymmetricGather:
    """In-links of one node from the fastest to the slowest, and the chunks that they bring."""

    def __init__(
        self, network: LinkNetwork, translations: Translations, times: LinkTimes, origin: Int64Array
    ) -> None:
        self._network, self._translations, self._origin = network, translations, origin
        busy, arrival = (column[translations.in_link[0]] for column in (times.busy, times.arrival))
        if int(busy.min()) < 1:
            raise InputError(
                "a link takes no time",
                cure="choose a larger size, or fewer chunks",
                code="link-times",
            )
        self._order = np.lexsort((busy, arrival))
        self._busy, self._arrival = busy[self._order], arrival[self._order]
        self._own = len(origin) // network.num_npus
        self._shift = translations.cell_shift(self._own)[self._order]

    def part(self, seed: int) -> Part:
        """Start and in-link of all chunks.

        A link that is free before its message arrives may do better to wait for what comes then, so both are tried.
        """
        urgency = (
            np.random.default_rng(seed).random(len(self._origin))
            if seed
            else np.zeros(len(self._origin))
        )
        holds = (
            [self._busy]
            if np.array_equal(self._busy, self._arrival)
            else [self._busy, self._arrival]
        )
        return min((self._part(urgency, hold) for hold in holds), key=self.time_ps)

    def _part(self, urgency: npt.NDArray[np.float64], hold: Int64Array) -> Part:
        """What slow links would bring last is left to faster ones, until that helps no more."""
        # Importing numba takes a second.
        from collhub_tacos.spreading.symmetric_kernel import NEVER, deliver_cells, retime_cells

        tier = np.searchsorted(self._arrival, self._arrival)
        best, latest = None, NEVER
        for _ in range(_MOST_ROUNDS):
            start, link = deliver_cells(
                self._shift, hold, self._arrival, tier, self._own, urgency, latest
            )
            if np.any(start == NEVER):
                break
            found = (retime_cells(self._shift, self._busy, self._arrival, start, link), link)
            if best is None or self.time_ps(found) < self.time_ps(best):
                best = found
            latest = self.time_ps((start, link)) - 1
        if best is None:
            offset = int(np.argmax(start == NEVER)) // self._own
            raise unreachable(self._network, self._translations.source_of(offset), 0)
        return best

    def time_ps(self, part: Part) -> int:
        """When the last chunk arrives."""
        start, link = part
        return int(np.max(start[self._own :] + self._arrival[link[self._own :]], initial=0))

    def schedule(self, part: Part) -> LinkSchedule:
        """What every node does, in order of start, then of links."""
        start, slot = (column[self._own :] for column in part)
        cell = np.arange(self._own, len(self._origin))
        nodes = np.arange(self._network.num_npus)[:, None]
        chunk_of = np.argsort(self._origin, kind="stable").reshape(len(nodes), self._own)
        chunk = chunk_of[
            self._translations.minus(nodes, cell // self._own), cell % self._own
        ].ravel()
        link = self._translations.in_link[:, self._order[slot]].ravel()
        begin, end = (
            np.tile(column, len(nodes)) for column in (start, start + self._arrival[slot])
        )
        order = np.lexsort((link, begin))
        reduces = np.zeros(len(order), np.bool_)
        return LinkSchedule(
            self._network, chunk[order], link[order], begin[order], end[order], reduces
        )
