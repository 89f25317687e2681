"""Columns: grouped integer arrays, CSR tables and graphs in numpy, without loops over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.columns.public_names import names_from

if TYPE_CHECKING:
    from hub_core.columns.graphs import (
        ArcGroups,
        Arcs,
        NodePairs,
        Order,
        chain_cover,
        connected_parts,
        topological_levels,
        values_of_single_keys,
    )
    from hub_core.columns.groups import (
        BoolArray,
        Float64Array,
        Int32Array,
        Int64Array,
        IntArray,
        RankIntervals,
        UInt8Array,
        UInt64Array,
        counted_positions,
        csr,
        csr_of_pairs,
        csr_within,
        distinct,
        expanded_ranges,
        first_positions,
        gather,
        group_of_entry,
        group_pointer,
        inverse,
        is_sorted,
        labels,
        ordinals,
        positions_in,
        row_pointer,
        rows_of,
        run_lengths,
        run_mask,
        run_starts,
        sorted_ordinals,
        stable_order,
        stable_order_by,
        suffix_least,
    )
    from hub_core.columns.tables import ColumnTable, RankTable

__all__ = [
    "ArcGroups",
    "Arcs",
    "BoolArray",
    "ColumnTable",
    "Float64Array",
    "Int32Array",
    "Int64Array",
    "IntArray",
    "NodePairs",
    "Order",
    "RankIntervals",
    "RankTable",
    "UInt8Array",
    "UInt64Array",
    "chain_cover",
    "connected_parts",
    "counted_positions",
    "csr",
    "csr_of_pairs",
    "csr_within",
    "distinct",
    "expanded_ranges",
    "first_positions",
    "gather",
    "group_of_entry",
    "group_pointer",
    "inverse",
    "is_sorted",
    "labels",
    "ordinals",
    "positions_in",
    "row_pointer",
    "rows_of",
    "run_lengths",
    "run_mask",
    "run_starts",
    "sorted_ordinals",
    "stable_order",
    "stable_order_by",
    "suffix_least",
    "topological_levels",
    "values_of_single_keys",
]  # fmt: skip

_HOMES = {
    "hub_core.columns.graphs": (
        "ArcGroups Arcs NodePairs Order chain_cover connected_parts topological_levels "
        "values_of_single_keys"
    ),
    "hub_core.columns.groups": (
        "BoolArray Float64Array Int32Array Int64Array IntArray RankIntervals UInt64Array "
        "UInt8Array counted_positions csr csr_of_pairs csr_within distinct expanded_ranges "
        "first_positions gather group_of_entry group_pointer inverse is_sorted labels ordinals "
        "positions_in row_pointer rows_of run_lengths run_mask run_starts sorted_ordinals "
        "stable_order stable_order_by suffix_least"
    ),
    "hub_core.columns.tables": "ColumnTable RankTable",
}

__getattr__ = names_from(__name__, _HOMES)
