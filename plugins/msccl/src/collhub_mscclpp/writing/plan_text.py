"""The JSON text of a plan."""

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
"""Collectives of which no plan can say which part of one buffer is the other one in place.

Plans call them custom; the pointers of the call decide, whatever the plan says.
"""
_MOST_BYTES = 2**64 - 1
_SEPARATOR = ",\n"


def plan_text(draft: Draft, blocks: Sequence[Sequence[Segment]]) -> bytes:
    """The plan with the thread blocks of every rank; its name tells its content.

    The executor caches plans by name, so that another content must have another name.
    """
    work = draft.work
    # All chunks of a plan have one size, also those of scratch.
    counts = chunk_counts(draft)
    header = _header(draft, _smallest(draft, counts), _largest(draft, counts))
    gpus = [
        _gpu(rank, table, segments, counts[rank].tolist(), draft.stores)
        for rank, (table, segments) in enumerate(zip(draft.tables, blocks, strict=True))
    ]
    body = f'{header},"gpus":[\n{_SEPARATOR.join(gpus)}]'
    # Short enough to read, long enough that no two plans share it.
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    name = f"{NAMES.get(work.algorithm.collective.kind, 'custom')}_{len(gpus)}_{digest}"
    return f'{{"name":"{name}",{body}}}\n'.encode()


def _largest(draft: Draft, counts: Int64Array) -> int:
    """The largest message in bytes: what is asked for, within what pipelines count.

    No window is the whole range, as where the member is missing. Raises `UsageError` for a stated
    window that needs more slices.
    """
    work, options = draft.work, draft.options
    asked = _MOST_BYTES if options.max_size is None else options.max_size
    if options.slices is None or not len(work.messages.send):
        return asked
    chunks = int(work.steps.count[work.messages.send].max()) // work.unit
    possible = MOST_SLICES * options.slices // chunks * _chunks_of_message(draft, counts)
    if options.max_size is not None and possible < asked:
        message = f"slices of {options.slices} bytes reach {possible} bytes, not max_size={asked}"
        raise UsageError(message, cure="choose larger slices")
    return min(asked, possible)


def _smallest(draft: Draft, counts: Int64Array) -> int:
    """The smallest message in bytes: the requested one, but a unit of data for every thread block.

    The executor takes the number of a part modulo the number of units (`calcOffset`), and loses
    data where there are more parts than units.
    """
    requested = draft.options.min_size or 0
    if draft.options.tbg == 1:
        return requested
    return max(requested, draft.options.tbg * ALIGNMENT * _chunks_of_message(draft, counts))


def _chunks_of_message(draft: Draft, counts: Int64Array) -> int:
    """Chunks of the buffer that windows of sizes measure, on the rank with the fewest."""
    # Of the input, but in an all-gather of the output.
    is_gather = draft.work.algorithm.collective.kind is CollectiveKind.ALL_GATHER
    return int(counts[:, 1 if is_gather else 0].min())


def _header(draft: Draft, smallest: int, largest: int) -> str:
    """Members of the plan itself, but its name and ranks."""
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


def chunk_counts(draft: Draft) -> Int64Array:
    """Chunks of input, output and scratch: int64[ranks, 3]."""
    collective, unit = draft.work.algorithm.collective, draft.work.unit
    # The executor divides by both: what a rank does not have is one chunk.
    given = np.maximum(collective.input_units() // unit, 1)
    made = np.maximum(collective.output_units() // unit, 1)
    return np.stack([given, made, draft.landing.scratch], axis=1)


def _gpu(
    rank: int,
    table: RankTables,
    segments: Sequence[Segment],
    counts: Sequence[int],
    stores: SwitchStores,
) -> str:
    """One rank."""
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
    blocks = [_block(position, segment) for position, segment in enumerate(segments)]
    text = json.dumps(parts, separators=(",", ":"))
    return f'{text[:-1]},"threadblocks":[\n{_SEPARATOR.join(blocks)}]}}'


def _block(position: int, segment: Segment) -> str:
    """One thread block."""
    # Greetings come first: they hold up nobody, and let senders begin.
    ops = [*segment.greetings(), *segment.ops]
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
