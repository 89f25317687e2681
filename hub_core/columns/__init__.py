"""Columns: grouped integer arrays, CSR tables and graphs in numpy, without loops over rows.

`names_from` imports the public names of a package on first use, so that `--help` needs no numpy.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hub_core.columns.arcs import ArcGroups, Arcs
    from hub_core.columns.graphs import (
        NodePairs,
        Order,
        chain_cover,
        connected_parts,
        find_heads,
        topological_levels,
        values_of_single_keys,
    )
    from hub_core.columns.groups import (
        RankIntervals,
        counted_positions,
        csr,
        csr_of_pairs,
        csr_within,
        expanded_ranges,
        first_positions,
        gather,
        group_of_entry,
        group_pointer,
        inverse,
        ordinals,
        positions_in,
        row_pointer,
        rows_of,
        sorted_ordinals,
        suffix_least,
    )
    from hub_core.columns.orders import (
        BoolArray,
        Float64Array,
        Int32Array,
        Int64Array,
        IntArray,
        UInt8Array,
        UInt64Array,
        distinct,
        is_sorted,
        labels,
        run_lengths,
        run_mask,
        run_starts,
        stable_order,
        stable_order_by,
    )
    from hub_core.columns.tables import ColumnTable, RankTable


def names_from(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a `__getattr__` (PEP 562) for a package, which imports public names on first use.

    `homes` maps the full name of each module to the names that it defines, separated by spaces. The
    function imports the module of the requested name, and stores the name in the package, so that
    it is called once per name. It raises `AttributeError` for any other name.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(home), name)
        # Stored, so that this function runs once per name.
        setattr(sys.modules[package], name, value)
        return value

    return find


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
    "find_heads",
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
    "hub_core.columns.arcs": "ArcGroups Arcs",
    "hub_core.columns.graphs": (
        "NodePairs Order chain_cover connected_parts find_heads topological_levels "
        "values_of_single_keys"
    ),
    "hub_core.columns.groups": (
        "RankIntervals counted_positions csr csr_of_pairs csr_within expanded_ranges "
        "first_positions gather group_of_entry group_pointer inverse ordinals positions_in "
        "row_pointer rows_of sorted_ordinals suffix_least"
    ),
    "hub_core.columns.orders": (
        "BoolArray Float64Array Int32Array Int64Array IntArray UInt64Array UInt8Array distinct "
        "is_sorted labels run_lengths run_mask run_starts stable_order stable_order_by"
    ),
    "hub_core.columns.tables": "ColumnTable RankTable",
}

__getattr__ = names_from(__name__, _HOMES)
