"""The planes of a topology, such as NVLink and PCIe, and the shares of the data that they carry.

Also the bound on the rate of any algorithm that may use all planes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

import numpy as np
from collhub_packing import all_gather_rate, broadcast_rate, strength
from collhub_packing.pipelining import Pipeline

from collhub_blink.packing.multi_root import compute_directed_bound
from collhub_blink.packing.packings import (
    PlacedPacking,
    RateBound,
    to_cut_bound,
    to_ingress_bound,
    to_partition_bound,
)
from collhub_blink.packing.paths import compute_path_bound
from collhub_blink.packing.task import PackingTask
from collhub_blink.plugin import BlinkOptions
from collhub_blink.scheduling.schedules import TimedSchedule
from hub_core.model import Collective, CollectiveKind, InputError, UsageError, parse_time
from hub_core.plugin_api import SynthesisRequest
from hub_core.schedules import Chunks, Transfers, link_channels


def compute_union_bound(task: PackingTask) -> RateBound:
    """Return the tightest cut or partition of the network in which the links of all planes add up.

    It is at least the sum of the planes' bounds, and larger if the cuts that limit the planes
    differ.
    """
    return _BOUNDS[task.collective.kind](task)


def _compute_rooted_bound(task: PackingTask) -> RateBound:
    """Return the upper bound on the rate of a broadcast or reduce in bytes/s, with its cut.

    It is the smallest minimum cut between the root and any other rank, from the root for a
    broadcast and towards it for a reduce. The bound has the kind `cut`. Raise `InputError`
    (`unreachable`) if a rank cannot be reached, and for a single rank.
    """
    network = task.oriented_network
    return to_cut_bound(network, broadcast_rate(network.graph, task.root))


def _compute_all_gather_bound(task: PackingTask) -> RateBound:
    """Return the upper bound on the rate of an all-gather or reduce-scatter in bytes/s.

    A set of nodes that lacks at least one rank limits the rate to (bandwidth out of the
    set) / (ranks in the set), times the number of all ranks; for a reduce-scatter, the
    bandwidth into the set counts. The result is the minimum over all sets, of the kind
    `ingress-cut`. Raises `InputError`: `one-node` for a single rank, `capacities` if scaled
    capacities add up to 2^60 or more, `unreachable` if some rank cannot be reached.
    """
    network = task.oriented_network
    return to_ingress_bound(network, all_gather_rate(network.graph))


def _compute_all_reduce_bound(task: PackingTask) -> RateBound:
    """Return the upper bound on the rate of an all-reduce in bytes/s.

    It is `to_partition_bound` for the partition that gives the strength of the network. If
    some link has no reverse link of equal bandwidth, it is `compute_directed_bound`
    instead. Raises `InputError`: `one-node` for a single rank, `unreachable` if some rank
    cannot be reached, and for the strength `capacities` if scaled capacities add up to 2^60
    or more.
    """
    network = task.network
    if not network.is_duplex:
        return compute_directed_bound(network)
    return to_partition_bound(network, strength(network.graph))


_BOUNDS: Mapping[CollectiveKind, Callable[[PackingTask], RateBound]] = {
    CollectiveKind.BROADCAST: _compute_rooted_bound,
    CollectiveKind.REDUCE: _compute_rooted_bound,
    CollectiveKind.ALL_REDUCE: _compute_all_reduce_bound,
    CollectiveKind.ALL_GATHER: _compute_all_gather_bound,
    CollectiveKind.REDUCE_SCATTER: _compute_all_gather_bound,
    CollectiveKind.SCATTER: compute_path_bound,
    CollectiveKind.GATHER: compute_path_bound,
}


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """Plane `number` of `count` of a topology.

    `startup_ns`: time until the plane can be used. `task`: the plane's network with the full data.
    `packings`: candidates for this task.
    """

    number: int
    count: int
    startup_ns: int
    task: PackingTask
    packings: list[PlacedPacking]


def find_planes(
    request: SynthesisRequest,
    options: BlinkOptions,
    packings: Callable[[PackingTask], list[PlacedPacking]],
) -> list[Plane]:
    """Return the planes of a topology on which all ranks reach each other, each with its packings.

    The planes are in order of their numbers, which remain those of the topology. `count` of
    each is the number of all planes. `packings`: computes the packings of a plane's task. The
    option `setup` gives the start-up time of each plane, or a single 0 for all. The option
    `within` is ignored, because it applies to the entire data.

    A plane on which data cannot reach some rank (`InputError` `disconnected` of the task) is
    left out. If no plane is left, the first of these errors is raised. All other errors of a
    task, and all errors of `packings`, are raised at once. Before that, raises `UsageError` for
    an invalid time in `setup`, and unless it has one time per plane or is a single 0.
    """
    startup_ns = _parse_startup_times(options.setup, request.topology.num_planes)
    # The known time holds for the full data; a slower plane gets a smaller share.
    options = replace(options, within=0.0)
    planes: list[Plane] = []
    errors: list[InputError] = []
    for number, startup in enumerate(startup_ns):
        topology = request.topology.on_plane(number)
        try:
            task = PackingTask.of(replace(request, topology=topology), options)
        except InputError as error:
            # A plane need not connect all ranks. Any other error concerns all planes.
            if error.diagnostics[0].code != "disconnected":
                raise
            errors.append(error)
        else:
            planes.append(Plane(number, len(startup_ns), startup, task, packings(task)))
    if not planes:
        raise errors[0]
    return planes


def _parse_startup_times(text: str, count: int) -> list[int]:
    """Parse the option `setup`, such as `0ns,2ms`: return one time in ns per plane.

    The times are in the order of the planes, separated by commas, and rounded to whole ns. A single
    time that rounds to 0 applies to all `count` planes. Raises `UsageError` for another number of
    times than `count`, and before that for a time that `parse_time` refuses, such as one without
    unit.
    """
    times = [round(parse_time(part) * 1e9) for part in text.split(",")]
    if times == [0]:
        return [0] * count
    if len(times) != count:
        example = ",".join(["0ns", *["2ms"] * (count - 1)])
        raise UsageError(
            f"option setup: {len(times)} times for {count} planes",
            cure=f"give {count} times, such as {example}",
        )
    return times


_Columns = TypeVar("_Columns", Chunks, Transfers)

_PS_PER_NS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """A plane's share: `part`, a fraction of the data, with its packing and timed schedule."""

    plane: Plane
    part: Fraction
    timed_schedule: TimedSchedule

    @property
    def time_ps(self) -> int:
        """Return the time in ps at which the plane finishes its share of the data.

        It is the start-up time of the plane plus the planned time of its pipeline.
        """
        startup_ps = self.plane.startup_ns * _PS_PER_NS
        return self.pipeline.time_ps + startup_ps

    @property
    def packing(self) -> PlacedPacking:
        """The trees of the plane."""
        return self.timed_schedule.packing

    @property
    def pipeline(self) -> Pipeline:
        """The schedule of the plane in isolation."""
        return self.timed_schedule.schedule.pipeline

    @property
    def units(self) -> int:
        """Number of units into which the plane's schedule divides a share of the collective."""
        return self.pipeline.collective.units_per_rank


