"""Check a schedule against the network, independently of what made it.

Nothing early, nothing twice, nothing missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.arrival_log import ArrivalLog, ChunkBits, chunk_bits
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.seed_search import FractionReport, ignore_fraction
from hub_core.columns import BoolArray, Int64Array, counted_positions
from hub_core.model import InputError

if TYPE_CHECKING:
    from collhub_tacos.schedules.replay_kernel import Holdings

Pairs = tuple[Int64Array, Int64Array]

# Before any time, also of a schedule that is mirrored.
_EVER = -(1 << 62)
_TRANSFERS_AT_ONCE = 1 << 24
# By the members of `replay_kernel.Offence`.
_OFFENCES = ("", "names no chunk", "is sent before it is there", "is there already", "is no link")


def replay(
    schedule: LinkSchedule, times: LinkTimes, origin: Int64Array, wanted: Pairs | None = None
) -> int:
    """Time of a valid schedule in picoseconds. Raises `InputError` that names the first offence.

    Chunk x starts at NPU `origin[x]`, or ends there where it is reduced, or both in an all-reduce.
    `wanted`: (chunk, node) columns: who needs a chunk or, in a reduction, contributes to it;
    default all NPUs to all. Rules: a transfer takes the time of its link; a link does one at a
    time; nothing is sent before it is there (a sum: before its parts are); no node gets a chunk, or
    gives its part of a sum, twice. Cost: sorts of the transfers.
    """
    movements = _Movements.of(schedule)
    _check_ranges(movements, len(origin))
    _check_times(movements, times)
    _check_links(movements, times)
    pairs = _everywhere(schedule.network, len(origin)) if wanted is None else wanted
    ready = np.zeros(len(origin), np.int64)
    if schedule.reduces.any():
        sums = movements.only(schedule.reduces)
        sums.complete(origin, ready)
        _check_spread(sums.mirrored(), origin, np.full_like(ready, _EVER), pairs)
    # A schedule that reduces alone spreads nothing; one without transfers must still be enough.
    if not schedule.reduces.all() or not len(schedule):
        _check_spread(movements.only(~schedule.reduces), origin, ready, pairs)
    return schedule.time_ps


def replay_log(
    log: ArrivalLog,
    times: LinkTimes,
    origin: Int64Array,
    progress: FractionReport = ignore_fraction,
) -> int:
    """Time of a valid log in picoseconds, by the rules of `replay`, without expanding it.

    Steps are replayed one by one on a bit per node and chunk: one look at every transfer where it
    starts and one where it ends. `progress(fraction)` is called about once a second. Raises
    `InputError` that names the first offence.
    """
    # Importing numba takes a second.
    from collhub_tacos.schedules.replay_kernel import Holdings

    _check_steps(log, times)
    have = _holdings_before(log, origin)
    holdings = Holdings(log.log, have, log.own.copy(), log.own.copy())
    last = log.num_steps + log.lag
    rows = max(1, _TRANSFERS_AT_ONCE * last // max(1, log.num_transfers))
    for first in range(0, last, rows):
        end = min(first + rows, last)
        _replay_slice(log, holdings, first, end)
        progress(end / last)
    _check_complete(holdings)
    return log.time_ps


def _check_steps(log: ArrivalLog, times: LinkTimes) -> None:
    """A step must be long enough for every link, and the arrival that of all links."""
    if np.any(times.busy > log.busy_ps) or np.any(times.arrival != log.arrival_ps):
        steps = f"its steps of {log.busy_ps} ps and {log.arrival_ps} ps to the arrival"
        _refuse(f"{steps} are not what the links take")


def _replay_slice(log: ArrivalLog, holdings: Holdings, first: int, end: int) -> None:
    from collhub_tacos.schedules.replay_kernel import Offence, replay_steps

    network = log.network
    # Compiled code returns numbers: what they mean is said here.
    offence, link, step = replay_steps(
        network.source, network.destination, holdings, log.carried, log.lag, first, end
    )
    if offence != Offence.NONE:
        way = _ends(network, link)
        _refuse(f"what link {way} carries in step {step} {_OFFENCES[offence]}")


def _check_complete(holdings: Holdings) -> None:
    num_chunks = holdings.log.shape[1]
    lacking = np.flatnonzero(holdings.arrived < num_chunks)
    if len(lacking):
        npu = int(lacking[0])
        _refuse(f"NPU {npu} gets {int(holdings.arrived[npu])} of {num_chunks} chunks")


def _holdings_before(log: ArrivalLog, origin: Int64Array) -> ChunkBits:
    """Bit per node and chunk that starts there; the logs must begin with these chunks."""
    num_nodes, num_chunks = log.log.shape
    node = np.repeat(np.arange(num_nodes), log.own)
    chunk = log.log[node, counted_positions(log.own)].astype(np.int64)
    # In any order within a node: what it has at the start, it has at once.
    in_order = chunk[np.lexsort((chunk, node))]
    is_each_there = np.array_equal(in_order, np.argsort(origin, kind="stable"))
    if num_chunks != len(origin) or not is_each_there or np.any(origin[chunk] != node):
        _refuse("the logs do not begin with the chunks that start at their nodes")
    return chunk_bits(node, chunk, (num_nodes, num_chunks))


@dataclass(frozen=True, slots=True, eq=False)
class _Movements:
    """Transfers as columns; `mirrored` reverses time and direction: a reduction is a spread."""

    network: LinkNetwork
    chunk: Int64Array
    link: Int64Array
    start: Int64Array
    finish: Int64Array
    is_mirrored: bool = False

    @classmethod
    def of(cls, schedule: LinkSchedule) -> _Movements:
        return cls(
            schedule.network,
            schedule.chunk,
            schedule.link,
            schedule.start,
            schedule.finish,
        )

    @property
    def source(self) -> Int64Array:
        """Node where each transfer begins, or ends if mirrored: int64."""
        ends = self.network.destination if self.is_mirrored else self.network.source
        source: Int64Array = ends[self.link]
        return source

    @property
    def destination(self) -> Int64Array:
        """Node where each transfer ends, or begins if mirrored: int64."""
        ends = self.network.source if self.is_mirrored else self.network.destination
        destination: Int64Array = ends[self.link]
        return destination

    def only(self, rows: BoolArray) -> _Movements:
        return _Movements(
            self.network,
            self.chunk[rows],
            self.link[rows],
            self.start[rows],
            self.finish[rows],
        )

    def complete(self, origin: Int64Array, ready: Int64Array) -> None:
        """Put into `ready` when the last part of every sum has come to its origin."""
        is_result = self.destination == origin[self.chunk]
        finish = np.where(is_result, self.finish, 0)
        np.maximum.at(ready, self.chunk, finish)

    def mirrored(self) -> _Movements:
        return _Movements(
            self.network,
            self.chunk,
            self.link,
            start=-self.finish,
            finish=-self.start,
            is_mirrored=True,
        )

    def refuse(self, row: int, what: str) -> NoReturn:
        """Raise an error that names transfer `row`, by its true start and direction."""
        start = -self.finish[row] if self.is_mirrored else self.start[row]
        way = _ends(self.network, int(self.link[row]))
        _refuse(f"chunk {int(self.chunk[row])} on link {way} at {int(start)} ps {what}")


def _ends(network: LinkNetwork, link: int) -> str:
    return f"{int(network.source[link])} -> {int(network.destination[link])}"


def _refuse(message: str) -> NoReturn:
    raise InputError(f"invalid schedule: {message}", code="invalid-schedule")


def _everywhere(network: LinkNetwork, num_chunks: int) -> Pairs:
    npus = np.arange(network.num_npus)
    chunk = np.repeat(np.arange(num_chunks), len(npus))
    return chunk, np.tile(npus, num_chunks)


def _check_ranges(movements: _Movements, num_chunks: int) -> None:
    """Raise `InputError` for a chunk or a link that is not there."""
    _check_range("chunk", movements.chunk, num_chunks)
    _check_range("link", movements.link, movements.network.num_links)


def _check_range(what: str, column: Int64Array, end: int) -> None:
    outside = (column < 0) | (column >= end)
    if outside.any():
        row = int(np.argmax(outside))
        _refuse(f"transfer {row} names {what} {int(column[row])}, there are {end}")


def _check_times(movements: _Movements, times: LinkTimes) -> None:
    # Kernels let every message take a picosecond, so that events follow one another.
    takes = np.maximum(times.arrival[movements.link], 1)
    is_wrong = movements.finish != movements.start + takes
    is_wrong |= movements.start < 0
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        finish = int(movements.finish[row])
        movements.refuse(row, f"arrives at {finish} ps, not {int(takes[row])} ps later")


def _check_links(movements: _Movements, times: LinkTimes) -> None:
    # Of the messages of a link each has to wait for the one before alone.
    order = np.lexsort((movements.start, movements.link))
    link, start = movements.link[order], movements.start[order]
    is_free_at = start[:-1] + times.busy[link[:-1]]
    early = (link[1:] == link[:-1]) & (start[1:] < is_free_at)
    if early.any():
        row = int(order[np.argmax(early) + 1])
        movements.refuse(row, "starts while the link is busy")


def _check_spread(
    movements: _Movements, origin: Int64Array, ready: Int64Array, wanted: Pairs
) -> None:
    """Chunk x is at `origin[x]` from `ready[x]` on and is sent from where it has arrived.

    It reaches all who want it. Rows are found by (chunk, node), as one number.
    """
    num_nodes = movements.network.num_nodes
    key = movements.chunk * num_nodes + movements.destination
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    _check_once(movements, origin, order, ordered)
    _check_causes(movements, origin, ready, order, ordered)
    _check_wanted(movements, origin, ordered, wanted)


def _check_once(
    movements: _Movements, origin: Int64Array, order: Int64Array, ordered: Int64Array
) -> None:
    """No node gets a chunk that it has from the start, or gets it twice."""
    returns = np.flatnonzero(movements.destination == origin[movements.chunk])
    repeats = order[1:][ordered[1:] == ordered[:-1]]
    too_many = np.concatenate([returns, repeats])
    if len(too_many):
        movements.refuse(int(too_many[0]), "is one transfer of it too many there")


def _check_causes(
    movements: _Movements,
    origin: Int64Array,
    ready: Int64Array,
    order: Int64Array,
    ordered: Int64Array,
) -> None:
    """Every transfer starts when its source has the chunk, or, mirrored, all parts of the sum."""
    # What leaves its origin waits for no arrival, but for a sum to be complete.
    at_origin = movements.source == origin[movements.chunk]
    key = movements.chunk * movements.network.num_nodes + movements.source
    place, is_there = _find(ordered, key)
    arrived = movements.finish[order[place]] if len(order) else np.zeros(0, np.int64)
    since = np.where(at_origin, ready[movements.chunk], arrived)
    early = ~(at_origin | is_there) | (movements.start < since)
    if not early.any():
        return
    what = "is sent before it is there"
    if movements.is_mirrored:
        what = "misses the sum that goes on"
    movements.refuse(int(np.argmax(early)), what)


def _check_wanted(
    movements: _Movements, origin: Int64Array, ordered: Int64Array, wanted: Pairs
) -> None:
    """Who wants a chunk gets it, or, mirrored, gives its part of the sum."""
    chunk, node = wanted
    _, is_there = _find(ordered, chunk * movements.network.num_nodes + node)
    # Who has a chunk from the start need not get it.
    has_it = origin[chunk] == node
    missing = ~is_there & ~has_it
    if not missing.any():
        return
    pair = int(np.argmax(missing))
    what = "never arrives at"
    if movements.is_mirrored:
        what = "is never added from"
    _refuse(f"chunk {int(chunk[pair])} {what} NPU {int(node[pair])}")


def _find(ordered: Int64Array, wanted: Int64Array) -> tuple[Int64Array, BoolArray]:
    """Where each wanted key stands in ordered ones, and whether it does."""
    last = max(len(ordered) - 1, 0)
    place = np.minimum(np.searchsorted(ordered, wanted), last)
    # No place may be looked at in an empty list.
    if not len(ordered):
        return place, np.zeros(len(wanted), np.bool_)
    return place, ordered[place] == wanted
