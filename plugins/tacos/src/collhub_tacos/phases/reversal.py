"""Reversal in time: reductions are spreadings on the transposed network, run backwards.

A transfer u -> v of a chunk in [t, t + w] on the transposed network becomes v -> u in
[T - t - w, T - t] and carries the partial sum of v, as TACOS makes a reduce-scatter of an
all-gather (Won et al., MICRO 2024). It is right where every node got every chunk just once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork
from collhub_tacos.networks.transposition import opposite_links
from collhub_tacos.schedules.link_schedule import LinkSchedule


def reversed_schedule(
    schedule: LinkSchedule, network: LinkNetwork, end_ps: int | None = None
) -> LinkSchedule:
    """Reducing schedule on `network` of one that spreads on its transpose.

    On itself, where it is duplex. `end_ps`: time of the whole where `schedule` is a part of it;
    default its own.
    """
    end = schedule.time_ps if end_ps is None else end_ps
    opposite = opposite_links(schedule.network, network)
    return replace(
        schedule,
        network=network,
        link=opposite[schedule.link],
        start=end - schedule.finish,
        finish=end - schedule.start,
        reduces=np.ones(len(schedule), np.bool_),
    )
