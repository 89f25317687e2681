"""All-gather where all links are alike: lockstep matching on arrival logs, best of several seeds.

The matching is TACOS's (Won et al., MICRO 2024), one look at every (link, chunk) pair.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.distances import hops_from, unreachable_error
from collhub_tacos.networks.link_network import LinkNetwork
from collhub_tacos.networks.symmetry import Translations
from collhub_tacos.schedules.arrival_log import (
    ArrivalLog,
    ChunkBits,
    choose_identifier_type,
    set_chunk_bits,
)
from collhub_tacos.seed_search import (
    AfterTrial,
    FractionReport,
    Progress,
    find_best_of_seeds,
    ignore_fraction,
    ignore_progress,
    ignore_trial,
    report_activity,
)
from collhub_tacos.spreading.matching import step_lengths
from hub_core.columns import Int64Array, sorted_ordinals
from hub_core.model import InputError
from hub_core.schedules import fastest_of

_MOST_SEEDS = 20
_PAIRS_FOR_SEEDS = 5_000_000
# Cursor moves of a slice: below a second on any machine, so that Ctrl-C and progress get through.
_SLICE = 1 << 24
# Steps on one way through the network; more of them touch more memory than the caches hold.
_WINDOW = 16
# Arrays of a node and a log beside its chunks: counters, headers, what the allocator rounds up.
_BYTES_A_NODE = 600


@dataclass(frozen=True, slots=True, eq=False)
class LockstepResult:
    """Best all-gather and its seed.

    `is_symmetric`: whether it is one node's part moved to all; `is_interrupted`: whether Ctrl-C cut
    the search.
    """

    log: ArrivalLog
    seed: int
    is_symmetric: bool
    is_interrupted: bool = False


def fewest_steps(network: LinkNetwork, origin: Int64Array) -> int:
    """No all-gather takes fewer steps: what a node lacks, by its number of in-links."""
    npus = network.num_npus
    own = np.bincount(origin, minlength=npus)[:npus]
    missing = len(origin) - own
    # A node without in-links is found to be unreachable later, by name.
    in_links = np.maximum(network.in_degree[:npus], 1)
    steps = -(-missing // in_links)
    return int(np.max(steps, initial=0))


def memory_bytes(network: LinkNetwork, num_chunks: int, seeds: int = 1, threads: int = 1) -> int:
    """What `best_all_gather` takes at its peak.

    Logs, bit sets and used links of all logs that exist at once.
    """
    fewest_in_links = int(network.in_degree.min(initial=1))
    steps = -(-num_chunks // max(1, fewest_in_links))
    log_bytes = num_chunks * np.dtype(choose_identifier_type(num_chunks)).itemsize
    set_bytes = 8 * -(-num_chunks // 64)
    nodes_bytes = network.num_npus * (log_bytes + set_bytes + _BYTES_A_NODE)
    used_bytes = steps * -(-network.num_links // 8)
    one = nodes_bytes + used_bytes + 8 * network.num_links
    # The best one so far lies beside those under way.
    return one * (1 if seeds == 1 else 1 + threads)


def all_gather(
    network: LinkNetwork,
    step_ps: int,
    origin: Int64Array,
    seed: int = 0,
    *,
    arrival_ps: int | None = None,
    progress: FractionReport = ignore_fraction,
) -> ArrivalLog:
    """Bring every chunk to all NPUs; chunk x starts at NPU `origin[x]`.

    Links are busy `step_ps` with each chunk. `arrival_ps`: from the start to the arrival, default
    `step_ps`; a chunk goes on in the next step after it. Seed 0 asks in-links in order, others from
    a random one on. `progress(fraction)` is called about once a second; what it raises ends the
    work. Raises `InputError` for a network with switches or one that is not strongly connected.
    """
    arrival = step_ps if arrival_ps is None else arrival_ps
    _check(network, step_ps, arrival)
    own = np.bincount(origin, minlength=network.num_npus).astype(np.int64)
    gather = _LockstepGather(network, origin, own, lag=-(-arrival // step_ps))
    while not gather.is_over:
        gather.slice(seed)
        progress(gather.fraction)
    return ArrivalLog(network, step_ps, arrival, gather.log, own, gather.carried)


def best_all_gather(
    network: LinkNetwork,
    step_ps: int,
    origin: Int64Array,
    *,
    arrival_ps: int | None = None,
    seeds: int = 0,
    first_seed: int = 0,
    threads: int = 0,
    progress: Progress = ignore_progress,
    after_trial: AfterTrial = ignore_trial,
) -> LockstepResult:
    """Fastest all-gather over `seeds` seeds from `first_seed` on (0: by size, up to 20).

    Where the network looks alike from all nodes, one node's part is tried first. Where the arrival
    is no whole number of steps, longer steps are tried in which it is. What `fewest_steps` shows to
    be no better is left out. `threads`: seeds tried at once (0: a core each); the result does not
    depend on it. Ctrl-C ends the search; without a result it is raised again. Raises `InputError`
    like `all_gather`.
    """
    arrival = step_ps if arrival_ps is None else arrival_ps
    _check(network, step_ps, arrival)
    number = seeds or _default_seeds(network, len(origin))
    variants = _variants(network, origin, step_ps, arrival, is_quick=number > 1)
    fewest = fewest_steps(network, origin)
    tried = range(first_seed, first_seed + number)

    def results() -> Iterator[LockstepResult]:
        """Best of each variant in turn, but for those whose bound is no less than the best time."""
        fastest_ps: int | None = None
        for variant in variants:
            # No better by its bound alone.
            if fastest_ps is not None and variant.bound_ps(fewest) >= fastest_ps:
                continue
            found = variant.best(tried, fewest, threads, progress, after_trial)
            fastest_ps = (
                found.log.time_ps if fastest_ps is None else min(fastest_ps, found.log.time_ps)
            )
            yield found

    best = fastest_of(results(), lambda result: result.log.time_ps)
    # There is always a variant, and the first is tried.
    assert best is not None
    return best


def _default_seeds(network: LinkNetwork, num_chunks: int) -> int:
    """Number of seeds: 1 to `_MOST_SEEDS`, fewer the more pairs of a link and a chunk."""
    # A seed costs a look at every pair of a link and a chunk.
    pairs = max(1, network.num_links * num_chunks)
    return max(1, min(_MOST_SEEDS, _PAIRS_FOR_SEEDS // pairs))


def _variants(
    network: LinkNetwork, origin: Int64Array, step_ps: int, arrival_ps: int, *, is_quick: bool
) -> Iterator[_LockstepVariant]:
    """One node's part for all, where that can be, then all nodes each for itself.

    The latter only if it is quick or the only way.
    """
    translations = Translations.of(network, origin)
    kernels: list[Translations | None] = []
    if translations is not None:
        kernels.append(translations)
    if translations is None or is_quick:
        kernels.append(None)
    for kernel in kernels:
        for step in step_lengths(step_ps, arrival_ps):
            yield _LockstepVariant(network, origin, step, arrival_ps, kernel)


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
        progress: Progress,
        after_trial: AfterTrial,
    ) -> LockstepResult:
        """Fastest log over some seeds; `fewest` steps end the search."""
        found = find_best_of_seeds(
            self._log,
            lambda log: log.num_steps,
            seeds,
            goal=fewest,
            threads=threads or os.cpu_count() or 1,
            progress=report_activity(progress, "all-gather"),
            after_trial=after_trial,
        )
        is_symmetric = self.translations is not None
        return LockstepResult(found.result, found.seed, is_symmetric, found.is_interrupted)

    def _log(self, seed: int, report: FractionReport) -> ArrivalLog:
        if self.translations is None:
            return all_gather(
                self.network,
                self.step_ps,
                self.origin,
                seed,
                arrival_ps=self.arrival_ps,
                progress=report,
            )
        # Imported here: numba takes a second.
        from collhub_tacos.spreading.lockstep_kernel import symmetric_all_gather

        return symmetric_all_gather(
            self.network,
            self.translations,
            self.step_ps,
            self.arrival_ps,
            self.origin,
            seed,
        )


class _LockstepGather:
    """All-gather under way: the arrays of the kernel and how far it is."""

    def __init__(self, network: LinkNetwork, origin: Int64Array, own: Int64Array, lag: int) -> None:
        # Importing numba takes a second.
        from collhub_tacos.spreading.lockstep_kernel import Layers, LockstepState

        self._network, self._origin, self._own = network, origin, own
        self.log = np.zeros((network.num_nodes, len(origin)), choose_identifier_type(len(origin)))
        self._state = LockstepState(
            log=self.log,
            have=self._enter_own(),
            filled=own.copy(),
            seen=np.tile(own, (lag + 1, 1)),
            cursor=np.zeros(network.num_links, np.int64),
        )
        self._layers = Layers(*_layers(network))
        # An empty window ends the kernel: in one below the lag chunks may be on their way.
        self._window = max(_WINDOW, lag)
        self._step, self.is_over = 0, False
        # Usually an eighth more than the least is enough; `_make_room` adds what is not.
        expected = fewest_steps(network, origin)
        steps = expected + expected // 8 + 4 * self._window
        self._carried = np.zeros((steps, -(-network.num_links // 8)), np.uint8)

    def _enter_own(self) -> ChunkBits:
        """Begin the logs with what nodes have; return it as a bit per node and chunk."""
        num_nodes, num_chunks = self.log.shape
        chunk = np.argsort(self._origin, kind="stable")
        node = self._origin[chunk]
        self.log[node, sorted_ordinals(node)] = chunk
        return set_chunk_bits(node, chunk, (num_nodes, num_chunks))

    @property
    def carried(self) -> npt.NDArray[np.uint8]:
        """Steps up to the last one with a transfer; the kernel ends with a window of empty ones."""
        first = max(0, self._step - 2 * self._window)
        is_used = self._carried[first : self._step].any(axis=1)
        used = np.flatnonzero(is_used)
        if not len(used):
            return self._carried[:0]
        return self._carried[: first + int(used[-1]) + 1]

    @property
    def fraction(self) -> float:
        """Delivered chunks by those to deliver."""
        before = int(self._own.sum())
        delivered = int(self._state.filled.sum()) - before
        return delivered / max(1, self.log.size - before)

    def slice(self, seed: int) -> None:
        """Go on for some time. Raises `InputError` where a chunk cannot get further."""
        from collhub_tacos.spreading.lockstep_kernel import advance

        self._make_room()
        self._step, transfers = advance(
            self._network.indptr,
            self._network.source,
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

    def _make_room(self) -> None:
        """Have rows for one more window of steps."""
        rows, width = self._carried.shape
        if self._step + self._window > rows:
            # By half, so that copying costs no more than a share of the steps.
            more = np.zeros((self._step // 2 + self._window, width), np.uint8)
            self._carried = np.concatenate([self._carried, more])

    def _unreachable(self, node: int) -> InputError:
        there = self.log[node, : self._state.filled[node]]
        missing = np.setdiff1d(np.arange(len(self._origin)), there)
        return unreachable_error(self._network, int(self._origin[missing[0]]), node)


def _layers(network: LinkNetwork) -> tuple[Int64Array, Int64Array]:
    """Nodes by distance from node 0, links taken both ways; and where each distance begins."""
    hops = hops_from(network, 0, both_ways=True)
    # One distance more than there is closes the last layer.
    nodes = np.argsort(hops, kind="stable")
    distances = np.arange(-1, int(hops.max()) + 2)
    return nodes, np.searchsorted(hops[nodes], distances)


def _check(network: LinkNetwork, step_ps: int, arrival_ps: int) -> None:
    if network.num_nodes > network.num_npus:
        name = network.topology.name
        raise InputError(
            f"topology {name}: steps of equal length need a network without switches",
            code="switches",
        )
    if not 0 < step_ps <= arrival_ps:
        raise InputError(
            f"links are busy for {step_ps} ps and deliver after {arrival_ps} ps", code="link-times"
        )
