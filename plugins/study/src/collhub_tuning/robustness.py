"""Worst time of an algorithm over failures of single links, repaired where messages need it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core import Registry, simulate
from hub_core.columns import group_of_entry
from hub_core.model import Algorithm, format_time, message_bytes
from hub_core.network import find_separation, group_failures, list_failures, remove_rows
from hub_core.plugin_api import SynthesisRequest
from hub_core.schedules.repair import MessageRoutes, repair

# The simulator of times without a link if that of the request is unknown.
_SIMULATOR = "analytical"


@dataclass(frozen=True, slots=True)
class FailureTimes:
    """Times of one algorithm over all failures of single links.

    `worst_ns`: the largest time, at least that on the complete network. `worst_link`: the failed
    link of it, "" if no failure is slower. `tried`: number of simulated failures, one for each
    class of equal ones. `total`: all failures. `separating`: failures that separate NPUs, which no
    algorithm survives; they do not count. `is_complete`: False if a time above the limit ended the
    evaluation.
    """

    worst_ns: int
    worst_link: str
    tried: int
    total: int
    separating: int
    is_complete: bool = True

    def describe(self) -> str:
        """Return one line: worst time and the failed link, or that no failure is slower; numbers of
        simulated and of all failures; number of failures that separate NPUs, if any.
        """
        worst = f"{format_time(self.worst_ns)} without {self.worst_link}"
        if not self.worst_link:
            worst = f"{format_time(self.worst_ns)}: no failure is slower"
        excluded = f", {self.separating} separate NPUs" if self.separating else ""
        return f"{worst}; {self.tried} of {self.total} failures simulated{excluded}"


def evaluate_failures(
    algorithm: Algorithm,
    request: SynthesisRequest,
    registry: Registry,
    time_ns: int,
    limit_ns: int | None = None,
) -> FailureTimes:
    """Simulate an algorithm without each link of the network of a request, repaired if necessary.

    Of failures that an automorphism of the network with the bytes and messages of the algorithm on
    every link maps to one another, the first one is simulated. Failures of unused links have
    the time on the complete network, `time_ns`. The evaluation ends after a time above `limit_ns`.
    Raises `HubError` if the algorithm cannot be repaired or simulated.
    """
    topology, size = request.topology, request.collective_bytes
    messages = MessageRoutes.of(algorithm, topology)
    steps = algorithm.steps
    counts = steps.count[steps.sends]
    sizes = message_bytes(size, algorithm.collective.unit_count, counts)
    # Bytes and number of the messages on every link.
    routes, pairs = messages.routes, messages.pair_of_message
    pair_of_entry = group_of_entry(routes.indptr)
    weights = []
    for values in (sizes, np.ones_like(sizes)):
        per_pair = np.zeros(len(messages.sources), np.int64)
        np.add.at(per_pair, pairs, values)
        per_link = np.zeros(topology.num_links, np.int64)
        np.add.at(per_link, routes.links, per_pair[pair_of_entry])
        weights.append(per_link)
    failures = list_failures(topology)
    worst_ns, worst_link, tried, separating = time_ns, "", 0, 0
    for failure in group_failures(topology, failures, weights):
        if find_separation(topology, failure.fails) is not None:
            separating += failure.num_equal
            continue
        if not len(messages.using(failure.fails)):
            continue
        failed = remove_rows(topology, failure.fails)
        repaired = repair(algorithm, topology, failure.fails, size).algorithm
        result = simulate(
            repaired,
            failed,
            size,
            backend=request.backend or _SIMULATOR,
            options={"occupancy": str(request.occupancy)},
            registry=registry,
        )
        tried += 1
        if result.time_ns is not None and result.time_ns > worst_ns:
            worst_ns, worst_link = result.time_ns, failure.name
        if limit_ns is not None and worst_ns > limit_ns:
            return FailureTimes(worst_ns, worst_link, tried, len(failures), separating, False)
    return FailureTimes(worst_ns, worst_link, tried, len(failures), separating)
