"""Match the operations of all ranks: who takes part in an operation, and whose calls differ.

Collectives are matched by process group (set of ranks and description) and sequence number, never
by `record_id`: ranks that take part in other groups have other record numbers. Sends and receives
are matched by pair of ranks in their order, because their numbers count per rank.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from collhub_diagnosis.records import Call, Records, Shapes, State


class Arrival(Enum):
    """State of an operation on another rank, as far as the dumps tell."""

    COMPLETED = "completed"
    STARTED = "started"
    SCHEDULED = "scheduled"
    # Issued, but the ring buffer has no entry of it.
    UNRECORDED = "not recorded"
    LATE = "not issued"
    UNKNOWN = "unknown"
    NO_DUMP = "no dump"


class Partner(NamedTuple):
    """Another rank of an operation, and its row of the same operation if it is recorded."""

    rank: int
    arrival: Arrival
    row: int | None = None


@dataclass(frozen=True)
class Mismatch:
    """Calls of one operation that differ. `rows` are those of `culprits` first, then the others."""

    kind: str
    culprits: tuple[int, ...]
    rows: tuple[int, ...]
    detail: str
    is_completed: bool


class Matching:
    """Operations of all ranks by key: collectives are sorted once, messages paired on demand."""

    def __init__(self, records: Records) -> None:
        self.records = records
        columns = records.columns
        self._order = np.lexsort(
            (columns["rank"], columns["sequence"], columns["is_p2p"], columns["group"])
        )
        keys = [columns[name][self._order] for name in ("group", "is_p2p", "sequence")]
        is_first = np.ones(len(self._order), dtype=bool)
        if len(self._order):
            is_first[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
        self._starts = np.append(np.flatnonzero(is_first), len(self._order))
        self._segment_of = np.empty(len(self._order), dtype=np.int64)
        self._segment_of[self._order] = np.cumsum(is_first) - 1
        self._participants: dict[int, tuple[Partner, ...]] = {}
        self._ranges: dict[tuple[int, int], tuple[int, int] | None] = {}

    def rows_of_key(self, row: int) -> dict[int, int]:
        """Rows of the same group and sequence number, by rank; after a restart the latest."""
        segment = self._segment_of[row]
        rows = self._order[self._starts[segment] : self._starts[segment + 1]]
        return {self.records.rank(int(one)): int(one) for one in rows}

    def participants(self, row: int) -> tuple[Partner, ...]:
        """The ranks of an operation, by rank; for sends and receives the other ends only.

        All ranks of a collective share one tuple.
        """
        if self.records.columns["is_p2p"][row]:
            return self._message_partners(row)
        segment = int(self._segment_of[row])
        if segment not in self._participants:
            group = int(self.records.columns["group"][row])
            sequence = int(self.records.columns["sequence"][row])
            rows = self.rows_of_key(row)
            self._participants[segment] = tuple(
                self._recorded(rank, rows[rank])
                if rank in rows
                else Partner(rank, self._arrival(rank, group, sequence))
                for rank in self.records.members(group)
            )
        return self._participants[segment]

    def mismatches(self) -> Iterator[Mismatch]:
        """Every operation whose calls differ or contradict each other, by group and sequence."""
        calls = self.records.columns["calls"][self._order]
        is_p2p = self.records.columns["is_p2p"][self._order]
        group = self.records.columns["group"][self._order]
        if not len(calls):
            return
        starts = self._starts[:-1]
        differs = np.minimum.reduceat(calls, starts) != np.maximum.reduceat(calls, starts)
        suspicious = self._suspicious_calls()
        table = np.array([group[starts], calls[starts]])
        needs_check = differs | np.fromiter(
            ((int(g), int(c)) in suspicious for g, c in table.T), dtype=bool, count=len(starts)
        )
        for segment in np.flatnonzero(needs_check & ~is_p2p[starts]):
            rows = self._order[self._starts[segment] : self._starts[segment + 1]]
            mismatch = self._compare({self.records.rank(int(row)): int(row) for row in rows})
            if mismatch is not None:
                yield mismatch
        yield from self._message_mismatches()

    def _suspicious_calls(self) -> set[tuple[int, int]]:
        """Pairs of group and calls that contradict themselves, or whose sum is to be checked."""
        columns = self.records.columns
        pairs = np.unique(
            columns["group"].astype(np.int64) << 32 | columns["calls"].astype(np.int64)
        )
        return {
            (group, calls)
            for group, calls in zip(
                (pairs >> 32).tolist(), (pairs & 0xFFFFFFFF).tolist(), strict=True
            )
            if any(
                _is_all_to_all(call) or _contradiction(call, self._group_size(group))
                for call in self.records.tables.calls[calls]
            )
        }

    def _group_size(self, group: int) -> int | None:
        ranks = self.records.tables.groups[group].ranks
        return None if ranks is None else len(ranks)

    def _recorded(self, rank: int, row: int) -> Partner:
        return Partner(rank, _ARRIVALS[self.records.columns["state"][row]], row)

    def _arrival(self, rank: int, group: int, sequence: int) -> Arrival:
        """State of a collective on a rank that has no entry of it."""
        dump = self.records.dumps.get(rank)
        if dump is None:
            return Arrival.NO_DUMP
        known = self._sequences(rank, group)
        if known is not None and known[1] > sequence:
            return Arrival.UNRECORDED
        # The ring buffer loses the oldest entries only, so a missing newest entry was not issued,
        # unless the dump leaves out completed operations (TORCH_INCLUDE_ONLY_ACTIVE).
        has_completed = bool((dump.columns["state"] == State.COMPLETED).any())
        if known is not None and has_completed:
            return Arrival.LATE
        status = dump.status.get(group)
        if status is not None and status.completed >= sequence:
            return Arrival.COMPLETED
        if status is not None:
            return Arrival.UNRECORDED if status.enqueued >= sequence else Arrival.LATE
        if known is None and dump.is_overwritten:
            return Arrival.UNKNOWN
        return Arrival.LATE

    def _sequences(self, rank: int, group: int) -> tuple[int, int] | None:
        """The first and the last sequence number of collectives of a group on a rank."""
        key = (rank, group)
        if key not in self._ranges:
            columns = self.records.dumps[rank].columns
            is_collective = np.logical_not(columns["is_p2p"])
            chosen = columns["sequence"][(columns["group"] == group) & is_collective]
            self._ranges[key] = (int(chosen[0]), int(chosen[-1])) if len(chosen) else None
        return self._ranges[key]

    @cached_property
    def _messages(self) -> dict[tuple[int, int, int], tuple[list[_End], list[_End]]]:
        """Sends and receives in issue order by group, sender and receiver (ranks of the job)."""
        pairs: dict[tuple[int, int, int], tuple[list[_End], list[_End]]] = {}
        for row in np.flatnonzero(self.records.columns["is_p2p"]):
            group = int(self.records.columns["group"][row])
            for index, call in enumerate(self.records.iterate_calls(int(row))):
                ends = self._ends(group, call)
                if ends is not None:
                    both = pairs.setdefault((group, *ends), ([], []))
                    both[0 if call.is_send else 1].append(_End(int(row), index, call))
        return pairs

    def _ends(self, group: int, call: Call) -> tuple[int, int] | None:
        """Sender and receiver as ranks of the job, None if the members are not known."""
        ranks = self.records.tables.groups[group].ranks
        if not call.is_message or ranks is None:
            return None
        if max(call.source, call.destination) >= len(ranks):
            return None
        return ranks[call.source], ranks[call.destination]

    def _offset(self, key: tuple[int, int, int]) -> int:
        """Position of a send minus the position of its receive in the lists of their pair.

        If a ring buffer lost entries, the last completed send and receive are taken as a pair.
        """
        dumps = [self.records.dumps.get(rank) for rank in key[1:]]
        if not any(dump is not None and dump.is_overwritten for dump in dumps):
            return 0
        state = self.records.columns["state"]
        sends, receives = (
            max(
                (at + 1 for at, end in enumerate(ends) if state[end.row] == State.COMPLETED),
                default=0,
            )
            for ends in self._messages[key]
        )
        return sends - receives

    def _message_partners(self, row: int) -> tuple[Partner, ...]:
        found: dict[int, Partner] = {}
        group = int(self.records.columns["group"][row])
        for index, call in enumerate(self.records.iterate_calls(row)):
            ends = self._ends(group, call)
            if ends is None or ends[0] == ends[1]:
                continue
            partner = self._other_end(_End(row, index, call), (group, *ends))
            known = found.get(partner.rank)
            # Of several messages with one rank, the least advanced decides.
            if known is None or _ADVANCE[partner.arrival] < _ADVANCE[known.arrival]:
                found[partner.rank] = partner
        return tuple(found[rank] for rank in sorted(found))

    def _other_end(self, end: _End, key: tuple[int, int, int]) -> Partner:
        """The partner of one message: the message at the same position in the other list."""
        sends, receives = self._messages[key]
        own, others = (sends, receives) if end.call.is_send else (receives, sends)
        rank = key[2] if end.call.is_send else key[1]
        if rank not in self.records.dumps:
            return Partner(rank, Arrival.NO_DUMP)
        # Rows ascend, and so do calls within a row.
        position = bisect.bisect_left(own, end[:2], key=lambda one: one[:2])
        at = position + (-1 if end.call.is_send else 1) * self._offset(key)
        if at < 0:
            return Partner(rank, Arrival.UNRECORDED)
        if at >= len(others):
            return Partner(rank, Arrival.LATE)
        return self._recorded(rank, others[at].row)

    def _message_mismatches(self) -> Iterator[Mismatch]:
        """Sends whose receive has another size or type; both ends are named."""
        for key in sorted(self._messages):
            sends, receives = self._messages[key]
            shift = self._offset(key)
            for at, send in enumerate(sends):
                if not 0 <= at - shift < len(receives):
                    continue
                receive = receives[at - shift]
                sizes = _elements(send.call.input_shapes), _elements(receive.call.output_shapes)
                types = set(send.call.input_dtypes), set(receive.call.output_dtypes)
                if None not in sizes and sizes[0] != sizes[1]:
                    detail = f"sends {sizes[0]} elements, receives {sizes[1]}"
                    yield self._message_mismatch("size", key, (send.row, receive.row), detail)
                elif all(types) and types[0] != types[1]:
                    names = [", ".join(sorted(one)) for one in types]
                    detail = f"sends {names[0]}, receives {names[1]}"
                    yield self._message_mismatch("dtype", key, (send.row, receive.row), detail)

    def _message_mismatch(
        self, kind: str, key: tuple[int, int, int], rows: tuple[int, int], detail: str
    ) -> Mismatch:
        return Mismatch(kind, tuple(sorted(key[1:])), rows, detail, self._are_completed(rows))

    def _are_completed(self, rows: Sequence[int]) -> bool:
        return bool((self.records.columns["state"][list(rows)] == State.COMPLETED).all())

    def _compare(self, rows: Mapping[int, int]) -> Mismatch | None:
        """The first difference between the calls of ranks: operation, then size, then type."""
        tables, columns = self.records.tables, self.records.columns
        calls = {
            rank: tuple(
                c for c in tables.calls[int(columns["calls"][row])] if c.operation != "coalesced"
            )
            for rank, row in rows.items()
        }
        for kind, signature in _SIGNATURES:
            minority = _minority({rank: signature(one) for rank, one in calls.items()})
            if minority:
                return self._mismatch(kind, minority, rows, calls, signature)
        group = int(columns["group"][next(iter(rows.values()))])
        size = self._group_size(group)
        violators = [
            rank for rank, one in calls.items() if any(_contradiction(c, size) for c in one)
        ]
        if violators and not (
            len(violators) == len(rows) and self._are_completed([*rows.values()])
        ):
            one = next(c for c in calls[violators[0]] if _contradiction(c, size))
            kind, detail = _contradiction(one, size) or ("size", "")
            ordered = [rows[rank] for rank in violators]
            done = self._are_completed([*rows.values()])
            return Mismatch(kind, tuple(violators), tuple(ordered), detail, done)
        return self._unbalanced(rows, calls, size)

    def _mismatch(
        self,
        kind: str,
        minority: tuple[int, ...],
        rows: Mapping[int, int],
        calls: Mapping[int, tuple[Call, ...]],
        signature: Callable[[Sequence[Call]], Hashable],
    ) -> Mismatch:
        values = {signature(one): _DETAILS[kind](one) for _, one in sorted(calls.items())}
        detail = "; ".join(
            f"{_join(r for r in sorted(calls) if signature(calls[r]) == value)}: {text}"
            for value, text in values.items()
        )
        ordered = sorted(rows, key=lambda rank: (rank not in minority, rank))
        done = self._are_completed([*rows.values()])
        return Mismatch(kind, minority, tuple(rows[rank] for rank in ordered), detail, done)

    def _unbalanced(
        self, rows: Mapping[int, int], calls: Mapping[int, tuple[Call, ...]], size: int | None
    ) -> Mismatch | None:
        """All-to-all with uneven splits: only the sums over all ranks can be compared."""
        if size is None or len(rows) != size:
            return None
        sums = [0, 0]
        for one in calls.values():
            for call in one:
                sides = _elements(call.input_shapes), _elements(call.output_shapes)
                if not _is_all_to_all(call) or None in sides:
                    return None
                sums[0] += sides[0] or 0
                sums[1] += sides[1] or 0
        if sums[0] == sums[1]:
            return None
        # Two ranks: either may be wrong. Of more ranks, the sums blame none.
        culprits = tuple(sorted(rows)) if size == 2 else ()
        detail = f"all ranks send {sums[0]} elements and receive {sums[1]}"
        done = self._are_completed([*rows.values()])
        return Mismatch("all-to-all", culprits, tuple(rows.values()), detail, done)


class _End(NamedTuple):
    """One end of a message: call `number` of the operation in `row`."""

    row: int
    number: int
    call: Call


_ARRIVALS = tuple(Arrival[state.name] for state in State)
_ADVANCE = {
    Arrival.LATE: 0,
    Arrival.NO_DUMP: 1,
    Arrival.UNKNOWN: 1,
    Arrival.SCHEDULED: 2,
    Arrival.UNRECORDED: 3,
    Arrival.STARTED: 4,
    Arrival.COMPLETED: 5,
}


def _elements(shapes: Shapes) -> int | None:
    """Number of elements of tensors, None without a tensor. A tensor `[]` has one element."""
    return sum(math.prod(shape) for shape in shapes) if shapes else None


def _plain_name(call: Call) -> str:
    return call.operation.lower().replace("_", "")


def _is_all_to_all(call: Call) -> bool:
    return _plain_name(call).startswith(("alltoall", "all2all"))


def _is_uneven(call: Call) -> bool:
    return _plain_name(call).endswith(("gatherv", "scatterv", "vsingle"))


def _contradiction(call: Call, group_size: int | None) -> tuple[str, str] | None:
    """Kind and description of a contradiction between input and output of one call."""
    name = _plain_name(call)
    sent, received = _elements(call.input_shapes), _elements(call.output_shapes)
    if sent is None or received is None or _is_uneven(call) or name.endswith("barrier"):
        return None
    factors = (1, 1) if name.startswith("allreduce") else None
    if group_size is not None and name.startswith("allgather"):
        factors = (group_size, 1)
    elif group_size is not None and name.startswith("reducescatter"):
        factors = (1, group_size)
    if factors is None:
        return None
    if sent * factors[0] != received * factors[1]:
        text = f"{call.operation} of {sent} elements has an output of {received}"
        return "size", text if group_size is None else f"{text} in a group of {group_size} ranks"
    types = set(call.input_dtypes), set(call.output_dtypes)
    if all(types) and types[0] != types[1]:
        names = [", ".join(sorted(one)) for one in types]
        return "dtype", f"{call.operation} has input {names[0]} and output {names[1]}"
    return None


def _operation_names(calls: Sequence[Call]) -> Hashable:
    return tuple(call.operation for call in calls)


def _sizes(calls: Sequence[Call]) -> Hashable:
    """Elements of input and output by call; None where ranks may differ."""
    sizes = []
    for call in calls:
        name = _plain_name(call)
        sent, received = _elements(call.input_shapes), _elements(call.output_shapes)
        if _is_all_to_all(call) or _is_uneven(call) or call.is_message:
            sent = received = None
        # Only the root of a scatter has an input, only the root of a gather an output.
        if name == "scatter":
            sent = None
        elif name == "gather":
            received = None
        sizes.append((sent, received))
    return tuple(sizes)


def _dtypes(calls: Sequence[Call]) -> Hashable:
    return tuple(
        tuple(frozenset(names) or None for names in (call.input_dtypes, call.output_dtypes))
        for call in calls
    )


_SIGNATURES: tuple[tuple[str, Callable[[Sequence[Call]], Hashable]], ...] = (
    ("type", _operation_names),
    ("size", _sizes),
    ("dtype", _dtypes),
)


def _describe_sizes(calls: Sequence[Call]) -> str:
    texts = []
    for call in calls[:2]:
        sides = [
            str([list(one) for one in side]) for side in (call.input_shapes, call.output_shapes)
        ]
        texts.append(f"input {sides[0]:.200} output {sides[1]:.200}")
    return ", ".join(texts)


def _describe_dtypes(calls: Sequence[Call]) -> str:
    return ", ".join(
        "/".join(sorted({*call.input_dtypes, *call.output_dtypes})) or "none" for call in calls[:2]
    )


_DETAILS: Mapping[str, Callable[[Sequence[Call]], str]] = {
    "type": lambda calls: ", ".join(call.operation for call in calls[:4]),
    "size": _describe_sizes,
    "dtype": _describe_dtypes,
}


def _minority(values: Mapping[int, Hashable]) -> tuple[int, ...]:
    """Sorted ranks whose value differs from the most frequent one; all ranks if none is that.

    Empty if the values agree. A side without tensors (None) agrees with every size and type.
    """
    if len(set(values.values())) < 2:
        return ()
    counts = Counter(values.values()).most_common()
    if all(_agree(counts[0][0], value) for value, _ in counts[1:]):
        return ()
    if counts[0][1] == counts[1][1]:
        return tuple(sorted(values))
    return tuple(sorted(r for r, value in values.items() if not _agree(counts[0][0], value)))


def _agree(first: Hashable, second: Hashable) -> bool:
    if first is None or second is None:
        return True
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_agree, first, second))
    return first == second


def _join(ranks: Iterator[int]) -> str:
    numbers = [str(rank) for rank in ranks]
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(numbers[:8])}{more}"
