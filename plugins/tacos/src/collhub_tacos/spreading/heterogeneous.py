"""All-gather and broadcast on any links: causal events in picoseconds, the best of many seeds."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.lower_bounds import LinkGroups
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.search.seeds import (
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
from collhub_tacos.symmetry import unreachable_error
from hub_core.columns import BoolArray, Int64Array, expanded_ranges, row_pointer
from hub_core.model import InputError

_DEFAULT_SEEDS = 20
# Examined chunks per call: a tenth of a second, so that Ctrl-C and progress reports are prompt.
_CHUNKS_PER_CALL = 1 << 26
_LONGEST_PS = np.iinfo(np.int64).max


def all_gather(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    seed: int = 0,
    progress: FractionReport = ignore_fraction,
    needed: BoolArray | None = None,
) -> LinkSchedule:
    """Return a schedule that brings every chunk x from NPU `origin[x]` to all NPUs, each once.

    Transfers are sorted by destination, then arrival; times are in ps. `needed`: bool[NPUs], None
    for all; other NPUs receive only chunks that they forward. `progress` gets the fraction done.

    Links act in the order of deliveries. A link delivers the rarest chunk that its source has at
    the start and its destination lacks at the arrival: the one with the lowest total rate of links
    to the destination from holders of it. On a tie, seed 0 takes the first that arrived at the
    source, other seeds a random one. Without such a chunk, the link waits for the next one.

    If `arrival` exceeds `busy` for some link and the time exceeds `bound_ingress_ps`, a second
    variant is built. A message may then wait once for a rarer chunk, by at most `arrival` - `busy`.
    The faster is returned, on a tie the first. Raises `InputError` for switches, wrong link times
    or origins (`_check`), and for a chunk that cannot reach an NPU (`disconnected`).
    """
    _check(network, times, origin)
    members = _select_members(network, needed)
    best: LinkSchedule | None = None
    variants = (False, True) if np.any(times.arrival > times.busy) else (False,)
    for number, is_patient in enumerate(variants):
        if best is not None and best.time_ps <= bound_ingress_ps(network, times, origin, needed):
            break
        gather = _EventGather(network, times, origin, seed, members, is_patient)
        while gather.missing:
            gather.slice()
            progress((number + gather.fraction) / len(variants))
        schedule = gather.schedule()
        if best is None or schedule.time_ps < best.time_ps:
            best = schedule
    assert best is not None
    return best if members.all() else _prune(best, members, len(origin))


def _select_members(network: LinkNetwork, needed: BoolArray | None) -> BoolArray:
    """Return the NPUs that must receive the chunks: bool[NPUs].

    `needed`: bool, one entry per node, NPUs first; entries of switches are dropped. None means all
    NPUs.
    """
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
    """Find the fastest all-gather over the seeds `first_seed` to `first_seed + seeds - 1`.

    Each seed gives one schedule of `all_gather`, with `origin[x]` the NPU at which chunk x starts.
    The schedule with the smallest `time_ps` is returned, of equal ones that of the first seed. At
    least one seed is tried, also if `seeds` is 0. The search ends early with the first seed whose
    time is at most `bound_ingress_ps`.

    `needed`: bool[NPUs], the NPUs that need all chunks, None for all. `threads`: seeds tried in
    parallel (0: one per core), which does not change the result. `progress` is called with the
    fraction of all seeds and the text `all-gather`. `after_trial` is called once per finished seed
    in their order, up to the one that ends the search.

    Ctrl-C, or a `KeyboardInterrupt` raised by `progress` or `after_trial` (such as
    `BudgetReached`), ends the search: the best result so far is returned with `is_interrupted`. If
    no seed has finished, it is raised again. Other exceptions of the two functions are raised.

    Raises `InputError` with these codes:

    - `switches`: the network has switches
    - `link-times`: a busy time is negative or longer than `arrival`
    - `origin-range`: an origin is no NPU
    - `disconnected`: a chunk cannot reach an NPU that needs it
    """
    _check(network, times, origin)
    return find_best_of_seeds(
        lambda seed, report: all_gather(network, times, origin, seed, report, needed),
        lambda schedule: schedule.time_ps,
        range(first_seed, first_seed + max(1, seeds)),
        goal=bound_ingress_ps(network, times, origin, needed),
        threads=threads or os.cpu_count() or 1,
        progress=report_activity(progress, "all-gather"),
        after_trial=after_trial,
    )


def bound_ingress_ps(
    network: LinkNetwork, times: LinkTimes, origin: Int64Array, needed: BoolArray | None = None
) -> int:
    """Return a lower bound in ps: the time in which its incoming links can fill the slowest NPU.

    The missing chunks of an NPU are all chunks that do not start there (`origin[x]`: NPU at which
    chunk x starts). Every incoming link delivers one chunk after `arrival` ps and another one after
    every further `busy` ps (each at least 1); chunks are not divided. The time of an NPU is the
    first at which all its links together have delivered the number of its missing chunks.

    The result is the maximum over the NPUs that need the chunks (`needed`: bool[NPUs], None for
    all) and that have incoming links. It is 0 if there are none, or if no chunk is missing.
    """
    nodes = np.flatnonzero(_select_members(network, needed))
    chunks_at_node = np.bincount(origin, minlength=network.num_npus)[nodes]
    degree = network.in_degree[nodes]
    links = expanded_ranges(network.indptr[nodes], degree)
    groups = LinkGroups(links, row_pointer(degree), len(origin) - chunks_at_node)
    return groups.time_ps(LinkTimes(*_clamp_times(times)))


def _clamp_times(times: LinkTimes) -> tuple[Int64Array, Int64Array]:
    """Return `busy` and `arrival`, at least 1 ps, so that the events of a chunk are ordered."""
    return np.maximum(times.busy, 1), np.maximum(times.arrival, 1)


class _EventGather:
    """All-gather in progress: the arrays of the kernel and the progress."""

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
        busy, arrival = _clamp_times(times)
        # Relative to the fastest link: at most 1 in any unit.
        rate = (busy.min(initial=_LONGEST_PS) / busy).astype(np.float32)
        supply, tie_rank = _draw_variant(seed, shape, num_links, float(rate.min(initial=1.0)))
        out_indptr, out_links = network.out_links()
        self._links = DeliveryLinks(
            source=network.source,
            destination=network.destination,
            busy=busy,
            arrival=arrival,
            rate=rate,
            tie_rank=tie_rank,
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
        """Delivered chunks divided by the chunks to deliver."""
        # 1 if there are no chunks to deliver.
        return 1.0 - self.missing / max(1, self._total)

    def slice(self) -> None:
        """Continue the all-gather for about a tenth of a second, and update `missing`.

        `missing` is the number of pairs (chunk, NPU that needs it) that are not delivered yet;
        0 means that the all-gather is complete. Raises `InputError` (`disconnected`) if it is
        not 0 and no link can deliver another chunk. The error names the origin of the first
        chunk that is missing somewhere, and the first NPU that needs it and lacks it.
        """
        from collhub_tacos.spreading.heterogeneous_kernel import advance

        self._waiting, self.missing = advance(
            self._links,
            self._state,
            self._origin,
            self._needed,
            self._waiting,
            self.missing,
            _CHUNKS_PER_CALL,
        )
        if self.missing and not self._waiting:
            # An infinite supply marks a chunk that is present.
            is_held = np.isinf(self._state.supply) | ~self._needed[:, None]
            chunk = int(np.argmin(is_held.all(axis=0)))
            npu = int(np.argmin(is_held[:, chunk]))
            raise unreachable_error(self._network, int(self._origin[chunk]), npu)

    def schedule(self) -> LinkSchedule:
        """Return all transfers so far, sorted by destination, then by arrival.

        Transfers that arrive at one destination at the same time are in the order in which they
        were processed. Chunks at their origin have no transfer. A transfer finishes at its arrival,
        and starts earlier by the `arrival` time of its link (ps, at least 1). No transfer reduces.
        """
        state = self._state
        # Initial chunks have no link.
        is_transfer = state.via >= 0
        link = state.via[is_transfer].astype(np.int64)
        chunk = state.log[is_transfer].astype(np.int64)
        finish = state.when[is_transfer]
        start = finish - self._links.arrival[link]
        return LinkSchedule.without_reduction(self._network, chunk, link, start, finish)


def _prune(schedule: LinkSchedule, needed: BoolArray, num_chunks: int) -> LinkSchedule:
    """Return the schedule without transfers that bring a chunk to a node that does not use it.

    A transfer is kept if its destination is `needed` (bool[NPUs]), or if a kept transfer takes the
    same chunk from its destination. So a chain of transfers that ends at a node that is not needed
    is removed completely. A node receives a chunk at most once. `num_chunks`: more than the highest
    chunk number. The remaining transfers keep their order and times. `schedule` is not changed.
    """
    brought_by = np.full((schedule.network.num_npus, num_chunks), -1, np.int64)
    brought_by[schedule.destination, schedule.chunk] = np.arange(len(schedule))
    preceding = brought_by[schedule.source, schedule.chunk]
    is_kept = needed[schedule.destination]
    # A kept transfer needs the transfer that brought its chunk to its source, back to the origin.
    pending = np.flatnonzero(is_kept)
    while len(pending):
        preceding_kept = np.unique(preceding[pending])
        pending = preceding_kept[(preceding_kept >= 0) & ~is_kept[preceding_kept]]
        is_kept[pending] = True
    return schedule.select_rows(is_kept)


def _draw_variant(
    seed: int, shape: tuple[int, int], num_links: int, min_rate: float
) -> tuple[npt.NDArray[np.float32], Int64Array]:
    """Return the random choices of a seed: (supply to add, tie rank of each link).

    The supply is float32[NPUs, chunks] (`shape`), random from 0 to half of `min_rate`, so
    that it only decides between equal rates. The tie rank is int64[links], a permutation:
    of links with simultaneous deliveries, the one with the smaller rank is first. Seed 0
    gives supplies of 0, and each link its own number as rank.
    """
    if seed == 0:
        return np.zeros(shape, np.float32), np.arange(num_links)
    tie_rank = np.argsort(_draw_random(seed, num_links, 0), kind="stable")
    supply = _draw_random(seed, shape[0] * shape[1], num_links) * (min_rate / 2)
    return supply.reshape(shape).astype(np.float32), tie_rank


def _draw_random(seed: int, count: int, offset: int) -> npt.NDArray[np.float64]:
    """Return the random numbers `offset` to `offset + count - 1` of the sequence of a seed.

    The result is float64[count]: multiples of 2^-53 in [0, 1). Equal arguments give equal numbers
    in all versions of numpy. Two calls with adjacent ranges give the same numbers as one call. The
    generator is splitmix64 (Steele, Lea and Flood, OOPSLA 2014). Any integer is a seed; `offset` is
    at least 0.
    """
    index = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(offset)
    state = index * np.uint64(0x9E3779B97F4A7C15)
    mixed = state + np.uint64(seed * 0xD1342543DE82EF95 % (1 << 64))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _check(network: LinkNetwork, times: LinkTimes, origin: Int64Array) -> None:
    """Raise `InputError` for switches, wrong link times, or wrong origins, in this order.

    The codes are `switches`; `link-times` for negative busy times, and for links that are busy
    longer than until the arrival; `origin-range` for an origin that is not an NPU.
    """
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
