"""What is asked for, with every option checked: the one value that all forms of synthesis work from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.path_network import contracted, unwound
from hub_core.algorithm import message_bytes
from hub_core.collectives import Collective, CollectiveKind
from hub_core.diagnostics import UsageError
from hub_core.plugins.contract import Options, SynthesisRequest
from hub_core.topology import Occupancy
from hub_core.transfers import Chunks

Int64Array = npt.NDArray[np.int64]

_MOST_CHUNKS = 1 << 20
_MOST_SEEDS = 10_000
# Pairs of a link and a chunk up to which several numbers of chunks are tried.
_MOST_PAIRS = 50_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A request with its options. `members`: int64, the NPU of each rank; `pieces`: the stated chunks of a share, or None.

    `network`: NPUs alone; switches are passed on the way, or unwound. `seeds`: stated number of seeds, 0 for a number by
    size. `threads`: seeds tried at once. `memory`: bytes.
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
    progress: Callable[[float, str], None]

    @classmethod
    def of(cls, request: SynthesisRequest, options: Options) -> Setting:
        """Check the options. Raises `UsageError` for numbers outside their range, and for networks of several planes."""
        topology = request.topology
        if topology.num_planes > 1:
            message = f"topology {topology.name}: tacos makes algorithms for one plane, not for {topology.num_planes}"
            raise UsageError(
                message,
                cure="name one of the networks alone, or use blink",
                code="planes-unsupported",
            )
        if options["switches"] == "unwind":
            topology = unwound(topology, _whole(options, "degree", 0, topology.num_nodes))
        seeds, threads = (
            _whole(options, "seeds", 0, _MOST_SEEDS),
            _whole(options, "threads", 0, 1024),
        )
        return cls(
            request.collective,
            contracted(topology),
            np.asarray(request.npus, np.int64),
            request.collective_bytes,
            request.occupancy,
            _pieces(str(options["chunks"])),
            seeds,
            _whole(options, "seed", 0, 2**31 - 1),
            str(options["method"]),
            threads or os.cpu_count() or 1,
            _whole(options, "memory", 1, 1 << 50),
            request.wanted,
            request.progress,
        )

    @property
    def has_relays(self) -> bool:
        """Whether there are NPUs that do not take part, or take part under another number."""
        return list(self.members) != list(range(self.network.num_npus))

    def units(self, pieces: int) -> int:
        """Units of the whole with `pieces` in a share. Raises `UsageError` where a unit has no byte."""
        kind, n = self.collective.kind, self.collective.num_ranks
        is_split = kind not in (
            CollectiveKind.ALL_REDUCE,
            CollectiveKind.BROADCAST,
            CollectiveKind.REDUCE,
        )
        units = pieces * n if is_split else pieces
        if units > self.collective_bytes:
            raise UsageError(
                f"{self.collective_bytes} bytes are too few for {units} chunks",
                cure=f"choose a larger size, or at most {max(1, self.collective_bytes * pieces // units)} chunks a share",
                code="size-too-small",
            )
        return units

    def cut(self, pieces: int) -> tuple[Collective, Chunks]:
        """The collective with every share cut in `pieces` equal ones. Raises like `units`."""
        collective = replace(self.collective, unit_count=self.units(pieces))
        return collective, Chunks.cut(collective, np.ones(pieces, np.int64))

    def chunk_bytes(self, unit_count: int) -> int:
        """Bytes of a message of one of `unit_count` units."""
        return int(message_bytes(self.collective_bytes, unit_count, np.ones(1, np.int64))[0])

    def link_times(self, unit_count: int) -> LinkTimes:
        """Times of a message of one of `unit_count` units on every link."""
        return self.network.link_times(self.chunk_bytes(unit_count), self.occupancy)

    def candidates(self, ladder: Sequence[int]) -> list[int]:
        """Numbers of pieces to try: the stated one, or those of `ladder` that leave every chunk a byte and take seconds."""
        if self.pieces is not None:
            return [self.pieces]
        shares = max(1, self.collective.unit_count)
        pairs = self.network.num_links * shares
        tried = [
            pieces
            for pieces in ladder
            if pieces * shares <= self.collective_bytes and pieces * pairs <= _MOST_PAIRS
        ]
        return tried or list(ladder[:1])


def _whole(options: Options, name: str, low: int, high: int) -> int:
    value = options[name]
    assert isinstance(value, int)
    if not low <= value <= high:
        raise UsageError(
            f"option {name} is {value}, expected {low}..{high}",
            cure=f"give -O {name}={low} or more",
            code="option-range",
        )
    return value


def _pieces(text: str) -> int | None:
    if text == "auto":
        return None
    if not (
        text.isascii() and text.isdecimal() and len(text) <= 8 and 1 <= int(text) <= _MOST_CHUNKS
    ):
        cure = "give -O chunks=4, or -O chunks=auto"
        raise UsageError(
            f"option chunks is {text!r}, expected auto or 1..{_MOST_CHUNKS}",
            cure=cure,
            code="option-range",
        )
    return int(text)
