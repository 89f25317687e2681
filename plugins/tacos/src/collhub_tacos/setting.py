"""Synthesis request with every option checked: the one value that all forms work from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collhub_tacos.networks.link_network import SLOW_START, UNCAPPED, LinkNetwork, LinkTimes
from collhub_tacos.networks.switches import contracted, unwound
from collhub_tacos.plugin import TacosOptions
from collhub_tacos.seed_search import Progress
from hub_core.columns import Int64Array
from hub_core.model import Collective, UsageError, message_bytes
from hub_core.network import Occupancy, Topology
from hub_core.plugin_api import SearchBudget, SynthesisRequest
from hub_core.schedules import Chunks

_MOST_CHUNKS = 1 << 20
_RESOLUTION_S = 1e-9
# Pairs of a link and a chunk up to which several numbers of chunks are tried.
_MOST_PAIRS = 50_000_000
MOST_COMPARED = 200_000
"""Transfers up to which all numbers of chunks and all windows are compared by the simulator."""


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """Request with its options.

    `members`: int64, the NPU of each rank; `pieces`: the stated chunks of a share, or None.
    `network`: NPUs alone; switches are passed on the way, or unwound. `seeds`: stated number of
    seeds, 0 for a number by size. `threads`: seeds tried at once. `memory`: bytes.
    `budget`: counts the work.
    """

    collective: Collective
    network: LinkNetwork
    members: Int64Array
    collective_bytes: int
    occupancy: Occupancy
    pieces: int | None
    seeds: int
    seed: int
    method: str
    threads: int
    memory: int
    wanted: tuple[int, ...] | None
    progress: Progress
    budget: SearchBudget

    @classmethod
    def of(cls, request: SynthesisRequest, options: TacosOptions) -> Setting:
        """Check what the declaration of an option cannot.

        Raises `UsageError` for numbers of chunks and degrees outside their range, and for networks
        of several planes.
        """
        topology = _topology(request.topology, options)
        return cls(
            collective=request.collective,
            network=contracted(topology),
            members=np.asarray(request.npus, np.int64),
            collective_bytes=request.collective_bytes,
            occupancy=request.occupancy,
            pieces=_pieces(options.chunks),
            seeds=options.seeds,
            seed=options.seed,
            method=options.method,
            threads=options.threads or os.cpu_count() or 1,
            memory=options.memory,
            wanted=request.wanted,
            progress=request.progress,
            budget=request.budget,
        )

    @property
    def has_relays(self) -> bool:
        """Whether there are NPUs that do not take part, or take part under another number."""
        # Kernels for all NPUs take rank r for NPU r.
        everyone = np.arange(self.network.num_npus)
        return not np.array_equal(self.members, everyone)

    def units(self, pieces: int) -> int:
        """Units of the whole with `pieces` in a share. Raises `UsageError` for one of no byte."""
        collective, size = self.collective, self.collective_bytes
        units = pieces * collective.kind.traits.parts(collective.num_ranks)
        if units > size:
            most = max(1, size * pieces // units)
            raise UsageError(
                f"{size} bytes are too few for {units} chunks",
                cure=f"choose a larger size, or at most {most} chunks a share",
                code="size-too-small",
            )
        return units

    def cut(self, pieces: int) -> tuple[Collective, Chunks]:
        """Collective with every share cut in `pieces` equal ones. Raises like `units`."""
        collective = replace(self.collective, unit_count=self.units(pieces))
        return collective, Chunks.cut(collective, np.ones(pieces, np.int64))

    def chunk_bytes(self, unit_count: int) -> int:
        """Bytes of a message of one of `unit_count` units."""
        # The largest, where the bytes do not divide evenly.
        one_unit = np.ones(1, np.int64)
        return int(message_bytes(self.collective_bytes, unit_count, one_unit)[0])

    def link_times(self, unit_count: int) -> LinkTimes:
        """Times of a message of one of `unit_count` units on every link."""
        return self.times_on(self.network, unit_count)

    def times_on(self, network: LinkNetwork, unit_count: int) -> LinkTimes:
        """The same on the links of another network, such as the transposed one."""
        times = network.link_times(self.chunk_bytes(unit_count), self.occupancy)
        return replace(times, rule=UNCAPPED if self.is_compared(unit_count) else SLOW_START)

    def is_compared(self, unit_count: int) -> bool:
        """Whether so many units are few enough to compare all windows and numbers of chunks."""
        everyone = self.network.num_npus - 1
        return unit_count * everyone <= MOST_COMPARED

    def candidates(self, ladder: Sequence[int], parts: int = 1) -> list[int]:
        """Numbers of pieces to try.

        The stated one, or those of `ladder` that leave every chunk a byte and take seconds.
        `parts`: chunks of a piece of the whole vector.
        """
        if self.pieces is not None:
            return [self.pieces]
        # Every kernel looks at all pairs of a link and a chunk.
        shares = max(parts, self.collective.unit_count)
        by_size = self.collective_bytes // shares
        pairs = self.network.num_links * shares
        by_time = _MOST_PAIRS // pairs if pairs else by_size
        most = min(by_size, by_time, self._by_resolution(shares))
        tried = [pieces for pieces in ladder if pieces <= most]
        return tried or list(ladder[:1])

    def _by_resolution(self, shares: int) -> int:
        """Most pieces of a share of which each takes a link a nanosecond, as simulators count."""
        fastest = float(self.network.topology.bandwidth_bytes_per_s.max(initial=1.0))
        return int(self.collective_bytes / (shares * _RESOLUTION_S * fastest))


def _topology(topology: Topology, options: TacosOptions) -> Topology:
    """Topology that is synthesized on, its switches unwound where that is asked for."""
    planes = topology.num_planes
    if planes > 1:
        message = (
            f"topology {topology.name}: tacos makes algorithms for one plane, not for {planes}"
        )
        raise UsageError(
            message,
            cure="name one of the networks alone, or use blink",
            code="planes-unsupported",
        )
    if options.switches != "unwind":
        return topology
    _check_degree(options.degree, topology)
    return unwound(topology, options.degree)


def _check_degree(degree: int, topology: Topology) -> None:
    """Raise `UsageError` for more links of a port than there are nodes."""
    if degree > topology.num_nodes:
        raise UsageError(
            f"option degree is {degree}, expected 0..{topology.num_nodes}",
            cure="give fewer, or 0 for links to all other ports",
            code="option-range",
        )


def _pieces(text: str) -> int | None:
    """Stated number of chunks, None for `auto`."""
    if text == "auto":
        return None
    # Longer texts may be larger than Python converts.
    is_short_number = text.isascii() and text.isdecimal() and len(text) <= 8
    if not is_short_number or not 1 <= int(text) <= _MOST_CHUNKS:
        raise UsageError(
            f"option chunks is {text!r}, expected auto or 1..{_MOST_CHUNKS}",
            cure="give -O chunks=4, or -O chunks=auto",
            code="option-range",
        )
    return int(text)


_PICOSECONDS = 1e12


def whole_vector_ps(setting: Setting) -> int:
    """Picoseconds in which the fastest link carries all data, as some link of one tree must."""
    fastest = float(setting.network.topology.bandwidth_bytes_per_s.max())
    return int(setting.collective_bytes / fastest * _PICOSECONDS)


def two_phases_ps(setting: Setting) -> int:
    """Picoseconds of a reduce-scatter and an all-gather: what must enter the weakest NPU.

    On networks without switches whose NPUs all take part.
    """
    topology, ranks = setting.network.topology, setting.collective.num_ranks
    rate = np.bincount(
        topology.destination, topology.bandwidth_bytes_per_s, minlength=topology.num_nodes
    )
    enters = 2 * (ranks - 1) / ranks * setting.collective_bytes
    return int(enters / float(rate.min()) * _PICOSECONDS)
