"""Chakra execution traces as columns: bytes of files become arrays of nodes, and the way back.

What needs protobuf, the messages of the schema one by one, is in `collhub_chakra.trace_records`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collhub_columns.public_names import names_from

if TYPE_CHECKING:
    from collhub_columns import UInt64Array

    from collhub_chakra.attributes import INTEGER_KINDS, LARGEST, Kind
    from collhub_chakra.encode import (
        Piece,
        Ragged,
        encode_records,
        list_attribute,
        number_attribute,
        number_field,
        packed_field,
    )
    from collhub_chakra.errors import TraceError
    from collhub_chakra.fields import NodeFields, Triple
    from collhub_chakra.links import Edges, ResolvedLinks, link
    from collhub_chakra.metadata import AttributeValue, Metadata, MetadataEntry, encode_metadata
    from collhub_chakra.nodes import NodeTable, NodeType, type_name
    from collhub_chakra.rank_file import in_batches, open_rank_file
    from collhub_chakra.records import Batch, Dependencies, NodeColumns, RankFile, decode_nodes
    from collhub_chakra.shapes import AttributeColumns, ShapeBook
    from collhub_chakra.wire import (
        Column,
        WireError,
        decode_varints,
        encode_varints,
        record_bounds,
        varint,
    )

__all__ = [
    "INTEGER_KINDS", "LARGEST", "AttributeColumns", "AttributeValue", "Batch", "Column",
    "Dependencies", "Edges", "Kind", "Metadata", "MetadataEntry", "NodeColumns", "NodeFields",
    "NodeTable", "NodeType", "Piece", "Ragged", "RankFile", "ResolvedLinks", "ShapeBook",
    "TraceError", "Triple", "UInt64Array", "WireError", "decode_nodes", "decode_varints",
    "encode_metadata", "encode_records", "encode_varints", "in_batches", "link",
    "list_attribute", "number_attribute", "number_field", "open_rank_file", "packed_field",
    "record_bounds", "type_name", "varint",
]  # fmt: skip

_HOMES = {
    "collhub_columns": "UInt64Array",
    "collhub_chakra.attributes": "INTEGER_KINDS LARGEST Kind",
    "collhub_chakra.encode": (
        "Piece Ragged encode_records list_attribute number_attribute number_field packed_field"
    ),
    "collhub_chakra.errors": "TraceError",
    "collhub_chakra.fields": "NodeFields Triple",
    "collhub_chakra.links": "Edges ResolvedLinks link",
    "collhub_chakra.metadata": "AttributeValue Metadata MetadataEntry encode_metadata",
    "collhub_chakra.nodes": "NodeTable NodeType type_name",
    "collhub_chakra.rank_file": "in_batches open_rank_file",
    "collhub_chakra.records": "Batch Dependencies NodeColumns RankFile decode_nodes",
    "collhub_chakra.shapes": "AttributeColumns ShapeBook",
    "collhub_chakra.wire": "Column WireError decode_varints encode_varints record_bounds varint",
}

__getattr__ = names_from(__name__, _HOMES)
