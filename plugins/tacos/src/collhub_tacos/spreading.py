"""Bring chunks to all who need them: which kernel does it on which network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collhub_tacos.arrival_log import ArrivalLog
from collhub_tacos.network import LinkTimes, Network
from collhub_tacos.schedule import Schedule
from collhub_tacos.setting import Setting
from collhub_tacos.switches import PathNetwork
from hub_core.diagnostics import InputError

__all__ = ["Spread", "spread_out"]

Int64Array = npt.NDArray[np.int64]
Progress = Callable[[float, str], None]

_MOST_SEEDS = 20
_PAIRS_FOR_SEEDS = 400_000


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """Chunk x from NPU `origin[x]` to every node that needs it: a schedule, or the log of a lockstep one.

    `kernel`, `seed`: what made it. `needed`: the NPUs that need all chunks, None for others (routing).
    """

    made: Schedule | ArrivalLog
    times: LinkTimes
    origin: Int64Array
    needed: Int64Array | None
    kernel: str
    seed: int
    is_interrupted: bool = False

    @property
    def time_ps(self) -> int:
        """When the last chunk arrives."""
        return self.made.time_ps

    @property
    def num_transfers(self) -> int:
        """Number of transfers."""
        return self.made.num_transfers if isinstance(self.made, ArrivalLog) else len(self.made)

    def schedule(self, nodes: Sequence[int] | None = None) -> Schedule:
        """All transfers, or those from or to `nodes`."""
        if isinstance(self.made, ArrivalLog):
            return self.made.schedule(nodes)
        return self.made if nodes is None else self.made.touching(nodes)

    def replay(self, progress: Progress) -> None:
        """Check it on its own arrays, without expanding a log. Raises `InputError` that names the first offence."""
        # Imported here: numba takes a second.
        from collhub_tacos.replay import replay, replay_log

        if isinstance(self.made, ArrivalLog):
            replay_log(self.made, self.times, self.origin, lambda fraction: progress(fraction, "replaying"))
        elif self.needed is not None:
            chunk = np.arange(len(self.origin))
            wanted = (np.repeat(chunk, len(self.needed)), np.tile(self.needed, len(chunk)))
            replay(self.made, self.times, self.origin, wanted)


def spread_out(setting: Setting, network: Network, times: LinkTimes, origin: Int64Array, progress: Progress) -> Spread:
    """Bring chunk x from NPU `origin[x]` to all members of the setting.

    Where all NPUs start with something and all need everything, it is an all-gather: in lockstep where all links are
    alike, else by events. Everything else, and networks with switches, is multicast. Raises `InputError` for a network
    that does not connect those who must be.
    """
    if isinstance(network, PathNetwork) or setting.has_relays or len(np.unique(origin)) < network.num_npus:
        return _multicast(setting, network, times, origin, progress)
    if np.all(times.busy == times.busy[:1]) and np.all(times.arrival == times.arrival[:1]):
        return _in_lockstep(setting, network, times, origin, progress)
    # Imported here and below: numba takes a second.
    from collhub_tacos.heterogeneous import best_all_gather

    number = setting.seeds or default_seeds(network.num_links * len(origin))
    schedule = best_all_gather(network, times, origin, number, setting.seed, setting.threads, progress)
    return Spread(schedule, times, origin, setting.members, "events", setting.seed)


def default_seeds(pairs: int) -> int:
    """How many seeds are worth their time, by the number of (link, chunk) pairs."""
    return max(1, min(_MOST_SEEDS, _PAIRS_FOR_SEEDS // max(1, pairs)))


def _in_lockstep(setting: Setting, network: Network, times: LinkTimes, origin: Int64Array, progress: Progress) -> Spread:
    from collhub_tacos.homogeneous import best_all_gather, memory_bytes

    needed = memory_bytes(network, len(origin))
    if needed > setting.memory:
        message = f"the schedule takes {needed / 2**30:.1f} GiB, the option memory allows {setting.memory / 2**30:.1f} GiB"
        raise InputError(message, cure="give -O memory=..., or fewer chunks", code="memory")
    found = best_all_gather(
        network,
        int(times.busy[0]),
        origin,
        arrival_ps=int(times.arrival[0]),
        seeds=setting.seeds,
        first_seed=setting.seed,
        threads=setting.threads,
        progress=progress,
    )
    kernel = "symmetric" if found.is_symmetric else "lockstep"
    return Spread(found.log, times, origin, setting.members, kernel, found.seed, found.is_interrupted)


def _multicast(setting: Setting, network: Network, times: LinkTimes, origin: Int64Array, progress: Progress) -> Spread:
    from collhub_tacos.multicast import spread

    needed = np.zeros(network.num_nodes, np.bool_)
    needed[setting.members] = True
    number = setting.seeds or default_seeds(network.num_links * len(origin))
    best: Spread | None = None
    try:
        for tried, seed in enumerate(range(setting.seed, setting.seed + number)):
            schedule = spread(network, times, origin, needed, seed)
            if best is None or schedule.time_ps < best.time_ps:
                best = Spread(schedule, times, origin, setting.members, "multicast", seed)
            progress((tried + 1) / number, "multicast")
    except KeyboardInterrupt:
        if best is None:
            raise
        return replace(best, is_interrupted=True)
    assert best is not None
    return best
