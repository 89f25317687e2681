"""A table of columns is as long as its first column, whatever stands before it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import numpy as np

from hub_core.columns import ColumnTable, Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Visits(ColumnTable):
    """Who came when, of so many rooms."""

    rooms: int
    room: Int64Array
    hour: Int64Array
    later: Int64Array


def test_the_first_column_counts() -> None:
    visits = Visits(9, np.arange(3), np.arange(3), np.arange(5))
    assert len(visits) == 3
    assert len(Visits(9, np.arange(0), np.arange(0), np.arange(5))) == 0


def test_a_table_has_slots_and_can_be_sent_to_another_process() -> None:
    visits = Visits(9, np.arange(3), np.arange(3), np.arange(5))
    assert not hasattr(visits, "__dict__")
    assert len(pickle.loads(pickle.dumps(visits))) == 3
