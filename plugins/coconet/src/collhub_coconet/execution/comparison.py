"""Compare a program with its transformed version: run both, and compare all results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from collhub_coconet.execution.array_operations import (
    Array,
    OnRanks,
    collect,
    distribute,
    dtype_of,
    find_largest_term,
    find_local_axes,
    get_epsilon,
    is_same,
)
from collhub_coconet.execution.ranks import SimulatedRun, simulate_ranks
from collhub_coconet.program.operations import (
    REDUCTIONS_TO_SCALARS,
    Binding,
    ElementType,
    Kind,
    Operation,
)
from collhub_coconet.program.program import Program


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of `compare`.

    `differences`: descriptions of all differences; empty if the programs are equal. `exact`:
    outputs and states that were compared bit by bit. `errors`: for every reduction whose order of
    additions changed, its error divided by the bound. `masks`: number of Dropout masks that were
    compared.
    """

    differences: tuple[str, ...]
    exact: tuple[str, ...]
    errors: Mapping[str, float]
    masks: int

    @property
    def ok(self) -> bool:
        """Whether there are no differences."""
        return not self.differences


def compare(
    before: Program,
    after: Program,
    binding: Binding,
    seed: int = 0,
    element: ElementType | None = None,
) -> Comparison:
    """Execute two programs on the same random arguments, and compare their results by name.

    `seed` determines the arguments. `element`: type that replaces all float types in both
    programs, None for none. The outputs, new values of states and dropout masks of `before` must
    be equal bit by bit in `after` (`_RunComparison.compare_results`); deviations are listed in
    the result and raise no error.

    A sum or norm of floats may differ if its operand has another layout in `after` than in the
    operation of the same name in `before`, because it is then added in another order. Its error
    must be at most 4 eps p max|terms|. The terms are the contributions of the p ranks. The
    second run continues with the value of the first, so that later values stay equal.

    Raise `InputError` for layouts and roots that do not fit the ranks, and `KeyError` for an
    argument of `after` that `before` does not have.
    """
    if element is not None:
        before, after = _replace_float_type(before, element), _replace_float_type(after, element)
    data = draw_arguments(before, binding, seed)
    first = simulate_ranks(before, binding, _distribute_arguments(before, data, binding))
    comparison = _RunComparison(first, after, binding)
    second = simulate_ranks(
        after, binding, _distribute_arguments(after, data, binding), comparison.check_reduction
    )
    return comparison.compare_results(second)


def draw_arguments(program: Program, binding: Binding, seed: int) -> dict[str, Array]:
    """Draw random arrays for all arguments of a program, by name; each is the complete tensor.

    On each mesh axis with a local or partial layout, the values of an argument differ
    between ranks: these axes are its first dimensions. Floats are from -1 to 1, and those
    of states from 0.1 to 1, because second moments are positive. Integers are from 0 to 5,
    booleans False or True. The result depends only on `seed` and the order, types and
    shapes of the arguments. Raises `InputError` for a symbol without a number (`symbol`), and
    for a narrow float type if `ml_dtypes` is not installed (`element`).
    """
    # In the order of declaration, so that the result depends only on the seed.
    generator = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for argument in program.arguments:
        kind = argument.type
        local_sizes = [binding.axis_sizes[axis] for axis in find_local_axes(kind)]
        shape = (*local_sizes, *binding.shape(kind.shape))
        if kind.element.is_float:
            minimum = 0.1 if argument.is_state else -1.0
            floats = generator.uniform(minimum, 1.0, shape)
            arrays[argument.name] = floats.astype(dtype_of(kind.element))
        else:
            limit = 2 if kind.element is ElementType.BOOL else 6
            integers = generator.integers(0, limit, shape)
            arrays[argument.name] = integers.astype(str(kind.element))
    return arrays


def _distribute_arguments(
    program: Program, data: Mapping[str, Array], binding: Binding
) -> dict[str, OnRanks]:
    return {
        argument.name: distribute(data[argument.name], argument.type, binding)
        for argument in program.arguments
    }


def _replace_float_type(program: Program, element: ElementType) -> Program:
    """Copy a program in which all arguments and casts of any float type have the type `element`.

    Integer arguments, casts to integers, and operations that state no element type are unchanged.
    The types of the other values follow from these by the typing rules of the program.
    """
    arguments = tuple(
        replace(argument, type=replace(argument.type, element=element))
        if argument.type.element.is_float
        else argument
        for argument in program.arguments
    )
    operations = tuple(
        replace(operation, element=element)
        if operation.element is not None and operation.element.is_float
        else operation
        for operation in program.operations
    )
    return replace(program, arguments=arguments, operations=operations)


