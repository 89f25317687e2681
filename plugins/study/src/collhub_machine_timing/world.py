"""Build the initial state of the kernel: instructions of all rounds, their messages and links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from collhub_kernels.event_queue import Records

from collhub_machine_timing.blocks import Instructions
from collhub_machine_timing.constants import KernelTiming
from collhub_machine_timing.kernel import (
    INSTRUCTION,
    PROGRESS,
    TIMES,
    BlockWorld,
    create_queue,
)
from hub_core.columns import (
    BoolArray,
    Float64Array,
    Int64Array,
    distinct,
    expanded_ranges,
    first_positions,
    labels,
    row_pointer,
    run_mask,
    stable_order,
)
from hub_core.model import InputError, StepTable
from hub_core.network import Topology, group_of_nodes
from hub_core.schedules import SwitchGroups

PS_PER_US = 1e6


@dataclass(frozen=True, slots=True, eq=False)
class MessagePaths:
    """Links of the messages of an algorithm on a network, which do not depend on the size.

    `indptr`, `links`: links that each row's message loads, by row. A link that messages of one
    multicast or sum share is listed for one of them. `crosses`: whether the message of a row leaves
    its node; `link_crosses`: whether a link is outside of nodes; `leads_out`: whether one within a
    node leads to the network only.
    """

    indptr: Int64Array
    links: Int64Array
    crosses: BoolArray
    link_crosses: BoolArray
    leads_out: BoolArray


def find_paths(
    steps: StepTable, topology: Topology, npu_of_rank: Int64Array, groups: SwitchGroups | None
) -> tuple[MessagePaths, SwitchGroups | None]:
    """Return the links of all messages, and the groups of messages that switches execute.

    First result: per SEND row of `steps` its links, on the route in plane (channel modulo number of
    planes); other rows have none. It also has `_find_card_links` and two flags, which are all False
    if `topology.groups` (nodes) is empty:

    - `crosses`, per row: the NPUs of the message are in different nodes.
    - `link_crosses`, per link: its ends are in different nodes, or its source is in no node.

    Second result: the multicasts and sums of `groups` that `_select_switched` keeps (routes with
    capable switches only, at least two rows). None if `groups` is None or no group remains. The
    first row of a multicast has the links of all its rows, each once; other rows have none. A link
    of a sum is listed only for its first row. Raises `InputError` if a message has no route.
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
        row_pointer(counts),
        links[order],
        crosses,
        link_crosses,
        _find_card_links(topology),
    )
    return paths, groups


@lru_cache(maxsize=4)
def _find_card_links(topology: Topology) -> BoolArray:
    """Return a mask of the links within groups that lead only to the network: bool[links].

    A link is within a group of `topology` (a machine) if both ends are in it. It is marked if no
    route of `topology.routes`, in any plane, between two nodes of one group uses it. Examples are
    PCI links between a GPU and its network card; the efficiency of NVLinks does not apply to them.

    No link is marked if no link is within a group, if all links within groups have the same
    bandwidth, or if any two nodes of a group have no route. The last four results are cached.
    """
    group = group_of_nodes(topology)
    source_group = group[topology.source]
    is_inside: BoolArray = (source_group >= 0) & (source_group == group[topology.destination])
    rates = topology.bandwidth_bytes_per_s[is_inside]
    if not len(rates) or rates.min() == rates.max():
        return np.zeros(topology.num_links, np.bool_)
    members = [np.asarray(one, np.int64) for one in topology.groups.values()]
    planes = topology.num_planes
    sources = np.concatenate([np.repeat(one, len(one)) for one in members])
    destinations = np.concatenate([np.tile(one, len(one)) for one in members])
    is_pair = sources != destinations
    try:
        routes = topology.routes(
            np.tile(sources[is_pair], planes),
            np.tile(destinations[is_pair], planes),
            np.repeat(np.arange(planes), int(is_pair.sum())),
        )
    except InputError:
        return np.zeros(topology.num_links, np.bool_)
    is_inside[routes.links] = False
    return is_inside


