"""Parts of the kernel: ASTRA-sim's native algorithms, phase by phase.

Classes of ASTRA-sim: `Ring`, `AllToAll` (direct), `HalvingDoubling`, `DoubleBinaryTreeAllReduce`
and `PacketBundle`. A packet is created at the start of a phase or by an arrival, and is ready after
the endpoint's delay, plus the time of a reduction if it is reduced; only then may a message be sent
and the corresponding receive be posted. A phase does not wait for the arrival of the messages that
it sends.

Packets are created and sent in order, so their number determines destination and size.
"""

from __future__ import annotations

from collhub_kernels import compiled, outlined
from collhub_kernels.event_queue import Integer

from collhub_astra_sim.options import SMALL_GROUP_NS
from collhub_astra_sim.workloads.machine_state import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    CODE_BITS,
    DIRECT,
    HALVING_DOUBLING,
    PACKET_ARRIVES,
    PACKET_READY,
    PACKET_REDUCES,
    REDUCE_SCATTER,
    RING,
    TREE,
    MachineState,
    delay,
)
from collhub_astra_sim.workloads.messages import receive, send

# A reduction reads two operands and writes one.
_ACCESSES = 3
_NATIVE_TAG = 500_000_000


@outlined
def start_native(index: Integer, now: Integer, machine: MachineState) -> None:
    """Start the current phase of the stream `index` at `now` (ns), after resetting its counters.

    A stream is a part of a collective on one rank, a phase the native algorithm of one network
    dimension. A tree starts at its leaves. Other algorithms create as many packets (messages to be
    sent) as may be in flight; each becomes ready after a delay.
    """
    stream = machine.stream[index]
    phase = machine.phase[stream["phase"]]
    _init_phase(index, machine)
    if phase["algorithm"] == TREE:
        _start_tree(index, now, machine)
        return
    for _ in range(_count_packets_in_flight(index, machine)):
        make_packet(index, now, machine)


@compiled
def _init_phase(index: Integer, machine: MachineState) -> None:
    """Reset the counters of a stream, and set its delay and position for its current phase.

    `index`: number of the stream, a part of a collective on one rank. A phase with stride 0 is that
    of a group smaller than the job: the position is that in the group, and the delay before every
    message `SMALL_GROUP_NS` ns unless it runs a tree. All other phases have the delay of the
    endpoint and the position rank // stride modulo size. Also sets the number of messages to send.
    """
    stream = machine.stream[index]
    phase = machine.phase[stream["phase"]]
    stream["made"] = 0
    stream["sent"] = 0
    stream["arrived"] = 0
    stream["free"] = 0
    stream["plain"] = 0
    stream["reduced"] = 0
    stream["is_reducing"] = False
    member = machine.member[machine.node[stream["row"]]["member"]]
    is_small = phase["stride"] == 0
    stream["delay_ns"] = machine.endpoint_ns
    if is_small and phase["algorithm"] != TREE:
        stream["delay_ns"] = SMALL_GROUP_NS
    if is_small:
        stream["position"] = member["position"]
        stream["base"] = member["first"]
    else:
        position = stream["rank"] // phase["stride"] % phase["size"]
        stream["position"] = position
        stream["base"] = stream["rank"] - position * phase["stride"]
    stream["to_send"] = count_messages_to_send(phase["algorithm"], phase["type"], phase["size"])


@compiled
def count_messages_to_send(algorithm: Integer, kind: Integer, size: Integer) -> Integer:
    """Return the number of messages that a rank sends in a phase of `size` ranks.

    It is size - 1, or log2(size) with halving-doubling; twice that for an all-reduce. An all-to-all
    on a ring, which forwards data, sends size * (size - 1) / 2. `kind`: type of the collective. The
    number has no meaning for trees.
    """
    steps = size - 1
    if algorithm == HALVING_DOUBLING:
        steps = _compute_log2(size)
    if kind == ALL_REDUCE:
        return 2 * steps
    if kind == ALL_TO_ALL and algorithm == RING:
        return size * (size - 1) // 2
    return steps


