"""Linear and mixed-integer programs, solved by HiGHS (highspy).

A program is columns of numpy arrays; the matrix has one entry per coefficient that is not 0. All
solves use one thread, so that the same version of HiGHS always returns the same solution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from hub_core.columns import BoolArray, Float64Array, Int64Array, row_pointer, stable_order_by

if TYPE_CHECKING:
    from highspy import HighsLp
    from highspy._core import _Highs

__all__ = ["GrowingProgram", "InfeasibleError", "LinearProgram", "Matrix", "Solution", "solve"]


class InfeasibleError(Exception):
    """No assignment of the variables satisfies all rows and bounds."""


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Coefficients of the rows: `values[e]` in row `rows[e]` and column `columns[e]`.

    `rows`, `columns`: int64[entries], each pair at most once, in any order. `values`:
    float64[entries]. `num_rows`, `num_columns`: the shape.
    """

    rows: Int64Array
    columns: Int64Array
    values: Float64Array
    num_rows: int
    num_columns: int


@dataclass(frozen=True, slots=True, eq=False)
class LinearProgram:
    """Minimize `costs @ x` for `row_lower <= matrix @ x <= row_upper` and `0 <= x <= upper`.

    `costs`, `upper`: float64[columns]. `row_lower`, `row_upper`: float64[rows]; equal values make
    an equation, and an infinite value is no limit. `is_integer`: bool[columns], the variables that
    must be integers; None if there is no such variable.
    """

    costs: Float64Array
    matrix: Matrix
    row_lower: Float64Array
    row_upper: Float64Array
    upper: Float64Array
    is_integer: BoolArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """A solution of a program.

    `values`: float64[columns], within 1e-7 of rows and bounds (integers within 1e-6). `row_prices`:
    float64[rows], the change of the minimum per unit of a row's limit (dual variables); without a
    meaning for programs with integers. `lower_bound`: no solution costs less; for a linear program
    the cost of this one.
    """

    values: Float64Array
    row_prices: Float64Array
    lower_bound: float


def solve(
    program: LinearProgram,
    *,
    method: Literal["choose", "simplex", "ipm"] = "choose",
    max_nodes: int | None = None,
    time_limit_s: float | None = None,
) -> Solution | None:
    """Find a solution of minimum cost with HiGHS, on one thread; None if there is none to return.

    `method`: the algorithm for linear programs; "ipm" is the interior point method. `time_limit_s`
    limits the time in seconds, and `max_nodes` the nodes of the search tree of a mixed-integer
    program; None is no limit. Two kinds of programs differ:

    - Linear program (`is_integer` is None): only an optimal solution is returned. The result is
      None at a limit, and if the program is known to be unbounded. `lower_bound` is the cost.
    - Mixed-integer program (`is_integer` is an array): the best solution so far is returned, also
      at a limit; None if no solution was found. `lower_bound` is the bound that HiGHS has proven.
      The search does not end early at a small gap between cost and bound.

    Raises `InfeasibleError` if HiGHS finds the program infeasible, or infeasible or unbounded
    without knowing which.
    """
    solver = _create_solver(method)
    options: dict[str, bool | int | float | str] = {}
    if max_nodes is not None:
        options["mip_max_nodes"] = max_nodes
    if time_limit_s is not None:
        options["time_limit"] = time_limit_s
    if program.is_integer is not None:
        # A solution counts as optimal only if its bound is equal.
        options["mip_rel_gap"] = 0.0
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(_build_model(program))
    return _run(solver, is_linear=program.is_integer is None)


