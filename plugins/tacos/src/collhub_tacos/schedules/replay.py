"""Check a schedule against the network, independently of what made it: nothing early, nothing twice, nothing missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.arrival_log import ArrivalLog
from collhub_tacos.schedules.link_schedule import LinkSchedule
from hub_core.diagnostics import InputError

Int64Array = npt.NDArray[np.int64]
Pairs = tuple[Int64Array, Int64Array]


def replay(
    schedule: LinkSchedule, times: LinkTimes, origin: Int64Array, wanted: Pairs | None = None
) -> int:
    """The time of a valid schedule in picoseconds. Raises `InputError` that names the first offence.

    Chunk x starts at NPU `origin[x]`, or ends there where it is reduced, or both in an all-reduce. `wanted`: (chunk,
    node) columns: who needs a chunk or, in a reduction, contributes to it; default all NPUs to all. Rules: a transfer
    takes the time of its link; a link does one at a time; nothing is sent before it is there (a sum: before its parts
    are); no node gets a chunk, or gives its part of a sum, twice. Cost: sorts of the transfers.
    """
    network = schedule.network
    movements = _Movements(network, schedule.chunk, schedule.link, schedule.start, schedule.finish)
    _check_ranges(movements, len(origin))
    _check_times(movements, times)
    _check_links(movements, times)
    pairs = _everywhere(network, len(origin)) if wanted is None else wanted
    ready = np.zeros(len(origin), np.int64)
    if schedule.reduces.any():
        sums = movements.only(schedule.reduces)
        np.maximum.at(
            ready, sums.chunk, np.where(sums.destination == origin[sums.chunk], sums.finish, 0)
        )
        _check_spread(sums.mirrored(), origin, np.full_like(ready, _EVER), pairs)
    if not schedule.reduces.all() or not len(schedule):
        _check_spread(movements.only(~schedule.reduces), origin, ready, pairs)
    return schedule.time_ps


def replay_log(
    log: ArrivalLog,
    times: LinkTimes,
    origin: Int64Array,
    progress: Callable[[float], None] = lambda fraction: None,
) -> int:
    """The time of a valid log in picoseconds, checked by the rules of `replay` for an all-gather, without expanding it.

    Steps are replayed one by one on a bit per node and chunk: one look at every transfer where it starts and one where
    it ends. `progress(fraction)` is called about once a second. Raises `InputError` that names the first offence.
    """
    # Importing numba takes a second.
    from collhub_tacos.schedules.replay_kernel import Holdings, Offence, replay_steps

    if np.any(times.busy > log.busy_ps) or np.any(times.arrival != log.arrival_ps):
        _refuse(
            f"its steps of {log.busy_ps} ps and {log.arrival_ps} ps to the arrival are not what the links take"
        )
    num_chunks = log.log.shape[1]
    have = _holdings_before(log, origin)
    holdings = Holdings(log.log, have, log.own.copy(), log.own.copy())
    last, step = log.num_steps + log.lag, 0
    rows = max(1, _TRANSFERS_AT_ONCE * last // max(1, log.num_transfers))
    while step < last:
        end = min(step + rows, last)
        offence, link, at = replay_steps(
            log.network.source, log.network.destination, holdings, log.carried, log.lag, step, end
        )
        if offence != Offence.NONE:
            way = f"{int(log.network.source[link])} -> {int(log.network.destination[link])}"
            _refuse(f"what link {way} carries in step {at} {_OFFENCES[offence]}")
        step = end
        progress(step / last)
    lacking = np.flatnonzero(holdings.arrived < num_chunks)
    if len(lacking):
        _refuse(
            f"NPU {int(lacking[0])} gets {int(holdings.arrived[lacking[0]])} of {num_chunks} chunks"
        )
    return log.time_ps


_EVER = -(1 << 62)
_TRANSFERS_AT_ONCE = 1 << 24
_OFFENCES = ("", "names no chunk", "is sent before it is there", "is there already", "is no link")


def _holdings_before(log: ArrivalLog, origin: Int64Array) -> npt.NDArray[np.uint64]:
    """A bit per node and chunk that starts there; the logs must begin with these chunks."""
    num_nodes, num_chunks = log.log.shape
    node = np.repeat(np.arange(num_nodes), log.own)
    chunk = log.log[
        node, np.arange(len(node)) - np.repeat(np.cumsum(log.own) - log.own, log.own)
    ].astype(np.int64)
    stated = np.argsort(origin, kind="stable")
    if (
        num_chunks != len(origin)
        or not np.array_equal(chunk[np.lexsort((chunk, node))], stated)
        or np.any(origin[chunk] != node)
    ):
        _refuse("the logs do not begin with the chunks that start at their nodes")
    have = np.zeros((num_nodes, -(-num_chunks // 64)), np.uint64)
    np.bitwise_or.at(have, (node, chunk >> 6), np.uint64(1) << (chunk & 63).astype(np.uint64))
    return have


@dataclass(frozen=True, slots=True, eq=False)
class _Movements:
    """Transfers as columns; `mirrored` reverses time and direction, so that a reduction becomes a spread."""

    network: LinkNetwork
    chunk: Int64Array
    link: Int64Array
    start: Int64Array
    finish: Int64Array
    is_mirrored: bool = False

    @property
    def source(self) -> Int64Array:
        return (
            self.network.destination[self.link]
            if self.is_mirrored
            else self.network.source[self.link]
        )

    @property
    def destination(self) -> Int64Array:
        return (
            self.network.source[self.link]
            if self.is_mirrored
            else self.network.destination[self.link]
        )

    def only(self, rows: npt.NDArray[np.bool_]) -> _Movements:
        return _Movements(
            self.network, self.chunk[rows], self.link[rows], self.start[rows], self.finish[rows]
        )

    def mirrored(self) -> _Movements:
        return _Movements(self.network, self.chunk, self.link, -self.finish, -self.start, True)

    def refuse(self, row: int, what: str) -> None:
        """Raise an error that names transfer `row`, by its true start and direction."""
        link, start = self.link[row], -self.finish[row] if self.is_mirrored else self.start[row]
        way = f"{int(self.network.source[link])} -> {int(self.network.destination[link])}"
        _refuse(f"chunk {int(self.chunk[row])} on link {way} at {int(start)} ps {what}")


def _refuse(message: str) -> None:
    raise InputError(f"invalid schedule: {message}", code="invalid-schedule")


def _everywhere(network: LinkNetwork, num_chunks: int) -> Pairs:
    chunk = np.repeat(np.arange(num_chunks), network.num_npus)
    return chunk, np.tile(np.arange(network.num_npus), num_chunks)


def _check_ranges(movements: _Movements, num_chunks: int) -> None:
    for what, column, end in (
        ("chunk", movements.chunk, num_chunks),
        ("link", movements.link, movements.network.num_links),
    ):
        outside = (column < 0) | (column >= end)
        if outside.any():
            row = int(np.argmax(outside))
            _refuse(f"transfer {row} names {what} {int(column[row])}, there are {end}")


def _check_times(movements: _Movements, times: LinkTimes) -> None:
    takes = np.maximum(times.arrival[movements.link], 1)
    wrong = (movements.start < 0) | (movements.finish != movements.start + takes)
    if wrong.any():
        row = int(np.argmax(wrong))
        movements.refuse(
            row, f"arrives at {int(movements.finish[row])} ps, not {int(takes[row])} ps later"
        )


def _check_links(movements: _Movements, times: LinkTimes) -> None:
    order = np.lexsort((movements.start, movements.link))
    link, start = movements.link[order], movements.start[order]
    early = (link[1:] == link[:-1]) & (start[1:] < start[:-1] + times.busy[link[:-1]])
    if early.any():
        row = int(order[np.argmax(early) + 1])
        movements.refuse(row, "starts while the link is busy")


def _check_spread(
    movements: _Movements, origin: Int64Array, ready: Int64Array, wanted: Pairs
) -> None:
    """Chunk x is at `origin[x]` from `ready[x]` on, is sent from where it has arrived, and reaches all who want it."""
    num_nodes = movements.network.num_nodes
    key = movements.chunk * num_nodes + movements.destination
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    returns = movements.destination == origin[movements.chunk]
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if returns.any() or len(twice):
        row = int(np.argmax(returns)) if returns.any() else int(order[twice[0] + 1])
        movements.refuse(row, "is one transfer of it too many there")
    at_origin = movements.source == origin[movements.chunk]
    place, is_there = _find(ordered, movements.chunk * num_nodes + movements.source)
    since = np.where(
        at_origin, ready[movements.chunk], movements.finish[order[place]] if len(order) else 0
    )
    early = ~(at_origin | is_there) | (movements.start < since)
    if early.any():
        row = int(np.argmax(early))
        movements.refuse(
            row,
            "misses the sum that goes on"
            if movements.is_mirrored
            else "is sent before it is there",
        )
    chunk, node = wanted
    missing = ~_find(ordered, chunk * num_nodes + node)[1] & (origin[chunk] != node)
    if missing.any():
        pair = int(np.argmax(missing))
        verb = "is never added" if movements.is_mirrored else "never arrives"
        side = "from" if movements.is_mirrored else "at"
        _refuse(f"chunk {int(chunk[pair])} {verb} {side} NPU {int(node[pair])}")


def _find(ordered: Int64Array, wanted: Int64Array) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Where each wanted key stands in ordered ones, and whether it does."""
    place = np.minimum(np.searchsorted(ordered, wanted), max(len(ordered) - 1, 0))
    return place, ordered[place] == wanted if len(ordered) else np.zeros(len(wanted), np.bool_)
