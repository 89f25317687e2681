"""Times of collectives on a network: an algorithm of the hub, simulated once a question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import hub_core
from hub_core.model import Collective, CollectiveKind, JobCollective, UsageError, placed
from hub_core.network import Topology

# What NCCL does where no other algorithm is asked for.
USUAL_ALGORITHMS = dict.fromkeys(CollectiveKind, "ring") | {
    CollectiveKind.ALL_TO_ALL: "direct",
    CollectiveKind.GATHER: "direct",
    CollectiveKind.SCATTER: "direct",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The simulated time of a collective, and the synthesizer of its algorithm."""

    algorithm: str
    time_ns: int


@dataclass(frozen=True, slots=True)
class NetworkTimes:
    """Times on `topology`, rank r on NPU r; `algorithms`: synthesizers by collective.

    `answers`: what has been asked so far, by kind, bytes and ranks. The root of a rooted collective
    is the first of its ranks.
    """

    topology: Topology
    algorithms: Mapping[CollectiveKind, str]
    backend: str
    registry: hub_core.Registry
    answers: dict[tuple[JobCollective, int, tuple[int, ...]], Answer] = field(default_factory=dict)

    def __call__(self, kind: JobCollective, size: int, ranks: tuple[int, ...]) -> int | None:
        """The time in ns; None for what moves nothing. Raises `HubError`."""
        question = (kind, size, ranks)
        if kind.kind is None or size == 0 or len(ranks) < 2:
            return None
        if question not in self.answers:
            name = self.algorithms.get(kind.kind) or USUAL_ALGORITHMS[kind.kind]
            self.answers[question] = Answer(name, self._time_ns(name, kind.kind, size, ranks))
        return self.answers[question].time_ns

    def _time_ns(self, name: str, kind: CollectiveKind, size: int, ranks: tuple[int, ...]) -> int:
        count = len(ranks)
        # The full buffer of a gather is what comes out.
        total = size * count if kind.traits.input_is_part else size
        root = 0 if kind.traits.is_rooted else None
        collective = Collective(kind, count, count, root=root)
        made = hub_core.synthesize(
            collective,
            self.topology,
            total,
            name=name,
            npus=ranks,
            backend=self.backend,
            registry=self.registry,
        )
        algorithm = placed(made.algorithm, ranks)
        found = hub_core.simulate(
            algorithm, self.topology, total, backend=self.backend, registry=self.registry
        )
        if found.time_ns is None:
            message = f"{self.backend} does not finish the {kind} of {name} on {self.topology.name}"
            raise UsageError(message, cure=f"choose another: --collective {kind}=NAME")
        return int(found.time_ns)
