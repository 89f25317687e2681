"""Node types, node tables, kinds of attributes, and the error for a damaged trace."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from hub_core.columns import ColumnTable, Int32Array, Int64Array, UInt8Array, UInt64Array


class NodeType(IntEnum):
    """Node types of the Chakra schema."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


_PROPOSED = {8: "STORAGE_NODE", 9: "BATCH_NODE", 10: "CHECKPOINT_NODE"}
"""Node types of an open proposal for Chakra, in no release of the schema (version 1.0.0)."""


def type_name(node_type: int) -> str:
    """Return the schema's name of a node type, such as `COMP_NODE` for 4.

    Types 8 to 10, which are only proposed for the schema, and unknown types give a
    description that includes the number, such as `node of unknown type 42`.
    """
    if node_type in _PROPOSED:
        return f"{_PROPOSED[node_type]} (type {node_type}, so far only proposed for Chakra)"
    if node_type not in set(NodeType):
        return f"node of unknown type {node_type}"
    return f"{NodeType(node_type).name}_NODE"


@dataclass(frozen=True, slots=True, eq=False)
class NodeTable(ColumnTable):
    """Nodes of all ranks in file order, as simulators of traces need them.

    One entry per node: `node_id` uint64, unique within a rank; `type` uint8 (`NodeType`); `peer`
    int32 (COMM_SEND: destination, COMM_RECV: source, else -1); `tag` int32; `size` int64, bytes of
    a message, else 0; `duration_ns` int64, -1 if unknown; `step` int64, row of the node's step in
    the step table, -1 for none. `rank_indptr` int64[num_ranks + 1]. `data_indptr`, `control_indptr`
    int64[nodes + 1] with `data_indices`, `control_indices` int64: rows on which a node depends, in
    the order of the file; they may point forward.
    """

    node_id: UInt64Array
    type: UInt8Array
    peer: Int32Array
    tag: Int32Array
    size: Int64Array
    duration_ns: Int64Array
    step: Int64Array
    rank_indptr: Int64Array
    data_indptr: Int64Array
    data_indices: Int64Array
    control_indptr: Int64Array
    control_indices: Int64Array

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.rank_indptr) - 1


LARGEST = 1 << 62
"""Maximum number that readers accept if the format has no smaller limit."""


class AttributeKind(IntEnum):
    """Kinds of attribute values: number of the field of AttributeProto that holds the value."""

    DOUBLE = 3
    DOUBLE_LIST = 4
    FLOAT = 5
    FLOAT_LIST = 6
    INT32 = 7
    INT32_LIST = 8
    INT64 = 9
    INT64_LIST = 10
    UINT32 = 11
    UINT32_LIST = 12
    UINT64 = 13
    UINT64_LIST = 14
    SINT32 = 15
    SINT32_LIST = 16
    SINT64 = 17
    SINT64_LIST = 18
    FIXED32 = 19
    FIXED32_LIST = 20
    FIXED64 = 21
    FIXED64_LIST = 22
    SFIXED32 = 23
    SFIXED32_LIST = 24
    SFIXED64 = 25
    SFIXED64_LIST = 26
    BOOL = 27
    BOOL_LIST = 28
    STRING = 29
    STRING_LIST = 30
    BYTES = 31
    BYTES_LIST = 32

    @property
    def field(self) -> str:
        """Return the name of the protobuf field of a kind, for example `int64_val` or `int64_list`.

        It is the lower-case name of the kind, with `_val` unless it is a list.
        """
        name = self.name.lower()
        return name if name.endswith("_list") else f"{name}_val"


# The number of a list is one more than that of its entries.
INTEGER_KINDS = frozenset(
    AttributeKind(number) for number in range(AttributeKind.INT32, AttributeKind.BOOL + 1, 2)
)
INTEGER_LIST_KINDS = frozenset(AttributeKind(kind + 1) for kind in INTEGER_KINDS)


class TraceError(ValueError):
    """A file that is not a valid set of traces.

    `reason`, `cure`: the defect, and how to correct it (empty if unknown). `code`: name of the kind
    of defect. `file`: its name. `byte`: 0-based offset in it, `rank`: the rank; None if the defect
    has no such position.
    """

    def __init__(
        self,
        reason: str,
        file: str,
        *,
        code: str,
        byte: int | None = None,
        rank: int | None = None,
        cure: str = "",
    ) -> None:
        super().__init__(f"{file}: {reason}")
        self.reason = reason
        self.file = file
        self.code = code
        self.byte = byte
        self.rank = rank
        self.cure = cure
