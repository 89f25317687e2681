"""The ideal network of a resharding as a topology that simulators take."""

from __future__ import annotations

import numpy as np
from collhub_shardings import UnitTasks

from collhub_reshard.scheduling.host_network import HostNetwork
from hub_core.network import Topology

# Of links within a host: no message of a size that exists takes a nanosecond.
_INSTANT_BYTES_PER_S = 9e17


def ideal_topology(units: UnitTasks, network: HostNetwork) -> Topology:
    """Devices on a switch a host, and the switches on one in the middle that is never busy.

    Between hosts a message passes the card of the sender's host out, then that of the receiver's
    host in. Devices that no mesh names stand alone on a switch of their own.
    """
    num_npus = len(units.host_of)
    hosts = sorted(set(units.host_of.tolist()))
    middle = num_npus + len(hosts)
    links = []
    for device, host in enumerate(units.host_of.tolist()):
        switch = num_npus + hosts.index(host)
        links += [(device, switch, _INSTANT_BYTES_PER_S, 0.0)]
        links += [(switch, device, _INSTANT_BYTES_PER_S, 0.0)]
    for at, host in enumerate(hosts):
        # Idle devices get any card.
        known = host if host in network.out_rate else next(iter(network.out_rate))
        out = float(network.out_rate[known] * network.cards)
        into = float(network.in_rate[known] * network.cards)
        links += [(num_npus + at, middle, out, network.latency_s)]
        links += [(middle, num_npus + at, into, 0.0)]
    source, destination, rate, latency = zip(*links, strict=True)
    return Topology(
        "ideal",
        num_npus,
        middle + 1,
        np.asarray(source, np.int64),
        np.asarray(destination, np.int64),
        np.asarray(rate, np.float64),
        np.asarray(latency, np.float64),
    )
