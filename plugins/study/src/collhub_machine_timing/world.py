"""Build the initial state of the kernel: instructions of all rounds, their messages and links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_kernels.event_queue import Records

from collhub_machine_timing.blocks import Instructions
from collhub_machine_timing.constants import KernelTiming
from collhub_machine_timing.kernel import INSTRUCTION, BlockWorld, create_queue
from hub_core.columns import (
    BoolArray,
    Float64Array,
    Int64Array,
    distinct,
    expanded_ranges,
    run_mask,
    stable_order,
)
from hub_core.model import StepTable, connection_keys
from hub_core.network import Topology, group_of_nodes
from hub_core.schedules import SwitchGroups

PS_PER_US = 1e6


@dataclass(frozen=True, slots=True, eq=False)
class MessagePaths:
    """Links of the messages of an algorithm on a network, which do not depend on the size.

    `indptr`, `links`: links that each row's message loads, by row. A link that messages of one
    multicast or sum share is listed for one of them. `crosses`: whether the message of a row leaves
    its node; `link_crosses`: whether a link is outside of nodes.
    """

    indptr: Int64Array
    links: Int64Array
    crosses: BoolArray
    link_crosses: BoolArray


def find_paths(
    steps: StepTable, topology: Topology, npu_of_rank: Int64Array, groups: SwitchGroups | None
) -> tuple[MessagePaths, SwitchGroups | None]:
    """Find the links of all messages, and the `groups` that switches execute; None for none.

    Only switches that the topology declares multicast and reduce. Messages whose route has another
    switch leave their multicast, and a sum with such a message is none. Within a group, each link
    counts once; the first message of a multicast has the links of all copies. A message crosses
    nodes if its ends are in different groups of the topology, and uses plane channel mod planes.
    Raises `InputError` for ranks without a path.
    """
    rows = np.flatnonzero(steps.sends)
    source, destination = npu_of_rank[steps.rank[rows]], npu_of_rank[steps.peer[rows]]
    plane = steps.channel[rows].astype(np.int64) % topology.num_planes
    nodes = topology.num_nodes
    code = (plane * nodes + source) * nodes + destination
    pairs = distinct(code)
    routes = topology.routes(
        pairs // nodes % nodes, pairs % nodes, np.ascontiguousarray(pairs // nodes**2)
    )
    route = np.searchsorted(pairs, code)
    lengths = np.zeros(len(steps), np.int64)
    lengths[rows] = np.diff(routes.indptr)[route]
    links = routes.links[expanded_ranges(routes.indptr[route], lengths[rows])]
    row_of_link = np.repeat(rows, lengths[rows])
    if groups is not None:
        groups = _select_switched(groups, topology, links, row_of_link, len(steps))
    if groups is not None:
        keeps = np.ones(len(links), np.bool_)
        for kind, (members, number) in (("copy", groups.multicasts), ("sum", groups.sums)):
            group = np.full(len(steps), -1, np.int64)
            group[members] = number
            grouped = np.flatnonzero(group[row_of_link] >= 0)
            keeps[grouped] = _is_first_use(group[row_of_link[grouped]], links[grouped])
            if kind == "copy" and len(members):
                # The leader loads the links of all copies.
                leader = np.arange(len(steps))
                leader[members] = members[run_mask(number)][np.cumsum(run_mask(number)) - 1]
                row_of_link = leader[row_of_link]
        links, row_of_link = links[keeps], row_of_link[keeps]
    order = stable_order(row_of_link)
    counts = np.bincount(row_of_link, minlength=len(steps))
    group_of_node = group_of_nodes(topology)
    link_group = group_of_node[topology.source], group_of_node[topology.destination]
    has_nodes = bool(topology.groups)
    link_crosses = has_nodes & ((link_group[0] != link_group[1]) | (link_group[0] < 0))
    crosses = np.zeros(len(steps), np.bool_)
    crosses[rows] = has_nodes & (group_of_node[source] != group_of_node[destination])
    paths = MessagePaths(
        np.concatenate([[0], np.cumsum(counts)]), links[order], crosses, link_crosses
    )
    return paths, groups


def _select_switched(
    groups: SwitchGroups,
    topology: Topology,
    links: Int64Array,
    row_of_link: Int64Array,
    row_count: int,
) -> SwitchGroups | None:
    """Return the multicasts and sums on routes of which all switches are declared, or None.

    `links` are the links of all routes and `row_of_link` their rows. A multicast loses the rows
    that pass an undeclared switch; a sum is dropped as a whole if one of its rows does. Groups of
    fewer than two rows are dropped; None if no group is left.
    """
    selected = []
    for switches, (members, number) in (
        (topology.multicast, groups.multicasts),
        (topology.reduction, groups.sums),
    ):
        is_declared = np.arange(topology.num_nodes) < topology.num_npus
        is_declared[list(switches)] = True
        is_outside = np.zeros(row_count, np.bool_)
        is_outside[row_of_link[~is_declared[topology.destination[links]]]] = True
        size = int(number.max(initial=-1)) + 1
        keeps = ~is_outside[members]
        counts = np.bincount(number[keeps], minlength=size)
        if members is groups.sums[0]:
            counts[number[~keeps]] = 0
        keeps &= counts[number] > 1
        selected.append((members[keeps], number[keeps]))
    result = SwitchGroups(*selected)
    return None if result.is_empty else result


def _is_first_use(groups: Int64Array, links: Int64Array) -> BoolArray:
    """Return whether an entry is the first one, by position, with its pair of group and link:
    bool[entries].
    """
    order = np.lexsort((links, groups))
    result = np.zeros(len(links), np.bool_)
    result[order[run_mask(groups[order], links[order])]] = True
    return result


def link_rates(topology: Topology, paths: MessagePaths, timing: KernelTiming) -> Float64Array:
    """Return the attainable rate of every link in bytes per second, float64[links]: its bandwidth
    times the network efficiency for links between nodes, else the link efficiency.
    """
    efficiency = np.where(paths.link_crosses, timing.network_efficiency, timing.link_efficiency)
    return topology.bandwidth_bytes_per_s * efficiency


def build_world(
    steps: StepTable,
    instructions: Instructions,
    paths: MessagePaths,
    topology: Topology,
    timing: KernelTiming,
    row_bytes: Float64Array,
    rounds: int,
    instances: int = 1,
) -> BlockWorld:
    """Build the state of the simulation before the start.

    `row_bytes` are the bytes of every step in one round, as float64. Instruction i of round p has
    the number p * len(instructions) + i. `instances` are equal copies that share the links, of
    which one is simulated: the links are busy that many times longer. An instruction waits for its
    dependencies, the previous one of its block, received data, and a free slot of its connection;
    those without any of these are the roots. Times are in picoseconds; the links are free from 0
    on.
    """
    count = len(instructions)
    record = np.zeros(count, INSTRUCTION)
    record["begin"] = record["end"] = -1
    messages = instructions.messages
    send_of = instructions.of_row[messages.send]
    receive_of = instructions.of_row[messages.receive]
    sizes = _set_times(record, steps, instructions, paths, timing, row_bytes)
    has_message = instructions.send >= 0
    send_rows = np.maximum(instructions.send, 0)
    record["first_link"] = paths.indptr[send_rows]
    record["links"] = np.where(has_message, np.diff(paths.indptr)[send_rows], 0)
    record = np.tile(record, rounds)
    shift = count * np.arange(rounds)[:, None]
    key = connection_keys(
        steps.rank[messages.send].astype(np.int64),
        steps.peer[messages.send].astype(np.int64),
        steps.channel[messages.send].astype(np.int64),
    )
    sends, receives = (send_of + shift).ravel(), (receive_of + shift).ravel()
    edges = [
        ((instructions.parents + shift).ravel(), (instructions.children + shift).ravel()),
        _block_order(np.tile(instructions.block, rounds)),
        _slot_edges(np.tile(key, rounds), sends, receives, timing.slots),
    ]
    parents = np.concatenate([one[0] for one in edges])
    children = np.concatenate([one[1] for one in edges])
    total = count * rounds
    record["unmet"] = np.bincount(children, minlength=total)
    record["unmet"] += np.bincount(receives, minlength=total).astype(np.int32)
    roots = np.flatnonzero(record["unmet"] == 0)
    _set_ranges(record, "child", "children", np.bincount(parents, minlength=total))
    _set_ranges(record, "receiver", "receivers", np.bincount(sends, minlength=total))
    rates, link_class = np.unique(link_rates(topology, paths, timing), return_inverse=True)
    busy = np.rint(sizes[:, None] * instances * timing.wire / rates[None, :] * 1e12).astype(
        np.int64
    )
    return BlockWorld(
        record,
        children[stable_order(parents)],
        receives[stable_order(sends)],
        np.ascontiguousarray(paths.links),
        link_class.astype(np.int64).reshape(-1),
        np.zeros(topology.num_links, np.int64),
        np.ascontiguousarray(busy).reshape(-1),
        roots,
        len(rates),
        round(timing.start_us * PS_PER_US),
        *create_queue(2 * total + 1),
    )


def _set_times(
    record: Records,
    steps: StepTable,
    instructions: Instructions,
    paths: MessagePaths,
    timing: KernelTiming,
    row_bytes: Float64Array,
) -> Float64Array:
    """Set the times of instructions; return the distinct sizes, to which `size_class` refers.

    Modifies `record`: `size_class` is the index of the bytes of an instruction in the ascending
    sizes; durations, lags and tails are in picoseconds, from the message times of its link kind
    (network where its path crosses nodes). Receives pay their share only, messages in switches the
    share stated there. A local step with a stated duration (ns) gets it instead.
    """
    row = np.where(instructions.send >= 0, instructions.send, instructions.receive)
    local = np.full(len(instructions), -1, np.int64)
    local[instructions.of_row] = np.arange(len(steps))
    row = np.where(row >= 0, row, local)
    sizes = distinct(row_bytes[row])
    size_class = np.searchsorted(sizes, row_bytes[row])
    record["size_class"] = size_class
    crosses = paths.crosses[row]
    is_send = instructions.send >= 0
    for is_network in (False, True):
        times = timing.message_times_us(sizes, is_network)
        chosen = np.flatnonzero(crosses == is_network) if is_network else slice(None)
        for name, values in zip(("duration", "first", "lag", "tail"), times, strict=True):
            record[name][chosen] = np.rint(values * PS_PER_US)[size_class[chosen]]
        record["halves"][chosen] = timing.slices - 1 if not is_network else 3 - timing.slices
    # The receiving end of a chain, and local steps; of messages in switches only one costs time.
    work = np.where(is_send, 1.0, timing.received_share)
    work = np.where(instructions.switched_work < 0, work, instructions.switched_work)
    for name in ("duration", "tail"):
        record[name] = record[name] * work
    stated = steps.duration_ns[row]
    has_time = ~is_send & (instructions.receive < 0) & (stated >= 0)
    record["duration"][has_time] = stated[has_time] * 1000
    return sizes


def _set_ranges(record: Records, name: str, number: str, counts: Int64Array) -> None:
    record[number] = counts
    record[f"first_{name}"] = np.cumsum(counts) - counts


def _block_order(block: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the (earlier, later) pairs of successive instructions of every block, as two int64
    columns of rows. Instructions with a negative block are in no pair.
    """
    order = stable_order(block)
    is_same = (block[order][1:] == block[order][:-1]) & (block[order][1:] >= 0)
    return order[:-1][is_same], order[1:][is_same]


def _slot_edges(
    key: Int64Array, sends: Int64Array, receives: Int64Array, slots: int
) -> tuple[Int64Array, Int64Array]:
    """Return (receive, send) pairs: a message waits until the message `slots` before it, of the
    same `key` (connection), is received. Rows have the order in which messages are sent; empty if
    there are no more messages than slots.
    """
    if slots >= len(key):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = stable_order(key)
    is_waiting = key[order][slots:] == key[order][:-slots]
    return receives[order[:-slots][is_waiting]], sends[order[slots:][is_waiting]]