def join_shares(collective: Collective, shares: Sequence[Share]) -> Pipeline:
    """Join the schedules of several planes (separate networks of a topology) to one schedule.

    `shares`: for each plane its fraction `part` of the data and its schedule. The parts must add
    up to 1 (not checked). A block is the data of one rank, or all data of a rooted collective.

    - Units: each block is divided among the planes in the order of `shares`, in proportion to
      `part`. A unit of a plane's schedule becomes one or more units of the result. The number of
      units per block is the least for which these are integers for all planes. `collective` is
      copied with the new number of units.
    - Chunks and transfers: those of the first plane, then those of the next one. Chunks are
      renumbered. Starts and finishes are later by the start-up time of the plane.
    - Links and channels: those of different planes get different numbers.
    - Time in ps: that of the plane that finishes last, with its start-up time.

    Raises `IndexError` if there are no shares.
    """
    ratios = [share.part / share.units for share in shares]
    # Least number of units that makes the units of all planes whole numbers.
    units = math.lcm(*(ratio.denominator for ratio in ratios))
    begin = Fraction(0)
    first_chunk = 0
    chunks: list[Chunks] = []
    transfers: list[Transfers] = []
    for share, ratio in zip(shares, ratios, strict=True):
        rescaled = _rescale_chunks(share.pipeline, int(begin * units), int(ratio * units), units)
        chunks.append(rescaled)
        transfers.append(_place_on_plane(share, first_chunk))
        begin += share.part
        first_chunk += len(rescaled)
    collective_of_share = shares[0].pipeline.collective
    ranks = collective_of_share.unit_count // collective_of_share.units_per_rank
    return Pipeline(
        replace(collective, unit_count=ranks * units),
        _concatenate(Chunks, chunks),
        _concatenate(Transfers, transfers),
        max(share.time_ps for share in shares),
    )


