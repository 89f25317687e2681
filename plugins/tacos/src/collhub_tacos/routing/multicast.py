"""Broadcast, and all-gathers of groups whose other NPUs relay, on trees that share the load."""

from __future__ import annotations

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.progress import Progress, silent
from collhub_tacos.routing.rules import EVERYONE, RouteRules
from collhub_tacos.schedules.link_schedule import LinkSchedule
from hub_core.columns import BoolArray, Int64Array

# Shallow trees first, which are fast for few chunks; then trees that fill links evenly, which are
# fast for many.
_SHALLOW = RouteRules(steepness=1.0, depth_weight=0.9, slack=1.1)
_EVEN = RouteRules(steepness=4.0, depth_weight=0.5, slack=1.0)
_ROUNDS = (_SHALLOW,) * 7 + (_EVEN,) * 7


def spread(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    needed: BoolArray,
    seed: int = 0,
    progress: Progress = silent,
) -> LinkSchedule:
    """Bring chunk x from NPU `origin[x]` to all nodes of `needed` (bool per node).

    Others relay where that helps, and get what they pass on alone; who gets a chunk gets it once.
    Every chunk grows a tree from its origin, by the nearest node that lacks it (Takahashi and
    Matsuyama, 1980), over links that cost more the fuller they are; in each of some rounds all
    trees are grown anew with the others in view and put in time, what has farthest to go first,
    and the fastest round is kept. Cost: a search per chunk and round. `network`: of NPUs, or
    `path_network.contracted`. Raises `InputError` that names a node that cannot be reached and the
    cut.
    """
    # Imported here: numba takes a second.
    from collhub_tacos.routing.rounds import Router

    members = needed[: network.num_nodes]
    targets = np.full(len(origin), EVERYONE)
    router = Router(network, times, origin, targets, members, seed)
    best: LinkSchedule | None = None
    for done, rules in enumerate(_ROUNDS, start=1):
        router.improve(rules)
        found = router.plan().farthest_first(times)
        if best is None or found.time_ps < best.time_ps:
            best = found
        progress(done / len(_ROUNDS), "multicast")
    assert best is not None
    return best