@compiled
def _compute_log2(size: Integer) -> Integer:
    """Return the binary logarithm of an integer, rounded down.

    It is 0 for a size of 1 or less.
    """
    result = 0
    while size > 1:
        size = size >> 1
        result += 1
    return result


@compiled
def _count_packets_in_flight(index: Integer, machine: MachineState) -> Integer:
    """Return the maximum number of packets (messages) of a stream that may be in flight in its
    phase.

    For the direct algorithm it is its width (negative: unlimited), but at most the number of peers.
    For all other algorithms it is 1.
    """
    phase = machine.phase[machine.stream[index]["phase"]]
    if phase["algorithm"] != DIRECT:
        return 1
    peers: Integer = phase["size"] - 1
    width: Integer = phase["width"]
    return peers if width < 0 else min(width, peers)


@compiled
def _count_reduced_packets(index: Integer, machine: MachineState) -> Integer:
    """Return how many packets in a row a stream creates that may be reduced.

    `make_packet` alternates between these and packets that are never reduced. It is the number of
    peers for the ring, and the number of levels minus 1 for halving-doubling. For direct it is the
    maximum number of packets in flight, in a group smaller than the job times the number of peers.
    """
    phase = machine.phase[machine.stream[index]["phase"]]
    peers: Integer = phase["size"] - 1
    if phase["algorithm"] == RING:
        return peers
    if phase["algorithm"] == HALVING_DOUBLING:
        return _compute_log2(phase["size"]) - 1
    width = _count_packets_in_flight(index, machine)
    return peers * width if phase["stride"] == 0 else width


@outlined
def make_packet(index: Integer, now: Integer, machine: MachineState) -> None:
    """Create the next packet of a phase; it is ready to be sent after the delay of the endpoint.

    The delay starts at `now` (ns). A packet that is reduced also needs the time of the reduction
    (`reduce_ns` of the stream, from the bytes of this packet).

    The packets of a stream are divided into turns. A turn has `_count_packets_in_flight` packets
    that are not reduced, then `_count_reduced_packets` further ones. The latter are reduced in a
    reduce-scatter in every turn, in an all-reduce in the first, third, fifth turn and so on, and in
    other phases never.
    """
    stream = machine.stream[index]
    kind = machine.phase[stream["phase"]]["type"]
    if stream["plain"] == 0 and stream["reduced"] == 0:
        stream["plain"] = _count_packets_in_flight(index, machine)
        stream["reduced"] = _count_reduced_packets(index, machine)
        stream["is_reducing"] = not stream["is_reducing"]
    is_reduced = False
    if stream["plain"] > 0:
        stream["plain"] -= 1
    else:
        is_reduced = kind == REDUCE_SCATTER or (kind == ALL_REDUCE and stream["is_reducing"])
        stream["reduced"] -= 1
    action = PACKET_READY
    if is_reduced:
        stream["reduce_ns"] = compute_reduction_ns(
            _compute_packet_bytes(index, stream["made"], machine), machine
        )
        action = PACKET_REDUCES
    stream["made"] += 1
    delay(stream["rank"], now, stream["delay_ns"], (index << CODE_BITS) | action, machine)


@compiled
def compute_reduction_ns(size: Integer, machine: MachineState) -> Integer:
    """Return the time (ns) of the three memory accesses that reduce `size` bytes.

    The time of one access is rounded down to ns. 0 if the machine has no memory bandwidth.
    """
    if machine.reduce_bytes_per_s == 0:
        return 0
    return _ACCESSES * int(size / machine.reduce_bytes_per_s * 1e9)


@outlined
def handle_packet_arrival(index: Integer, now: Integer, machine: MachineState) -> None:
    """Continue a stream after the arrival of a message at `now` (ns).

    Algorithms other than trees create the next packet. In a tree the message is processed after the
    delay of the endpoint, and then reduced except at leaves.
    """
    stream = machine.stream[index]
    stream["arrived"] += 1
    if machine.phase[stream["phase"]]["algorithm"] != TREE:
        make_packet(index, now, machine)
        return
    action = PACKET_READY if _is_leaf(index, machine) else PACKET_REDUCES
    stream["reduce_ns"] = compute_reduction_ns(stream["bytes"], machine)
    delay(stream["rank"], now, stream["delay_ns"], (index << CODE_BITS) | action, machine)


