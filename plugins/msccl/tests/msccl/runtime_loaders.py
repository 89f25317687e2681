"""Oracle: how three runtimes load and run a file.

Written from the tables of their rules; it shares no code with the plugin.

`refusals(text, runtime)` lists why `msccl`, `executor` or `rccl` would not load a text, or could
not run it as written. `run(text, in_place, capacity)` executes a text as the interpreters on the
device do: counters and flags per thread block, nops as waits of the next step, fused `re`,
connections that hold `capacity` transfers.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

LIMITS = {
    # thread blocks a rank, steps a thread block, channels
    "msccl": (216, 256, 32),
    "executor": (1024, 64, 32),
    "rccl": (64, 64, 128),
}
NAMES = {
    "msccl": {
        "allreduce",
        "allgather",
        "reduce",
        "broadcast",
        "alltoall",
        "reduce_scatter",
        "custom",
    },
    "executor": {
        *("allreduce", "allgather", "reduce", "broadcast", "alltoall", "reducescatter"),
        *("send", "recv", "gather", "scatter", "alltoallv"),
    },
}
NAMES["rccl"] = NAMES["executor"]
TYPES = {
    "msccl": {"s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop"},
    "executor": {"s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop"},
    "rccl": {"s", "r", "cpy", "re", "nop"},
}
HEADER = {
    "msccl": "name ngpus nchunksperloop nchannels proto coll inplace",
    "executor": "ngpus nchunksperloop nchannels proto coll inplace outofplace minBytes maxBytes",
}
HEADER["rccl"] = HEADER["executor"]
ATTRIBUTES = {
    "gpu": "id i_chunks o_chunks s_chunks",
    "tb": "id send recv chan",
    "step": "s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep",
}
SENDING, RECEIVING = {"s", "rcs", "rrs", "rrcs"}, {"r", "rcs", "rrc", "rrs", "rrcs"}
READS, WRITES = {"s", "rrc", "rrs", "rrcs", "cpy", "re"}, {"r", "rcs", "rrc", "rrcs", "cpy", "re"}
_LINE = re.compile(r' *</?[a-z]+( [A-Za-z_]+="[^"<>&]{0,255}")*/?>')


def refusals(text: str, runtime: str) -> list[str]:
    """Every rule of the runtime that a text breaks."""
    odd = [line for line in text.splitlines() if not _LINE.fullmatch(line)]
    if odd:
        return [f"a line that its parser does not read: {odd[0]!r}"]
    algo = ElementTree.fromstring(text)
    return [
        *_header(algo, runtime),
        *(reason for gpu in algo for reason in _rank(gpu, algo, runtime)),
    ]


def _header(algo: ElementTree.Element, runtime: str) -> Iterator[str]:
    missing = [name for name in HEADER[runtime].split() if name not in algo.attrib]
    if missing or len(algo.attrib) > 16:
        yield f"attributes of algo: {missing or 'too many'}"
        return
    most = int(algo.get("maxBytes", 1 << 27))
    rules = {
        "coll": algo.get("coll") in NAMES[runtime],
        "proto": algo.get("proto") in ("Simple", "LL", "LL128"),
        "nchannels": 1 <= int(algo.attrib["nchannels"]) <= LIMITS[runtime][2],
        "ngpus": [int(gpu.attrib["id"]) for gpu in algo] == list(range(int(algo.attrib["ngpus"])))
        and len(algo) <= 1024,
        "mode": "1" in (algo.get("inplace"), algo.get("outofplace")) or runtime == "msccl",
        "sizes": int(algo.get("minBytes", 0)) < most
        or (runtime != "msccl" and (most == 0 or most == int(algo.attrib["minBytes"]))),
    }
    yield from (f"algo: {name}" for name, holds in rules.items() if not holds)


def _rank(gpu: ElementTree.Element, algo: ElementTree.Element, runtime: str) -> Iterator[str]:
    blocks, steps, _ = LIMITS[runtime]
    rank, ranks, whole = (
        int(gpu.attrib["id"]),
        int(algo.attrib["ngpus"]),
        int(algo.attrib["nchunksperloop"]),
    )
    name = f"rank {rank}"
    if missing := set(ATTRIBUTES["gpu"].split()) - set(gpu.attrib):
        yield f"{name}: {missing}"
        return
    if runtime == "msccl":
        for chunks, divided in (("i_chunks", "allgather"), ("o_chunks", "reduce_scatter")):
            size = int(gpu.attrib[chunks]) * (ranks if algo.get("coll") == divided else 1)
            if size not in (0, whole):
                yield f"{name}: {chunks} is not of nchunksperloop"
    if 1 + len(algo) + len(gpu) + sum(map(len, gpu)) > 4095:
        yield f"{name}: too many nodes"
    if [int(block.attrib["id"]) for block in gpu] != list(range(len(gpu))) or len(gpu) > blocks:
        yield f"{name}: ids of thread blocks, or too many"
    for side in ("send", "recv"):
        users = [(block.get(side), block.get("chan")) for block in gpu if block.get(side) != "-1"]
        if len(set(users)) < len(users):
            yield f"{name}: a connection with two owners"
        if any(number > 32 for number in Counter(channel for _, channel in users).values()):
            yield f"{name}: too many thread blocks {side} on one channel"
    for block in gpu:
        yield from (
            f"{name}, thread block {block.get('id')}: {reason}"
            for reason in _block(block, gpu, algo, runtime)
        )
        if len(block) > steps:
            yield f"{name}: {len(block)} steps"


def _block(
    block: ElementTree.Element, gpu: ElementTree.Element, algo: ElementTree.Element, runtime: str
) -> Iterator[str]:
    if missing := set(ATTRIBUTES["tb"].split()) - set(block.attrib):
        yield f"{missing}"
        return
    for side in ("send", "recv"):
        if not -1 <= int(block.attrib[side]) < int(algo.attrib["ngpus"]) or block.get(
            side
        ) == gpu.get("id"):
            yield f"{side}"
    if not 0 <= int(block.attrib["chan"]) < min(LIMITS[runtime][2], int(algo.attrib["nchannels"])):
        yield "chan"
    for position, step in enumerate(block):
        yield from (
            f"step {position}: {reason}" for reason in _step(step, position, block, gpu, runtime)
        )
    for step, following in zip(block, [*list(block)[1:], None], strict=True):
        if step.get("type") == "nop" and (following is None or following.get("depid") == "-1"):
            yield "a nop without a step behind it that waits too"


def _step(
    step: ElementTree.Element,
    position: int,
    block: ElementTree.Element,
    gpu: ElementTree.Element,
    runtime: str,
) -> Iterator[str]:
    if missing := set(ATTRIBUTES["step"].split()) - set(step.attrib):
        yield f"{missing}"
        return
    kind, count = step.attrib["type"], int(step.attrib["cnt"])
    if (
        kind not in TYPES[runtime]
        or int(step.attrib["s"]) != position
        or step.get("hasdep") not in ("0", "1")
    ):
        yield "type, s or hasdep"
    if kind != "nop" and not 1 <= count <= 71:
        yield "cnt"
    for side, users in (("src", READS), ("dst", WRITES)):
        buffer, offset = step.attrib[f"{side}buf"], int(step.attrib[f"{side}off"])
        if buffer not in ("i", "o", "s") or not -1 <= offset < 1 << 15:
            yield f"{side}"
        elif kind in users and not 0 <= offset <= int(gpu.attrib[f"{buffer}_chunks"]) - count:
            yield f"{side} beyond its buffer"
    if (kind in SENDING and block.get("send") == "-1") or (
        kind in RECEIVING and block.get("recv") == "-1"
    ):
        yield "no peer"
    waited, number = int(step.attrib["depid"]), int(step.attrib["deps"])
    if waited >= 0 and (
        waited > 127
        or waited >= len(gpu)
        or number >= len(gpu[waited])
        or gpu[waited][number].get("hasdep") != "1"
    ):
        yield "waits for a step without hasdep, or too far"
    if kind == "nop" and (waited < 0 or step.get("hasdep") == "1"):
        yield "a nop that waits for nothing, or is waited for"


@dataclass
class _Transfer:
    """What the parser makes of a step: its waits, and for `re` all sources of the fused ones."""

    step: dict[str, str]
    waits: list[tuple[int, int]]
    sources: list[int]
    has_dependents: bool


@dataclass
class _Block:
    send: int
    recv: int
    channel: int
    transfers: list[_Transfer]
    position: int = 0
    counter: int = 0
    flag: int = -1


Value = Counter[tuple[int, int]]


@dataclass
class Machine:
    """The state of all ranks: memory cells by (rank, address), connections, thread blocks."""

    capacity: int
    blocks: dict[tuple[int, int], _Block] = field(default_factory=dict)
    cells: dict[tuple[int, str, int], Value] = field(default_factory=dict)
    queues: dict[tuple[int, int, int], deque[list[Value]]] = field(default_factory=dict)
    alias: dict[tuple[int, str], tuple[str, int]] = field(default_factory=dict)

    def cell(self, rank: int, buffer: str, offset: int) -> tuple[int, str, int]:
        other, shift = self.alias.get((rank, buffer), (buffer, 0))
        return rank, other, offset + shift


def run(text: str, in_place: bool, capacity: int) -> Machine:
    """Execute a text.

    `AssertionError` where it hangs, reads what nobody wrote, or leaves a message over.
    """
    algo = ElementTree.fromstring(text)
    machine = Machine(capacity)
    ranks, whole, coll = (
        int(algo.attrib["ngpus"]),
        int(algo.attrib["nchunksperloop"]),
        algo.attrib["coll"],
    )
    for rank, gpu in enumerate(algo):
        if in_place:
            shift = rank * (whole // ranks)
            small = {
                "allgather": ("i", ("o", shift)),
                "reducescatter": ("o", ("i", shift)),
                "reduce_scatter": ("o", ("i", shift)),
            }
            name, place = small.get(coll, ("o", ("i", 0)))
            machine.alias[rank, name] = place
        for unit in range(int(gpu.attrib["i_chunks"])):
            machine.cells[machine.cell(rank, "i", unit)] = Counter({(rank, unit): 1})
        for number, block in enumerate(gpu):
            peers = (int(block.attrib[name]) for name in ("send", "recv", "chan"))
            machine.blocks[rank, number] = _Block(*peers, _transfers(block))
    while sum(_advance(machine, *key) for key in machine.blocks):
        pass
    stuck = [key for key, block in machine.blocks.items() if block.position < len(block.transfers)]
    assert not stuck, f"hangs: {stuck[:4]}"
    assert not any(machine.queues.values()), "a message is left over"
    return machine


def _transfers(block: ElementTree.Element) -> list[_Transfer]:
    found: list[_Transfer] = []
    waits: list[tuple[int, int]] = []
    reductions = 0
    for step in block:
        wait = int(step.attrib["depid"]), int(step.attrib["deps"])
        waits += [wait] if wait[0] >= 0 else []
        if step.attrib["type"] == "nop":
            continue
        has_dependents, is_reduction = step.attrib["hasdep"] == "1", step.attrib["type"] == "re"
        last = found[-1] if found else None
        same = ("type", "srcbuf", "dstbuf", "dstoff")
        if (
            last
            and is_reduction
            and wait[0] < 0
            and not last.has_dependents
            and reductions != 16
            and all(last.step[name] == step.attrib[name] for name in same)
        ):
            last.sources.append(int(step.attrib["srcoff"]))
            last.step = {**last.step, "cnt": step.attrib["cnt"]}
            last.has_dependents = has_dependents
        else:
            found.append(
                _Transfer(dict(step.attrib), waits, [int(step.attrib["srcoff"])], has_dependents)
            )
            waits = []
        reductions += is_reduction
        assert len(found[-1].sources) <= 16, "a chain of re overflows the interpreter's array"
    return found


def _advance(machine: Machine, rank: int, number: int) -> bool:
    """Run a thread block until it waits; whether it did anything."""
    block = machine.blocks[rank, number]
    start = block.position
    while block.position < len(block.transfers) and _is_enabled(machine, rank, block):
        transfer = block.transfers[block.position]
        _execute(machine, rank, block, transfer)
        block.counter += max(len(transfer.waits) - 1, 0) + len(transfer.sources) - 1
        if transfer.has_dependents:
            block.flag = block.counter
        block.counter += 1
        block.position += 1
    return block.position > start


def _is_enabled(machine: Machine, rank: int, block: _Block) -> bool:
    transfer = block.transfers[block.position]
    kind = transfer.step["type"]
    incoming, outgoing = (block.recv, rank, block.channel), (rank, block.send, block.channel)
    return (
        all(machine.blocks[rank, other].flag >= least for other, least in transfer.waits)
        and (kind not in RECEIVING or bool(machine.queues.get(incoming)))
        and (kind not in SENDING or len(machine.queues.get(outgoing, ())) < machine.capacity)
    )


def _execute(machine: Machine, rank: int, block: _Block, transfer: _Transfer) -> None:
    step = transfer.step
    kind, count = step["type"], int(step["cnt"])

    def load(buffer: str, offset: int) -> list[Value]:
        return [machine.cells[machine.cell(rank, buffer, offset + k)] for k in range(count)]

    values: list[Value] = []
    if kind in RECEIVING:
        values = machine.queues[block.recv, rank, block.channel].popleft()
        assert len(values) == count, "a message of another length is received"
    if kind in ("rrc", "rrs", "rrcs"):
        values = [
            value + other
            for value, other in zip(values, load(step["srcbuf"], int(step["srcoff"])), strict=True)
        ]
    elif kind == "re":
        values = load(step["dstbuf"], int(step["dstoff"]))
        for offset in transfer.sources:
            values = [
                value + other
                for value, other in zip(values, load(step["srcbuf"], offset), strict=True)
            ]
    elif kind not in RECEIVING:
        values = load(step["srcbuf"], int(step["srcoff"]))
    if kind in WRITES:
        for k, value in enumerate(values):
            machine.cells[machine.cell(rank, step["dstbuf"], int(step["dstoff"]) + k)] = value
    if kind in SENDING:
        machine.queues.setdefault((rank, block.send, block.channel), deque()).append(values)
