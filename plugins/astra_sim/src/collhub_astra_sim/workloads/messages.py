"""Parts of the kernel: messages between ranks, their receives, and the links that carry them.

Classes of ASTRA-sim: `CallbackTracker`, `Link` and `Chunk` of astra-network-analytical, and the
rendezvous of `Sys`. The n-th receive of a key (tag, source, destination, bytes) is matched with its
n-th send. Only unmatched sides are searched, so the unmatched sides of one key form a queue that
contains either only messages or only receives: its first element is the match.
"""

from __future__ import annotations

import numpy as np
from collhub_kernels import compiled, outlined
from collhub_kernels.event_queue import Integer, push

from collhub_astra_sim.workloads.machine_state import (
    CODE_BITS,
    DELIVERY,
    HAPPENS,
    LINK_FREE,
    MESSAGES,
    RECEIVE_IS_CLEARED,
    SEND_IS_CLEARED,
    TRANSFERS,
    MachineState,
)

_CLEARANCE_BYTES = 8192
# ASTRA-sim uses separate tags for clearances, too.
_CLEARANCE_TAG = 1 << 50
_LOW_BITS = (1 << 24) - 1


@outlined
def send(
    source: Integer, destination: Integer, size: Integer, tag: Integer, sender: Integer,
    node: Integer, now: Integer, machine: MachineState,
) -> None:  # fmt: skip
    """Send a message of `size` bytes at `now` (ns); its arrival causes the action `sender`.

    `sender` is the code of the action; -1 for none. `node`: row of the sending node, for the record
    of transfers. With rendezvous the message is sent only when a small message of the receiver
    (clearance) has arrived.
    """
    index = _take_message(source, destination, size, tag, machine)
    message = machine.message[index]
    message["sender"] = sender
    message["node"] = node
    if machine.has_rendezvous:
        clearance = (index << CODE_BITS) | SEND_IS_CLEARED
        _post_receive(
            destination, source, _CLEARANCE_BYTES, tag + _CLEARANCE_TAG, clearance, now, machine
        )
    else:
        start_message(index, now, machine)


@outlined
def receive(
    source: Integer, destination: Integer, size: Integer, tag: Integer, receiver: Integer,
    now: Integer, machine: MachineState,
) -> None:  # fmt: skip
    """Post a receive from `source`; the arrival of its message causes the action `receiver`.

    The receive gets the oldest unmatched message with the same ends, `size` (bytes) and `tag`. If
    this message has arrived already, the action is executed at `now` (ns). Without such a message
    the receive waits for one.

    With rendezvous, the rank `destination` first sends a small message (clearance) to the source at
    `now`. The receive is matched only when the clearance has arrived.
    """
    if not machine.has_rendezvous:
        _post_receive(source, destination, size, tag, receiver, now, machine)
        return
    waiting = _take_message(source, destination, size, tag, machine)
    machine.message[waiting]["receiver"] = receiver
    clearance = _take_message(destination, source, _CLEARANCE_BYTES, tag + _CLEARANCE_TAG, machine)
    machine.message[clearance]["sender"] = (waiting << CODE_BITS) | RECEIVE_IS_CLEARED
    start_message(clearance, now, machine)


@outlined
def wait_for_cleared(index: Integer, now: Integer, machine: MachineState) -> None:
    """Post a receive whose clearance has arrived at the sender, at `now` (ns).

    Used only with rendezvous, where a receive first sends the clearance to the sender. `index`:
    record of the waiting receive, which is freed.
    """
    side = machine.message[index]
    code, size, tag = side["receiver"], side["bytes"], side["tag"]
    source, destination = side["source"], side["destination"]
    _return_message(index, machine)
    _post_receive(source, destination, size, tag, code, now, machine)


@compiled
def _take_message(
    source: Integer, destination: Integer, size: Integer, tag: Integer, machine: MachineState
) -> Integer:
    """Reserve a record for a message or a receive and return its index.

    The four given fields are set, all other fields are reset. The record freed last is reused, else
    an unused one. If the pool is exhausted, `counter[1]` is set and the returned record may be in
    use.
    """
    store = machine.store[MESSAGES]
    index: Integer = store["returned"]
    if index >= 0:
        store["returned"] = machine.message[index]["next_unmet"]
    else:
        index = store["fresh"]
        if index + 1 >= len(machine.message):
            machine.counter[1] = 1
        else:
            store["fresh"] = index + 1
    side = machine.message[index]
    side["source"], side["destination"] = source, destination
    side["bytes"], side["tag"] = size, tag
    side["sender"] = -1
    side["receiver"] = -1
    side["node"] = -1
    side["next_in_line"] = -1
    side["next_unmet"] = -1
    side["is_receive"] = False
    side["is_arrived"] = False
    side["is_unmet"] = False
    return index