@outlined
def handle_ready_packet(index: Integer, now: Integer, machine: MachineState) -> bool:
    """Send messages of a stream whose packet became ready; return whether the phase is done.

    `index`: the stream, `now`: ns. For trees, the result is that of `_handle_tree_packet`.
    Otherwise the number of free packets (`free`) rises by 1. W is the limit of packets in flight
    (`_count_packets_in_flight`). The first case applies:

    1. A direct all-reduce whose remaining messages (`to_send`) are at most one per peer, i.e. its
       second half. If fewer messages than peers have arrived, nothing is sent, and the result is
       False. Otherwise up to W messages are sent.
    2. Any other phase: at most one message is sent.

    `_send_packet` sends nothing if no message remains or no packet is ready. The phase is done if
    then no message remains to be sent and W packets are free.
    """
    stream = machine.stream[index]
    phase = machine.phase[stream["phase"]]
    if phase["algorithm"] == TREE:
        return _handle_tree_packet(index, now, machine)
    stream["free"] += 1
    width = _count_packets_in_flight(index, machine)
    peers = phase["size"] - 1
    is_direct_all_reduce = phase["algorithm"] == DIRECT and phase["type"] == ALL_REDUCE
    # The second half of a direct all-reduce begins when the first one has arrived.
    if is_direct_all_reduce and stream["to_send"] <= peers:
        if stream["arrived"] < peers:
            return False
        for _ in range(width):
            _send_packet(index, now, machine)
    else:
        _send_packet(index, now, machine)
    return bool(stream["to_send"] == 0 and stream["free"] == width)


@outlined
def _send_packet(index: Integer, now: Integer, machine: MachineState) -> None:
    """Send the next packet of a stream at `now` (ns), and post the receive of the matching message.

    Does nothing if all ready packets (`made`) are sent, if no message remains to be sent, or if the
    stream has no free slot. Otherwise `sent` of the stream increases by 1, and `to_send` and `free`
    decrease by 1.

    Both messages have the bytes of `_compute_packet_bytes`. The receiver is `_compute_distance`
    positions after the stream's position, or before it in a reverse stream. The message to receive
    comes from the same distance in the opposite direction. With halving-doubling it comes from the
    receiver itself.
    """
    stream = machine.stream[index]
    if stream["sent"] == stream["made"] or stream["to_send"] == 0 or stream["free"] == 0:
        return
    number = stream["sent"]
    size = _compute_packet_bytes(index, number, machine)
    distance = _compute_distance(index, number, machine)
    if stream["is_reverse"]:
        distance = -distance
    stream["sent"] += 1
    stream["to_send"] -= 1
    stream["free"] -= 1
    _send_to(index, stream["position"] + distance, size, now, machine)
    origin = stream["position"] - distance
    if machine.phase[stream["phase"]]["algorithm"] == HALVING_DOUBLING:
        origin = stream["position"] + distance
    _receive_from(index, origin, size, now, machine)


@outlined
def _compute_packet_bytes(index: Integer, number: Integer, machine: MachineState) -> Integer:
    """Return the size in bytes of message `number` (from 0) of a phase of a stream.

    `index`: row of the stream in `machine.stream`; its current phase counts. Let b be the bytes of
    the stream and n the number of ranks of the phase. Divisions are rounded down.

    - Ring and direct: b in an all-gather, otherwise b / n.
    - Halving-doubling, all-gather: b * 2^number.
    - Halving-doubling, all-reduce, from number log2(n) on: b / (2n), multiplied by 2^(number -
      log2(n) + 1). The sizes thus ascend from b / n to b / 2.
    - Halving-doubling, otherwise: b / 2^(number + 1).
    """
    stream = machine.stream[index]
    phase = machine.phase[stream["phase"]]
    size: Integer = stream["bytes"]
    ranks: Integer = phase["size"]
    is_gather = phase["type"] == ALL_GATHER
    if phase["algorithm"] != HALVING_DOUBLING:
        return size if is_gather else size // ranks
    if is_gather:
        return size << number
    steps = _compute_log2(ranks)
    if phase["type"] == ALL_REDUCE and number >= steps:
        # Halved once more at the turning point, then doubled.
        return (size >> (steps + 1)) << (number - steps + 1)
    return size >> (number + 1)


