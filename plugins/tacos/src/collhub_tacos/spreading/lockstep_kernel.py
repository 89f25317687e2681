"""Compiled lockstep all-gather on equal links: TACOS's matching with arrival logs.

Algorithm: in every step of the time-expanded network, TACOS (Won et al., MICRO 2024) matches
missing chunks to idle links whose source has them. Here every node keeps a log of its chunks in
order of arrival, and every link a cursor into the log of its source: an idle link takes the first
chunk after its cursor that its destination lacks, which is the oldest one. If all nodes are
equivalent, one node is computed and translated to the others.

Invariant: the destination of a link has all chunks before its cursor. Nodes keep their chunks, so a
skipped entry is never examined again. The matching is maximal: a link is idle only if its source
has no visible chunk that the destination lacks.

Cost: one examination of every (link, chunk) pair in total, for any number of steps; most of the
time is memory latency. Therefore steps are computed in windows, layer by layer of the network,
while the logs of neighbouring layers are in the caches.

Import this module inside functions: numba takes a second to import.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from collhub_packing.compiling import inlined, kernel, part

from collhub_tacos.link_network import LinkNetwork
from collhub_tacos.schedules.link_schedule import ArrivalLog, Identifiers, choose_identifier_type
from collhub_tacos.symmetry import Translations, unreachable_error
from hub_core.columns import Int64Array


class LockstepState(NamedTuple):
    """State of the kernel between two calls; all arrays are modified in place.

    `log`: [nodes, chunks]. `have`: uint64[nodes, words], a bit per chunk. `filled`: int64[nodes],
    number of log entries. `seen`: int64[lag + 1, nodes], `filled` at the end of each of the last
    steps, indexed by the step modulo `lag + 1`. `cursor`: int64[links], next entry of the source's
    log.
    """

    log: npt.NDArray[Any]
    have: npt.NDArray[np.uint64]
    filled: Int64Array
    seen: Int64Array
    cursor: Int64Array


class Layers(NamedTuple):
    """Nodes ordered so that links join only equal or neighbouring layers.

    Layer i is `nodes[indptr[i]:indptr[i + 1]]`.
    """

    nodes: Int64Array
    indptr: Int64Array


@part
def _hash(seed: int, step: int, node: int) -> int:
    """Return a hash of the arguments in 0..2^31-1.

    Arguments are taken modulo 2^64; the order of the three matters. Multiply and xor-shift, as
    in splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    mixed = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)
    mixed += np.uint64(step) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = mixed ^ (mixed >> np.uint64(31))
    mixed += np.uint64(node) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(29))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return int((mixed ^ (mixed >> np.uint64(32))) & np.uint64(0x7FFFFFFF))


@part
def _touch_cache_lines(have: npt.NDArray[np.uint64], node: int) -> int:
    """Read one word of every cache line of a row, in order; return how many are not 0.

    Its purpose is to load the row into the cache, which is faster in this order than in random
    order.
    """
    used = 0
    for word in range(0, have.shape[1], 8):
        used += have[node, word] != 0
    return used


@inlined
def _match_in_links(
    first: int,
    degree: int,
    node: int,
    slot: int,
    source: Int64Array,
    log: npt.NDArray[Any],
    have: npt.NDArray[np.uint64],
    seen: Int64Array,
    old: int,
    cursor: Int64Array,
    taken: Int64Array,
) -> int:
    """Assign to every incoming link of a node the oldest chunk that the node lacks.

    The links are processed cyclically from `slot` on. Oldest is the first in the log of the link's
    source, among the entries that the source had in row `old` of `seen`; entries before the link's
    `cursor` were examined earlier. An assigned chunk counts as present at once. Changes `have`,
    `cursor` and `taken` (the chunk per incoming link, -1 for none). Returns the number of examined
    entries.
    """
    work = 0
    for _ in range(degree):
        link = first + slot
        other = source[link]
        position = cursor[link]
        last = seen[old, other]
        taken[slot] = -1
        while position < last:
            chunk = np.int64(log[other, position])
            position += 1
            bit = np.uint64(1) << np.uint64(chunk & 63)
            if not have[node, chunk >> 6] & bit:
                # It counts as present from now on, so that no other in-link brings it.
                have[node, chunk >> 6] |= bit
                taken[slot] = chunk
                break
        work += position - cursor[link]
        cursor[link] = position
        slot = slot + 1 if slot + 1 < degree else 0
    return work


