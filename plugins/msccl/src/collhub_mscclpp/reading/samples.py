"""A small correct plan for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hub_core.plugin_api import Source

_CHUNK = {"index": 0, "size": 1}
_INPUT = [{"type": "i", **_CHUNK}]


def samples() -> Sequence[Source]:
    """An out-of-place all-gather among two ranks, direct into the output of the other one."""
    plan = {
        "name": "two_ranks",
        "collective": "allgather",
        "protocol": "Simple",
        "inplace": False,
        "gpus": [_gpu(rank) for rank in range(2)],
    }
    return [Source.of_bytes("two-ranks.json", json.dumps(plan).encode())]


def _gpu(rank: int) -> dict[str, object]:
    """One rank: a thread block that receives, and one that sends."""
    # Both ranks list the connection 0 -> 1 first, so that channels of one number are a pair.
    sending, receiving = rank, 1 - rank
    return {
        "id": rank,
        "input_chunks": 1,
        "output_chunks": 2,
        "scratch_chunks": 0,
        "channels": [{"channel_type": "memory", "connected_to": [1 - rank, 1 - rank]}],
        "remote_buffers": [{"rank": 1 - rank, "type": "o", "access_channel_types": ["memory"]}],
        "threadblocks": [
            _block(0, receiving, [], [_signal("rlxsignal"), _signal("wait"), {"name": "nop"}]),
            _block(1, sending, [0], _sending(rank)),
        ],
    }


def _block(
    position: int, channel: int, buffers: list[int], ops: list[dict[str, object]]
) -> dict[str, object]:
    references = [{"access_channel_type": "memory", "remote_buffer_ids": buffers}]
    return {
        "id": position,
        "channels": [{"channel_type": "memory", "channel_ids": [channel]}],
        "remote_buffer_refs": references if buffers else [],
        "ops": ops,
    }


def _signal(name: str) -> dict[str, object]:
    return {"name": name, "channel_type": "memory", "channel_ids": [0]}


def _sending(rank: int) -> list[dict[str, object]]:
    """Operations that put the input where it belongs on both ranks."""
    nop: dict[str, object] = {"name": "nop"}
    put: dict[str, object] = {
        "name": "put",
        "channel_type": "memory",
        "src_buff": _INPUT,
        "dst_buff": [{"buffer_id": 0, "index": rank, "size": 1}],
    }
    own = [{"type": "o", "index": rank, "size": 1}]
    copy: dict[str, object] = {"name": "copy", "src_buff": _INPUT, "dst_buff": own}
    return [_signal("rlxwait"), nop, put, nop, _signal("signal"), nop, copy]
