"""Which NPUs of the simulated world the ranks of an algorithm run on."""

from __future__ import annotations

from dataclasses import dataclass

from collhub_astra_sim.options import AstraFolderOptions
from hub_core.model import Algorithm, UsageError, parse_ranks, placement_of
from hub_core.network import Topology

_MOST_NPUS = 1 << 20


@dataclass(frozen=True, slots=True)
class WorldPlacement:
    """The size of the world in NPUs, and the NPU of every rank, ascending."""

    npus: int
    members: tuple[int, ...]

    @property
    def is_part(self) -> bool:
        """Whether the algorithm runs on a part of the world, a communicator group."""
        return len(self.members) < self.npus


def world_placement(
    algorithm: Algorithm, topology: Topology | None, options: AstraFolderOptions
) -> WorldPlacement:
    """The placement by the options `group` and `npus`, or else by the algorithm's own.

    Raises `UsageError`.
    """
    own = placement_of(algorithm)
    stated = options.group or (",".join(map(str, own)) if own is not None else None)
    members = _members(stated, algorithm.num_ranks)
    npus = _npus(topology, options, members)
    if npus > _MOST_NPUS:
        raise UsageError(
            f"{npus} NPUs are more than {_MOST_NPUS}",
            cure="name a smaller world",
        )
    if members[-1] >= npus:
        raise UsageError(
            f"the algorithm needs NPU {members[-1]}, the world has {npus} NPUs",
            cure="name a larger topology, or another group",
            code="topology-too-small",
        )
    return WorldPlacement(npus, members)


def _npus(topology: Topology | None, options: AstraFolderOptions, members: tuple[int, ...]) -> int:
    """Size of the world: of the topology, as stated, or as small as the members allow."""
    stated = options.npus
    npus = stated or members[-1] + 1
    if topology is not None:
        npus = topology.num_npus
    if stated is not None and npus != stated:
        name = topology.name if topology is not None else ""
        raise UsageError(f"option npus: {stated}, but topology {name} has {npus} NPUs")
    return npus


def _members(stated: str | None, num_ranks: int) -> tuple[int, ...]:
    """NPU of every rank by the option `group`, by default NPU r for rank r."""
    if not stated:
        return tuple(range(num_ranks))
    members = parse_ranks(stated, "NPU", num_ranks)
    # Of a list that does not ascend the simulator sorts one copy and not the other.
    if list(members) != sorted(members):
        raise UsageError(
            "option group: the NPUs do not ascend; ASTRA-sim would mix up ranks and peers",
            cure="sort them: rank i is the i-th",
        )
    return members
