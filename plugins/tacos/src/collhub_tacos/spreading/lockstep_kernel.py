"""Compiled steps of an all-gather on equal links: TACOS's matching with arrival logs.

Algorithm: TACOS (Won et al., MICRO 2024) matches, in every step of the time-expanded network, the
chunks that nodes lack to idle links whose source has them. Here every node keeps a log of its
chunks in order of arrival, and every link a cursor into the log of its source: an idle link takes
the first chunk behind its cursor that its destination lacks, that is the oldest one.

Invariant: what lies before a cursor is held by the destination of its link. A chunk that a node
has once it has for ever, so that an entry that was skipped is never looked at again. The matching
is maximal: a link idles only when its source has nothing visible that the destination lacks.

Cost: one look at every (link, chunk) pair in all, whatever the number of steps; the rest is
latency of memory. So steps are done in windows, layer by layer of the network, while the logs of
neighbouring layers are in the caches.

Import it late: importing numba takes a second.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from collhub_packing.compiling import inlined, kernel, part

from collhub_tacos.networks.distances import unreachable_error
from collhub_tacos.networks.link_network import LinkNetwork
from collhub_tacos.networks.symmetry import Translations
from collhub_tacos.schedules.arrival_log import ArrivalLog, Identifiers, choose_identifier_type
from hub_core.columns import Int64Array


class LockstepState(NamedTuple):
    """State of the kernel between two slices: all arrays change in place.

    `log`: [nodes, chunks]; `have`: uint64[nodes, words], a bit per chunk; `filled`: int64[nodes],
    entries of the log; `seen`: int64[lag + 1, nodes], `filled` at the end of each of the last
    steps, by its number modulo `lag + 1`; `cursor`: int64[links], next entry of the source's log.
    """

    log: npt.NDArray[Any]
    have: npt.NDArray[np.uint64]
    filled: Int64Array
    seen: Int64Array
    cursor: Int64Array


class Layers(NamedTuple):
    """Nodes in an order of which links join only neighbouring layers.

    Layer i is `nodes[indptr[i]:indptr[i + 1]]`.
    """

    nodes: Int64Array
    indptr: Int64Array


@part
def _turn(seed: int, step: int, node: int) -> int:
    """A hash of its arguments in 0..2^31-1.

    Multiply and xor-shift, as in splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    mixed = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)
    mixed += np.uint64(step) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = mixed ^ (mixed >> np.uint64(31))
    mixed += np.uint64(node) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(29))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return int((mixed ^ (mixed >> np.uint64(32))) & np.uint64(0x7FFFFFFF))


@part
def _touch(have: npt.NDArray[np.uint64], node: int) -> int:
    """Read a word of every cache line of a row in order; return how many are not zero.

    That is faster than missing the lines one by one in random order.
    """
    used = 0
    for word in range(0, have.shape[1], 8):
        used += have[node, word] != 0
    return used