def _rescale_chunks(pipeline: Pipeline, begin: int, scale: int, units: int) -> Chunks:
    """Convert the chunks of one plane's schedule to the common units of all planes.

    A unit of the plane is `scale` common units. A share (the part of one rank) has U units of the
    plane, U = `units_per_rank`. In common units a share has `units`, and the plane has those from
    `begin` on.

    - The count of every chunk is multiplied by `scale`.
    - An offset k in INPUT or OUTPUT becomes (k // U) * `units` + `begin` + (k % U) * `scale`.
      For U = 2, `scale` 3, `units` 10 and `begin` 4, offset 3 becomes 17.
    - Origin, target and order of the chunks are kept. Chunks have no other offsets.

    The pipeline is not changed.
    """
    chunks, share = pipeline.chunks, pipeline.collective.units_per_rank
    offsets = []
    for offset in (chunks.input_offset, chunks.output_offset):
        # Every share of the collective contains one part per plane, in order.
        number, offset_in_share = np.divmod(offset, share)
        offsets.append(number * units + begin + offset_in_share * scale)
    return Chunks(chunks.origin, offsets[0], offsets[1], chunks.count * scale, chunks.target)


def _place_on_plane(share: Share, first_chunk: int) -> Transfers:
    """Return the transfers of a share with the numbers and times of the joint schedule of P planes.

    - chunk: `first_chunk` is added.
    - start, finish: the start-up time of the plane is added; all are in ps.
    - link: link n of plane p becomes n * P + p.
    - channel: c * P + p. The links that the transfers of a pair of NPUs use are numbered from 0,
      ascending; c is this number (`link_channels`). Earlier channels are ignored.

    All other columns remain. The share is not changed.
    """
    plane, transfers = share.plane, share.pipeline.transfers
    startup_ps = plane.startup_ns * _PS_PER_NS
    return replace(
        transfers,
        chunk=transfers.chunk + first_chunk,
        # Links of different planes must have different numbers.
        link=transfers.link * plane.count + plane.number,
        start=transfers.start + startup_ps,
        finish=transfers.finish + startup_ps,
        # The plane of a channel is its number modulo the number of planes.
        channel=plane.number + plane.count * link_channels(transfers),
    )


def _concatenate(kind: type[_Columns], parts: Sequence[_Columns]) -> _Columns:
    """Concatenate tables column by column into a new table of type `kind`; order as in `parts`.

    At least one part is needed.
    """
    columns = {}
    for name in kind.__dataclass_fields__:
        columns[name] = np.concatenate([getattr(part, name) for part in parts])
    return kind(**columns)
