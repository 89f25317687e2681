"""Run a program and its rewriting side by side, and compare everything that they deliver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from collhub_coconet.equivalence.array_operations import (
    Array,
    OnRanks,
    collected,
    is_same,
    largest_term,
    spread,
)
from collhub_coconet.equivalence.ranks import Run, run
from collhub_coconet.program.operations import (
    REDUCTIONS_TO_SCALARS,
    Argument,
    Kind,
    Operation,
)
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import LOCAL, Binding, ElementType


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of `compare`.

    `differences`: what is not as it must be, in words; none: the programs are equal. `exact`:
    outputs and states that were compared bit by bit. `errors`: of every reduction whose order of
    additions changed, its error as a share of the bound. `masks`: Dropout masks that were compared.
    """

    differences: tuple[str, ...]
    exact: tuple[str, ...]
    errors: Mapping[str, float]
    masks: int

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def compare(
    before: Program,
    after: Program,
    binding: Binding,
    seed: int = 0,
    element: ElementType | None = None,
) -> Comparison:
    """Compare two programs on random arguments; `element`: take this type for all floats.

    A sum or norm of slices adds in another order than one of the whole. It must be within
    4 eps p max|terms|, terms: what the ranks contribute; the run then goes on with the value of
    the first program, so that all the rest must be equal bit by bit.
    """
    if element is not None:
        before, after = _with_element(before, element), _with_element(after, element)
    # Both programs get the same numbers.
    data = random_arguments(before, binding, seed)
    first = run(before, binding, _on_ranks(before, data, binding))
    judge = _Judge(first, after, binding)
    second = run(after, binding, _on_ranks(after, data, binding), judge.replacement)
    return judge.compared(second)


def random_arguments(program: Program, binding: Binding, seed: int) -> dict[str, Array]:
    """Random arrays for all arguments; local ones have the ranks as their first dimension.

    Floats are in -1..1, of states in 0.1..1, since second moments are positive.
    """
    # In the order of declaration, so that a seed means one set.
    generator = np.random.default_rng(seed)
    return {one.name: _random(one, binding, generator) for one in program.arguments}


def _random(argument: Argument, binding: Binding, generator: np.random.Generator) -> Array:
    kind = argument.type
    shape = binding.shape(kind.shape)
    if kind.layout == LOCAL:
        shape = (binding.num_ranks, *shape)
    if kind.element.is_float:
        least = 0.1 if argument.is_state else -1.0
        return generator.uniform(least, 1.0, shape).astype(str(kind.element))
    most = 2 if kind.element is ElementType.BOOL else 6
    return generator.integers(0, most, shape).astype(str(kind.element))


def _on_ranks(program: Program, data: Mapping[str, Array], binding: Binding) -> dict[str, OnRanks]:
    ranks = binding.num_ranks
    return {one.name: spread(data[one.name], one.type, ranks) for one in program.arguments}


def _with_element(program: Program, element: ElementType) -> Program:
    """The program with all floats of one type."""
    # Integers and masks keep their types.
    arguments = tuple(
        replace(one, type=replace(one.type, element=element)) if one.type.element.is_float else one
        for one in program.arguments
    )
    operations = tuple(
        replace(one, element=element) if one.element is not None and one.element.is_float else one
        for one in program.operations
    )
    return replace(program, arguments=arguments, operations=operations)


@dataclass(slots=True)
class _Judge:
    """Compares the second run with the first, during it and after."""

    first: Run
    after: Program
    binding: Binding
    differences: list[str] = field(default_factory=list)
    exact: list[str] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)

    def replacement(self, operation: Operation, operand: OnRanks, value: OnRanks) -> OnRanks:
        """Hold a reduction whose order of additions changed against its bound."""
        if not self._adds_otherwise(operation):
            return value
        # Names survive every transformation.
        expected = self.first.values[operation.name]
        kind = self.after.types[operation.name]
        term = largest_term(operation.kind, operand)
        epsilon = float(np.finfo(str(kind.element)).eps)
        bound = 4 * epsilon * self.binding.num_ranks * term
        error = abs(float(value[0]) - float(expected[0]))
        # A bound of zero leaves room for nothing.
        share = error / bound if bound and np.isfinite(error) else 0.0
        self.errors[operation.name] = share
        is_equal = is_same(value[0], expected[0])
        are_both_lost = not (np.isfinite(value[0]) or np.isfinite(expected[0]))
        if not (is_equal or error <= bound or are_both_lost):
            text = f"{operation.name} differs by {error:.3g}, the bound is {bound:.3g}"
            self.differences.append(text)
        return expected

    def compared(self, second: Run) -> Comparison:
        """Compare outputs, states and masks bit by bit."""
        for name in self.first.program.outputs:
            self._compare(name, name, name, second)
        # An Update may have another name now.
        updates = _updates(second.program)
        for state, name in _updates(self.first.program).items():
            self._compare(f"state {state}", name, updates.get(state, name), second)
        masks = zip(self.first.masks, second.masks, strict=False)
        are_equal = all(is_same(one, other) for one, other in masks)
        if not are_equal or len(self.first.masks) != len(second.masks):
            self.differences.append("dropout masks differ")
        found = tuple(self.differences), tuple(self.exact)
        return Comparison(*found, self.errors, len(second.masks))

    def _adds_otherwise(self, operation: Operation) -> bool:
        """Whether a reduction of floats is of slices here, and of the whole in the first run."""
        if operation.kind not in REDUCTIONS_TO_SCALARS or operation.kind is Kind.MAX:
            return False
        # A new reduction has nothing to be held against.
        original = self.first.program.by_name.get(operation.name)
        if original is None or not self.after.types[operation.name].element.is_float:
            return False
        here = self.after.types[operation.reads[0]].layout
        there = self.first.program.types[original.reads[0]].layout
        return here != there

    def _compare(self, label: str, one: str, other: str, second: Run) -> None:
        if other not in second.values:
            self.differences.append(f"{label} is missing")
            return
        # Compared as whole tensors, whatever their layouts.
        expected = collected(self.first.values[one], self.first.program.types[one])
        kind = second.program.types[other]
        found = collected(second.values[other], kind)
        if not is_same(expected, found):
            self.differences.append(f"{label} differs")
        self.exact.append(label)


def _updates(program: Program) -> dict[str, str]:
    """Names of the new values of states, by state."""
    return {one.reads[0]: one.name for one in program.operations if one.kind is Kind.UPDATE}