def _select_switched(
    groups: SwitchGroups,
    topology: Topology,
    links: Int64Array,
    row_of_link: Int64Array,
    row_count: int,
) -> SwitchGroups | None:
    """Return the multicasts and sums whose routes have only declared switches, or None.

    None is returned if no group remains. Declared for multicasts are the switches of
    `topology.multicast`, for sums those of `topology.reduction`. NPUs on a route are always
    permitted. `links`, `row_of_link`: the links of all routes and the rows of their messages;
    `row_count`: number of rows.

    A multicast loses the rows whose route enters an undeclared switch. A sum with such a row is
    dropped. Then groups of fewer than two rows are dropped. The remaining rows keep their order
    and group numbers.
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
    """Return whether each entry is the first one with its group and link: bool[entries]."""
    order = np.lexsort((links, groups))
    result = np.zeros(len(links), np.bool_)
    result[order[run_mask(groups[order], links[order])]] = True
    return result


def link_rates(topology: Topology, paths: MessagePaths, timing: KernelTiming) -> Float64Array:
    """Return the attainable rate of every link in bytes per second: float64[links].

    It is the bandwidth times an efficiency: that of links between nodes, of links to network cards,
    or of other links within nodes.
    """
    efficiency = np.where(paths.link_crosses, timing.network_efficiency, timing.link_efficiency)
    efficiency[paths.leads_out] = timing.card_efficiency
    return topology.bandwidth_bytes_per_s * efficiency


# Instructions of all rounds up to which connected instructions are cached: 100 MB each.
_MAX_CACHED = 1 << 20
# Instructions of all rounds up to which more of them are cached: 15 MB each.
_MAX_CACHED_OFTEN = 1 << 17
# Records of 32 bytes: 128 kB.
_WRITTEN_AT_ONCE = 1 << 12


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
    """Return the state of the simulation before its start; all times are in ps.

    The instructions are executed in `rounds` rounds, one after the other. Instruction i of round p
    (both from 0) has the number p * len(instructions) + i. It waits for its dependencies, for the
    previous instruction of its block (also of the previous round), for received data, and for a
    free slot of its connection. Instructions that wait for nothing are the roots.

    `row_bytes`: bytes of every step in one round. Steps with equal counts must have equal bytes
    (not checked). `instances`: number of equal copies, of which one is simulated.

    A message occupies a link for bytes * `instances` * `timing.wire` / rate, rounded to ps.
    `timing.wire` is the bytes on the link per byte of data; `link_rates` gives the rate in bytes/s.
    The arguments are not changed. Connections of instructions are cached for later calls.
    """
    total = len(instructions) * rounds
    connected = _find_connected(steps, instructions, paths, rounds, timing.slots)
    classes = _classify_times(steps, instructions, paths)
    sizes, times = _compute_times(classes, timing, row_bytes)
    rates, link_class = np.unique(link_rates(topology, paths, timing), return_inverse=True)
    busy = np.rint(sizes[:, None] * instances * timing.wire / rates[None, :] * 1e12).astype(
        np.int64
    )
    return BlockWorld(
        connected.instruction,
        connected.progress.copy(),
        times,
        connected.child,
        connected.receiver,
        np.ascontiguousarray(paths.links),
        link_class.astype(np.int64).reshape(-1),
        np.zeros(topology.num_links, np.int64),
        np.ascontiguousarray(busy).reshape(-1),
        connected.roots,
        len(rates),
        round(timing.start_us * PS_PER_US),
        *create_queue(2 * total + 1),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _ConnectedRounds:
    """Instructions of all rounds before the start, for all sizes and protocols; never modified.

    `instruction`: records with the ranges of their children, receivers and links; `progress`: their
    initial progress. `child`, `receiver`: instructions, to whose ranges the records refer. `roots`:
    instructions without an unmet condition, ascending.
    """

    instruction: Records
    progress: Records
    child: Int64Array
    receiver: Int64Array
    roots: Int64Array


def _find_connected(
    steps: StepTable, instructions: Instructions, paths: MessagePaths, rounds: int, slots: int
) -> _ConnectedRounds:
    """Return the connected instructions of several rounds, from a cache if possible.

    About eight results are needed alternately for the sizes and protocols of one algorithm. Larger
    results are cached in smaller numbers, or not at all. Slots beyond the number of messages of all
    rounds are ignored, so that equal results share an entry.
    """
    most = int(_find_round_order(instructions).message_count.max(initial=0)) * rounds
    total = len(instructions) * rounds
    arguments = (steps, instructions, paths, rounds, min(slots, most))
    if total > _MAX_CACHED:
        return _connect_rounds(*arguments)
    return (_connect_few if total <= _MAX_CACHED_OFTEN else _connect_many)(*arguments)


def _connect_rounds(
    steps: StepTable, instructions: Instructions, paths: MessagePaths, rounds: int, slots: int
) -> _ConnectedRounds:
    """Connect the instructions of several rounds, each of which executes the same instructions.

    Instruction i of round r has the number r x (instructions of a round) + i. The children of an
    instruction wait for it. They are, in this order:

    1. its dependents in the same round
    2. the next instruction of its block; after the last one, the first one of the next round
    3. if it is a receive: the send `slots` messages later on the same connection, perhaps in a
       later round

    `slots`: maximum number of messages in flight on a connection. In the result no instruction has
    started. Its roots are the instructions that wait for nothing, ascending.
    """
    order = _find_round_order(instructions)
    count, total = len(instructions), len(instructions) * rounds
    shift = count * np.arange(rounds)[:, None]
    successor = np.where(order.next_in_block >= 0, order.next_in_block + shift, -1)
    is_last = order.first_of_last >= 0
    successor[:-1, is_last] = order.first_of_last[is_last] + shift[1:]
    successor = successor.ravel()
    has_successor = successor >= 0
    receives, sends = _slot_edges(order, count, rounds, slots)
    dependent = np.tile(order.dependents, rounds)
    children = dependent + has_successor
    children[receives] += 1
    first_child = first_positions(children)
    child = np.empty(int(children.sum()), np.int64)
    child[expanded_ranges(first_child, dependent)] = (order.children + shift).ravel()
    place = first_child + dependent
    child[place[has_successor]] = successor[has_successor]
    child[place[receives] + has_successor[receives]] = sends
    unmet = np.tile(order.conditions, rounds)
    unmet[successor[has_successor]] += 1
    unmet[sends] += 1
    instruction = np.concatenate([_build_round_records(steps, instructions, paths)] * rounds)
    later_receivers = len(order.receiver) * np.arange(rounds)
    instruction["first_receiver"] += np.repeat(later_receivers, count).astype(np.int32)
    _write_columns(instruction, {"first_child": first_child, "children": children})
    progress = np.zeros(total, PROGRESS)
    progress["begin"] = progress["end"] = -1
    progress["unmet"] = unmet
    return _ConnectedRounds(
        instruction,
        progress,
        child,
        (order.receiver + shift).ravel(),
        np.flatnonzero(unmet == 0),
    )


_connect_few, _connect_many = lru_cache(8)(_connect_rounds), lru_cache(3)(_connect_rounds)


@lru_cache(maxsize=8)
def _build_round_records(
    steps: StepTable, instructions: Instructions, paths: MessagePaths
) -> Records:
    """Return the records of `INSTRUCTION` of the first round, whose children are not set.

    Set are, by instruction: the class of its time, its first receiver and the number of
    receivers of its messages, and the first link and the number of links of the message that
    it sends (0 links without one). The children are 0. The last eight results are cached, so
    the caller must not change them.
    """
    order = _find_round_order(instructions)
    send_rows = np.maximum(instructions.send, 0)
    links = np.where(instructions.send >= 0, np.diff(paths.indptr)[send_rows], 0)
    record = np.zeros(len(instructions), INSTRUCTION)
    _write_columns(
        record,
        {
            "times": _classify_times(steps, instructions, paths).time_class,
            "first_receiver": first_positions(order.receivers),
            "receivers": order.receivers,
            "first_link": paths.indptr[send_rows],
            "links": links,
        },
    )
    return record


def _write_columns(record: Records, columns: Mapping[str, Int64Array]) -> None:
    """Write columns to the fields of records of equal names.

    A block of records is written completely before the next one, because a block fits into the
    cache of a processor and all records do not.
    """
    for start in range(0, len(record), _WRITTEN_AT_ONCE):
        block = record[start : start + _WRITTEN_AT_ONCE]
        for name, values in columns.items():
            block[name] = values[start : start + _WRITTEN_AT_ONCE]


@dataclass(frozen=True, slots=True, eq=False)
class _RoundOrder:
    """Order of the instructions of one round, all arrays int64.

    `children`: dependent instructions by parent, of which each has `dependents`; `receiver`,
    `receivers`: the same for messages. `conditions`: dependencies and received messages that an
    instruction waits for. `next_in_block`: -1 for the last one of a block and without a block;
    `first_of_last`: the first instruction of the block for its last one, else -1. Messages by
    connection, then in order: instructions `message_send`, `message_receive`, the first message
    `message_start` and the number of messages `message_count` of their connection.
    """

    children: Int64Array
    dependents: Int64Array
    receiver: Int64Array
    receivers: Int64Array
    conditions: Int64Array
    next_in_block: Int64Array
    first_of_last: Int64Array
    message_send: Int64Array
    message_receive: Int64Array
    message_start: Int64Array
    message_count: Int64Array


@lru_cache(maxsize=8)
def _find_round_order(instructions: Instructions) -> _RoundOrder:
    """Sort the dependencies, blocks and messages of one round; the last eight results are cached.

    The fields of the result are described at `_RoundOrder`. Dependent instructions and receives are
    sorted by the instruction that they wait for, messages by connection; otherwise the order of
    `instructions` is kept. An instruction waits for one condition per dependency and per message
    that it receives. Instructions without a block (below 0) have -1 in `next_in_block` and
    `first_of_last`. A block of one instruction has itself as `first_of_last`.
    """
    count = len(instructions)
    parents, children = instructions.parents, instructions.children
    messages = instructions.messages
    sends = instructions.of_row[messages.send]
    receives = instructions.of_row[messages.receive]
    in_blocks = np.flatnonzero(instructions.block >= 0)
    by_block = in_blocks[stable_order(instructions.block[in_blocks])]
    is_first = run_mask(instructions.block[by_block])
    next_in_block, first_of_last = np.full((2, count), -1, np.int64)
    next_in_block[by_block[:-1][~is_first[1:]]] = by_block[1:][~is_first[1:]]
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(by_block))[: len(firsts)] - 1
    first_of_last[by_block[lasts]] = by_block[firsts]
    by_connection = stable_order(instructions.connection)
    starts = np.flatnonzero(run_mask(instructions.connection[by_connection]))
    counts = np.diff(np.append(starts, len(by_connection)))
    conditions = np.bincount(children, minlength=count) + np.bincount(receives, minlength=count)
    return _RoundOrder(
        children[stable_order(parents)],
        np.bincount(parents, minlength=count),
        receives[stable_order(sends)],
        np.bincount(sends, minlength=count),
        conditions,
        next_in_block,
        first_of_last,
        sends[by_connection],
        receives[by_connection],
        np.repeat(starts, counts),
        np.repeat(counts, counts),
    )


def _slot_edges(
    order: _RoundOrder, count: int, rounds: int, slots: int
) -> tuple[Int64Array, Int64Array]:
    """Return (receives, sends): each send waits for the receive of an earlier message.

    That is the message `slots` before it on its connection, possibly of an earlier round.
    Instructions are numbered over all rounds. `count`: instructions of a round. Both arrays are
    empty if no connection has more than `slots` messages in all rounds together.
    """
    messages = len(order.message_send)
    if slots >= messages * rounds:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    turn = np.arange(rounds)[:, None]
    number = np.arange(messages) - order.message_start + slots + turn * order.message_count
    later, number = np.divmod(number, order.message_count)
    is_waiting = later < rounds
    receives = (order.message_receive + count * turn)[is_waiting]
    sends = order.message_send[(order.message_start + number)[is_waiting]]
    return receives, sends + count * later[is_waiting]


def compute_durations_ps(
    steps: StepTable,
    instructions: Instructions,
    paths: MessagePaths,
    timing: KernelTiming,
    row_bytes: Float64Array,
) -> Int64Array:
    """Return the time in ps for which each instruction keeps its thread block busy, at least."""
    classes = _classify_times(steps, instructions, paths)
    durations: Int64Array = _compute_times(classes, timing, row_bytes)[1]["duration"]
    return durations[classes.time_class]


# Share of the time of a send that an instruction takes: all of it, that of the receiving end of a
# chain and of local steps, or none of it.
_ENTIRE, _RECEIVING, _NOTHING = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class _TimeClasses:
    """Classes of instructions with equal times at every size and protocol.

    `time_class`: int64, class of every instruction. The other columns have an entry per class:
    `row`, a row whose bytes are those of the message; `is_network` (int64, 0 or 1), whether its
    path crosses nodes; `share`, one of `_ENTIRE`, `_RECEIVING`, `_NOTHING`; `stated_ns`, the known
    duration of a local step, -1 without one.
    """

    time_class: Int64Array
    row: Int64Array
    is_network: Int64Array
    share: Int64Array
    stated_ns: Int64Array


def _compute_times(
    classes: _TimeClasses, timing: KernelTiming, row_bytes: Float64Array
) -> tuple[Float64Array, Records]:
    """Return the distinct sizes in bytes, ascending, and a record of `TIMES` for each class.

    `size_class` of a record is the index of its bytes in the sizes. `duration`, `first`, `lag`
    and `tail` are busy, first, lag and tail of `timing.message_times_us` for these bytes, in
    ps. They are those of messages between nodes if `is_network` is 1, otherwise of those within
    a node.

    `duration` and `tail` are then multiplied by the share of the class, rounded down: `_ENTIRE`
    1, `_RECEIVING` `timing.received_share`, `_NOTHING` 0. A class with a known duration
    (`stated_ns` of at least 0) has this duration instead. `halves` is `timing.slices` - 1
    within a node, 3 - `timing.slices` between nodes.
    """
    sizes, size_class = np.unique(row_bytes[classes.row], return_inverse=True)
    size_class = size_class.reshape(-1)
    is_network = classes.is_network
    work = np.array([1.0, timing.received_share, 0.0])[classes.share]
    # Row 2 s + k: size s on links within nodes (k = 0) or of the network (k = 1).
    kind = 2 * size_class + is_network
    message_times = [timing.message_times_us(sizes, crosses) for crosses in (False, True)]
    times = np.zeros(len(classes.row), TIMES)
    for index, name in enumerate(("duration", "first", "lag", "tail")):
        pair = np.stack([message_times[0][index], message_times[1][index]], axis=1)
        times[name] = np.rint(pair * PS_PER_US).astype(np.int64).ravel()[kind]
    for name in ("duration", "tail"):
        times[name] = (times[name] * work).astype(np.int64)
    has_time = classes.stated_ns >= 0
    times["duration"][has_time] = classes.stated_ns[has_time] * 1000
    times["size_class"] = size_class
    times["halves"] = np.array([timing.slices - 1, 3 - timing.slices])[is_network]
    return sizes, times


@lru_cache(maxsize=8)
def _classify_times(
    steps: StepTable, instructions: Instructions, paths: MessagePaths
) -> _TimeClasses:
    """Find the classes of instructions with equal times; the last eight results are cached.

    The row of an instruction is that of its send, otherwise of its receive, otherwise of its local
    step. Two instructions are in one class if these four values are equal:

    1. whether the path of the row crosses nodes (`is_network`, 0 or 1)
    2. the share of the transfer time. For a message in a switch (`switched_work`): `_ENTIRE` if it
       is 1, `_NOTHING` if it is 0. For any other: `_ENTIRE` with a send, else `_RECEIVING`.
    3. the known duration of a local step in ns; -1 for messages and for unknown durations
    4. the number of units of the row

    Classes are numbered from 0, ascending by these values in this order. `row` of a class is that
    of its last instruction. Without instructions there are no classes.
    """
    row = np.where(instructions.send >= 0, instructions.send, instructions.receive)
    local = np.full(len(instructions), -1, np.int64)
    local[instructions.of_row] = np.arange(len(steps))
    row = np.where(row >= 0, row, local)
    is_send = instructions.send >= 0
    share = np.where(is_send, _ENTIRE, _RECEIVING)
    switched = instructions.switched_work
    share = np.where(switched < 0, share, np.where(switched > 0, _ENTIRE, _NOTHING))
    has_time = ~is_send & (instructions.receive < 0)
    stated_ns = np.where(has_time, steps.duration_ns[row], -1)
    is_network = paths.crosses[row].astype(np.int64)
    time_class = labels(is_network, share, stated_ns, steps.count[row])
    example = np.zeros(int(time_class.max(initial=-1)) + 1, np.int64)
    example[time_class] = np.arange(len(row))
    return _TimeClasses(
        time_class, row[example], is_network[example], share[example], stated_ns[example]
    )
