"""Reduce, reduce-scatter and the first half of an all-reduce: spreading on the transposed network, reversed in time.

A transfer u -> v of a chunk in [t, t + w] on the transposed network becomes v -> u in [T - t - w, T - t] and carries the
partial sum of v. It is right where every node got every chunk just once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.path_network import PathNetwork
from collhub_tacos.schedules.link_schedule import LinkSchedule
from hub_core.topology import Routes, Topology

Int64Array = npt.NDArray[np.int64]


def transposed(network: LinkNetwork) -> LinkNetwork:
    """The network with every link turned round; routes over switches go the same way back."""
    topology = network.topology
    turned = Topology(
        topology.name,
        topology.num_npus,
        topology.num_nodes,
        topology.destination.copy(),
        topology.source.copy(),
        topology.bandwidth_bytes_per_s.copy(),
        topology.latency_s.copy(),
        (),
        topology.node_names,
        topology.groups,
    )
    if not isinstance(network, PathNetwork):
        return LinkNetwork.of(turned)
    links = LinkNetwork.of(turned)
    order = np.lexsort((network.destination, network.source))
    lengths = np.diff(network.paths.indptr)[order]
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    within = np.arange(indptr[-1]) - np.repeat(indptr[:-1], lengths)
    backwards = np.repeat(network.paths.indptr[1:][order] - 1, lengths) - within
    paths = Routes(indptr, _opposite(network.links, links)[network.paths.links[backwards]])
    into = np.searchsorted(network.source[order], np.arange(network.num_nodes + 1)).astype(np.int64)
    row = links.row[paths.links[indptr[:-1]]]
    return PathNetwork(
        turned,
        network.num_npus,
        network.num_nodes,
        into,
        network.destination[order],
        row,
        links,
        paths,
    )


def is_duplex(network: LinkNetwork, times: LinkTimes) -> bool:
    """Whether every link has an opposite one that takes the same times: the network then is its own transpose.

    Not said of networks with switches, where routes there and back may share other links.
    """
    opposite = _opposite(network, network)
    if isinstance(network, PathNetwork) or np.any(opposite < 0):
        return False
    return bool(
        np.array_equal(times.busy, times.busy[opposite])
        and np.array_equal(times.arrival, times.arrival[opposite])
    )


def reversed_schedule(
    schedule: LinkSchedule, network: LinkNetwork, end_ps: int | None = None
) -> LinkSchedule:
    """The reducing schedule on `network` of one that spreads on its transpose (on itself, where it is duplex).

    `end_ps`: time of the whole where `schedule` is a part of it; default its own.
    """
    end = schedule.time_ps if end_ps is None else end_ps
    opposite = _opposite(schedule.network, network)
    return replace(
        schedule,
        network=network,
        link=opposite[schedule.link],
        start=end - schedule.finish,
        finish=end - schedule.start,
        reduces=np.ones(len(schedule), np.bool_),
    )


def _opposite(network: LinkNetwork, other: LinkNetwork) -> Int64Array:
    """For every link u -> v of `network` the link v -> u of `other`, -1 where there is none."""
    key = other.destination * other.num_nodes + other.source
    wanted = network.source * network.num_nodes + network.destination
    if not len(key):
        return np.full(len(wanted), -1, np.int64)
    place = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    return np.where(key[place] == wanted, place, -1)
