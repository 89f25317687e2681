"""Synthesis settings: the request with every option checked, and derived sizes and times."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collhub_tacos.link_network import (
    SLOW_START,
    UNCAPPED,
    LinkNetwork,
    LinkTimes,
    contract_switches,
    unwind_switches,
)
from collhub_tacos.plugin import TacosOptions
from collhub_tacos.search.seeds import Progress
from hub_core.columns import Int64Array
from hub_core.model import Collective, UsageError, message_bytes
from hub_core.network import Occupancy, Topology
from hub_core.plugin_api import SearchBudget, SynthesisRequest, UnitLimits
from hub_core.schedules import Chunks

_MAX_CHUNKS = 1 << 20
_RESOLUTION_S = 1e-9
# Maximum number of (link, chunk) pairs for which several chunk counts are tried.
_MAX_PAIRS = 50_000_000
MAX_COMPARED_TRANSFERS = 200_000
"""Maximum number of transfers for which all chunk counts and windows are simulated."""


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """Request with its options.

    `members`: int64, the NPU of each rank. `pieces`: requested chunks of a share, or None.
    `network`: NPUs only; switches are contracted into arcs or unwound. `seeds`: requested number of
    seeds, 0 to choose it by size. `threads`: seeds tried in parallel. `memory`: bytes.
    `requested_ranks`: ranks whose steps are requested, None for all. `budget`: counts the work.
    `units`: allowed numbers of units, None for any.
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
    requested_ranks: tuple[int, ...] | None
    progress: Progress
    budget: SearchBudget
    units: UnitLimits | None

    @classmethod
    def of(cls, request: SynthesisRequest, options: TacosOptions) -> Setting:
        """Build the settings of a request; check rules that option declarations cannot express.

        - `network`: with `switches=unwind`, every switch is first replaced by direct links from
          each neighbour to the next `degree` neighbours (0: to all; `unwind_switches`). Then
          routes over the remaining switches become arcs between NPUs (`contract_switches`).
        - `pieces`: the option `chunks`, None for `auto`.
        - `threads`: 0 becomes the number of CPUs, or 1 if that is unknown.

        All other members are copied from the request and the options. Raises `UsageError` for the
        first of: several planes (`planes-unsupported`), with unwinding an option `degree` below 0
        or above the number of nodes (`option-range`), and `chunks` that is neither `auto` nor 1 to
        2^20 (`option-range`).
        """
        topology = _prepare_topology(request.topology, options)
        return cls(
            collective=request.collective,
            network=contract_switches(topology),
            members=np.asarray(request.npus, np.int64),
            collective_bytes=request.collective_bytes,
            occupancy=request.occupancy,
            pieces=_parse_chunks(options.chunks),
            seeds=options.seeds,
            seed=options.seed,
            method=options.method,
            threads=options.threads or os.cpu_count() or 1,
            memory=options.memory,
            requested_ranks=request.wanted,
            progress=request.progress,
            budget=request.budget,
            units=request.chunk_limits,
        )

    @property
    def has_relays(self) -> bool:
        """Whether the members differ from all NPUs in the order of their numbers.

        If so, some NPUs only relay, or rank r is not on NPU r.
        """
        # Kernels for all NPUs assume that rank r is NPU r.
        all_npus = np.arange(self.network.num_npus)
        return not np.array_equal(self.members, all_npus)

    def count_units(self, pieces: int) -> int:
        """Return the number of units of the full buffer with `pieces` chunks per part.

        It is `pieces` times the number of parts into which the collective divides the buffer.
        Raises `UsageError` (`size-too-small`) if a unit would have less than one byte.
        """
        collective, size = self.collective, self.collective_bytes
        units = pieces * collective.kind.traits.parts(collective.num_ranks)
        if units > size:
            max_pieces = max(1, size * pieces // units)
            raise UsageError(
                f"too few bytes for {units} chunks: {size}",
                cure=f"choose a larger size, or at most {max_pieces} chunks a share",
                code="size-too-small",
            )
        return units

    def cut(self, pieces: int) -> tuple[Collective, Chunks]:
        """Return the collective and its chunks, with every part divided into `pieces` equal chunks.

        A part is the data of one rank, or all data if the collective does not split them. The
        collective has one unit per chunk; its previous number of units is replaced. Raises
        `UsageError` (`size-too-small`) if a chunk would have less than one byte.
        """
        collective = replace(self.collective, unit_count=self.count_units(pieces))
        return collective, Chunks.cut(collective, np.ones(pieces, np.int64))

    def chunk_bytes(self, unit_count: int) -> int:
        """Return the bytes of a message of one unit, if the full buffer has `unit_count` units.

        It is the collective's bytes divided by `unit_count`, rounded up: the size of the
        largest unit. Raises `InputError` (`size-range`) if it is 2^63 bytes or more.
        """
        # The largest message, if the bytes do not divide evenly.
        one_unit = np.ones(1, np.int64)
        return int(message_bytes(self.collective_bytes, unit_count, one_unit)[0])

    def link_times(self, unit_count: int) -> LinkTimes:
        """Return the times on every link of a message of one of `unit_count` units.

        Their window rule depends on whether all windows are compared. Raises `InputError`
        (`too-long`) if a message takes too long to be counted in ps.
        """
        return self.link_times_on(self.network, unit_count)

    def link_times_on(self, network: LinkNetwork, unit_count: int) -> LinkTimes:
        """Return the times of the links of another network, for messages of one unit.

        The network is for example the transposed one. A unit has `chunk_bytes(unit_count)`
        bytes. The window rule, which limits the messages in flight, is `UNCAPPED` if
        `is_compared(unit_count)`, else `SLOW_START`. Raises `InputError` (`too-long`) if a
        message takes too long to be counted in ps.
        """
        times = network.link_times(self.chunk_bytes(unit_count), self.occupancy)
        return replace(times, rule=UNCAPPED if self.is_compared(unit_count) else SLOW_START)

    def is_compared(self, unit_count: int) -> bool:
        """Return whether `unit_count` units are few enough to compare candidates by simulation.

        They are if the units times the number of NPUs less one are at most 200,000
        (`MAX_COMPARED_TRANSFERS`). Whether simulated times decide at all is not considered
        (`is_simulator_decisive`).
        """
        num_others = self.network.num_npus - 1
        return unit_count * num_others <= MAX_COMPARED_TRANSFERS

    def choose_piece_counts(self, ladder: Sequence[int], parts: int = 1) -> list[int]:
        """Return the numbers of pieces to try: the requested one, else those of `ladder` that fit.

        N pieces divide the buffer into N * max(`parts`, units of the collective) chunks. A number
        of `ladder` fits if all of these hold:

        - Every chunk has at least 1 byte.
        - A chunk occupies the fastest link (of largest bandwidth) for at least 1 ns.
        - Links times chunks are at most `_MAX_PAIRS` (50 million); not checked without links.

        If none fits, the first number of `ladder` is used. A requested number is used without these
        checks. In the end, numbers whose count of chunks the unit limits (`units`) do not allow are
        omitted, even a requested one. So the result may be empty. It has the order of `ladder`.
        """
        if self.pieces is not None:
            return self._list_allowed([self.pieces], parts)
        # Every kernel examines all pairs of a link and a chunk.
        shares = max(parts, self.collective.unit_count)
        max_by_size = self.collective_bytes // shares
        pairs = self.network.num_links * shares
        max_by_time = _MAX_PAIRS // pairs if pairs else max_by_size
        fastest = float(self.network.topology.bandwidth_bytes_per_s.max(initial=1.0))
        max_pieces = min(
            max_by_size,
            max_by_time,
            int(self.collective_bytes / (shares * _RESOLUTION_S * fastest)),
        )
        tried = [pieces for pieces in ladder if pieces <= max_pieces]
        return self._list_allowed(tried or list(ladder[:1]), parts)

    def _list_allowed(self, ladder: Sequence[int], parts: int) -> list[int]:
        """Return the numbers of pieces in `ladder` that the unit limits allow, in the same order.

        Number n is allowed if the buffer may be divided into n times the larger of `parts` and
        the collective's unit count (`UnitLimits.allows`). Without limits (`units` None) all
        are.
        """
        shares = max(parts, self.collective.unit_count)
        units = self.units
        return [one for one in ladder if units is None or units.allows(one * shares)]


def _prepare_topology(topology: Topology, options: TacosOptions) -> Topology:
    """Return the topology to synthesize for: switches are unwound if the options request it.

    With any other option than `switches=unwind`, the result is the same object. Otherwise each
    switch is replaced by links from each neighbour to the `degree` neighbours after it, in cyclic
    order of their numbers (0: to all). See `unwind_switches` for rates and latencies.

    Raises `UsageError` (`planes-unsupported`) for several planes, with any options. When unwinding,
    raises `UsageError` (`option-range`) for a degree below 0 or above the number of nodes.
    """
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
    if options.degree > topology.num_nodes:
        raise UsageError(
            f"option degree is {options.degree}, expected 0..{topology.num_nodes}",
            cure="give fewer, or 0 for links to all other ports",
            code="option-range",
        )
    return unwind_switches(topology, options.degree)


def _parse_chunks(text: str) -> int | None:
    """Parse the option `chunks`: the number of chunks from 1 to 2^20, None for `auto`.

    Only up to 8 ASCII digits are a number. Raises `UsageError` (`option-range`) for any other text.
    """
    if text == "auto":
        return None
    # Python refuses to convert very long numbers.
    is_short_number = text.isascii() and text.isdecimal() and len(text) <= 8
    if not is_short_number or not 1 <= int(text) <= _MAX_CHUNKS:
        raise UsageError(
            f"option chunks is {text!r}, expected auto or 1..{_MAX_CHUNKS}",
            cure="give -O chunks=4, or -O chunks=auto",
            code="option-range",
        )
    return int(text)


_PICOSECONDS = 1e12


def bound_one_tree_ps(setting: Setting) -> int:
    """Return a lower bound in ps, rounded down, on the time of an algorithm on one tree.

    It is the time in which the link with the largest bandwidth carries all data, without
    latency, because some link of a tree must carry all data. The network must have a link.
    """
    fastest = float(setting.network.topology.bandwidth_bytes_per_s.max())
    return int(setting.collective_bytes / fastest * _PICOSECONDS)


def bound_two_phases_ps(setting: Setting) -> int:
    """Return a lower bound in ps on a reduce-scatter followed by an all-gather, rounded down.

    The bound is 2 (ranks - 1) / ranks * `collective_bytes`, which enter every NPU in both
    phases together, divided by the smallest total bandwidth of the links into one node.
    Latency is ignored.

    The network must have no switches, and all NPUs must take part; this is not checked. A
    node without incoming links raises `ZeroDivisionError`.
    """
    topology, ranks = setting.network.topology, setting.collective.num_ranks
    rate = np.bincount(
        topology.destination, topology.bandwidth_bytes_per_s, minlength=topology.num_nodes
    )
    ingress_bytes = 2 * (ranks - 1) / ranks * setting.collective_bytes
    return int(ingress_bytes / float(rate.min()) * _PICOSECONDS)
