"""A stand-in for ASTRA-sim's analytical binary.

It refuses what the real one aborts on, and times messages without congestion. Standard library only
and independent of the hub: it reads files with a parser of its own and holds them against the input
contract of the simulator. Times are those of the real one wherever no message waits for a link.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
from pathlib import Path

COMP, SEND, RECV, COLL = 4, 5, 6, 7
HANDLES = {
    "workload-configuration",
    "system-configuration",
    "network-configuration",
    "remote-memory-configuration",
}
OPTIONAL = {"comm-group-configuration", "logging-folder"}
KINDS = {
    "is_cpu_op": 27,
    "comm_size": 9,
    "comm_type": 9,
    "comm_src": 7,
    "comm_dst": 7,
    "comm_tag": 7,
    "pg_name": 29,
}
IMPLEMENTATIONS = {0: "all-reduce", 2: "all-gather", 6: "all-to-all", 7: "reduce-scatter"}


def require(condition: object, message: str) -> None:
    if not condition:
        print(f"Assertion failed: {message}")
        sys.stdout.flush()
        os._exit(134)


def varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, position


def fields(data: bytes) -> list[tuple[int, int, object]]:
    found, position = [], 0
    while position < len(data):
        tag, position = varint(data, position)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, position = varint(data, position)
        elif wire == 2:
            length, position = varint(data, position)
            value, position = data[position : position + length], position + length
            require(len(value) == length, "a field reaches beyond its record")
        else:
            size = {1: 8, 5: 4}[wire]
            value, position = data[position : position + size], position + size
        found.append((number, wire, value))
    return found


def records(path: Path) -> list[bytes]:
    require(path.is_file(), "Cannot access et file")
    require(os.access(path, os.W_OK), "Failed to open file")
    data, found, position = path.read_bytes(), [], 0
    require(data[:2] != b"\x1f\x8b", "gzip")
    while position < len(data):
        length, position = varint(data, position)
        require(length > 0, f"{path}: an empty record")
        found.append(data[position : position + length])
        require(len(found[-1]) == length, f"{path}: truncated")
        position += length
    return found


def packed(values: list[object]) -> list[int]:
    found = []
    for value in values:
        position = 0
        while position < len(value):
            number, position = varint(value, position)
            found.append(number)
    return found


def attribute(data: bytes) -> tuple[str, int, object]:
    name, kind, value = "", 0, None
    for number, _, content in fields(data):
        if number == 1:
            name = content.decode()
        elif number > 2:
            kind, value = number, content
    require(kind, f"attribute {name} has no value")
    return name, kind, value


def node(data: bytes) -> dict:
    found = {"id": 0, "type": 0, "duration": 0, "deps": [], "attributes": {}}
    for number, wire, value in fields(data):
        if number in (4, 5):
            require(wire == 2, "dependencies are not packed")
            found["deps"] += packed([value])
        elif number == 10:
            name, kind, content = attribute(value)
            require(name not in found["attributes"], f"attribute {name} stands twice")
            require(KINDS.get(name, kind) == kind, f"attribute {name} is of kind {kind}")
            found["attributes"][name] = content
        elif number in (1, 3, 7):
            found[{1: "id", 3: "type", 7: "duration"}[number]] = value
    return found


def trace(path: Path) -> list[dict]:
    first, *rest = records(path)
    kinds = {(number, wire) for number, wire, _ in fields(first)}
    require(
        (1, 2) in kinds and kinds <= {(1, 2), (2, 2)}, f"{path}: the first record is no metadata"
    )
    require({number: value for number, _, value in fields(first)}[1] == b"0.0.4", "version")
    require(rest, "Cannot access et file")
    return [node(record) for record in rest]


def integer(attributes: dict, name: str) -> int:
    require(name in attributes, f"Attribute {name} not found")
    value = attributes[name]
    return struct.unpack("q", struct.pack("Q", value))[0]


def algorithm(prefix: str, ranks: int, kind: str) -> list[list[dict]]:
    """The traces of all positions, held against the contract of custom algorithms."""
    traces = [trace(Path(f"{prefix}.{rank}.et")) for rank in range(ranks)]
    beside = list(Path(prefix).parent.glob(f"{Path(prefix).name}.*"))
    require(len(beside) == ranks, "there are other files beside the traces")
    tags = {SEND: set(), RECV: set()}
    for rank, nodes in enumerate(traces):
        seen: set[int] = set()
        for entry in nodes:
            place = f"rank {rank}, node {entry['id']}"
            require(entry["id"] not in seen, f"{place}: the id stands twice")
            require(
                len(set(entry["deps"])) == len(entry["deps"]), f"{place}: a dependency stands twice"
            )
            require(set(entry["deps"]) <= seen, f"{place}: a dependency does not stand before it")
            seen.add(entry["id"])
            require(entry["type"] in (COMP, SEND, RECV), f"{place}: type {entry['type']}")
            if entry["type"] == COMP:
                continue
            names = entry["attributes"]
            peer = integer(names, "comm_dst" if entry["type"] == SEND else "comm_src")
            tag, size = integer(names, "comm_tag"), integer(names, "comm_size")
            require(size > 0, f"{place}: {size} bytes")
            require(0 <= peer < ranks, f"{place}: peer {peer}")
            require(peer != rank or kind == "Switch", f"{place}: a message to itself")
            require(0 <= tag < 500_000_000, f"{place}: tag {tag}")
            ends = (rank, peer) if entry["type"] == SEND else (peer, rank)
            require((*ends, tag) not in tags[entry["type"]], f"{place}: tag {tag} is in use")
            tags[entry["type"]].add((*ends, tag))
            entry["key"] = (*ends, tag, size)
        require(any(not entry["deps"] for entry in nodes), "Cannot access et file")
    return traces


def network(path: Path) -> list[tuple[str, int, float, float]]:
    lines = path.read_text().splitlines()
    require(len(lines) == 4, "network: four lines")
    lists = []
    for key, line in zip(("topology", "npus_count", "bandwidth", "latency"), lines, strict=True):
        match = re.fullmatch(rf"{key}: \[ (.+) \]", line)
        require(match, f"network: {line}")
        lists.append(match[1].split(", "))
    for kind, size, bandwidth, latency in zip(*lists, strict=True):
        require(kind in ("Ring", "FullyConnected", "Switch"), kind)
        require(int(size) > 1 and (kind != "Ring" or int(size) > 2), f"{kind} of {size}")
        require(re.fullmatch(r"\d+\.\d+", bandwidth) and float(bandwidth) > 0, bandwidth)
        require(re.fullmatch(r"\d+\.\d+", latency), latency)
    return [(k, int(n), float(b), float(lat)) for k, n, b, lat in zip(*lists, strict=True)]


def hops(kind: str, size: int, here: int, there: int) -> int:
    around = abs(here - there)
    return min(around, size - around) if kind == "Ring" else 2 if kind == "Switch" else 1


def delay(dimensions: list, source: int, destination: int, size: int, aware: bool) -> int:
    """One message that never waits; congestion-aware, every hop takes the whole message in turn."""
    stride = 1
    for kind, count, bandwidth, latency in dimensions:
        here, there = source // stride % count, destination // stride % count
        rate = bandwidth * (1 << 30) / 1e9
        if here != there:
            number = hops(kind, count, here, there)
            return (
                number * int(latency + size / rate)
                if aware
                else int(number * latency + size / rate)
            )
        stride *= count
    raise AssertionError


def per_node(path: Path) -> dict[int, str]:
    """The YAML map of workload nodes to algorithms."""
    found = {}
    for line in path.read_text().splitlines():
        match = re.fullmatch(r"(\d+): (\S+)", line)
        require(match, f"per-node: {line}")
        found[int(match[1])] = match[2]
    return found


def finishing_times(
    traces: list, members: list[int], dimensions: list, aware: bool, starts: list[int]
) -> list[int | None]:
    """Longest paths: a SEND ends on arrival, a RECV when it is posted and its message is there."""
    ends: dict[tuple, int] = {}
    sent: dict[tuple, int] = {}
    moved = True
    while moved:
        moved = False
        for rank, nodes in enumerate(traces):
            for entry in nodes:
                name = (rank, entry["id"])
                if name in ends or any((rank, parent) not in ends for parent in entry["deps"]):
                    continue
                begin = starts[rank]
                start = max((ends[rank, parent] for parent in entry["deps"]), default=begin)
                if entry["type"] == COMP:
                    ends[name] = start + (1000 * entry["duration"] or 1)
                elif entry["type"] == SEND:
                    source, destination, _, size = entry["key"]
                    rate = dimensions[0][2] * (1 << 30) / 1e9
                    require(start > 0 or not aware or int(size / rate) > 0, "an event at time 0")
                    ends[name] = start + delay(
                        dimensions, members[source], members[destination], size, aware
                    )
                    sent[entry["key"]] = ends[name]
                elif entry["key"] in sent:
                    ends[name] = max(start, sent[entry["key"]])
                moved = moved or name in ends
    return [
        max(ends[rank, entry["id"]] for entry in nodes)
        if all((rank, entry["id"]) in ends for entry in nodes)
        else None
        for rank, nodes in enumerate(traces)
    ]


def run(options: dict[str, str], aware: bool) -> list[int | None]:
    dimensions = network(Path(options["network-configuration"]))
    require(len(dimensions) == 1 or not aware, "congestion-aware: one dimension")
    npus = 1
    for _, size, _, _ in dimensions:
        npus *= size
    memory = json.loads(Path(options["remote-memory-configuration"]).read_text())
    require(memory == {"memory-type": "NO_MEMORY_EXPANSION"}, "memory")
    system = json.loads(Path(options["system-configuration"]).read_text())
    require(
        system.pop("scheduling-policy") == "FIFO" and system.pop("preferred-dataset-splits") == 1,
        "system",
    )
    groups = {}
    if "comm-group-configuration" in options:
        groups = json.loads(Path(options["comm-group-configuration"]).read_text())
        for name, members in groups.items():
            require(name.isdecimal() and int(name) > 0, f"group {name}")
            require(
                members == sorted(set(members)) and members[0] >= 0 and members[-1] < npus,
                f"group {name}",
            )
    workloads = [
        trace(Path(f"{options['workload-configuration']}.{rank}.et")) for rank in range(npus)
    ]
    finish: list[int | None] = [1] * npus
    overrides = {}
    if "per-node-custom-implementation" in system:
        overrides = per_node(Path(system.pop("per-node-custom-implementation")))
    cached: dict[str, str] = {}
    used: set[str] = set()
    for rank, nodes in enumerate(workloads):
        if nodes[0]["type"] == COMP:
            require(len(nodes) == 1 and nodes[0]["duration"] == 0, "idle")
            require(nodes[0]["attributes"].get("is_cpu_op") == 0, "is_cpu_op")
            continue
        for number, entry in enumerate(nodes):
            require(entry["attributes"].get("is_cpu_op") == 0, "is_cpu_op")
            require(entry["type"] == COLL, "type of the workload node")
            require(entry["id"] == number, "id of the workload node")
            require(entry["deps"] == ([number - 1] if number else []), "one after the other")
            require(integer(entry["attributes"], "comm_size") > 0, "comm_size")
            group = entry["attributes"].get("pg_name", b"0").decode()
            require(group == "0" or group in groups, f"communicator group {group} not found")
            members = list(range(npus)) if group == "0" else groups[group]
            require(rank in members, "a rank runs a collective of a group that it is not in")
            # All members of a collective are timed with the first of them.
            if rank != members[0]:
                continue
            kind = IMPLEMENTATIONS[integer(entry["attributes"], "comm_type")]
            key = f"{kind}-implementation-custom"
            used.add(key)
            by_kind = system.get(key)
            require(by_kind and len(by_kind) == 1, "No collective implementation found")
            prefix = overrides.get(entry["id"], by_kind[0])
            if group != "0":
                prefix = cached.setdefault(kind, prefix)
            traces = algorithm(prefix, len(members), dimensions[0][0])
            starts = [(finish[npu] or 0) if number else 0 for npu in members]
            times = finishing_times(traces, members, dimensions, aware, starts)
            for npu, time in zip(members, times, strict=True):
                finish[npu] = time
    for key in used:
        del system[key]
    require(not system, f"system: unknown keys {list(system)}")
    return finish


def main() -> None:
    require(all(re.fullmatch(r"--[a-z-]+=.+", argument) for argument in sys.argv[1:]), "arguments")
    options = dict(argument[2:].split("=", 1) for argument in sys.argv[1:])
    require(
        set(options) >= HANDLES and set(options) <= HANDLES | OPTIONAL, f"options {sorted(options)}"
    )
    finish = run(options, "Unaware" not in Path(sys.argv[0]).name)
    Path(options.get("logging-folder", "log")).mkdir(exist_ok=True)
    times = [(time, rank) for rank, time in enumerate(finish) if time is not None]
    for time, rank in sorted(times):
        place = "[2026-03-26 00:00:00.000] [workload] [info]"
        print(f"{place} sys[{rank}] finished, {time} cycles, exposed communication {time} cycles.")
        print(f"{place} sys[{rank}], Wall time: {time}")
    for rank, time in enumerate(finish):
        if time is None:
            print(f"!!!Hardware Resource sys.id={rank} has unreleased nodes!!!")
            print("workload node id 0")


if __name__ == "__main__":
    main()