@compiled
def _return_message(index: Integer, machine: MachineState) -> None:
    """Free the record of a message or receive, so that it can be reused.

    It is the next one that `_take_message` returns. It must not be in any queue.
    """
    machine.message[index]["next_unmet"] = machine.store[MESSAGES]["returned"]
    machine.store[MESSAGES]["returned"] = index


@outlined
def start_message(index: Integer, now: Integer, machine: MachineState) -> None:
    """Match a message with its receive, if that is posted, and put it on its first link at `now`.

    Without a posted receive the message is sent nevertheless, and is matched with a later one. The
    record of the matched receive is freed. If the link is busy, the message is queued there.
    """
    message = machine.message[index]
    posted = _match_or_wait(index, True, machine)
    if posted >= 0:
        message["receiver"] = machine.message[posted]["receiver"]
        _return_message(posted, machine)
    route = _find_route(message["source"], message["destination"], machine)
    message["hop"] = machine.path_first[route]
    message["last_hop"] = machine.path_first[route + 1] - 1
    _send_over_link(index, now, machine)


@outlined
def _post_receive(
    source: Integer, destination: Integer, size: Integer, tag: Integer, receiver: Integer,
    now: Integer, machine: MachineState,
) -> None:  # fmt: skip
    """Post a receive; it gets the oldest message with equal ends, bytes and tag that is unmatched.

    If this message has already arrived, the action `receiver` is performed at `now` through the
    event queue, otherwise on arrival. Without such a message the receive waits for one.
    """
    index = _take_message(source, destination, size, tag, machine)
    machine.message[index]["receiver"] = receiver
    machine.message[index]["is_receive"] = True
    match = _match_or_wait(index, False, machine)
    if match < 0:
        return
    _return_message(index, machine)
    if machine.message[match]["is_arrived"]:
        _return_message(match, machine)
        push(machine, now, (receiver << 2) | HAPPENS)
    else:
        machine.message[match]["receiver"] = receiver


@outlined
def _match_or_wait(index: Integer, meets_receive: bool, machine: MachineState) -> Integer:
    """Match a message or receive with a waiting counterpart, and return the index of that.

    `index`: record of the message or receive. `meets_receive`: True if it is a message, which meets
    a receive. The counterpart has the same source, destination, tag and bytes. Of several, the one
    that waits longest is taken. It is removed from the waiting list and marked as not waiting; its
    record is not freed.

    Without a counterpart, `index` is appended to the waiting list of its hash and marked as
    waiting, and -1 is returned.
    """
    side = machine.message[index]
    # The hash must not overflow, because overflow is undefined in compiled code.
    mixed = (side["tag"] & _LOW_BITS) * 31 + (side["tag"] >> 24) + (side["bytes"] & _LOW_BITS)
    mixed = mixed + np.int64(side["source"]) * 40503 + np.int64(side["destination"]) * 9973
    line = machine.unmet[(mixed ^ (mixed >> 16)) & (len(machine.unmet) - 1)]
    before, candidate_index = -1, line["first"]
    while candidate_index >= 0:
        candidate = machine.message[candidate_index]
        if (
            candidate["is_receive"] == meets_receive
            and candidate["tag"] == side["tag"]
            and candidate["source"] == side["source"]
            and candidate["destination"] == side["destination"]
            and candidate["bytes"] == side["bytes"]
        ):
            following = candidate["next_unmet"]
            if before < 0:
                line["first"] = following
            else:
                machine.message[before]["next_unmet"] = following
            if line["last"] == candidate_index:
                line["last"] = before
            candidate["is_unmet"] = False
            match: Integer = candidate_index
            return match
        before, candidate_index = candidate_index, candidate["next_unmet"]
    if line["first"] < 0:
        line["first"] = index
    else:
        machine.message[line["last"]]["next_unmet"] = index
    line["last"] = index
    side["is_unmet"] = True
    return -1


@compiled
def _find_route(source: Integer, destination: Integer, machine: MachineState) -> Integer:
    """Return the index of the route from rank `source` to rank `destination`.

    The route must exist; otherwise the result is that of another destination. Binary search.
    """
    # The destinations of a source are sorted in ascending order.
    low, high = machine.pair_first[source], machine.pair_first[source + 1] - 1
    while low < high:
        middle = (low + high) >> 1
        if machine.pair_peer[middle] < destination:
            low = middle + 1
        else:
            high = middle
    route: Integer = low
    return route


