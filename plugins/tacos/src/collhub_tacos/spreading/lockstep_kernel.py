"""Compiled steps of an all-gather: every idle link takes the oldest chunk that its destination lacks.

One pass over every (link, chunk) pair in all, whatever the number of steps. Import it late: importing numba takes a second.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collhub_tacos.compiling import kernel, part

Int64Array = npt.NDArray[np.int64]


class LockstepState(NamedTuple):
    """State of the kernel between two slices: all arrays change in place.

    `log`: [nodes, chunks]; `have`: uint64[nodes, words], a bit per chunk; `filled`: int64[nodes], entries of the log;
    `seen`: int64[lag + 1, nodes], `filled` at the end of each of the last steps, by its number modulo `lag + 1`;
    `cursor`: int64[links], next entry of the source's log.
    """

    log: npt.NDArray[Any]
    have: npt.NDArray[np.uint64]
    filled: Int64Array
    seen: Int64Array
    cursor: Int64Array


class Layers(NamedTuple):
    """Nodes in an order of which links join only neighbouring layers: layer i is `nodes[indptr[i]:indptr[i + 1]]`."""

    nodes: Int64Array
    indptr: Int64Array


@part
def _turn(seed: int, step: int, node: int) -> int:
    """A hash of its arguments in 0..2^31-1 (multiply and xor-shift, as in splitmix64)."""
    mixed = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(step) * np.uint64(
        0xBF58476D1CE4E5B9
    )
    mixed = (mixed ^ (mixed >> np.uint64(31))) + np.uint64(node) * np.uint64(0x94D049BB133111EB)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return int((mixed ^ (mixed >> np.uint64(32))) & np.uint64(0x7FFFFFFF))


@part
def _touch(have: npt.NDArray[np.uint64], node: int) -> int:
    """Read a word of every cache line of a row in order, which is faster than missing them one by one in random order."""
    used = 0
    for word in range(0, have.shape[1], 8):
        used += have[node, word] != 0
    return used


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
    """Do windows of steps from `first_step` on until nothing moves, `carried` is full or `budget` is used up.

    In a window, which lasts no less than the lag, layer i does a step when layer i + 1 has done the one before: it is at
    most one step ahead and finds what was there. With seed 0 a node asks its in-links in order, else from a random one
    on; entries of one step stand in the order of links. `budget`: entries looked at. Returns the next step and the
    transfers of the last window.
    """
    (log, have, filled, seen, cursor), (nodes, layer_start) = state, layers
    num_chunks, slots, num_layers = log.shape[1], seen.shape[0], len(layer_start) - 1
    work, transfers, step = 0, 1, first_step
    taken = np.empty(max(1, np.max(indptr[1:] - indptr[:-1])), np.int64)
    while transfers and step + window <= carried.shape[0] and work <= budget:
        transfers = 0
        for front in range(num_layers + window - 1):
            for now in range(step + max(0, front - num_layers + 1), step + min(window, front + 1)):
                layer, new, old = front + step - now, now % slots, (now + 1) % slots
                for place in range(layer_start[layer], layer_start[layer + 1]):
                    node = nodes[place]
                    end = seen[new, node] = filled[node]
                    if end == num_chunks:
                        continue
                    work += _touch(have, node) if now == step else 0
                    first = indptr[node]
                    degree = indptr[node + 1] - first
                    slot = _turn(seed, now, node) % degree if seed and degree else 0
                    for _ in range(degree):
                        link, other = first + slot, source[first + slot]
                        position, last = cursor[link], seen[old, other]
                        taken[slot] = -1
                        while position < last:
                            chunk = np.int64(log[other, position])
                            position += 1
                            bit = np.uint64(1) << np.uint64(chunk & 63)
                            if not have[node, chunk >> 6] & bit:
                                have[node, chunk >> 6] |= bit
                                taken[slot] = chunk
                                break
                        work += position - cursor[link]
                        cursor[link] = position
                        slot = slot + 1 if slot + 1 < degree else 0
                    for slot in range(degree):
                        if taken[slot] >= 0:
                            log[node, end] = taken[slot]
                            end += 1
                            carried[now, (first + slot) >> 3] |= np.uint8(1 << ((first + slot) & 7))
                    transfers += end - filled[node]
                    filled[node] = seen[new, node] = end
        step += window
    return step, transfers


@kernel
def advance_cells(shift: Int64Array, own: int, lag: int, seed: int) -> Int64Array:
    """The same on one node of a network that looks alike from all: which chunk comes over which in-link in which step.

    `shift[j, x]`: what chunk x of the source of in-link j is at this node; chunks 0..own-1 are there before. Returns
    int64[steps, in-links], -1 for an idle link; without all chunks where some never arrive.
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
    while count < num_chunks and step - last_change <= lag:
        taken[step] = -1
        end = seen[step % lag]
        slot = _turn(seed, step, 0) % degree if seed else 0
        for _ in range(degree):
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
