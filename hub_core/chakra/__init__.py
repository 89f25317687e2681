"""Chakra execution traces as columns: decode files to arrays of nodes, and encode them.

Only `decoded_records`, `encoded_record` and `message_class`, messages as objects, need protobuf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.columns import names_from

if TYPE_CHECKING:
    from hub_core.chakra.encode import (
        Ragged,
        RecordPiece,
        encode_records,
        list_attribute,
        number_attribute,
        number_field,
        packed_field,
    )
    from hub_core.chakra.fields import Edges, NodeFields, ResolvedLinks, Triple, link
    from hub_core.chakra.metadata import AttributeValue, Metadata, MetadataEntry, encode_metadata
    from hub_core.chakra.nodes import (
        INTEGER_KINDS,
        INTEGER_LIST_KINDS,
        LARGEST,
        AttributeKind,
        NodeTable,
        NodeType,
        TraceError,
        type_name,
    )
    from hub_core.chakra.rank_file import find_rank_in_name, in_batches, open_rank_file
    from hub_core.chakra.records import Batch, DecodedNodes, Dependencies, RankFile, decode_nodes
    from hub_core.chakra.shapes import AttributeColumns, ShapeBook
    from hub_core.chakra.trace_records import decoded_records, encoded_record, message_class
    from hub_core.chakra.wire import (
        Column,
        WireError,
        decode_varints,
        encode_varints,
        record_bounds,
        varint,
    )
    from hub_core.columns import UInt64Array

__all__ = [
    "INTEGER_KINDS", "INTEGER_LIST_KINDS", "LARGEST", "AttributeColumns", "AttributeKind",
    "AttributeValue", "Batch", "Column", "DecodedNodes", "Dependencies", "Edges", "Metadata",
    "MetadataEntry", "NodeFields", "NodeTable", "NodeType", "Ragged", "RankFile", "RecordPiece",
    "ResolvedLinks", "ShapeBook", "TraceError", "Triple", "UInt64Array", "WireError",
    "decode_nodes", "decode_varints", "decoded_records", "encode_metadata", "encode_records",
    "encode_varints", "encoded_record", "find_rank_in_name", "in_batches", "link", "list_attribute",
    "message_class", "number_attribute", "number_field", "open_rank_file", "packed_field",
    "record_bounds", "type_name", "varint",
]  # fmt: skip

_HOMES = {
    "hub_core.columns": "UInt64Array",
    "hub_core.chakra.encode": (
        "Ragged RecordPiece encode_records list_attribute number_attribute number_field "
        "packed_field"
    ),
    "hub_core.chakra.fields": "Edges NodeFields ResolvedLinks Triple link",
    "hub_core.chakra.metadata": "AttributeValue Metadata MetadataEntry encode_metadata",
    "hub_core.chakra.nodes": (
        "AttributeKind INTEGER_KINDS INTEGER_LIST_KINDS LARGEST NodeTable NodeType TraceError "
        "type_name"
    ),
    "hub_core.chakra.rank_file": "find_rank_in_name in_batches open_rank_file",
    "hub_core.chakra.records": "Batch Dependencies DecodedNodes RankFile decode_nodes",
    "hub_core.chakra.shapes": "AttributeColumns ShapeBook",
    "hub_core.chakra.trace_records": "decoded_records encoded_record message_class",
    "hub_core.chakra.wire": "Column WireError decode_varints encode_varints record_bounds varint",
}

__getattr__ = names_from(__name__, _HOMES)
