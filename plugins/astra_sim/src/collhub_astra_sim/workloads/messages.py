"""Parts of the kernel: messages between ranks, their receives, and the links that carry them.

Classes of ASTRA-sim: `CallbackTracker`, `Link` and `Chunk` of astra-network-analytical, and the
rendezvous of `Sys`. The n-th receive of a key (tag, source, destination, bytes) meets its n-th
send. Only what has met no other side is looked for, so sides of one key stand in a line in which
either all are messages or all are receives: the first one is the one to meet.
"""

from __future__ import annotations

import numpy as np

from collhub_astra_sim.compiling import compiled, outlined
from collhub_astra_sim.simulating.event_queue import Integer, push
from collhub_astra_sim.workloads.machine_state import (
    CODE_BITS,
    MESSAGES,
    RECEIVE_IS_CLEARED,
    SEND_IS_CLEARED,
    Machine,
)
from collhub_astra_sim.workloads.pools import DELIVERY, HAPPENS, LINK_FREE

_CLEARANCE_BYTES = 8192
# ASTRA-sim gives clearances tags of their own, too.
_CLEARANCE_TAG = 1 << 50
_LOW_BITS = (1 << 24) - 1


@outlined
def send(
    source: Integer, destination: Integer, size: Integer, tag: Integer, sender: Integer,
    now: Integer, machine: Machine,
) -> None:  # fmt: skip
    """Send a message; the code `sender` happens when it has arrived, -1: nothing does.

    With rendezvous it waits for the clearance that its receiver sends.
    """
    index = _new_side(source, destination, size, tag, machine)
    message = machine.message[index]
    message["sender"] = sender
    if machine.has_rendezvous:
        clearance = (index << CODE_BITS) | SEND_IS_CLEARED
        _wait(destination, source, _CLEARANCE_BYTES, tag + _CLEARANCE_TAG, clearance, now, machine)
    else:
        launch(index, now, machine)


@outlined
def receive(
    source: Integer, destination: Integer, size: Integer, tag: Integer, receiver: Integer,
    now: Integer, machine: Machine,
) -> None:  # fmt: skip
    """Wait for a message; the code `receiver` happens when it is there.

    With rendezvous the wait itself begins when the clearance has arrived at the sender.
    """
    if not machine.has_rendezvous:
        _wait(source, destination, size, tag, receiver, now, machine)
        return
    waiting = _new_side(source, destination, size, tag, machine)
    machine.message[waiting]["receiver"] = receiver
    clearance = _new_side(destination, source, _CLEARANCE_BYTES, tag + _CLEARANCE_TAG, machine)
    machine.message[clearance]["sender"] = (waiting << CODE_BITS) | RECEIVE_IS_CLEARED
    launch(clearance, now, machine)


@outlined
def await_cleared(index: Integer, now: Integer, machine: Machine) -> None:
    """Wait for the message of a receive whose clearance has arrived."""
    side = machine.message[index]
    code, size, tag = side["receiver"], side["bytes"], side["tag"]
    source, destination = side["source"], side["destination"]
    _give_back(index, machine)
    _wait(source, destination, size, tag, code, now, machine)


@compiled
def _new_side(
    source: Integer, destination: Integer, size: Integer, tag: Integer, machine: Machine
) -> Integer:
    """A message, or a receive, that is nowhere yet."""
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
    side["next_in_line"] = -1
    side["next_unmet"] = -1
    side["is_receive"] = False
    side["is_arrived"] = False
    side["is_unmet"] = False
    return index


@compiled
def _give_back(index: Integer, machine: Machine) -> None:
    machine.message[index]["next_unmet"] = machine.store[MESSAGES]["returned"]
    machine.store[MESSAGES]["returned"] = index


@outlined
def launch(index: Integer, now: Integer, machine: Machine) -> None:
    """Let a message meet its receive, if that is posted, and put it on its way."""
    message = machine.message[index]
    posted = _meet(index, True, machine)
    if posted >= 0:
        message["receiver"] = machine.message[posted]["receiver"]
        _give_back(posted, machine)
    route = _route(message["source"], message["destination"], machine)
    message["hop"] = machine.path_first[route]
    message["last_hop"] = machine.path_first[route + 1] - 1
    _put(index, now, machine)


