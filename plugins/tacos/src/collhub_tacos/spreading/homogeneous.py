"""All-gather on equal links: lockstep matching on arrival logs, the best of several seeds.

The matching is that of TACOS (Won et al., MICRO 2024), with one examination of every (link, chunk)
pair.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_tacos.link_network import LinkNetwork
from collhub_tacos.schedules.link_schedule import (
    ArrivalLog,
    choose_identifier_type,
    set_chunk_bits,
)
from collhub_tacos.search.seeds import (
    AfterTrial,
    FractionReport,
    Progress,
    find_best_of_seeds,
    ignore_fraction,
    ignore_progress,
    ignore_trial,
    report_activity,
)
from collhub_tacos.spreading.matching import choose_step_lengths
from collhub_tacos.symmetry import Translations, hops_from, unreachable_error
from hub_core.columns import Int64Array, sorted_ordinals
from hub_core.model import InputError
from hub_core.schedules import fastest_of

_MAX_SEEDS = 20
_PAIRS_FOR_SEEDS = 5_000_000
# Cursor moves per call: below a second on any machine, so that Ctrl-C and progress reports are
# prompt.
_MOVES_PER_CALL = 1 << 24
# Steps per pass through the network; more steps touch more memory than the caches hold.
_WINDOW = 16
# Memory per node and log in addition to its chunks: counters, headers and rounding by the
# allocator.
_BYTES_PER_NODE = 600


@dataclass(frozen=True, slots=True, eq=False)
class LockstepResult:
    """Best all-gather and its seed.

    `is_symmetric`: whether the part of one node was translated to all. `is_interrupted`: whether
    Ctrl-C ended the search.
    """

    log: ArrivalLog
    seed: int
    is_symmetric: bool
    is_interrupted: bool = False


def bound_steps(network: LinkNetwork, origin: Int64Array) -> int:
    """Return a lower bound on the number of steps of an all-gather.

    An NPU needs as many steps as the chunks that it lacks divided by its incoming links, rounded
    up; the bound is the maximum over all NPUs. An NPU without incoming links counts as if it had
    one; callers report it as unreachable. `origin`: NPU of each chunk.
    """
    npus = network.num_npus
    chunks_at_node = np.bincount(origin, minlength=npus)[:npus]
    missing = len(origin) - chunks_at_node
    # A node without in-links is reported as unreachable later.
    in_links = np.maximum(network.in_degree[:npus], 1)
    steps = -(-missing // in_links)
    return int(np.max(steps, initial=0))


def estimate_memory_bytes(
    network: LinkNetwork, num_chunks: int, seeds: int = 1, threads: int = 1
) -> int:
    """Estimate the peak memory of `find_best_all_gather` in bytes.

    The memory consists of logs, each of which holds one schedule. There is one log if `seeds` is 1,
    otherwise `threads` + 1: one per thread, and the best one so far. A log has:

    - per NPU: 2 bytes per chunk (4 if there are more than 65536 chunks), one bit per chunk in words
      of 8 bytes, and 600 bytes;
    - per link: 8 bytes;
    - per step: one bit per link, rounded up to bytes.

    The assumed number of steps is `num_chunks` divided by the fewest incoming links of an NPU (at
    least 1), rounded up; networks with bottlenecks elsewhere have more. `threads` must be at least
    1; it is not limited to `seeds`.
    """
    fewest_in_links = int(network.in_degree[: network.num_npus].min())
    steps = -(-num_chunks // max(1, fewest_in_links))
    log_bytes = num_chunks * np.dtype(choose_identifier_type(num_chunks)).itemsize
    set_bytes = 8 * -(-num_chunks // 64)
    nodes_bytes = network.num_npus * (log_bytes + set_bytes + _BYTES_PER_NODE)
    used_bytes = steps * -(-network.num_links // 8)
    bytes_per_log = nodes_bytes + used_bytes + 8 * network.num_links
    # The best log so far exists in addition to the logs under construction.
    return bytes_per_log * (1 if seeds == 1 else 1 + threads)


def all_gather(
    network: LinkNetwork,
    step_ps: int,
    origin: Int64Array,
    seed: int = 0,
    *,
    arrival_ps: int | None = None,
    progress: FractionReport = ignore_fraction,
) -> ArrivalLog:
    """Bring every chunk to all NPUs in steps of equal length; chunk x starts at NPU `origin[x]`.

    A link is busy for `step_ps` with each chunk. `arrival_ps`: time from the start to the
    arrival, by default `step_ps`; a chunk is forwarded from the first step that starts at or
    after its arrival. With seed 0 a node examines its incoming links in order, with other seeds
    from a random one on. `progress(fraction)` is called about once a second; its exceptions
    are passed on to the caller, without a result.

    Raise `InputError` for a network with switches (`switches`), unless 0 < `step_ps` <=
    `arrival_ps` (`link-times`), and if a chunk cannot reach a node (`disconnected`).
    """
    arrival = step_ps if arrival_ps is None else arrival_ps
    _check(network, step_ps, arrival)
    chunks_at_node = np.bincount(origin, minlength=network.num_npus).astype(np.int64)
    gather = _LockstepGather(network, origin, chunks_at_node, lag=-(-arrival // step_ps))
    while not gather.is_over:
        gather.slice(seed)
        progress(gather.fraction)
    return ArrivalLog(network, step_ps, arrival, gather.log, chunks_at_node, gather.carried)


def find_best_all_gather(
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
    """Find the fastest all-gather in steps of equal length over several seeds and variants.

    Chunk x starts at NPU `origin[x]`. A link is busy for `step_ps` per chunk, which arrives
    `arrival_ps` (None: `step_ps`) after its start. The seeds are `seeds` numbers from `first_seed`
    on; 0 means 5 000 000 // (links * chunks), limited to 1..20. `threads` (0: one per core) does
    not change the result. `after_trial` is called for each seed, in order.

    - Methods, in this order: one node is computed and translated to all others, only on symmetric
      networks; all nodes are computed, on other networks or with several seeds.
    - A variant is a method with a length of `choose_step_lengths`. Its result is that of the seed
      with the fewest steps, the first of equal ones. A seed with the minimum of steps is its last.
    - The fastest variant is returned, the first of equal ones. A variant is skipped if its lower
      bound is not below the shortest time so far.

    Ctrl-C returns the best result so far; without one it is raised. Raises `InputError` for a
    network with switches, a `step_ps` not in 1..`arrival_ps`, and unreachable nodes.
    """
    arrival = step_ps if arrival_ps is None else arrival_ps
    _check(network, step_ps, arrival)
    # Every pair of a link and a chunk is examined once per seed.
    pairs = max(1, network.num_links * len(origin))
    number = seeds or max(1, min(_MAX_SEEDS, _PAIRS_FOR_SEEDS // pairs))
    translations = Translations.of(network, origin)
    # Computing one node and translating it, if the network is symmetric; computing all nodes.
    methods: list[Translations | None] = [] if translations is None else [translations]
    if translations is None or number > 1:
        methods.append(None)
    variants = [
        _LockstepVariant(network, origin, step, arrival, method)
        for method in methods
        for step in choose_step_lengths(step_ps, arrival)
    ]
    min_steps = bound_steps(network, origin)
    tried = range(first_seed, first_seed + number)

    def results() -> Iterator[LockstepResult]:
        """Yield the best result over all seeds for each variant that may be the fastest.

        The variants are tried in their order, each when its result is requested. A variant is
        skipped if its lower bound in ps is at least the shortest time of the results so far. The
        first variant is never skipped. A yielded result may be slower than an earlier one.
        """
        fastest_ps: int | None = None
        for variant in variants:
            if fastest_ps is not None and variant.bound_ps(min_steps) >= fastest_ps:
                continue
            result = variant.best(tried, min_steps, threads, progress, after_trial)
            fastest_ps = (
                result.log.time_ps if fastest_ps is None else min(fastest_ps, result.log.time_ps)
            )
            yield result

    best = fastest_of(results(), lambda result: result.log.time_ps)
    # There is always a variant, and the first one is tried.
    assert best is not None
    return best


@dataclass(frozen=True, slots=True, eq=False)
class _LockstepVariant:
    """A kernel with steps of one length, for any number of seeds."""

    network: LinkNetwork
    origin: Int64Array
    step_ps: int
    arrival_ps: int
    translations: Translations | None

    def bound_ps(self, min_steps: int) -> int:
        """Return a lower bound of the time in picoseconds for a minimum number of steps."""
        return (max(min_steps, 1) - 1) * self.step_ps + self.arrival_ps

    def best(
        self,
        seeds: Sequence[int],
        min_steps: int,
        threads: int,
        progress: Progress,
        after_trial: AfterTrial,
    ) -> LockstepResult:
        """Return the log with the fewest steps over some seeds; of equal ones, the first.

        The seeds are tried in order. The first seed whose log has at most `min_steps` steps ends
        the search; later seeds do not count. `threads`: seeds tried in parallel, 0 for one per
        core; it does not change the result. `after_trial` is called after each seed that counts, in
        order.

        After Ctrl-C, or a limit that `progress` or `after_trial` raises, the best log so far is
        returned with `is_interrupted`. Without a log, the exception is raised again. `is_symmetric`
        shows that only one node was computed. Raises `ValueError` without seeds.
        """
        result = find_best_of_seeds(
            self._log,
            lambda log: log.num_steps,
            seeds,
            goal=min_steps,
            threads=threads or os.cpu_count() or 1,
            progress=report_activity(progress, "all-gather"),
            after_trial=after_trial,
        )
        is_symmetric = self.translations is not None
        return LockstepResult(result.result, result.seed, is_symmetric, result.is_interrupted)

    def _log(self, seed: int, report: FractionReport) -> ArrivalLog:
        """Return the all-gather of a seed: for every node, the order in which chunks arrive.

        `self.translations`: symmetries that map any node of the network to any other one, or None.

        - None: all nodes are computed (`all_gather`). `report(fraction)` is called about once a
          second; its exceptions pass through.
        - Otherwise only node 0 is computed and translated to all others. `report` is not called.

        Raises `InputError` (`disconnected`) if a chunk cannot reach a node.
        """
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
        from collhub_tacos.spreading.lockstep_kernel import build_symmetric_all_gather

        return build_symmetric_all_gather(
            self.network,
            self.translations,
            self.step_ps,
            self.arrival_ps,
            self.origin,
            seed,
        )


class _LockstepGather:
    """All-gather in progress: the arrays of the kernel and the progress."""

    def __init__(
        self, network: LinkNetwork, origin: Int64Array, chunks_at_node: Int64Array, lag: int
    ) -> None:
        # Importing numba takes a second.
        from collhub_tacos.spreading.lockstep_kernel import Layers, LockstepState

        self._network, self._origin, self._own = network, origin, chunks_at_node
        self.log = np.zeros((network.num_nodes, len(origin)), choose_identifier_type(len(origin)))
        # The logs begin with the initial chunks.
        num_nodes, num_chunks = self.log.shape
        chunk = np.argsort(self._origin, kind="stable")
        node = self._origin[chunk]
        self.log[node, sorted_ordinals(node)] = chunk
        self._state = LockstepState(
            log=self.log,
            have=set_chunk_bits(node, chunk, (num_nodes, num_chunks)),
            filled=chunks_at_node.copy(),
            seen=np.tile(chunks_at_node, (lag + 1, 1)),
            cursor=np.zeros(network.num_links, np.int64),
        )
        # The nodes by undirected distance from node 0, and the start of each distance.
        hops = hops_from(network, 0, both_ways=True)
        # One distance after the last closes the last layer.
        nodes = np.argsort(hops, kind="stable")
        distances = np.arange(-1, int(hops.max()) + 2)
        self._layers = Layers(nodes, np.searchsorted(hops[nodes], distances))
        # The kernel ends after an empty window, which must not be shorter than the lag: chunks may
        # be in flight.
        self._window = max(_WINDOW, lag)
        self._step, self.is_over = 0, False
        # Usually an eighth above the minimum is sufficient; `slice` adds more.
        expected = bound_steps(network, origin)
        steps = expected + expected // 8 + 4 * self._window
        self._carried = np.zeros((steps, -(-network.num_links // 8)), np.uint8)

    @property
    def carried(self) -> npt.NDArray[np.uint8]:
        """The links used in each step, up to the last step with a transfer: uint8[steps, bytes].

        Link i is bit i % 8 (0 is the lowest) of byte i // 8. Without transfers there are no rows.
        """
        first = max(0, self._step - 2 * self._window)
        is_used = self._carried[first : self._step].any(axis=1)
        used = np.flatnonzero(is_used)
        if not len(used):
            return self._carried[:0]
        return self._carried[: first + int(used[-1]) + 1]

    @property
    def fraction(self) -> float:
        """Return the fraction of deliveries done so far: 0 to 1.

        A delivery is a chunk that arrives at a node; chunks that are present initially do not
        count. 0 if there are no deliveries.
        """
        before = int(self._own.sum())
        delivered = int(self._state.filled.sum()) - before
        return delivered / max(1, self.log.size - before)

    def slice(self, seed: int) -> None:
        """Continue the all-gather by windows of steps, until a limit or until no chunk moves.

        The call ends after a window with more than `_MOVES_PER_CALL` (2^24) examined entries in
        total (about a second), or if the table of used links has no rows for another window.
        `seed` must be the same in all calls. Logs, counters and the table are updated in place. A
        table that is too short for the first window is enlarged before it.

        `is_over` becomes True if the last window transferred no chunk, otherwise False. Raises
        `InputError` (`disconnected`) if it is True and a node lacks a chunk. The error names the
        node with the fewest chunks (the first of equal ones) and the origin of its lowest missing
        chunk.
        """
        from collhub_tacos.spreading.lockstep_kernel import advance

        rows, width = self._carried.shape
        if self._step + self._window > rows:
            # Growing by half limits the total cost of copying.
            new_rows = np.zeros((self._step // 2 + self._window, width), np.uint8)
            self._carried = np.concatenate([self._carried, new_rows])
        self._step, transfers = advance(
            self._network.indptr,
            self._network.source,
            self._layers,
            self._state,
            self._carried,
            self._step,
            self._window,
            seed,
            _MOVES_PER_CALL,
        )
        self.is_over = not transfers
        if self.is_over and np.any(self._state.filled < len(self._origin)):
            node = int(np.argmin(self._state.filled))
            received = self.log[node, : self._state.filled[node]]
            missing = np.setdiff1d(np.arange(len(self._origin)), received)
            raise unreachable_error(self._network, int(self._origin[missing[0]]), node)


def _check(network: LinkNetwork, step_ps: int, arrival_ps: int) -> None:
    """Raise `InputError` if steps of equal length cannot model the links.

    The codes are `switches` for a network with switches, and `link-times` unless 0 < `step_ps` <=
    `arrival_ps`.
    """
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
