"""Dependencies by memory equal those of a plain search in sets of cells."""

from __future__ import annotations

import numpy as np
from collhub_mscclpp.reading.true_dependencies import dependencies
from hypothesis import given, settings
from hypothesis import strategies as st

CELLS = 6


@st.composite
def _steps(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """(first cell that is read, first one that is written, number of cells) of each step."""
    steps = []
    for _ in range(draw(st.integers(0, 12))):
        count = draw(st.integers(1, 3))
        base = st.integers(0, CELLS - count) | st.just(-1)
        steps.append((draw(base), draw(base), count))
    return steps


def _expected(steps: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
    """Pairs of steps, the first of which is the last writer or a reader since then."""
    pairs = set()
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {cell: set() for cell in range(CELLS)}
    for step, (read, write, count) in enumerate(steps):
        reads = range(read, read + count) if read >= 0 else ()
        writes = range(write, write + count) if write >= 0 else ()
        pairs |= {(writer[cell], step) for cell in (*reads, *writes) if cell in writer}
        pairs |= {(reader, step) for cell in writes for reader in readers[cell]}
        for cell in reads:
            readers[cell].add(step)
        for cell in writes:
            writer[cell], readers[cell] = step, set()
    return pairs


@settings(deadline=None)
@given(_steps(), st.integers(0, 100))
def test_dependencies_equal_a_plain_search(steps: list[tuple[int, int, int]], room: int) -> None:
    reads, writes, counts = (np.asarray([step[k] for step in steps], np.int64) for k in range(3))
    parents, children = np.full(room, -1, np.int64), np.full(room, -1, np.int64)
    number = dependencies(reads, writes, counts, CELLS, parents, children)
    pairs = set(zip(parents[:number].tolist(), children[:number].tolist(), strict=True))
    if number <= room:
        assert pairs == _expected(steps)
        assert (parents[number:] == -1).all()
    else:
        assert pairs <= _expected(steps)
