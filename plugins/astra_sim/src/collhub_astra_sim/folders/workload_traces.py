"""The workload traces of a folder: the nodes of every NPU of the world.

Collective nodes for the members of the group, idle work for the remaining NPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hub_core.chakra import NodeType
from hub_core.model import CollectiveKind

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

    `collectives`: kind, in `COLLECTIVE_KEYS`, and comm_size of each; node i is collective i.
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
    """Return the trace of a rank outside the group: one COMP_NODE, which takes 1 ns."""
    # The simulator refuses a trace without nodes.
    attributes = [
        {"name": "is_cpu_op", "bool_val": False},
        {"name": "num_ops", "int64_val": 1},
        {"name": "tensor_size", "uint64_val": 1},
    ]
    return _encode_trace([{"name": "idle", "type": int(NodeType.COMP), "attr": attributes}])


def _encode_trace(nodes: Sequence[Mapping[str, object]]) -> bytes:
    """Encode a trace: a metadata record, then nodes (fields of the message `Node` by name)."""
    # Imported here: it imports protobuf, which only writers of folders need.
    from hub_core.chakra.trace_records import encoded_record

    metadata = encoded_record("GlobalMetadata", version=_VERSION)
    return metadata + b"".join(encoded_record("Node", **node) for node in nodes)
