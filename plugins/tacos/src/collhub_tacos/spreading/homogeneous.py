"""All-gather where all links are alike: lockstep matching on arrival logs, several seeds, the best kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork
from collhub_tacos.networks.reach import hops_from, unreachable
from collhub_tacos.networks.translation import Translations, symmetric_all_gather
from collhub_tacos.schedules.arrival_log import ArrivalLog, identifier_type
from collhub_tacos.spreading.seed_search import best_of_seeds
from hub_core.diagnostics import InputError

Int64Array = npt.NDArray[np.int64]

_MOST_SEEDS = 20
_PAIRS_FOR_SEEDS = 5_000_000
# Cursor moves of a slice: below a second on any machine, so that Ctrl-C and progress get through.
_SLICE = 1 << 24
# Steps on one way through the network; more of them touch more memory than the caches hold.
_WINDOW = 16
# Where the latency is many times what a message takes, shorter steps would cost more than they bring.
_MOST_LAG = 64


@dataclass(frozen=True, slots=True, eq=False)
class LockstepResult:
    """The best all-gather, its seed, whether it is one node's part moved to all, and whether Ctrl-C cut the search."""

    log: ArrivalLog
    seed: int
    is_symmetric: bool
    is_interrupted: bool = False


def fewest_steps(network: LinkNetwork, origin: Int64Array) -> int:
    """No all-gather takes fewer steps: what a node lacks, by its number of in-links."""
    missing = len(origin) - np.bincount(origin, minlength=network.num_npus)[: network.num_npus]
    in_links = np.maximum(np.diff(network.indptr)[: network.num_npus], 1)
    return int(np.max(-(-missing // in_links), initial=0))


def memory_bytes(network: LinkNetwork, num_chunks: int, seeds: int = 1, threads: int = 1) -> int:
    """What `best_all_gather` takes at its peak: logs, bit sets and used links of all logs that exist at once."""
    steps = -(-num_chunks // max(1, int(np.diff(network.indptr).min(initial=1))))
    a_node = (
        num_chunks * np.dtype(identifier_type(num_chunks)).itemsize + 8 * -(-num_chunks // 64) + 600
    )
    one = network.num_npus * a_node + steps * -(-network.num_links // 8) + 8 * network.num_links
    return one * (1 if seeds == 1 else 1 + threads)


def all_gather(
    network: LinkNetwork,
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
    work = _LockstepGather(network, origin, own, -(-arrival // step_ps))
    while not work.is_over:
        work.slice(seed)
        progress(work.fraction)
    return ArrivalLog(network, step_ps, arrival, work.log, own, work.carried)


def best_all_gather(
    network: LinkNetwork,
    step_ps: int,
    origin: Int64Array,
    *,
    arrival_ps: int | None = None,
    seeds: int = 0,
    first_seed: int = 0,
    threads: int = 0,
    progress: Callable[[float, str], None] = lambda fraction, what: None,
) -> LockstepResult:
    """The fastest all-gather over `seeds` seeds from `first_seed` on (0: by size, up to 20).

    Where the network looks alike from all nodes, one node's part is tried first. Where the arrival is no whole number
    of steps, longer steps are tried in which it is. What `fewest_steps` shows to be no better is left out.
    `threads`: seeds tried at once (0: a core each); the result does not depend on it. Ctrl-C ends the search; without
    a result it is raised again. Raises `InputError` like `all_gather`.
    """
    arrival = step_ps if arrival_ps is None else arrival_ps
    _check(network, step_ps, arrival)
    number = seeds or max(
        1, min(_MOST_SEEDS, _PAIRS_FOR_SEEDS // max(1, network.num_links * len(origin)))
    )
    fewest = fewest_steps(network, origin)
    best: LockstepResult | None = None
    try:
        for run in _runs(network, origin, step_ps, arrival, is_quick=number > 1):
            if best is None or run.bound_ps(fewest) < best.log.time_ps:
                found = run.best(range(first_seed, first_seed + number), fewest, threads, progress)
                best = found if best is None or found.log.time_ps < best.log.time_ps else best
                if found.is_interrupted:
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        if best is None:
            raise
        return replace(best, is_interrupted=True)
    assert best is not None
    return best


def _runs(
    network: LinkNetwork, origin: Int64Array, step_ps: int, arrival_ps: int, *, is_quick: bool
) -> list[_LockstepVariant]:
    """One node's part for all, where that can be, then all nodes each for itself, if that is quick or the only way."""
    translations = Translations.of(network, origin)
    kernels = (
        [None] if translations is None else [translations, None] if is_quick else [translations]
    )
    steps = _step_lengths(step_ps, arrival_ps)
    return [
        _LockstepVariant(network, origin, step, arrival_ps, kernel)
        for kernel in kernels
        for step in steps
    ]


def _step_lengths(busy_ps: int, arrival_ps: int) -> list[int]:
    """The shortest steps, and the shortest ones of which one less lie between start and arrival; of either at most 64."""
    lags = sorted(
        {min(-(-arrival_ps // busy_ps), _MOST_LAG), max(1, min(arrival_ps // busy_ps, _MOST_LAG))},
        reverse=True,
    )
    return [max(busy_ps, -(-arrival_ps // lag)) for lag in lags]


@dataclass(frozen=True, slots=True, eq=False)
class _LockstepVariant:
    """One kernel with steps of one length, on any number of seeds."""

    network: LinkNetwork
    origin: Int64Array
    step_ps: int
    arrival_ps: int
    translations: Translations | None

    def bound_ps(self, fewest: int) -> int:
        """No seed is faster, if nothing takes less than the fewest steps."""
        return (max(fewest, 1) - 1) * self.step_ps + self.arrival_ps

    def best(
        self,
        seeds: Sequence[int],
        fewest: int,
        threads: int,
        progress: Callable[[float, str], None],
    ) -> LockstepResult:
        found = best_of_seeds(
            self._log,
            lambda log: log.num_steps,
            seeds,
            goal=fewest,
            threads=threads or os.cpu_count() or 1,
            progress=lambda fraction: progress(fraction, "all-gather"),
        )
        return LockstepResult(
            found.result, found.seed, self.translations is not None, found.is_interrupted
        )

    def _log(self, seed: int, report: Callable[[float], None]) -> ArrivalLog:
        if self.translations is not None:
            return symmetric_all_gather(
                self.network, self.translations, self.step_ps, self.arrival_ps, self.origin, seed
            )
        return all_gather(
            self.network,
            self.step_ps,
            self.origin,
            seed,
            arrival_ps=self.arrival_ps,
            progress=report,
        )


class _LockstepGather:
    """An all-gather under way: the arrays of the kernel and how far it is."""

    def __init__(self, network: LinkNetwork, origin: Int64Array, own: Int64Array, lag: int) -> None:
        # Importing numba takes a second.
        from collhub_tacos.spreading.lockstep_kernel import Layers, LockstepState

        num_nodes, num_chunks = network.num_nodes, len(origin)
        self._network, self._origin, self._own = network, origin, own
        self.log = np.zeros((num_nodes, num_chunks), identifier_type(num_chunks))
        have = np.zeros((num_nodes, -(-num_chunks // 64)), np.uint64)
        chunk = np.argsort(origin, kind="stable")
        node = origin[chunk]
        self.log[node, np.arange(num_chunks) - (np.cumsum(own) - own)[node]] = chunk
        np.bitwise_or.at(have, (node, chunk >> 6), np.uint64(1) << (chunk & 63).astype(np.uint64))
        self._state = LockstepState(
            self.log,
            have,
            own.copy(),
            np.tile(own, (lag + 1, 1)),
            np.zeros(network.num_links, np.int64),
        )
        self._layers = Layers(*_layers(network))
        self._window = max(_WINDOW, lag)
        self._step, self.is_over = 0, False
        expected = fewest_steps(network, origin)
        self._carried = np.zeros(
            (expected + expected // 8 + 4 * self._window, -(-network.num_links // 8)), np.uint8
        )

    @property
    def carried(self) -> npt.NDArray[np.uint8]:
        """The steps up to the last one with a transfer; the kernel ends with a window of empty ones."""
        first = max(0, self._step - 2 * self._window)
        used = np.flatnonzero(self._carried[first : self._step].any(axis=1))
        return self._carried[: first + int(used[-1]) + 1 if len(used) else 0]

    @property
    def fraction(self) -> float:
        """Delivered chunks by those to deliver."""
        before = int(self._own.sum())
        return (int(self._state.filled.sum()) - before) / max(1, self.log.size - before)

    def slice(self, seed: int) -> None:
        """Go on for some time. Raises `InputError` where a chunk cannot get further."""
        from collhub_tacos.spreading.lockstep_kernel import advance

        if self._step + self._window > len(self._carried):
            more = np.zeros((self._step // 2 + self._window, self._carried.shape[1]), np.uint8)
            self._carried = np.concatenate([self._carried, more])
        network = self._network
        self._step, transfers = advance(
            network.indptr,
            network.source,
            self._layers,
            self._state,
            self._carried,
            self._step,
            self._window,
            seed,
            _SLICE,
        )
        self.is_over = not transfers
        if self.is_over and np.any(self._state.filled < len(self._origin)):
            raise self._unreachable(int(np.argmin(self._state.filled)))

    def _unreachable(self, node: int) -> InputError:
        missing = np.setdiff1d(
            np.arange(len(self._origin)), self.log[node, : self._state.filled[node]]
        )
        return unreachable(self._network, int(self._origin[missing[0]]), node)


def _layers(network: LinkNetwork) -> tuple[Int64Array, Int64Array]:
    """Nodes by their distance from node 0, links taken both ways, and where each distance begins."""
    hops = hops_from(network, 0, both_ways=True)
    nodes = np.argsort(hops, kind="stable")
    return nodes, np.searchsorted(hops[nodes], np.arange(-1, int(hops.max()) + 2))


def _check(network: LinkNetwork, step_ps: int, arrival_ps: int) -> None:
    if network.num_nodes > network.num_npus:
        message = f"topology {network.topology.name}: steps of equal length need a network without switches"
        raise InputError(message, code="switches")
    if not 0 < step_ps <= arrival_ps:
        raise InputError(
            f"links are busy for {step_ps} ps and deliver after {arrival_ps} ps", code="link-times"
        )
