"""Which ways may still be the fastest with more pieces, by how far behind they were with fewer."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from collhub_tacos.networks.switches import PathNetwork
from collhub_tacos.seed_search import Progress
from collhub_tacos.setting import Setting
from hub_core.columns import Int64Array, IntArray, expanded_ranges, run_starts
from hub_core.model import Algorithm, Collective, JsonValue, StepKind, message_bytes
from hub_core.network import Occupancy
from hub_core.plugin_api import SynthesisRequest
from hub_core.schedules import Chunks, Transfers, algorithm_of

# So many times the fastest of as many pieces is far behind, by a simulator and by the own clock of
# plans, and so often in a row.
_FAR, _FAR_OF_PARTS = 1.4, 1.12
_OFTEN = 2
# A way that gains less than this by twice the pieces has its pipeline full: it does not catch up.
_FASTER = 0.9
# Numbers of pieces that differ by less say nothing of that.
_APART = 1.5
# Twice the pieces gain half as much once more where a pipeline fills: a way that is so far behind
# after so many times its last gain does not catch up, either.
_CATCHES_UP, _GAINS_LEFT = 1.02, 2.0


@dataclass(frozen=True, slots=True)
class Way:
    """How candidates are made, whatever the number of pieces.

    `form`: of the algorithm; `place`: of its spreading among those of the form; `rule`: of windows.
    """

    form: str
    place: int
    rule: Hashable


class Prospects:
    """Times of ways by number of pieces.

    A way has none left when it was far behind several times in a row, and gained little; or behind
    by more than what it may still gain. The fastest way of a number of pieces always goes on.
    """

    def __init__(self, far: float = _FAR) -> None:
        self._far = far
        self._times: dict[int, dict[Way, float]] = {}
        self._parts: dict[str, Prospects] = {}

    def of_part(self, name: str) -> Prospects:
        """Those of the ways of a part of the work, whose times are an account of their own."""
        return self._parts.setdefault(name, Prospects(_FAR_OF_PARTS))

    def note(self, way: Way, pieces: int, time_ps: int | None) -> None:
        """What a way takes; None where that is more than anybody would compare."""
        self._times.setdefault(pieces, {})[way] = math.inf if time_ps is None else time_ps

    def least_ps(self, pieces: int) -> float:
        """What the fastest way of so many pieces takes, infinite for none."""
        times = self._times.get(pieces, {})
        return min(times.values(), default=math.inf)

    def are_good(self, way: Way, pieces: int) -> bool:
        """Whether a way should be tried with so many pieces, after all that had fewer."""
        # A rung that left the way out says nothing of it.
        tried = [rung for rung in sorted(self._times) if rung < pieces and way in self._times[rung]]
        if len(tried) < _OFTEN:
            return True
        if not any(self._may_catch_up(way, tried, rung) for rung in tried[-_OFTEN:]):
            return False
        behind = [self._behind(way, rung) for rung in tried[-_OFTEN:]]
        return min(behind) <= self._far or self._gains(way, tried)

    def _may_catch_up(self, way: Way, tried: Sequence[int], rung: int) -> bool:
        """Whether a way could reach what was the fastest, by what it had gained by then."""
        time_ps, fewer = self._times[rung][way], [one for one in tried if one <= rung / _APART]
        if not fewer or math.isinf(time_ps):
            return True
        gained_ps = max(0.0, self._times[fewer[-1]][way] - time_ps)
        fastest_ps = min(self._times[rung].values())
        return time_ps - _GAINS_LEFT * gained_ps <= _CATCHES_UP * fastest_ps

    def _behind(
        self,
        way: Way,
        pieces: int,
    ) -> float:
        """What a way takes by what the fastest takes with as many pieces."""
        times = self._times[pieces]
        return times[way] / min(times.values())

    def _gains(self, way: Way, tried: Sequence[int]) -> bool:
        """Whether a way was made much faster the last time that it had many more pieces."""
        last = tried[-1]
        fewer = [rung for rung in tried if rung <= last / _APART]
        if not fewer:
            return True
        enough: float = _FASTER ** math.log2(last / fewer[-1])
        return self._times[last][way] < enough * self._times[fewer[-1]][way]

    def has_place(self, form: str, place: int, pieces: int) -> bool:
        """Whether a spreading should be made, for one of its rules; a new one should."""
        ways = {way for times in self._times.values() for way in times}
        alike = [way for way in ways if (way.form, way.place) == (form, place)]
        return not alike or any(self.are_good(way, pieces) for way in alike)


@dataclass(frozen=True, slots=True)
class Trials:
    """Plans of one kind with one number of pieces, by their places among all of the kind."""

    prospects: Prospects = field(default_factory=Prospects)
    pieces: int = 1

    def is_worth(self, place: int) -> bool:
        """Whether a plan should be put in time, after what it took with fewer pieces."""
        return self.prospects.are_good(Way("plan", place, None), self.pieces)

    def note(self, place: int, time_ps: int) -> None:
        """What a plan takes, in picoseconds."""
        self.prospects.note(Way("plan", place, None), self.pieces, time_ps)


Nodes = Sequence[int] | None
"""NPUs whose transfers are wanted, None for all."""


@dataclass(frozen=True, slots=True, eq=False)
class SynthesisCandidate:
    """Possible answer. `pieces`: chunks of a share; `time_ps`: picoseconds; `details`: for users.

    `transfers(nodes)`: all of them, or those that touch some nodes. `replay(progress)`: check the
    whole on the synthesizer's own arrays, where not all steps are made; False where it cannot.
    `whole`: the algorithm itself, where it does not follow from transfers, or is known already;
    `whole_ns`: its nanoseconds, where they are known. `is_timed`: whether the
    times take it into account that messages meet; else a simulator has to tell. `way`: where
    several numbers of pieces are tried.
    """

    form: str
    pieces: int
    collective: Collective
    chunks: Chunks
    num_transfers: int
    time_ps: int
    transfers: Callable[[Nodes], Transfers]
    replay: Callable[[Progress], bool]
    details: Mapping[str, JsonValue] = field(default_factory=dict)
    is_interrupted: bool = False
    whole: Algorithm | None = None
    whole_ns: int | None = None
    is_timed: bool = True
    way: Way | None = None


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
