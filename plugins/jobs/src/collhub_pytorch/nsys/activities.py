"""Read the work of the devices and the launches of a file; merge kernels of very long profiles."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from collhub_pytorch.kineto.events import LAUNCH, classify_runtime_call
from collhub_pytorch.nsys.database import ExportTables, read_texts
from hub_core.columns import BoolArray, Int64Array

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_COPIES = {"CUPTI_ACTIVITY_KIND_MEMCPY": -2, "CUPTI_ACTIVITY_KIND_MEMSET": -3}
# Names of work without a text.
NAMES = {-1: "kernel", -2: "memcpy", -3: "memset", -4: "kernels (merged)"}
MERGED, MEMORY_WORK = -4, (-2, -3)
_NCCL_KERNEL = re.compile(r"nccl", re.IGNORECASE)
# Profiles with more activities are merged, first with gaps below 10 us, then with longer ones.
_MERGE_ABOVE = 200_000
_FIRST_GAP_NS, _LAST_GAP_NS = 10_000, 10**12
_MAX_PENDING = 1 << 19
_USEFUL_REDUCTION = 0.9
_PID_SHIFT, _PID_MASK = 24, (1 << 24) - 1
_MAX_TIME_NS = 1 << 62

Records = np.ndarray[tuple[int], np.dtype[np.void]]


@dataclass(slots=True)
class Activities:
    """Work of all devices, one entry per kernel or copy, sorted by process, device, stream, start.

    `name`: id of a text, or a key of `NAMES`. `is_nccl`: kernels of NCCL. `merger`: of long
    profiles.
    """

    start: Int64Array
    end: Int64Array
    pid: Int64Array
    device: Int64Array
    stream: Int64Array
    correlation: Int64Array
    name: Int64Array
    is_nccl: BoolArray
    texts: dict[int, str]
    merger: Merger | None = None


@dataclass(slots=True)
class RuntimeCalls:
    """Calls of the runtime that launch work, block the host, or make a stream wait."""

    start: Int64Array
    end: Int64Array
    pid: Int64Array
    thread: Int64Array
    correlation: Int64Array
    kind: Int64Array


def read_activities(tables: ExportTables) -> Activities:
    """Read the work of all devices: kernels, memory copies and memory sets; times are in ns.

    The result is sorted by process, device, stream and start; ties are in the order kernels,
    copies, sets, then of the table. `name` is the id in the first existing column of demangled,
    short and mangled name (`texts` by id), -2 for copies, -3 for sets. `is_nccl`: the name of the
    kernel begins with `nccl` in any case. Missing tables count as empty. Rows with end before
    start, or with times, device or name out of range (`_narrow`), are dropped.

    `merger` is None for at most 200 000 rows (`_MERGE_ABOVE`), dropped ones included. Of more rows,
    `Merger.reduce` merges consecutive work of a stream, except kernels of NCCL, at the end and each
    time when more than 2^19 records (`_MAX_PENDING`) are held. Merged kernels have the name -4.

    Raises `InputError` for a damaged file, and for a table of more than 2^28 rows.
    """
    names = ("demangledName", "shortName", "mangledName")
    present = tables.columns(KERNELS)
    name = next((column for column in names if column in present), names[0])
    columns = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", name)
    count = sum(tables.count(table) for table in (KERNELS, *_COPIES))
    name_ids: set[int] = set()
    for chunk in tables.numbers(KERNELS, (name,), ("start",)):
        name_ids.update(np.unique(chunk).tolist())
    texts = NAMES | read_texts(tables, sorted(number for number in name_ids if number >= 0))
    nccl = np.array(
        [number for number, text in texts.items() if _NCCL_KERNEL.match(text)], np.int64
    )
    merger = Merger(nccl) if count > _MERGE_ABOVE else None
    if merger is not None:
        for chunk in tables.numbers(KERNELS, columns, columns[:2]):
            merger.add_bounds(_narrow(chunk))
    pending: list[Records] = []
    for table, number in ((KERNELS, 0), *_COPIES.items()):
        for chunk in tables.numbers(table, columns if number == 0 else columns[:6], columns[:2]):
            if number:
                filled = np.full((len(chunk), 1), number, np.int64)
                chunk = np.concatenate([chunk, filled], axis=1)
            pending.append(_narrow(chunk))
            if merger is not None and sum(map(len, pending)) > _MAX_PENDING:
                pending = [merger.reduce(_sorted(np.concatenate(pending)))]
    records = _sorted(np.concatenate(pending) if pending else _narrow(np.empty((0, 7), np.int64)))
    pending.clear()
    if merger is not None:
        records = merger.reduce(records)
    wide = {field: records[field].astype(np.int64) for field in records.dtype.names or ()}
    is_nccl = np.isin(records["name"], nccl)
    return Activities(**wide, is_nccl=is_nccl, texts=texts, merger=merger)


_NARROW = np.dtype([
    ("start", np.int64), ("end", np.int64), ("pid", np.int32), ("device", np.int32),
    ("stream", np.int32), ("correlation", np.int64), ("name", np.int32),
])  # fmt: skip


def _narrow(chunk: Int64Array) -> Records:
    """Convert rows of integers, int64[rows, 7], to compact records; drop rows out of range.

    A row has start, end, device, stream, correlation, global process id and name. It is kept, in
    its order, if -2^62 <= start <= end <= 2^62 (ns), and if device and name are within -(2^31 -
    1)..2^31 - 1; both may be negative. The process id is `(global id >> 24) & (2^24 - 1)`. Streams
    keep their lower 31 bits; all other fields are unchanged. No rows give no records.
    """
    start, end, device, stream, correlation, pid, name = chunk.T
    highest = np.iinfo(np.int32).max
    is_valid = (start >= -_MAX_TIME_NS) & (end >= start) & (end <= _MAX_TIME_NS)
    for column in (device, name):
        is_valid &= np.abs(column) <= highest
    records = np.empty(int(is_valid.sum()), _NARROW)
    records["start"], records["end"] = start[is_valid], end[is_valid]
    records["pid"] = (pid[is_valid] >> _PID_SHIFT) & _PID_MASK
    # Numbers of streams are small; others differ in their lower bits.
    records["device"], records["stream"] = device[is_valid], stream[is_valid] & highest
    records["correlation"], records["name"] = correlation[is_valid], name[is_valid]
    return records


def _sorted(records: Records) -> Records:
    """Return the records sorted by process, then device, stream and start; stable."""
    columns = ("start", "stream", "device", "pid")
    return records[np.lexsort([records[column] for column in columns])]


class Merger:
    """Merges consecutive work of a stream with short gaps, except for kernels of NCCL.

    Work before, during and after a kernel of NCCL on the same device stays separate, because the
    analysis compares their times. `merged`: number of activities that became part of another one;
    `gap_ns`: gaps below this are part of merged work.
    """

    def __init__(self, nccl_names: Int64Array) -> None:
        self._nccl_names = nccl_names
        self._bounds: dict[int, list[Int64Array]] = {}
        self.merged = 0
        self.gap_ns = _FIRST_GAP_NS

    def add_bounds(self, records: Records) -> None:
        """Store the starts and ends of NCCL kernels among `records`, by device.

        Other work is never merged across such a time. All bounds must be stored before the first
        merge.
        """
        nccl = records[np.isin(records["name"], self._nccl_names)]
        devices = _device_keys(nccl)
        for device in np.unique(devices).tolist():
            rows = nccl[devices == device]
            self._bounds.setdefault(device, []).extend((rows["start"], rows["end"]))

    def reduce(self, records: Records) -> Records:
        """Merge consecutive records of a stream until at most 200 000 remain, if possible.

        `records` must be sorted by stream and start (`_sorted`). Merged are neighbours with a
        gap below `gap_ns`, both memory operations or neither, without a bound of an NCCL kernel
        between their starts; kernels of NCCL are never merged. The result lasts from the first
        start to the last end; kernels get the name `MERGED`. The first round is always done. As
        long as more than 200 000 records remain, further rounds increase the gap tenfold, up to
        `_LAST_GAP_NS`. A round that removes less than 10 % of the records is the last one, and
        the gap is reset to the one before it.

        The gap is kept for later calls. `merged` is increased by the number of removed records.
        """
        records = self._merge(records)
        while len(records) > _MERGE_ABOVE and self.gap_ns < _LAST_GAP_NS:
            gap_ns, count = self.gap_ns, len(records)
            self.gap_ns *= 10
            records = self._merge(records)
            if len(records) > count * _USEFUL_REDUCTION:
                # Work around each kernel of NCCL stays separate, whatever the gap.
                self.gap_ns = gap_ns
                break
        return records

    def _merge(self, records: Records) -> Records:
        count = len(records)
        if not count:
            return records
        is_nccl = np.isin(records["name"], self._nccl_names)
        is_memory = np.isin(records["name"], MEMORY_WORK)
        same = records["start"][1:] - records["end"][:-1] < self.gap_ns
        for column in ("pid", "device", "stream"):
            same &= records[column][1:] == records[column][:-1]
        same &= ~is_nccl[1:] & ~is_nccl[:-1] & (is_memory[1:] == is_memory[:-1])
        section = self._sections(records)
        same &= section[1:] == section[:-1]
        firsts = np.flatnonzero(np.append(True, ~same))
        several = np.diff(np.append(firsts, count)) > 1
        merged = records[firsts].copy()
        merged["end"] = np.maximum.reduceat(records["end"], firsts)
        merged["name"][several & ~is_memory[firsts]] = MERGED
        self.merged += count - len(firsts)
        return merged

    def _sections(self, records: Records) -> Int64Array:
        """Return for each record how many bounds precede or equal its start: int64[records].

        Bounds are the starts and ends of the NCCL kernels on the device of the record. Without
        bounds it is 0. The stored bounds of each device are sorted as a side effect.
        """
        section = np.zeros(len(records), np.int64)
        devices = _device_keys(records)
        for device in np.unique(devices).tolist():
            if device not in self._bounds:
                continue
            # Sorted once; later additions are only possible before the first merge.
            bounds = np.sort(np.concatenate(self._bounds[device]))
            self._bounds[device] = [bounds]
            rows = devices == device
            section[rows] = np.searchsorted(bounds, records["start"][rows], "right")
        return section


def _device_keys(records: Records) -> Int64Array:
    keys: Int64Array = records["pid"].astype(np.int64) << 32 | records["device"]
    return keys


def read_runtime_calls(tables: ExportTables, activities: Activities) -> RuntimeCalls:
    """Read the runtime calls that launched one of the activities, and all calls that wait or block.

    Activities are work of the device. A launch belongs to an activity if process and correlation id
    are equal. The process is `(global thread id >> 24) & (2^24 - 1)`. The kind of a call follows
    from its name (`classify_runtime_call`); a call without a name is a launch. Calls are dropped if
    start or end is no integer, or unless -2^62 <= start <= end <= 2^62 (ns). Other missing values
    are -1. The columns are int64[calls], in the order of the table; empty without the table or its
    columns start and end.

    Raises `InputError` for a damaged file, and (`too-large`) for more than 2^28 rows.
    """
    needed = np.unique(activities.pid << 40 ^ activities.correlation)
    kinds: dict[int, int] = {}
    parts: list[Int64Array] = []
    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    for chunk in tables.numbers(_RUNTIME, columns, columns[:2]):
        start, end, thread, correlation, name = chunk.T
        new = [number for number in np.unique(name).tolist() if number not in kinds]
        texts = read_texts(tables, [number for number in new if number >= 0])
        kinds |= {number: classify_runtime_call(texts.get(number, "")) for number in new}
        known = np.array(sorted(kinds), np.int64)
        kind_of_known = np.array([kinds[number] for number in known.tolist()], np.int64)
        kind = kind_of_known[np.searchsorted(known, name)]
        pid = (thread >> _PID_SHIFT) & _PID_MASK
        key = pid << 40 ^ correlation
        index = np.minimum(np.searchsorted(needed, key), len(needed) - 1)
        is_launch = needed[index] == key if len(needed) else np.zeros(len(key), np.bool_)
        is_valid = (start >= -_MAX_TIME_NS) & (end >= start) & (end <= _MAX_TIME_NS)
        used = is_valid & (is_launch | (kind != LAUNCH))
        parts.append(np.stack([start, end, pid, thread, correlation, kind], axis=1)[used])
    table = np.concatenate(parts) if parts else np.empty((0, 6), np.int64)
    return RuntimeCalls(*(np.ascontiguousarray(column) for column in table.T))
