"""All-gather in a given number of equal steps, by an exact search for small cases.

A feasibility problem for HiGHS with a binary variable per chunk, link and step that may carry it.
The search is limited by counted work (columns, nodes of the search tree), so its result is the same
on every machine.
"""

from __future__ import annotations

import math

import numpy as np
from collhub_linear_programs import InfeasibleError, LinearProgram, Matrix, solve

from collhub_tacos.link_network import LinkNetwork
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.symmetry import ShortestPaths
from hub_core.columns import Int64Array, distinct, expanded_ranges

MAX_COLUMNS = 10_000
_MAX_NODES = 20


def find_exact_all_gather(
    network: LinkNetwork,
    origin: Int64Array,
    steps: int,
    step_ps: int,
    time_limit_s: float | None = None,
) -> LinkSchedule | str:
    """Find a schedule that brings every chunk to all NPUs in `steps` steps of `step_ps` ps.

    A link carries at most one chunk per step. A chunk that arrives can be forwarded in the
    next step. `origin`: int64, NPU of each chunk. All nodes must be NPUs. `time_limit_s`:
    limit in s of each search, None for no limit. Transfers do not reduce; they are ordered by
    part, then by chunk.

    Searches run for C = 1, 2, ... equal parts until one has a schedule. C are the common
    divisors of `steps` and the number of chunks per NPU; C is only 1 if NPUs with chunks have
    different numbers. Part 0 takes an equal share of each NPU's chunks and gets `steps` / C
    steps. The other parts repeat its schedule one after the other. A search without variables
    or with too many is skipped (`_build_columns`, `MAX_COLUMNS`).

    Without a schedule, the result is a text. It says that no schedule is within the limits if
    the last search that was not skipped failed, and that there are too many variables if all
    were skipped.
    """
    reason = f"not run, more than {MAX_COLUMNS} variables"
    chunk_counts = distinct(np.bincount(origin, minlength=1))
    chunk_counts = chunk_counts[chunk_counts > 0]
    # Chunks can be divided into equal parts only if all NPUs with chunks have equally many.
    common = math.gcd(int(chunk_counts[0]), steps) if len(chunk_counts) == 1 else 1
    for copies in range(1, common + 1):
        if common % copies:
            continue
        chunks = _divide_chunks(origin, copies)
        columns = _build_columns(network, origin[chunks[0]], steps // copies)
        if columns is None:
            continue
        chosen = _solve(network, origin[chunks[0]], steps // copies, *columns, time_limit_s)
        if chosen is None:
            reason = "no schedule within the limits of the search"
            continue
        chunk, link, step = (column[chosen] for column in columns)
        start = (np.arange(copies)[:, None] * (steps // copies) + step).ravel() * step_ps
        return LinkSchedule.without_reduction(
            network, chunks[:, chunk].ravel(), np.tile(link, copies), start, start + step_ps
        )
    return reason


def _divide_chunks(origin: Int64Array, copies: int) -> Int64Array:
    """Divide the chunks into `copies` sets that are equal by NPU: int64[copies, chunks / copies].

    `origin`: NPU of each chunk. Each row has the numbers of the chunks of one set. Of an
    NPU with n chunks, row i has the i-th group of n / `copies` consecutive ones, so all
    chunks of a column start at the same NPU. A row is ordered by NPU, then by number; with
    one copy only by number.

    The caller ensures that all NPUs with chunks have equally many, divisible by `copies`.
    Otherwise the rows are wrong, or `reshape` raises `ValueError`.
    """
    if copies == 1:
        return np.arange(len(origin))[None, :]
    order = np.argsort(origin, kind="stable")
    num_npus = len(distinct(origin))
    by_copy = order.reshape(num_npus, copies, -1).transpose(1, 0, 2)
    return by_copy.reshape(copies, -1)


def _build_columns(
    network: LinkNetwork, origin: Int64Array, steps: int
) -> tuple[Int64Array, Int64Array, Int64Array] | None:
    """Return the variables of the exact search as (chunk, link, step), int64 each.

    A variable states whether the link carries the chunk in the step, from 0 to `steps` - 1.
    `origin`: node of each chunk. d is the number of links on a shortest path from the origin to the
    source of the link. A pair of chunk and link has variables for steps from d on. It has none in
    these cases:

    - d is `steps` or more, or the source cannot be reached.
    - The destination of the link is the origin.

    Order: chunk, then link, then step. Returns None if there is no variable, if there are more than
    10000 (`MAX_COLUMNS`), or if chunks x (nodes - 1) is above 10000.
    """
    # A lower bound of the number of variables: every chunk enters every other node.
    if len(origin) * (network.num_nodes - 1) > MAX_COLUMNS:
        return None
    unit_length = np.ones(network.num_links, np.int64)
    paths = ShortestPaths(network.num_nodes, network.source, network.destination, unit_length)
    # Earliest step in which each link could carry each chunk: [chunks, links].
    earliest = paths.lengths(origin)[:, network.source].astype(np.int64)
    count = np.maximum(0, steps - earliest)
    count[network.destination[None, :] == origin[:, None]] = 0
    if not 0 < count.sum() <= MAX_COLUMNS:
        return None
    chunk, link = (column.astype(np.int64) for column in np.nonzero(count))
    times = count[chunk, link]
    step = expanded_ranges(earliest[chunk, link], times)
    return np.repeat(chunk, times), np.repeat(link, times), step


def _solve(
    network: LinkNetwork,
    origin: Int64Array,
    steps: int,
    chunk: Int64Array,
    link: Int64Array,
    step: Int64Array,
    time_limit_s: float | None,
) -> Int64Array | None:
    """Return the indices of the variables that are 1 in a solution, ascending, or None.

    Variable i means that `link[i]` carries `chunk[i]` in `step[i]`, from 0 to `steps` - 1.
    `origin[c]` is the NPU that has chunk c first. A solution has these properties:

    - Every chunk arrives exactly once at every node other than its origin, and never at its origin.
    - An NPU other than the origin sends a chunk only in a step after its arrival.
    - A link carries at most one chunk per step.

    Any solution is accepted. The search ends after 20 (`_MAX_NODES`) nodes of the branch-and-bound
    tree, or after `time_limit_s` s if that is not None. A solution that was found until then is
    returned. None means that no solution exists, or that none was found within these limits.
    """
    variables = np.arange(len(chunk))
    ones = np.ones(len(chunk))
    source, destination = network.source[link], network.destination[link]
    num_slots = network.num_links * steps
    at = chunk * network.num_nodes + destination
    needs_chunk = np.ones((len(origin), network.num_nodes), np.float64)
    needs_chunk[np.arange(len(origin)), origin] = 0
    # Causality: a chunk that is sent has arrived before, for every variable whose source is not the
    # origin.
    sent = np.flatnonzero(source != origin[chunk])
    order = np.lexsort((step, at))
    key = at[order] * (steps + 1) + step[order]
    source_key = chunk[sent] * network.num_nodes + source[sent]
    begin = np.searchsorted(key, source_key * (steps + 1))
    end = np.searchsorted(key, source_key * (steps + 1) + step[sent])
    length = end - begin
    row = np.repeat(np.arange(len(sent)), length)
    position = expanded_ranges(begin, length)
    needed_arrivals = needs_chunk.ravel()
    first_causal = num_slots + len(needed_arrivals)
    entries = (
        (link * steps + step, variables, ones),
        (num_slots + at, variables, ones),
        (first_causal + np.arange(len(sent)), sent, np.ones(len(sent))),
        (first_causal + row, order[position], np.full(len(row), -1.0)),
    )
    rows, columns, values = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    num_rows = first_causal + len(sent)
    # The node limit gives the same result on every machine; only a time limit does not.
    no_limit = np.full(len(sent), -np.inf)
    program = LinearProgram(
        np.zeros(len(chunk)),
        Matrix(rows, columns, values, num_rows, len(chunk)),
        row_lower=np.concatenate([np.zeros(num_slots), needed_arrivals, no_limit]),
        row_upper=np.concatenate([np.ones(num_slots), needed_arrivals, np.zeros(len(sent))]),
        upper=ones,
        is_integer=np.ones(len(chunk), np.bool_),
    )
    try:
        solution = solve(program, max_nodes=_MAX_NODES, time_limit_s=time_limit_s)
    except InfeasibleError:
        return None
    return None if solution is None else np.flatnonzero(solution.values > 0.5)
