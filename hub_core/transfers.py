"""From a schedule - which chunk goes over which link, and when - to an algorithm: what every synthesizer needs last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hub_core.model.algorithm import Algorithm, JsonValue, Provenance
from hub_core.model.collectives import ALL_RANKS, Collective, Contributions, CustomContract
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import Buffer, CollectiveKind, StepKind
from hub_core.model.steps import COLUMN_DEFAULTS, StepTable

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_NOWHERE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """The pieces of a collective's data that travel as a whole, as int64 columns; units and ranks are the collective's.

    `origin`: the rank whose INPUT holds the chunk before, or -1: all ranks contribute, and it is reduced.
    `input_offset`, `output_offset`, `count`: where it lies in INPUT before, in OUTPUT after, and its units.
    `target`: the rank that must have it, or -1 for all.
    """

    origin: Int64Array
    input_offset: Int64Array
    output_offset: Int64Array
    count: Int64Array
    target: Int64Array

    def __len__(self) -> int:
        return len(self.count)

    @classmethod
    def cut(cls, collective: Collective, sizes: Sequence[int] | Int64Array) -> Chunks:
        """Cut every share of a collective into pieces of `sizes` units; their sum is `collective.units_per_rank`.

        A share is what one rank gives, or gets, or sends to one other; the whole vector where it is not split. Chunk
        ids: `share * len(sizes) + piece`; shares of an all-to-all are numbered `source * num_ranks + destination`.
        """
        sizes = np.asarray(sizes, np.int64)
        if int(sizes.sum()) != collective.units_per_rank or (len(sizes) and int(sizes.min()) < 1):
            raise InputError(
                f"pieces of {int(sizes.sum())} units do not make a share of {collective.units_per_rank}"
            )
        n, kind, share = collective.num_ranks, collective.kind, collective.units_per_rank
        is_split = share * n == collective.unit_count and kind not in _WHOLE
        shares = np.arange(
            n * n if kind is CollectiveKind.ALL_TO_ALL else n if is_split else 1, dtype=np.int64
        )
        giver, taker = (
            np.divmod(shares, n) if kind is CollectiveKind.ALL_TO_ALL else (shares, shares)
        )
        everyone = np.full(len(shares), ALL_RANKS, np.int64)
        root = np.full(
            len(shares), _NOWHERE if collective.root is None else collective.root, np.int64
        )
        nothing = np.zeros(len(shares), np.int64)
        origin, input_share, output_share, target = {
            CollectiveKind.ALL_REDUCE: (everyone, nothing, nothing, everyone),
            CollectiveKind.REDUCE: (everyone, nothing, nothing, root),
            CollectiveKind.BROADCAST: (root, nothing, nothing, everyone),
            CollectiveKind.ALL_GATHER: (giver, nothing, giver, everyone),
            CollectiveKind.GATHER: (giver, nothing, giver, root),
            CollectiveKind.REDUCE_SCATTER: (everyone, taker, nothing, taker),
            CollectiveKind.SCATTER: (root, taker, nothing, taker),
            CollectiveKind.ALL_TO_ALL: (giver, taker, giver, taker),
        }[kind]
        within = np.cumsum(sizes) - sizes
        pieces = len(sizes)
        return cls(
            np.repeat(origin, pieces),
            (input_share[:, None] * share + within).ravel(),
            (output_share[:, None] * share + within).ravel(),
            np.tile(sizes, len(shares)),
            np.repeat(target, pieces),
        )


_WHOLE = frozenset({CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.BROADCAST})


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """A schedule as columns of equal length: chunk `chunk[i]` goes from NPU `source[i]` to NPU `destination[i]`.

    `start`, `finish`: int64 times in any one unit; only their order counts. Transfers with one value of `link` take
    turns in the order of `start` (the first link of the route; ids of the caller's choice). `reduces`: the chunk is
    added to what the destination has, else it replaces it. `window`: how many messages of the link may be on
    their way at once, int64 per transfer. `channel`: int64 per transfer, or None for `link_channels`; transfers between
    two NPUs on one channel arrive in the order in which they were sent.
    """

    chunk: Int64Array
    source: Int64Array
    destination: Int64Array
    link: Int64Array
    start: Int64Array
    finish: Int64Array
    reduces: BoolArray
    window: Int64Array
    channel: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.chunk)

    def touching(self, npus: Sequence[int]) -> Transfers:
        """Those that start or end at one of `npus`."""
        rows = np.flatnonzero(np.isin(self.source, npus) | np.isin(self.destination, npus))
        return Transfers(
            self.chunk[rows],
            self.source[rows],
            self.destination[rows],
            self.link[rows],
            self.start[rows],
            self.finish[rows],
            self.reduces[rows],
            self.window[rows],
            None if self.channel is None else self.channel[rows],
        )


def collective_among(collective: Collective, npus: Sequence[int], num_npus: int) -> Collective:
    """The same promise made by rank `npus[r]` of `num_npus` instead of rank r; custom unless all take part in order.

    Other ranks have no INPUT and no OUTPUT. Custom collectives are in place as one buffer, which holds only for kinds
    that are so themselves: the claim stays where they are, and out of place is claimed otherwise.
    """
    if list(npus) == list(range(num_npus)):
        return collective
    place = np.asarray(npus, np.int64)
    inputs, outputs, defined = (
        np.zeros(num_npus, np.int64),
        np.zeros(num_npus, np.int64),
        np.zeros(num_npus, np.bool_),
    )
    inputs[place], outputs[place], defined[place] = (
        collective.input_units(),
        collective.output_units(),
        collective.defined_inputs(),
    )
    stated = collective.postcondition()
    assert stated is not None
    expected = _named(stated, collective.num_ranks)
    contract = CustomContract(
        inputs,
        outputs,
        defined,
        Contributions(
            place[expected.rank], expected.offset, place[expected.source_rank], expected.source_unit
        ),
    )
    return replace(
        collective,
        kind=CollectiveKind.CUSTOM,
        num_ranks=num_npus,
        root=None,
        contract=contract,
        in_place=collective.in_place and collective.kind in _ONE_BUFFER,
        out_of_place=True,
    )


_ONE_BUFFER = _WHOLE


def _named(stated: Contributions, num_ranks: int) -> Contributions:
    """Every contribution named, none abbreviated."""
    times = np.where(stated.source_rank == ALL_RANKS, num_ranks, 1)
    row = np.repeat(np.arange(len(stated)), times)
    turn = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
    source = np.where(stated.source_rank[row] == ALL_RANKS, turn, stated.source_rank[row])
    return Contributions(stated.rank[row], stated.offset[row], source, stated.source_unit[row])


def algorithm_of(
    collective: Collective,
    chunks: Chunks,
    transfers: Transfers,
    *,
    npus: Sequence[int] | None = None,
    num_npus: int | None = None,
    wanted: Sequence[int] | None = None,
    provenance: Provenance | None = None,
    collective_bytes: int | None = None,
    extensions: Mapping[str, JsonValue] | None = None,
    startup_ns: Sequence[int] = (),
) -> Algorithm:
    """The algorithm that performs `transfers`: rank v is NPU v, ranks outside `npus` only relay.

    Every transfer becomes a SEND and a RECV or RECV_REDUCE, on its stated channel, or channel k where its link is the
    k-th between its ends. `startup_ns[p]`: time until plane p of the topology can be used, that is, channels c with
    c % len(startup_ns) == p: a COMPUTE step of that time precedes the sends there that wait for no data.
    What a rank forwards it reads where it arrived: in OUTPUT where the rank needs it, else in SCRATCH. A SEND has a
    data dependency on the arrival of what it sends, and a control dependency on the message `window` turns before it
    on its link. A rank that needs what it has itself copies it last. With `wanted`, only the steps of these ranks are
    made. An all-to-all is claimed out of place alone: in place, what arrives would stand where something still waits
    to be sent. Cost: two sorts of the transfers. Raises `InputError` for a chunk that is sent before its source has
    it.
    """
    members = np.arange(collective.num_ranks) if npus is None else np.asarray(npus, np.int64)
    total = int(members.max()) + 1 if num_npus is None else num_npus
    events = _Events.of(transfers, wanted)
    lowering = _Lowering(
        _Placement(collective, chunks, members, total), transfers, events, startup_ns
    )
    columns, data, control = lowering.columns()
    if collective.kind is CollectiveKind.ALL_TO_ALL:
        collective = replace(collective, in_place=False, out_of_place=True)
    return Algorithm(
        collective_among(collective, members.tolist(), total),
        StepTable.from_columns(total, columns, data, control),
        lowering.scratch_units,
        provenance or Provenance(),
        collective_bytes,
        extensions or {},
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Events:
    """Both ends of every transfer, by rank and then by time: an arrival comes before a departure of the same time.

    `wanted`: the ranks whose ends these are, None for all.
    """

    transfer: Int64Array
    is_send: BoolArray
    rank: Int64Array
    wanted: Int64Array | None

    @classmethod
    def of(cls, transfers: Transfers, wanted: Sequence[int] | None) -> _Events:
        transfer = np.tile(np.arange(len(transfers), dtype=np.int64), 2)
        is_send = np.arange(len(transfer)) < len(transfers)
        rank = np.concatenate([transfers.source, transfers.destination])
        time = np.concatenate([transfers.start, transfers.finish])
        chosen = None if wanted is None else np.asarray(wanted, np.int64)
        if chosen is not None:
            kept = np.isin(rank, chosen)
            transfer, is_send, rank, time = transfer[kept], is_send[kept], rank[kept], time[kept]
        order = np.lexsort((is_send, time, rank))
        return cls(transfer[order], is_send[order], rank[order], chosen)

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, slots=True, eq=False)
class _Placement:
    """Which ranks (NPUs) have a chunk before, which must have it after."""

    collective: Collective
    chunks: Chunks
    members: Int64Array
    num_npus: int
    _rank_of: Int64Array = field(init=False)

    def __post_init__(self) -> None:
        rank_of = np.full(self.num_npus, -2, np.int64)
        rank_of[self.members] = np.arange(len(self.members))
        object.__setattr__(self, "_rank_of", rank_of)

    def has_before(self, npu: Int64Array, chunk: Int64Array) -> BoolArray:
        return self._is_one_of(self.chunks.origin, npu, chunk)

    def needs(self, npu: Int64Array, chunk: Int64Array) -> BoolArray:
        return self._is_one_of(self.chunks.target, npu, chunk)

    def _is_one_of(self, stated: Int64Array, npu: Int64Array, chunk: Int64Array) -> BoolArray:
        rank = self._rank_of[npu]
        matches: BoolArray = (rank >= 0) & ((stated[chunk] == ALL_RANKS) | (stated[chunk] == rank))
        return matches

    def own(self) -> tuple[Int64Array, Int64Array]:
        """(npu, chunk) for chunks of one origin that the origin itself must have after, and of lone ranks."""
        origin, target = self.chunks.origin, self.chunks.target
        everyone = origin == ALL_RANKS
        giver = np.where(everyone, 0 if len(self.members) == 1 else _NOWHERE, origin)
        chunk = np.flatnonzero((giver >= 0) & ((target == ALL_RANKS) | (target == giver)))
        return self.members[giver[chunk]], chunk


def link_channels(transfers: Transfers) -> Int64Array:
    """Per transfer, the number of its link among those between its ends: messages overtake one another on different links."""
    if not len(transfers):
        return transfers.link
    pair = transfers.source * (int(transfers.destination.max()) + 1) + transfers.destination
    largest = int(transfers.link.max())
    if largest < 4 * len(transfers):
        # Mostly a link leads to one NPU, and then the links are numbered, which are few, not the transfers.
        pair_of = np.full(largest + 1, -1, np.int64)
        pair_of[transfers.link] = pair
        if np.array_equal(pair_of[transfers.link], pair):
            return _turns_within(pair_of)[transfers.link]
    order = np.lexsort((transfers.link, pair))
    is_new = np.append(True, (np.diff(pair[order]) != 0) | (np.diff(transfers.link[order]) != 0))
    channel = np.empty(len(pair), np.int64)
    channel[order] = _turns_within(pair[order][is_new])[np.cumsum(is_new) - 1]
    return channel


def _turns_within(keys: Int64Array) -> Int64Array:
    """The place of every entry among those of equal key, from 0."""
    order = np.argsort(keys, kind="stable")
    place = np.arange(len(keys))
    first = np.maximum.accumulate(np.where(np.append(True, np.diff(keys[order]) != 0), place, 0))
    turn = np.empty(len(keys), np.int64)
    turn[order] = place - first
    return turn


class _Lowering:
    """Turn events into rows of a step table."""

    def __init__(
        self,
        placement: _Placement,
        transfers: Transfers,
        events: _Events,
        startup_ns: Sequence[int],
    ) -> None:
        self._placement, self._transfers, self._events = placement, transfers, events
        self._startup_ns = np.asarray(startup_ns, np.int64)
        channel = link_channels(transfers) if transfers.channel is None else transfers.channel
        self._channel = channel[events.transfer]
        self._chunk = transfers.chunk[events.transfer]
        self._needs = placement.needs(events.rank, self._chunk)
        self._previous = self._last_arrivals()
        self._check_holdings()
        self._slot, self.scratch_units = self._scratch()

    def columns(
        self,
    ) -> tuple[
        dict[str, npt.NDArray[np.generic]],
        tuple[Int64Array, Int64Array],
        tuple[Int64Array, Int64Array],
    ]:
        """All columns of the table, the data and the control edges: start-ups, messages, copies of own chunks."""
        events, chunks, chunk = self._events, self._placement.chunks, self._chunk
        is_send, has_value = events.is_send, self._previous >= 0
        is_member = self._placement.has_before(events.rank, chunk)
        adds = ~is_send & self._transfers.reduces[events.transfer] & (has_value | is_member)
        place = np.where(self._needs, Buffer.OUTPUT, Buffer.SCRATCH)
        offset = np.where(self._needs, chunks.output_offset[chunk], self._slot)
        source_buffer = np.where(has_value, place, Buffer.INPUT)
        source_offset = np.where(has_value, offset, chunks.input_offset[chunk])
        reads = is_send | adds
        peer = np.where(
            is_send,
            self._transfers.destination[events.transfer],
            self._transfers.source[events.transfer],
        )
        columns: dict[str, npt.NDArray[np.generic]] = {
            "rank": events.rank,
            "kind": np.where(
                is_send, StepKind.SEND, np.where(adds, StepKind.RECV_REDUCE, StepKind.RECV)
            ),
            "peer": peer,
            "src_buffer": np.where(reads, source_buffer, Buffer.UNKNOWN),
            "src_offset": np.where(reads, source_offset, 0),
            "dst_buffer": np.where(is_send, Buffer.UNKNOWN, place),
            "dst_offset": np.where(is_send, 0, offset),
            "channel": self._channel,
            "count": chunks.count[chunk],
            "duration_ns": np.full(len(chunk), -1),
        }
        rows = np.flatnonzero(has_value)
        copies, copy_control = self._copies()
        startups, startup, started = self._startups()
        first = len(startups["rank"])
        # In front, so that messages on a channel stay in the order of time.
        joined = {
            name: np.concatenate([startups[name], column, copies[name]])
            for name, column in columns.items()
        }
        edges = [
            first + np.concatenate(pair) for pair in zip(self._turns(), copy_control, strict=True)
        ]
        control = np.concatenate([edges[0], startup]), np.concatenate([edges[1], first + started])
        return joined, (first + self._previous[rows], first + rows), control

    def _last_arrivals(self) -> Int64Array:
        """Per event, the row of the last arrival of its chunk at its rank before it, or -1."""
        events = self._events
        key = events.rank * len(self._placement.chunks) + self._chunk
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        place = np.arange(len(order))
        first = np.maximum.accumulate(
            np.where(np.append(True, ordered[1:] != ordered[:-1])[: len(order)], place, 0)
        )
        arrival = (
            np.maximum.accumulate(np.where(events.is_send[order], -1, place))
            if len(order)
            else place
        )
        before = np.append(-1, arrival[:-1])[: len(order)]
        previous = np.empty(len(order), np.int64)
        previous[order] = np.where(before >= first, order[before], -1)
        return previous

    def _check_holdings(self) -> None:
        events = self._events
        lacks = (
            events.is_send
            & (self._previous < 0)
            & ~self._placement.has_before(events.rank, self._chunk)
        )
        if np.any(lacks):
            row = int(np.argmax(lacks))
            npu, start = int(events.rank[row]), int(self._transfers.start[events.transfer[row]])
            message = f"the schedule sends chunk {int(self._chunk[row])} from NPU {npu} at time {start}, before it is there"
            raise InputError(message, code="schedule-acausal")

    def _scratch(self) -> tuple[Int64Array, Int64Array]:
        """Per event, the offset in SCRATCH of a chunk that its rank does not need; and the sizes per rank."""
        events, chunks = self._events, self._placement.chunks
        relayed = ~self._needs & ~(events.is_send & (self._previous < 0))
        key = events.rank * len(chunks) + self._chunk
        distinct, inverse = np.unique(key[relayed], return_inverse=True)
        rank, chunk = np.divmod(distinct, max(len(chunks), 1))
        size = chunks.count[chunk]
        ends = np.cumsum(size)
        units = np.bincount(rank, size, self._placement.num_npus).astype(np.int64)
        base = np.cumsum(units) - units
        slot = np.zeros(len(events), np.int64)
        slot[relayed] = (ends - size - base[rank])[inverse]
        return slot, units

    def _turns(self) -> tuple[Int64Array, Int64Array]:
        """Control edges that keep every link's order: on the message `window` turns before, and on the data of those since.

        A SEND ends when its message arrives, which is later than the link is free where the latency is not part of
        the occupancy. So `window` messages are under way at once, and each waits for what its predecessor waited for,
        and for what came last of all that those before waited for.
        """
        rows = np.flatnonzero(self._events.is_send)
        link = self._transfers.link[self._events.transfer[rows]]
        order = np.argsort(link, kind="stable")
        rows, link = rows[order], link[order]
        if not len(rows):
            return rows, rows
        place = np.arange(len(rows))
        first = np.maximum.accumulate(np.where(np.append(True, link[1:] != link[:-1]), place, 0))
        window = np.maximum(self._transfers.window[self._events.transfer[rows]], 1)
        turn = np.flatnonzero(place - window >= first)
        # Rows of a rank are in the order of time, and links do not share senders: the largest row is the last release.
        last = np.maximum.accumulate(
            self._previous[rows] + first * (len(self._events) + 1)
        ) - first * (len(self._events) + 1)
        held = np.flatnonzero((place > first) & (window > 1))
        parents, children = [rows[place[turn] - window[turn]]], [rows[turn]]
        for waited in (self._previous[rows[held - 1]], last[held - 1]):
            kept = self._is_recent(
                waited, rows[held], rows[np.maximum(held - window[held], first[held])]
            )
            parents.append(waited[kept])
            children.append(rows[held[kept]])
        return np.concatenate(parents), np.concatenate(children)

    def _is_recent(self, arrival: Int64Array, send: Int64Array, bygone: Int64Array) -> BoolArray:
        """Whether an arrival (row, -1 for none) is no condition of `send` yet, and later than the start of `bygone`.

        One that is earlier than the data of `send` by the plan alone counts: simulators round.
        """
        finish = self._transfers.finish[self._events.transfer[arrival]]
        start = self._transfers.start[self._events.transfer[bygone]]
        recent: BoolArray = (arrival >= 0) & (arrival != self._previous[send]) & (finish >= start)
        return recent

    def _copies(self) -> tuple[dict[str, npt.NDArray[np.generic]], tuple[Int64Array, Int64Array]]:
        """Copies of own chunks from INPUT to OUTPUT, neighbouring ones as one, behind all messages that read them."""
        placement, chunks, events = self._placement, self._placement.chunks, self._events
        npu, chunk = placement.own()
        if events.wanted is not None:
            is_wanted = np.isin(npu, events.wanted)
            npu, chunk = npu[is_wanted], chunk[is_wanted]
        order = np.lexsort((chunks.input_offset[chunk], npu))
        npu, chunk = npu[order], chunk[order]
        source, target, count = (
            chunks.input_offset[chunk],
            chunks.output_offset[chunk],
            chunks.count[chunk],
        )
        joins = (
            (npu[1:] == npu[:-1])
            & (source[1:] == (source + count)[:-1])
            & (target[1:] == (target + count)[:-1])
        )
        run = np.cumsum(np.append(True, ~joins)[: len(npu)]) - 1
        head = np.flatnonzero(np.append(True, ~joins)[: len(npu)])
        columns: dict[str, npt.NDArray[np.generic]] = {
            "rank": npu[head],
            "kind": np.full(len(head), StepKind.COPY),
            "peer": np.full(len(head), -1),
            "src_buffer": np.full(len(head), Buffer.INPUT),
            "src_offset": source[head],
            "dst_buffer": np.full(len(head), Buffer.OUTPUT),
            "dst_offset": target[head],
            "channel": np.zeros(len(head), np.int64),
            "count": np.bincount(run, count, len(head)).astype(np.int64),
            "duration_ns": np.full(len(head), -1),
        }
        return columns, self._reads_before(npu, chunk, len(events) + run)

    def _startups(self) -> tuple[dict[str, npt.NDArray[np.generic]], Int64Array, Int64Array]:
        """A COMPUTE per rank and plane that starts up, and edges from these to the sends there that wait for no data."""
        planes = max(len(self._startup_ns), 1)
        plane = self._channel % planes
        waits = (
            self._startup_ns[plane] > 0 if len(self._startup_ns) else np.zeros(len(plane), np.bool_)
        )
        sends = np.flatnonzero(self._events.is_send & (self._previous < 0) & waits)
        distinct, startup = np.unique(
            self._events.rank[sends] * planes + plane[sends], return_inverse=True
        )
        rank, of_plane = np.divmod(distinct, planes)
        columns: dict[str, npt.NDArray[np.generic]] = {
            name: np.full(len(rank), COLUMN_DEFAULTS[name])
            for name in ("peer", "src_buffer", "src_offset", "dst_buffer", "dst_offset", "count")
        }
        columns |= {
            "rank": rank,
            "kind": np.full(len(rank), StepKind.COMPUTE),
            "channel": np.zeros(len(rank), np.int64),
            "duration_ns": self._startup_ns[of_plane] if len(rank) else np.zeros(0, np.int64),
        }
        return columns, startup.astype(np.int64), sends

    def _reads_before(
        self, npu: Int64Array, chunk: Int64Array, copy: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Control edges from the sends of own chunks to the copies of these."""
        events, num_chunks = self._events, max(len(self._placement.chunks), 1)
        sends = np.flatnonzero(events.is_send & (self._previous < 0))
        key = npu * num_chunks + chunk
        order = np.argsort(key)
        wanted = events.rank[sends] * num_chunks + self._chunk[sends]
        place = np.minimum(np.searchsorted(key[order], wanted), max(len(key) - 1, 0))
        found = key[order][place] == wanted if len(key) else np.zeros(len(sends), np.bool_)
        return sends[found], copy[order][place[found]] if len(key) else sends[found]