@compiled
def _compute_distance(index: Integer, number: Integer, machine: MachineState) -> Integer:
    """Return the distance in positions from the sender to the receiver of message `number`.

    - Ring: 1
    - Direct: 1 + number modulo (size - 1)
    - Halving-doubling: 2^number; in an all-gather, and the second half of an all-reduce, the powers
      descend to 1. It is negative for the upper partner of a pair, and negated for a reversed
      stream, because `_send_packet` negates the distances of reversed streams once more.
    """
    stream = machine.stream[index]
    phase = machine.phase[stream["phase"]]
    if phase["algorithm"] == RING:
        return 1
    if phase["algorithm"] == DIRECT:
        distance: Integer = 1 + number % (phase["size"] - 1)
        return distance
    steps = _compute_log2(phase["size"])
    offset = 1 << number
    if phase["type"] == ALL_GATHER:
        offset = 1 << (steps - 1 - number)
    elif number >= steps:
        offset = 1 << (2 * steps - 1 - number)
    if stream["position"] // offset % 2 == 1:
        offset = -offset
    # Both partners of a pair compute the same offset, and a stream's direction has no effect.
    return -offset if stream["is_reverse"] else offset


@compiled
def _get_rank_at(index: Integer, position: Integer, machine: MachineState) -> Integer:
    """Return the rank at a position of the dimension or group in which a stream's phase runs.

    Positions wrap around at the size of the phase. In a group smaller than the job (stride 0) it is
    the member of the group, otherwise base + position * stride.
    """
    stream = machine.stream[index]
    phase = machine.phase[stream["phase"]]
    position = position % phase["size"]
    base: Integer = stream["base"]
    stride: Integer = phase["stride"]
    if stride == 0:
        member: Integer = machine.group_rank[base + position]
        return member
    return base + position * stride


@outlined
def _send_to(
    index: Integer, position: Integer, size: Integer, now: Integer, machine: MachineState
) -> None:
    """Send a message of `size` bytes of a stream to a position of its phase at `now`.

    The tag is derived from the number of the stream. No action follows on arrival at the sender.
    """
    stream = machine.stream[index]
    tag = _NATIVE_TAG + stream["number"] % _NATIVE_TAG
    peer = _get_rank_at(index, position, machine)
    send(stream["rank"], peer, size, tag, -1, stream["row"], now, machine)


@outlined
def _receive_from(
    index: Integer, position: Integer, size: Integer, now: Integer, machine: MachineState
) -> None:
    """Post a receive of `size` bytes of the stream `index` from a position of its phase at `now`.

    The tag is derived from the stream's number. The arrival is handled as `PACKET_ARRIVES`.
    """
    stream = machine.stream[index]
    tag = _NATIVE_TAG + stream["number"] % _NATIVE_TAG
    code = (index << CODE_BITS) | PACKET_ARRIVES
    receive(_get_rank_at(index, position, machine), stream["rank"], size, tag, code, now, machine)


# --- the double binary tree ---
#
# The root is the lowest or the highest position. Below it a complete tree holds the others, whose
# numbers from 1 are those of the nodes in order: odd ones are leaves, and the lowest bit of one
# is the distance to its children, twice over.


@compiled
def _get_number_in_tree(index: Integer, machine: MachineState) -> Integer:
    """Return the number of a stream's rank in the tree, which determines its parent and children.

    It is the position, or the position plus 1 if the highest position is the root. For the root it
    is 0 or the number of ranks.
    """
    stream = machine.stream[index]
    number: Integer = stream["position"] if stream["is_lowest"] else stream["position"] + 1
    return number


@compiled
def _get_position_in_tree(index: Integer, number: Integer, machine: MachineState) -> Integer:
    """Convert a number in the tree of a stream's phase to a position of the phase.

    If the lowest position is the root, the position is the number modulo the size, else the number
    minus 1.
    """
    stream = machine.stream[index]
    size = machine.phase[stream["phase"]]["size"]
    return number % size if stream["is_lowest"] else number - 1


