"""Judge candidates: as an algorithm, by its own time and, where that may differ, a simulator's."""

from __future__ import annotations

from collhub_schedules import Transfers, algorithm_of

from collhub_tacos.networks.path_network import PathNetwork
from collhub_tacos.phases.candidate import SynthesisCandidate
from collhub_tacos.setting import Setting
from hub_core.model import Algorithm
from hub_core.network import Occupancy
from hub_core.plugin_api import SynthesisRequest

MOST_JUDGED = 1_000_000
"""Transfers up to which the whole is put in time even where the steps of some ranks are wanted
alone, and up to which the simulator is asked."""


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


def candidate_time_ns(
    setting: Setting, request: SynthesisRequest, candidate: SynthesisCandidate, *, is_alone: bool
) -> int:
    """What a form takes beside others, by the simulator where its word counts more."""
    # Nothing to compare with, or too much to simulate.
    if is_alone or candidate.num_transfers > MOST_JUDGED:
        return whole_ns(candidate.time_ps)
    transfers = candidate.transfers(None)
    algorithm = algorithm_for(setting, candidate, transfers, None)
    judged = judged_ns(setting, request, algorithm)
    return judged or whole_ns(last_finish_ps(transfers))


def judged_ns(setting: Setting, request: SynthesisRequest, algorithm: Algorithm) -> int | None:
    """Simulator's time where the order of what happens in one instant counts, else None.

    The own time may differ from it there, that is where links are free before messages arrive, and
    where messages meet at switches. None for what was made for another network than that of the
    request, too, and for what is too large.
    """
    is_pipelined = setting.occupancy is not Occupancy.ALPHA_BETA
    meets_at_switches = isinstance(setting.network, PathNetwork)
    if not is_pipelined and not meets_at_switches:
        return None
    is_other_network = setting.network.topology.name != request.topology.name
    # A transfer is a send and a receive, at least.
    if is_other_network or len(algorithm.steps) > 2 * MOST_JUDGED:
        return None
    return request.simulate(algorithm)


def last_finish_ps(transfers: Transfers) -> int:
    """When the last transfer arrives."""
    return int(transfers.finish.max(initial=0))


def whole_ns(time_ps: int) -> int:
    """Nanoseconds, rounded up."""
    return -(-time_ps // 1000)
