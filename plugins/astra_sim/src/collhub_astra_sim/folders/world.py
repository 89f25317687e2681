"""The NPUs of the simulated world: those that run an algorithm, and the workload traces of all.

Members of the group have collective nodes, the remaining NPUs idle work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collhub_astra_sim.options import AstraFolderOptions
from hub_core.chakra import NodeType
from hub_core.model import Algorithm, CollectiveKind, UsageError, parse_ranks, placement_of
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

    The world has the NPUs of the topology, else `npus`, else as many as the highest member
    requires. Raises `UsageError` for a world that is too large, too small or not that of the
    topology, and for NPUs that do not ascend.
    """
    default_npus = placement_of(algorithm)
    group = options.group or (
        ",".join(map(str, default_npus)) if default_npus is not None else None
    )
    members = _parse_members(group, algorithm.num_ranks)
    # The size of the world: of the topology, as given, or as small as the members allow.
    option_npus = options.npus
    npus = option_npus or members[-1] + 1
    if topology is not None:
        npus = topology.num_npus
    if option_npus is not None and npus != option_npus:
        name = topology.name if topology is not None else ""
        raise UsageError(f"option npus: {option_npus}, but topology {name} has {npus} NPUs")
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


def _parse_members(group: str | None, num_ranks: int) -> tuple[int, ...]:
    """Return the NPU of every rank: parsed from the option `group`, or NPU r for rank r without it.

    Raises `UsageError` for NPUs that do not ascend, and if the list does not name `num_ranks` NPUs.
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


GROUP = "1"
"""The communicator group of the algorithm; 0 means all ranks."""

ALL_RANKS_GROUPS = ("", "0")
"""Group names that workload nodes of all ranks may have."""

_VERSION = "0.0.4"
COMM_TYPES = {
    CollectiveKind.ALL_REDUCE: 0,
    CollectiveKind.ALL_GATHER: 2,
    CollectiveKind.ALL_TO_ALL: 6,
    CollectiveKind.REDUCE_SCATTER: 7,
}
"""`CollectiveCommType` of the Chakra schema; ASTRA-sim has no custom algorithms for other kinds."""

COLLECTIVE_KEYS = {kind: f"{kind}-implementation-custom" for kind in COMM_TYPES}
"""Keys of the system JSON that name the algorithm of a collective; other kinds have no key."""

PER_NODE_KEY = "per-node-custom-implementation"
"""Key of the system JSON with a YAML map of workload nodes to algorithms, which takes precedence.
"""


def encode_collective_workload(
    collectives: Sequence[tuple[CollectiveKind, int]], *, in_group: bool
) -> bytes:
    """Return the trace of a rank that takes part: one COMM_COLL_NODE per collective, in sequence.

    `collectives`: kind, in `COLLECTIVE_KEYS`, and comm_size of each; node i is collective i and
    depends on node i - 1. With `in_group` the nodes name the group, else they belong to all ranks.
    """
    nodes = []
    for number, (kind, comm_size) in enumerate(collectives):
        attributes: list[dict[str, object]] = [
            {"name": "is_cpu_op", "bool_val": False},
            {"name": "comm_type", "int64_val": COMM_TYPES[kind]},
            {"name": "comm_size", "int64_val": comm_size},
        ]
        # Without a group's name the node belongs to all ranks.
        if in_group:
            attributes.append({"name": "pg_name", "string_val": GROUP})
        nodes.append(
            {
                "id": number,
                "name": str(kind),
                "type": int(NodeType.COMM_COLL),
                "data_deps": [number - 1] if number else [],
                "attr": attributes,
            }
        )
    return _encode_trace(nodes)


def encode_idle_workload() -> bytes:
    """Return the trace of a rank outside the group: one COMP_NODE, which takes 1 ns.

    ASTRA-sim refuses a trace without nodes.
    """
    # The simulator refuses a trace without nodes.
    attributes = [
        {"name": "is_cpu_op", "bool_val": False},
        {"name": "num_ops", "int64_val": 1},
        {"name": "tensor_size", "uint64_val": 1},
    ]
    return _encode_trace([{"name": "idle", "type": int(NodeType.COMP), "attr": attributes}])


def _encode_trace(nodes: Sequence[Mapping[str, object]]) -> bytes:
    """Return the bytes of a trace: a metadata record with the version, then one record per node.

    A node is a mapping of the fields of the message `Node` by name.
    """
    # Imported here: it imports protobuf, which only writers of folders need.
    from hub_core.chakra import encoded_record

    metadata = encoded_record("GlobalMetadata", version=_VERSION)
    return metadata + b"".join(encoded_record("Node", **node) for node in nodes)
