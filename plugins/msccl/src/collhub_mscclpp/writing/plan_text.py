"""Format a plan as JSON text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from collhub_mscclpp.checking.limits import MOST_SLICES
from collhub_mscclpp.options import ALIGNMENT, PACKETS
from collhub_mscclpp.plans.operations import BUFFER_TYPES
from collhub_mscclpp.writing.draft import Draft
from collhub_mscclpp.writing.segments import SWITCH, RankTables, Segment
from collhub_mscclpp.writing.switch_stores import SwitchStores
from collhub_mscclpp.writing.work import NAMES
from hub_core.columns import Int64Array
from hub_core.model import CollectiveKind, UsageError

UNSTATED_IN_PLACE = (CollectiveKind.GATHER, CollectiveKind.SCATTER)
"""Collectives for which a plan cannot describe which part of a buffer the other one is in place.

Plans name them custom, and the pointers of the call decide.
"""
_MOST_BYTES = 2**64 - 1
_SEPARATOR = ",\n"


def plan_text(draft: Draft, blocks: Sequence[Sequence[Segment]]) -> bytes:
    """Format the plan with the thread blocks of every rank; its name contains a digest of its text.

    The executor caches plans by name, so plans with different contents need different names.
    """
    work = draft.work
    # All chunks of a plan have one size, also chunks of scratch.
    counts = count_chunks(draft)
    header = _format_header(draft, _find_min_bytes(draft, counts), _find_max_bytes(draft, counts))
    gpus = [
        _format_gpu(rank, table, segments, counts[rank].tolist(), draft.stores)
        for rank, (table, segments) in enumerate(zip(draft.tables, blocks, strict=True))
    ]
    body = f'{header},"gpus":[\n{_SEPARATOR.join(gpus)}]'
    # 64 bits: short enough to read, and collisions are improbable.
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    name = f"{NAMES.get(work.algorithm.collective.kind, 'custom')}_{len(gpus)}_{digest}"
    return f'{{"name":"{name}",{body}}}\n'.encode()


def _find_max_bytes(draft: Draft, counts: Int64Array) -> int:
    """Return the largest message in bytes: the requested one, limited by the slices of pipelines.

    Without a request it is the executor's default. Raises `UsageError` if the requested size needs
    more slices than the executor can count.
    """
    work, options = draft.work, draft.options
    requested = _MOST_BYTES if options.max_size is None else options.max_size
    if options.slices is None or not len(work.messages.send):
        return requested
    chunks = int(work.steps.count[work.messages.send].max()) // work.unit
    possible = MOST_SLICES * options.slices // chunks * _count_message_chunks(draft, counts)
    if options.max_size is not None and possible < requested:
        message = (
            f"slices of {options.slices} bytes reach {possible} bytes, not max_size={requested}"
        )
        raise UsageError(message, cure="choose larger slices")
    return min(requested, possible)


def _find_min_bytes(draft: Draft, counts: Int64Array) -> int:
    """Return the smallest message in bytes: at least the requested one.

    If several thread blocks share the work, each needs at least 16 bytes of every chunk: the
    executor takes the part number modulo the number of 16-byte units (`calcOffset`) and loses data
    if there are more parts than units.
    """
    requested = draft.options.min_size or 0
    if draft.options.tbg == 1:
        return requested
    return max(requested, draft.options.tbg * ALIGNMENT * _count_message_chunks(draft, counts))


def _count_message_chunks(draft: Draft, counts: Int64Array) -> int:
    """Count the chunks of the buffer that message sizes refer to; the minimum over ranks."""
    # Message sizes are bytes of the input, in an all-gather of the output.
    is_gather = draft.work.algorithm.collective.kind is CollectiveKind.ALL_GATHER
    return int(counts[:, 1 if is_gather else 0].min())


def _format_header(draft: Draft, smallest: int, largest: int) -> str:
    """Format the members of the plan other than its name and ranks."""
    collective, options = draft.work.algorithm.collective, draft.options
    is_packets = options.protocol == PACKETS
    members = {
        "collective": NAMES.get(collective.kind, "custom"),
        "protocol": options.protocol,
        "inplace": not collective.out_of_place and collective.kind not in UNSTATED_IN_PLACE,
        "reuse_resources": False,
        "use_double_scratch_buffer": is_packets,
        "buffer_alignment": ALIGNMENT,
        "num_threads_per_block": 1024,
        "min_message_size": smallest,
        "max_message_size": largest,
    }
    return json.dumps(members, separators=(",", ":"))[1:-1]


def count_chunks(draft: Draft) -> Int64Array:
    """Count the chunks of input, output and scratch: int64[ranks, 3]."""
    collective, unit = draft.work.algorithm.collective, draft.work.unit
    # The executor divides by both counts, so an empty buffer is declared as one chunk.
    input_chunks = np.maximum(collective.input_units() // unit, 1)
    output_chunks = np.maximum(collective.output_units() // unit, 1)
    return np.stack([input_chunks, output_chunks, draft.landing.scratch], axis=1)


def _format_gpu(
    rank: int,
    table: RankTables,
    segments: Sequence[Segment],
    counts: Sequence[int],
    stores: SwitchStores,
) -> str:
    """Format one rank."""
    channels: list[dict[str, object]] = [
        {"channel_type": channel_type, "connected_to": peers}
        for channel_type, peers in table.peers.items()
        if peers
    ]
    for group in table.groups:
        buffer, ranks = stores.groups[group]
        members = {"size": len(ranks), "ranks": ranks}
        channels.append(
            {
                "channel_type": SWITCH,
                "buffer_type": BUFFER_TYPES[buffer],
                "rank_groups": [members],
            }
        )
    buffers = [
        {"rank": peer, "type": BUFFER_TYPES[buffer], "access_channel_types": [channel_type]}
        for peer, buffer, channel_type in table.buffers
    ]
    parts = {
        "id": rank,
        "input_chunks": counts[0],
        "output_chunks": counts[1],
        "scratch_chunks": counts[2],
        "channels": channels,
        "remote_buffers": buffers,
        "semaphores": [{"init_value": 0}] * table.semaphores,
    }
    blocks = [_format_block(position, segment) for position, segment in enumerate(segments)]
    text = json.dumps(parts, separators=(",", ":"))
    return f'{text[:-1]},"threadblocks":[\n{_SEPARATOR.join(blocks)}]}}'


def _format_block(position: int, segment: Segment) -> str:
    """Format one thread block."""
    # Greetings come first: they do not wait, and they let senders begin.
    ops = [*segment.format_greetings(), *segment.ops]
    channels = [
        {"channel_type": channel_type, "channel_ids": list(ids)}
        for channel_type, ids in segment.channels.items()
        if ids
    ]
    references = [
        {"access_channel_type": channel_type, "remote_buffer_ids": list(ids)}
        for channel_type, ids in segment.buffers.items()
        if ids
    ]
    members = {"id": position, "channels": channels, "remote_buffer_refs": references}
    text = json.dumps(members, separators=(",", ":"))
    return f'{text[:-1]},"ops":[{_SEPARATOR.join(ops)}]}}'