@compiled
def _is_root(index: Integer, machine: MachineState) -> bool:
    """Return whether the rank of stream `index` is the root of the tree of the current phase.

    The root is the lowest or the highest position, which the stream's queue determines.
    """
    size = machine.phase[machine.stream[index]["phase"]]["size"]
    return bool(_get_number_in_tree(index, machine) % size == 0)


@compiled
def _is_leaf(index: Integer, machine: MachineState) -> bool:
    """Return whether the stream's rank is a leaf of its tree."""
    return bool(_get_number_in_tree(index, machine) % 2 == 1) and not _is_root(index, machine)


@compiled
def _get_child_number(index: Integer, is_second: bool, machine: MachineState) -> Integer:
    """Return the number in the tree of the first or second child of the stream's rank.

    The children of number n are n minus and n plus half of the lowest set bit of n. The root has
    one child, size // 2, which is returned in both cases. Must not be called for leaves, which have
    no children.
    """
    size = machine.phase[machine.stream[index]["phase"]]["size"]
    if _is_root(index, machine):
        only_child: Integer = size >> 1
        return only_child
    number = _get_number_in_tree(index, machine)
    half = (number & -number) >> 1
    return number + half if is_second else number - half


@compiled
def _get_parent_position(index: Integer, machine: MachineState) -> Integer:
    """Return the position of the parent of the stream's rank in the tree; not for the root.

    The number of the parent results from moving the lowest set bit one position up.
    """
    number = _get_number_in_tree(index, machine)
    bit = number & -number
    return _get_position_in_tree(index, (number & ~bit) | (2 * bit), machine)


@outlined
def _start_tree(index: Integer, now: Integer, machine: MachineState) -> None:
    """Start a tree phase of a stream on its rank at `now` (ns); `machine` is changed.

    `index`: row of the stream. A leaf schedules the event `PACKET_READY`, after which it sends to
    its parent, at `now` plus the stream's delay. Any other rank posts receives of the stream's
    bytes from its children: an inner rank from two, the root from one.
    """
    stream = machine.stream[index]
    size = stream["bytes"]
    if _is_leaf(index, machine):
        code = (index << CODE_BITS) | PACKET_READY
        delay(stream["rank"], now, stream["delay_ns"], code, machine)
        return
    for second in range(1 if _is_root(index, machine) else 2):
        child = _get_position_in_tree(
            index, _get_child_number(index, second == 1, machine), machine
        )
        _receive_from(index, child, size, now, machine)


@outlined
def _handle_tree_packet(index: Integer, now: Integer, machine: MachineState) -> bool:
    """Perform the next step of a rank in a tree all-reduce; return whether its phase has finished.

    Called at a leaf when its start delay has passed, and at all ranks when a received message has
    been processed. Each call adds 1 to `made` of the stream, its number of calls. The first rule
    that applies (all messages have the `bytes` of the stream):

    1. Root: it sends to its only child; True.
    2. First call of a leaf, second call of an inner rank (both children have then sent): it sends
       to its parent and posts a receive from it; False.
    3. First call of an inner rank: nothing; False.
    4. Later call, when the parent's message has arrived: an inner rank sends to both children, a
       leaf sends nothing; True.
    """
    stream = machine.stream[index]
    size = stream["bytes"]
    # Number of events so far: for a leaf its start and arrivals, for inner nodes the arrivals.
    stream["made"] += 1
    children = 0 if _is_leaf(index, machine) else 2
    if _is_root(index, machine):
        child = _get_position_in_tree(index, _get_child_number(index, False, machine), machine)
        _send_to(index, child, size, now, machine)
        return True
    asks_parent = stream["made"] == max(children, 1)
    if asks_parent:
        parent = _get_parent_position(index, machine)
        _send_to(index, parent, size, now, machine)
        _receive_from(index, parent, size, now, machine)
        return False
    if stream["made"] < children:
        return False
    for second in range(children):
        child = _get_position_in_tree(
            index, _get_child_number(index, second == 1, machine), machine
        )
        _send_to(index, child, size, now, machine)
    return True
