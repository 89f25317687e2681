"""Loader half of the executor model: one plan and one call become address ranges in bytes.

Rules from the execution plan loader of microsoft/mscclpp (release 1f5f065d). Written without the
plugin's reader and checker, so that both can be compared with it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

_SYNCHRONISATION = ("nop", "barrier", "signal", "wait", "rlxsignal", "rlxwait", "flush")
_SEMAPHORES = ("sem_acquire", "sem_release")
_PLAIN = ("copy", "put", "get", "pws", "pwsf", "re", "res", "rre", "rres", "glres", "gstore")
_PACKETS = ("ppkt", "rppkt", "cpkt", "upkt", "repkt", "respkt", "recpkt", "recspkt", "gstorepkt")
OPERATIONS = frozenset((*_SYNCHRONISATION, *_SEMAPHORES, *_PLAIN, *_PACKETS, "pipeline"))
MAX_OPERATIONS_PER_BLOCK = 64
# The tables of the kernel have fixed lengths, and the loader does not check them.
MAX_CHANNELS_PER_BLOCK = MAX_REMOTE_BUFFERS_PER_BLOCK = MAX_SEMAPHORES_PER_OPERATION = 16
MAX_CHANNELS_PER_OPERATION, MAX_RANGES_PER_OPERATION, MAX_BARRIERS = 8, 10, 16
_UINT32 = 1 << 32


class LoaderError(Exception):
    """The loader throws, through the call of the collective."""


class TableOverrunError(Exception):
    """The loader writes beyond a fixed table of the kernel."""


@dataclass(frozen=True, slots=True)
class Call:
    """Bytes that every rank passes, and whether input and output share memory.

    `separate`: ranks that pass unrelated buffers in a call in place, as one of them is not used.
    """

    input_bytes: tuple[int, ...]
    output_bytes: tuple[int, ...]
    in_place: bool
    separate: frozenset[int] = frozenset()

    def shares_memory(self, rank: int) -> bool:
        """Whether one buffer of this rank is a part of the other one."""
        return self.in_place and rank not in self.separate


@dataclass(frozen=True, slots=True)
class Operand:
    """A range of a buffer ("i", "o", "s") in bytes, of this rank, of `rank`, or of a group."""

    buffer: str
    offset: int
    size: int
    rank: int | None = None
    group: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation with resolved ranges; `channels` are ids of the rank, not of the block."""

    name: str
    channel_type: str = ""
    channels: tuple[int, ...] = ()
    sources: tuple[Operand, ...] = ()
    targets: tuple[Operand, ...] = ()
    semaphores: tuple[int, ...] = ()
    barrier: int = 0
    num_blocks: int = 0
    slice_bytes: int = 0
    num_slices: int = 0
    body: tuple[Operation, ...] = ()


@dataclass(slots=True)
class LoadedRank:
    """What one rank launches: a list of operations a thread block, and the sizes of its memory."""

    blocks: list[list[Operation]]
    input_bytes: int
    output_bytes: int
    scratch_bytes: int
    semaphores: list[int]
    # (channel type, id of the rank) -> (peer, ordinal among the connections to this peer)
    connections: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)


def share_offset(size: int, index: int, parts: int, alignment: int) -> int:
    """Start of part `index` of `parts` of a range, in bytes; the loader's formula, 32 bits.

    With fewer units than parts the modulo of the loader loses data.
    """
    units = size // alignment
    if units == 0:
        return 0
    minimum, rest = divmod(units, parts)
    extra = index % units if index % units < rest else rest
    return (index * minimum + extra) * alignment


