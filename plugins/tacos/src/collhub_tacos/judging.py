"""Judge candidates: as an algorithm, by its own time and, where that may differ, a simulator's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collhub_tacos.networks.path_network import PathNetwork
from collhub_tacos.phases.candidate import SynthesisCandidate
from collhub_tacos.setting import Setting
from hub_core.columns import Int64Array, IntArray, expanded_ranges, run_starts
from hub_core.model import Algorithm, StepKind, message_bytes
from hub_core.network import Occupancy
from hub_core.plugin_api import SynthesisRequest
from hub_core.schedules import Transfers, algorithm_of

MOST_JUDGED = 1_000_000
"""Transfers up to which the whole is put in time even where the steps of some ranks are wanted
alone, and up to which the simulator is asked."""
# The own clock is not that wrong: what takes so much longer by it is not simulated.
_HOPELESS = 1.3


def algorithm_for(
    setting: Setting,
    candidate: SynthesisCandidate,
    transfers: Transfers,
    wanted: tuple[int, ...] | None,
) -> Algorithm:
    """Algorithm of some transfers of a candidate, with the steps of the ranks `wanted`."""
    return algorithm_of(
        candidate.collective,
        candidate.chunks,
        transfers,
        npus=setting.members.tolist(),
        num_npus=setting.network.num_npus,
        wanted=wanted,
        collective_bytes=setting.collective_bytes,
    )


def whole_with_time(
    setting: Setting, request: SynthesisRequest, candidate: SynthesisCandidate
) -> tuple[Algorithm, int]:
    """Algorithm with all its steps, and its nanoseconds: the simulator's where that counts more."""
    if candidate.whole is not None:
        # Of what no own clock has put in time there is the simulator's word alone.
        time_ns = candidate.whole_ns or request.simulate(candidate.whole)
        return candidate.whole, time_ns or whole_ns(candidate.time_ps)
    transfers = candidate.transfers(None)
    algorithm = algorithm_for(setting, candidate, transfers, None)
    judged = judged_ns(setting, request, algorithm)
    return algorithm, judged or whole_ns(last_finish_ps(transfers))


def judged_form(
    setting: Setting, request: SynthesisRequest, candidate: SynthesisCandidate
) -> tuple[int, SynthesisCandidate]:
    """What a form takes beside others, by the simulator where its word counts more.

    With the form as it was judged: its algorithm need not be made again.
    """
    # Too much to simulate.
    if candidate.num_transfers > MOST_JUDGED:
        return whole_ns(candidate.time_ps), candidate
    algorithm, time_ns = whole_with_time(setting, request, candidate)
    return time_ns, replace(candidate, whole=algorithm, whole_ns=time_ns)


def compared(
    setting: Setting, request: SynthesisRequest, candidate: SynthesisCandidate, limit_ps: int | None
) -> tuple[int | None, SynthesisCandidate]:
    """Picoseconds by which a candidate is compared; None where it is far above `limit_ps`.

    By the simulator, and what the fullest link gains as simulators drop fractions of nanoseconds:
    else the tiniest chunks would seem to take no time. None, too, for what has no time of its own
    where there is no simulator. With the candidate as it was judged.
    """
    algorithm, own_ps = candidate.whole, None
    if algorithm is None:
        transfers = candidate.transfers(None)
        own_ps = last_finish_ps(transfers)
        if limit_ps is not None and own_ps > _HOPELESS * limit_ps:
            return None, candidate
        algorithm = algorithm_for(setting, candidate, transfers, None)
        judged = judged_ns(setting, request, algorithm)
    else:
        judged = request.simulate(algorithm)
    if judged is not None:
        made = replace(candidate, whole=algorithm, whole_ns=judged)
        return 1000 * judged + _dropped_ps(setting, algorithm), made
    return (own_ps if candidate.is_timed else None), candidate


def _dropped_ps(setting: Setting, algorithm: Algorithm) -> int:
    """Fractions of nanoseconds of all messages on a link together, of the link with most.

    Where switches multicast (reduce), what a rank sends (adds up) of one place goes over a link
    once.
    """
    network, steps = setting.network, algorithm.steps
    sends = np.flatnonzero(steps.is_kind(StepKind.SEND))
    pair = steps.peer[sends].astype(np.int64) * network.num_nodes + steps.rank[sends]
    # Links stand by destination, then by source, so that these keys ascend.
    arc = np.searchsorted(network.destination * network.num_nodes + network.source, pair)
    size = message_bytes(
        setting.collective_bytes, algorithm.collective.unit_count, steps.count[sends]
    )
    links = network
    if isinstance(network, PathNetwork):
        first, lengths = network.paths.indptr[arc], np.diff(network.paths.indptr)[arc]
        arc = network.paths.links[expanded_ranges(first, lengths)]
        size, links = np.repeat(size, lengths), network.links
        sends = np.repeat(sends, lengths)
    busy_ns = 1e9 * size / links.topology.bandwidth_bytes_per_s[links.row[arc]]
    dropped = np.bincount(arc, busy_ns % 1.0, minlength=links.num_links)
    topology = network.topology
    for is_able, end in ((topology.multicast, steps.rank), (topology.reduction, steps.peer)):
        if is_able:
            place = (arc, end[sends], steps.src_buffer[sends], steps.src_offset[sends])
            once = _first_of_each(place)
            least = np.bincount(arc[once], busy_ns[once] % 1.0, minlength=links.num_links)
            dropped = np.minimum(dropped, least)
    return int(1000 * dropped.max(initial=0.0))


def _first_of_each(columns: Sequence[IntArray]) -> Int64Array:
    """The first row of every kind of rows that agree in all columns."""
    order = np.lexsort(tuple(columns))
    starts = run_starts(*(column[order] for column in columns))
    found: Int64Array = order[starts]
    return found


def is_judged(setting: Setting, request: SynthesisRequest) -> bool:
    """Whether the simulator's time counts more than the own one.

    That is where the order of what happens in one instant counts: where links are free before
    messages arrive, and where messages meet at switches. Not for what was made for another network
    than that of the request.
    """
    is_pipelined = setting.occupancy is not Occupancy.ALPHA_BETA
    meets_at_switches = isinstance(setting.network, PathNetwork)
    is_other_network = setting.network.topology.name != request.topology.name
    return (is_pipelined or meets_at_switches) and not is_other_network


def judged_ns(setting: Setting, request: SynthesisRequest, algorithm: Algorithm) -> int | None:
    """Simulator's time where it `is_judged`, else None; None too for what is too large."""
    # A transfer is a send and a receive, at least.
    if not is_judged(setting, request) or len(algorithm.steps) > 2 * MOST_JUDGED:
        return None
    return request.simulate(algorithm)


def last_finish_ps(transfers: Transfers) -> int:
    """When the last transfer arrives."""
    return int(transfers.finish.max(initial=0))


def whole_ns(time_ps: int) -> int:
    """Nanoseconds, rounded up."""
    return -(-time_ps // 1000)
