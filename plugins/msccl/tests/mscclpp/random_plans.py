"""Random plans of two or three ranks, with operations in any order."""

from __future__ import annotations

import copy
import random
from typing import Any

from made_plans import chunk

Json = dict[str, Any]
_CHUNKS = 2
_BLOCKS = 2
# Most of these raise counters: with as many that wait, nearly all plans would block at once.
_SYNCHRONISATION = ["nop", *["signal"] * 4, "wait", *["sem_release"] * 4, "sem_acquire"]
_LOCAL = ["copy", "copy", "re"]
_REMOTE = ["put", "put", "get", "res", "rre", "rres"]
_PACKETS = ["upkt", "rppkt", "repkt", "respkt", "recpkt", "recspkt", "gstorepkt"]
_SWITCH = ["glres", "gstore"]


def random_plan(seed: int) -> Json:
    """A plan that the loader takes; the same for the same seed."""
    draw = random.Random(seed)
    num_ranks = draw.choice([2, 2, 3])
    protocol = draw.choice(["Simple", "LL"])
    plan = {
        "name": "random",
        "collective": draw.choice(["allreduce", "alltoall", "test"]),
        "protocol": protocol,
        "inplace": draw.random() < 0.5,
        "use_double_scratch_buffer": protocol == "LL" and draw.random() < 0.5,
        "gpus": [_gpu(rank, num_ranks, protocol, draw) for rank in range(num_ranks)],
    }
    return copy.deepcopy(plan)


def _gpu(rank: int, num_ranks: int, protocol: str, draw: random.Random) -> Json:
    peers = [peer for peer in range(num_ranks) if peer != rank]
    chunks = _CHUNKS * num_ranks
    kinds = ("memory", "port")
    # Each block has its own port channels: requests of two blocks to one would have no order.
    channels: list[Json] = [
        {"channel_type": "memory", "connected_to": peers},
        {"channel_type": "port", "connected_to": peers * _BLOCKS},
    ]
    group = {"size": num_ranks, "ranks": list(range(num_ranks))}
    channels += [
        {"channel_type": "switch", "buffer_type": buffer, "rank_groups": [group]}
        for buffer in "ios"
    ]
    # Remote buffer 3 k + b is buffer b of the k-th peer.
    remote = [
        {"rank": peer, "type": buffer, "access_channel_types": list(kinds)}
        for peer in peers
        for buffer in "ios"
    ]
    ids = list(range(len(remote)))
    refs = [{"access_channel_type": kind, "remote_buffer_ids": ids} for kind in kinds]
    return {
        "id": rank,
        "input_chunks": chunks,
        "output_chunks": chunks,
        "scratch_chunks": chunks,
        "channels": channels,
        "remote_buffers": remote,
        "semaphores": [{"init_value": draw.choice([0, 1])} for _ in range(2)],
        "threadblocks": [
            {
                "id": number,
                "channels": [
                    {"channel_type": "memory", "channel_ids": list(range(len(peers)))},
                    {
                        "channel_type": "port",
                        "channel_ids": [number * len(peers) + one for one in range(len(peers))],
                    },
                    {"channel_type": "switch", "channel_ids": [0, 1, 2]},
                ],
                "remote_buffer_refs": refs,
                "ops": _operations(len(peers), chunks, protocol, draw),
            }
            for number in range(_BLOCKS)
        ],
    }


def _operations(num_peers: int, chunks: int, protocol: str, draw: random.Random) -> list[Json]:
    data = [*_LOCAL, *_REMOTE, *_SWITCH]
    ops = []
    if protocol == "LL":
        # Later operations, also those of other blocks, can read these packets.
        data = ["ppkt", "cpkt", "cpkt", *_LOCAL, *_PACKETS]
        ops = [_operation("cpkt", num_peers, chunks, draw) for _ in range(2)]
    for _ in range(draw.randrange(2, 9)):
        name = draw.choice(_SYNCHRONISATION if draw.random() < 0.4 else data)
        ops.append(_operation(name, num_peers, chunks, draw))
    # Every block has one barrier, because the numbers of uses must be equal.
    ops.insert(
        draw.randrange(len(ops) + 1),
        {"name": "barrier", "barrier_id": 0, "num_threadblocks": _BLOCKS},
    )
    return ops


