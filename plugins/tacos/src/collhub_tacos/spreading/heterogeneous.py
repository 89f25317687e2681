"""All-gather and broadcast on any links: causal events in picoseconds, the best of many seeds."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.distances import unreachable_error
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.seed_search import (
    AfterTrial,
    Best,
    FractionReport,
    Progress,
    find_best_of_seeds,
    ignore_fraction,
    ignore_progress,
    ignore_trial,
    report_activity,
)
from hub_core.columns import BoolArray, Int64Array, expanded_ranges, group_of_entry, row_pointer
from hub_core.model import InputError

_DEFAULT_SEEDS = 20
# Looks at chunks per slice: a tenth of a second, so that Ctrl-C and progress get through.
_SLICE = 1 << 26
_LONGEST_PS = np.iinfo(np.int64).max


def all_gather(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    seed: int = 0,
    progress: FractionReport = ignore_fraction,
    needed: BoolArray | None = None,
) -> LinkSchedule:
    """Bring every chunk to all NPUs, each once; chunk x starts at NPU `origin[x]`.

    Several chunks may start at one NPU. `needed`: bool per NPU, who must get the chunks, default
    all; others get no more than what they pass on.

    Links take turns in the order in which they deliver. A message carries what its source had when
    it left and its destination lacks when it arrives: of such chunks the one that the in-neighbours
    of the destination could give least fast otherwise, by the rates of their links. Of equal ones
    seed 0 takes the first that arrived at the source, another seed a random one. A link whose
    message would carry nothing starts it later, as soon as there is something. Where links are free
    before the arrival, a message may also leave later, by at most this difference and once, for the
    sake of a chunk that can be had less fast otherwise; with and without that patience, the faster
    is returned.

    `progress(fraction)` is called often, and what it raises ends the work. Cost: at most
    links x chunks^2 looks at a chunk. Raises `InputError` for a network with switches or one in
    which a chunk cannot get everywhere.
    """
    _check(network, times, origin)
    members = _members(network, needed)
    best: LinkSchedule | None = None
    variants = (False, True) if np.any(times.arrival > times.busy) else (False,)
    for number, is_patient in enumerate(variants):
        if best is not None and best.time_ps <= fewest_ps(network, times, origin, needed):
            break
        gather = _EventGather(network, times, origin, seed, members, is_patient)
        while gather.missing:
            gather.slice()
            progress((number + gather.fraction) / len(variants))
        made = gather.schedule()
        if best is None or made.time_ps < best.time_ps:
            best = made
    assert best is not None
    return best if members.all() else _pruned(best, members, len(origin))


def _members(network: LinkNetwork, needed: BoolArray | None) -> BoolArray:
    """Which NPUs must get the chunks, all where `needed` is None: bool[NPUs]."""
    if needed is None:
        return np.ones(network.num_npus, np.bool_)
    return needed[: network.num_npus]


def find_all_gather(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    seeds: int = _DEFAULT_SEEDS,
    first_seed: int = 0,
    threads: int = 0,
    progress: Progress = ignore_progress,
    needed: BoolArray | None = None,
    after_trial: AfterTrial = ignore_trial,
) -> Best[LinkSchedule]:
    """Fastest all-gather over `seeds` seeds from `first_seed` on; the first of equally fast ones.

    The search ends at `fewest_ps`. `threads`: seeds tried at once (0: a core each), which does not
    change the result. Ctrl-C ends the search, without a result it is raised again. Raises
    `InputError` like `all_gather`.
    """
    _check(network, times, origin)
    return find_best_of_seeds(
        lambda seed, report: all_gather(network, times, origin, seed, report, needed),
        lambda schedule: schedule.time_ps,
        range(first_seed, first_seed + max(1, seeds)),
        goal=fewest_ps(network, times, origin, needed),
        threads=threads or os.cpu_count() or 1,
        progress=report_activity(progress, "all-gather"),
        after_trial=after_trial,
    )


def fewest_ps(
    network: LinkNetwork, times: LinkTimes, origin: Int64Array, needed: BoolArray | None = None
) -> int:
    """No all-gather is faster: the least time in which in-links can deliver what NPUs lack.

    Those of every NPU alone, in whole messages, by bisection; picoseconds. `needed` as in
    `all_gather`.
    """
    degree = network.in_degree[: network.num_npus]
    nodes = np.flatnonzero((degree > 0) & _members(network, needed))
    if not len(nodes):
        return 0
    own = np.bincount(origin, minlength=network.num_npus)[nodes]
    links = expanded_ranges(network.indptr[nodes], degree[nodes])
    busy, arrival = _at_least_a_picosecond(times)
    finish = _least_times(
        busy[links], arrival[links], row_pointer(degree[nodes]), len(origin) - own
    )
    return int(finish.max())


def _least_times(
    busy: Int64Array, arrival: Int64Array, indptr: Int64Array, lacking: Int64Array
) -> Int64Array:
    """Least time by which each group of links can deliver what it must: int64[groups].

    Group i is the links `indptr[i]:indptr[i + 1]`, none of them empty.
    """
    first = indptr[:-1]
    group = group_of_entry(indptr)
    low = np.zeros(len(first), np.int64)
    # All by one link, the first message late.
    high = np.maximum.reduceat(arrival + busy * (lacking.max(initial=0) + 1), first)
    while np.any(low < high):
        middle = (low + high) // 2
        delivered = np.maximum((middle[group] - arrival) // busy + 1, 0)
        is_enough = np.add.reduceat(delivered, first) >= lacking
        low = np.where(is_enough, low, middle + 1)
        high = np.where(is_enough, middle, high)
    return low


def _at_least_a_picosecond(times: LinkTimes) -> tuple[Int64Array, Int64Array]:
    """`busy` and `arrival` of links, which all take some time: events then follow one another."""
    return np.maximum(times.busy, 1), np.maximum(times.arrival, 1)


class _EventGather:
    """All-gather under way: the arrays of the kernel and how far it is."""

    def __init__(
        self,
        network: LinkNetwork,
        times: LinkTimes,
        origin: Int64Array,
        seed: int,
        needed: BoolArray,
        is_patient: bool,
    ) -> None:
        # Importing numba takes a second.
        from collhub_tacos.spreading.heterogeneous_kernel import (
            DeliveryLinks,
            DeliveryState,
        )

        shape, num_links = (network.num_npus, len(origin)), network.num_links
        self._network, self._origin, self._needed = network, origin, needed
        self.missing = len(origin) * int(needed.sum()) - int(needed[origin].sum())
        self._total, self._waiting = self.missing, 0
        busy, arrival = _at_least_a_picosecond(times)
        # Relative to the fastest link: at most 1, whatever the unit.
        rate = (busy.min(initial=_LONGEST_PS) / busy).astype(np.float32)
        supply, turn = _variant(seed, shape, num_links, float(rate.min(initial=1.0)))
        out_indptr, out_links = network.out_links()
        self._links = DeliveryLinks(
            source=network.source,
            destination=network.destination,
            busy=busy,
            arrival=arrival,
            rate=rate,
            turn=turn,
            patience=arrival - busy if is_patient else np.zeros(num_links, np.int64),
            out_indptr=out_indptr,
            out_links=out_links,
        )
        start, finish, first, known, heap = np.zeros((5, num_links), np.int64)
        self._state = DeliveryState(
            supply=supply,
            log=np.zeros(shape, np.int32),
            via=np.full(shape, -1, np.int32),
            when=np.zeros(shape, np.int64),
            filled=np.zeros(network.num_npus, np.int64),
            start=start,
            finish=finish,
            first=first,
            known=known,
            is_idle=np.ones(num_links, np.bool_),
            has_waited=np.zeros(num_links, np.bool_),
            heap=heap,
        )

    @property
    def fraction(self) -> float:
        """Delivered chunks by those to deliver."""
        # Where nothing is to be delivered, all of it is.
        return 1.0 - self.missing / max(1, self._total)

    def slice(self) -> None:
        """Go on for some time. Raises `InputError` where a chunk cannot get further."""
        from collhub_tacos.spreading.heterogeneous_kernel import advance

        self._waiting, self.missing = advance(
            self._links,
            self._state,
            self._origin,
            self._needed,
            self._waiting,
            self.missing,
            _SLICE,
        )
        if self.missing and not self._waiting:
            raise self._unreachable()

    def _unreachable(self) -> InputError:
        """Error that names a chunk and an NPU that it does not get to."""
        # Infinite supply says that a chunk is there.
        is_held = np.isinf(self._state.supply) | ~self._needed[:, None]
        chunk = int(np.argmin(is_held.all(axis=0)))
        npu = int(np.argmin(is_held[:, chunk]))
        return unreachable_error(self._network, int(self._origin[chunk]), npu)

    def schedule(self) -> LinkSchedule:
        """All transfers, by destination and arrival there."""
        state = self._state
        # A node's own chunks came over no link.
        is_transfer = state.via >= 0
        link = state.via[is_transfer].astype(np.int64)
        chunk = state.log[is_transfer].astype(np.int64)
        finish = state.when[is_transfer]
        start = finish - self._links.arrival[link]
        return LinkSchedule.without_reduction(self._network, chunk, link, start, finish)


def _pruned(schedule: LinkSchedule, needed: BoolArray, num_chunks: int) -> LinkSchedule:
    """Without what neither its destination needs nor anyone gets from there."""
    brought_by = np.full((schedule.network.num_npus, num_chunks), -1, np.int64)
    brought_by[schedule.destination, schedule.chunk] = np.arange(len(schedule))
    before = brought_by[schedule.source, schedule.chunk]
    is_kept = needed[schedule.destination]
    # What is kept needs what brought its chunk to its source, and so on back to the origin.
    kept = np.flatnonzero(is_kept)
    while len(kept):
        causes = np.unique(before[kept])
        kept = causes[(causes >= 0) & ~is_kept[causes]]
        is_kept[kept] = True
    return schedule.select_rows(is_kept)


def _variant(
    seed: int, shape: tuple[int, int], num_links: int, least_rate: float
) -> tuple[npt.NDArray[np.float32], Int64Array]:
    """What a seed decides: a part of the supply, by which equal chunks differ, and ties of links.

    float32 of `shape`, less than half of what any link adds; int64[links].
    """
    if seed == 0:
        return np.zeros(shape, np.float32), np.arange(num_links)
    turn = np.argsort(_random(seed, num_links, 0), kind="stable")
    supply = _random(seed, shape[0] * shape[1], num_links) * (least_rate / 2)
    return supply.reshape(shape).astype(np.float32), turn


def _random(seed: int, count: int, offset: int) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1): entries from `offset` on of the sequence of a seed.

    By the generator splitmix64 (Steele, Lea and Flood, OOPSLA 2014): the same on every numpy.
    """
    place = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(offset)
    state = place * np.uint64(0x9E3779B97F4A7C15)
    mixed = state + np.uint64(seed * 0xD1342543DE82EF95 % (1 << 64))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _check(network: LinkNetwork, times: LinkTimes, origin: Int64Array) -> None:
    name = network.topology.name
    if network.num_nodes > network.num_npus:
        raise InputError(
            f"topology {name}: events on links need a network without switches", code="switches"
        )
    if np.any(times.busy < 0) or np.any(times.arrival < times.busy):
        raise InputError(
            f"topology {name}: a link is busy for longer than until the arrival", code="link-times"
        )
    if np.any((origin < 0) | (origin >= network.num_npus)):
        raise InputError(
            f"topology {name}: a chunk starts outside NPUs 0..{network.num_npus - 1}",
            code="origin-range",
        )
