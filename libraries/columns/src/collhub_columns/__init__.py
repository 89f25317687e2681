"""Columns: grouped integer arrays, CSR tables and graphs in numpy, without loops over rows."""

from collhub_columns.groups import (
    BoolArray,
    Float64Array,
    Int64Array,
    IntArray,
    counted_positions,
    csr,
    distinct,
    expanded_ranges,
    first_positions,
    gather,
    group_of_entry,
    group_pointer,
    inverse,
    is_sorted,
    ordinals,
    positions_in,
    row_pointer,
    rows_of,
    run_lengths,
    run_mask,
    run_starts,
    sorted_ordinals,
)
from collhub_columns.levels import Order, topological_levels
from collhub_columns.pairs import NodePairs
from collhub_columns.paths import ArcGroups, Arcs
from collhub_columns.tables import ColumnTable

__all__ = [
    "ArcGroups", "Arcs", "BoolArray", "ColumnTable", "Float64Array", "Int64Array", "IntArray",
    "NodePairs", "Order",
    "counted_positions", "csr", "distinct", "expanded_ranges", "first_positions", "gather",
    "group_of_entry", "group_pointer", "inverse", "is_sorted", "ordinals", "positions_in",
    "row_pointer", "rows_of", "run_lengths", "run_mask", "run_starts", "sorted_ordinals",
    "topological_levels",
]  # fmt: skip
