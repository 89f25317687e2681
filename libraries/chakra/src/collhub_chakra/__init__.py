"""Chakra execution traces as columns: bytes of files become arrays of nodes, and the way back.

What needs protobuf, the messages of the schema one by one, is in `collhub_chakra.trace_records`.
"""

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