@inlined
def _match(
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
    """Give every in-link of a node, from `slot` on and round, the oldest chunk that it lacks.

    `taken`: result per in-link, -1 for none. Returns the number of entries looked at.
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
                # From here on it counts as held: no other in-link brings it as well.
                have[node, chunk >> 6] |= bit
                taken[slot] = chunk
                break
        work += position - cursor[link]
        cursor[link] = position
        slot = slot + 1 if slot + 1 < degree else 0
    return work


@inlined
def _enter(
    first: int,
    degree: int,
    end: int,
    node: int,
    log: npt.NDArray[Any],
    carried: npt.NDArray[np.uint8],
    now: int,
    taken: Int64Array,
) -> int:
    """Enter what the in-links of a node took behind its log, in the order of links."""
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
    """Do windows of steps from `first_step` on, until nothing moves or `budget` is used up.

    Or until `carried` is full. In a window, which lasts no less than the lag, layer i does a step
    when layer i + 1 has done the one before: it is at most one step ahead and finds what was there.
    With seed 0 a node asks its in-links in order, else from a random one on; entries of one step
    stand in the order of links. `budget`: entries looked at. Returns the next step and the
    transfers of the last window.
    """
    (log, have, filled, seen, cursor), (nodes, layer_start) = state, layers
    num_chunks, slots, num_layers = log.shape[1], seen.shape[0], len(layer_start) - 1
    work, transfers, step = 0, 1, first_step
    # What each in-link of the node in hand takes, entered in the order of links afterwards.
    taken = np.empty(max(1, np.max(indptr[1:] - indptr[:-1])), np.int64)
    while transfers and step + window <= carried.shape[0] and work <= budget:
        transfers = 0
        # Fronts run through layers and steps at once: caches hold the logs of a front.
        for front in range(num_layers + window - 1):
            earliest = step + max(0, front - num_layers + 1)
            for now in range(earliest, step + min(window, front + 1)):
                layer = front + step - now
                # What was seen `lag` steps ago has arrived; its row is the next to be overwritten.
                new, old = now % slots, (now + 1) % slots
                for place in range(layer_start[layer], layer_start[layer + 1]):
                    node = nodes[place]
                    end = seen[new, node] = filled[node]
                    # A complete node asks for nothing; others still read its log.
                    if end == num_chunks:
                        continue
                    # Once a window is enough: the row stays in the caches.
                    if now == step:
                        work += _touch(have, node)
                    first = indptr[node]
                    degree = indptr[node + 1] - first
                    # Seeds differ in who is asked first, and so in who of two brings a chunk.
                    slot = _turn(seed, now, node) % degree if seed and degree else 0
                    work += _match(
                        first, degree, node, slot, source, log, have, seen, old, cursor, taken
                    )
                    end = _enter(first, degree, end, node, log, carried, now, taken)
                    transfers += end - filled[node]
                    filled[node] = seen[new, node] = end
        step += window
    return step, transfers


@kernel
def advance_cells(shift: Int64Array, own: int, lag: int, seed: int) -> Int64Array:
    """Do the same at one node of a network that looks alike from all.

    `shift[j, x]`: what chunk x of the source of in-link j is at this node; chunks 0..own-1 are
    there before. Returns int64[steps, in-links], the chunk that comes over an in-link in a step, -1
    for an idle link; without all chunks where some never arrive.
    """
    degree, num_chunks = shift.shape
    have = np.zeros(num_chunks, np.bool_)
    have[:own] = True
    log = np.arange(num_chunks)
    count, last_change = own, 0
    seen = np.full(lag, own)
    cursor = np.zeros(degree, np.int64)
    # Some chunk arrives within every lag; memory is taken only where it is written.
    taken = np.empty((num_chunks * lag + 1, degree), np.int64)
    step = 0
    # A lag without a change leaves nothing new to see: it will stay so.
    while count < num_chunks and step - last_change <= lag:
        # Memory from `np.empty` holds anything.
        taken[step] = -1
        # What was here `lag` steps ago is at all sources, as they see it, now.
        end = seen[step % lag]
        slot = _turn(seed, step, 0) % degree if seed else 0
        for _ in range(degree):
            # The oldest chunk that is not here yet, as in `_match`.
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


_CELLS_AT_ONCE = 1 << 22


def symmetric_all_gather(
    network: LinkNetwork,
    translations: Translations,
    busy_ps: int,
    arrival_ps: int,
    origin: Int64Array,
    seed: int,
) -> ArrivalLog:
    """Every node does what node 0 does, moved to it.

    What node 0 does is the lockstep matching of `lockstep_kernel` on chunks named by how far they
    come. On all tori that were tried this meets the bound; the same matching on all nodes, each
    for itself, takes a step more. Raises `InputError` where the network is not connected.
    """
    num_nodes = network.num_npus
    own = len(origin) // num_nodes
    lag = -(-arrival_ps // busy_ps)
    taken = advance_cells(translations.shift_cells(own), own, lag, seed)
    missing = np.setdiff1d(np.arange(own, len(origin)), taken[taken >= 0])
    if len(missing):
        far = translations.find_source(int(missing[0]) // own)
        raise unreachable_error(network, far, 0)
    by_node = np.argsort(origin, kind="stable").reshape(num_nodes, own)
    return ArrivalLog(
        network=network,
        busy_ps=busy_ps,
        arrival_ps=arrival_ps,
        log=_moved_log(translations, taken, by_node),
        own=np.full(num_nodes, own, np.int64),
        carried=_moved_bits(network, translations, taken),
    )


def _moved_log(translations: Translations, taken: Int64Array, chunk_of: Int64Array) -> Identifiers:
    """Logs of all nodes; nodes whose in-links have the same order of differences go together."""
    num_nodes, own = chunk_of.shape
    log = np.empty((num_nodes, chunk_of.size), choose_identifier_type(chunk_of.size))
    in_order = np.argsort(translations.in_link, axis=1)
    orders, which = np.unique(in_order, axis=0, return_inverse=True)
    batch = max(1, _CELLS_AT_ONCE // chunk_of.size)
    for number, order in enumerate(orders):
        cells = taken[:, order].ravel()
        cells = np.concatenate([np.arange(own), cells[cells >= 0]])
        offset, place = cells // own, cells % own
        alike = np.flatnonzero(which.ravel() == number)
        for first in range(0, len(alike), batch):
            nodes = alike[first : first + batch]
            log[nodes] = chunk_of[translations.subtract(nodes[:, None], offset), place]
    return log


def _moved_bits(
    network: LinkNetwork, translations: Translations, taken: Int64Array
) -> npt.NDArray[np.uint8]:
    """Bit per link and step, uint8[steps, ceil(links / 8)]: what node 0 uses, at every node."""
    links = network.num_links
    carried = np.empty((len(taken), -(-links // 8)), np.uint8)
    batch = max(1, _CELLS_AT_ONCE // links)
    used = np.empty((batch, links), np.bool_)
    for first in range(0, len(taken), batch):
        rows = taken[first : first + batch] >= 0
        steps = len(rows)
        used[:steps, translations.in_link] = rows[:, None, :]
        bits = np.packbits(used[:steps], axis=1, bitorder="little")
        carried[first : first + steps] = bits
    return carried
