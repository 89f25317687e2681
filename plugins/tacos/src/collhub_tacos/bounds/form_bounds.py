"""What an all-reduce takes at least in one form or another: forms that are slower are not made."""

from __future__ import annotations

import numpy as np

from collhub_tacos.setting import Setting

_PICOSECONDS = 1e12


def whole_vector_ps(setting: Setting) -> int:
    """Picoseconds in which the fastest link carries all data, as some link of one tree must."""
    fastest = float(setting.network.topology.bandwidth_bytes_per_s.max())
    return int(setting.collective_bytes / fastest * _PICOSECONDS)


def two_phases_ps(setting: Setting) -> int:
    """Picoseconds of a reduce-scatter and an all-gather: what must enter the weakest NPU.

    On networks without switches whose NPUs all take part.
    """
    topology, ranks = setting.network.topology, setting.collective.num_ranks
    rate = np.bincount(
        topology.destination, topology.bandwidth_bytes_per_s, minlength=topology.num_nodes
    )
    enters = 2 * (ranks - 1) / ranks * setting.collective_bytes
    return int(enters / float(rate.min()) * _PICOSECONDS)