@inlined
def _append_to_log(
    first: int,
    degree: int,
    end: int,
    node: int,
    log: npt.NDArray[Any],
    carried: npt.NDArray[np.uint8],
    now: int,
    taken: Int64Array,
) -> int:
    """Append the chunks that a node's incoming links bring to its log, in the order of links.

    `taken`: chunk per incoming link, -1 for none. `end`: number of entries of the log before. Also
    sets the bit of each used link in row `now` of `carried`. Returns the new number of entries.
    """
    for slot in range(degree):
        if taken[slot] >= 0:
            log[node, end] = taken[slot]
            end += 1
            link = first + slot
            carried[now, link >> 3] |= np.uint8(1 << (link & 7))
    return end


@kernel
def advance(
    indptr: Int64Array,
    source: Int64Array,
    layers: Layers,
    state: LockstepState,
    carried: npt.NDArray[np.uint8],
    first_step: int,
    window: int,
    seed: int,
    budget: int,
) -> tuple[int, int]:
    """Compute windows of steps from `first_step` on, until a window has no transfers.

    Also stops after `budget` examined entries, and if `carried` is full. With seed 0 a node
    examines its incoming links in order, otherwise from a random one on. Log entries of one step
    are in the order of links. Within a window, which is at least as long as the lag, layer i
    computes a step after layer i + 1 has computed the previous one, so that logs stay in the cache;
    the result is the same. Returns (next step, number of transfers of the last window).
    """
    (log, have, filled, seen, cursor), (nodes, layer_start) = state, layers
    num_chunks, slots, num_layers = log.shape[1], seen.shape[0], len(layer_start) - 1
    work, transfers, step = 0, 1, first_step
    # Chunks taken by each in-link of the current node, entered in the order of links afterwards.
    taken = np.empty(max(1, np.max(indptr[1:] - indptr[:-1])), np.int64)
    while transfers and step + window <= carried.shape[0] and work <= budget:
        transfers = 0
        # A front moves through layers and steps together; the caches hold the logs of a front.
        for front in range(num_layers + window - 1):
            earliest = step + max(0, front - num_layers + 1)
            for now in range(earliest, step + min(window, front + 1)):
                layer = front + step - now
                # Entries seen `lag` steps ago have arrived; that row is the next to be overwritten.
                new, old = now % slots, (now + 1) % slots
                for place in range(layer_start[layer], layer_start[layer + 1]):
                    node = nodes[place]
                    end = seen[new, node] = filled[node]
                    # A complete node needs no chunks; other nodes still read its log.
                    if end == num_chunks:
                        continue
                    # Once per window is sufficient: the row stays in the caches.
                    if now == step:
                        work += _touch_cache_lines(have, node)
                    first = indptr[node]
                    degree = indptr[node + 1] - first
                    # Seeds differ in the first in-link, and therefore in which of two links brings
                    # a chunk.
                    slot = _hash(seed, now, node) % degree if seed and degree else 0
                    work += _match_in_links(
                        first, degree, node, slot, source, log, have, seen, old, cursor, taken
                    )
                    end = _append_to_log(first, degree, end, node, log, carried, now, taken)
                    transfers += end - filled[node]
                    filled[node] = seen[new, node] = end
        step += window
    return step, transfers


@kernel
def advance_cells(shift: Int64Array, own: int, lag: int, seed: int) -> Int64Array:
    """Compute the all-gather of one node in a network in which all nodes are equivalent.

    `shift[j, x]`: number at this node of chunk x of the source of in-link j. `own`: number of
    chunks that are present at the start, with numbers 0..own-1. `lag`: steps until an arrived chunk
    can be forwarded. Returns int64[steps, in-links], the chunk that an in-link brings in a step, -1
    for none. Chunks that never arrive are missing.
    """
    degree, num_chunks = shift.shape
    have = np.zeros(num_chunks, np.bool_)
    have[:own] = True
    log = np.arange(num_chunks)
    count, last_change = own, 0
    seen = np.full(lag, own)
    cursor = np.zeros(degree, np.int64)
    # A chunk arrives within every lag, so this is enough; unwritten memory is not allocated.
    taken = np.empty((num_chunks * lag + 1, degree), np.int64)
    step = 0
    # Without a change for an entire lag, no further change is possible.
    while count < num_chunks and step - last_change <= lag:
        # `np.empty` does not initialize its memory.
        taken[step] = -1
        # The entries that were here `lag` steps ago are now visible at all sources, with their
        # numbers there.
        end = seen[step % lag]
        slot = _hash(seed, step, 0) % degree if seed else 0
        for _ in range(degree):
            # The oldest missing chunk, as in `_match_in_links`.
            while cursor[slot] < end and taken[step, slot] < 0:
                chunk = shift[slot, log[cursor[slot]]]
                cursor[slot] += 1
                if not have[chunk]:
                    have[chunk] = True
                    log[count] = chunk
                    count += 1
                    last_change = step
                    taken[step, slot] = chunk
            slot = (slot + 1) % degree
        seen[step % lag] = count
        step += 1
    return taken[:step]


