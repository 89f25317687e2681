"""Determine the NPUs of the simulated world on which the ranks of an algorithm run."""

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


def choose_placement(
    algorithm: Algorithm, topology: Topology | None, options: AstraFolderOptions
) -> WorldPlacement:
    """Return the placement of the options `group` and `npus`, by default the algorithm's placement.

    Raises `UsageError` for a world that is too large or too small, or for NPUs that do not ascend.
    """
    default_npus = placement_of(algorithm)
    group = options.group or (
        ",".join(map(str, default_npus)) if default_npus is not None else None
    )
    members = _parse_members(group, algorithm.num_ranks)
    npus = _count_npus(topology, options, members)
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


def _count_npus(
    topology: Topology | None, options: AstraFolderOptions, members: tuple[int, ...]
) -> int:
    """Return the size of the world: of the topology, as given, or as small as the members allow.

    Raises `UsageError` if the option contradicts the topology.
    """
    option_npus = options.npus
    npus = option_npus or members[-1] + 1
    if topology is not None:
        npus = topology.num_npus
    if option_npus is not None and npus != option_npus:
        name = topology.name if topology is not None else ""
        raise UsageError(f"option npus: {option_npus}, but topology {name} has {npus} NPUs")
    return npus


def _parse_members(group: str | None, num_ranks: int) -> tuple[int, ...]:
    """Return the NPU of every rank by the option `group`, by default NPU r for rank r.

    Raises `UsageError` for NPUs that do not ascend.
    """
    if not group:
        return tuple(range(num_ranks))
    members = parse_ranks(group, "NPU", num_ranks)
    # For a list that does not ascend, the simulator sorts one of its two copies.
    if list(members) != sorted(members):
        raise UsageError(
            "option group: the NPUs do not ascend; ASTRA-sim would confuse ranks and peers",
            cure="sort them: rank i is the i-th",
        )
    return members
