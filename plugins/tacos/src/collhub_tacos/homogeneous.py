"""All-gather where all links are alike: lockstep matching on arrival logs, several seeds, the best kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_tacos.arrival_log import ArrivalLog, identifier_type
from collhub_tacos.network import Network
from collhub_tacos.translation import Translations, symmetric_all_gather
from hub_core.diagnostics import InputError

__all__ = ["Found", "all_gather", "best_all_gather", "fewest_steps", "memory_bytes"]

Int64Array = npt.NDArray[np.int64]

_MOST_SEEDS = 20
_PAIRS_FOR_SEEDS = 5_000_000
# Cursor moves of a slice: below a second on any machine, so that Ctrl-C and progress get through.
_SLICE = 1 << 24
_PERIOD_S = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The best all-gather, its seed, whether it is one node's part moved to all, and whether Ctrl-C cut the search."""

    log: ArrivalLog
    seed: int
    is_symmetric: bool
    is_interrupted: bool = False


def fewest_steps(network: Network, origin: Int64Array) -> int:
    """No all-gather takes fewer steps: what a node lacks, by its number of in-links."""
    missing = len(origin) - np.bincount(origin, minlength=network.num_npus)[: network.num_npus]
    in_links = np.maximum(np.diff(network.indptr)[: network.num_npus], 1)
    return int(np.max(-(-missing // in_links), initial=0))


def memory_bytes(network: Network, num_chunks: int, seeds: int = 1, threads: int = 1) -> int:
    """What `best_all_gather` takes at its peak: logs, bit sets and used links of all logs that exist at once."""
    steps = -(-num_chunks // max(1, int(np.diff(network.indptr).min(initial=1))))
    a_node = num_chunks * np.dtype(identifier_type(num_chunks)).itemsize + 8 * -(-num_chunks // 64) + 40
    one = network.num_npus * a_node + steps * -(-network.num_links // 8) + 8 * network.num_links
    return one * (1 if seeds == 1 else 1 + threads)


def all_gather(
    network: Network,
    step_ps: int,
    origin: Int64Array,
    seed: int = 0,
    *,
    arrival_ps: int | None = None,
    progress: Callable[[float], None] = lambda fraction: None,
) -> ArrivalLog:
    """Bring every chunk to all NPUs; chunk x starts at NPU `origin[x]`. Links are busy `step_ps` with each chunk.

    `arrival_ps`: from the start to the arrival, default `step_ps`; a chunk goes on in the next step after it. Seed 0
    asks in-links in order, other seeds from a random one on. `progress(fraction)` is called about once a second, and
    what it raises ends the work. Raises `InputError` for a network with switches or one that is not strongly connected.
    """
    arrival = step_ps if arrival_ps is None else arrival_ps
    _check(network, step_ps, arrival)
    own = np.bincount(origin, minlength=network.num_npus).astype(np.int64)
    work = _Work(network, origin, own, -(-arrival // step_ps))
    while work.num_open:
        work.slice(seed)
        progress(work.fraction)
    return ArrivalLog(network, step_ps, arrival, work.log, own, work.carried[: work.step])


def best_all_gather(
    network: Network,
    step_ps: int,
    origin: Int64Array,
    *,
    arrival_ps: int | None = None,
    seeds: int = 0,
    first_seed: int = 0,
    threads: int = 0,
    progress: Callable[[float, str], None] = lambda fraction, what: None,
) -> Found:
    """The all-gather of fewest steps over `seeds` seeds from `first_seed` on (0: by size, up to 20).

    Where the network looks alike from all nodes, one node's part is tried first. The search ends at `fewest_steps`.
    `threads`: seeds tried at once (0: a core each); the result does not depend on it. Ctrl-C ends the search; without
    a result it is raised again. Raises `InputError` like `all_gather`.
    """
    arrival = step_ps if arrival_ps is None else arrival_ps
    _check(network, step_ps, arrival)
    number = seeds or max(1, min(_MOST_SEEDS, _PAIRS_FOR_SEEDS // max(1, network.num_links * len(origin))))
    chosen = range(first_seed, first_seed + number)
    goal = fewest_steps(network, origin)
    best = _best_symmetric(network, step_ps, arrival, origin, chosen, goal)
    if best is not None and best.log.num_steps <= goal:
        return best

    def attempt(seed: int, report: Callable[[float], None]) -> Found:
        return Found(all_gather(network, step_ps, origin, seed, arrival_ps=arrival, progress=report), seed, False)

    return _Search(attempt, goal, progress, best).over(chosen, threads or os.cpu_count() or 1)


def _best_symmetric(
    network: Network, step_ps: int, arrival_ps: int, origin: Int64Array, seeds: Sequence[int], goal: int
) -> Found | None:
    translations = Translations.of(network)
    best: Found | None = None
    for seed in seeds if translations is not None else ():
        log = symmetric_all_gather(network, translations, step_ps, arrival_ps, origin, seed) if translations else None
        if log is None:
            break
        best = _better(best, Found(log, seed, True))
        if best.log.num_steps <= goal:
            break
    return best


def _better(best: Found | None, other: Found) -> Found:
    return other if best is None or other.log.num_steps < best.log.num_steps else best


class _AbandonedError(Exception):
    """The search has ended; what still runs is not needed."""


class _Search:
    """Try seeds, the first one alone, because most often it is enough; then as many at once as there are threads."""

    def __init__(
        self,
        attempt: Callable[[int, Callable[[float], None]], Found],
        goal: int,
        progress: Callable[[float, str], None],
        best: Found | None,
    ) -> None:
        self._attempt, self._goal, self._progress, self.best = attempt, goal, progress, best
        self._stop = threading.Event()
        self._fractions: dict[int, float] = {}

    def over(self, seeds: Sequence[int], threads: int) -> Found:
        waves = [seeds[:1], *(seeds[first : first + threads] for first in range(1, len(seeds), threads))]
        try:
            for wave in waves:
                self._run(wave, len(seeds))
                if self.best is not None and self.best.log.num_steps <= self._goal:
                    break
        except KeyboardInterrupt:
            if self.best is None:
                raise
            return Found(self.best.log, self.best.seed, self.best.is_symmetric, True)
        assert self.best is not None
        return self.best

    def _run(self, wave: Sequence[int], total: int) -> None:
        if len(wave) == 1:
            self._keep(self._attempt(wave[0], lambda fraction: self._report(wave[0], fraction, total)))
            return
        with ThreadPoolExecutor(len(wave)) as pool:
            futures = [pool.submit(self._attempt, seed, self._reporter(seed)) for seed in wave]
            try:
                self._watch(futures, total)
            finally:
                self._stop.set()
        self._stop.clear()
        for future in futures:
            self._keep(future.result())

    def _watch(self, futures: Sequence[Future[Found]], total: int) -> None:
        waiting = set(futures)
        while waiting:
            _, waiting = wait(waiting, _PERIOD_S)
            self._progress(sum(self._fractions.values()) / total, "all-gather")

    def _reporter(self, seed: int) -> Callable[[float], None]:
        def report(fraction: float) -> None:
            if self._stop.is_set():
                raise _AbandonedError
            self._fractions[seed] = fraction

        return report

    def _report(self, seed: int, fraction: float, total: int) -> None:
        self._fractions[seed] = fraction
        self._progress(sum(self._fractions.values()) / total, "all-gather")

    def _keep(self, found: Found) -> None:
        self.best = _better(self.best, found)


class _Work:
    """An all-gather under way: the arrays of the kernel and how far it is."""

    def __init__(self, network: Network, origin: Int64Array, own: Int64Array, lag: int) -> None:
        # Importing numba takes a second.
        from collhub_tacos.lockstep import Progress

        num_nodes, num_chunks = network.num_nodes, len(origin)
        self._network, self._origin, self._own, self._lag = network, origin, own, lag
        self.log = np.zeros((num_nodes, num_chunks), identifier_type(num_chunks))
        have = np.zeros((num_nodes, -(-num_chunks // 64)), np.uint64)
        chunk = np.argsort(origin, kind="stable")
        node = origin[chunk]
        self.log[node, np.arange(num_chunks) - (np.cumsum(own) - own)[node]] = chunk
        np.bitwise_or.at(have, (node, chunk >> 6), np.uint64(1) << (chunk & 63).astype(np.uint64))
        seen = np.tile(own, (lag, 1))
        open_nodes = np.flatnonzero(own < num_chunks)
        self.num_open, self.step = len(open_nodes), 0
        self._state = Progress(self.log, have, own.copy(), seen, np.zeros(network.num_links, np.int64), open_nodes)
        expected = fewest_steps(network, origin)
        self.carried = np.zeros((expected + expected // 8 + 64, -(-network.num_links // 8)), np.uint8)

    @property
    def fraction(self) -> float:
        """Delivered chunks by those to deliver."""
        before = int(self._own.sum())
        return (int(self._state.filled.sum()) - before) / max(1, self.log.size - before)

    def slice(self, seed: int) -> None:
        """Go on for some time. Raises `InputError` where a chunk cannot get further."""
        from collhub_tacos.lockstep import advance

        if self.step == len(self.carried):
            more = np.zeros((self.step // 2 + 1, self.carried.shape[1]), np.uint8)
            self.carried = np.concatenate([self.carried, more])
        first = self.step
        self.step, self.num_open = advance(
            self._network.indptr, self._network.source, self._state, self.carried, first, self.num_open, seed, _SLICE
        )
        done = self.carried[max(0, self.step - self._lag) : self.step]
        if self.num_open and self.step - first >= self._lag and not done.any():
            self._refuse()

    def _refuse(self) -> None:
        node = int(self._state.open_nodes[0])
        missing = np.setdiff1d(np.arange(len(self._origin)), self.log[node, : self._state.filled[node]])
        message = f"topology {self._network.topology.name}: NPU {int(self._origin[missing[0]])} cannot reach NPU {node}"
        raise InputError(message, cure="add links, or choose NPUs that reach one another", code="disconnected")


def _check(network: Network, step_ps: int, arrival_ps: int) -> None:
    if network.num_nodes > network.num_npus:
        message = f"topology {network.topology.name}: steps of equal length need a network without switches"
        raise InputError(message, code="switches")
    if not 0 < step_ps <= arrival_ps:
        raise InputError(f"links are busy for {step_ps} ps and deliver after {arrival_ps} ps", code="link-times")
