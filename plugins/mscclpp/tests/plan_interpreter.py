"""A second, small interpreter of plans for tests: plain Python on the JSON, one dictionary a cell.

It shares no code with the plugin and works otherwise: values are multisets, and the order of events
is a set of ancestors for each, kept as the bits of one integer.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from typing import Any

Plan = dict[str, Any]
Cell = tuple[int, str, int]

_WAITS = ("wait", "rlxwait")
_SIGNALS = ("signal", "rlxsignal")
_EACH = {"put": "put", "pws": "put", "pwsf": "put", "ppkt": "put", "get": "get"}
# Number of the first operand that is packets, of sources and of destinations.
_PACKETS = {
    "ppkt": (99, 0),
    "rppkt": (0, 0),
    "cpkt": (99, 0),
    "upkt": (0, 99),
    "repkt": (1, 99),
    "respkt": (1, 1),
    "recpkt": (1, 1),
    "recspkt": (1, 1),
    "gstorepkt": (0, 0),
}
_KNOWN = {
    *_WAITS, *_SIGNALS, *_EACH, *_PACKETS, "nop", "barrier", "copy", "re", "res", "rre", "rres",
    "glres", "gstore", "sem_acquire", "sem_release", "flush", "pipeline",
}  # fmt: skip


class BadPlanError(Exception):
    """Something that no run can mean."""


def judge(plan: Plan, launches: int, seed: int = 0) -> str:
    """`ok`, or what is wrong with a plan: bad, deadlock, race, wrong or unbalanced.

    `seed` draws the order in which thread blocks take turns, and how long each turn is.
    """
    try:
        run = _Run(plan, seed)
        for _ in range(launches):
            verdict = run.launch()
            if verdict != "ok":
                return verdict
    except (BadPlanError, KeyError, IndexError, TypeError, AttributeError):
        return "bad"
    return "ok"


def _at(items: list[Any], index: int) -> Any:
    """An element; negative indices are none."""
    if index < 0:
        raise BadPlanError
    return items[index]


class _Block:
    """A thread block: its operations, how far it is, and the events that it knows."""

    def __init__(self, rank: int, gpu: dict[str, Any], stated: dict[str, Any]) -> None:
        self.rank = rank
        self.gpu = gpu
        self.stated = stated
        self.operations = list(_flat(stated["ops"]))
        self.next = 0
        self.items: list[Any] | None = None
        self.at_barrier = False
        self.known = 0

    def channel(self, kind: str, position: int) -> int:
        """Rank-level id of a channel."""
        ids = [
            one
            for listed in self.stated["channels"]
            if listed["channel_type"] == kind
            for one in listed["channel_ids"]
        ]
        return int(_at(ids, position))

    def buffer(self, kind: str, position: int) -> dict[str, Any]:
        """A remote buffer."""
        ids = [
            one
            for listed in self.stated.get("remote_buffer_refs", [])
            if listed["access_channel_type"] == kind
            for one in listed["remote_buffer_ids"]
        ]
        return dict(_at(self.gpu["remote_buffers"], _at(ids, position)))


def _flat(operations: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in operations:
        if one["name"] not in _KNOWN:
            raise BadPlanError
        if one["name"] == "pipeline":
            yield from _flat(one["ops"])
        else:
            yield one


class _Run:
    def __init__(self, plan: Plan, seed: int) -> None:
        self.draw = random.Random(seed)
        self.plan = plan
        self.gpus = plan["gpus"]
        self.in_place = plan.get("inplace", False)
        self.is_double = plan.get("use_double_scratch_buffer", False)
        self.blocks = [
            _Block(rank, gpu, stated)
            for rank, gpu in enumerate(self.gpus)
            for stated in gpu["threadblocks"]
        ]
        parts = [
            one["tbg_info"]["tbg_size"]
            for block in self.blocks
            for one in block.operations
            if "tbg_info" in one
        ]
        self.cells = math.lcm(1, *parts)
        self.number = 0
        self.events = 0
        self.accesses: dict[Cell, list[tuple[int, bool]]] = defaultdict(list)
        self.tokens: dict[Any, deque[int]] = defaultdict(deque)
        for rank, gpu in enumerate(self.gpus):
            for at, semaphore in enumerate(gpu.get("semaphores", [])):
                # More than these nobody takes in a test.
                count = min(semaphore["init_value"], 1000)
                self.tokens["semaphore", rank, at].extend([0] * count)
        self.at_first = {key: len(tokens) for key, tokens in self.tokens.items()}
        self.stream = [0] * len(self.gpus)

    def launch(self) -> str:
        """Do one launch, and look at what came of it."""
        self.value: dict[Cell, frozenset[Any] | None] = {}
        self.packets: dict[Cell, int] = {}
        self.race = False
        self.gathered: dict[Any, list[_Block]] = defaultdict(list)
        self.left: dict[int, int] = {}
        for rank, gpu in enumerate(self.gpus):
            for k in range(gpu["input_chunks"] * self.cells):
                cell = self.cell(rank, "i", k)
                self.value[cell] = frozenset({((rank, k), 1)})
                self.host(rank, cell, True)
        for block in self.blocks:
            block.next, block.known = 0, self.stream[block.rank]
        moved = True
        while moved:
            moved = False
            for block in self.draw.sample(self.blocks, len(self.blocks)):
                turns = self.draw.choice([1, 2, 100])
                while turns and block.next < len(block.operations) and self.step(block):
                    block.next += 1
                    turns -= 1
                    moved = True
        if any(block.next < len(block.operations) for block in self.blocks):
            return "deadlock"
        for block in self.blocks:
            self.stream[block.rank] |= block.known
        is_wrong = self.is_wrong()
        self.number += 1
        if self.race:
            return "race"
        if is_wrong:
            return "wrong"
        left = {key: len(tokens) for key, tokens in self.tokens.items() if tokens}
        return "ok" if left == {k: v for k, v in self.at_first.items() if v} else "unbalanced"

    def cell(self, rank: int, buffer: str, k: int) -> Cell:
        """A place in memory, of which several buffers may be names."""
        if buffer in "io" and self.in_place:
            name, gpu = self.plan["collective"], self.gpus[rank]
            if name == "allgather" and buffer == "i":
                k += rank * gpu["input_chunks"] * self.cells
            if name in ("reducescatter", "reduce_scatter") and buffer == "o":
                k += rank * gpu["output_chunks"] * self.cells
            return rank, "io", k
        return rank, buffer, k

    def host(self, rank: int, cell: Cell, is_write: bool) -> None:
        """The caller fills inputs and reads outputs in the order of the rank's stream."""
        if self.plan["collective"] in ("test", "custom"):
            return
        self.touch(cell, self.event(self.stream[rank]), is_write, self.stream[rank])
        self.stream[rank] |= 1 << (self.events - 1)

    def event(self, known: int) -> int:
        del known
        self.events += 1
        return self.events - 1

    def touch(self, cell: Cell, event: int, is_write: bool, known: int) -> None:
        """Note an access, and whether it races with one before it."""
        for other, was_write in self.accesses[cell]:
            if (is_write or was_write) and other != event and not known >> other & 1:
                self.race = True
        self.accesses[cell].append((event, is_write))

    def step(self, block: _Block) -> bool:
        """Do the next operation; False where it has to wait."""
        operation = block.operations[block.next]
        name = operation["name"]
        if name in ("nop", "flush"):
            return True
        if name == "barrier":
            return self.barrier(block, operation)
        if name in _WAITS or name == "sem_acquire":
            return self.take(block, operation)
        if name in _SIGNALS or name == "sem_release":
            self.give(block, operation)
            return True
        if not self.data(block, operation):
            return False
        if name in ("pws", "pwsf") and operation["channel_type"] == "port":
            self.give(block, operation)
        return True

    def keys(self, block: _Block, operation: dict[str, Any], is_wait: bool) -> list[Any]:
        """Counters of an operation."""
        if operation["name"].startswith("sem_"):
            count = len(block.gpu.get("semaphores", []))
            for one in operation["semaphore_ids"]:
                if not 0 <= one < count:
                    raise BadPlanError
            return [("semaphore", block.rank, one) for one in operation["semaphore_ids"]]
        kind = operation["channel_type"]
        found = []
        for position in operation["channel_ids"]:
            peers = _peers(block.gpu, kind)
            channel = block.channel(kind, position)
            peer = _at(peers, channel)
            which = peers[:channel].count(peer)
            is_heard = (
                peer != block.rank and _peers(self.gpus[peer], kind).count(block.rank) > which
            )
            ends = (peer, block.rank) if is_wait else (block.rank, peer)
            found.append((kind, *ends, which) if is_heard else None)
        return found

    def take(self, block: _Block, operation: dict[str, Any]) -> bool:
        if block.items is None:
            block.items = self.keys(block, operation, True)
        while block.items:
            key = block.items[0]
            if key is None or not self.tokens[key]:
                return False
            block.known |= self.tokens[key].popleft()
            block.items.pop(0)
        block.items = None
        return True

    def give(self, block: _Block, operation: dict[str, Any]) -> None:
        for key in self.keys(block, operation, False):
            if key is not None:
                self.tokens[key].append(block.known)

    def barrier(self, block: _Block, operation: dict[str, Any]) -> bool:
        key = (block.rank, operation["barrier_id"])
        if not block.at_barrier:
            block.at_barrier = True
            self.gathered[key].append(block)
            if len(self.gathered[key]) == operation["num_threadblocks"]:
                together = 0
                for one in self.gathered[key]:
                    together |= one.known
                for one in self.gathered[key]:
                    one.known = together
                    self.left[id(one)] = 1
                self.gathered[key] = []
        if not self.left.pop(id(block), 0):
            return False
        block.at_barrier = False
        return True

    def data(self, block: _Block, operation: dict[str, Any]) -> bool:
        moves = list(self.moves(block, operation))
        for sources, _ in moves:
            for cells in sources:
                if cells and cells[0][1] == "p" and any(one not in self.packets for one in cells):
                    return False
        for sources, _ in moves:
            for cells in sources:
                for one in cells:
                    block.known |= self.packets.get(one, 0)
        event = self.event(block.known)
        block.known |= 1 << event
        for sources, targets in moves:
            self.move(block, event, sources, targets)
        return True

    def move(
        self, block: _Block, event: int, sources: list[list[Cell]], targets: list[list[Cell]]
    ) -> None:
        for k in range(len(sources[0])):
            total: Counter[Any] | None = Counter()
            for cells in sources:
                self.touch(cells[k], event, False, block.known)
                held = self.value.get(cells[k])
                total = None if total is None or held is None else total + Counter(dict(held))
            for cells in targets:
                self.touch(cells[k], event, True, block.known)
                self.value[cells[k]] = None if total is None else frozenset(total.items())
                if cells[k][1] == "p":
                    self.packets[cells[k]] = block.known

    def moves(
        self, block: _Block, operation: dict[str, Any]
    ) -> Iterator[tuple[list[list[Cell]], list[list[Cell]]]]:
        """Cells of sources and destinations that belong together."""
        sources, targets = operation["src_buff"], operation["dst_buff"]
        if not sources or not targets:
            raise BadPlanError
        if operation["name"] in _EACH:
            if len(sources) != len(targets):
                raise BadPlanError
            for at, (source, target) in enumerate(zip(sources, targets, strict=True)):
                yield self.one_move(block, operation, source, target, at)
            return
        found = [
            [
                cells
                for at, one in enumerate(side)
                for cells in self.ranges(block, operation, one, is_dst, at)
            ]
            for is_dst, side in enumerate((sources, targets))
        ]
        if len({len(cells) for side in found for cells in side}) > 1:
            raise BadPlanError
        yield found[0], found[1]

    def one_move(
        self, block: _Block, operation: dict[str, Any], source: Any, target: Any, at: int
    ) -> tuple[list[list[Cell]], list[list[Cell]]]:
        name = operation["name"]
        if source["size"] != target["size"]:
            raise BadPlanError
        if name == "get":
            source = {**source, "index": target["index"]}
            target = {**target, "index": operation["src_buff"][at]["index"]}
        elif name in ("put", "ppkt") and operation["channel_type"] == "memory":
            source = {**source, "type": operation["src_buff"][0]["type"]}
        first = list(self.ranges(block, operation, source, 0, at))
        return first, list(self.ranges(block, operation, target, 1, at))

    def ranges(
        self, block: _Block, operation: dict[str, Any], one: dict[str, Any], is_dst: int, at: int
    ) -> Iterator[list[Cell]]:
        """Cells of an operand, for every rank that it lies on."""
        name = operation["name"]
        kind = "p" if at >= _PACKETS.get(name, (99, 99))[is_dst] else ""
        if "switch_channel_id" in one:
            group = _groups(block.gpu)[block.channel("switch", one["switch_channel_id"])]
            owners, buffer = group[1], group[0]
            if block.rank not in owners:
                raise BadPlanError
        elif "buffer_id" in one:
            stated = block.buffer(operation["channel_type"], one["buffer_id"])
            owners, buffer = [stated["rank"]], stated["type"]
        else:
            owners, buffer = [block.rank], one["type"]
        part = operation.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        first, size = one["index"] * self.cells, one["size"] * self.cells
        low = first + size * part["tb_id"] // part["tbg_size"]
        high = first + size * (part["tb_id"] + 1) // part["tbg_size"]
        names = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
        for rank in owners:
            if not 0 <= first < first + size <= self.gpus[rank][names[buffer]] * self.cells:
                raise BadPlanError
            # Halves of the scratch are other places.
            half = self.number % 2 * 10**6 if self.is_double and buffer == "s" else 0
            label = kind if kind and buffer == "s" else buffer
            yield [self.cell(rank, label, half + k) for k in range(low, high)]

    def is_wrong(self) -> bool:
        """Whether an output is not as promised."""
        name, ranks = self.plan["collective"], range(len(self.gpus))
        wrong = False
        for rank, gpu in enumerate(self.gpus):
            given, made = gpu["input_chunks"] * self.cells, gpu["output_chunks"] * self.cells
            if not given or not made:
                raise BadPlanError
            for k in range(made):
                cell = self.cell(rank, "o", k)
                self.host(rank, cell, False)
                if name == "allreduce":
                    wanted = {(one, k) for one in ranks}
                elif name == "allgather":
                    wanted = {(k // given, k % given)}
                elif name in ("reducescatter", "reduce_scatter"):
                    wanted = {(one, rank * made + k) for one in ranks}
                elif name == "alltoall":
                    share = made // len(ranks)
                    wanted = {(k // share, rank * share + k % share)} if share else set()
                elif name == "sendrecv":
                    wanted = {((rank - 1) % len(ranks), k)}
                else:
                    continue
                wrong |= self.value.get(cell) != frozenset((one, 1) for one in wanted)
        return wrong


def _peers(gpu: dict[str, Any], kind: str) -> list[int]:
    return [
        peer
        for channel in gpu["channels"]
        if channel["channel_type"] == kind
        for peer in channel["connected_to"]
    ]


def _groups(gpu: dict[str, Any]) -> list[tuple[str, list[int]]]:
    return [
        (channel["buffer_type"], group["ranks"])
        for channel in gpu["channels"]
        if channel["channel_type"] == "switch"
        for group in channel["rank_groups"]
    ]
