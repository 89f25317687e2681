"""SCCL's form of collectives and sends: parse JSON documents, find the sends of an algorithm.

A collective defines which ranks have each chunk before and after it, and the address of each chunk;
a send has the address of its message's data. Errors contain the JSON path of the defect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hub_core import is_finite_number, parse_json_object
from hub_core.columns import BoolArray, Float64Array, Int64Array, topological_levels
from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    Findings,
    InputError,
    Location,
    StepKind,
    match_messages,
)

NAMES: Mapping[CollectiveKind, str] = {
    CollectiveKind.BROADCAST: "Broadcast",
    CollectiveKind.SCATTER: "Scatter",
    CollectiveKind.GATHER: "Gather",
    CollectiveKind.ALL_GATHER: "Allgather",
    CollectiveKind.ALL_TO_ALL: "Alltoall",
    CollectiveKind.REDUCE: "Reduce",
    CollectiveKind.ALL_REDUCE: "Allreduce",
    CollectiveKind.REDUCE_SCATTER: "ReduceScatter",
}
RUNTIME_NAMES: Mapping[CollectiveKind, str] = {
    CollectiveKind.ALL_GATHER: "allgather",
    CollectiveKind.ALL_TO_ALL: "alltoall",
    CollectiveKind.ALL_REDUCE: "allreduce",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter",
    CollectiveKind.BROADCAST: "broadcast",
    CollectiveKind.REDUCE: "reduce",
}


TAGS = ("msccl_type", "sccl_type")


_MAX_SEND_FIELDS = 6


_REDUCES = "rrc"


_MAX_INTEGER = 1 << 31


_NO_ADDRESS = -1


@dataclass(frozen=True, slots=True, eq=False)
class Sends:
    """Sends of all steps, in the order of the file; int64 columns unless noted.

    `time`: float64, start of a send in tenths of a microsecond, 0 if not given; `reduces`: bool,
    whether the receive reduces; None if that follows from the collective.
    """

    step: Int64Array
    address: Int64Array
    source: Int64Array
    destination: Int64Array
    time: Float64Array
    reduces: BoolArray | None


@dataclass(frozen=True, slots=True, eq=False)
class StepDocument:
    """An algorithm: name, ranks, chunks, sends, and rounds of every step.

    `chunks`: with multiplicity; `divisions`: parts of every chunk as declared by the instance;
    `is_taccl`: sends in TACCL's dialect.
    """

    name: str
    ranks: int
    chunks: Counter[ScclChunk]
    divisions: int
    sends: Sends
    rounds: list[int]
    is_taccl: bool


@dataclass(frozen=True, slots=True)
class ScclChunk:
    """Ranks that have a chunk before, ranks that need it after, and its address."""

    before: frozenset[int]
    after: frozenset[int]
    address: int


@dataclass(frozen=True, slots=True)
class StepSend:
    """In a step, `source` sends its value of an address to `destination`.

    `reduces`: whether the value is added at the destination.
    """

    step: int
    address: int
    source: int
    destination: int
    reduces: bool


class ScclValue:
    """A value of a document, and its JSON path."""

    def __init__(self, value: Any, path: str, file: str) -> None:
        self.value = value
        self._path = path
        self._file = file

    def build_error(self, message: str, cure: str = "") -> InputError:
        """Error at this value, with its path."""
        return InputError(
            f"{self._path}: {message}", location=Location(self._file), cure=cure, code="sccl-schema"
        )

    def get_member(self, name: str) -> ScclValue:
        """Return a member of an object, with its JSON path; the member may be null.

        Raise `InputError` if this value is not an object or lacks the member.
        """
        if not isinstance(self.value, Mapping) or name not in self.value:
            raise self.build_error(f"expected an object with the member {name!r}")
        return ScclValue(self.value[name], f"{self._path}.{name}", self._file)

    def has(self, name: str) -> bool:
        """Return whether the object has a member of this name; it may be null.

        Raises `InputError` if the value is no object.
        """
        if not isinstance(self.value, Mapping):
            raise self.build_error("expected an object")
        return name in self.value

    def iterate_elements(self) -> Iterator[ScclValue]:
        """Yield the elements of a list in order, each with its JSON path.

        Raise `InputError` for any other value, when the first element is requested.
        """
        if not isinstance(self.value, list):
            raise self.build_error("expected a list")
        for number, value in enumerate(self.value):
            yield ScclValue(value, f"{self._path}[{number}]", self._file)

    def to_integer(self, minimum: int = 0, below: int = _MAX_INTEGER) -> int:
        """Return the value as an integer in `minimum`..`below` - 1, by default 0 to 2^31 - 1.

        Raise `InputError` for any other value; booleans and floats, also integral ones, are
        refused.
        """
        value = self.value
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not minimum <= value < below:
            raise self.build_error(
                f"expected a whole number in {minimum}..{below - 1}, got {value!r:.40}"
            )
        return int(value)

    def to_number(self) -> float:
        """Return the value as a float.

        Raises `InputError` for anything but a finite number; booleans, NaN and integers beyond the
        range of floats are refused.
        """
        if not is_finite_number(self.value):
            raise self.build_error(f"expected a number, got {self.value!r:.40}")
        return float(self.value)


def parse(content: bytes, file: str) -> StepDocument:
    """Parse a file to a document with its name, ranks, chunks, sends and rounds.

    The tag is the first of `msccl_type` and `sccl_type` with the value `algorithm`. The dialect is
    TACCL's for the tag `sccl_type`, if a send has more than three fields or `topology` has a member
    `node_links`. Otherwise it is SCCL's: all times are 0 and `reduces` is None. Equal chunks are
    stored once, with their number.

    Raises `InputError` (`sccl-schema`), with the JSON path, for the first wrong type, missing
    member or value outside its range. Also refused: JSON with repeated keys, no tag, a pipeline
    that is not null, fewer than 2 ranks in `collective.nodes`, invalid steps (`_parse_steps`), a
    chunk with a rank of `pre` or `post` outside the ranks, and `instance.chunks` below 1. The
    member `topology` is required only for the tag `sccl_type` and sends of at most three fields. A
    `name` of any type is converted to text.
    """
    try:
        members = parse_json_object(content, file)
    except InputError as error:
        (found,) = error.diagnostics
        message = f"$: expected JSON: {found.message}"
        raise InputError(replace(found, code="sccl-schema", message=message)) from None
    document = ScclValue(members, "$", file)
    tag = next((tag for tag in TAGS if members.get(tag) == "algorithm"), None)
    if tag is None:
        raise document.build_error(f"expected an object with {TAGS[0]} or {TAGS[1]} 'algorithm'")
    instance, collective = document.get_member("instance"), document.get_member("collective")
    if instance.get_member("pipeline").value is not None:
        message = "overlapping repetitions (a pipeline) have no meaning for a single call"
        raise instance.get_member("pipeline").build_error(
            message, "synthesize it without a pipeline"
        )
    ranks = collective.get_member("nodes").to_integer(2)
    sends, rounds = _parse_steps(document.get_member("steps"), ranks)
    # Sends with more than three fields, or the topology, distinguish the dialects.
    has_more = sends.reduces is not None
    is_taccl = tag == TAGS[1] and (has_more or document.get_member("topology").has("node_links"))
    if not is_taccl:
        # Only the step orders the sends.
        no_time = np.zeros(len(sends.step), np.float64)
        sends = replace(sends, time=no_time, reduces=None)
    # Chunks with their number of occurrences.
    counts: Counter[ScclChunk] = Counter()
    for chunk in collective.get_member("chunks").iterate_elements():
        before, after = (
            frozenset(
                rank.to_integer(0, ranks) for rank in chunk.get_member(name).iterate_elements()
            )
            for name in ("pre", "post")
        )
        counts[ScclChunk(before, after, chunk.get_member("addr").to_integer())] += 1
    return StepDocument(
        name=str(document.get_member("name").value),
        ranks=ranks,
        chunks=counts,
        divisions=instance.get_member("chunks").to_integer(1),
        sends=sends,
        rounds=rounds,
        is_taccl=is_taccl,
    )


def find_sends(algorithm: Algorithm) -> list[StepSend]:
    """Return the sends of an algorithm in numbered steps, one send per unit of each message.

    The address of a unit of INPUT is that of `_list_input_addresses`; copies and messages carry it
    along. Steps are numbered by the data:

    - Data that no message has brought are available in step 0.
    - A message has the latest step in which any of its units is available at the sender. Its units
      are available at the receiver one step later. A reducing receive also waits for the local
      operand.
    - Local copies and sums take no step: their result is available when all operands are.

    The result is sorted by step, source rank and address. `reduces` is true for a reducing receive.
    Buffers are those out of place, unless the algorithm only claims to work in place. Messages in a
    cycle of dependencies, and after one, are left out without an error. Raises `InputError` with
    all findings if sends and receives do not match.
    """
    findings = Findings(algorithm.provenance.source_name or None)
    messages = match_messages(algorithm.steps, findings)
    if errors := [*findings]:
        raise InputError(errors)
    parents, children = algorithm.steps.edges()
    # Senders before receivers, so that a message's data is known when it arrives.
    order = topological_levels(
        len(algorithm.steps),
        np.concatenate([parents, messages.send]),
        np.concatenate([children, messages.receive]),
    )
    sender = dict(zip(messages.receive.tolist(), messages.send.tolist(), strict=True))
    tracing = _AddressTracing(algorithm, sender)
    for row in order.nodes.tolist():
        tracing.execute_step(row)
    # The order within a step is free: sorted for a deterministic file.
    return sorted(tracing.sends, key=lambda send: (send.step, send.source, send.address))


def iterate_chunks(
    kind: CollectiveKind, ranks: int, root: int | None, parts: int
) -> Iterator[ScclChunk]:
    """Yield all chunks of a collective in SCCL's form, by ascending address.

    A collective of n ranks has n * n addresses for an all-to-all, 1 for broadcast, reduce and
    all-reduce, otherwise n. Each address is divided into `parts` parts; part i of address a has the
    address a * parts + i. A missing root is rank 0.

    - `before` is one rank: the root for broadcast and scatter, rank a for all-gather and gather,
      rank a mod n for all-to-all. For reduce, all-reduce and reduce-scatter, each address has n
      chunks, one for each rank, ascending.
    - `after`: the root for reduce and gather; rank a for scatter and reduce-scatter; rank a // n
      for all-to-all; all ranks for broadcast, all-gather and all-reduce.

    For 2 ranks and 1 part, an all-gather gives ({0}, {0, 1}, 0) and ({1}, {0, 1}, 1).
    """
    # Compared as sets: files list ranks in any order.
    all_ranks = frozenset(range(ranks))
    traits = kind.traits
    for address in range(count_addresses(kind, ranks)):
        share = find_share(kind, address, ranks)
        source, target = (
            divmod(share, ranks) if kind is CollectiveKind.ALL_TO_ALL else (share, share)
        )
        owner = root if traits.from_root else source
        after = all_ranks
        if traits.to_root:
            after = frozenset({root if root is not None else 0})
        elif traits.split_by_target:
            after = frozenset({target})
        # Every contribution is a separate chunk at the same address.
        contributors = range(ranks) if traits.reduces else [owner if owner is not None else 0]
        for part in range(parts):
            for contributor in contributors:
                yield ScclChunk(frozenset({contributor}), after, address * parts + part)


def count_addresses(kind: CollectiveKind, ranks: int) -> int:
    """Count the addresses of an undivided collective.

    They are ranks^2 if the kind is divided by source and by target, ranks if by one of the two, and
    1 if by none.
    """
    traits = kind.traits
    if traits.split_by_source and traits.split_by_target:
        return ranks * ranks
    return ranks if traits.split_by_source or traits.split_by_target else 1


def find_share(kind: CollectiveKind, address: int, ranks: int) -> int:
    """Convert an address of SCCL to the number of its share of data in the order of the hub.

    That is the order of `Chunks.cut`. For an all-to-all, address target * `ranks` + source
    becomes share source * `ranks` + target. For all other kinds the number is the address
    itself.
    """
    if kind is CollectiveKind.ALL_TO_ALL:
        # Addresses are ordered by target, shares by source.
        target, source = divmod(address, ranks)
        return source * ranks + target
    return address


class _AddressTracing:
    """Address of the value in every unit of memory, and the step after which it is available.

    Copies and sums keep the address: both operands of a sum are parts of one element.
    """

    def __init__(self, algorithm: Algorithm, sender: dict[int, int]) -> None:
        collective = algorithm.collective
        # Out of place no input is overwritten; use in-place memory only if the algorithm claims no
        # other mode.
        in_place = not collective.out_of_place
        self._layout = collective.memory_layout(in_place, algorithm.scratch_units)
        self._address = np.full(self._layout.total, _NO_ADDRESS, np.int64)
        self._level = np.zeros(self._layout.total, np.int64)
        self._steps = algorithm.steps
        self._sender = sender
        self._sent: dict[int, tuple[Int64Array, int]] = {}
        self.sends: list[StepSend] = []
        for rank in np.flatnonzero(collective.defined_inputs()).tolist():
            first = int(self._layout.base[rank, Buffer.INPUT])
            addresses = _list_input_addresses(collective, rank)
            self._address[first : first + len(addresses)] = addresses

    def execute_step(self, row: int) -> None:
        """Execute one step: update address and availability (a step of SCCL) of the written units.

        All its predecessors must have been executed. The initial data are available in step 0.

        - Send: its addresses are kept for the receive. The step of the message is the latest
          availability of the units that it reads, 0 if it reads none.
        - Receive: one send per unit is appended to `sends`, in the step of the message. The
          written units get the sent addresses, and are available in the next step. With a
          reduction they are not available before all units of the local operand.
        - Copy: the written units get the addresses and availabilities of the read ones.
        - Local sum: each unit keeps its address. It is available when both operands are.
        - Any other kind: no change.
        """
        kind = StepKind(int(self._steps.kind[row]))
        read, written = self._get_memory_range(row, "src"), self._get_memory_range(row, "dst")
        if kind is StepKind.SEND:
            self._sent[row] = self._address[read].copy(), int(self._level[read].max(initial=0))
        elif kind in (StepKind.RECV, StepKind.RECV_REDUCE):
            # Execute a receive, and append its sends.
            is_sum = kind is StepKind.RECV_REDUCE
            moved, step = self._sent[self._sender[row]]
            level = step + 1
            # The local operand may have arrived in a later step than the one in which the message
            # was sent.
            if is_sum:
                level = max(level, int(self._level[read].max(initial=0)))
            self._address[written] = moved
            self._level[written] = level
            source, destination = int(self._steps.peer[row]), int(self._steps.rank[row])
            # SCCL's sends have no counts: one send per unit.
            for address in moved.tolist():
                self.sends.append(StepSend(step, address, source, destination, is_sum))
        elif kind is StepKind.COPY:
            self._address[written] = self._address[read]
            self._level[written] = self._level[read]
        elif kind is StepKind.REDUCE:
            # A local sum takes no step: it is available when both operands are.
            self._level[written] = np.maximum(self._level[written], self._level[read])

    def _get_memory_range(self, row: int, side: str) -> slice:
        """Return the range of memory units that a step reads (`side` = `src`) or writes (`dst`).

        It is in the memory of all ranks, numbered as in the layout. It is empty (0 to 0) if the
        step has no such operand: a send has no `dst`, a receive no `src`.
        """
        buffer = int(getattr(self._steps, f"{side}_buffer")[row])
        # A receive reads no local memory, a send writes none.
        if buffer == Buffer.UNKNOWN:
            return slice(0, 0)
        base = int(self._layout.base[int(self._steps.rank[row]), buffer])
        first = base + int(getattr(self._steps, f"{side}_offset")[row])
        return slice(first, first + int(self._steps.count[row]))


def _list_input_addresses(collective: Collective, rank: int) -> Int64Array:
    """Return the address of every unit of a rank's INPUT, int64 in the order of units.

    p is `units_per_rank`: the units of one rank's part, or all units if the collective has no
    parts.

    - all-gather, gather: unit u has the address rank * p + u.
    - all-to-all: unit i of the part for rank t has the address (t * ranks + rank) * p + i. On rank
      1 of 2 with p = 2, the result is [2, 3, 6, 7].
    - other kinds: the address is the number of the unit, from 0.

    Raises `InputError` (`uneven-parts`) for an uneven collective.
    """
    kind, ranks = collective.kind, collective.num_ranks
    parts = collective.units_per_rank
    units = np.arange(int(collective.input_units()[rank]))
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER):
        addresses: Int64Array = rank * parts + units
        return addresses
    if kind is CollectiveKind.ALL_TO_ALL:
        target, part = np.divmod(units, parts)
        pairs = [
            find_share(kind, rank * ranks + target_rank, ranks) for target_rank in target.tolist()
        ]
        return np.asarray(pairs, np.int64) * parts + part
    return units


def _parse_steps(steps: ScclValue, ranks: int) -> tuple[Sends, list[int]]:
    """Return the sends of all steps as columns, and the list of the rounds of every step.

    The sends are in the order of the file. The column `step` is the position of the step, from 0.
    `time` is 0 where it is omitted. `reduces` is None if no send has more than three fields;
    otherwise it is True for each send with the reduction `rrc`, and False for others. Without sends
    the columns are empty. Raises `InputError` (`sccl-schema`), with the JSON path, for the first
    defect in the order of the file:

    - `steps` or `sends` is no list, or a step is no object with `rounds` and `sends`.
    - `rounds` is no integer from 0 to 2^31 - 1.
    - `_parse_send` refuses a send.
    """
    rows: list[tuple[int, int, int, int, float, bool]] = []
    rounds, has_times = [], False
    for number, step in enumerate(steps.iterate_elements()):
        rounds.append(step.get_member("rounds").to_integer())
        for send in step.get_member("sends").iterate_elements():
            row = _parse_send(send, ranks)
            # Usually all sends of a file have equally many fields, but files of other tools may
            # differ.
            has_times |= len(send.value) > len(("address", "source", "destination"))
            rows.append((number, *row))
    columns = list(zip(*rows, strict=True)) or [()] * _MAX_SEND_FIELDS
    of_step, address, source, destination = (np.asarray(column, np.int64) for column in columns[:4])
    time = np.asarray(columns[4], np.float64)
    reduces = np.asarray(columns[5], np.bool_) if has_times else None
    return Sends(of_step, address, source, destination, time, reduces), rounds


def _parse_send(send: ScclValue, ranks: int) -> tuple[int, int, int, float, bool]:
    """Return (address, source, destination, time, reduces) of a send in a document.

    `send`: a list [address, source, destination, time, link, reduction] of which the last three may
    be left out from the end. `time` is 0.0 if it is left out. `reduces` is True only if the
    reduction is `rrc`; null is permitted. The link is not checked.

    Raises `InputError` (`sccl-schema`) with the JSON path in these cases, in this order:

    - The value is no list, or has fewer than 3 or more than 6 fields.
    - The address is no integer in 0 to 2^31 - 1, or a rank is no integer in 0 to `ranks` - 1.
    - Source and destination are equal.
    - The time is given and is no finite number; null is refused.
    - The reduction is neither `rrc` nor null.
    """
    fields = list(send.iterate_elements())
    if not 3 <= len(fields) <= _MAX_SEND_FIELDS:
        raise send.build_error("expected [address, source, destination, time, link, reduction]")
    address = fields[0].to_integer()
    source, destination = (field.to_integer(0, ranks) for field in fields[1:3])
    if source == destination:
        raise send.build_error("expected two different ranks")
    time = fields[3].to_number() if len(fields) > 3 else 0.0
    reduction = fields[5].value if len(fields) == _MAX_SEND_FIELDS else None
    if reduction not in (None, _REDUCES):
        raise fields[5].build_error(f"expected {_REDUCES!r} or null")
    return address, source, destination, time, reduction == _REDUCES
