"""Times of an algorithm on a network of which one link after another fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hub_core.model import Algorithm
from hub_core.network import Topology, find_separation, list_failures, remove_rows
from hub_core.pipeline.simulation import DEFAULT_SIMULATOR, simulate
from hub_core.schedules import MessageRoutes

if TYPE_CHECKING:
    from hub_core.registry.bind_options import OptionText
    from hub_core.registry.plugins import Registry

USES_LINK = "not possible: uses the link"
"""Reason for a message between NPUs that no switches connect without the link."""


@dataclass(frozen=True, slots=True)
class FailureTime:
    """Time in ns of an algorithm without the link `link`, None with a `reason` if it does not run.

    `is_used`: whether a message uses the link.
    """

    link: str
    time_ns: int | None
    reason: str = ""
    is_used: bool = True


def simulate_failures(
    algorithm: Algorithm,
    topology: Topology,
    collective_bytes: int,
    time_ns: int | None,
    *,
    backend: str = DEFAULT_SIMULATOR,
    options: OptionText | None = None,
    registry: Registry,
) -> list[FailureTime]:
    """Simulate an algorithm without each link of a network; return one result per pair of nodes.

    Pairs are in link order. All links between two nodes fail together. The first rule that applies:

    1. No message used the links: the result is `time_ns` (None if unknown), `is_used` is False.
    2. The failure separates NPUs: no time; the reason names them.
    3. No time, `not possible: uses the link`, if a plane has no links left, a message has no route,
       or the new route of a message passes through an NPU but its route before did not.
    4. Otherwise: the simulated time. It is None, with the reason `never ends`, if a rank does not
       finish.

    Raises `InputError` if a message has no route on the complete network, and the `HubError`s of
    the simulation.
    """
    messages = MessageRoutes.of(algorithm, topology)
    times = []
    for failure in list_failures(topology):
        affected = messages.using(failure.fails)
        if not len(affected):
            times.append(FailureTime(failure.name, time_ns, is_used=False))
            continue
        failed = remove_rows(topology, failure.fails)
        separation = find_separation(topology, failure.fails)
        if separation is not None:
            reason = f"not possible: {separation.message(topology)}"
            times.append(FailureTime(failure.name, None, reason))
            continue
        if len(messages.blocked(failed, affected)):
            times.append(FailureTime(failure.name, None, USES_LINK))
            continue
        result = simulate(
            algorithm, failed, collective_bytes, backend=backend, options=options, registry=registry
        )
        reason = "" if result.time_ns is not None else "never ends"
        times.append(FailureTime(failure.name, result.time_ns, reason))
    return times
