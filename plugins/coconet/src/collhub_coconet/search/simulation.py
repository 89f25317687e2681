"""Simulated times of programs, with the best algorithm, chunk count and protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from collhub_coconet.lowering.algorithms import KINDS, Choice
from collhub_coconet.lowering.timing import Machine, makespan
from collhub_coconet.program.operations import Kind
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding
from collhub_coconet.search.collective_times import PROTOCOLS, Means, Protocol
from collhub_coconet.search.cost_models import Timing
from collhub_coconet.search.explore import Candidate, Exploration
from collhub_coconet.search.rates import Rates
from hub_core import HubError, Registry, Topology

ALGORITHMS = ("ring", "halving-doubling", "double-binary-tree")
CHUNKS = (1, 4, 16)
_EVERYTHING = "all collectives"


@dataclass(slots=True)
class Simulation:
    """Times programs on the simulator of workloads.

    `failed`: why a program could not be simulated, in one line; empty so far.
    """

    rates: Rates
    topology: Topology
    registry: Registry
    failed: str = ""
    _networks: dict[str, Topology] = field(default_factory=dict)

    def timing(self, program: Program, binding: Binding) -> Timing | None:
        """The best time found: protocols, then algorithms, then chunk counts, one after another.

        All collectives of the program are carried out by the same means. None where it cannot be
        simulated.
        """
        # Coordinate descent: all combinations would be three times as many.
        best: tuple[float, Means] | None = None
        means = Means(ALGORITHMS[0], PROTOCOLS[0].name, CHUNKS[0])
        for stage in ("protocol", "algorithm", "chunks"):
            start = best[1] if best else means
            for other in _others(start, stage):
                seconds = self._seconds(program, binding, other)
                if seconds is not None and (best is None or seconds < best[0]):
                    best = seconds, other
        if best is None:
            return None
        return Timing(best[0], {_EVERYTHING: best[1]})

    def _seconds(self, program: Program, binding: Binding, means: Means) -> float | None:
        """Simulated seconds by one means; None where it does not fit."""
        # Flat graphs have no algorithms for some communications.
        strange = [one for one in program.operations if one.is_communication]
        strange = [one for one in strange if one.kind not in (*KINDS, Kind.SEND)]
        if strange:
            self.failed = f"{strange[0].name} is {strange[0].kind}, which has no flat graph"
            return None
        choice = Choice(means.algorithm, means.chunks, tiles=max(means.chunks, 1))
        # Tiles of computations are as many as chunks of collectives.
        machine = Machine(
            self.rates.operations_per_s,
            self.rates.memory_bytes_per_s,
            self.rates.launch_s,
            topology=self._network(means.protocol),
        )
        try:
            found = makespan(program, binding, machine, {"": choice}, registry=self.registry)
        # Halving needs a power of two, for one.
        except HubError as error:
            self.failed = self.failed or str(error)
            return None
        return found.time_s

    def _network(self, name: str) -> Topology:
        """The network as a protocol sees it: less data, and a latency for every step."""
        if name not in self._networks:
            protocol = next(one for one in PROTOCOLS if one.name == name)
            self._networks[name] = _seen_by(self.topology, protocol)
        return self._networks[name]


def _others(means: Means, stage: str) -> Iterator[Means]:
    """The means with all values of one of its parts."""
    if stage == "protocol":
        yield from (replace(means, protocol=one.name) for one in PROTOCOLS)
    elif stage == "algorithm":
        yield from (replace(means, algorithm=one) for one in ALGORITHMS if one != means.algorithm)
    else:
        yield from (replace(means, chunks=one) for one in CHUNKS if one != means.chunks)


def _seen_by(topology: Topology, protocol: Protocol) -> Topology:
    # Regular networks state their rates twice: by link, and by dimension.
    dimensions = tuple(
        replace(
            one,
            bandwidth_bytes_per_s=one.bandwidth_bytes_per_s * protocol.data_share,
            latency_s=one.latency_s + protocol.step_s,
        )
        for one in topology.dimensions
    )
    return replace(
        topology,
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s * protocol.data_share,
        latency_s=topology.latency_s + protocol.step_s,
        dimensions=dimensions,
    )


def simulated_exploration(
    explored: Exploration, bindings: Sequence[Binding], simulation: Simulation, count: int
) -> Exploration | None:
    """The most promising candidates with simulated times: the first, the fastest, the front.

    `count`: how many of the fastest, and of the front, at every size. None where one of them cannot
    be simulated, so that times of two models are never compared.
    """
    # Formulas choose, the simulator judges.
    chosen = _promising(explored, len(bindings), count)
    judged = []
    for one in chosen:
        timings = []
        for binding in bindings:
            timing = simulation.timing(one.program, binding)
            # All or none.
            if timing is None:
                return None
            timings.append(timing)
        judged.append(replace(one, timings=tuple(timings)))
    return replace(explored, candidates=judged)


def _promising(explored: Exploration, sizes: int, count: int) -> list[Candidate]:
    """Candidates to simulate, in the order of their discovery."""
    wanted = {0}
    for place in range(sizes):
        # By time alone, then those that need less memory.
        ordered = sorted(
            range(len(explored.candidates)),
            key=lambda one, place=place: (  # type: ignore[misc]
                explored.candidates[one].timings[place].seconds
            ),
        )
        wanted.update(ordered[:count])
        front = explored.front(place)[:count]
        wanted.update(explored.candidates.index(one) for one in front)
    return [explored.candidates[one] for one in sorted(wanted)]
