"""Ranges of NCCL on the host threads: their payloads, and the calls that each kernel performs.

A payload begins with a header of 32 bytes: domain, schema, size and offset of the fields (u64,
little-endian). Fields are found by their names, because numbers of schemas differ by release.
Sources: NVIDIA/nccl `src/include/nvtx_payload_schemas.h` (Apache-2.0); spcl/atlahs `goal_gen/ai`.

A kernel performs the call whose range encloses its launch. Calls between `ncclGroupStart` and
`ncclGroupEnd` are launched within `ncclGroupEnd`: kernels and calls of the group are paired by
kind, in their order; if a group has fewer kernels than calls, a kernel performs several calls.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from collhub_nccl_records.calls import COLLECTIVES, MESSAGES, operation_word

from collhub_pytorch.nsys.database import Condition, ExportTables

_PID_SHIFT, _PID_MASK = 24, (1 << 24) - 1
_GROUP_START, _GROUP_END = "groupstart", "groupend"
_INITIALISATIONS = ("comminit", "commsplit", "commshrink", "commgrow", "commhash")
_MAX_RANGES = 1 << 22
# Names of ranges of NCCL, and of the patched NCCL of ATLAHS.
_NAME_PREFIXES = ("nccl", "commHash")
_MAX_NESTING = 32
# The kernel of messages, and of the collectives that consist of messages.
_MESSAGE_KERNEL = "sendrecv"
_BY_MESSAGES = (*MESSAGES, "alltoall", "gather", "scatter")


@dataclass(frozen=True, slots=True)
class CallRange:
    """One call on a host thread: times in ns, operation (`AllReduce`) and payload."""

    start: int
    end: int
    operation: str
    payload: NcclPayload

    @property
    def word(self) -> str:
        """The operation in lower-case letters."""
        return operation_word(self.operation)


@dataclass(slots=True)
class ThreadRanges:
    """Ranges of one thread in the order of their starts. `groups`: (start, end, calls) of the
    ranges of `ncclGroupEnd` that launch calls."""

    pid: int
    calls: list[CallRange] = field(default_factory=list)
    groups: list[tuple[int, int, list[CallRange]]] = field(default_factory=list)


@dataclass(slots=True)
class NcclRanges:
    """Ranges by thread, and the payloads of initialisations with the process of each.

    `undecodable`: payloads that do not fit their schema; `without_payload`: calls that have none.
    """

    threads: dict[int, ThreadRanges] = field(default_factory=dict)
    members: list[tuple[int, NcclPayload]] = field(default_factory=list)
    undecodable: int = 0
    without_payload: int = 0


def read_ranges(tables: ExportTables) -> NcclRanges:
    """Read the NVTX ranges (annotated intervals) of NCCL of all threads.

    - `members`: (process id, payload) of the ranges of initialization, such as `ncclCommInit`,
      whose payload has a rank and a communicator. They are in table order and are no calls.
    - `threads`: by thread, its calls of collectives and messages, by start; of equal starts the
      longer one is first. A group consists of the calls between `ncclGroupStart` and the matching
      outermost `ncclGroupEnd`. Groups without calls are left out.
    - `undecodable`: number of payloads that cannot be decoded.
    - `without_payload`: number of calls without a decoded payload.

    A call has the name of the operation in its payload, else that in the text of the range. Of the
    ranges that are no initialization, only the first 2^22 in table order are used. Ranges without
    an end or with other names are left out. Without a table of NVTX events the result is empty.
    Raises `InputError` for a damaged file.
    """
    ranges, decoder = NcclRanges(), PayloadDecoder.of(tables)
    raw: dict[int, list[tuple[int, int, str, NcclPayload | None]]] = defaultdict(list)
    count = 0
    for start, end, thread, text, content in _select(tables):
        payload = decoder.decode(content, text)
        name = operation_word(text.partition("(")[0].partition(" ")[0])
        pid = (thread >> _PID_SHIFT) & _PID_MASK
        if name.startswith(_INITIALISATIONS):
            if payload is not None and payload.rank >= 0 and payload.communicator:
                ranges.members.append((pid, payload))
            continue
        count += 1
        if count <= _MAX_RANGES and end is not None:
            raw[thread].append((start, end, text, payload))
    for thread, entries in raw.items():
        pid = (thread >> _PID_SHIFT) & _PID_MASK
        ranges.threads[thread] = _thread_ranges(pid, entries, ranges)
    ranges.undecodable = decoder.undecodable
    return ranges


def _select(tables: ExportTables) -> Iterator[tuple[int, int | None, int, str, object]]:
    """Yield (start, end, thread, name, payload) of the ranges of NCCL, in table order.

    An event is selected if its text, or the text of its `textId`, begins with `nccl` or `commHash`;
    case matters. The name is the text of the event or, if it has none, that of its `textId`. Events
    without an integer as start or thread are left out. The end is None if it is no integer, the
    payload None if it is neither bytes nor text. Nothing is yielded without the table of events.
    Raises `InputError` for a damaged file.
    """
    ids: dict[int, str] = {}
    nccl = Condition("value", prefixes=_NAME_PREFIXES)
    for chunk in tables.rows("StringIds", ("id", "value"), ("id",), [nccl]):
        ids |= {int(str(number)): str(text) for number, text in chunk}
    columns = ("start", "end", "globalTid", "text", "textId", "binaryData")
    where = [Condition("textId", list(ids)), Condition("text", prefixes=_NAME_PREFIXES)]
    for chunk in tables.rows("NVTX_EVENTS", columns, ("start", "globalTid"), where):
        for start, end, thread, text, number, content in chunk:
            name = text if isinstance(text, str) else ids.get(number, "")  # type: ignore[call-overload]
            stop = end if isinstance(end, int) else None
            value = content if isinstance(content, bytes | str) else None
            yield int(str(start)), stop, int(str(thread)), str(name), value


def _thread_ranges(
    pid: int, entries: list[tuple[int, int, str, NcclPayload | None]], ranges: NcclRanges
) -> ThreadRanges:
    thread = ThreadRanges(pid)
    depth, calls = 0, list[CallRange]()
    for start, end, text, payload in sorted(entries, key=lambda one: (one[0], -one[1])):
        operation = payload.operation if payload is not None else ""
        operation = operation or text.partition("(")[0].removeprefix("nccl")
        word = operation_word(operation)
        if word == _GROUP_START:
            depth += 1
        elif word == _GROUP_END:
            depth = max(0, depth - 1)
            if depth == 0 and calls:
                thread.groups.append((start, end, calls))
                calls = []
        elif word in COLLECTIVES or word in MESSAGES:
            ranges.without_payload += payload is None
            call = CallRange(start, end, operation, payload or NcclPayload())
            thread.calls.append(call)
            if depth:
                calls.append(call)
    return thread


@dataclass(slots=True)
class KernelCalls:
    """Calls of each kernel of NCCL, by its row; `added`: kernels that perform several calls."""

    of_kernel: dict[int, list[CallRange]] = field(default_factory=dict)
    added: int = 0


def assign_calls(ranges: NcclRanges, launches: Sequence[tuple[int, int, int, str]]) -> KernelCalls:
    """Find the NCCL calls that each kernel executes, by the ranges in which kernels are launched.

    `launches`: (row, thread, launch time in ns, name) of the kernels. The first rule that applies:

    1. A kernel of a thread without ranges has no calls.
    2. A kernel that is launched within an `ncclGroupEnd` of its thread, ends included, executes
       calls of this group. They are divided among its kernels in the order of launches
       (`_pair_group`). A kernel that gets none there has no calls.
    3. Another kernel executes the call whose range contains its launch, ends included. Of nested
       ranges it is the one that starts last. Only the last `_MAX_NESTING` calls that start before
       or at the launch are examined.
    4. Otherwise it has no calls.

    Rows without calls are not in the result.
    """
    result = KernelCalls()
    by_group: dict[tuple[int, int], list[tuple[int, int, str]]] = defaultdict(list)
    for row, thread, moment, name in launches:
        if thread not in ranges.threads:
            continue
        of_thread = ranges.threads[thread]
        # An earlier group that overlaps the last one and ends later is not examined.
        group = bisect_right(of_thread.groups, moment, key=lambda entry: entry[0]) - 1
        if group >= 0 and moment <= of_thread.groups[group][1]:
            by_group[thread, group].append((moment, row, name))
            continue
        last = bisect_right(of_thread.calls, moment, key=lambda call: call.start)
        candidates = of_thread.calls[max(0, last - _MAX_NESTING) : last]
        around = [call for call in candidates if call.end >= moment]
        if around:
            result.of_kernel[row] = [around[-1]]
    for (thread, group), kernels in by_group.items():
        calls = ranges.threads[thread].groups[group][2]
        _pair_group(sorted(kernels), calls, result)
    return result


def _pair_group(
    kernels: Sequence[tuple[int, int, str]], calls: Sequence[CallRange], result: KernelCalls
) -> None:
    """Divide the calls of a group (`ncclGroupStart` to `ncclGroupEnd`) among its kernels by kind.

    `kernels`: (time in ns, row, name), ascending. `calls`: by ascending start. The kind of a kernel
    is read from the letters of its name before the first `(`: `sendrecv` if they contain it, else
    the longest name of a collective in them, else "". The kind of a call is `sendrecv` for
    messages, all-to-all, gather and scatter, otherwise its collective.

    The n calls of a kind are divided into consecutive shares, one per kernel of the kind, in order.
    Sizes of shares differ by at most one, larger ones first: of 5 calls, 2 kernels get 3 and 2.
    `result.of_kernel` gets the share by row of the kernel; a kernel with an empty share gets no
    entry. Calls of a kind without kernels are dropped. `result.added` grows by the number of
    kernels with several calls, `sendrecv` kernels excluded.
    """
    # The longest name is first: a reduce-scatter is no reduce.
    words = (_MESSAGE_KERNEL, *sorted(COLLECTIVES, key=len, reverse=True))
    rows: dict[str, list[int]] = defaultdict(list)
    for _, row, name in kernels:
        letters = operation_word(name.partition("(")[0])
        rows[next((word for word in words if word in letters), "")].append(row)
    by_kind: dict[str, list[CallRange]] = defaultdict(list)
    for call in calls:
        by_kind[_MESSAGE_KERNEL if call.word in _BY_MESSAGES else call.word].append(call)
    for kind, numbers in rows.items():
        shares = np.array_split(np.arange(len(by_kind[kind])), len(numbers))
        for row, share in zip(numbers, shares, strict=True):
            if len(share):
                result.of_kernel[row] = [by_kind[kind][index] for index in share.tolist()]
                result.added += len(share) > 1 and kind != _MESSAGE_KERNEL


_HEADER = struct.Struct("<QQQQ")
# Formats of `struct` by type code; codes from 2^24 on are enumerations of 4 bytes here.
_TYPES = {5: "<i", 6: "<I", 15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q"}
_ENUMERATION = "<i"
_FIRST_ENUMERATION = 1 << 24
_FIELDS = {
    "NCCL communicator ID": "communicator",
    "Message size [bytes]": "bytes",
    "Reduction operation": "operator",
    "Root": "root",
    "Peer rank": "peer",
    "No. of ranks": "rank_count",
    "Rank": "rank",
    "CUDA device": "device",
}
_MAX_SCHEMAS = 1 << 12
_ATLAHS_CALL = re.compile(r"nccl(\w{1,40})\(\): commHash (\w{1,20}),.{0,200}?data_size (\d{1,18})")
_ATLAHS_PEER = re.compile(r"(?:root|receiver_rank|sender_rank) (\d{1,7})")
_ATLAHS_MEMBER = re.compile(
    r"commHash (\w{1,20}) commId \w{1,40} rank (\d{1,7}) nranks (\d{1,7}) pid (\d{1,10})"
)


@dataclass(frozen=True, slots=True)
class NcclPayload:
    """Values of one range; -1 and "" if it lacks them. `communicator`: hash in hexadecimal.

    `operation`: `AllReduce` in texts of ATLAHS, "" else. `target`: root or peer.
    """

    communicator: str = ""
    bytes: int = -1
    target: int = -1
    rank: int = -1
    rank_count: int = 0
    device: int = -1
    operation: str = ""


@dataclass(slots=True)
class PayloadDecoder:
    """Decoder of one file. `undecodable`: number of payloads that do not fit their schema."""

    schemas: Mapping[tuple[int, int], tuple[int, Mapping[str, tuple[str, int]]]]
    undecodable: int = 0
    _cache: dict[bytes, NcclPayload | None] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: ExportTables) -> PayloadDecoder:
        """Read the schemas of payloads in a file: size, and format and offset of each known field.

        A schema is identified by domain and number. Sizes and offsets are in bytes. The first 2^12
        schemas of the table are kept; later rows of the table are ignored. A field is left out if
        one of these holds:

        - Its schema was not kept, or its name or its type is unknown. Types from 2^24 on are
          enumerations of 4 bytes.
        - Its offset is negative, or it ends after the size of the schema. An offset that is missing
          or no integer is 0.

        If a schema has a field twice, the later one counts. Schemas without a known field are left
        out. Without the tables of schemas, there are none. Raises `InputError` for a damaged file.
        """
        sizes: dict[tuple[int, int], int] = {}
        keys = ("domainId", "schemaId")
        columns: tuple[str, ...] = (*keys, "payloadSize")
        for chunk in tables.rows("NVTX_PAYLOAD_SCHEMAS", columns, columns):
            for domain, schema, size in chunk:
                if len(sizes) < _MAX_SCHEMAS:
                    sizes[int(str(domain)), int(str(schema))] = int(str(size))
        fields: dict[tuple[int, int], dict[str, tuple[str, int]]] = {}
        columns = (*keys, "type", "name", "offset")
        for chunk in tables.rows("NVTX_PAYLOAD_SCHEMA_ENTRIES", columns, columns[:3]):
            for domain, schema, code, name, offset in chunk:
                key = int(str(domain)), int(str(schema))
                number = int(str(code))
                form = _ENUMERATION if number >= _FIRST_ENUMERATION else _TYPES.get(number)
                start = offset if isinstance(offset, int) else 0
                if form is None or name not in _FIELDS or key not in sizes or start < 0:
                    continue
                if start + struct.calcsize(form) <= sizes[key]:
                    fields.setdefault(key, {})[_FIELDS[str(name)]] = (form, start)
        return cls({key: (sizes[key], values) for key, values in fields.items()})

    def decode(self, content: object, text: str) -> NcclPayload | None:
        """Decode the payload (recorded data) of an NCCL range; return None if that is impossible.

        Values that the range lacks are -1, "" for texts, and 0 for `rank_count`.

        - `content` is None: the beginning of `text` decides. `ncclNAME(): commHash H, ... data_size
          N` gives operation, communicator and bytes, and the target from the first `root`,
          `receiver_rank` or `sender_rank` in the text. `commHash H commId I rank R nranks N pid P`
          gives communicator, rank and number of ranks. Any other text gives None.
        - `content` is bytes or hexadecimal text (other texts count as empty): the known fields of
          its schema in `self.schemas`. Communicator 0 is "", bytes are at most 2^62, and negative
          values of target, rank and device become -1. The root precedes the peer as the target. The
          result is None if the payload is too short, or its schema is unknown or of another size.
          Then `self.undecodable` increases by 1, for equal payloads each time.
        """
        if content is None:
            if match := _ATLAHS_CALL.match(text):
                target = _ATLAHS_PEER.search(text)
                return NcclPayload(
                    match[2], int(match[3]), int(target[1]) if target else -1, operation=match[1]
                )
            if match := _ATLAHS_MEMBER.match(text):
                return NcclPayload(match[1], rank=int(match[2]), rank_count=int(match[3]))
            return None
        if isinstance(content, str):
            # Other tools store the bytes as hexadecimal text.
            try:
                content = bytes.fromhex(content)
            except ValueError:
                content = b""
        assert isinstance(content, bytes)
        if content not in self._cache:
            if len(self._cache) >= _MAX_SCHEMAS:
                self._cache.clear()
            self._cache[content] = self._decode_bytes(content)
        if self._cache[content] is None:
            self.undecodable += 1
        return self._cache[content]

    def _decode_bytes(self, content: bytes) -> NcclPayload | None:
        if len(content) < _HEADER.size:
            return None
        domain, schema, size, offset = _HEADER.unpack_from(content)
        if (domain, schema) not in self.schemas:
            return None
        expected, fields = self.schemas[domain, schema]
        if size != expected or len(content) < _HEADER.size + size:
            return None
        # Some exports have the size of header and payload in place of the offset.
        start = offset if _HEADER.size <= offset <= len(content) - size else _HEADER.size
        values = {
            name: struct.unpack_from(form, content, start + field_offset)[0]
            for name, (form, field_offset) in fields.items()
        }
        communicator = values.get("communicator", 0)
        return NcclPayload(
            hex(communicator & 0xFFFFFFFFFFFFFFFF) if communicator else "",
            min(values.get("bytes", -1), 1 << 62),
            max(values.get("root", values.get("peer", -1)), -1),
            max(values.get("rank", -1), -1),
            max(values.get("rank_count", 0), 0),
            max(values.get("device", -1), -1),
        )
