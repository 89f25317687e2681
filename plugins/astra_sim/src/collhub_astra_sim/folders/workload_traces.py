"""The workload traces of a folder: what every NPU of the world does.

Collective nodes for each member of the group, idle work for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hub_core.chakra import NodeType
from hub_core.model import CollectiveKind

GROUP = "1"
"""The communicator group of the algorithm; 0 means all ranks."""

ALL_RANKS_GROUPS = ("", "0")
"""What workload nodes of all ranks state as their group, where they state one."""

_VERSION = "0.0.4"
COMM_TYPES = {
    CollectiveKind.ALL_REDUCE: 0,
    CollectiveKind.ALL_GATHER: 2,
    CollectiveKind.ALL_TO_ALL: 6,
    CollectiveKind.REDUCE_SCATTER: 7,
}
"""`CollectiveCommType` of the Chakra schema; ASTRA-sim takes no custom algorithm for others."""

COLLECTIVE_KEYS = {kind: f"{kind}-implementation-custom" for kind in COMM_TYPES}
"""Keys of the system JSON that name the algorithm of a collective; others have none."""

PER_NODE_KEY = "per-node-custom-implementation"
"""Key of the system JSON that names a YAML map of workload nodes to algorithms; it goes first."""


def collective_workload(
    collectives: Sequence[tuple[CollectiveKind, int]], *, in_group: bool
) -> bytes:
    """The trace of a rank that takes part: one COMM_COLL_NODE a collective, one after the other.

    `collectives`: kind, in `COLLECTIVE_KEYS`, and comm_size of each; node i is collective i.
    """
    nodes = []
    for number, (kind, comm_size) in enumerate(collectives):
        attributes: list[dict[str, object]] = [
            {"name": "is_cpu_op", "bool_val": False},
            {"name": "comm_type", "int64_val": COMM_TYPES[kind]},
            {"name": "comm_size", "int64_val": comm_size},
        ]
        # Without a group's name the node is one of all ranks.
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
    return _trace(nodes)


def idle_workload() -> bytes:
    """The trace of a rank outside the group: one COMP_NODE, which takes 1 ns."""
    # The simulator refuses a trace without nodes.
    attributes = [
        {"name": "is_cpu_op", "bool_val": False},
        {"name": "num_ops", "int64_val": 1},
        {"name": "tensor_size", "uint64_val": 1},
    ]
    return _trace([{"name": "idle", "type": int(NodeType.COMP), "attr": attributes}])


def _trace(nodes: Sequence[Mapping[str, object]]) -> bytes:
    """A trace of these nodes.

    A metadata record stands first; each of `nodes` holds fields of the message `Node` by name.
    """
    # Imported here: it imports protobuf, which only writers of folders need.
    from hub_core.chakra.trace_records import encoded_record

    metadata = encoded_record("GlobalMetadata", version=_VERSION)
    return metadata + b"".join(encoded_record("Node", **node) for node in nodes)
