"""Values of a program on every rank, element by element there or not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from collhub_coconet.equivalence.blocks import Array, OnRanks
from collhub_coconet.lowering.grids import Grid
from collhub_coconet.lowering.views import viewed
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding, TensorType
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import InputError


def elements_on(kind: TensorType, binding: Binding, position: int) -> Int64Array:
    """Indices of the elements that a rank has of a tensor: all, or those of its block."""
    shape = binding.shape(kind.shape)
    if not kind.layout.is_sliced:
        return np.arange(int(np.prod(shape, dtype=np.int64)))
    return Grid(shape, kind.layout.dimension, binding.num_ranks, 1).elements(position)


@dataclass(slots=True)
class Values:
    """Arrays of whole tensors on each rank of the job, and which of their elements are there.

    Slices are views. What a collective leaves where it stood (`pass_through`: by name, (rank,
    chunk)) is read from its operand.
    """

    program: Program
    binding: Binding
    grids: Mapping[str, Grid]
    pass_through: Mapping[str, frozenset[tuple[int, int]]]
    arrays: dict[tuple[str, int], tuple[Array, BoolArray]] = field(default_factory=dict)

    def load(self, arguments: Mapping[str, OnRanks]) -> None:
        """Put the arguments on the ranks of their groups, as `equivalence.run` takes them."""
        for argument in self.program.arguments:
            ranks = self.binding.ranks_of(argument.type.group)
            for position, part in enumerate(arguments[argument.name]):
                chosen = elements_on(argument.type, self.binding, position)
                self.write(argument.name, ranks[position], chosen, part.reshape(-1))

    def read(self, name: str, rank: int, chosen: Int64Array) -> Array:
        """Elements of a value. Raises `InputError` for one that is not there yet."""
        operation = self.program.by_name.get(name)
        source = None if operation is None else viewed(self.program, operation)
        if source is not None:
            return self.read(source, rank, chosen)
        array, is_there = self._cells(name, rank)
        lacking = ~is_there[chosen]
        if not lacking.any():
            return array[chosen]
        if operation is None or not self._passes(name, rank, chosen[lacking]):
            element = int(chosen[np.argmax(lacking)])
            message = f"rank {rank} reads element {element} of {name} before it is there"
            cure = "a dependency is missing"
            raise InputError(message, cure=cure, code="not-there")
        found = array[chosen]
        found[lacking] = self.read(operation.reads[0], rank, chosen[lacking])
        return found

    def write(self, name: str, rank: int, chosen: Int64Array, values: Array) -> None:
        """Put elements where they belong."""
        array, is_there = self._cells(name, rank)
        array[chosen] = values
        # Whoever reads them from now on finds them.
        is_there[chosen] = True

    def on_rank(self, name: str, position: int) -> Array:
        """What a rank of its group has of a value, as `equivalence.run` gives it."""
        kind = self.program.types[name]
        chosen = elements_on(kind, self.binding, position)
        rank = self.binding.ranks_of(kind.group)[position]
        shape = list(self.binding.shape(kind.shape))
        if kind.layout.is_sliced:
            rest = int(np.prod(shape, dtype=np.int64)) // shape[kind.layout.dimension]
            shape[kind.layout.dimension] = len(chosen) // rest
        return self.read(name, rank, chosen).reshape(shape)

    def _cells(self, name: str, rank: int) -> tuple[Array, BoolArray]:
        key = name, rank
        if key not in self.arrays:
            kind = self.program.types[name]
            count = self.binding.elements(kind.shape)
            self.arrays[key] = np.zeros(count, str(kind.element)), np.zeros(count, np.bool_)
        return self.arrays[key]

    def _passes(self, name: str, rank: int, chosen: Int64Array) -> bool:
        """Whether all these elements stay where they were."""
        kept = self.pass_through.get(name, frozenset())
        mine = [chunk for owner, chunk in kept if owner == rank]
        if not mine:
            return False
        inside = np.concatenate([self.grids[name].elements(chunk) for chunk in mine])
        return bool(np.isin(chosen, inside).all())
