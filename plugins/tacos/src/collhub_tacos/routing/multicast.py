"""Broadcast, and all-gathers of groups whose other NPUs relay: every chunk on a tree of its own, on links that share the load."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.routing.rules import EVERYONE, RouteRules
from collhub_tacos.schedules.link_schedule import LinkSchedule

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Shallow trees first, which are fast for few chunks; then trees that fill links evenly, which are fast for many.
_ROUNDS = (RouteRules(steepness=1.0, depth_weight=0.9, slack=1.1),) * 7 + (
    RouteRules(steepness=4.0, depth_weight=0.5, slack=1.0),
) * 7


def spread(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    needed: BoolArray,
    seed: int = 0,
    progress: Callable[[float, str], None] = lambda fraction, what: None,
) -> LinkSchedule:
    """Bring chunk x from NPU `origin[x]` to all nodes of `needed` (bool per node); others relay where that helps.

    Every chunk grows a tree from its origin, by the nearest node that lacks it (Takahashi and Matsuyama, 1980), over
    links that cost more the fuller they are; in each of some rounds all trees are grown anew with the others in view and
    put in time, what has farthest to go first, and the fastest round is kept. Who gets a chunk gets it once; relays get what they
    pass on alone. Cost: a search per chunk and round. `network`: of NPUs, or `switches.contracted`. Raises `InputError`
    that names a node that cannot be reached and the cut.
    """
    # Imported here: numba takes a second.
    from collhub_tacos.routing.rounds import Router

    members = needed[: network.num_nodes]
    router = Router(network, times, origin, np.full(len(origin), EVERYONE), members, seed)
    best: LinkSchedule | None = None
    for number, rules in enumerate(_ROUNDS):
        router.improve(rules)
        found = router.plan().farthest_first(times)
        best = found if best is None or found.time_ps < best.time_ps else best
        progress((number + 1) / len(_ROUNDS), "multicast")
    assert best is not None
    return best
