"""All-to-all, scatter and gather: every chunk on a path of its own from its origin to its target.

On links that share the load.
"""

from __future__ import annotations

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.progress import Progress, named, part_of, silent
from collhub_tacos.routing.rules import RouteRules
from collhub_tacos.schedules.link_schedule import LinkSchedule
from hub_core.columns import Int64Array

_MOST_ROUNDS = 8


def route_all(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    target: Int64Array,
    seed: int = 0,
    progress: Progress = silent,
) -> LinkSchedule:
    """Bring chunk x from NPU `origin[x]` to NPU `target[x]`, over others where that helps.

    int64 per chunk. Routes are chosen one chunk at a time, over links that cost more the fuller
    they are, and chosen anew with all others in view for as long as the fullest link gets emptier:
    after the multicommodity flows of Garg and Koenemann (SIAM J. Comput. 37, 2007). Then every
    free link sends what has farthest to go (Andrews et al., JACM 48, 2001). Cost: a search per
    chunk and round, guided by the distance that is left. `network`: of NPUs, or
    `path_network.contracted`. Same seed, same schedule. Raises `InputError` for a target that
    cannot be reached.
    """
    # Imported here: numba takes a second.
    from collhub_tacos.routing.rounds import Router

    nobody = np.zeros(network.num_nodes, np.bool_)
    router = Router(network, times, origin, target, nobody, seed)
    plan, least = router.plan(), 0
    for done in range(_MOST_ROUNDS):
        round_progress = part_of(progress, done, _MOST_ROUNDS + 1)
        router.improve(RouteRules(), named(round_progress, "routing"))
        # Before the first round there are no routes to compare it with.
        if done and router.fullest_ps >= least:
            break
        plan, least = router.plan(), router.fullest_ps
    schedule = plan.farthest_first(times)
    progress(1.0, "routing")
    return schedule