class GrowingProgram:
    """A linear program to which rows are added; a solve continues from the previous solution.

    This takes a few steps of the simplex method per solve, where `solve` starts anew.
    """

    def __init__(self, program: LinearProgram) -> None:
        """Begin with a program, to which rows can be added between solutions.

        It is passed to a simplex solver, which keeps its state; it is not solved yet. It must
        have no integer variables, which is not checked.
        """
        self._solver = _create_solver("simplex")
        self._solver.passModel(_build_model(program))

    def add_row(
        self, columns: Int64Array, values: Float64Array, lower: float, upper: float = np.inf
    ) -> None:
        """Add the row `lower <= values @ x[columns] <= upper`; each column at most once."""
        self._solver.addRow(lower, upper, len(columns), columns.astype(np.int32), values)

    def solve(self) -> Solution | None:
        """Find a solution of minimum cost; returns and raises as `solve`."""
        return _run(self._solver, is_linear=True)


def _create_solver(method: str) -> _Highs:
    """Create a HiGHS solver that uses one thread and does not print.

    `method`: its option `solver`, the algorithm for linear programs. It is not checked: HiGHS
    ignores an unknown one.
    """
    # Imported here: only commands that solve a program need the library. The public class `Highs`
    # of release 1.16 prints its version on standard output.
    from highspy._core import _Highs

    solver = _Highs()
    options: dict[str, bool | int | float | str] = {
        "output_flag": False,
        "threads": 1,
        "parallel": "off",
        "solver": method,
    }
    for name, value in options.items():
        solver.setOptionValue(name, value)
    return solver


def _run(solver: _Highs, *, is_linear: bool) -> Solution | None:
    """Let a solver solve its model; return the solution, None if it ends without one.

    `is_linear`: there are no integer variables; then only an optimal solution counts, and the
    bound is its cost. Otherwise any feasible solution counts, with the solver's lower bound.
    Raises `InfeasibleError` if the solver finds the model infeasible, or infeasible or
    unbounded without knowing which. A linear model that is known to be unbounded gives None.
    """
    from highspy import HighsModelStatus, SolutionStatus

    solver.run()
    status = solver.getModelStatus()
    if status in (HighsModelStatus.kInfeasible, HighsModelStatus.kUnboundedOrInfeasible):
        raise InfeasibleError
    info = solver.getInfo()
    has_solution = info.primal_solution_status == SolutionStatus.kSolutionStatusFeasible
    # A linear program that was interrupted has values, but its prices prove nothing.
    if not has_solution or (is_linear and status != HighsModelStatus.kOptimal):
        return None
    solution = solver.getSolution()
    bound = info.objective_function_value if is_linear else info.mip_dual_bound
    return Solution(
        np.array(solution.col_value, np.float64), np.array(solution.row_dual, np.float64), bound
    )


def _build_model(program: LinearProgram) -> HighsLp:
    """Convert a linear program to the model type of HiGHS.

    The matrix is stored by columns, with ascending rows in each column. Costs and limits of rows
    are those of the program. Every variable has the lower bound 0 and the program's upper bound.
    Variables are continuous unless `is_integer` marks them.
    """
    from highspy import HighsLp, HighsVarType, MatrixFormat

    matrix = program.matrix
    model = HighsLp()
    model.num_col_ = model.a_matrix_.num_col_ = matrix.num_columns
    model.num_row_ = model.a_matrix_.num_row_ = matrix.num_rows
    model.col_cost_ = program.costs
    model.col_lower_ = np.zeros(matrix.num_columns)
    model.col_upper_ = program.upper
    model.row_lower_ = program.row_lower
    model.row_upper_ = program.row_upper
    order = stable_order_by(matrix.columns, matrix.rows)
    counts = np.bincount(matrix.columns, minlength=matrix.num_columns)
    model.a_matrix_.format_ = MatrixFormat.kColwise
    model.a_matrix_.start_ = row_pointer(counts)
    model.a_matrix_.index_ = matrix.rows[order]
    model.a_matrix_.value_ = matrix.values[order]
    if program.is_integer is not None:
        kinds = (HighsVarType.kContinuous, HighsVarType.kInteger)
        model.integrality_ = [kinds[is_whole] for is_whole in program.is_integer.tolist()]
    return model
