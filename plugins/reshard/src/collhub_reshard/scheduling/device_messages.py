"""Time of the strategies that send to every receiver by itself, before any is scheduled."""

from __future__ import annotations

from fractions import Fraction

from collhub_shardings import UnitTasks

from collhub_reshard.scheduling.host_network import HostNetwork


def send_receive_s(units: UnitTasks, network: HostNetwork, gathers: bool = False) -> Fraction:
    """Seconds of send/recv to every receiver: the busiest card of any host.

    Every receiver in turn takes the sender device with the least bytes so far. `gathers`: where all
    replicas of every tile stand in one host, each gets its part alone, and they gather the rest
    within the host ("local all-gather").
    """
    gathers = gathers and _replicas_share_hosts(units)
    sent: dict[int, Fraction] = {}
    out: dict[int, Fraction] = {}
    into: dict[int, Fraction] = {}
    for row in range(len(units)):
        senders = units.senders_of(row).tolist()
        receivers = units.receivers_of(row).tolist()
        share = len(receivers) if gathers else 1
        size = Fraction(int(units.bytes[row]), share)
        for receiver in receivers:
            sender = min(senders, key=lambda device: sent.get(device, Fraction(0)))
            sent[sender] = sent.get(sender, Fraction(0)) + size
            start, end = int(units.host_of[sender]), int(units.host_of[receiver])
            # What stays within a host takes no time.
            if start != end:
                out[start] = out.get(start, Fraction(0)) + size
                into[end] = into.get(end, Fraction(0)) + size
    cards = network.cards
    times = [size / (network.out_rate[host] * cards) for host, size in out.items()]
    times += [size / (network.in_rate[host] * cards) for host, size in into.items()]
    return max(times, default=Fraction(0))


def _replicas_share_hosts(units: UnitTasks) -> bool:
    """Whether the receivers of every task stand in one host."""
    # One tile whose replicas stand apart spoils it for all,
    # as in the public code.
    rows = range(len(units))
    return all(len(units.hosts_of(units.receivers_of(row))) == 1 for row in rows)