class _RankLoader:
    """Resolves the operations of one rank for one call."""

    def __init__(self, plan: Json, rank: int, call: Call) -> None:
        self.plan, self.gpu, self.rank, self.call = plan, plan["gpus"][rank], rank, call
        self.alignment = plan.get("buffer_alignment", 16)
        self.groups = [
            (channel["buffer_type"], tuple(group["ranks"]))
            for channel in self.gpu["channels"]
            if channel["channel_type"] == "switch"
            for group in channel["rank_groups"]
        ]
        self.peers: dict[str, list[int]] = defaultdict(list)
        for channel in self.gpu["channels"]:
            if channel["channel_type"] != "switch":
                self.peers[channel["channel_type"]] += channel["connected_to"]

    def load(self) -> LoadedRank:
        input_bytes, output_bytes = self._checked_sizes()
        chunk = input_bytes // self.gpu["input_chunks"]
        self.chunk_bytes = chunk
        scratch = self._scratch_bytes()
        blocks = [self._block(block) for block in self.gpu["threadblocks"]]
        loaded = LoadedRank(
            blocks,
            input_bytes,
            output_bytes,
            scratch,
            [one["init_value"] for one in self.gpu.get("semaphores", [])],
        )
        for kind, peers in self.peers.items():
            counted: dict[int, int] = defaultdict(int)
            for number, peer in enumerate(peers):
                loaded.connections[kind, number] = (peer, counted[peer])
                counted[peer] += 1
        return loaded

    def _checked_sizes(self) -> tuple[int, int]:
        """The sizes of the call. Raises `LoaderError` as the loader's size check does."""
        if self.gpu["id"] != self.rank:
            raise LoaderError(f"gpu at position {self.rank} has id {self.gpu['id']}")
        sizes = self.call.input_bytes[self.rank], self.call.output_bytes[self.rank]
        chunks = self.gpu["input_chunks"], self.gpu["output_chunks"]
        if 0 in chunks:
            raise LoaderError(f"rank {self.rank}: a chunk count is 0 (division by zero)")
        for size, count in zip(sizes, chunks, strict=True):
            if size % self.alignment or size // self.alignment % count:
                message = f"{size} bytes are not divisible by {count} chunks of {self.alignment}"
                raise LoaderError(f"rank {self.rank}: {message} bytes")
        if sizes[0] // chunks[0] != sizes[1] // chunks[1]:
            raise LoaderError(f"rank {self.rank}: chunks of input and output differ in size")
        size = sizes[1] if self.plan["collective"] == "allgather" else sizes[0]
        least = self.plan.get("min_message_size", 0)
        most = self.plan.get("max_message_size", 2**64 - 1)
        if not least <= size <= most:
            raise LoaderError(f"rank {self.rank}: {size} bytes are outside {least}..{most}")
        return sizes

    def _scratch_bytes(self) -> int:
        """From the caller's allocation, which in place is the larger one of both buffers."""
        size = self.call.input_bytes[self.rank]
        if self.call.shares_memory(self.rank):
            size = max(size, self.call.output_bytes[self.rank])
        size = min(size, self.plan.get("max_message_size", 2**64 - 1))
        if self.plan.get("reuse_resources", False):
            raise NotImplementedError("scratch that plans share is not modelled")
        chunk = math.ceil(size / self.gpu["input_chunks"])
        total = chunk * self.gpu["scratch_chunks"]
        total *= 2 if self.plan["protocol"] == "LL" else 1
        total *= 2 if self.plan.get("use_double_scratch_buffer", False) else 1
        return math.ceil(total / self.alignment) * self.alignment

    def _block(self, block: Json) -> list[Operation]:
        tables: dict[str, list[int]] = defaultdict(list)
        for listed in block["channels"]:
            tables[listed["channel_type"]] += listed["channel_ids"]
        remote: dict[str, list[int]] = defaultdict(list)
        for listed in block.get("remote_buffer_refs", []):
            remote[listed["access_channel_type"]] += listed["remote_buffer_ids"]
        for entries, most in (
            *((ids, MAX_CHANNELS_PER_BLOCK) for ids in tables.values()),
            *((ids, MAX_REMOTE_BUFFERS_PER_BLOCK) for ids in remote.values()),
        ):
            if len(entries) > most:
                raise TableOverrunError(
                    f"rank {self.rank}, block {block['id']}: {len(entries)} of {most}"
                )
        count = sum(1 + len(one.get("ops", ())) for one in block["ops"])
        if count > MAX_OPERATIONS_PER_BLOCK:
            raise LoaderError(f"rank {self.rank}, block {block['id']}: {count} operations")
        return [self._operation(one, tables, remote) for one in block["ops"]]

    def _operation(
        self, op: Json, tables: dict[str, list[int]], remote: dict[str, list[int]]
    ) -> Operation:
        name, kind = op["name"], op.get("channel_type", "")
        if name not in OPERATIONS:
            raise LoaderError(f"rank {self.rank}: unknown operation {name}")
        ids = op.get("channel_ids", ())
        for entries, most in (
            (ids, MAX_CHANNELS_PER_OPERATION),
            (op.get("src_buff", ()), MAX_RANGES_PER_OPERATION),
            (op.get("dst_buff", ()), MAX_RANGES_PER_OPERATION),
            (op.get("semaphore_ids", ()), MAX_SEMAPHORES_PER_OPERATION),
        ):
            if len(entries) > most:
                raise TableOverrunError(f"rank {self.rank}, {name}: {len(entries)} of {most}")
        if op.get("barrier_id", 0) >= MAX_BARRIERS:
            raise TableOverrunError(f"rank {self.rank}: barrier {op['barrier_id']}")
        group = op.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        part = group["tb_id"], group["tbg_size"]

        def operands(key: str) -> tuple[Operand, ...]:
            return tuple(self._operand(one, part, kind, tables, remote) for one in op.get(key, ()))

        slice_bytes = num_slices = 0
        if name == "pipeline":
            context = op["iter_context"]
            slice_bytes = context["unit_size"]
            total = context["num_chunks"] * self.chunk_bytes
            num_slices = math.ceil(total / slice_bytes) & 0xFFFF
        return Operation(
            name,
            kind,
            tuple(tables[kind][one] for one in ids),
            operands("src_buff"),
            operands("dst_buff"),
            tuple(op.get("semaphore_ids", ())),
            op.get("barrier_id", 0),
            op.get("num_threadblocks", 0),
            slice_bytes,
            num_slices,
            tuple(self._operation(one, tables, remote) for one in op.get("ops", ())),
        )

    def _operand(
        self,
        entry: Json,
        part: tuple[int, int],
        kind: str,
        tables: dict[str, list[int]],
        remote: dict[str, list[int]],
    ) -> Operand:
        size = entry["size"] * self.chunk_bytes
        first = share_offset(size, part[0], part[1], self.alignment)
        last = share_offset(size, part[0] + 1, part[1], self.alignment)
        offset = entry["index"] * self.chunk_bytes + first
        place = (offset, (last - first) % _UINT32)
        if "buffer_id" in entry:
            listed = self.gpu["remote_buffers"][remote[kind][entry["buffer_id"]]]
            return Operand(listed["type"], *place, rank=listed["rank"])
        if "switch_channel_id" in entry:
            buffer, ranks = self.groups[tables["switch"][entry["switch_channel_id"]]]
            return Operand(buffer, *place, group=ranks)
        return Operand(entry["type"], *place)


def load_plan(plan: Json, call: Call) -> list[LoadedRank]:
    """Every rank of a plan for one call. Raises `LoaderError`, `TableOverrunError`."""
    return [_RankLoader(plan, rank, call).load() for rank in range(len(plan["gpus"]))]
