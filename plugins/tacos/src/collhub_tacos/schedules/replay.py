"""Verification of a schedule on its network, independent of the code that built it.

Checks that no transfer is too early, redundant or missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.link_schedule import (
    ArrivalLog,
    ChunkBits,
    LinkSchedule,
    set_chunk_bits,
)
from collhub_tacos.search.seeds import FractionReport, ignore_fraction
from hub_core.columns import BoolArray, Int64Array, counted_positions
from hub_core.model import InputError

Pairs = tuple[Int64Array, Int64Array]

# Earlier than any time, also of a time-reversed schedule.
_BEFORE_ALL_TIMES = -(1 << 62)
_TRANSFERS_PER_SLICE = 1 << 24
# Messages by the members of `replay_kernel.Offence`.
_OFFENCES = ("", "names no chunk", "is sent before it is there", "is there already", "is no link")


def replay(
    schedule: LinkSchedule, times: LinkTimes, origin: Int64Array, needed: Pairs | None = None
) -> int:
    """Verify a schedule; return the last arrival in ps, 0 without transfers.

    Chunk x starts at NPU `origin[x]`; a reduced chunk is summed there. `needed`: (chunk, NPU) pairs
    to serve, None for all. Raises `InputError` (`invalid-schedule`) for the first violated rule:

    1. Chunks and links exist. A transfer lasts as long as the arrival time of its link (at least 1
       ps) and starts at 0 or later. No transfer starts while its link is busy with the previous
       one.
    2. Transfers that reduce, if any: the origin sends no part of its chunk, and no node sends a
       part twice. A part arrives at or before the time when the receiving node sends its sum. Every
       needed NPU contributes.
    3. Other transfers (also without any transfers, but not if all reduce): the origin does not
       receive its chunk, and no node receives it twice. A node sends a chunk at or after its
       arrival, the origin at or after the last arrival of a part there. Every needed NPU receives
       the chunk or is its origin.
    """
    movements = _Movements.of(schedule)
    num_chunks = len(origin)
    _check_range("chunk", movements.chunk, num_chunks)
    _check_range("link", movements.link, movements.network.num_links)
    takes = np.maximum(times.arrival[movements.link], 1)
    is_wrong = movements.finish != movements.start + takes
    is_wrong |= movements.start < 0
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        finish = int(movements.finish[row])
        movements.refuse(row, f"arrives at {finish} ps, not {int(takes[row])} ps later")
    # Sorted by link and start, each message only waits for the one before it.
    order = np.lexsort((movements.start, movements.link))
    link, start = movements.link[order], movements.start[order]
    is_free_at = start[:-1] + times.busy[link[:-1]]
    is_early = (link[1:] == link[:-1]) & (start[1:] < is_free_at)
    if is_early.any():
        movements.refuse(int(order[np.argmax(is_early) + 1]), "starts while the link is busy")
    if needed is None:
        npus = np.arange(schedule.network.num_npus)
        needed = np.repeat(np.arange(num_chunks), len(npus)), np.tile(npus, num_chunks)
    ready = np.zeros(num_chunks, np.int64)
    if schedule.reduces.any():
        sums = movements.select(schedule.reduces)
        sums.record_completion(origin, ready)
        _check_spread(sums.mirror(), origin, np.full_like(ready, _BEFORE_ALL_TIMES), needed)
    # A schedule that only reduces spreads nothing; an empty schedule is checked for completeness.
    if not schedule.reduces.all() or not len(schedule):
        _check_spread(movements.select(~schedule.reduces), origin, ready, needed)
    return schedule.time_ps


def replay_log(
    log: ArrivalLog,
    times: LinkTimes,
    origin: Int64Array,
    progress: FractionReport = ignore_fraction,
) -> int:
    """Verify the log of an all-gather step by step, without expanding it; return its time in ps.

    The time is the arrival of the last step, 0 without steps. `origin`: first node of each chunk.
    Raises `InputError` (`invalid-schedule`) for the first violation of these rules:

    1. No link is busy longer than `log.busy_ps`, and every arrival time is `log.arrival_ps`.
    2. The log has the chunks of `origin`; each node's initial entries are those that start there.
    3. A link that carries a chunk exists, and the log of its destination has an entry for it.
    4. No node receives a chunk twice, or a chunk with which it starts.
    5. A node sends a chunk only in or after the step of its arrival, which is `arrival_ps` /
       `busy_ps` steps, rounded up, after the step in which it was sent.
    6. In the end, every node has all chunks.

    Rules 3 to 5 are checked in each step for all arrivals, then for all starts, by ascending link.
    The message names the link and the step in which the chunk was sent. `progress` gets the checked
    fraction of the steps after about 2^24 transfers each, at most 1.
    """
    # Importing numba takes a second.
    from collhub_tacos.schedules.replay_kernel import Holdings, Offence, replay_steps

    if np.any(times.busy > log.busy_ps) or np.any(times.arrival != log.arrival_ps):
        steps = f"its steps of {log.busy_ps} ps and {log.arrival_ps} ps to the arrival"
        _refuse(f"{steps} are not what the links take")
    network = log.network
    have = _build_initial_holdings(log, origin)
    holdings = Holdings(log.log, have, log.initial_count.copy(), log.initial_count.copy())
    last = log.num_steps + log.lag
    rows = max(1, _TRANSFERS_PER_SLICE * last // max(1, log.num_transfers))
    for first in range(0, last, rows):
        end = min(first + rows, last)
        # The kernel returns a number, which is translated to a message here.
        offence, link, step = replay_steps(
            network.source, network.destination, holdings, log.carried, log.lag, first, end
        )
        if offence != Offence.NONE:
            link_name = _name_link(network, link)
            _refuse(f"what link {link_name} carries in step {step} {_OFFENCES[offence]}")
        progress(end / last)
    num_chunks = holdings.log.shape[1]
    lacking = np.flatnonzero(holdings.arrived < num_chunks)
    if len(lacking):
        npu = int(lacking[0])
        _refuse(f"NPU {npu} gets {int(holdings.arrived[npu])} of {num_chunks} chunks")
    return log.time_ps


def _build_initial_holdings(log: ArrivalLog, origin: Int64Array) -> ChunkBits:
    """Return one bit per node and chunk for the chunks that nodes have at the start.

    `origin`: node at which each chunk starts. The first `initial_count` entries of the log of
    each node are its chunks at the start, in any order. Raise `InputError`
    (`invalid-schedule`) unless every chunk is among the entries of exactly its node, once, and
    the log has as many chunks as `origin`.
    """
    num_nodes, num_chunks = log.log.shape
    node = np.repeat(np.arange(num_nodes), log.initial_count)
    chunk = log.log[node, counted_positions(log.initial_count)].astype(np.int64)
    # The order within a node is arbitrary because the chunks are available from the start.
    in_order = chunk[np.lexsort((chunk, node))]
    is_complete = np.array_equal(in_order, np.argsort(origin, kind="stable"))
    if num_chunks != len(origin) or not is_complete or np.any(origin[chunk] != node):
        _refuse("the logs do not begin with the chunks that start at their nodes")
    return set_chunk_bits(node, chunk, (num_nodes, num_chunks))


@dataclass(frozen=True, slots=True, eq=False)
class _Movements:
    """Transfers as columns; `mirror` reverses time and direction: a reduction is a spread."""

    network: LinkNetwork
    chunk: Int64Array
    link: Int64Array
    start: Int64Array
    finish: Int64Array
    is_mirrored: bool = False

    @classmethod
    def of(cls, schedule: LinkSchedule) -> _Movements:
        """Return the transfers of a schedule in the forward direction, without their reductions.

        The columns are shared with the schedule.
        """
        return cls(
            schedule.network,
            schedule.chunk,
            schedule.link,
            schedule.start,
            schedule.finish,
        )

    @property
    def source(self) -> Int64Array:
        """Return the node from which each transfer brings its chunk: int64[transfers].

        It is the source of the link. In a mirrored schedule, which is reversed in time and
        direction, it is the destination of the link.
        """
        nodes = self.network.destination if self.is_mirrored else self.network.source
        source: Int64Array = nodes[self.link]
        return source

    @property
    def destination(self) -> Int64Array:
        """Return the node to which each transfer brings its chunk: int64[transfers].

        It is the destination of the link. In a mirrored schedule, which is reversed in time and
        direction, it is the source of the link.
        """
        nodes = self.network.source if self.is_mirrored else self.network.destination
        destination: Int64Array = nodes[self.link]
        return destination

    def select(self, rows: BoolArray) -> _Movements:
        """Return the transfers for which `rows` is set, in the forward direction."""
        return _Movements(
            self.network,
            self.chunk[rows],
            self.link[rows],
            self.start[rows],
            self.finish[rows],
        )

    def record_completion(self, origin: Int64Array, ready: Int64Array) -> None:
        """Raise `ready` of each chunk to the last arrival in ps at the `origin` of the chunk.

        The transfers are those of a reduction, so the sum of a chunk is complete at this time.
        A chunk without an arrival at its origin keeps its value. `origin`, `ready`:
        int64[chunks]; `ready` is changed in place, and no value decreases.
        """
        is_result = self.destination == origin[self.chunk]
        finish = np.where(is_result, self.finish, 0)
        np.maximum.at(ready, self.chunk, finish)

    def mirror(self) -> _Movements:
        """Return the transfers reversed in time and direction: a reduction becomes a spread."""
        return _Movements(
            self.network,
            self.chunk,
            self.link,
            start=-self.finish,
            finish=-self.start,
            is_mirrored=True,
        )

    def refuse(self, row: int, offence: str) -> NoReturn:
        """Raise `InputError` (`invalid-schedule`) for the transfer in `row`.

        The message has the chunk, the ends of the link, the start in ps, and `offence`. For a
        mirrored schedule the start is that in the original schedule.
        """
        start = -self.finish[row] if self.is_mirrored else self.start[row]
        link_name = _name_link(self.network, int(self.link[row]))
        _refuse(f"chunk {int(self.chunk[row])} on link {link_name} at {int(start)} ps {offence}")


def _name_link(network: LinkNetwork, link: int) -> str:
    """Return the ends of a link, for messages: `3 -> 4`."""
    return f"{int(network.source[link])} -> {int(network.destination[link])}"


def _refuse(message: str) -> NoReturn:
    """Raise the `InputError` of an invalid schedule."""
    raise InputError(f"invalid schedule: {message}", code="invalid-schedule")


def _check_range(offence: str, column: Int64Array, end: int) -> None:
    """Raise `InputError` (`invalid-schedule`) if a value of `column` is outside 0..end-1.

    The message names the first such row and its value. `offence`: the kind of object that
    the values number, such as `chunk`.
    """
    outside = (column < 0) | (column >= end)
    if outside.any():
        row = int(np.argmax(outside))
        _refuse(f"transfer {row} names {offence} {int(column[row])}, there are {end}")


def _check_spread(
    movements: _Movements, origin: Int64Array, ready: Int64Array, needed: Pairs
) -> None:
    """Raise `InputError` unless every chunk x spreads correctly from node `origin[x]`.

    The rules are checked in this order, and only the first violation is reported (code
    `invalid-schedule`). In a mirrored schedule (a reduction), the texts of rules 3 and 4 are about
    contributions to sums. Without transfers, only rule 4 can fail. Nothing is changed.

    1. No chunk arrives at its origin. The first such row of `movements` is named.
    2. No node receives a chunk twice. The repeated transfer with the smallest (chunk, node) is
       named.
    3. No transfer starts before its source has the chunk: the origin from `ready[x]` (ps) on, any
       other node from its arrival on. Equality is allowed. The first such row is named.
    4. All `needed` pairs (chunk, node) are reached: by a transfer, or because the node is the
       origin. The first missing pair is named.
    """
    chunk, num_nodes = movements.chunk, movements.network.num_nodes
    key = chunk * num_nodes + movements.destination
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    # Check that no node receives a chunk that it has initially, or receives it twice.
    returns = np.flatnonzero(movements.destination == origin[chunk])
    repeats = order[1:][ordered[1:] == ordered[:-1]]
    too_many = np.concatenate([returns, repeats])
    if len(too_many):
        movements.refuse(int(too_many[0]), "is one transfer of it too many there")

    # Transfers from the origin wait for no arrival, only for a complete sum.
    at_origin = movements.source == origin[chunk]
    index, is_brought = _find(ordered, chunk * num_nodes + movements.source)
    arrived = movements.finish[order[index]] if len(order) else np.zeros(0, np.int64)
    since = np.where(at_origin, ready[chunk], arrived)
    is_early = ~(at_origin | is_brought) | (movements.start < since)
    if is_early.any():
        offence = "is sent before it is there"
        if movements.is_mirrored:
            offence = "misses the sum that goes on"
        movements.refuse(int(np.argmax(is_early)), offence)

    needed_chunk, needed_node = needed
    _, is_reached = _find(ordered, needed_chunk * num_nodes + needed_node)
    # Nodes that have the chunk initially need not receive it.
    is_missing = ~is_reached & (origin[needed_chunk] != needed_node)
    if is_missing.any():
        pair = int(np.argmax(is_missing))
        offence = "is never added from" if movements.is_mirrored else "never arrives at"
        _refuse(f"chunk {int(needed_chunk[pair])} {offence} NPU {int(needed_node[pair])}")


def _find(ordered: Int64Array, keys: Int64Array) -> tuple[Int64Array, BoolArray]:
    """Return the index of each key in sorted keys, and whether it exists there: int64, bool.

    The index is that of the first equal key. For a missing key it is that of the next larger one,
    or the last index; 0 if `ordered` is empty.
    """
    last = max(len(ordered) - 1, 0)
    index = np.minimum(np.searchsorted(ordered, keys), last)
    # An empty array must not be indexed.
    if not len(ordered):
        return index, np.zeros(len(keys), np.bool_)
    return index, ordered[index] == keys