@dataclass(slots=True)
class _RunComparison:
    """Comparison of a second run with the first one, during the run and after it."""

    first: SimulatedRun
    after: Program
    binding: Binding
    differences: list[str] = field(default_factory=list)
    exact: list[str] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)

    def check_reduction(self, operation: Operation, operand: OnRanks, value: OnRanks) -> OnRanks:
        """Return the value of a reduction with which the second run continues; record its error.

        `operand`, `value`: operand and result of `operation` in the second run, by rank.

        An operation is checked if it is a sum or norm of floats, the first program has an
        operation of the same name, and the layouts of their operands differ. Its order of
        additions can then differ. Otherwise `value` is returned, and no error is recorded.

        A checked operation returns the value of the first run, so that later values can be
        compared bit by bit. The values are scalars, and the error is their absolute difference.
        The bound is 4 * epsilon of the element type * ranks * the largest term of `operand`.

        - `self.errors[operation.name]` becomes the largest error / bound over the ranks. A rank
          counts as 0 if the bound is 0 or the error is not finite.
        - `self.differences` gets one text for each distinct array object in `value` whose error
          is above the bound or NaN. There is no text if both values have equal bits, or if
          neither is finite.
        """
        if not self._has_new_order(operation):
            return value
        # Transformations keep the names of values.
        expected = self.first.values[operation.name]
        kind = self.after.types[operation.name]
        term = find_largest_term(operation.kind, operand)
        epsilon = get_epsilon(dtype_of(kind.element))
        bound = 4 * epsilon * self.binding.num_ranks * term
        # Ranks differ in the value only on other axes of a mesh than the sliced ones.
        pairs = {id(new): (new, old) for new, old in zip(value, expected, strict=True)}
        self.errors[operation.name] = 0.0
        for new, old in pairs.values():
            first, second = (float(part.reshape(-1)[0]) for part in (new, old))
            error = abs(first - second)
            relative_error = error / bound if bound and np.isfinite(error) else 0.0
            self.errors[operation.name] = max(self.errors[operation.name], relative_error)
            are_both_infinite = not (np.isfinite(first) or np.isfinite(second))
            if not (is_same(new, old) or error <= bound or are_both_infinite):
                text = f"{operation.name} differs by {error:.3g}, the bound is {bound:.3g}"
                self.differences.append(text)
        return expected

    def compare_results(self, second: SimulatedRun) -> Comparison:
        """Return the differences of outputs, new values of states and dropout masks of both runs.

        The comparisons, in this order:

        1. Each output of the first program with the value of the same name in `second`.
        2. Each state for which the first program has an Update, with the new value of the state in
           `second`. The names of the two Updates may differ. If the second program has no Update of
           the state, the value with the name of the first Update is used.
        3. The dropout masks in their order. Any difference, or another number of masks, adds the
           text `dropout masks differ` once.

        Values are compared as complete tensors; types, shapes and bits must be equal, and all NaNs
        are equal. A value that differs adds the text `NAME differs`, and one that `second` lacks
        `NAME is missing`. States are called `state NAME`. Names of all values that were compared,
        also of different ones, are added to `self.exact`.

        The result has the differences, names and errors collected in this object so far, also by
        `check_reduction`. Its number of masks is that of the second run.
        """
        for name in self.first.program.outputs:
            self._compare(name, name, name, second)
        # A transformation may have renamed the Update.
        updates = _map_updates(second.program)
        for state, name in _map_updates(self.first.program).items():
            self._compare(f"state {state}", name, updates.get(state, name), second)
        masks = zip(self.first.masks, second.masks, strict=False)
        are_equal = all(is_same(first_mask, second_mask) for first_mask, second_mask in masks)
        if not are_equal or len(self.first.masks) != len(second.masks):
            self.differences.append("dropout masks differ")
        differences, exact = tuple(self.differences), tuple(self.exact)
        return Comparison(differences, exact, self.errors, len(second.masks))

    def _has_new_order(self, operation: Operation) -> bool:
        """Return whether a sum or norm of floats adds in another order than in the first program.

        `operation`: of the second program. True if it is a SUM or NORM with a float result, the
        first program has an operation of the same name, and the layouts of their first operands
        differ. False otherwise; also for a maximum, which does not depend on the order.
        """
        if operation.kind not in REDUCTIONS_TO_SCALARS or operation.kind is Kind.MAX:
            return False
        # A new reduction has no counterpart.
        original = self.first.program.by_name.get(operation.name)
        if original is None or not self.after.types[operation.name].element.is_float:
            return False
        new_layout = self.after.types[operation.reads[0]].layout
        old_layout = self.first.program.types[original.reads[0]].layout
        return new_layout != old_layout

    def _compare(self, label: str, first_name: str, second_name: str, second: SimulatedRun) -> None:
        if second_name not in second.values:
            self.differences.append(f"{label} is missing")
            return
        # Complete tensors are compared, since layouts may differ.
        expected = collect(
            self.first.values[first_name], self.first.program.types[first_name], self.binding
        )
        kind = second.program.types[second_name]
        actual = collect(second.values[second_name], kind, self.binding)
        if not is_same(expected, actual):
            self.differences.append(f"{label} differs")
        self.exact.append(label)


def _map_updates(program: Program) -> dict[str, str]:
    """Return the name of the new value of each state, by the name of the state.

    States without an `Update` have no entry.
    """
    return {
        operation.reads[0]: operation.name
        for operation in program.operations
        if operation.kind is Kind.UPDATE
    }
