"""All-gather and broadcast on any links: causal events in picoseconds, every chunk brought once, the best of many seeds."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.reach import unreachable
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.spreading.seed_search import Best, best_of_seeds
from hub_core.diagnostics import InputError

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_DEFAULT_SEEDS = 20
# Looks at chunks per slice: a tenth of a second, so that Ctrl-C and progress get through.
_SLICE = 1 << 26
_LONGEST_PS = np.iinfo(np.int64).max


def all_gather(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    seed: int = 0,
    progress: Callable[[float], None] = lambda fraction: None,
    needed: BoolArray | None = None,
) -> LinkSchedule:
    """Bring every chunk to all NPUs, each once; chunk x starts at NPU `origin[x]`, which may be the same for many.

    `needed`: bool per NPU, who must get the chunks, default all; others get no more than what they pass on.

    Links take turns in the order in which they deliver. A message carries what its source had when it left and its
    destination lacks when it arrives: of such chunks the one that the in-neighbours of the destination could give least
    fast otherwise, by the rates of their links. Of equal ones seed 0 takes the first that arrived at the source, another
    seed a random one. A link whose message would carry nothing starts it later, as soon as there is something. Where
    links are free before the arrival, a message may also leave later, by at most this difference and once, for the sake of
    a chunk that can be had less fast otherwise; with and without that patience, the faster is returned.
    `progress(fraction)` is called often, and what it raises ends the work. Cost: at most links x chunks^2 looks at a chunk.
    Raises `InputError` for a network with switches or one in which a chunk cannot get everywhere.
    """
    _check(network, times, origin)
    members = np.ones(network.num_npus, np.bool_) if needed is None else needed[: network.num_npus]
    best: LinkSchedule | None = None
    variants = (False, True) if np.any(times.arrival > times.busy) else (False,)
    for number, is_patient in enumerate(variants):
        if best is not None and best.time_ps <= fewest_ps(network, times, origin, needed):
            break
        work = _EventGather(network, times, origin, seed, members, is_patient)
        while work.missing:
            work.slice()
            progress((number + work.fraction) / len(variants))
        made = work.schedule()
        best = made if best is None or made.time_ps < best.time_ps else best
    assert best is not None
    return best if members.all() else _pruned(best, members, len(origin))


def find_all_gather(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    seeds: int = _DEFAULT_SEEDS,
    first_seed: int = 0,
    threads: int = 0,
    progress: Callable[[float, str], None] = lambda fraction, what: None,
    needed: BoolArray | None = None,
) -> Best[LinkSchedule]:
    """The fastest all-gather over `seeds` seeds from `first_seed` on; the first of equally fast ones.

    The search ends at `fewest_ps`. `threads`: seeds tried at once (0: a core each); the result does not depend on it.
    Ctrl-C ends the search; without a result it is raised again. Raises `InputError` like `all_gather`.
    """
    _check(network, times, origin)
    return best_of_seeds(
        lambda seed, report: all_gather(network, times, origin, seed, report, needed),
        lambda schedule: schedule.time_ps,
        range(first_seed, first_seed + max(1, seeds)),
        goal=fewest_ps(network, times, origin, needed),
        threads=threads or os.cpu_count() or 1,
        progress=lambda fraction: progress(fraction, "all-gather"),
    )


def fewest_ps(
    network: LinkNetwork, times: LinkTimes, origin: Int64Array, needed: BoolArray | None = None
) -> int:
    """No all-gather is faster: the least time in which the in-links of every NPU can deliver what it lacks, each alone.

    Exact in whole messages, by bisection; int64 picoseconds. `needed` as in `all_gather`.
    """
    has_links = np.diff(network.indptr)[: network.num_npus] > 0
    nodes = np.flatnonzero(has_links if needed is None else has_links & needed[: network.num_npus])
    if not len(nodes):
        return 0
    lacking = len(origin) - np.bincount(origin, minlength=network.num_npus)[nodes]
    degree = np.diff(network.indptr)[nodes]
    first, owner = np.cumsum(degree) - degree, np.repeat(np.arange(len(nodes)), degree)
    links = np.arange(len(owner)) + np.repeat(network.indptr[nodes] - first, degree)
    busy, arrival = np.maximum(times.busy[links], 1), np.maximum(times.arrival[links], 1)
    low = np.zeros(len(nodes), np.int64)
    high = np.maximum.reduceat(arrival + busy * len(origin), first)
    while np.any(low < high):
        middle = (low + high) // 2
        delivered = np.maximum((middle[owner] - arrival) // busy + 1, 0)
        is_enough = np.add.reduceat(delivered, first) >= lacking
        low, high = np.where(is_enough, low, middle + 1), np.where(is_enough, middle, high)
    return int(low.max())


class _EventGather:
    """An all-gather under way: the arrays of the kernel and how far it is."""

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
        from collhub_tacos.spreading.heterogeneous_kernel import DeliveryLinks, DeliveryState

        shape, num_links = (network.num_npus, len(origin)), network.num_links
        self._network, self._origin, self._needed = network, origin, needed
        self.missing = self._total = len(origin) * int(needed.sum()) - int(needed[origin].sum())
        self._waiting = 0
        busy, arrival = np.maximum(times.busy, 1), np.maximum(times.arrival, 1)
        rate = (busy.min(initial=_LONGEST_PS) / busy).astype(np.float32)
        supply, turn = _variant(seed, shape, num_links, float(rate.min(initial=1.0)))
        patience = arrival - busy if is_patient else np.zeros(num_links, np.int64)
        out_links = np.argsort(network.source, kind="stable")
        out_indptr = np.searchsorted(network.source[out_links], np.arange(network.num_npus + 1))
        self._links = DeliveryLinks(
            network.source,
            network.destination,
            busy,
            arrival,
            rate,
            turn,
            patience,
            out_indptr,
            out_links,
        )
        start, finish, first, known, heap = np.zeros((5, num_links), np.int64)
        self._state = DeliveryState(
            supply,
            np.zeros(shape, np.int32),
            np.full(shape, -1, np.int32),
            np.zeros(shape, np.int64),
            np.zeros(network.num_npus, np.int64),
            start,
            finish,
            first,
            known,
            np.ones(num_links, np.bool_),
            np.zeros(num_links, np.bool_),
            heap,
        )

    @property
    def fraction(self) -> float:
        """Delivered chunks by those to deliver."""
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
            held = np.isinf(self._state.supply) | ~self._needed[:, None]
            chunk = int(np.argmin(held.all(axis=0)))
            raise unreachable(
                self._network, int(self._origin[chunk]), int(np.argmin(held[:, chunk]))
            )

    def schedule(self) -> LinkSchedule:
        """All transfers, by destination and arrival there."""
        is_transfer = self._state.via >= 0
        link = self._state.via[is_transfer].astype(np.int64)
        finish = self._state.when[is_transfer]
        chunk = self._state.log[is_transfer].astype(np.int64)
        return LinkSchedule(
            self._network,
            chunk,
            link,
            finish - self._links.arrival[link],
            finish,
            np.zeros(len(link), np.bool_),
        )


def _pruned(schedule: LinkSchedule, needed: BoolArray, num_chunks: int) -> LinkSchedule:
    """Without what neither its destination needs nor anyone gets from there."""
    network = schedule.network
    source, destination = network.source[schedule.link], network.destination[schedule.link]
    brought_by = np.full((network.num_npus, num_chunks), -1, np.int64)
    brought_by[destination, schedule.chunk] = np.arange(len(schedule))
    before = brought_by[source, schedule.chunk]
    is_kept = needed[destination]
    behind = np.flatnonzero(is_kept)
    while len(behind):
        behind = np.unique(before[behind])
        behind = behind[(behind >= 0) & ~is_kept[behind]]
        is_kept[behind] = True
    chunk, link = schedule.chunk[is_kept], schedule.link[is_kept]
    return LinkSchedule(
        network,
        chunk,
        link,
        schedule.start[is_kept],
        schedule.finish[is_kept],
        schedule.reduces[is_kept],
    )


def _variant(
    seed: int, shape: tuple[int, int], num_links: int, least_rate: float
) -> tuple[npt.NDArray[np.float32], Int64Array]:
    """What a seed decides: a small part of the supply, by which equal chunks differ, and the order of links that tie."""
    if seed == 0:
        return np.zeros(shape, np.float32), np.arange(num_links)
    turn = np.argsort(_random(seed, num_links, 0), kind="stable")
    part = _random(seed, shape[0] * shape[1], num_links) * (least_rate / 2)
    return part.reshape(shape).astype(np.float32), turn


def _random(seed: int, count: int, offset: int) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) by the generator splitmix64: entries from `offset` on of the sequence of a seed."""
    state = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(offset)) * np.uint64(
        0x9E3779B97F4A7C15
    )
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
