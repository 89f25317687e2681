"""Tables: records whose fields are columns of equal length."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import Field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from hub_core.columns.groups import group_of_entry
from hub_core.columns.orders import BoolArray, Int64Array, run_mask


class ColumnTable:
    """Base of frozen dataclasses of columns; the length is that of the first column."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __len__(self) -> int:
        values = (getattr(self, name) for name in self.__dataclass_fields__)
        # Fields before the columns are no arrays: a number, or the network of the table.
        return next(len(value) for value in values if isinstance(value, np.ndarray))

    def differences(self, other: Self) -> list[str]:
        """Return the names of the columns that differ; empty for equal tables."""
        return [
            name
            for name in self.__dataclass_fields__
            if not np.array_equal(getattr(self, name), getattr(other, name))
        ]


class RankTable(ColumnTable):
    """Base of tables of arrays whose rows are grouped by rank; the arrays become read-only.

    `rank_indptr` int64[num_ranks + 1]: rows of rank r are `rank_indptr[r]:rank_indptr[r + 1]`.
    `data_indptr`, `control_indptr` int64[rows + 1] with `data_indices`, `control_indices`: the rows
    on which a row depends.
    """

    __slots__ = ()
    rank: npt.NDArray[np.int32]
    kind: npt.NDArray[np.uint8]
    rank_indptr: Int64Array
    data_indptr: Int64Array
    data_indices: Int64Array
    control_indptr: Int64Array
    control_indices: Int64Array

    def __post_init__(self) -> None:
        # Tables are shared by models, plugins, and the caller that passed the columns.
        for name in self.__dataclass_fields__:
            getattr(self, name).flags.writeable = False

    def __len__(self) -> int:
        return len(self.rank)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} rows, {self.num_ranks} ranks>"

    @property
    def num_ranks(self) -> int:
        """Number of ranks, including ranks without rows."""
        return len(self.rank_indptr) - 1

    @property
    def data_edges(self) -> tuple[Int64Array, Int64Array]:
        """Data dependencies, (parent row, child row), ascending by child."""
        return self.data_indices, group_of_entry(self.data_indptr)

    @property
    def control_edges(self) -> tuple[Int64Array, Int64Array]:
        """Control dependencies, (parent row, child row), ascending by child."""
        return self.control_indices, group_of_entry(self.control_indptr)

    def edges(self) -> tuple[Int64Array, Int64Array]:
        """Return all dependencies, data and control, as (parent row, child row): two int64 arrays.

        Rows are those of the whole table, not per rank. If both kinds occur, the edges are ordered
        by child row, then parent row, and each pair of rows is returned once. If only one kind
        occurs, the edges are those of the table in its order: by child row, then as stored,
        repetitions included. Both arrays are empty without dependencies.
        """
        rows = max(len(self), 1)
        both = self.data_edges, self.control_edges
        data, control = (children * rows + parents for parents, children in both)
        merged = data if len(data) else control
        # Merged only if both kinds have entries. A stable sort merges two sorted parts in linear
        # time.
        if len(data) and len(control):
            merged = np.sort(np.concatenate([data, control]), kind="stable")
            merged = merged[run_mask(merged)]
        children, parents = np.divmod(merged, rows)
        return parents, children

    def parent_lists(self) -> Iterator[tuple[str, list[list[int]]]]:
        """Yield the kind of dependencies, data or control, and the parents of each row as lists.

        This is the form in documents; a kind without dependencies is omitted.
        """
        for name in ("data", "control"):
            # Short slices of lists are faster than those of arrays.
            flat = getattr(self, f"{name}_indices").tolist()
            ends = getattr(self, f"{name}_indptr").tolist()
            if flat:
                yield name, [flat[start:stop] for start, stop in itertools.pairwise(ends)]

    def rows_of_kind(self, kinds: Iterable[int]) -> BoolArray:
        """Return which rows have one of these kinds: bool[rows].

        All False for no kinds.
        """
        # Comparisons of bytes use vector instructions: ten times as fast as a lookup.
        is_of_kind = np.zeros(len(self), np.bool_)
        for kind in kinds:
            is_of_kind |= self.kind == kind
        return is_of_kind
