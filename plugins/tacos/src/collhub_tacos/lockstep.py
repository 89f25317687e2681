"""Compiled steps of an all-gather: every idle link takes the oldest chunk that its destination lacks.

One pass over every (link, chunk) pair in all, whatever the number of steps. Import it late: importing numba takes a second.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collhub_tacos.compiling import kernel, part

__all__ = ["Progress", "advance", "advance_cells"]

Int64Array = npt.NDArray[np.int64]


class Progress(NamedTuple):
    """State of the kernel between two slices: all arrays change in place.

    `log`: [nodes, chunks]; `have`: uint64[nodes, words], a bit per chunk; `filled`: int64[nodes], entries of the log;
    `seen`: int64[lag, nodes], entries that neighbours may take in steps of this number modulo the lag; `cursor`:
    int64[links], next entry of the source's log; `open_nodes`: int64[nodes], incomplete nodes first.
    """

    log: npt.NDArray[Any]
    have: npt.NDArray[np.uint64]
    filled: Int64Array
    seen: Int64Array
    cursor: Int64Array
    open_nodes: Int64Array


@part
def _turn(seed: int, step: int, node: int) -> int:
    """A hash of its arguments in 0..2^31-1 (multiply and xor-shift, as in splitmix64)."""
    mixed = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(step) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(31))) + np.uint64(node) * np.uint64(0x94D049BB133111EB)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return int((mixed ^ (mixed >> np.uint64(32))) & np.uint64(0x7FFFFFFF))


@kernel
def advance(
    indptr: Int64Array,
    source: Int64Array,
    state: Progress,
    carried: npt.NDArray[np.uint8],
    first_step: int,
    num_open: int,
    seed: int,
    budget: int,
) -> tuple[int, int]:
    """Do steps from `first_step` on until all nodes are complete, `carried` is full or `budget` cursors have moved.

    Returns the next step and the number of incomplete nodes. With seed 0 a node asks its in-links in order, else from
    a random one on. Entries of one step stand in the order of the links.
    """
    log, have, filled, seen, cursor, open_nodes = state
    num_chunks = log.shape[1]
    lag = seen.shape[0]
    taken = np.empty(max(1, np.max(indptr[1:] - indptr[:-1])), np.int64)
    step = first_step
    while num_open > 0 and step < carried.shape[0] and budget > 0:
        visible = seen[step % lag]
        still_open = 0
        for place in range(num_open):
            node = open_nodes[place]
            first = indptr[node]
            degree = indptr[node + 1] - first
            known = have[node]
            slot = _turn(seed, step, node) % degree if seed and degree else 0
            for _ in range(degree):
                link = first + slot
                origin = source[link]
                position, end = cursor[link], visible[origin]
                entries = log[origin]
                taken[slot] = -1
                while position < end:
                    chunk = np.int64(entries[position])
                    position += 1
                    bit = np.uint64(1) << np.uint64(chunk & 63)
                    if not known[chunk >> 6] & bit:
                        known[chunk >> 6] |= bit
                        taken[slot] = chunk
                        break
                budget -= position - cursor[link]
                cursor[link] = position
                slot += 1
                if slot == degree:
                    slot = 0
            end = filled[node]
            for slot in range(degree):
                if taken[slot] >= 0:
                    log[node, end] = taken[slot]
                    end += 1
                    carried[step, (first + slot) >> 3] |= np.uint8(1 << ((first + slot) & 7))
            filled[node] = end
            if end < num_chunks:
                open_nodes[still_open] = node
                still_open += 1
        num_open = still_open
        visible[:] = filled
        step += 1
    return step, num_open


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
    taken = np.full((num_chunks + lag, degree), -1)
    step = 0
    while count < num_chunks and step < len(taken) and step - last_change <= lag:
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