_MAX_CELLS_PER_BATCH = 1 << 22


def build_symmetric_all_gather(
    network: LinkNetwork,
    translations: Translations,
    busy_ps: int,
    arrival_ps: int,
    origin: Int64Array,
    seed: int,
) -> ArrivalLog:
    """Compute the all-gather of node 0 on a symmetric network, and translate it to every node.

    `translations`: automorphisms of the network, one per node. `busy_ps`, `arrival_ps`: time of
    a chunk on every link, until the link is free and until the chunk arrives. `origin`: node of
    every chunk, equally many per node. `seed`: of the matching, which is that of `advance` with
    chunks numbered relative to the node. On all tested tori the result attains the bound,
    whereas the matching at all nodes takes one more step. Raises `InputError` if the network is
    not connected.
    """
    num_nodes = network.num_npus
    chunks_per_node = len(origin) // num_nodes
    lag = -(-arrival_ps // busy_ps)
    taken = advance_cells(translations.shift_cells(chunks_per_node), chunks_per_node, lag, seed)
    missing = np.setdiff1d(np.arange(chunks_per_node, len(origin)), taken[taken >= 0])
    if len(missing):
        unreached = translations.find_source(int(missing[0]) // chunks_per_node)
        raise unreachable_error(network, unreached, 0)
    by_node = np.argsort(origin, kind="stable").reshape(num_nodes, chunks_per_node)
    return ArrivalLog(
        network=network,
        busy_ps=busy_ps,
        arrival_ps=arrival_ps,
        log=_translate_log(translations, taken, by_node),
        initial_count=np.full(num_nodes, chunks_per_node, np.int64),
        carried=_translate_bits(network, translations, taken),
    )


def _translate_log(
    translations: Translations, taken: Int64Array, chunk_of: Int64Array
) -> Identifiers:
    """Return the logs of all nodes: unsigned integers [nodes, chunks].

    `taken`: per step and in-link of node 0 the relative chunk that it brings, -1 for none.
    `chunk_of`: the chunks of every node. A row has the node's own chunks, then those of the steps;
    chunks of one step are in the order of the node's in-links by number.
    """
    num_nodes, chunks_per_node = chunk_of.shape
    log = np.empty((num_nodes, chunk_of.size), choose_identifier_type(chunk_of.size))
    in_order = np.argsort(translations.in_link, axis=1)
    orders, order_of_node = np.unique(in_order, axis=0, return_inverse=True)
    batch = max(1, _MAX_CELLS_PER_BATCH // chunk_of.size)
    for number, order in enumerate(orders):
        cells = taken[:, order].ravel()
        cells = np.concatenate([np.arange(chunks_per_node), cells[cells >= 0]])
        offset, index = cells // chunks_per_node, cells % chunks_per_node
        equal_nodes = np.flatnonzero(order_of_node.ravel() == number)
        for first in range(0, len(equal_nodes), batch):
            nodes = equal_nodes[first : first + batch]
            log[nodes] = chunk_of[translations.subtract(nodes[:, None], offset), index]
    return log


def _translate_bits(
    network: LinkNetwork, translations: Translations, taken: Int64Array
) -> npt.NDArray[np.uint8]:
    """Return the used links of all nodes as bits: uint8[steps, ceil(links / 8)].

    The lowest bit of a byte is its first link; bits after the last link are 0. A link is used in a
    step if node 0 receives a chunk (not -1 in `taken`) over the in-link of which it is the
    translation.
    """
    links = network.num_links
    carried = np.empty((len(taken), -(-links // 8)), np.uint8)
    batch = max(1, _MAX_CELLS_PER_BATCH // links)
    used = np.empty((batch, links), np.bool_)
    for first in range(0, len(taken), batch):
        rows = taken[first : first + batch] >= 0
        steps = len(rows)
        used[:steps, translations.in_link] = rows[:, None, :]
        bits = np.packbits(used[:steps], axis=1, bitorder="little")
        carried[first : first + steps] = bits
    return carried
