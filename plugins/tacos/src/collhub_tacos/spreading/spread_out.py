"""Bring chunks to all who need them: which kernel does it on which network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.path_network import PathNetwork
from collhub_tacos.networks.translation import Translations
from collhub_tacos.schedules.arrival_log import ArrivalLog
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.setting import Setting
from collhub_tacos.spreading.seed_search import best_of_seeds
from hub_core.diagnostics import InputError

Int64Array = npt.NDArray[np.int64]
Progress = Callable[[float, str], None]

_MOST_SEEDS = 20
# Numbers of (link, chunk) pairs, by which the cost of a kernel goes, and of transfers.
_PAIRS_FOR_SEEDS = 400_000
_PAIRS_FOR_TREE_SEEDS, _MOST_TREE_SEEDS = 40_000, 4
_PAIRS_FOR_SYMMETRY = 20_000_000
_TRANSFERS_TO_RETIME = 2_000_000


@dataclass(frozen=True, slots=True, eq=False)
class SpreadResult:
    """Chunk x from NPU `origin[x]` to every node that needs it: a schedule, or the log of a lockstep one.

    `kernel`, `seed`: what made it. `needed`: the NPUs that need all chunks, None for others (routing).
    """

    made: LinkSchedule | ArrivalLog
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

    def schedule(self, nodes: Sequence[int] | None = None) -> LinkSchedule:
        """All transfers, or those from or to `nodes`."""
        if isinstance(self.made, ArrivalLog):
            return self.made.schedule(nodes)
        return self.made if nodes is None else self.made.touching(nodes)

    def replay(self, progress: Progress) -> bool:
        """Check it on its own arrays, without expanding a log; False where there is no way: at switches, and for routes.

        Raises `InputError` that names the first offence.
        """
        # Imported here: numba takes a second.
        from collhub_tacos.schedules.replay import replay, replay_log

        if isinstance(self.made, ArrivalLog):
            replay_log(
                self.made, self.times, self.origin, lambda fraction: progress(fraction, "replaying")
            )
            return True
        if self.needed is None or isinstance(self.made.network, PathNetwork):
            return False
        chunk = np.arange(len(self.origin))
        replay(
            self.made,
            self.times,
            self.origin,
            (np.repeat(chunk, len(self.needed)), np.tile(self.needed, len(chunk))),
        )
        return True


def spread_out(
    setting: Setting, network: LinkNetwork, times: LinkTimes, origin: Int64Array, progress: Progress
) -> SpreadResult:
    """Bring chunk x from NPU `origin[x]` to all members of the setting, by the kernels that fit, the fastest kept.

    Raises `InputError` for a network that does not connect those who must be, and for a log beyond the setting's memory.
    """
    best: SpreadResult | None = None
    try:
        for kernel in _kernels(setting, network, times, origin):
            found = kernel(setting, network, times, origin, progress)
            best = found if best is None or found.time_ps < best.time_ps else best
            if found.is_interrupted:
                break
    except KeyboardInterrupt:
        if best is None:
            raise
        return replace(best, is_interrupted=True)
    assert best is not None
    return best


_Kernel = Callable[[Setting, LinkNetwork, LinkTimes, Int64Array, Progress], SpreadResult]


def _kernels(
    setting: Setting, network: LinkNetwork, times: LinkTimes, origin: Int64Array
) -> Iterator[_Kernel]:
    """Switches: trees on loaded links. An all-gather of all NPUs on links that are alike: lockstep, whose log stays small.

    Everything else: events; and one node's part for all, where the network looks alike from every node.
    """
    if isinstance(network, PathNetwork):
        yield _on_trees
        return
    is_everywhere = not setting.has_relays and len(np.unique(origin)) == network.num_npus
    is_uniform = bool(
        np.all(times.busy == times.busy[:1]) and np.all(times.arrival == times.arrival[:1])
    )
    if is_everywhere and is_uniform:
        yield _in_lockstep
        if times.is_uniform:
            return
    pairs = network.num_links * len(origin)
    if is_everywhere and pairs <= _PAIRS_FOR_SYMMETRY:
        translations = Translations.of(network, origin, times)
        if translations is not None:
            yield partial(_symmetric, translations)
    if not (is_everywhere and is_uniform) or pairs <= _PAIRS_FOR_SEEDS:
        yield _by_events


def _symmetric(
    translations: Translations,
    setting: Setting,
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    progress: Progress,
) -> SpreadResult:
    # Imported here and below: numba takes a second.
    from collhub_tacos.spreading.heterogeneous import fewest_ps
    from collhub_tacos.spreading.symmetric import find_all_gather

    goal = fewest_ps(network, times, origin)
    found = find_all_gather(
        network,
        translations,
        times,
        origin,
        setting.seeds or _MOST_SEEDS,
        setting.seed,
        goal,
        progress,
    )
    return SpreadResult(
        found.result, times, origin, setting.members, "symmetric", found.seed, found.is_interrupted
    )


def _by_events(
    setting: Setting, network: LinkNetwork, times: LinkTimes, origin: Int64Array, progress: Progress
) -> SpreadResult:
    from collhub_tacos.spreading.heterogeneous import find_all_gather

    needed = _members_of(setting, network)
    number = setting.seeds or _default_seeds(network.num_links * len(origin))
    found = find_all_gather(
        network, times, origin, number, setting.seed, setting.threads, progress, needed
    )
    return SpreadResult(
        found.result, times, origin, setting.members, "events", found.seed, found.is_interrupted
    )


def _in_lockstep(
    setting: Setting, network: LinkNetwork, times: LinkTimes, origin: Int64Array, progress: Progress
) -> SpreadResult:
    from collhub_tacos.spreading.homogeneous import best_all_gather, memory_bytes

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
    spread = SpreadResult(
        found.log, times, origin, setting.members, kernel, found.seed, found.is_interrupted
    )
    if times.is_uniform or spread.num_transfers > _TRANSFERS_TO_RETIME:
        return spread
    from collhub_tacos.schedules.retiming import retimed

    return replace(spread, made=retimed(spread.schedule(), times))


def _on_trees(
    setting: Setting, network: LinkNetwork, times: LinkTimes, origin: Int64Array, progress: Progress
) -> SpreadResult:
    from collhub_tacos.routing.multicast import spread

    needed = _members_of(setting, network)
    number = setting.seeds or max(
        1, min(_MOST_TREE_SEEDS, _PAIRS_FOR_TREE_SEEDS // (network.num_links * len(origin)))
    )
    found = best_of_seeds(
        lambda seed, report: spread(
            network, times, origin, needed, seed, lambda fraction, what: report(fraction)
        ),
        lambda schedule: schedule.time_ps,
        range(setting.seed, setting.seed + number),
        goal=0,
        threads=setting.threads,
        progress=lambda fraction: progress(fraction, "multicast"),
    )
    return SpreadResult(
        found.result, times, origin, setting.members, "trees", found.seed, found.is_interrupted
    )


def _members_of(setting: Setting, network: LinkNetwork) -> npt.NDArray[np.bool_]:
    """Who takes part: bool per node."""
    is_member = np.zeros(network.num_nodes, np.bool_)
    is_member[setting.members] = True
    return is_member


def _default_seeds(pairs: int) -> int:
    """How many seeds are worth their time, by the number of (link, chunk) pairs."""
    return max(1, min(_MOST_SEEDS, _PAIRS_FOR_SEEDS // max(1, pairs)))
