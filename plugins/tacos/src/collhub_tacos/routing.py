"""All-to-all, scatter and gather: every chunk on a way of its own from its origin to its target, on links that share the load."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from collhub_tacos.network import LinkTimes, Network
from collhub_tacos.schedule import Schedule

__all__ = ["route_all"]

Int64Array = npt.NDArray[np.int64]

_ROUNDS = 4


def route_all(
    network: Network,
    times: LinkTimes,
    origin: Int64Array,
    target: Int64Array,
    seed: int = 0,
    progress: Callable[[float, str], None] = lambda fraction, what: None,
) -> Schedule:
    """Bring chunk x from NPU `origin[x]` to NPU `target[x]`, over other NPUs where that helps; int64 per chunk.

    Routes are chosen one chunk at a time, over links that cost more the fuller they are, and chosen anew in some rounds
    with all others in view: the way of multicommodity flows by exponential lengths (Garg and Koenemann, 2007). Then
    every free link sends what has farthest to go (Leung, Meyer auf der Heide and others call it farthest-to-go). Cost:
    a search per chunk and round, guided by the distance that is left. `network`: of NPUs, or `switches.contracted`.
    Raises `InputError` for a target that cannot be reached.
    """
    # Imported here: numba takes a second.
    from collhub_tacos.routing_rounds import Router, Rules

    router = Router(network, times, origin, target, np.zeros(network.num_nodes, np.bool_), seed)
    for done in range(_ROUNDS):
        router.improve(Rules(), partial(_report, progress, done))
    schedule = router.plan().farthest_first(times)
    progress(1.0, "routing")
    return schedule


def _report(progress: Callable[[float, str], None], done: int, fraction: float) -> None:
    progress((done + fraction) / (_ROUNDS + 1), "routing")