@outlined
def _wait(
    source: Integer, destination: Integer, size: Integer, tag: Integer, receiver: Integer,
    now: Integer, machine: Machine,
) -> None:  # fmt: skip
    """Post a receive.

    If its message is there, the code happens in the same instant, but through the event queue.
    """
    index = _new_side(source, destination, size, tag, machine)
    machine.message[index]["receiver"] = receiver
    machine.message[index]["is_receive"] = True
    met = _meet(index, False, machine)
    if met < 0:
        return
    _give_back(index, machine)
    if machine.message[met]["is_arrived"]:
        _give_back(met, machine)
        push(machine, now, (receiver << 2) | HAPPENS)
    else:
        machine.message[met]["receiver"] = receiver


@outlined
def _meet(index: Integer, meets_receive: bool, machine: Machine) -> Integer:
    """Take the other side out of its line, or stand in line for it and return -1."""
    side = machine.message[index]
    # Without overflow, of which compiled code may make anything.
    mixed = (side["tag"] & _LOW_BITS) * 31 + (side["tag"] >> 24) + (side["bytes"] & _LOW_BITS)
    mixed = mixed + np.int64(side["source"]) * 40503 + np.int64(side["destination"]) * 9973
    line = machine.unmet[(mixed ^ (mixed >> 16)) & (len(machine.unmet) - 1)]
    before, other = -1, line["first"]
    while other >= 0:
        candidate = machine.message[other]
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
            if line["last"] == other:
                line["last"] = before
            candidate["is_unmet"] = False
            found: Integer = other
            return found
        before, other = other, candidate["next_unmet"]
    if line["first"] < 0:
        line["first"] = index
    else:
        machine.message[line["last"]]["next_unmet"] = index
    line["last"] = index
    side["is_unmet"] = True
    return -1


@compiled
def _route(source: Integer, destination: Integer, machine: Machine) -> Integer:
    """The number of a route, by halving the destinations of its source."""
    # Destinations of a source ascend.
    low, high = machine.pair_first[source], machine.pair_first[source + 1] - 1
    while low < high:
        middle = (low + high) >> 1
        if machine.pair_peer[middle] < destination:
            low = middle + 1
        else:
            high = middle
    found: Integer = low
    return found


# --- links ---


@compiled
def _put(index: Integer, now: Integer, machine: Machine) -> None:
    """Put a message on the next link of its route, or in the line of those that wait for it."""
    place = machine.path_link[machine.message[index]["hop"]]
    link = machine.link[place]
    if not link["is_busy"]:
        _transmit(place, index, now, machine)
        return
    # The line is a list of messages, each of which knows the next.
    if link["first"] < 0:
        link["first"] = index
    else:
        machine.message[link["last"]]["next_in_line"] = index
    link["last"] = index


@outlined
def _transmit(place: Integer, index: Integer, now: Integer, machine: Machine) -> None:
    """Send a message over a link: stored and forwarded whole, one truncation of each time."""
    link, size = machine.link[place], machine.message[index]["bytes"]
    serialization_ns = size / link["bytes_per_ns"]
    arrival = now + int(link["latency_ns"] + serialization_ns)
    push(machine, arrival, (index << 2) | DELIVERY)
    # Without congestion every pair has a link of its own, which serves any number at once.
    if machine.is_shared:
        busy_ns = int(serialization_ns)
        link["is_busy"] = True
        link["bytes"] += size
        link["busy_ns"] += busy_ns
        push(machine, now + busy_ns, (place << 2) | LINK_FREE)


@outlined
def free_link(place: Integer, now: Integer, machine: Machine) -> None:
    """End the use of a link by one message, and send the next one in line."""
    link = machine.link[place]
    link["is_busy"] = False
    index = link["first"]
    if index >= 0:
        message = machine.message[index]
        link["first"] = message["next_in_line"]
        message["next_in_line"] = -1
        # First come, first served.
        _transmit(place, index, now, machine)


@outlined
def arrive(index: Integer, now: Integer, machine: Machine) -> Integer:
    """Pass a whole message on, or deliver it.

    Codes that happen are written to `machine.codes`, the sender's first; their number is returned.
    """
    message = machine.message[index]
    if message["hop"] < message["last_hop"]:
        message["hop"] += 1
        _put(index, now, machine)
        return 0
    count = 0
    if message["sender"] >= 0:
        machine.codes[count] = message["sender"]
        count += 1
    if message["is_unmet"]:
        message["is_arrived"] = True
        return count
    machine.codes[count] = message["receiver"]
    _give_back(index, machine)
    return count + 1
