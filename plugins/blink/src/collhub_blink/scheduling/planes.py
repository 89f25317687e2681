"""The planes of a topology, such as NVLink and PCIe, as networks of their own with packings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from collhub_blink.options import BlinkOptions
from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from hub_core.model import InputError, UsageError, parse_time
from hub_core.plugin_api import SynthesisRequest


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """Plane `number` of `count` of a topology.

    `startup_ns`: time until it can be used. `task` is for its network and all data, `packings`
    are its candidates.
    """

    number: int
    count: int
    startup_ns: int
    task: PackingTask
    packings: list[PlacedPacking]


def planes_of(
    request: SynthesisRequest,
    options: BlinkOptions,
    packings: Callable[[PackingTask], list[PlacedPacking]],
) -> list[Plane]:
    """The planes on which all ranks reach one another.

    Raises `InputError` where there is none, naming a lost rank, and `UsageError` for start-up
    times that are not one a plane.
    """
    startup_ns = _startups(options.setup, request.topology.num_planes)
    # A plane that is late by itself carries less.
    options = replace(options, within=0.0)
    planes, lost = [], []
    for number, startup in enumerate(startup_ns):
        topology = request.topology.on_plane(number)
        try:
            task = PackingTask.of(replace(request, topology=topology), options)
        except InputError as error:
            # A plane need not join all ranks; whatever else is refused concerns all planes.
            if error.diagnostics[0].code != "unreachable":
                raise
            lost.append(error)
        else:
            planes.append(Plane(number, len(startup_ns), startup, task, packings(task)))
    if not planes:
        raise lost[0]
    return planes


def _startups(text: str, count: int) -> list[int]:
    """Nanoseconds for every plane; 0 stands for all of them."""
    times = [round(parse_time(part) * 1e9) for part in text.split(",")]
    if times == [0]:
        return [0] * count
    if len(times) != count:
        example = ",".join(["0ns", *["2ms"] * (count - 1)])
        raise UsageError(
            f"option setup: {len(times)} times for {count} planes",
            cure=f"state {count} times, such as {example}",
        )
    return times