# --- links ---


@compiled
def _send_over_link(index: Integer, now: Integer, machine: MachineState) -> None:
    """Send a message over the next link of its route at `now` (ns).

    If the link is busy, the message is appended to the queue of the link (first come, first
    served).
    """
    link_index = machine.path_link[machine.message[index]["hop"]]
    machine.message[index]["ready"] = now
    link = machine.link[link_index]
    if not link["is_busy"]:
        _start_transmission(link_index, index, now, machine)
        return
    # The queue is a linked list of messages.
    if link["first"] < 0:
        link["first"] = index
    else:
        machine.message[link["last"]]["next_in_line"] = index
    link["last"] = index


@outlined
def _start_transmission(
    link_index: Integer, index: Integer, now: Integer, machine: MachineState
) -> None:
    """Send a message over a link: schedule its arrival and, for a shared link, its release.

    Let s be bytes / bandwidth in ns. The message arrives at `now` + (latency + s), with the sum in
    parentheses rounded down to full ns. It arrives completely before it is forwarded (store and
    forward). The transmission is recorded if `machine.transfer` has records.

    If links are shared (`machine.is_shared`), the link is busy from `now` for s rounded down. Its
    `bytes` and `busy_ns` increase by the bytes and this time. Other links never become busy and are
    not counted.
    """
    link, size = machine.link[link_index], machine.message[index]["bytes"]
    serialization_ns = size / link["bytes_per_ns"]
    arrival = now + int(link["latency_ns"] + serialization_ns)
    push(machine, arrival, (index << 2) | DELIVERY)
    if len(machine.transfer) > 0:
        _record_transfer(link_index, index, now, int(serialization_ns), machine)
    # Without congestion every pair has a private link, which serves any number of messages at once.
    if machine.is_shared:
        busy_ns = int(serialization_ns)
        link["is_busy"] = True
        link["bytes"] += size
        link["busy_ns"] += busy_ns
        push(machine, now + busy_ns, (link_index << 2) | LINK_FREE)


@outlined
def _record_transfer(
    link_index: Integer, index: Integer, now: Integer, busy_ns: Integer, machine: MachineState
) -> None:
    """Record that a message occupies a link from `now` for `busy_ns`.

    If the pool is full, the transfer is only counted. Clearances of a rendezvous have no node and
    are not recorded.
    """
    message = machine.message[index]
    if message["node"] < 0:
        return
    count = machine.counter[TRANSFERS]
    machine.counter[TRANSFERS] = count + 1
    if count < len(machine.transfer):
        transfer = machine.transfer[count]
        transfer["link"], transfer["node"] = link_index, message["node"]
        transfer["ready"], transfer["start"] = message["ready"], now
        transfer["busy_ns"] = busy_ns


@outlined
def update_link(link_index: Integer, now: Integer, machine: MachineState) -> None:
    """Release a link at `now` (ns), and send the message that has waited longest for it, if any.

    That message leaves the queue, and the link becomes busy again. Only links that messages share
    (`machine.is_shared`) are released.
    """
    link = machine.link[link_index]
    link["is_busy"] = False
    index = link["first"]
    if index >= 0:
        message = machine.message[index]
        link["first"] = message["next_in_line"]
        message["next_in_line"] = -1
        # First come, first served.
        _start_transmission(link_index, index, now, machine)


@outlined
def handle_arrival(index: Integer, now: Integer, machine: MachineState) -> Integer:
    """Forward a message that arrives at the end of a link at `now` (ns), or deliver it.

    Before its last link: the message is sent over the next link, and the result is 0. Otherwise it
    is delivered. Codes of actions are then written to `machine.codes`, and their number (0 to 2)
    is returned:

    1. The code of its sender, if it has one.
    2. The code of its receive, if the receive is posted. The record of the message is freed.

    If the receive is not posted, the message is marked as arrived and keeps its record.
    """
    message = machine.message[index]
    if message["hop"] < message["last_hop"]:
        message["hop"] += 1
        _send_over_link(index, now, machine)
        return 0
    count = 0
    if message["sender"] >= 0:
        machine.codes[count] = message["sender"]
        count += 1
    if message["is_unmet"]:
        message["is_arrived"] = True
        return count
    machine.codes[count] = message["receiver"]
    _return_message(index, machine)
    return count + 1
