"""Plans that tests make: small ones to change, and rings among any number of ranks."""

from __future__ import annotations

import copy
import json
from typing import Any

from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.checking.report import PlanReport
from collhub_mscclpp.reading.read import samples
from collhub_mscclpp.reading.read_plan import parse_plan

Json = dict[str, Any]
NOP: Json = {"name": "nop"}
# Room for a semaphore and the operations of one more step.
_MOST_OPERATIONS = 52


def two_ranks() -> Json:
    """The all-gather among two ranks of the conformance kit, to be changed."""
    plan: Json = json.loads(samples()[0].content())
    return plan


def operations(plan: Json, rank: int, block: int) -> list[Json]:
    """Operations of a thread block."""
    found: list[Json] = plan["gpus"][rank]["threadblocks"][block]["ops"]
    return found


def checked(plan: Json, launches: int = 3) -> PlanReport:
    """The report on a plan."""
    return check_plan(parse_plan(json.dumps(plan).encode(), "plan.json"), launches)


def codes(report: PlanReport) -> set[str]:
    """Codes of all findings."""
    return {found.code for found in report.diagnostics}


def fragment(*ops: Json, gpus: int = 1, scratch: int = 4, **header: object) -> Json:
    """A plan of one thread block on rank 0, which promises nothing."""
    block = {"id": 0, "channels": [], "remote_buffer_refs": [], "ops": list(ops)}
    gpu = {
        "input_chunks": 4,
        "output_chunks": 4,
        "scratch_chunks": scratch,
        "channels": [],
        "remote_buffers": [],
        "semaphores": [],
    }
    listed = [{"id": 0, **gpu, "threadblocks": [block]}]
    listed += [{"id": rank, **gpu, "threadblocks": []} for rank in range(1, gpus)]
    return copy.deepcopy(
        {"name": "f", "collective": "test", "protocol": "Simple", "gpus": listed, **header}
    )


def chunk(buffer: str, index: int, size: int = 1) -> Json:
    """A range of the own rank."""
    return {"type": buffer, "index": index, "size": size}


def copied(source: Json, target: Json, **other: object) -> Json:
    """A copy."""
    return {"name": "copy", "src_buff": [source], "dst_buff": [target], **other}


def by_port(name: str, channels: list[int], **other: object) -> Json:
    """A synchronisation on port channels, by their positions in the thread block."""
    return {"name": name, "channel_type": "port", "channel_ids": channels, **other}


def port_put(name: str, source: Json, index: int = 0, channel: int = 0) -> Json:
    """A put through a port channel into the output of the other rank."""
    target = {"buffer_id": 0, "index": index, "size": source["size"]}
    return by_port(name, [channel], src_buff=[source], dst_buff=[target])


def sent_by_proxy(*ops: Json, collective: str = "sendrecv") -> Json:
    """Two ranks that exchange a chunk by their proxies; `ops` follow the handshake.

    Every rank has two port channels to the other one, and one thread block.
    """
    handshake = [by_port("signal", [0]), by_port("wait", [0]), NOP]
    gpus = []
    for rank in range(2):
        block = {
            "id": 0,
            "channels": [{"channel_type": "port", "channel_ids": [0, 1]}],
            "remote_buffer_refs": [{"access_channel_type": "port", "remote_buffer_ids": [0]}],
            "ops": [*handshake, *ops],
        }
        remote = {"rank": 1 - rank, "type": "o", "access_channel_types": ["port"]}
        gpu = {
            "id": rank,
            "input_chunks": 1,
            "output_chunks": 1,
            "scratch_chunks": 2,
            "channels": [{"channel_type": "port", "connected_to": [1 - rank, 1 - rank]}],
            "remote_buffers": [remote],
            "semaphores": [],
            "threadblocks": [block],
        }
        gpus.append(gpu)
    plan = {"name": "p", "collective": collective, "protocol": "Simple", "inplace": False}
    # No two ranks share an operation: tests change them one by one.
    copied_plan: Json = json.loads(json.dumps({**plan, "gpus": gpus}))
    return copied_plan


def ring(num_ranks: int) -> Json:
    """An all-reduce in place around a ring, staged, with a handshake; blocks of few operations."""
    return {
        "name": f"ring{num_ranks}",
        "collective": "allreduce",
        "protocol": "Simple",
        "inplace": True,
        "gpus": [_RingRank(rank, num_ranks).gpu() for rank in range(num_ranks)],
    }


class _RingRank:
    """Collects the thread blocks of one rank."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self.blocks: list[list[Json]] = []
        self.ops: list[Json] = [_sync("rlxsignal", 1), _sync("rlxwait", 0), NOP]

    def gpu(self) -> Json:
        """The rank."""
        following, before = (self.rank + 1) % self.num_ranks, (self.rank - 1) % self.num_ranks
        # Connections in one order on all ranks, so that those of one number are a pair.
        connections = sorted([(self.rank, following), (before, self.rank)])
        peers = [other if one == self.rank else one for one, other in connections]
        ids = [connections.index((self.rank, following)), connections.index((before, self.rank))]
        self._fill()
        blocks = [
            {
                "id": number,
                "channels": [{"channel_type": "memory", "channel_ids": ids}],
                "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}],
                "ops": ops,
            }
            for number, ops in enumerate(self.blocks)
        ]
        remote = {"rank": following, "type": "s", "access_channel_types": ["memory"]}
        return {
            "id": self.rank,
            "input_chunks": self.num_ranks,
            "output_chunks": self.num_ranks,
            "scratch_chunks": 2 * (self.num_ranks - 1),
            "semaphores": [{"init_value": 0} for _ in self.blocks[1:]],
            "channels": [{"channel_type": "memory", "connected_to": peers}],
            "remote_buffers": [remote],
            "threadblocks": blocks,
        }

    def _fill(self) -> None:
        """All steps: the first send, then what each arrival leads to."""
        steps = 2 * (self.num_ranks - 1)
        self._put(chunk("i", self.rank), 0)
        for step in range(steps):
            if len(self.ops) > _MOST_OPERATIONS:
                self._cut()
            self.ops += [_sync("wait", 1), NOP]
            own = chunk("i", (self.rank - 1 - step) % self.num_ranks)
            staged = chunk("s", step)
            if step < self.num_ranks - 1:
                sources = [own, staged]
                self.ops += [{"name": "re", "src_buff": sources, "dst_buff": [own]}, NOP]
            else:
                self.ops += [copied(staged, own), NOP]
            if step < steps - 1:
                self._put(own, step + 1)
        self.blocks.append(self.ops)

    def _put(self, source: Json, index: int) -> None:
        target = {"buffer_id": 0, "index": index, "size": 1}
        put = {"name": "put", "channel_type": "memory", "src_buff": [source], "dst_buff": [target]}
        self.ops += [put, NOP, _sync("signal", 0)]

    def _cut(self) -> None:
        """Go on in another thread block, behind a semaphore."""
        semaphore = {"semaphore_ids": [len(self.blocks)]}
        self.ops.append({"name": "sem_release", **semaphore})
        self.blocks.append(self.ops)
        self.ops = [{"name": "sem_acquire", **semaphore}, NOP]


def _sync(name: str, channel: int) -> Json:
    return {"name": name, "channel_type": "memory", "channel_ids": [channel]}
