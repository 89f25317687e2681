"""Solutions of linear and integer programs, checked by duality and by enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from collhub_linear_programs import (
    GrowingProgram,
    InfeasibleError,
    LinearProgram,
    Matrix,
    solve,
)
from hypothesis import given
from hypothesis import strategies as st

from hub_core.columns import Float64Array


def program_of(
    costs: Float64Array, table: Float64Array, row_lower: Float64Array, *, is_integer: bool
) -> LinearProgram:
    """The program min costs @ x for table @ x >= row_lower and 0 <= x <= 3."""
    rows, columns = np.nonzero(table)
    return LinearProgram(
        costs,
        Matrix(rows, columns, table[rows, columns], *table.shape),
        row_lower,
        np.full(len(row_lower), np.inf),
        upper=np.full(len(costs), 3.0),
        is_integer=np.full(len(costs), is_integer) if is_integer else None,
    )


small = st.integers(0, 4).map(float)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Costs, coefficients and limits of a program with three variables and two rows."""
    costs = np.array(draw(st.lists(small, min_size=3, max_size=3)))
    table = np.array(draw(st.lists(small, min_size=6, max_size=6))).reshape(2, 3)
    return costs, table, np.array(draw(st.lists(small, min_size=2, max_size=2)))


@given(problems())
def test_the_prices_of_rows_prove_the_cost_of_a_linear_program(
    problem: tuple[Float64Array, Float64Array, Float64Array],
) -> None:
    costs, table, limits = problem
    try:
        solution = solve(program_of(costs, table, limits, is_integer=False), method="ipm")
    except InfeasibleError:
        # Coefficients are not negative, so the largest values are the best try.
        assert (table.sum(axis=1) * 3 < limits).any()
        return
    assert solution is not None
    assert (table @ solution.values >= limits - 1e-6).all()
    prices = solution.row_prices
    assert (prices >= -1e-9).all()
    # Weak duality: each variable contributes at least its reduced cost, at the better limit.
    reduced = costs - prices @ table
    proven = prices @ limits + np.minimum(3.0 * reduced, 0.0).sum()
    assert proven == pytest.approx(float(costs @ solution.values), abs=1e-6)
    assert solution.lower_bound == pytest.approx(proven, abs=1e-6)


@given(problems())
def test_integer_programs_equal_the_best_of_all_assignments(
    problem: tuple[Float64Array, Float64Array, Float64Array],
) -> None:
    costs, table, limits = problem
    assignments = [np.array(values, float) for values in product(range(4), repeat=3)]
    legal = [costs @ values for values in assignments if (table @ values >= limits).all()]
    program = program_of(costs, table, limits, is_integer=True)
    if not legal:
        with pytest.raises(InfeasibleError):
            solve(program)
        return
    solution = solve(program)
    assert solution is not None
    assert costs @ solution.values == pytest.approx(min(legal), abs=1e-6)
    assert solution.lower_bound == pytest.approx(min(legal), abs=1e-6)


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    solve(program_of(np.ones(2), np.eye(2), np.ones(2), is_integer=False))
    assert capfd.readouterr() == ("", "")


@given(problems())
def test_a_program_that_grows_by_its_rows_has_the_cost_of_the_complete_program(
    problem: tuple[Float64Array, Float64Array, Float64Array],
) -> None:
    costs, table, limits = problem
    program = program_of(costs, table, limits, is_integer=False)
    growing = GrowingProgram(program_of(costs, table[:0], limits[:0], is_integer=False))
    try:
        expected = solve(program)
        for row, limit in zip(table, limits, strict=True):
            growing.solve()
            columns = np.flatnonzero(row)
            growing.add_row(columns, row[columns], limit)
        grown = growing.solve()
    except InfeasibleError:
        assert (table.sum(axis=1) * 3 < limits).any()
        return
    assert expected is not None
    assert grown is not None
    assert grown.lower_bound == pytest.approx(expected.lower_bound, abs=1e-6)
