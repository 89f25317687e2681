"""Which devices send and receive a box: entries of hosts, and receivers that have it at hand."""

from __future__ import annotations

from dataclasses import dataclass

from collhub_shardings import UnitTasks

from collhub_reshard.lowering.transfers import Audience


@dataclass(frozen=True, slots=True)
class Nearby:
    """Receivers that need no card: `own` hold the box, `served` get it from a device of their host.

    `served`: (sender, receiver).
    """

    own: tuple[int, ...]
    served: tuple[tuple[int, int], ...]


def nearby(units: UnitTasks, row: int) -> Nearby:
    """The receivers of a unit task whose host has the box."""
    # Replicas on one host need no card of it.
    holders = units.senders_of(row).tolist()
    # Of several holders on a host the first one serves.
    by_host = {int(units.host_of[device]): device for device in reversed(holders)}
    own, served = [], []
    for receiver in units.receivers_of(row).tolist():
        host = int(units.host_of[receiver])
        if receiver in holders:
            own.append(receiver)
        # A box that is anywhere on the host does not cross.
        elif host in by_host:
            served.append((by_host[host], receiver))
    return Nearby(tuple(own), tuple(served))


def audience(
    units: UnitTasks,
    row: int,
    sender_host: int,
    receiver_hosts: tuple[int, ...],
) -> Audience:
    """The sender on a host, and the receivers on hosts that lack the box."""
    # Any holder on the host would do: they share its card.
    senders = units.senders_of(row)
    sender = int(senders[units.host_of[senders] == sender_host][0])
    # In the order in which the chain passes them.
    hosts: dict[int, list[int]] = {host: [] for host in receiver_hosts}
    for receiver in units.receivers_of(row).tolist():
        host = int(units.host_of[receiver])
        # Other receivers have the box at hand.
        if host in hosts:
            hosts[host].append(receiver)
    return Audience(sender, hosts)