def _operation(name: str, num_peers: int, chunks: int, draw: random.Random) -> Json:
    if name == "nop":
        return {"name": name}
    if name.startswith("sem"):
        return {"name": name, "semaphore_ids": draw.sample(range(2), draw.choice([1, 1, 2]))}
    peer = draw.randrange(num_peers)
    if name in ("signal", "wait"):
        return {
            "name": name,
            "channel_type": draw.choice(["memory", "port"]),
            "channel_ids": draw.sample(range(num_peers), draw.randrange(1, num_peers + 1)),
        }
    size = draw.choice([1, 1, 2])

    def near(buffer: str = "") -> Json:
        # Packets have two positions only, so that many are read where they were written.
        positions = 2 if buffer else chunks - size + 1
        return chunk(buffer or draw.choice("ios"), draw.randrange(positions), size)

    def far(buffer: str = "") -> Json:
        number = 3 * peer + "ios".index(buffer or draw.choice("ios"))
        return {"buffer_id": number, "index": draw.randrange(chunks - size + 1), "size": size}

    def at_all(buffer: str = "") -> Json:
        number = "ios".index(buffer or draw.choice("ios"))
        start = draw.randrange(chunks - size + 1)
        return {"switch_channel_id": number, "index": start, "size": size}

    if name == "put" and draw.random() < 0.5:
        # Range k goes through channel k to the rank at the other end of the channel.
        ends = draw.sample(range(num_peers), draw.randrange(1, num_peers + 1))
        targets = [far() | {"buffer_id": 3 * end + draw.randrange(3)} for end in ends]
        return {
            "name": draw.choice(["put", "pws", "pwsf"]),
            "channel_type": "port",
            "channel_ids": ends,
            "src_buff": [near() for _ in ends],
            "dst_buff": targets,
        }
    if name in ("put", "get"):
        same = draw.choice("ios")
        count = draw.choice([1, 2])
        sides = [[near(same) for _ in range(count)], [far() for _ in range(count)]]
        sources, targets = sides if name == "put" else sides[::-1]
    else:
        sources, targets = {
            "copy": ([near()], [near()]),
            "re": ([near(), near()], [near()]),
            "res": ([near(), near()], [near(), far()]),
            "rre": ([near(), far()], [near()]),
            "rres": ([near(), far()], [near(), far()]),
            "ppkt": ([near()], [far("s")]),
            "cpkt": ([near()], [near("s")]),
            "upkt": ([near("s")], [near()]),
            "rppkt": ([near("s")], [far("s")]),
            "repkt": ([near(), near("s")], [near()]),
            "respkt": ([near(), near("s")], [near(), far("s")]),
            "recpkt": ([near(), near("s")], [near(), near("s")]),
            "recspkt": ([near(), near("s")], [near(), near("s"), far("s")]),
            "glres": ([at_all()], [at_all()]),
            "gstore": ([near()], [at_all()]),
            "gstorepkt": ([near("s")], [at_all("s")]),
        }[name]
    if name == "rppkt" and draw.random() < 0.5:
        ends = draw.sample(range(num_peers), draw.randrange(1, num_peers + 1))
        return {
            "name": name,
            "channel_type": "port",
            "channel_ids": ends,
            "src_buff": sources,
            "dst_buff": [targets[0] | {"buffer_id": 3 * end + 2} for end in ends],
        }
    is_switch = name in (*_SWITCH, "gstorepkt")
    is_remote = any("buffer_id" in one for one in (*sources, *targets))
    kind: Json = (
        {"channel_type": "switch" if is_switch else "memory"} if is_switch or is_remote else {}
    )
    if is_switch:
        kind["channel_ids"] = [0]
    return {"name": name, **kind, "src_buff": sources, "dst_buff": targets}
